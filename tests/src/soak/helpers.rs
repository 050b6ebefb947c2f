// SPDX-License-Identifier: MIT
//! Jobs beside the run's own: one of three ranks is killed in the midst of its work, the others end
//! by themselves and name it, and another job takes their place.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use fastrand::Rng;
use mscclpp_bootstrap::{Bootstrap as _, Deadline, TcpBootstrap};

use super::Rank;
use super::count::Counts;
use super::lanes::{Lane, Moment, Room, exchange};
use crate::backend::{BACKENDS, Executor, Setup};
use crate::fixture::Fixture;
use crate::harness::{Context, Job, TestResult, watch_parent};

/// The name of the part. Behind it are the backend's number and how many exchanges there are.
const PART: &str = "soak-helper";
const RANKS: usize = 3;
/// How long a job may live.
const CHILD: Duration = Duration::from_secs(60);
/// How long the others may take to end: other work is done beside theirs.
const ENDS: Duration = Duration::from_secs(20);
/// More than are ever done.
const ENDLESS: u64 = 1 << 30;

/// Starts the jobs, on rank 0; the others wait for it.
pub(super) fn run(rank: &mut Rank, rng: &mut Rng) -> TestResult {
    let host: Vec<usize> = (Executor::Host.backends())
        .filter(|(_, backend)| rank.has(backend))
        .map(|(number, _)| number)
        .collect();
    let (row, victim) = (host[rng.usize(0..host.len())], rng.usize(0..RANKS));
    let after = Duration::from_millis(rng.u64(0..400));
    if rank.rank() == 0 {
        rank.counts.fault("killed helper");
        killed(row, victim, after)
            .with_context(|| format!("helpers on {}, rank {victim} killed", BACKENDS[row].name))?;
        rank.counts.did("helper job", 2);
        let job = Job::start(&format!("{PART}:{row}:5"), RANKS)?;
        let deadline = Deadline::after(CHILD);
        for rank in 0..RANKS {
            job.expect(rank, "READY", deadline)?;
            job.expect(rank, "ENDED", deadline)?;
        }
        job.finish(deadline)
            .context("the job that takes their place")?;
    }
    rank.meet_for(Duration::from_secs(180))
}

fn killed(row: usize, victim: usize, after: Duration) -> TestResult {
    let mut job = Job::start(&format!("{PART}:{row}:{ENDLESS}"), RANKS)?;
    let deadline = Deadline::after(CHILD);
    for rank in 0..RANKS {
        job.expect(rank, "READY", deadline)?;
    }
    thread::sleep(after);
    job.kill(victim)?;
    let deadline = Deadline::after(ENDS);
    for rank in (0..RANKS).filter(|rank| *rank != victim) {
        let named = job.expect(rank, "NAMED", deadline)?;
        ensure!(
            named == victim.to_string(),
            "rank {rank} names rank {named}"
        );
        job.end_well(rank, deadline)?;
    }
    Ok(())
}

/// Plays the part of this process's rank.
pub fn play(part: &str) -> TestResult {
    let words: Vec<&str> = part.split(':').collect();
    let [PART, row, exchanges] = words[..] else {
        bail!("there is no part {part}");
    };
    let (row, exchanges): (usize, u64) = (row.parse()?, exchanges.parse()?);
    let backend = BACKENDS.get(row).context("there is no such backend")?;
    let _words = watch_parent(CHILD);
    let bootstrap = Arc::new(TcpBootstrap::from_launcher(CHILD)?);
    let context = Context::of_job(bootstrap.clone(), Deadline::after(CHILD));
    let fixture = Fixture::over(&context, backend, &Setup::default(), bootstrap.clone())?;
    let room = Room::new(RANKS)?;
    let (out, into) = (fixture.register(&room.out)?, fixture.register(&room.into)?);
    let lanes: Vec<Lane> = (fixture.link(&fixture.peers(), 0, &out, &into)?.into_iter())
        .map(|link| Lane {
            peer: link.peer,
            index: 0,
            channel: link.base(),
            dst: link.dst,
            src: link.src,
        })
        .collect();
    bootstrap.barrier()?;
    println!("READY");
    let mut counts = Counts::default();
    for number in 0..exchanges {
        let moment = Moment {
            seed: 1,
            era: 0,
            exchange: number,
        };
        let (counts, deadline) = (&mut counts, context.deadline());
        let accumulate = backend.accumulate;
        let done = exchange(
            &*bootstrap,
            (&room, &lanes),
            moment,
            accumulate,
            (counts, deadline),
        );
        if let Err(error) = done {
            return named(&bootstrap, &error);
        }
    }
    println!("ENDED");
    Ok(bootstrap.barrier()?)
}

/// Says who has died; kernels may know before the bootstrap does.
fn named(bootstrap: &TcpBootstrap, error: &anyhow::Error) -> TestResult {
    let deadline = Deadline::after(ENDS);
    loop {
        if let Some(failure) = bootstrap.known_failure() {
            println!("NAMED {}", failure.rank);
            return Ok(());
        }
        ensure!(!deadline.expired(), "nobody has died: {error:#}");
        thread::sleep(Duration::from_millis(2));
    }
}
