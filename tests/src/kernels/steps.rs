// SPDX-License-Identifier: MIT
//! `steps.cpp`.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use mscclpp_bootstrap::Deadline;
use mscclpp_port::{BasePortChannel, Buffer, DeviceKind, MemoryId, Status};

use super::{Kept, Launched, address, array, block, grid, kernel, status_text};

kernel!(KERNEL = conformance_steps(Args) in "steps.cpp");

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
    Put(Range),
    /// `putWithSignal` of the same.
    PutWithSignal(Range),
    /// `putWithSignalAndFlush` of the same.
    PutWithSignalAndFlush(Range),
    /// The same with a budget.
    PutWithSignalAndFlushWithin(Range, i64),
    /// `get` of the same: from the peer's memory, which the range calls `dst`, to this rank's.
    Get(Range),
    /// `signal()`.
    Signal,
    /// `flush()`.
    Flush,
    /// `flush(maxSpinCount)`.
    FlushWithin(i64),
    /// `wait()`.
    Wait,
    /// `wait(maxSpinCount)`.
    WaitWithin(i64),
    /// `accumulate(dst, offset, operand)`.
    Accumulate(MemoryId, u64, i64),
    /// `poll()`, as often as said or until it sees a signal.
    Poll(i64),
}

/// What a put moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The peer's memory.
    pub dst: MemoryId,
    /// Where in it.
    pub dst_offset: u64,
    /// This rank's memory.
    pub src: MemoryId,
    /// Where in it.
    pub src_offset: u64,
    /// How much.
    pub size: u64,
}

impl Range {
    /// The same range of both memories.
    pub fn same(dst: MemoryId, src: MemoryId, offset: u64, size: u64) -> Self {
        Self {
            dst,
            dst_offset: offset,
            src,
            src_offset: offset,
            size,
        }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done(u32);

impl Done {
    /// The status that it returned.
    pub fn status(self) -> anyhow::Result<Status> {
        Status::try_from(self.0).map_err(|_| anyhow::anyhow!("no status: {}", status_text(self.0)))
    }

    /// Whether it returned Ok.
    pub fn is_ok(self) -> bool {
        self.0 == Status::Ok as u32
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
        let first = channels.first().context("calls need a channel")?;
        let device = first.connection().local_device();
        let mut encoded = vec![0; (longest * STEP) as usize * lists.len()];
        for (list, room) in lists
            .iter()
            .zip(encoded.chunks_mut((longest * STEP) as usize))
        {
            for ((channel, call), step) in list.iter().zip(room.chunks_mut(STEP as usize)) {
                ensure!(*channel < channels.len(), "there is no channel {channel}");
                step.copy_from_slice(&encode(*channel as u32, *call));
            }
        }
        let steps = Buffer::new(device, encoded.len() as u64)?;
        steps.write(0, &encoded)?;
        let handles: Vec<_> = channels
            .iter()
            .map(BasePortChannel::device_handle)
            .collect();
        let handles = array(device, &handles)?;
        let args = Args {
            channels: address(&handles),
            steps: address(&steps),
            count: longest,
        };
        let kept = Kept {
            report: None,
            channels: channels.to_vec(),
            _rest: Box::new((handles, steps.clone())),
        };
        // Lists must not wait for each other: on a GPU each has a block, because threads of a warp
        // take turns at the scheduler's will.
        let dims = match device.kind() {
            DeviceKind::Cpu => block(lists.len() as u32),
            _ => grid(lists.len() as u32),
        };
        let launched = Launched::start(&KERNEL, device, dims, args, kept)?;
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
        let mut bytes = vec![0; steps.len() as usize];
        steps.read(0, &mut bytes)?;
        let mut all = Vec::new();
        let threads = bytes.chunks((longest * STEP) as usize);
        for (thread, (count, room)) in counts.into_iter().zip(threads).enumerate() {
            let mut list = Vec::new();
            for (call, step) in room.chunks(STEP as usize).take(count).enumerate() {
                let half =
                    |at: usize| u32::from_le_bytes(step[at..at + 4].try_into().expect("4 bytes"));
                ensure!(
                    half(RESULT as usize + 4) != 0,
                    "the kernel ended before call {call} of thread {thread}"
                );
                list.push(Done(half(RESULT as usize)));
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
    let mut range = Range::same(MemoryId::from(0), MemoryId::from(0), 0, 0);
    let mut operand = -1;
    let operation: u32 = match call {
        Call::Put(moved) => {
            range = moved;
            1
        }
        Call::Signal => 2,
        Call::PutWithSignal(moved) => {
            range = moved;
            3
        }
        Call::PutWithSignalAndFlush(moved) => {
            range = moved;
            7
        }
        Call::PutWithSignalAndFlushWithin(moved, looks) => {
            (range, operand) = (moved, looks);
            7
        }
        Call::Get(moved) => {
            range = moved;
            9
        }
        Call::Flush => 4,
        Call::FlushWithin(looks) => {
            operand = looks;
            4
        }
        Call::Wait => 5,
        Call::WaitWithin(looks) => {
            operand = looks;
            5
        }
        Call::Accumulate(dst, dst_offset, value) => {
            range = Range {
                dst,
                dst_offset,
                ..range
            };
            operand = value;
            6
        }
        Call::Poll(times) => {
            operand = times;
            8
        }
    };
    let Range {
        dst,
        dst_offset,
        src,
        src_offset,
        size,
    } = range;
    let mut bytes = [0; STEP as usize];
    for (i, half) in [operation, channel, dst.into(), src.into()]
        .into_iter()
        .enumerate()
    {
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
