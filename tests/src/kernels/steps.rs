// SPDX-License-Identifier: MIT
//! `steps.cpp`.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::BasePortChannelDeviceHandle;
use mscclpp_port::{BasePortChannel, Buffer, Device, MemoryId, Status};

use super::{Launched, address, block, kernel, status_text};

kernel!(KERNEL = conformance_steps(Args));

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    channels: u64,
    steps: u64,
    count: u64,
}

/// One call of the device API. Sizes and offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `put(dst, dstOffset, src, srcOffset, size)`.
    Put {
        dst: MemoryId,
        dst_offset: u64,
        src: MemoryId,
        src_offset: u64,
        size: u64,
    },
    /// `signal()`.
    Signal,
    /// `putWithSignal` of the same range on both sides.
    PutWithSignal {
        dst: MemoryId,
        src: MemoryId,
        offset: u64,
        size: u64,
    },
    /// `flush()`.
    Flush,
    /// `wait()`.
    Wait,
    /// `wait` with a budget of failed looks.
    WaitFor(i64),
    /// `accumulate(dst, offset, operand)`.
    Accumulate {
        dst: MemoryId,
        offset: u64,
        operand: i64,
    },
    /// `poll()`, as often as said or until it sees a signal.
    Poll(i64),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done(u32);

impl Done {
    /// The status that it returned.
    pub fn status(self) -> anyhow::Result<Status> {
        Status::try_from(self.0).map_err(|_| anyhow::anyhow!("no status: {}", status_text(self.0)))
    }

    /// Whether a poll saw a signal.
    pub fn polled(self) -> bool {
        self.0 == 1
    }
}

/// Lists of calls, one list a thread, that a kernel runs on some channels.
pub struct Steps {
    launched: Launched,
    steps: Buffer,
    counts: Vec<usize>,
    longest: u64,
}

/// Bytes of `conformance::Step`.
const STEP: u64 = 56;
/// Where in a step the kernel writes the status, and that it did.
const RESULT: u64 = 48;

impl Steps {
    /// Starts a kernel with one thread that makes the calls in order, each on the channel of its
    /// index.
    pub fn launch(channels: &[BasePortChannel], calls: &[(usize, Call)]) -> anyhow::Result<Self> {
        Self::launch_threads(channels, &[calls])
    }

    /// Starts a kernel with a thread a list.
    pub fn launch_threads(
        channels: &[BasePortChannel],
        lists: &[&[(usize, Call)]],
    ) -> anyhow::Result<Self> {
        let longest = lists.iter().map(|list| list.len()).max().unwrap_or(0) as u64;
        ensure!(longest > 0, "no calls");
        let steps = Buffer::new(Device::cpu(), longest * STEP * lists.len() as u64)?;
        for (thread, list) in lists.iter().enumerate() {
            for (i, (channel, call)) in list.iter().enumerate() {
                ensure!(*channel < channels.len(), "there is no channel {channel}");
                let at = (thread as u64 * longest + i as u64) * STEP;
                steps.write(at, &encode(*channel as u32, *call))?;
            }
        }
        let handles: Arc<[BasePortChannelDeviceHandle]> = channels
            .iter()
            .map(BasePortChannel::device_handle)
            .collect();
        let args = Args {
            channels: handles.as_ptr() as u64,
            steps: address(&steps),
            count: longest,
        };
        let kept = Box::new((channels.to_vec(), handles, steps.clone()));
        let dims = block(lists.len() as u32);
        let launched = Launched::start(KERNEL, dims, args, None, kept)?;
        let counts = lists.iter().map(|list| list.len()).collect();
        Ok(Self {
            launched,
            steps,
            counts,
            longest,
        })
    }

    /// Whether a call of a thread has returned, and how.
    pub fn done(&self, thread: usize, call: usize) -> anyhow::Result<Option<Done>> {
        let at = (thread as u64 * self.longest + call as u64) * STEP + RESULT;
        let word = self.steps.load_u64(at)?;
        Ok((word >> 32 != 0).then_some(Done(word as u32)))
    }

    /// Waits until a call of a thread has returned.
    pub fn wait(&self, thread: usize, call: usize, deadline: Deadline) -> anyhow::Result<Done> {
        loop {
            if let Some(done) = self.done(thread, call)? {
                return Ok(done);
            }
            ensure!(
                !deadline.expired(),
                "call {call} of thread {thread} does not return"
            );
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Whether the kernel has ended.
    pub fn is_finished(&self) -> bool {
        self.launched.is_finished()
    }

    /// Waits for the end of the kernel; how the calls ended, thread by thread.
    pub fn finish_threads(self, deadline: Deadline) -> anyhow::Result<Vec<Vec<Done>>> {
        let Self {
            launched,
            steps,
            counts,
            longest,
        } = self;
        launched.finish(deadline)?;
        let mut all = Vec::new();
        for (thread, count) in counts.into_iter().enumerate() {
            let mut list = Vec::new();
            for call in 0..count as u64 {
                let word = steps.load_u64((thread as u64 * longest + call) * STEP + RESULT)?;
                ensure!(
                    word >> 32 != 0,
                    "the kernel ended before call {call} of thread {thread}"
                );
                list.push(Done(word as u32));
            }
            all.push(list);
        }
        Ok(all)
    }

    /// Waits for the end of a kernel with one thread.
    pub fn finish(self, deadline: Deadline) -> anyhow::Result<Vec<Done>> {
        let mut all = self.finish_threads(deadline)?;
        ensure!(all.len() == 1, "the kernel has {} threads", all.len());
        all.pop().context("one thread")
    }

    /// Runs one thread, and all of its calls must return Ok.
    pub fn run(
        channels: &[BasePortChannel],
        calls: &[(usize, Call)],
        deadline: Deadline,
    ) -> anyhow::Result<()> {
        let done = Self::launch(channels, calls)?.finish(deadline)?;
        for (done, (channel, call)) in done.iter().zip(calls) {
            let status = done.status()?;
            ensure!(
                status == Status::Ok,
                "{call:?} on channel {channel} returns {status:?}"
            );
        }
        Ok(())
    }
}

fn encode(channel: u32, call: Call) -> [u8; STEP as usize] {
    let id = u32::from;
    // Operation, destination, source, their offsets, size, operand.
    let (operation, dst, src, dst_offset, src_offset, size, operand) = match call {
        Call::Put {
            dst,
            dst_offset,
            src,
            src_offset,
            size,
        } => (1_u32, id(dst), id(src), dst_offset, src_offset, size, 0),
        Call::Signal => (2, 0, 0, 0, 0, 0, 0),
        Call::PutWithSignal {
            dst,
            src,
            offset,
            size,
        } => (3, id(dst), id(src), offset, offset, size, 0),
        Call::Flush => (4, 0, 0, 0, 0, 0, -1),
        Call::Wait => (5, 0, 0, 0, 0, 0, -1),
        Call::WaitFor(budget) => (5, 0, 0, 0, 0, 0, budget),
        Call::Accumulate {
            dst,
            offset,
            operand,
        } => (6, id(dst), 0, offset, 0, 0, operand),
        Call::Poll(times) => (8, 0, 0, 0, 0, 0, times),
    };
    let mut bytes = [0; STEP as usize];
    for (i, half) in [operation, channel, dst, src].into_iter().enumerate() {
        bytes[4 * i..4 * i + 4].copy_from_slice(&half.to_le_bytes());
    }
    for (i, word) in [dst_offset, src_offset, size, operand as u64]
        .into_iter()
        .enumerate()
    {
        bytes[16 + 8 * i..24 + 8 * i].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
