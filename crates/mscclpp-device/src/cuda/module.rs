// SPDX-License-Identifier: MIT
//! Kernels on a GPU.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{self, CUfunction, CUmodule};
use sha2::{Digest, Sha256};

use super::cache::{Cache, Key};
use super::error::warn;
use super::stream::wait;
use super::{CudaError, Event, Gpu, GpuRing, PinnedMemory, Stream};
use crate::launch_dims::{LaunchDims, MAX_BLOCK};
use crate::nvrtc::{Arch, Nvrtc, NvrtcError, Program, Target};
use crate::trace::RingHandle;

/// The ring of a module's kernels; see trace_device.hpp.
const RING_SYMBOL: &CStr = c"mscclppTraceRing";
/// How long two words may take.
const SOON: Duration = Duration::from_secs(10);

/// Code loaded on a GPU, unloaded with the last kernel of it. Load modules before kernels run that
/// wait for others: loading waits until what runs has ended (measured: 20 s behind a kernel that
/// spins as long).
#[derive(Clone)]
pub struct Module(Arc<Inner>);

struct Inner {
    gpu: Gpu,
    module: CUmodule,
    /// What its kernels write their trace to.
    trace: Mutex<Option<Arc<GpuRing>>>,
}

// SAFETY: the driver's modules may be used by any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Module {
    /// Compiles a program for `gpu` with NVRTC and loads it. What was compiled is kept on disk, under
    /// `MSCCLPP_CACHE_DIR` or the user's cache directory, by content, architecture and version of
    /// NVRTC. An NVRTC that is older than the GPU compiles for the newest architecture that it knows,
    /// and the driver does the rest.
    ///
    /// # Errors
    ///
    /// [`CudaError::Nvrtc`]: no NVRTC, or the program has errors. What the driver says.
    pub fn compile(gpu: &Gpu, program: &Program) -> Result<Self, CudaError> {
        let nvrtc = nvrtc()?;
        let arch = gpu.arch()?;
        let known = nvrtc.archs()?;
        let target = if known.contains(&arch.number()) {
            Target::Cubin(arch)
        } else {
            let older = known.into_iter().filter(|known| *known < arch.number());
            Target::Ptx(older.max().map_or(arch, Arch::from))
        };
        let key = key(nvrtc, program, &target)?;
        let cache = Cache::of_user();
        if let Some(code) = cache.get(&key) {
            return Self::load(gpu, &code);
        }
        let code = nvrtc.compile(program, &target)?.code;
        cache.put(&key, &code);
        Self::load(gpu, &code)
    }

    /// Loads machine code or PTX.
    ///
    /// # Errors
    ///
    /// What the driver says: code for another GPU, for example.
    pub fn load(gpu: &Gpu, code: &[u8]) -> Result<Self, CudaError> {
        // PTX is a text that ends with a zero.
        let mut image = code.to_vec();
        image.push(0);
        let _entered = gpu.enter()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: a valid place to write to, and an image that the driver checks.
        gpu.check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut module, image.as_ptr().cast())
        })?;
        Ok(Self(Arc::new(Inner {
            gpu: *gpu,
            module,
            trace: Mutex::default(),
        })))
    }

    /// The kernel `name`, made by `MSCCLPP_KERNEL` or of one argument in the same way.
    ///
    /// # Errors
    ///
    /// What the driver says, if there is none of the name.
    ///
    /// # Safety
    ///
    /// For every `args` given to a launch: they are of the C++ type that the kernel was defined with,
    /// and what the kernel does with them is sound on any number of threads; in particular all memory
    /// that they name by address is reached by the GPU and lives until the launch has ended, which a
    /// failed [`RunningKernel::join`] or a dropped [`RunningKernel`] does not show.
    pub unsafe fn kernel(&self, name: &str) -> Result<CudaKernel, CudaError> {
        let gpu = self.0.gpu;
        let text = CString::new(name).map_err(|_| NvrtcError::Zero {
            start: name.chars().take(40).collect(),
        })?;
        let _entered = gpu.enter()?;
        let mut function = std::ptr::null_mut();
        // SAFETY: a valid place to write to, a live module, a zero-terminated text.
        gpu.check("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&mut function, self.0.module, text.as_ptr())
        })?;
        // Now, and not when it is launched, perhaps beside a kernel that spins.
        // SAFETY: a function of a live module.
        gpu.check("cuFuncLoad", unsafe { sys::cuFuncLoad(function) })?;
        let (mut offset, mut size) = (0, 0);
        // SAFETY: valid places to write to. A kernel of no argument has no first one.
        let has = unsafe { sys::cuFuncGetParamInfo(function, 0, &mut offset, &mut size) };
        if has != sys::CUresult::CUDA_SUCCESS {
            size = 0;
        }
        Ok(CudaKernel {
            module: self.clone(),
            function,
            name: name.into(),
            size: size as u64,
        })
    }
}

impl Module {
    /// Has the calls of its kernels that are launched from now on leave records in `ring`, which the
    /// module then keeps. The program must be compiled with `-DMSCCLPP_DEVICE_TRACE` (as
    /// [`Program::option`]). No kernel of the module may run.
    ///
    /// # Errors
    ///
    /// What the driver says: there is no such symbol in a module without the trace.
    pub fn trace_into(&self, ring: &Arc<GpuRing>) -> Result<(), CudaError> {
        let gpu = self.0.gpu;
        let (mut at, mut size) = (0, 0);
        let entered = gpu.enter()?;
        // SAFETY: valid places to write to, a live module, a zero-terminated text.
        gpu.check("cuModuleGetGlobal", unsafe {
            sys::cuModuleGetGlobal_v2(&mut at, &mut size, self.0.module, RING_SYMBOL.as_ptr())
        })?;
        drop(entered);
        let mut kept = self.0.trace.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = Stream::new(&gpu)?;
        let RingHandle { words, mask } = ring.handle();
        debug_assert_eq!(size, size_of::<RingHandle>());
        let from = PinnedMemory::new(&gpu, 16)?;
        // SAFETY: aligned words of this call's own.
        unsafe { from.as_ptr().cast::<[u64; 2]>().write([words, mask]) };
        // SAFETY: two words of the module, which is held, and pages that stay pinned and readable
        // when they are put away.
        unsafe { stream.copy(at, from.address(), 16) }?;
        stream.wait(SOON)?;
        *kept = Some(Arc::clone(ring));
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: no kernel of it is left, and launches hold one.
        warn(self.gpu.check("cuModuleUnload", unsafe {
            sys::cuModuleUnload(self.module)
        }));
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:?})", self.0.gpu)
    }
}

fn nvrtc() -> Result<&'static Nvrtc, CudaError> {
    static LOADED: OnceLock<Result<Nvrtc, CudaError>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| Nvrtc::load().map_err(CudaError::from));
    loaded.as_ref().map_err(Clone::clone)
}

/// A digest of all that the compiled code depends on.
fn key(nvrtc: &Nvrtc, program: &Program, target: &Target) -> Result<Key, CudaError> {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    };
    add(&format!("{:?} {:?}", nvrtc.version()?, target));
    program.each_text(&mut add);
    Ok(digest.finalize().into())
}

/// A kernel that can be launched on its module's GPU. Any thread may use it.
#[derive(Clone)]
pub struct CudaKernel {
    module: Module,
    function: CUfunction,
    name: Arc<str>,
    /// Bytes of its argument.
    size: u64,
}

// SAFETY: the driver's functions may be used by any thread, and the module is held.
unsafe impl Send for CudaKernel {}
// SAFETY: as above.
unsafe impl Sync for CudaKernel {}

impl CudaKernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The GPU it runs on.
    pub fn gpu(&self) -> Gpu {
        self.module.0.gpu
    }

    /// Starts it behind what is on `stream`, a stream of the same GPU, with a copy of `args`.
    ///
    /// # Errors
    ///
    /// [`CudaError::Dimensions`], [`CudaError::Arguments`], and what the driver says.
    pub fn launch<T: Copy>(
        &self,
        dims: LaunchDims,
        args: T,
        stream: &Stream,
    ) -> Result<RunningKernel, CudaError> {
        self.enqueue(dims, args, stream)?;
        let event = Event::new(&self.gpu())?;
        event.record(stream)?;
        Ok(RunningKernel {
            kernel: self.clone(),
            event,
        })
    }

    /// The same without a way to learn of its end: for a stream that is captured, or one that is
    /// waited for as a whole. The kernel's module must be kept until then.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    pub fn enqueue<T: Copy>(
        &self,
        dims: LaunchDims,
        mut args: T,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let LaunchDims { grid, block } = dims;
        if grid == 0 || !(1..=MAX_BLOCK).contains(&block) {
            return Err(CudaError::Dimensions {
                kernel: self.name.to_string(),
                grid,
                block,
            });
        }
        let given = size_of::<T>() as u64;
        if given != self.size {
            return Err(CudaError::Arguments {
                kernel: self.name.to_string(),
                expected: self.size,
                given,
            });
        }
        let gpu = self.gpu();
        let _entered = gpu.enter()?;
        let mut params = [(&raw mut args).cast::<c_void>()];
        // SAFETY: a function of a live module, a live stream, and the one argument that it takes,
        // which the driver copies; `Module::kernel` has the caller's promise for the rest.
        gpu.check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                self.function,
                grid,
                1,
                1,
                block,
                1,
                1,
                0,
                stream.raw(),
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}

impl fmt::Debug for CudaKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaKernel({} on {:?})", self.name, self.gpu())
    }
}

/// A launched kernel. Dropping it does not end the kernel.
#[derive(Debug)]
pub struct RunningKernel {
    kernel: CudaKernel,
    event: Event,
}

impl RunningKernel {
    /// Waits until the kernel has ended.
    ///
    /// # Errors
    ///
    /// [`CudaError::Timeout`] if it still runs; it may be called again. What the driver says, also of
    /// a fault of the kernel, after which the GPU's context is of no more use.
    pub fn join(&self, timeout: Duration) -> Result<(), CudaError> {
        let what = format!("kernel {}", self.kernel.name);
        wait(&self.kernel.gpu(), &what, timeout, || self.event.is_done())
    }

    /// Whether the kernel has ended, well or not.
    pub fn is_finished(&self) -> bool {
        self.event.is_done().unwrap_or(true)
    }
}

impl Drop for RunningKernel {
    fn drop(&mut self) {
        if !self.is_finished() {
            tracing::warn!(kernel = %self.kernel.name, "dropped a kernel that still runs");
            // Its code stays.
            std::mem::forget(self.kernel.clone());
        }
    }
}
