// SPDX-License-Identifier: MIT
//! A page of Markdown, as far as checks look at it. Enough for how the pages here are written: fences
//! of three backquotes, headings with `#`, links in line.

use std::collections::HashMap;

/// A page.
#[derive(Debug, Default)]
pub struct Page {
    /// Its path, from the root of the repository.
    pub path: String,
    /// Blocks of code.
    pub blocks: Vec<Block>,
    /// Code in line: the line where it begins, and its text with white space made one blank.
    pub spans: Vec<(usize, String)>,
    /// Targets of links, with their lines.
    pub links: Vec<(usize, String)>,
    /// The names by which links reach its headings.
    pub anchors: Vec<String>,
    /// Comments, with their lines.
    pub comments: Vec<(usize, String)>,
    /// All of it.
    pub text: String,
}

/// A block of code.
#[derive(Debug, Default)]
pub struct Block {
    /// The line of its fence, counted from 1.
    pub line: usize,
    /// What stands behind the fence: the language, and what comes after a comma.
    pub info: String,
    /// Its lines.
    pub text: String,
    /// The comment on the line before, if there is one.
    pub mark: Option<String>,
}

impl Block {
    /// The language.
    pub fn language(&self) -> &str {
        self.info.split(',').next().unwrap_or_default().trim()
    }

    /// What a mark says behind `name:`, or "" for the bare name.
    pub fn marked(&self, name: &str) -> Option<&str> {
        let mark = self.mark.as_deref()?.strip_prefix(name)?;
        match mark.strip_prefix(':') {
            Some(value) => Some(value.trim()),
            None => mark.is_empty().then_some(""),
        }
    }
}

impl Page {
    /// Reads a page.
    pub fn parse(path: &str, text: &str) -> Self {
        let mut page = Self {
            path: path.into(),
            text: text.into(),
            ..Self::default()
        };
        let mut used = HashMap::new();
        // Prose without blocks, whose lines stay where they are.
        let mut prose = String::new();
        let mut block: Option<Block> = None;
        let mut before = "";
        for (number, line) in (1..).zip(text.lines()) {
            let fence = line.trim_start().strip_prefix("```");
            match (&mut block, fence) {
                (None, Some(info)) => {
                    block = Some(Block {
                        line: number,
                        info: info.trim().into(),
                        text: String::new(),
                        mark: comment(before).map(str::to_owned),
                    });
                }
                (Some(_), Some(_)) => page.blocks.extend(block.take()),
                (Some(block), None) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => {
                    if let Some(heading) = heading(line) {
                        page.anchors.push(anchor(heading, &mut used));
                    }
                    if let Some(comment) = comment(line) {
                        page.comments.push((number, comment.into()));
                    } else {
                        prose.push_str(line);
                    }
                }
            }
            prose.push('\n');
            before = line;
        }
        page.blocks.extend(block);
        page.read_prose(&prose);
        page
    }

    /// Spans and links.
    fn read_prose(&mut self, prose: &str) {
        let line_of = |at: usize| 1 + prose[..at].matches('\n').count();
        let mut at = 0;
        let mut plain = String::new();
        while let Some(begin) = prose[at..].find('`').map(|found| at + found) {
            plain.push_str(&prose[at..begin]);
            let ticks = prose[begin..].len() - prose[begin..].trim_start_matches('`').len();
            let inside = begin + ticks;
            let Some(end) = prose[inside..].find(&prose[begin..inside]) else {
                at = inside;
                continue;
            };
            let span = &prose[inside..inside + end];
            let words: Vec<&str> = span.split_whitespace().collect();
            self.spans.push((line_of(begin), words.join(" ")));
            // Links keep their lines.
            plain.extend(span.chars().map(|c| if c == '\n' { '\n' } else { '_' }));
            at = inside + end + ticks;
        }
        plain.push_str(&prose[at..]);
        let line_of = |at: usize| 1 + plain[..at].matches('\n').count();
        let starts: Vec<usize> = plain.match_indices("](").map(|(at, _)| at + 2).collect();
        for start in starts {
            if let Some(end) = plain[start..].find(')') {
                let target = plain[start..start + end].trim();
                self.links.push((line_of(start), target.into()));
            }
        }
    }
}

fn comment(line: &str) -> Option<&str> {
    let inside = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
    Some(inside.trim())
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    ((1..=6).contains(&level) && text.starts_with(' ')).then_some(text.trim())
}

/// As GitHub names headings.
fn anchor(heading: &str, used: &mut HashMap<String, usize>) -> String {
    // Of a link in a heading, the text.
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, behind)) = rest.split_once("](") {
        text.push_str(before);
        rest = behind.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    let name: String = (text.to_lowercase().chars())
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c => c.is_alphanumeric().then_some(c),
        })
        .collect();
    let count = used.entry(name.clone()).or_insert(0);
    *count += 1;
    match *count {
        1 => name,
        again => format!("{name}-{}", again - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_blocks_spans_links_and_anchors() {
        let text = "# A *title*, `code`\n\nSee [b](c.md#d) and [`e`\nf](g.md), `x\ny`.\n\n\
                    <!-- run -->\n```console\n$ ls [n](o)\n```\n## Twice\n## Twice\n\n```text\n```\n";
        let page = Page::parse("p.md", text);
        assert_eq!(page.anchors, ["a-title-code", "twice", "twice-1"]);
        let links: Vec<&str> = page.links.iter().map(|(_, link)| link.as_str()).collect();
        assert_eq!(links, ["c.md#d", "g.md"]);
        let spans: Vec<&str> = page.spans.iter().map(|(_, span)| span.as_str()).collect();
        assert_eq!(spans, ["code", "e", "x y"]);
        assert_eq!(page.spans[2].0, 4);
        let [run, plain] = &page.blocks[..] else {
            panic!("{:?}", page.blocks)
        };
        assert_eq!(
            (run.line, run.language(), run.text.as_str()),
            (8, "console", "$ ls [n](o)\n")
        );
        assert_eq!((run.marked("run"), plain.marked("run")), (Some(""), None));
    }

    #[test]
    fn a_mark_may_have_a_value() {
        let page = Page::parse("p.md", "<!-- file: a/b.rs -->\n```rust,no_run\nx\n```\n");
        assert_eq!(page.blocks[0].marked("file"), Some("a/b.rs"));
        assert_eq!(page.blocks[0].marked("run"), None);
        assert_eq!(page.blocks[0].language(), "rust");
    }
}
