// SPDX-License-Identifier: MIT
//! Jobs of their own, which rank 0 starts on its machine: strangers knock, many ranks join.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use mscclpp_bootstrap::{Bootstrap as _, Deadline, TcpBootstrap};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::kill as kill_matrix;
use super::rdma::{KILL_RDMA, play_kill as play_kill_rdma};
use crate::backend::BACKENDS;
use crate::harness::{Context, Job, Registry, TestResult, published, watch_parent};

const JOIN: &str = "join";

/// How long a child may live.
pub(super) const CHILD: Duration = Duration::from_secs(90);

/// How long survivors have to end after a rank was killed.
const SEEN: Duration = Duration::from_secs(5);

pub(super) fn register(registry: &mut Registry) {
    registry
        .add("JoinTest.ThousandStrangers", thousand_strangers)
        .ranks(1, 1)
        .seconds(90);
    registry
        .add("JoinTest.SixtyFourProcesses", sixty_four)
        .perf()
        .ranks(1, 1)
        .seconds(90);
}

/// Plays a part in a job that a test started. The part's name is followed by its numbers.
pub fn play(part: &str) -> ExitCode {
    let mut words = part.split(':');
    let name = words.next().unwrap_or_default();
    let numbers: Result<Vec<usize>, _> = words.map(str::parse).collect();
    let result = match (name, numbers.as_deref()) {
        (KILL_RDMA, Ok([row])) if *row < BACKENDS.len() => play_kill_rdma(&BACKENDS[*row]),
        (kill_matrix::PART, Ok([moment, victim])) => kill_matrix::play(*moment, *victim),
        (JOIN, Ok([])) => play_join(),
        _ => Err(anyhow::anyhow!("there is no part {part}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What a survivor of a kill begins its line with: it names the victim, ...
pub(super) const NAMED: &str = "NAMED";
/// ... and no request of its was under way.
pub(super) const IDLE: &str = "IDLE";
/// How often a rank may be killed between two requests.
const KILLS: usize = 5;

/// One of four ranks is killed while another posts to it and the rest wait for it, in a job again and
/// again until requests were under way. The others end by themselves, and check that they name it.
pub(super) fn kill(context: &Context, part: &str, victim: usize) -> TestResult {
    for _ in 0..KILLS {
        if kill_once(context, part, victim)? {
            return Ok(());
        }
    }
    bail!("no request was under way at {KILLS} kills")
}

/// Whether requests were under way.
fn kill_once(context: &Context, part: &str, victim: usize) -> anyhow::Result<bool> {
    const RANKS: usize = 4;
    let mut job = Job::start(part, RANKS)?;
    context.stage("ranks of the job start to wait");
    for rank in 0..RANKS {
        job.expect(rank, "WAITING", context.deadline())?;
    }
    context.stage(format!("rank {victim} of the job was killed"));
    let killed = job.kill(victim)?;
    let deadline = Deadline::after(2 * SEEN);
    let mut slowest = Duration::ZERO;
    let mut under_way = true;
    for rank in (0..RANKS).filter(|rank| *rank != victim) {
        let (when, line) = job.line(rank, deadline)?;
        let took = when.duration_since(killed);
        context.measure(
            format!("rank {rank}: {line}"),
            took.as_secs_f64() * 1e3,
            "ms",
        );
        let idle = line.starts_with(IDLE);
        ensure!(
            idle || line.starts_with(NAMED),
            "rank {rank} of the job: {line}"
        );
        under_way &= !idle;
        job.end_well(rank, deadline)?;
        slowest = slowest.max(killed.elapsed());
    }
    ensure!(
        slowest <= SEEN,
        "the last survivor ended {slowest:?} after the kill"
    );
    context.measure(
        "kill to the end of the last survivor",
        slowest.as_secs_f64() * 1e3,
        "ms",
    );
    Ok(under_way)
}

fn play_join() -> TestResult {
    let words = watch_parent(CHILD);
    let bootstrap = TcpBootstrap::from_launcher(Duration::from_secs(60))?;
    let all = bootstrap.all_gather(&bootstrap.rank().to_le_bytes())?;
    for (rank, slice) in all.iter().enumerate() {
        ensure!(**slice == rank.to_le_bytes(), "slice {rank} is {slice:?}");
    }
    println!("JOINED {}", bootstrap.rank());
    words.recv().context("the test does not say go on")?;
    Ok(bootstrap.barrier()?)
}

/// Waits for all ranks to say that they joined, and lets them end.
fn all_joined(mut job: Job, ranks: usize, deadline: Deadline) -> anyhow::Result<Instant> {
    let mut last = Instant::now();
    for rank in 0..ranks {
        let (when, line) = job.line(rank, deadline)?;
        ensure!(
            line == format!("JOINED {rank}"),
            "rank {rank} of the job prints `{line}`"
        );
        last = last.max(when);
    }
    for rank in 0..ranks {
        job.tell(rank)?;
    }
    job.finish(deadline)?;
    Ok(last)
}

/// What a stranger does on the rendezvous port.
const STRANGERS: [(&str, &[u8]); 5] = [
    ("silent", b""),
    ("half a length", &[0, 0]),
    (
        "half a message",
        b"MSCCLPP\0\x01\0\0\0\x40\0\0\0and no more",
    ),
    (
        "an HTTP request",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ),
    ("garbage", &[0xff; 8192]),
];

/// A thousand strangers that stay connected, while the ranks are still coming.
fn thousand_strangers(context: &Context) -> TestResult {
    const RANKS: usize = 8;
    const COUNT: usize = 1000;
    context.stage("start all ranks of the job but the last");
    let mut job = Job::start_without(JOIN, RANKS, RANKS - 1)?;
    let address = published(&job.root_file(), context.deadline())?;
    raise_file_limit(COUNT as u64 + 256)?;
    context.stage(format!("{COUNT} strangers come to {address}"));
    let mut strangers = Vec::new();
    for number in 0..COUNT {
        let (what, bytes) = STRANGERS[number % STRANGERS.len()];
        let mut stream = TcpStream::connect(&address)
            .with_context(|| format!("stranger {number} is not let in"))?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        // What is said to a stranger who has been thrown out already comes back as an error.
        if let Err(error) = stream.write_all(bytes) {
            tracing::debug!(number, what, %error, "a stranger was interrupted");
        }
        strangers.push(stream);
    }
    context.stage("the last rank of the job comes");
    let start = Instant::now();
    job.start_rank(RANKS - 1)?;
    let joined = all_joined(job, RANKS, context.deadline())?;
    let took = joined.duration_since(start);
    context.measure("the last of 8 ranks joins in", took.as_secs_f64(), "s");
    ensure!(
        took < Duration::from_secs(5),
        "the strangers delayed the ranks: {took:?}"
    );
    drop(strangers);
    Ok(())
}

fn sixty_four(context: &Context) -> TestResult {
    context.stage("64 processes start and join");
    let took = join_seconds(64, context.deadline())?;
    context.measure(
        "64 processes, from the first start to the last join",
        took,
        "s",
    );
    // The target is 5 s; this is for machines that do other things too.
    ensure!(took < 20.0, "it took {took:.1} s");
    Ok(())
}

/// Seconds from the start of the first of so many processes until the last has joined.
pub fn join_seconds(ranks: usize, deadline: Deadline) -> anyhow::Result<f64> {
    let start = Instant::now();
    let job = Job::start(JOIN, ranks)?;
    let joined = all_joined(job, ranks, deadline)?;
    Ok(joined.duration_since(start).as_secs_f64())
}

/// Lets this process have so many files open, as far as the system allows.
fn raise_file_limit(files: u64) -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < files) {
        ensure!(
            limit.maximum.is_none_or(|most| most >= files),
            "no more than {limit:?} files"
        );
        limit.current = Some(files);
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}
