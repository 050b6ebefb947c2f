// SPDX-License-Identifier: MIT
//! Between `mpirun` and a rank: marks its output and notes how it ended.
//!
//! `mpirun` merges the output of all ranks, may cut it when it adds marks of
//! its own, and either ends the whole job at the first rank that fails or does
//! not say that one has. So it starts this program for each rank. It passes the
//! rank's lines on, with `[rank]` before those of every rank but 0, and leaves
//! a note of the rank's end, and of rank 0's last line, in the job's directory.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::launch::write_line;
use crate::supervise::{Ending, Interrupt, Limits, Line, Member, Stream, exit_code, supervise};
use crate::tally::Tally;
use crate::workspace::describe;

/// Where Open MPI and Hydra tell a process its rank, and how many there are.
const VARIABLES: [(&str, &str); 2] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
];
/// The note of a rank that ended with success.
const WELL: &str = "ok";
/// How often a rank that failed looks whether the others have ended.
const NAP: Duration = Duration::from_millis(20);

/// The directory in which the ranks of a job leave their notes.
#[derive(Clone, Debug)]
pub struct Notes(PathBuf);

impl Notes {
    /// Notes in `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    fn path(&self, rank: usize) -> PathBuf {
        self.0.join(format!("ended.{rank}"))
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        // A reader sees the whole note or none. Each note has a draft of its own, because ranks
        // end at the same time.
        let mut draft = path.as_os_str().to_owned();
        draft.push(".draft");
        fs::write(&draft, text)?;
        fs::rename(&draft, path)
    }

    fn all_ended(&self, size: usize) -> bool {
        (0..size).all(|rank| self.path(rank).exists())
    }

    /// Rank 0's last line, if it printed one.
    pub fn tally(&self) -> Option<Tally> {
        let text = fs::read_to_string(self.0.join("tally")).ok()?;
        Tally::parse(&text)
    }

    /// What is wrong, in words, unless each of `size` ranks ended well.
    pub fn problem(&self, size: usize) -> Option<String> {
        let problems: Vec<String> = (0..size)
            .filter_map(|rank| match fs::read_to_string(self.path(rank)) {
                Ok(note) if note == WELL => None,
                Ok(note) => Some(format!("rank {rank} failed ({note})")),
                Err(_) => Some(format!("rank {rank} was stopped")),
            })
            .collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}

/// Keeps the suite's last line back, so that it can be the last line of all.
#[derive(Debug, Default)]
pub struct LastLine(pub Option<Tally>);

impl LastLine {
    /// Whether `line`, from rank 0, is the last line; then it is kept.
    pub fn keep(&mut self, line: &Line) -> bool {
        let tally = str::from_utf8(&line.bytes).ok().and_then(Tally::parse);
        let kept = line.stream == Stream::Out && tally.is_some();
        if kept {
            self.0 = tally;
        }
        kept
    }
}

fn position() -> Result<(usize, usize)> {
    for (rank, size) in VARIABLES {
        if let (Ok(rank), Ok(size)) = (std::env::var(rank), std::env::var(size)) {
            return Ok((rank.parse()?, size.parse()?));
        }
    }
    bail!("none of {VARIABLES:?} is set: run this under mpirun")
}

/// Runs `command` as this rank.
///
/// A rank that fails waits for the others to end, so that `mpirun` does not
/// end them before they have said why; when they do not, it fails and lets
/// `mpirun` end them.
///
/// # Errors
///
/// When no launcher set a rank, or the command cannot be started.
pub fn rank_output(command: &[OsString], notes: &Notes, interrupt: &Interrupt) -> Result<ExitCode> {
    let (rank, size) = position().context("this process's rank")?;
    let (program, args) = command.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(args);
    let prefix = match rank {
        0 => String::new(),
        rank => format!("[{rank}] "),
    };
    let mut last = LastLine::default();
    let limits = Limits::default();
    let members = vec![Member::new(command)];
    let ending = supervise(members, &limits, interrupt, &mut |line| {
        if rank == 0 && last.keep(line) {
            return Ok(());
        }
        write_line(line.stream, &prefix, &line.bytes)
    })
    .map_err(|error| error.source)
    .with_context(|| format!("cannot start {}", program.display()))?;
    if let Some(tally) = last.0 {
        notes.write(&notes.0.join("tally"), &tally.to_string())?;
    }
    let status = match ending {
        Ending::Finished => {
            notes.write(&notes.path(rank), WELL)?;
            return Ok(ExitCode::SUCCESS);
        }
        Ending::Failed { status, .. } => status,
        ending => bail!("{}", describe(&ending)),
    };
    notes.write(&notes.path(rank), &status.to_string())?;
    let until = Instant::now() + limits.grace;
    while Instant::now() < until && interrupt.signal().is_none() {
        if notes.all_ended(size) {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(NAP);
    }
    Ok(exit_code(status).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_well_when_each_rank_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let notes = Notes::new(directory.path());
        notes.write(&notes.path(0), WELL).unwrap();
        assert!(!notes.all_ended(2));
        assert_eq!(notes.problem(2).unwrap(), "rank 1 was stopped");
        notes.write(&notes.path(1), "exit status: 3").unwrap();
        assert!(notes.all_ended(2));
        assert_eq!(notes.problem(2).unwrap(), "rank 1 failed (exit status: 3)");
        notes.write(&notes.path(1), WELL).unwrap();
        assert_eq!(notes.problem(2), None);
        assert_eq!(notes.problem(3).unwrap(), "rank 2 was stopped");
    }

    #[test]
    fn ranks_that_end_together_do_not_disturb_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let notes = Notes::new(directory.path());
        thread::scope(|scope| {
            for rank in 0..8 {
                let notes = &notes;
                scope.spawn(move || {
                    for _ in 0..200 {
                        notes.write(&notes.path(rank), WELL).unwrap();
                    }
                });
            }
        });
        assert_eq!(notes.problem(8), None);
    }
}
