// SPDX-License-Identifier: MIT
//! `cargo xtask scale`: what joining and setting up queues costs a rank, against the size of the world
//! and the number of its peers.

mod claims;
mod draw;
mod row;
mod table;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use self::claims::check;
use self::row::{Kind, Row};
use crate::cli::{ranks, seconds};
use crate::launch::{Launch, write_line};
use crate::supervise::{Interrupt, Stream};
use crate::workspace::{SUITE, Workspace};

/// Worlds of processes; the largest is what was asked for.
const PROCESSES: [usize; 4] = [4, 16, 64, 128];
/// Worlds of threads.
const THREADS: [usize; 8] = [4, 8, 16, 32, 64, 128, 256, 512];

/// Measure what joining and setting up queues costs a rank, against the world's size
///
/// Ranks are processes of this machine, which set up queues on NICs in software, use them and leave,
/// and, in larger worlds, threads of one process, which do of it what ranks do together. Prints a
/// table. Fails if descriptors, threads or bytes of a rank grow with the world, when it has joined,
/// beyond its logarithm.
#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// The largest world of processes; 0 for none
    #[arg(long, default_value = "128", value_name = "N", value_parser = world)]
    processes: usize,
    /// The largest world of threads; 0 for none
    #[arg(long, default_value = "512", value_name = "N", value_parser = world)]
    ranks: usize,
    /// Peers of each rank; those that a world has no room for are left out
    #[arg(long, default_value = "1,2,4,8", value_name = "LIST", value_delimiter = ',', value_parser = ranks)]
    degrees: Vec<usize>,
    /// Write the table's figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw SVG files into this directory
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Stop after this many seconds, the build not included
    #[arg(long, value_name = "SECONDS", default_value = "1800", value_parser = seconds)]
    timeout: Duration,
}

fn world(text: &str) -> Result<usize, String> {
    match text {
        "0" => Ok(0),
        text => ranks(text),
    }
}

impl ScaleArgs {
    /// Builds, measures and checks.
    ///
    /// # Errors
    ///
    /// When it cannot be built, a rank fails, or something grows that should not.
    pub fn run(self, interrupt: &Interrupt) -> Result<()> {
        let workspace = Workspace::load()?;
        let build = ["build", "--release", "--package", SUITE, "--bin", "scale"];
        let program = Workspace::build(workspace.cargo(), &build, interrupt)?;
        let mut rows = Vec::new();
        for (kind, largest, worlds) in [
            (Kind::Threads, self.ranks, &THREADS[..]),
            (Kind::Processes, self.processes, &PROCESSES[..]),
        ] {
            for world in up_to(largest, worlds) {
                for degree in self.degrees.iter().filter(|degree| **degree < world) {
                    let row = self.measure(&program, kind, (world, *degree), interrupt)?;
                    println!("{}", row.progress());
                    rows.push(row);
                }
            }
        }
        ensure!(!rows.is_empty(), "no world has room for so many peers");
        println!("\n{}", table::table(&rows));
        if let Some(path) = &self.json {
            fs::write(path, serde_json::to_vec_pretty(&rows)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if let Some(directory) = &self.plots {
            draw::draw(&rows, directory)?;
        }
        let broken = check(&rows);
        for claim in &broken {
            eprintln!("{claim}");
        }
        ensure!(
            broken.is_empty(),
            "{} figures grow with the world",
            broken.len()
        );
        println!("nothing grows with the world beyond its logarithm");
        Ok(())
    }

    fn measure(
        &self,
        program: &Path,
        kind: Kind,
        (world, degree): (usize, usize),
        interrupt: &Interrupt,
    ) -> Result<Row> {
        let mut args: Vec<OsString> = vec![format!("--degree={degree}").into()];
        let processes = match kind {
            Kind::Processes => world,
            Kind::Threads => {
                args.push(format!("--threads={world}").into());
                1
            }
        };
        let mut row = None;
        Launch::new(processes, program)
            .args(args)
            .timeout(self.timeout)
            .run(interrupt, &mut |line| {
                if line.stream == Stream::Out && line.index == 0 {
                    row = Some(line.bytes.clone());
                    return Ok(());
                }
                write_line(line.stream, &format!("[{}] ", line.index), &line.bytes)
            })
            .with_context(|| format!("{world} {kind} with {degree} peers each"))?;
        let Some(row) = row else {
            bail!("{world} {kind} with {degree} peers each: no figures came");
        };
        Ok(serde_json::from_slice(&row)?)
    }
}

/// The worlds below the largest, and the largest.
fn up_to(largest: usize, worlds: &[usize]) -> Vec<usize> {
    let mut all: Vec<usize> = worlds
        .iter()
        .copied()
        .filter(|world| *world < largest)
        .collect();
    all.extend((largest > 1).then_some(largest));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_world_is_the_last() {
        assert_eq!(up_to(128, &PROCESSES), [4, 16, 64, 128]);
        assert_eq!(up_to(24, &PROCESSES), [4, 16, 24]);
        assert_eq!(up_to(0, &PROCESSES), [0; 0]);
    }
}
