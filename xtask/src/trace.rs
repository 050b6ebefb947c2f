// SPDX-License-Identifier: MIT
//! `cargo xtask trace`: time lines of what kernels, proxies, NICs and the wire did.

mod options;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use options::OUTPUT;
pub(crate) use options::TraceArgs;

use crate::launch::write_line;
use crate::paths::{check_readable, check_writable};
use crate::supervise::{Ending, Interrupt};
use crate::workspace::{SUITE, Workspace, describe, run};

const PATIENCE: Duration = Duration::from_secs(300);

impl TraceArgs {
    /// Builds the program that does it, and runs it.
    ///
    /// # Errors
    ///
    /// When the program cannot be built or run, or fails.
    pub(crate) fn run(&self, interrupt: &Interrupt) -> Result<()> {
        let workspace = Workspace::load()?;
        let output = match &self.output {
            Some(path) => path.clone(),
            None if self.demo => workspace.target.join(OUTPUT),
            None => PathBuf::from(OUTPUT),
        };
        self.files
            .iter()
            .try_for_each(|file| check_readable(file))?;
        if !self.check {
            check_writable(&output)?;
        }
        // As `bench` builds: what that has built is there.
        let build = ["build", "--release", "--package", SUITE, "--bin", "trace"];
        let program = Workspace::build(workspace.cargo(), &build, interrupt)
            .context("the program that makes time lines cannot be built")?;
        let mut command = Command::new(program);
        command.args(self.arguments(&output));
        let ending = run(command, Some(PATIENCE), interrupt, &mut |line| {
            write_line(line.stream, "", &line.bytes)
        })?;
        match ending {
            Ending::Finished => Ok(()),
            ending => bail!("the time line: {}", describe(&ending)),
        }
    }

    /// What the program is told. It takes the same options.
    fn arguments(&self, output: &Path) -> Vec<OsString> {
        let Self {
            files,
            output: _,
            check,
            demo,
            iterations,
            keep,
        } = self;
        let mut arguments: Vec<OsString> = files.iter().map(Into::into).collect();
        if *check {
            arguments.push("--check".into());
        } else {
            arguments.extend(["--output".into(), output.into()]);
        }
        if *demo {
            let iterations = iterations.to_string();
            arguments.extend(["--demo".into(), "--iterations".into(), iterations.into()]);
        }
        arguments.extend(keep.then(|| "--keep".into()));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn the_program_gets_the_options_that_were_given() {
        for words in [
            "trace a.json b.json -o c.json",
            "trace --check a.json",
            "trace --demo -o target/t.json --iterations 3 --keep",
        ] {
            let given = TraceArgs::parse_from(words.split(' '));
            let words = [OsString::from("trace")].into_iter();
            let output = given.output.clone().unwrap_or_default();
            let passed = TraceArgs::parse_from(words.chain(given.arguments(&output)));
            assert_eq!(format!("{given:?}"), format!("{passed:?}"));
        }
    }
}
