// SPDX-License-Identifier: MIT
//! Both sides on CPU threads, with a record of what they do to memory.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mscclpp_device::LaunchDims;
use mscclpp_device::executor::memory::Access;
use mscclpp_device::executor::{Entry, HostKernel, Trace};
use mscclpp_softnic::HostBuffer;

use crate::headers;
use crate::oracle::machine::{Args, Kernel, Machine, Memory, Outcome, Place, Step};

/// Far longer than a call takes.
const SOON: Duration = Duration::from_secs(20);
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle/posts.cpp");

/// How the library's headers are compiled: they have two ways to look at completions and to fence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    defines: &'static [&'static str],
}

pub(crate) const VARIANTS: [Variant; 2] = [
    Variant {
        name: "its forms for GPUs before sm_90",
        defines: &["-DCUDA_VERSION=12020"],
    },
    Variant {
        name: "its forms for sm_90",
        defines: &["-DCUDA_VERSION=13000", "-D__CUDA_ARCH__=900"],
    },
];

/// The kernels of posts.cpp.
pub(crate) struct Cpu {
    kernels: [HostKernel; 2],
}

impl Cpu {
    /// Compiles them with the library's headers of `include`.
    pub(crate) fn new(include: &Path, variant: Variant) -> Outcome<Self> {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let scratch = scratch.map_err(|error| error.to_string())?;
        let changed = scratch.path().join("include");
        headers::for_host(include, &changed)?;
        let object = scratch.path().join("posts.so");
        let output = Command::new("g++")
            .args(["-std=c++17", "-O2", "-shared", "-fPIC"])
            // Else those of the test's program would take the place of inline functions here.
            .args(["-fvisibility-inlines-hidden", "-fno-gnu-unique"])
            // What the library does not set must not look as if it were set by chance.
            .args(["-ftrivial-auto-var-init=pattern", "-w"])
            .arg("-DMSCCLPP_MODELLED_MEMORY")
            .args(variant.defines)
            .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"))
            .arg("-isystem")
            .arg(&changed)
            .arg(SOURCE)
            .arg("-o")
            .arg(&object)
            .output()
            .map_err(|error| format!("g++: {error}"))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("posts.cpp does not compile:\n{errors}"));
        }
        // SAFETY: made above from the kernels; loading it runs no code of its own.
        let library = unsafe { Library::open(Some(&object), RTLD_NOW | RTLD_LOCAL) };
        // Never unloaded, and known to whoever looks for leaks.
        static LOADED: Mutex<Vec<&'static Library>> = Mutex::new(Vec::new());
        let library: &'static Library = Box::leak(Box::new(library.map_err(|e| e.to_string())?));
        LOADED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(library);
        let entry = |kernel: Kernel| -> Outcome<HostKernel> {
            let symbol = format!("{}_modelled", kernel.name());
            // SAFETY: an entry made by MSCCLPP_KERNEL.
            let entry = unsafe { library.get::<Entry>(symbol.as_bytes()) };
            let entry = *entry.map_err(|error| error.to_string())?;
            // SAFETY: it is never unloaded. `run` passes the twin of its arguments, which name memory
            // that is kept for ever.
            Ok(unsafe { HostKernel::new(kernel.name(), entry) })
        };
        let [ours, theirs] = Kernel::ALL.map(entry);
        Ok(Self {
            kernels: [ours?, theirs?],
        })
    }

    /// The version that the headers name.
    pub(crate) fn version(include: &Path) -> String {
        let path = include.join("common/doca_gpunetio_verbs_def.h");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let number = |part: &str| {
            let define = format!("#define DOCA_GPUNETIO_VERSION_{part} ");
            let mut lines = text.lines();
            let line = lines.find_map(|line| line.strip_prefix(&define));
            line.unwrap_or("?").trim().to_owned()
        };
        ["MAJOR", "MINOR", "PATCH"].map(number).join(".")
    }
}

/// For ever: a kernel that a failed check left behind may still use it.
fn kept(bytes: usize) -> HostBuffer {
    static KEPT: Mutex<Vec<HostBuffer>> = Mutex::new(Vec::new());
    let buffer = HostBuffer::new(bytes);
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(buffer.clone());
    buffer
}

impl Memory for HostBuffer {
    fn address(&self) -> u64 {
        self.address()
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.read(at, out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.write(at, bytes);
    }
}

impl Machine for Cpu {
    fn shared(&self, bytes: usize) -> Outcome<Box<dyn Memory>> {
        Ok(Box::new(kept(bytes)))
    }

    fn own(&self, bytes: usize) -> Outcome<Place> {
        let buffer = kept(bytes);
        Ok(Place {
            address: buffer.address(),
            _kept: Box::new(buffer),
        })
    }

    fn run(&self, kernel: Kernel, args: Args) -> Outcome<Option<Vec<Step>>> {
        let trace = Trace::new();
        let one = LaunchDims { grid: 1, block: 1 };
        self.kernels[kernel as usize]
            .launch_modelled(one, args, &trace)
            .and_then(|running| running.join(SOON))
            .map_err(|error| format!("{}: {:x?}: {error}", kernel.name(), args.call))?;
        let queue = &args.channel.queue;
        let ring = queue.send_ring..queue.send_ring + 64 * u64::from(queue.blocks);
        let step = |access| match access {
            Access::Store { address, value, .. } => match address as u64 {
                at if at == queue.record => Some(Step::Record(value as u32)),
                at => ring.contains(&at).then_some(Step::Request),
            },
            Access::StoreMmio { address, value } if address as u64 == queue.doorbell => {
                Some(Step::Doorbell(value))
            }
            Access::Fence { order, scope } if order.releases() => Some(Step::Release(scope)),
            _ => None,
        };
        let events = trace.events();
        Ok(Some(
            events
                .into_iter()
                .filter_map(|event| step(event.access))
                .collect(),
        ))
    }
}
