// SPDX-License-Identifier: MIT
//! Requests that fail: their status is told by its name, at once or when all retries are used up.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use mscclpp_bootstrap::{Bootstrap as _, Deadline, TcpBootstrap};
use mscclpp_port::verbs::CompletionStatus;
use mscclpp_port::{Error, IbConfig, Status};

use super::guest::{Change, needed};
use super::name;
use crate::backend::{BACKENDS, Backend, Setup};
use crate::cases::jobs::{CHILD, IDLE, NAMED, kill};
use crate::fixture::{Fixture, error_of};
use crate::harness::{Context, Registry, TestResult, watch_parent};
use crate::kernels::{Call, Flood, Range, Steps};

/// The part of a rank of a job; its number is the backend's.
pub(in crate::cases) const KILL_RDMA: &str = "kill-rdma";

/// 67 ms, and repeated so often.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 3;
/// All of them; a device may take four times as long, and this machine is slow.
const GIVEN_UP: Duration = Duration::from_millis(67 * 4 * 4 + 1500);

fn impatient() -> Setup {
    Setup {
        queue: IbConfig {
            timeout: Some(TIMEOUT),
            retry_count: Some(RETRIES),
            ..IbConfig::default()
        },
        ..Setup::default()
    }
}

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    registry
        .add_on(backend, name("StaleKey", backend), stale_key)
        .ranks(2, 2);
    registry
        .add(name("NobodyAnswers", backend), move |context| {
            needed(context)?;
            nobody_answers(context, backend)
        })
        .ranks(2, 2);
    let row = BACKENDS
        .iter()
        .position(|other| std::ptr::eq(other, backend));
    let part = format!("{KILL_RDMA}:{}", row.unwrap_or(BACKENDS.len()));
    registry
        .add(
            name("KilledWithRequestsUnderWay", backend),
            move |context| kill(context, &part, VICTIM),
        )
        .ranks(1, 1)
        .seconds(90);
}

/// A put with a key that the peer has taken back: the peer's device refuses it.
fn stale_key(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let extra = fixture.buffer(64)?;
    let memory = fixture.register(&extra)?;
    let peer = 1 - context.rank();
    fixture.communicator.send_memory(&memory, peer, 2)?;
    let remote = fixture.communicator.recv_memory(peer, 2)?.get()?;
    let dst = fixture.service.add_memory(remote)?;
    fixture.meet()?;
    if context.rank() == 1 {
        drop(memory);
        fixture.meet()?;
    } else {
        fixture.meet()?;
        let put = Call::Put(Range {
            dst,
            ..link.first(8)
        });
        let done = Steps::launch(&[link.base()], &[(0, put), (0, Call::Flush)])?;
        let status = done.finish(context.deadline())?[1].status()?;
        ensure!(status == Status::QueueError, "the flush returns {status:?}");
        let error = error_of(&link.connection)?;
        let text = error.to_string();
        match error {
            Error::RequestFailed {
                rank: Some(1),
                operation: "put",
                status: CompletionStatus::RemoteAccess,
                ..
            } if text.contains("REM_ACCESS_ERR") => {}
            other => bail!("the error is {other:?}: {text}"),
        }
    }
    fixture.meet()?;
    ensure!(
        extra.load_u64(0)? == 0,
        "memory that was taken back was written"
    );
    fixture.meet()
}

/// The link takes everything and delivers nothing. The sender gives up in the time that was
/// configured, and says so by the status's name; both ends' kernels end.
fn nobody_answers(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::with(context, backend, &impatient())?;
    let buffer = fixture.buffer(64)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let calls = [
        (0, Call::PutWithSignal(link.first(8))),
        (0, Call::Flush),
        (0, Call::Wait),
    ];
    Steps::run(&[link.base()], &calls, context.deadline())?;
    fixture.meet()?;
    if context.rank() == 0 {
        let silence = Change::make(
            "tc qdisc add dev veth0 root netem loss 100%",
            "tc qdisc del dev veth0 root",
        )?;
        context.stage("put to a peer that hears nothing");
        let start = Instant::now();
        let done = Steps::launch(&[link.base()], &calls[..2])?.finish(context.deadline())?;
        let (status, took) = (done[1].status()?, start.elapsed());
        context.measure("given up after", took.as_secs_f64() * 1e3, "ms");
        silence.undo()?;
        ensure!(status == Status::QueueError, "the flush returns {status:?}");
        let error = error_of(&link.connection)?;
        let text = error.to_string();
        match error {
            Error::RequestFailed {
                rank: Some(1),
                status: CompletionStatus::RetryExceeded,
                ..
            } if text.contains("RETRY_EXC_ERR") => {}
            other => bail!("the error is {other:?}: {text}"),
        }
        ensure!(took < GIVEN_UP, "it took {took:?}, and not {GIVEN_UP:?}");
    } else {
        let wait = [(0, Call::Wait)];
        let done = Steps::launch(&[link.base()], &wait)?.finish(context.deadline())?;
        let status = done[0].status()?;
        ensure!(
            matches!(status, Status::PeerDown | Status::QueueError),
            "the wait returns {status:?}"
        );
    }
    fixture.meet()
}

/// Bytes of a put that takes a while, so that there are always some under way.
const LONG: u64 = 1 << 20;

/// Who is killed.
const VICTIM: usize = 0;

/// Rank 1 posts to the victim without an end, the others wait for it.
pub(in crate::cases) fn play_kill(backend: &'static Backend) -> TestResult {
    let _words = watch_parent(CHILD);
    let bootstrap = Arc::new(TcpBootstrap::from_launcher(Duration::from_secs(30))?);
    let context = Context::of_job(bootstrap.clone(), Deadline::after(CHILD));
    let fixture = Fixture::over(&context, backend, &impatient(), bootstrap.clone())?;
    let buffer = fixture.buffer(LONG)?;
    let memory = fixture.register(&buffer)?;
    let links = fixture.link(&fixture.peers(), 0, &memory, &memory)?;
    if context.rank() == VICTIM {
        bootstrap.barrier()?;
        println!("WAITING");
        thread::sleep(CHILD);
        bail!("the victim was not killed");
    }
    let link = (links.iter().find(|link| link.peer == VICTIM)).context("a link to each peer")?;
    let posts = context.rank() == 1;
    let statuses = if posts {
        let posting = Flood::new(link.channel.device_handle(), &link.channel, LONG)?.launch(1)?;
        posting.wait(20, context.deadline())?;
        bootstrap.barrier()?;
        println!("WAITING");
        posting.finish(context.deadline())?
    } else {
        let waiting = Steps::launch(&[link.base()], &[(0, Call::Wait)])?;
        bootstrap.barrier()?;
        println!("WAITING");
        vec![waiting.finish(context.deadline())?[0].status()?]
    };
    let mut error = error_of(&link.connection)?;
    // Kernels are told of the death at once; requests under way fail later.
    let given_up = Deadline::after(GIVEN_UP);
    while posts && !has_failed(&error) && !given_up.expired() {
        thread::sleep(Duration::from_millis(1));
        error = error_of(&link.connection)?;
    }
    let counters = link.connection.counters();
    let idle = posts && !has_failed(&error);
    let word = if idle { IDLE } else { NAMED };
    println!("{word} {:?}: {error}", error.status());
    let ended = |status: &Status| match status {
        Status::PeerDown => true,
        Status::QueueError => posts,
        _ => false,
    };
    ensure!(statuses.iter().all(ended), "calls return {statuses:?}");
    // The last request of each doorbell asks for a completion.
    ensure!(
        !idle || counters.completions >= counters.doorbells,
        "a request under way never failed: {counters:?}"
    );
    match &error {
        Error::PeerDown {
            rank: Some(VICTIM), ..
        } => Ok(()),
        // It may be known first.
        Error::RequestFailed {
            rank: Some(VICTIM), ..
        } if posts => Ok(()),
        other => bail!("rank {}: {other:?}", context.rank()),
    }
}

/// Whether a request to the victim is told to have failed. The victim's system takes back what it had:
/// from a queue pair that is gone nothing comes, and one whose memory went first refuses to write to it.
fn has_failed(error: &Error) -> bool {
    let text = error.to_string();
    ["RETRY_EXC_ERR", "REM_ACCESS_ERR"]
        .iter()
        .any(|status| text.contains(status))
}
