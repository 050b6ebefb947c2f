// SPDX-License-Identifier: MIT
//! The channel: which trigger each call pushes, and what ends a flush.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use mscclpp_device::abi::{PortChannelDeviceHandle, Status, Transfer, Trigger};
use mscclpp_device::executor::memory::{Access, Order, Scope};
use mscclpp_device::executor::{LaunchDims, Trace};

use crate::support::{Cells, DEADLINE, Kernels, Outcome, TestChannel, equal};

#[derive(Clone, Copy)]
#[repr(C)]
struct All {
    channel: PortChannelDeviceHandle,
    out: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Flush {
    channel: PortChannelDeviceHandle,
    rounds: u64,
    budget: i64,
    status: u64,
}

const ONE: LaunchDims = LaunchDims { grid: 1, block: 1 };

/// Executes what a channel pushes, flushes at once, until `stop`.
fn serve(channel: TestChannel, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<Vec<Trigger>> {
    std::thread::spawn(move || {
        let mut seen = Vec::new();
        channel
            .fifo
            .consume(&stop, Duration::from_secs(20), |position, raw| {
                let trigger = raw.decode().unwrap();
                if matches!(
                    trigger,
                    Trigger::Flush { .. } | Trigger::PutWithSignalAndFlush { .. }
                ) {
                    channel.flushed.set(0, position + 1);
                }
                seen.push(trigger);
            });
        seen
    })
}

/// Each form of each method pushes its trigger, in call order, with its own numbers.
pub(crate) fn each_method_pushes_its_trigger(kernels: &Kernels) -> Outcome {
    let channel = TestChannel::new(16);
    let status = Cells::new(16);
    let stop = Arc::new(AtomicBool::new(false));
    let server = serve(channel, stop.clone());
    let args = All {
        channel: channel.handle(),
        out: status.address(),
    };
    let ran = kernels
        .direct("channel_all")
        .run(ONE, args, Duration::from_secs(10));
    channel.fifo.status.fail(Status::Aborted);
    stop.store(true, SeqCst);
    let seen = server
        .join()
        .map_err(|_| "the consumer panicked".to_owned())?;
    ran.map_err(|error| error.to_string())?;
    equal("statuses", status.all(), vec![0; 16])?;

    let semaphore = TestChannel::ID;
    let moves = |dst, dst_offset, src, src_offset, size| Transfer {
        dst,
        dst_offset,
        src,
        src_offset,
        size,
    };
    let bound = |dst_offset, src_offset, size| {
        moves(
            TestChannel::DST,
            dst_offset,
            TestChannel::SRC,
            src_offset,
            size,
        )
    };
    let put = |transfer| Trigger::Put {
        transfer,
        semaphore,
    };
    let signalled = |transfer| Trigger::PutWithSignal {
        transfer,
        semaphore,
    };
    let flushed = |transfer| Trigger::PutWithSignalAndFlush {
        transfer,
        semaphore,
    };
    let expected = vec![
        put(bound(1, 2, 3)),
        put(bound(4, 4, 5)),
        Trigger::Signal { semaphore },
        signalled(bound(6, 7, 8)),
        signalled(bound(9, 9, 10)),
        flushed(bound(11, 12, 13)),
        flushed(bound(14, 14, 15)),
        Trigger::Flush { semaphore },
        Trigger::Accumulate {
            dst: TestChannel::DST,
            dst_offset: 16,
            operand: -17,
            semaphore,
        },
        put(moves(21, 22, 23, 24, 25)),
        put(moves(26, 28, 27, 28, 29)),
        signalled(moves(30, 31, 32, 33, 34)),
        signalled(moves(35, 37, 36, 37, 38)),
        flushed(moves(39, 40, 41, 42, 43)),
        flushed(moves(44, 46, 45, 46, 47)),
        Trigger::Accumulate {
            dst: 48,
            dst_offset: 49,
            operand: 0x1234_5678_9abc_def0,
            semaphore,
        },
    ];
    equal("triggers", seen, expected)
}

#[test]
fn each_form_of_each_method_pushes_its_trigger() {
    each_method_pushes_its_trigger(&Kernels::of("channel")).unwrap();
}

/// What does not fit a trigger is refused, and nothing is pushed.
pub(crate) fn too_large_is_refused(kernels: &Kernels) -> Outcome {
    let channel = TestChannel::new(16);
    // So that a flush that is pushed after all does not wait.
    channel.status.fail(Status::Aborted);
    let status = Cells::new(9);
    let args = All {
        channel: channel.handle(),
        out: status.address(),
    };
    kernels
        .direct("channel_invalid")
        .run(ONE, args, DEADLINE)
        .map_err(|error| error.to_string())?;
    equal(
        "statuses",
        status.all(),
        vec![Status::InvalidArgument as u64; 9],
    )?;
    equal("pushed", channel.fifo.head.get(0), 0)
}

#[test]
fn values_that_do_not_fit_are_refused_and_nothing_is_pushed() {
    too_large_is_refused(&Kernels::of("channel")).unwrap();
}

#[test]
fn rust_and_cpp_find_the_same_fields_in_a_handle() {
    let channel = TestChannel::new(16);
    let fields = Cells::new(17);
    let handle = channel.handle();
    let args = All {
        channel: handle,
        out: fields.address(),
    };
    Kernels::of("channel")
        .direct("channel_fields")
        .run(ONE, args, DEADLINE)
        .unwrap();
    let PortChannelDeviceHandle { base, dst, src, .. } = handle;
    let (semaphore, fifo) = (base.semaphore, base.fifo);
    let expected = [
        1,
        base.semaphore_id.into(),
        semaphore.inbound_token,
        semaphore.expected_inbound_token,
        semaphore.status,
        fifo.triggers,
        fifo.head,
        fifo.tail,
        fifo.tail_cache,
        fifo.size as u64,
        fifo.size_mask,
        fifo.size_shift,
        fifo.status,
        base.flush_done_pos,
        dst.into(),
        src.into(),
        1,
    ];
    assert_eq!(fields.all(), expected);

    let mut foreign = handle;
    foreign.base.fifo.abi.version += 1;
    let args = All {
        channel: foreign,
        out: fields.address(),
    };
    Kernels::of("channel")
        .direct("channel_fields")
        .run(ONE, args, DEADLINE)
        .unwrap();
    assert_eq!(fields.get(0), 0, "compatible() must see another version");
}

fn flush_status(kernels: &Kernels, channel: &TestChannel, budget: i64) -> Result<u64, String> {
    let status = Cells::new(1);
    let args = Flush {
        channel: channel.handle(),
        rounds: 1,
        budget,
        status: status.address(),
    };
    let running = kernels
        .direct("channel_flush")
        .launch(ONE, args)
        .map_err(|error| error.to_string())?;
    if let Err(stuck) = running.join(Duration::from_secs(5)) {
        channel.flushed.set(0, u64::MAX);
        return Err(stuck.to_string());
    }
    Ok(status.get(0))
}

/// A flush is done when the position published is beyond its own, not before.
pub(crate) fn a_flush_waits_for_its_own_position(kernels: &Kernels) -> Outcome {
    let channel = TestChannel::new(16);
    equal(
        "first",
        flush_status(kernels, &channel, 50)?,
        Status::Timeout as u64,
    )?;
    channel.flushed.set(0, 1); // position 0 is done
    equal(
        "second",
        flush_status(kernels, &channel, 50)?,
        Status::Timeout as u64,
    )?;
    channel.flushed.set(0, 3); // and 1 and 2
    equal(
        "third",
        flush_status(kernels, &channel, 0)?,
        Status::Ok as u64,
    )?;
    equal("pushed", channel.fifo.head.get(0), 3)
}

#[test]
fn a_flush_is_done_when_its_own_position_is() {
    a_flush_waits_for_its_own_position(&Kernels::of("channel")).unwrap();
}

/// A flush ends by the connection's error, and by the death of the FIFO.
pub(crate) fn a_flush_is_released(kernels: &Kernels) -> Outcome {
    let channel = TestChannel::new(16);
    channel.status.fail(Status::PeerDown);
    equal(
        "connection",
        flush_status(kernels, &channel, -1)?,
        Status::PeerDown as u64,
    )?;
    let channel = TestChannel::new(16);
    channel.fifo.status.fail(Status::Aborted);
    equal(
        "proxy",
        flush_status(kernels, &channel, -1)?,
        Status::Aborted as u64,
    )?;
    // A full FIFO whose proxy is stuck but not dead: the budget still counts.
    let channel = TestChannel::new(1);
    equal(
        "filled",
        flush_status(kernels, &channel, 10)?,
        Status::Timeout as u64,
    )?;
    equal(
        "no room",
        flush_status(kernels, &channel, 10)?,
        Status::Timeout as u64,
    )?;
    equal("pushed", channel.fifo.head.get(0), 1)
}

#[test]
fn a_flush_ends_by_a_sticky_error_or_its_budget() {
    a_flush_is_released(&Kernels::of("channel")).unwrap();
}

/// A channel's wait ends by a signal, its budget, its connection's error or its proxy's end.
pub(crate) fn a_wait_is_released(kernels: &Kernels) -> Outcome {
    type Prepare = fn(&TestChannel);
    let cases: [(Prepare, i64, Status); 4] = [
        (|channel| channel.inbound.set(0, 1), -1, Status::Ok),
        (|_| {}, 20, Status::Timeout),
        (
            |channel| channel.status.fail(Status::PeerDown),
            -1,
            Status::PeerDown,
        ),
        (
            |channel| channel.fifo.status.fail(Status::Aborted),
            -1,
            Status::Aborted,
        ),
    ];
    for (prepare, budget, expected) in cases {
        let channel = TestChannel::new(4);
        prepare(&channel);
        let status = Cells::new(1);
        let args = Flush {
            channel: channel.handle(),
            rounds: 0,
            budget,
            status: status.address(),
        };
        let running = kernels
            .direct("channel_wait")
            .launch(ONE, args)
            .map_err(|error| error.to_string())?;
        if let Err(stuck) = running.join(Duration::from_secs(5)) {
            channel.inbound.set(0, 1);
            return Err(stuck.to_string());
        }
        equal("status", status.get(0), expected as u64)?;
        let consumed = u64::from(expected == Status::Ok);
        equal("consumed", channel.expected.get(0), consumed)?;
    }
    Ok(())
}

#[test]
fn a_wait_of_a_channel_ends_by_signal_budget_peer_or_proxy() {
    a_wait_is_released(&Kernels::of("channel")).unwrap();
}

/// A post that had to wait for room tells that its connection has ended, and fills its slot all the
/// same; one that finds room looks at nothing.
pub(crate) fn a_post_that_waits_tells_of_its_connection(kernels: &Kernels) -> Outcome {
    let signals = |slots, rounds| {
        let channel = TestChannel::new(slots);
        channel.status.fail(Status::PeerDown);
        let status = Cells::new(2);
        let args = Flush {
            channel: channel.handle(),
            rounds,
            budget: -1,
            status: status.address(),
        };
        let running = (kernels.direct("channel_signals").launch(ONE, args))
            .map_err(|error| error.to_string())?;
        // Both the first and the one that waits.
        let deadline = std::time::Instant::now() + DEADLINE;
        while channel.fifo.head.get(0) < rounds && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let stop = Arc::new(AtomicBool::new(slots > 1));
        let server = (slots == 1).then(|| serve(channel, stop.clone()));
        let ended = running.join(DEADLINE);
        stop.store(true, SeqCst);
        let pushed = server.map_or(0, |server| server.join().unwrap().len());
        ended.map_err(|stuck| stuck.to_string())?;
        Ok::<_, String>(([status.get(0), status.get(1)], pushed))
    };
    let (ok, down) = (Status::Ok as u64, Status::PeerDown as u64);
    equal("with room", signals(4, 2)?.0, [ok, ok])?;
    equal("without", signals(1, 2)?, ([ok, down], 2))
}

#[test]
fn a_post_that_had_to_wait_for_room_tells_of_its_connections_end() {
    a_post_that_waits_tells_of_its_connection(&Kernels::of("channel")).unwrap();
}

#[test]
fn a_flush_that_completed_wins_over_the_status() {
    let channel = TestChannel::new(16);
    channel.status.fail(Status::PeerDown);
    let (word, position) = (
        channel.status.address() as usize,
        channel.flushed.address() as usize,
    );
    let trace = Trace::observed(move |event| {
        if matches!(event.access, Access::Load { address, .. } if address == word) {
            channel.flushed.set(0, 1);
        }
    });
    let status = Cells::new(1);
    let args = Flush {
        channel: channel.handle(),
        rounds: 1,
        budget: -1,
        status: status.address(),
    };
    let kernel = Kernels::of("channel").modelled("channel_flush");
    kernel
        .launch_modelled(ONE, args, &trace)
        .unwrap()
        .join(DEADLINE)
        .unwrap();
    assert_eq!(status.get(0), Status::Ok as u64);
    for event in trace.events() {
        if let Access::Load {
            address,
            order,
            scope,
            ..
        } = event.access
            && address == position
        {
            assert_eq!((order, scope), (Order::Acquire, Scope::System));
        }
    }
}

#[test]
fn several_threads_flush_one_channel_at_once() {
    const THREADS: u32 = 4;
    const ROUNDS: u64 = 200;
    let channel = TestChannel::new(16);
    let status = Cells::new(THREADS as usize);
    let stop = Arc::new(AtomicBool::new(false));
    let server = serve(channel, stop.clone());
    let args = Flush {
        channel: channel.handle(),
        rounds: ROUNDS,
        budget: -1,
        status: status.address(),
    };
    let dims = LaunchDims {
        grid: 1,
        block: THREADS,
    };
    let ran = Kernels::of("channel")
        .direct("channel_flush")
        .run(dims, args, DEADLINE);
    channel.fifo.status.fail(Status::Aborted);
    stop.store(true, SeqCst);
    let seen = server.join().unwrap();
    ran.unwrap();
    assert_eq!(status.all(), vec![0; THREADS as usize]);
    assert_eq!(seen.len() as u64, ROUNDS * u64::from(THREADS));
}
