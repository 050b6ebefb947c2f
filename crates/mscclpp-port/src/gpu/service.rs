// SPDX-License-Identifier: MIT
//! Copies that the caller waits for, on one stream a GPU.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex};

use mscclpp_device::cuda::{PinnedMemory, Stream};

use super::{GpuMemory, failed, open};
use crate::device::Device;
use crate::env::env;
use crate::error::{Error, Result};
use crate::shared;
use crate::sync::lock_plain as lock;

/// Bytes copied at a time.
const STEP: u64 = 1 << 20;

/// A stream, and pinned memory for what it copies. One call at a time uses it.
struct Bench {
    stream: Stream,
    staging: PinnedMemory,
}

/// The bench of a GPU; empty until it is first used, and after a copy that did not end.
type Slot = Arc<Mutex<Option<Bench>>>;

fn slot(device: Device) -> Slot {
    static SLOTS: Mutex<BTreeMap<i32, Slot>> = Mutex::new(BTreeMap::new());
    Arc::clone(lock(&SLOTS).entry(device.id()).or_default())
}

/// The right to use a bench, for copies from and to some memories.
struct Turn<'a> {
    bench: &'a mut Option<Bench>,
    device: Device,
    memories: &'a [&'a Arc<GpuMemory>],
}

impl Turn<'_> {
    /// Starts something and waits for it.
    ///
    /// # Safety
    /// What is started may use the bench and the turn's memories.
    unsafe fn run(
        &mut self,
        operation: &'static str,
        start: impl FnOnce(&Bench) -> Result<(), mscclpp_device::cuda::CudaError>,
    ) -> Result<&Bench> {
        let failed = failed(self.device, operation);
        // A buffer belongs to no job, so the environment says it.
        let within = env().deadlines.gpu_copy;
        let bench = match self.bench.take() {
            Some(bench) => bench,
            None => {
                let gpu = open(self.device)?;
                Bench {
                    stream: Stream::for_copies(&gpu).map_err(&failed)?,
                    staging: PinnedMemory::new(&gpu, STEP).map_err(&failed)?,
                }
            }
        };
        let error = match start(&bench).and_then(|()| bench.stream.wait(within)) {
            Ok(()) => return Ok(&*self.bench.insert(bench)),
            Err(error) => error,
        };
        // A stream that has failed or is late is not used again.
        if !bench.stream.is_idle().is_ok_and(|idle| !idle) {
            return Err(failed(error));
        }
        tracing::warn!(device = %self.device, operation, "a copy does not end: what it uses is never freed");
        mem::forget(bench);
        for memory in self.memories {
            mem::forget(Arc::clone(memory));
        }
        Err(Error::Timeout {
            operation: format!("{operation} on {}", self.device),
            rank: None,
            waited: within,
        })
    }

    fn load(&mut self, at: u64) -> Result<u64> {
        // SAFETY: the caller has checked the word; the bench's memory is longer.
        let bench = unsafe {
            self.run("read memory", |bench| {
                bench.stream.copy(bench.staging.address(), at, 8)
            })
        }?;
        // SAFETY: a word of the bench's memory, which nobody writes now.
        Ok(unsafe { shared::word(bench.staging.as_ptr()) }
            .load(std::sync::atomic::Ordering::Acquire))
    }

    fn store(&mut self, at: u64, value: u64) -> Result<()> {
        // SAFETY: the caller has checked the word.
        unsafe { self.run("write memory", |bench| bench.stream.write_u64(at, value)) }.map(drop)
    }
}

fn turn<T>(
    memories: &[&Arc<GpuMemory>],
    device: Device,
    run: impl FnOnce(&mut Turn<'_>) -> Result<T>,
) -> Result<T> {
    let slot = slot(device);
    let mut bench = lock(&slot);
    run(&mut Turn {
        bench: &mut bench,
        device,
        memories,
    })
}

impl GpuMemory {
    /// Copies out `to.len()` bytes from `offset`. The caller has checked the range, here and below.
    pub(crate) fn read(self: &Arc<Self>, offset: u64, to: &mut [u8]) -> Result<()> {
        turn(&[self], self.device(), |turn| {
            for (i, part) in (0..).zip(to.chunks_mut(STEP as usize)) {
                let from = self.address() + offset + i * STEP;
                // SAFETY: the range lies in this memory.
                let bench = unsafe {
                    turn.run("read memory", |bench| {
                        (bench.stream).copy(bench.staging.address(), from, part.len() as u64)
                    })
                }?;
                // SAFETY: the bench's memory is at least as long as a step.
                unsafe { shared::load(part, bench.staging.as_ptr()) };
            }
            Ok(())
        })
    }

    /// Copies `from` in at `offset`.
    pub(crate) fn write(self: &Arc<Self>, offset: u64, from: &[u8]) -> Result<()> {
        turn(&[self], self.device(), |turn| {
            for (i, part) in (0..).zip(from.chunks(STEP as usize)) {
                let to = self.address() + offset + i * STEP;
                // SAFETY: the range lies in this memory, and a step in the bench's.
                unsafe {
                    turn.run("write memory", |bench| {
                        shared::store(bench.staging.as_ptr(), part);
                        (bench.stream).copy(to, bench.staging.address(), part.len() as u64)
                    })
                }?;
            }
            Ok(())
        })
    }

    /// The word at `offset`.
    pub(crate) fn load_u64(self: &Arc<Self>, offset: u64) -> Result<u64> {
        let at = self.address() + offset;
        turn(&[self], self.device(), |turn| turn.load(at))
    }

    /// Stores a word at `offset`, after all that earlier calls wrote.
    pub(crate) fn store_u64(self: &Arc<Self>, offset: u64, value: u64) -> Result<()> {
        let at = self.address() + offset;
        turn(&[self], self.device(), |turn| turn.store(at, value))
    }

    /// Adds to the word at `offset`: a read and a write, of which this process does one at a time
    /// on a GPU. Nobody else may write the word meanwhile.
    pub(crate) fn add_u64(self: &Arc<Self>, offset: u64, value: u64) -> Result<()> {
        let at = self.address() + offset;
        turn(&[self], self.device(), |turn| {
            let old = turn.load(at)?;
            turn.store(at, old.wrapping_add(value))
        })
    }

    /// Copies `len` bytes at `offset` to another GPU memory.
    pub(crate) fn copy_to(
        self: &Arc<Self>,
        offset: u64,
        to: &Arc<Self>,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        let (from, at) = (self.address() + offset, to.address() + to_offset);
        turn(&[self, to], self.device(), |turn| {
            // SAFETY: both ranges lie in their memories.
            unsafe { turn.run("copy memory", |bench| bench.stream.copy(at, from, len)) }.map(drop)
        })
    }
}
