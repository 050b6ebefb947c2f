// SPDX-License-Identifier: MIT
//! The kernels of these tests, compiled when first asked for, and what they are given.

use std::thread;
use std::time::{Duration, Instant};

use mscclpp_device::abi::{BasePortChannelDeviceHandle, PortChannelDeviceHandle};
use mscclpp_port::Status;

use crate::compiled::Kernels;
pub(crate) use crate::compiled::{Calling, Words};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

static KERNELS: Kernels =
    Kernels::new("tests/gpunetio/kernels.cpp", &["-DMSCCLPP_DEBUG"], PATIENCE);

#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(crate) enum Call {
    Put,
    Signal,
    PutWithSignal,
    PutWithSignalAndFlush,
    Flush,
    Wait,
    Accumulate,
    Get,
    PutForever,
    WaitBounded,
    FlushLooks,
    WaitLooks,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CallArgs {
    channel: PortChannelDeviceHandle,
    call: Call,
    count: u64,
    dst_offset: u64,
    src_offset: u64,
    size: u64,
    status: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ByIdArgs {
    channel: BasePortChannelDeviceHandle,
    dst: u64,
    src: u64,
    size: u64,
    status: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PingPongArgs {
    pub(crate) channel: PortChannelDeviceHandle,
    pub(crate) words: u64,
    pub(crate) count: u64,
    pub(crate) iterations: u64,
    pub(crate) rank: u64,
    pub(crate) status: u64,
}

/// What a call is given.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) dst: u64,
    pub(crate) src: u64,
    pub(crate) size: u64,
}

impl At {
    pub(crate) const NOWHERE: Self = Self {
        dst: 0,
        src: 0,
        size: 0,
    };

    /// The same offset in both memories.
    pub(crate) fn both(offset: u64, size: u64) -> Self {
        Self {
            dst: offset,
            src: offset,
            size,
        }
    }
}

/// Starts calls, `count` times each on some threads.
pub(crate) fn start(
    channel: PortChannelDeviceHandle,
    call: Call,
    at: At,
    (block, count): (u32, u64),
) -> Calling {
    let status = Words::new(block.into());
    let args = CallArgs {
        channel,
        call,
        count,
        dst_offset: at.dst,
        src_offset: at.src,
        size: at.size,
        status: status.address(),
    };
    KERNELS.start("queue_call", block, args, status)
}

/// One call of one thread.
pub(crate) fn call(channel: PortChannelDeviceHandle, call: Call, at: At) -> Status {
    start(channel, call, at, (1, 1)).end()[0]
}

/// A put by memory ids, and then a flush.
pub(crate) fn put_by_id(
    channel: BasePortChannelDeviceHandle,
    dst: u32,
    src: u32,
    size: u64,
) -> (Status, Status) {
    let words = Words::new(2);
    let args = ByIdArgs {
        channel,
        dst: dst.into(),
        src: src.into(),
        size,
        status: words.address(),
    };
    let ended = KERNELS.start("queue_put_by_id", 1, args, words).end();
    (ended[0], ended[1])
}

/// Both ends of a ping-pong of 8-byte words, which have to lie at the start of both memories.
pub(crate) fn ping_pong(ends: [(PortChannelDeviceHandle, u64); 2], count: u64, iterations: u64) {
    let runs: Vec<Calling> = (0u64..)
        .zip(ends)
        .map(|(rank, (channel, words))| {
            let status = Words::new(1);
            let args = PingPongArgs {
                channel,
                words,
                count,
                iterations,
                rank,
                status: status.address(),
            };
            KERNELS.start("queue_ping_pong", 1, args, status)
        })
        .collect();
    for run in runs {
        assert_eq!(run.end(), [Status::Ok]);
    }
}

/// Waits for something that other threads bring about.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        thread::sleep(Duration::from_micros(500));
    }
}
