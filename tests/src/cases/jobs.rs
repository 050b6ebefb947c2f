// SPDX-License-Identifier: MIT
//! Jobs of their own, which rank 0 starts on its machine: a rank is killed, strangers knock, many
//! ranks join.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use mscclpp_bootstrap::{Bootstrap as _, Deadline, Tag, TcpBootstrap};
use mscclpp_port::{Error, Status};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::rdma::{KILL_RDMA, play_kill as play_kill_rdma};
use super::service::set_up_once;
use crate::backend::{BACKENDS, Backend, Executor, Setup};
use crate::fixture::{Fixture, error_of};
use crate::harness::{Context, Job, Registry, TestResult, published, watch_parent};
use crate::kernels::{Call, Flood, Steps};

const KILL_WAIT: &str = "kill-wait";
const KILL_POST: &str = "kill-post";
const KILL_RECV: &str = "kill-recv";
const KILL_SETUP: &str = "kill-setup";
const JOIN: &str = "join";

/// How long a child may live.
pub(super) const CHILD: Duration = Duration::from_secs(90);

/// How long survivors have to end after a rank was killed.
const SEEN: Duration = Duration::from_secs(5);

pub(super) fn register(registry: &mut Registry, executor: Executor) {
    for (row, backend) in executor.backends() {
        registry.of(backend, |registry, backend| kills(registry, row, backend));
    }
    for (victim, name) in [(0, "FirstRank"), (3, "LastRank")] {
        let part = format!("{KILL_SETUP}:{victim}");
        registry
            .add(format!("KillSetup.{name}"), move |context| {
                kill(context, &part, victim)
            })
            .ranks(1, 1)
            .seconds(90);
    }
    registry
        .add("KillWait.Bootstrap", |context| {
            kill(context, &format!("{KILL_RECV}:1"), 1)
        })
        .ranks(1, 1)
        .seconds(90);
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

fn kills(registry: &mut Registry, row: usize, backend: &'static Backend) {
    for (victim, name) in [(0, "FirstRank"), (2, "ThirdRank")] {
        registry
            .add(
                format!("KillWait.{name}{}", backend.suffix),
                move |context| kill(context, &format!("{KILL_WAIT}:{row}:{victim}"), victim),
            )
            .ranks(1, 1)
            .seconds(90);
    }
    registry
        .add(
            format!("KillPost.FirstRank{}", backend.suffix),
            move |context| kill(context, &format!("{KILL_POST}:{row}:0"), 0),
        )
        .ranks(1, 1)
        .seconds(90);
}

/// Plays a part in a job that a test started. The part's name is followed by its numbers.
pub fn play(part: &str) -> ExitCode {
    let mut words = part.split(':');
    let name = words.next().unwrap_or_default();
    let numbers: Result<Vec<usize>, _> = words.map(str::parse).collect();
    let result = match (name, numbers.as_deref()) {
        (KILL_WAIT, Ok([row, victim])) if *row < BACKENDS.len() => {
            play_kill_wait(&BACKENDS[*row], *victim)
        }
        (KILL_POST, Ok([row, victim])) if *row < BACKENDS.len() => {
            play_kill_post(&BACKENDS[*row], *victim)
        }
        (KILL_RDMA, Ok([row])) if *row < BACKENDS.len() => play_kill_rdma(&BACKENDS[*row]),
        (KILL_RECV, Ok([victim])) => play_kill_recv(*victim),
        (KILL_SETUP, Ok([victim])) => play_kill_setup(*victim),
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

/// Four ranks wait, in a kernel or for a message; one is killed; the others end by themselves, and
/// name it.
pub(super) fn kill(context: &Context, part: &str, victim: usize) -> TestResult {
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
    for rank in (0..RANKS).filter(|rank| *rank != victim) {
        let (when, line) = job.line(rank, deadline)?;
        let took = when.duration_since(killed);
        context.measure(
            format!("rank {rank}: {line}"),
            took.as_secs_f64() * 1e3,
            "ms",
        );
        ensure!(
            line.starts_with("PeerDown"),
            "rank {rank} of the job: {line}"
        );
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
    Ok(())
}

fn play_kill_wait(backend: &'static Backend, victim: usize) -> TestResult {
    let _words = watch_parent(CHILD);
    let bootstrap = Arc::new(TcpBootstrap::from_launcher(Duration::from_secs(30))?);
    let context = Context::of_job(bootstrap.clone(), Deadline::after(CHILD));
    let fixture = Fixture::over(&context, backend, &Setup::default(), bootstrap.clone())?;
    let buffer = fixture.buffer(64)?;
    let memory = fixture.register(&buffer)?;
    let links = fixture.link(&fixture.peers(), 0, &memory, &memory)?;
    // The victim waits for someone too: all four are blocked.
    let waits_for = if context.rank() == victim {
        (victim + 1) % context.ranks()
    } else {
        victim
    };
    let link = links
        .iter()
        .find(|link| link.peer == waits_for)
        .context("a link to each peer")?;
    let kernel = Steps::launch(&[link.base()], &[(0, Call::Wait)])?;
    bootstrap.barrier()?;
    println!("WAITING");
    let status = kernel.finish(context.deadline())?[0].status()?;
    let error = link.connection.status();
    println!(
        "{status:?}, {}",
        error
            .as_ref()
            .map_or("no error".into(), ToString::to_string)
    );
    ensure!(
        status == Status::PeerDown,
        "the kernel's wait returns {status:?}"
    );
    match error {
        Some(Error::PeerDown { rank, .. }) if rank == Some(victim) => {}
        other => bail!("the connection's error does not name rank {victim}: {other:?}"),
    }
    // The bootstrap has a connection of its own to see it by.
    let seen = Deadline::after(Duration::from_secs(2));
    while bootstrap.failure_of(victim).is_none() {
        ensure!(
            !seen.expired(),
            "the bootstrap does not know of rank {victim}'s death"
        );
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Survivors post to the victim without an end, and wait for it on another thread. Both end.
fn play_kill_post(backend: &'static Backend, victim: usize) -> TestResult {
    let _words = watch_parent(CHILD);
    let bootstrap = Arc::new(TcpBootstrap::from_launcher(Duration::from_secs(30))?);
    let context = Context::of_job(bootstrap.clone(), Deadline::after(CHILD));
    let fixture = Fixture::over(&context, backend, &Setup::default(), bootstrap.clone())?;
    let buffer = fixture.buffer(4096)?;
    let memory = fixture.register(&buffer)?;
    let links = fixture.link(&fixture.peers(), 0, &memory, &memory)?;
    if context.rank() == victim {
        bootstrap.barrier()?;
        println!("WAITING");
        thread::sleep(CHILD);
        bail!("the victim was not killed");
    }
    let link = (links.iter().find(|link| link.peer == victim)).context("a link to each peer")?;
    let waiting = Steps::launch(&[link.base()], &[(0, Call::Wait)])?;
    let posting = Flood::new(link.channel.device_handle(), &link.channel, 4096)?.launch(2)?;
    posting.wait(100, context.deadline())?;
    bootstrap.barrier()?;
    println!("WAITING");
    let waited = waiting.finish(context.deadline())?[0].status()?;
    let mut statuses = posting.finish(context.deadline())?;
    statuses.push(waited);
    let error = error_of(&link.connection)?;
    // A request to the dead rank may fail before its death is known.
    let ended = |status: &Status| matches!(status, Status::PeerDown | Status::QueueError);
    ensure!(statuses.iter().all(ended), "calls return {statuses:?}");
    let named = match error {
        Error::PeerDown { rank, .. } | Error::QueueFailed { rank, .. } => rank == Some(victim),
        _ => false,
    };
    ensure!(
        named,
        "the connection's error does not name rank {victim}: {error:?}"
    );
    println!("PeerDown, calls return {statuses:?}: {error}");
    Ok(())
}

/// The last rank waits in a barrier, the others for a message of the victim; the victim itself for
/// one that nobody sends.
fn play_kill_recv(victim: usize) -> TestResult {
    let _words = watch_parent(CHILD);
    let bootstrap = TcpBootstrap::from_launcher(Duration::from_secs(30))?;
    bootstrap.barrier()?;
    println!("WAITING");
    let result = if bootstrap.rank() + 1 == bootstrap.world_size() {
        bootstrap.barrier()
    } else {
        (bootstrap.recv(victim, Tag::user(7), Deadline::after(CHILD))).map(drop)
    };
    let error = result.err().context("the wait ends well")?;
    let named = error.gone_rank() == Some(victim);
    println!(
        "{}, {error}",
        if named { "PeerDown" } else { "another error" }
    );
    Ok(())
}

/// One setup of a sparse plan after the other, until one fails.
fn play_kill_setup(victim: usize) -> TestResult {
    let _words = watch_parent(CHILD);
    let bootstrap = Arc::new(TcpBootstrap::from_launcher(Duration::from_secs(30))?);
    set_up_once(bootstrap.clone())?;
    println!("WAITING");
    loop {
        match set_up_once(bootstrap.clone()) {
            Ok(()) => {}
            Err(Error::Setup(error)) if error.lost_rank() == Some(victim) => {
                println!("PeerDown, {error}");
                return Ok(());
            }
            Err(error) => bail!("it does not name rank {victim}: {error}"),
        }
    }
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
