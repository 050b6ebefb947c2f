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
use mscclpp_device::cuda::{CudaKernel, Gpu, Module, PinnedMemory, RunningKernel, Stream};
use mscclpp_device::executor::LaunchDims;
use mscclpp_device::nvrtc::Program;
use mscclpp_port::Device;

use super::ALL;
use super::kernel::{HEADERS, Kernel, Source};

/// Streams of a GPU that are made at the start. A test with more launches at a time makes more.
const STREAMS: usize = 8;

/// What launches on one GPU share.
pub(super) struct Loaded {
    gpu: Gpu,
    kernels: HashMap<&'static str, CudaKernel>,
    idle: Mutex<Vec<Stream>>,
    /// A word for [`word_at`].
    word: Mutex<PinnedMemory>,
}

/// A kernel on a GPU.
pub(super) struct Running {
    kernel: RunningKernel,
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
    let name = kernel.name;
    let function = (loaded.kernels.get(name)).with_context(|| format!("{name} is not listed"))?;
    let stream = loaded.stream()?;
    let started = Instant::now();
    let kernel = function.launch(dims, args, &stream)?;
    let running = Running {
        kernel,
        stream: Some(stream),
        loaded,
    };
    Ok((started, running))
}

impl Running {
    /// Waits until the kernel has ended.
    pub(super) fn join(&self, timeout: Duration) -> anyhow::Result<()> {
        Ok(self.kernel.join(timeout)?)
    }

    /// Whether the kernel has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.kernel.is_finished()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The stream of a kernel that still runs is nobody else's.
        if self.kernel.is_finished() {
            lock(&self.loaded.idle).extend(self.stream.take());
        }
    }
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
    pub(super) fn on(device: Device) -> anyhow::Result<Arc<Self>> {
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

    /// The GPU.
    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// A stream that nothing else is on.
    pub(super) fn stream(&self) -> anyhow::Result<Stream> {
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
