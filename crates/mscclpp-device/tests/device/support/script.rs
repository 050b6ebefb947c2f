// SPDX-License-Identifier: MIT
//! Calls of a channel as data, made by one kernel.

use std::time::Duration;

use mscclpp_device::abi::{PortChannelDeviceHandle, Status};
use mscclpp_device::executor::{LaunchDims, Model};

use super::{Cells, Kernels, Outcome, Rig, keep};

/// One call; twin of `Op` in kernels/queue.cpp.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Op {
    kind: u32,
    form: u32,
    dst: u32,
    src: u32,
    dst_offset: u64,
    src_offset: u64,
    size: u64,
    value: i64,
}

pub(crate) const PUT: u32 = 1;
pub(crate) const SIGNAL: u32 = 2;
pub(crate) const PUT_SIGNAL: u32 = 3;
pub(crate) const PUT_SIGNAL_FLUSH: u32 = 4;
pub(crate) const FLUSH: u32 = 5;
pub(crate) const POLL: u32 = 6;
pub(crate) const WAIT: u32 = 7;
pub(crate) const ACCUMULATE: u32 = 8;
pub(crate) const GET: u32 = 9;
pub(crate) const COMPATIBLE: u32 = 12;

impl Op {
    /// A call without a budget and without arguments.
    pub(crate) fn of(kind: u32) -> Self {
        Self {
            kind,
            value: -1,
            ..Self::default()
        }
    }

    /// Whether it is a call of that kind.
    pub(crate) fn is(&self, kind: u32) -> bool {
        self.kind == kind
    }

    /// On the memories that the channel is bound to.
    pub(crate) fn bound(kind: u32, dst_offset: u64, src_offset: u64, size: u64) -> Self {
        Self {
            form: 1,
            dst_offset,
            src_offset,
            size,
            ..Self::of(kind)
        }
    }

    /// On the memories that the channel is bound to, one offset for both.
    pub(crate) fn same(kind: u32, offset: u64, size: u64) -> Self {
        Self {
            form: 2,
            ..Self::bound(kind, offset, offset, size)
        }
    }

    /// On memories by id.
    pub(crate) fn ids(
        kind: u32,
        (dst, dst_offset): (u32, u64),
        (src, src_offset): (u32, u64),
        size: u64,
    ) -> Self {
        Self {
            form: 0,
            dst,
            src,
            ..Self::bound(kind, dst_offset, src_offset, size)
        }
    }

    /// On memories by id, one offset for both.
    pub(crate) fn ids_same(kind: u32, dst: u32, src: u32, offset: u64, size: u64) -> Self {
        Self {
            form: 3,
            ..Self::ids(kind, (dst, offset), (src, offset), size)
        }
    }

    pub(crate) fn accumulate(offset: u64, operand: i64) -> Self {
        Self::bound(ACCUMULATE, offset, 0, 0).value(operand)
    }

    /// Budget, or operand.
    pub(crate) fn value(self, value: i64) -> Self {
        Self { value, ..self }
    }

    /// Stores a word.
    pub(crate) fn store(address: u64, value: u64) -> Self {
        Self {
            dst_offset: address,
            ..Self::of(10).value(value as i64)
        }
    }

    /// Loads a word.
    pub(crate) fn load(address: u64) -> Self {
        Self {
            dst_offset: address,
            ..Self::of(11)
        }
    }

    /// Waits until what comes before a ticket is complete.
    pub(crate) fn sync(ticket: u64, budget: i64) -> Self {
        Self {
            dst_offset: ticket,
            ..Self::of(14).value(budget)
        }
    }

    /// Releases to the GPU.
    pub(crate) fn release() -> Self {
        Self::of(15)
    }

    /// Stores 4 bytes.
    pub(crate) fn store_half(address: u64, value: u32) -> Self {
        Self {
            dst_offset: address,
            ..Self::of(16).value(value.into())
        }
    }

    /// Waits, without an acquire, until 4 bytes have a value.
    pub(crate) fn await_half(address: u64, value: u32) -> Self {
        Self {
            dst_offset: address,
            size: value.into(),
            ..Self::of(17).value(100_000)
        }
    }

    /// Meets all blocks at a `DeviceSyncer`.
    pub(crate) fn grid_barrier(syncer: Cells) -> Self {
        Self {
            dst_offset: syncer.address(),
            ..Self::of(13).value(100_000)
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Script {
    channel: PortChannelDeviceHandle,
    ops: u64,
    count: u64,
    results: u64,
}

/// Who runs scripts: an end of a rig, on memory itself or on a model.
pub(crate) struct Runner<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) kernels: &'a Kernels,
    pub(crate) end: usize,
    pub(crate) model: Option<Model>,
    pub(crate) limit: Duration,
}

impl<'a> Runner<'a> {
    pub(crate) fn direct(rig: &'a Rig, kernels: &'a Kernels) -> Self {
        Self {
            rig,
            kernels,
            end: 0,
            model: None,
            limit: Duration::from_secs(20),
        }
    }

    pub(crate) fn on(rig: &'a Rig, kernels: &'a Kernels, model: impl Into<Model>) -> Self {
        Self {
            model: Some(model.into()),
            ..Self::direct(rig, kernels)
        }
    }

    /// Runs one thread's calls; what each returned.
    pub(crate) fn run(&self, ops: &[Op]) -> Result<Vec<u64>, String> {
        let results = self.run_all(1, &[ops.to_vec()])?;
        Ok(results.concat())
    }

    /// Runs the calls of several threads, `threads[..].len() / blocks` to a block.
    pub(crate) fn run_all(
        &self,
        blocks: u32,
        threads: &[Vec<Op>],
    ) -> Result<Vec<Vec<u64>>, String> {
        self.run_with(self.rig.channel(self.end), blocks, threads)
    }

    /// The same on a handle of the caller's.
    pub(crate) fn run_with(
        &self,
        channel: PortChannelDeviceHandle,
        blocks: u32,
        threads: &[Vec<Op>],
    ) -> Result<Vec<Vec<u64>>, String> {
        let count = threads.iter().map(Vec::len).max().unwrap_or(0);
        let mut ops = Vec::new();
        for thread in threads {
            ops.extend_from_slice(thread);
            ops.resize(ops.len() + count - thread.len(), Op::default());
        }
        let results = Cells::new(ops.len());
        let args = Script {
            channel,
            ops: ops.as_ptr().expose_provenance() as u64,
            count: count as u64,
            results: results.address(),
        };
        let kernel = match self.model {
            None => self.kernels.direct("queue_script"),
            Some(_) => self.kernels.modelled("queue_script"),
        };
        let dims = LaunchDims {
            grid: blocks,
            block: threads.len() as u32 / blocks,
        };
        let ran = (self.rig).run(kernel, dims, args, self.model.clone(), self.limit);
        if ran.is_err() {
            // It may not have ended.
            keep(ops);
        }
        ran?;
        let all = results.all();
        let by_thread = threads.iter().zip(all.chunks(count.max(1)));
        Ok(by_thread
            .map(|(thread, results)| results[..thread.len()].to_vec())
            .collect())
    }
}

/// `Err` unless all are Ok.
pub(crate) fn all_ok(results: &[u64]) -> Outcome {
    match results
        .iter()
        .position(|result| *result != Status::Ok as u64)
    {
        None => Ok(()),
        Some(at) => Err(format!("call {at} returned {} of {results:?}", results[at])),
    }
}
