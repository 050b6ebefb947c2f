// SPDX-License-Identifier: MIT
//! Every source file names its licence and is short.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::supervise::{Ending, Interrupt, Stream};
use crate::workspace::{describe, run};

/// No source file is longer.
pub const MOST_LINES: usize = 600;

const LICENCE: &str = "SPDX-License-Identifier: MIT";

/// How a file of this name starts a comment; `None` when it is no source file.
///
/// A file without an extension is one if it starts with `#!`.
pub fn comment(path: &str, text: &str) -> Option<&'static str> {
    let name = path.rsplit('/').next()?;
    // Written by cargo and by proptest.
    if name == "Cargo.lock" || name.ends_with(".proptest-regressions") {
        return None;
    }
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension {
        "rs" | "c" | "cc" | "cpp" | "cu" | "cuh" | "h" | "hpp" => Some("//"),
        "toml" | "lock" | "sh" | "py" | "yml" | "yaml" | "cmake" => Some("#"),
        "" if text.starts_with("#!") => Some("#"),
        _ => None,
    }
}

/// What is wrong with a file, if anything is.
pub fn fault(path: &str, text: &str) -> Option<String> {
    let comment = comment(path, text)?;
    let wanted = format!("{comment} {LICENCE}");
    let mut lines = text.lines().skip_while(|line| line.starts_with("#!/"));
    if lines.next() != Some(wanted.as_str()) {
        return Some(format!("{path}: the first line is not {wanted:?}"));
    }
    let lines = text.lines().count();
    (lines > MOST_LINES).then(|| format!("{path}: {lines} lines, more than {MOST_LINES}"))
}

/// Checks every file that git tracks or would track.
///
/// # Errors
///
/// When a file is at fault: each of them; or when git cannot list them.
pub fn check(root: &Path, interrupt: &Interrupt) -> Result<()> {
    let mut faults = Vec::new();
    let files = list(root, interrupt)?;
    for path in &files {
        // What is not UTF-8 is no source file; what is gone is no file.
        let Ok(text) = fs::read_to_string(root.join(path)) else {
            continue;
        };
        faults.extend(fault(path, &text));
    }
    if faults.is_empty() {
        return Ok(());
    }
    for fault in &faults {
        println!("  {fault}");
    }
    bail!("{} of {} files", faults.len(), files.len())
}

fn list(root: &Path, interrupt: &Interrupt) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root);
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let mut files = Vec::new();
    let ending = run(git, None, interrupt, &mut |line| {
        let text = String::from_utf8_lossy(&line.bytes).into_owned();
        match line.stream {
            Stream::Out => files.push(text),
            Stream::Err => eprintln!("{text}"),
        }
        Ok(())
    })
    .context("git lists the source files")?;
    match ending {
        Ending::Finished => Ok(files),
        ending => bail!("git ls-files: {}", describe(&ending)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_licence_is_on_the_first_line_or_under_the_interpreter() {
        assert_eq!(fault("a.rs", "// SPDX-License-Identifier: MIT\n"), None);
        assert_eq!(fault("a.toml", "# SPDX-License-Identifier: MIT\n"), None);
        let script = "#!/usr/bin/env bash\n# SPDX-License-Identifier: MIT\n";
        assert_eq!(fault(".ci/run", script), None);
        assert!(fault("a.rs", "\n// SPDX-License-Identifier: MIT\n").is_some());
        assert!(fault("a.rs", "# SPDX-License-Identifier: MIT\n").is_some());
        assert!(fault("a.hpp", "// SPDX-License-Identifier: Apache-2.0\n").is_some());
        assert!(fault(".ci/run", "#!/bin/sh\n").is_some());
        assert!(fault("third_party.lock", "").is_some());
    }

    #[test]
    fn text_and_generated_files_are_left_alone() {
        assert_eq!(fault("Cargo.lock", "version = 4\n"), None);
        assert_eq!(fault("docs/README.md", "# Title\n"), None);
        assert_eq!(fault("LICENSE", "MIT License\n"), None);
        assert_eq!(fault("a/b.proptest-regressions", "cc 00\n"), None);
    }

    #[test]
    fn a_file_may_have_600_lines_and_no_more() {
        let lines = |n: usize| format!("// SPDX-License-Identifier: MIT\n{}", "\n".repeat(n - 1));
        assert_eq!(fault("a.rs", &lines(600)), None);
        assert!(fault("a.rs", &lines(601)).unwrap().contains("601"));
    }
}
