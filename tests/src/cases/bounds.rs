// SPDX-License-Identifier: MIT
//! Ids, offsets and sizes that do not fit: the kernel is released, the host knows why, and other
//! connections go on.

use anyhow::{Context as _, ensure};
use mscclpp_port::{Error, IbMode, MemoryId, Status};

use crate::backend::Backend;
use crate::fixture::{Fixture, Link, error_of, has_refused};
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Range, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let suffix = backend.suffix;
    let name = |test: &str| format!("PortChannelErrorTest.{test}{suffix}");
    let mut add = |test: &str, body: fn(&Context, &'static Backend) -> TestResult| {
        registry
            .add(name(test), move |context| body(context, backend))
            .ranks(2, 2);
    };
    add("UnknownMemoryId", |context, backend| {
        bad_call(context, backend, "unknown", |link| {
            Call::Put(Range {
                dst: MemoryId::from(400),
                ..link.first(8)
            })
        })
    });
    add("DestinationOutOfRange", |context, backend| {
        bad_call(context, backend, "out of bounds", |link| {
            Call::Put(Range {
                dst_offset: SIZE - 4,
                ..link.first(8)
            })
        })
    });
    add("SourceOutOfRange", |context, backend| {
        bad_call(context, backend, "out of bounds", |link| {
            Call::Put(Range {
                src_offset: u64::from(u32::MAX),
                ..link.first(8)
            })
        })
    });
    add("DestinationIsLocal", |context, backend| {
        bad_call(context, backend, "", |link| {
            Call::Put(Range {
                dst: link.src,
                ..link.first(8)
            })
        })
    });
    add("MisalignedAccumulate", |context, backend| {
        let obstacle = (!backend.accumulate).then(|| "no accumulate".to_owned());
        context.skip_unless(obstacle)?;
        bad_call(context, backend, "aligned", |link| {
            Call::Accumulate(link.dst, 4, 1)
        })
    });
    add("FieldsThatDoNotFitAreNotPosted", do_not_fit);
    add("DeregisteredDestinationIsRefused", deregistered);
}

/// Bytes of the registrations.
const SIZE: u64 = 256;

/// Two links that have nothing in common but the service.
fn two_links(fixture: &Fixture<'_>) -> anyhow::Result<(Link, Link)> {
    let buffer = fixture.buffer(SIZE)?;
    Ok((
        fixture.pair_in_place(0, &buffer)?,
        fixture.pair_in_place(1, &buffer)?,
    ))
}

fn works(fixture: &Fixture<'_>, link: &Link) -> TestResult {
    let put = Call::PutWithSignal(link.first(64));
    let calls = [(0, put), (0, Call::Wait), (0, Call::Flush)];
    fixture.context.stage("exchange over a sound connection");
    Steps::run(&[link.base()], &calls, fixture.context.deadline())
}

/// Rank 0 makes a call that can not be executed. A proxy finds out later: it ends the connection, and
/// with it the wait of another thread on the same channel. A kernel that posts itself finds out
/// before, and nothing happens.
fn bad_call(
    context: &Context,
    backend: &'static Backend,
    text: &str,
    call: impl Fn(&Link) -> Call,
) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let (bad, good) = two_links(&fixture)?;
    works(&fixture, &bad)?;
    works(&fixture, &good)?;
    if backend.posts_to_queue() {
        if context.rank() == 0 {
            let calls = [(0, call(&bad)), (0, Call::Flush)];
            let done = Steps::launch(&[bad.base()], &calls)?.finish(context.deadline())?;
            let statuses = (done[0].status()?, done[1].status()?);
            ensure!(
                statuses == (Status::InvalidArgument, Status::Ok),
                "the call and a flush return {statuses:?}"
            );
        }
        works(&fixture, &bad)?;
        return fixture.meet();
    }
    if context.rank() == 0 {
        context.stage("a call that can not be executed");
        let lists: [&[_]; 2] = [&[(0, call(&bad)), (0, Call::Flush)], &[(0, Call::Wait)]];
        let done = Steps::launch_threads(&[bad.base()], &lists)?;
        let done = done.finish_threads(context.deadline())?;
        for (what, done) in [("flush", done[0][1]), ("wait", done[1][0])] {
            let status = done.status()?;
            ensure!(
                status == Status::QueueError,
                "the {what} returns {status:?}"
            );
        }
        let error = bad.connection.status().context("no error on the host")?;
        ensure!(
            matches!(error, Error::Trigger { .. }),
            "the host's error is {error:?}"
        );
        ensure!(
            error.to_string().contains(text),
            "the host's error is `{error}`"
        );
        // What comes after it fails at once.
        let later = Steps::launch(&[bad.base()], &[(0, Call::Signal), (0, Call::Flush)])?;
        let status = later.finish(context.deadline())?[1].status()?;
        ensure!(
            status == Status::QueueError,
            "a later flush returns {status:?}"
        );
    }
    works(&fixture, &good)?;
    ensure!(
        good.connection.status().is_none(),
        "the other connection has failed too"
    );
    fixture.meet()
}

/// Values beyond the fields of a trigger, or of the memory, are refused before anything is posted:
/// nothing is masked.
fn do_not_fit(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(SIZE)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    let sound = link.first(8);
    let large = 1 << 32;
    let calls = [
        Call::Put(Range {
            dst: MemoryId::from(512),
            ..sound
        }),
        Call::Put(Range {
            src: MemoryId::from(u32::MAX),
            ..sound
        }),
        Call::Put(Range {
            dst_offset: large,
            ..sound
        }),
        Call::Put(Range {
            src_offset: large + 8,
            ..sound
        }),
        Call::PutWithSignal(Range {
            size: large,
            ..sound
        }),
        Call::Accumulate(link.dst, large, 1),
    ]
    .map(|call| (0, call));
    let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
    for (done, (_, call)) in done.iter().zip(&calls) {
        let status = done.status()?;
        ensure!(
            status == Status::InvalidArgument,
            "{call:?} returns {status:?}"
        );
    }
    works(&fixture, &link)?;
    let mut bytes = [0; SIZE as usize];
    buffer.read(0, &mut bytes)?;
    ensure!(bytes.iter().all(|byte| *byte == 0), "something was written");
    fixture.meet()
}

/// A put into memory that its owner has taken back is refused there, told to the sender, and
/// harms neither.
fn deregistered(context: &Context, backend: &'static Backend) -> TestResult {
    let obstacle = (!backend.revokes()).then(|| "peers reach the memory itself".to_owned());
    context.skip_unless(obstacle)?;
    let fixture = Fixture::new(context, backend)?;
    let (gone, good) = two_links(&fixture)?;
    let extra = fixture.buffer(SIZE)?;
    let memory = fixture.register(&extra)?;
    let peer = 1 - context.rank();
    fixture.communicator.send_memory(&memory, peer, 2)?;
    let remote = fixture.communicator.recv_memory(peer, 2)?.get()?;
    let dst = fixture.service.add_memory(remote)?;
    fixture.meet()?;
    if context.rank() == 1 {
        drop(memory);
        fixture.meet()?;
        if backend.mode != IbMode::Default {
            // The HCA that refuses a request is done with that peer.
            let error = error_of(&gone.connection)?;
            ensure!(
                error.status() == Status::QueueError,
                "the error where it was refused is {error:?}"
            );
        }
    } else {
        fixture.meet()?;
        context.stage("put into memory that is gone");
        let put = Call::Put(Range {
            dst,
            ..gone.first(8)
        });
        let done = Steps::launch(&[gone.base()], &[(0, put), (0, Call::Flush)])?;
        let status = done.finish(context.deadline())?[1].status()?;
        ensure!(status == Status::QueueError, "the flush returns {status:?}");
        let error = error_of(&gone.connection)?;
        let right = match backend.mode {
            IbMode::Default => matches!(error, Error::Refused { rank: Some(1), .. }),
            IbMode::GpuNetIo => {
                matches!(error, Error::QueueFailed { rank: Some(1), .. }) || has_refused(&error, 1)
            }
            IbMode::Host | IbMode::HostNoAtomic => {
                let refused = matches!(error, Error::RequestFailed { rank: Some(1), .. });
                refused && error.to_string().contains("REM_ACCESS_ERR")
            }
        };
        ensure!(right, "the error is {error:?}");
    }
    works(&fixture, &good)?;
    fixture.meet()?;
    let mut bytes = [0; SIZE as usize];
    extra.read(0, &mut bytes)?;
    ensure!(
        bytes == [0; SIZE as usize],
        "memory that was taken back was written"
    );
    fixture.meet()
}
