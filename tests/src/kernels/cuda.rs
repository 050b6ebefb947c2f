// SPDX-License-Identifier: MIT
//! Launches on GPUs.
//!
//! The first launch on a GPU compiles and loads all kernels for it and makes the streams of those to
//! come: what is loaded later could wait for a kernel that spins, for a signal of a kernel that is
//! not loaded.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use mscclpp_bootstrap::Deadline;
use mscclpp_device::cuda::{CudaKernel, Gpu, Graph, Module, PinnedMemory, Stream};
use mscclpp_device::executor::LaunchDims;
use mscclpp_device::nvrtc::Program;
use mscclpp_port::Device;

use super::ALL;
use super::kernel::{HEADERS, Kernel, Source};
use crate::harness::Stuck;

/// Streams of a GPU that are made at the start. A test with more launches at a time makes more.
const STREAMS: usize = 4;

/// What launches on one GPU share.
struct Loaded {
    gpu: Gpu,
    kernels: HashMap<&'static str, CudaKernel>,
    idle: Mutex<Vec<Stream>>,
    /// A word for [`word_at`].
    word: Mutex<PinnedMemory>,
}

/// A kernel on a GPU, alone on a stream.
pub(super) struct Running {
    stream: Option<Stream>,
    loaded: Arc<Loaded>,
}

/// Starts a kernel, and tells when: after what is done once a GPU.
pub(super) fn launch<T: Copy>(
    kernel: &'static Kernel,
    device: Device,
    dims: LaunchDims,
    args: T,
) -> anyhow::Result<(Instant, Running)> {
    let loaded = Loaded::on(device)?;
    let function = loaded.function(kernel)?;
    let stream = loaded.stream()?;
    let started = Instant::now();
    function.enqueue(dims, args, &stream)?;
    let stream = Some(stream);
    Ok((started, Running { stream, loaded }))
}

/// Does what is done once a GPU.
pub(super) fn prepare(device: Device) -> anyhow::Result<()> {
    Loaded::on(device).map(drop)
}

impl Running {
    fn stream(&self) -> &Stream {
        self.stream.as_ref().expect("taken by drop alone")
    }

    /// Waits until the kernel has ended.
    pub(super) fn join(&self, timeout: Duration) -> anyhow::Result<()> {
        Ok(self.stream().wait(timeout)?)
    }

    /// Whether the kernel has ended, well or not.
    pub(super) fn is_finished(&self) -> bool {
        self.stream().is_idle().unwrap_or(true)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The stream of a kernel that still runs is nobody else's.
        if self.is_finished() {
            lock(&self.loaded.idle).extend(self.stream.take());
        }
    }
}

/// Captures a launch in a graph, and replays it so often. The time of the replays.
///
/// # Errors
/// [`Stuck`] if one does not end by the deadline. After an error replays may still run.
pub(super) fn replay<T: Copy>(
    kernel: &'static Kernel,
    device: Device,
    dims: LaunchDims,
    args: T,
    replays: u64,
    deadline: Deadline,
) -> anyhow::Result<Duration> {
    /// A launch that finds the driver's queue full waits inside of the driver, and would keep the
    /// proxy out of it.
    const BATCH: u64 = 64;
    let loaded = Loaded::on(device)?;
    let function = loaded.function(kernel)?;
    let stream = loaded.stream()?;
    let mut graph = Graph::capture(&stream, || function.enqueue(dims, args, &stream))?;
    stream.wait(deadline.remaining())?;
    let started = Instant::now();
    for first in (0..replays).step_by(BATCH as usize) {
        for _ in first..replays.min(first + BATCH) {
            graph.launch(&stream)?;
        }
        if let Err(error) = stream.wait(deadline.remaining()) {
            std::mem::forget((graph, stream));
            return Err(Stuck(format!("after {first} replays: {error}")).into());
        }
    }
    let took = started.elapsed();
    lock(&loaded.idle).push(stream);
    Ok(took)
}

/// The word at an address of a GPU's memory, which kernels may change meanwhile.
pub(super) fn word_at(device: Device, address: u64) -> anyhow::Result<u64> {
    /// A copy of 8 bytes takes microseconds.
    const WITHIN: Duration = Duration::from_secs(10);
    let loaded = Loaded::on(device)?;
    let stream = loaded.stream()?;
    let word = lock(&loaded.word);
    // SAFETY: the caller names a word that lives; the other one is used under its lock, and is kept
    // by `loaded` for as long as the process lives.
    unsafe { stream.copy(word.address(), address, 8) }?;
    stream.wait(WITHIN)?;
    // SAFETY: page-aligned memory, and the copy, the only writer, is done.
    let value = unsafe { word.as_ptr().cast::<u64>().read_volatile() };
    drop(word);
    lock(&loaded.idle).push(stream);
    Ok(value)
}

impl Loaded {
    /// Of a GPU, made when first asked for.
    fn on(device: Device) -> anyhow::Result<Arc<Self>> {
        static GPUS: Mutex<BTreeMap<u32, Arc<Loaded>>> = Mutex::new(BTreeMap::new());
        let ordinal = u32::try_from(device.id()).context("a GPU has a number")?;
        let mut gpus = lock(&GPUS);
        if let Some(loaded) = gpus.get(&ordinal) {
            return Ok(Arc::clone(loaded));
        }
        let loaded = Arc::new(Self::new(ordinal)?);
        gpus.insert(ordinal, Arc::clone(&loaded));
        Ok(loaded)
    }

    fn new(ordinal: u32) -> anyhow::Result<Self> {
        let gpu = Gpu::open(ordinal)?;
        let mut kernels = HashMap::new();
        for (source, module) in compile(&gpu)? {
            for kernel in ALL.iter().filter(|kernel| kernel.source.name == source) {
                // SAFETY: the source and the host entry, if there is one, are of one file, so the
                // promise made there holds for this kernel too; its memory is its device's.
                kernels.insert(kernel.name, unsafe { module.kernel(kernel.name) }?);
            }
        }
        let idle = (0..STREAMS).map(|_| Stream::new(&gpu));
        Ok(Self {
            idle: Mutex::new(idle.collect::<Result<_, _>>()?),
            word: Mutex::new(PinnedMemory::new(&gpu, 8)?),
            gpu,
            kernels,
        })
    }

    fn function(&self, kernel: &Kernel) -> anyhow::Result<&CudaKernel> {
        (self.kernels.get(kernel.name)).with_context(|| format!("{} is not listed", kernel.name))
    }

    /// A stream that nothing else is on.
    fn stream(&self) -> anyhow::Result<Stream> {
        match lock(&self.idle).pop() {
            Some(stream) => Ok(stream),
            None => Ok(Stream::new(&self.gpu)?),
        }
    }
}

/// Every source of the suite's kernels, compiled at the same time.
fn compile(gpu: &Gpu) -> anyhow::Result<Vec<(&'static str, Module)>> {
    let mut sources: Vec<Source> = ALL.iter().map(|kernel| kernel.source).collect();
    sources.sort_by_key(|source| source.name);
    sources.dedup_by_key(|source| source.name);
    thread::scope(|scope| {
        let compiling: Vec<_> = (sources.iter())
            .map(|source| scope.spawn(|| Module::compile(gpu, &program(source))))
            .collect();
        let modules = compiling.into_iter().zip(&sources).map(|(module, source)| {
            let module = match module.join() {
                Ok(module) => module?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            anyhow::Ok((source.name, module))
        });
        modules.collect()
    })
}

fn program(source: &Source) -> Program {
    let program = Program::new(source.name, source.text);
    (HEADERS.iter()).fold(program, |program, header| {
        program.header(header.name, header.text)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
