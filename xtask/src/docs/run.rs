// SPDX-License-Identifier: MIT
//! `cargo xtask doc-commands`: the marked commands of the pages run, and print what the pages show.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::page::Block;
use super::{commands_of, pages};
use crate::launch::write_line;
use crate::supervise::{Ending, Interrupt, Stream};
use crate::tally::Tally;
use crate::workspace::{Workspace, describe, run_merged};

/// Runs them in order, in the workspace's root. The last line printed is the returned tally, a test
/// for each command.
///
/// # Errors
///
/// When a page cannot be read or no shell be started, and when the user interrupts.
pub fn run(timeout: Duration, interrupt: &Interrupt) -> Result<Tally> {
    let workspace = Workspace::load()?;
    // Pages show where builds usually go.
    let target = format!(" {}/", workspace.target.display());
    let end = Instant::now() + timeout;
    let mut tally = Tally::default();
    for page in pages(&workspace.root)? {
        for block in page
            .blocks
            .iter()
            .filter(|block| block.marked("run").is_some())
        {
            for (line, text) in commands_of(block) {
                println!("== {}:{line}: {text}", page.path);
                let mut command = Command::new("bash");
                let text = text.replace(" target/", &target);
                command
                    .args(["-euo", "pipefail", "-c", &text])
                    .current_dir(&workspace.root);
                let mut output = Vec::new();
                let left = end.saturating_duration_since(Instant::now());
                let ending = run_merged(command, Some(left), interrupt, &mut |line| {
                    output.push(String::from_utf8_lossy(&line.bytes).into_owned());
                    write_line(Stream::Out, "", &line.bytes)
                })?;
                if let Some(signal) = interrupt.signal() {
                    anyhow::bail!("stopped by signal {signal}");
                }
                let missing = shown(block, line).find(|shown| !output.contains(shown));
                match (ending, missing) {
                    (Ending::Finished, None) => tally.passed += 1,
                    (Ending::Finished, Some(line)) => {
                        println!("FAILED: the page shows {line:?}");
                        tally.failed += 1;
                    }
                    (ending, _) => {
                        println!("FAILED: {}", describe(&ending));
                        tally.failed += 1;
                    }
                }
            }
        }
    }
    if tally == Tally::default() {
        anyhow::bail!("no page has a block that is marked to be run");
    }
    println!("{tally}");
    Ok(tally)
}

/// The lines of output that a block shows behind the command of a line.
fn shown(block: &Block, line: usize) -> impl Iterator<Item = String> {
    let behind = block.text.lines().skip(line - block.line);
    (behind.take_while(|line| !line.starts_with("$ "))).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs::Page;

    #[test]
    fn what_a_page_shows_belongs_to_the_command_before_it() {
        let page = Page::parse(
            "p.md",
            "<!-- run -->\n```console\n$ a\n$ b\nx\ny\n$ c\nz\n```\n",
        );
        let block = &page.blocks[0];
        let all: Vec<(String, Vec<String>)> = (commands_of(block).into_iter())
            .map(|(line, text)| (text, shown(block, line).collect()))
            .collect();
        let expected = [("a", vec![]), ("b", vec!["x", "y"]), ("c", vec!["z"])];
        let expected = expected.map(|(text, lines)| {
            (
                text.to_owned(),
                lines.into_iter().map(str::to_owned).collect(),
            )
        });
        assert_eq!(all, expected);
    }
}
