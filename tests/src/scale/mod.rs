// SPDX-License-Identifier: MIT
//! What joining and setting up queues costs a rank, against the size of the world and the number of
//! peers that it has queues to.
//!
//! Ranks are processes that a launcher starts, or threads of one process ([`threads`]). Each takes
//! [`Figures`] of itself; rank 0 prints those of all as one [`Row`] of JSON.

mod figures;
mod processes;
mod threads;

use std::time::{Duration, SystemTime};

use clap::Parser;
use serde::{Deserialize, Serialize};

pub use self::figures::{Figures, Span};
pub use self::processes::processes;
pub use self::threads::threads;

/// How long ranks may take to find each other, and each step after that: with more processes than
/// cores, nobody is fast.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program that measures one world; `cargo xtask scale` starts it.
#[derive(Clone, Debug, Parser)]
#[command(name = "scale", version)]
pub struct Options {
    /// Peers of each rank
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub degree: u16,

    /// So many ranks as threads of this process, without a launcher
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub threads: Option<u16>,
}

/// What one world costs.
#[derive(Debug, Serialize)]
pub struct Row {
    /// `processes` or `threads`.
    pub ranks_are: &'static str,
    /// How many.
    pub world: usize,
    /// Peers of each.
    pub degree: usize,
    /// From the first that began to join to the last that had, in seconds.
    pub join: f64,
    /// The same of the setup.
    pub setup: f64,
    /// Of one put and signal with each peer, memory and semaphores first; none without queues.
    pub exchange: Option<f64>,
    /// Of dropping everything.
    pub leave: Option<f64>,
    /// What ranks hold and have said when they have joined.
    pub joined: Span,
    /// When the queues are there and were used.
    pub set_up: Span,
    /// The most descriptors of rank 0 while ranks joined, where it is a process.
    pub root_joining: Option<f64>,
    /// What rank 0 holds.
    pub root_joined: Figures,
    /// The same, later.
    pub root_set_up: Figures,
}

/// From when to when a rank did something; all ranks are on one machine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Took(f64, f64);

impl Took {
    /// Does it.
    fn by<T>(what: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(Self, T)> {
        let begun = now();
        let done = what()?;
        Ok((Self(begun, now()), done))
    }

    /// From the first to the last.
    fn of_all(all: impl IntoIterator<Item = Self>) -> f64 {
        let (mut first, mut last) = (f64::INFINITY, f64::NEG_INFINITY);
        for Self(begun, ended) in all {
            first = first.min(begun);
            last = last.max(ended);
        }
        last - first
    }
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// The peers of a rank: the nearest ones on a ring, and the opposite one where their number is odd.
fn peers(rank: usize, world: usize, degree: usize) -> Vec<usize> {
    let near = (1..=degree / 2).flat_map(|d| [(rank + d) % world, (rank + world - d) % world]);
    let opposite = (degree % 2 == 1).then_some((rank + world / 2) % world);
    near.chain(opposite).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_name_each_other_and_nobody_twice() {
        for (world, degree) in [(2, 1), (4, 1), (4, 2), (16, 3), (16, 8), (128, 4)] {
            for rank in 0..world {
                let mut mine = peers(rank, world, degree);
                assert!(
                    mine.iter()
                        .all(|peer| peers(*peer, world, degree).contains(&rank))
                );
                assert!(!mine.contains(&rank));
                mine.sort_unstable();
                mine.dedup();
                assert_eq!(mine.len(), degree);
            }
        }
    }

    #[test]
    fn all_together_take_from_the_first_to_the_last() {
        let took = Took::of_all([Took(2.0, 3.0), Took(1.0, 2.5), Took(1.5, 4.0)]);
        assert!((took - 3.0).abs() < 1e-9);
    }
}
