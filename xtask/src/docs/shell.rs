// SPDX-License-Identifier: MIT
//! What a line of a shell runs, as far as pages use shells.

/// The commands of a line, each as its words: without comment, variables set in front, and what joins
/// commands.
pub(super) fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            (None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => end_word(&mut commands, &mut word),
            (None, '|' | '&' | ';' | '(' | ')') => {
                end_word(&mut commands, &mut word);
                commands.push(Vec::new());
            }
            // Where output goes is no word.
            (None, '<' | '>') => {
                end_word(&mut commands, &mut word);
                while chars.next_if(|c| *c == '>' || c.is_whitespace()).is_some() {}
                while chars.next_if(|c| !c.is_whitespace()).is_some() {}
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    end_word(&mut commands, &mut word);
    for command in &mut commands {
        let first = command.iter().position(|word| !sets_variable(word));
        command.drain(..first.unwrap_or(command.len()));
    }
    commands.retain(|command| !command.is_empty());
    commands
}

fn end_word(commands: &mut [Vec<String>], word: &mut Option<String>) {
    if let (Some(command), Some(word)) = (commands.last_mut(), word.take()) {
        command.push(word);
    }
}

fn sets_variable(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_commands_of_words() {
        let line = "A=1 B='x y' cargo xtask bench --json 'a b' && (cd x; ls) | wc -l > out # all";
        let expected: [&[&str]; 4] = [
            &["cargo", "xtask", "bench", "--json", "a b"],
            &["cd", "x"],
            &["ls"],
            &["wc", "-l"],
        ];
        assert_eq!(commands(line), expected);
        assert!(commands("# only a comment").is_empty());
        assert_eq!(commands("env A=1 b"), [["env", "A=1", "b"]]);
    }
}
