// SPDX-License-Identifier: MIT
//! The oracle (`tests/oracle`) on a GPU, with the library's headers as they are.

use std::any::Any;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use libtest_mimic::Failed;
use mscclpp_device::cuda::{
    CudaError, CudaKernel, DeviceMemory, Gpu, Module, PinnedMemory, Stream,
};
use mscclpp_device::headers;

use crate::oracle::machine::{Args, Kernel, Machine, Memory, Outcome, Place, Step};
use crate::oracle::report::Report;
use crate::oracle::{cases, foreign, include};
use crate::{ONE, SOON};

pub(crate) const NAME: &str = "device_code_equals_that_of_gpunetio";

/// Why it cannot run.
pub(crate) fn missing() -> Option<String> {
    let includes = include::directories().err();
    includes.or_else(|| nvcc().err())
}

/// CUDA's compiler: `NVCC`, or where it usually is. NVRTC does not do, see `posts.cpp`.
fn nvcc() -> Result<PathBuf, String> {
    let usual = PathBuf::from("/usr/local/cuda/bin/nvcc");
    let on_path = || {
        let path = std::env::var_os("PATH")?;
        let all = std::env::split_paths(&path).map(|folder| folder.join("nvcc"));
        all.into_iter().find(|path| path.is_file())
    };
    (std::env::var_os("NVCC").map(PathBuf::from))
        .or_else(on_path)
        .or_else(|| Some(usual).filter(|path| path.is_file()))
        .ok_or_else(|| "no nvcc, which NVCC names".into())
}

/// Both sides, as machine code for a GPU.
fn compile(gpu: &Gpu, include: &Path) -> Result<Vec<u8>, Failed> {
    let directory = tempfile::tempdir()?;
    let place = |name: &str| directory.path().join(name);
    std::fs::create_dir(place("mscclpp"))?;
    for (name, text) in headers::ALL {
        std::fs::write(place(name), text)?;
    }
    std::fs::write(place("posts.cu"), include_str!("../oracle/posts.cpp"))?;
    let (compiler, cubin) = (nvcc()?, place("posts.cubin"));
    let mut command = Command::new(&compiler);
    command.args(["--cubin", "-std=c++17"]);
    command.arg(format!("-arch=sm_{}", gpu.arch()?));
    command.arg("-I").arg(directory.path());
    command.arg("-I").arg(include);
    command.arg("-o").arg(&cubin).arg(place("posts.cu"));
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{}: {said}", compiler.display()).into());
    }
    Ok(std::fs::read(cubin)?)
}

pub(crate) fn equals() -> super::Outcome {
    for include in include::directories()? {
        let gpu = Gpu::open(0)?;
        let code = compile(&gpu, &include)?;
        let gpu = OnGpu::new(gpu, &code)?;
        println!("{}, on {}", include.display(), gpu.gpu.name()?);
        let mut report = Report::default();
        cases::alone(&gpu, &mut report)?;
        cases::streams(&gpu, &mut report)?;
        println!("{report}");
        report.equal()?;
        let [read, _] = foreign::read(&gpu)?;
        println!(
            "only the library's, and read by mlx5-queue: {}",
            read.join(", ")
        );
    }
    Ok(())
}

struct OnGpu {
    gpu: Gpu,
    stream: Stream,
    kernels: [CudaKernel; 2],
    /// All memory that kernels were given.
    kept: RefCell<Vec<Rc<dyn Any>>>,
}

impl OnGpu {
    fn new(gpu: Gpu, code: &[u8]) -> Result<Self, CudaError> {
        let module = Module::load(&gpu, code)?;
        // SAFETY: it is given the twin of its arguments, whose memory is kept until it has ended.
        let kernel = |kernel: Kernel| unsafe { module.kernel(kernel.name()) };
        let [ours, theirs] = Kernel::ALL.map(kernel);
        Ok(Self {
            stream: Stream::new(&gpu)?,
            gpu,
            kernels: [ours?, theirs?],
            kept: RefCell::default(),
        })
    }

    fn keep<T: 'static>(&self, memory: Result<T, CudaError>) -> Outcome<Rc<T>> {
        let memory = Rc::new(memory.map_err(|error| error.to_string())?);
        self.kept.borrow_mut().push(memory.clone());
        Ok(memory)
    }
}

/// Memory of the host's. Kernels have ended where it is accessed here.
struct Pinned(Rc<PinnedMemory>);

impl Pinned {
    fn at(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(at + bytes <= self.len());
        // SAFETY: inside of the memory.
        unsafe { self.0.as_ptr().add(at) }
    }
}

impl Memory for Pinned {
    fn address(&self) -> u64 {
        self.0.address()
    }

    fn len(&self) -> usize {
        self.0.len() as usize
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        // SAFETY: as many bytes are there, and nobody writes them now.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(at, out.len()), out.as_mut_ptr(), out.len())
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: as for `read`, and nobody reads them now.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(at, bytes.len()), bytes.len())
        }
    }
}

impl Machine for OnGpu {
    fn shared(&self, bytes: usize) -> Outcome<Box<dyn Memory>> {
        let memory = self.keep(PinnedMemory::new(&self.gpu, bytes as u64))?;
        Ok(Box::new(Pinned(memory)))
    }

    fn own(&self, bytes: usize) -> Outcome<Place> {
        let memory = self.keep(DeviceMemory::new(&self.gpu, bytes as u64))?;
        Ok(Place {
            address: memory.address(),
            _kept: Box::new(memory),
        })
    }

    fn run(&self, kernel: Kernel, args: Args) -> Outcome<Option<Vec<Step>>> {
        let ended = self.kernels[kernel as usize]
            .launch(ONE, args, &self.stream)
            .and_then(|running| running.join(SOON));
        ended.map(|()| None).map_err(|error| {
            // It may still run.
            std::mem::forget(self.kept.take());
            format!("{}: {:x?}: {error}", kernel.name(), args.call)
        })
    }
}
