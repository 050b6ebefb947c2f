// SPDX-License-Identifier: MIT
//! Kernels compiled to a shared object at test time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mscclpp_device::executor::{Entry, HostKernel};

/// Where the headers are, and what a build with them gives.
pub(crate) struct Build {
    include: PathBuf,
    scratch: tempfile::TempDir,
}

/// The kernels of one file, in both modes.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    direct: &'static Library,
    modelled: &'static Library,
}

impl Build {
    /// Of the headers in `include`.
    pub(crate) fn new(include: PathBuf) -> Self {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { include, scratch }
    }

    /// Compiles `kernels/<file>.cpp`.
    pub(crate) fn compile(&self, file: &str) -> Kernels {
        Kernels {
            direct: self.library(file, "direct", &[]),
            modelled: self.library(file, "modelled", &["-DMSCCLPP_MODELLED_MEMORY"]),
        }
    }

    fn library(&self, file: &str, mode: &str, flags: &[&str]) -> &'static Library {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/device/kernels")
            .join(file)
            .with_extension("cpp");
        let object = self.scratch.path().join(format!("{file}-{mode}.so"));
        let output = compiler()
            .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"])
            // Else those of the test's program, which has some of the same, would take their place.
            .args(["-shared", "-fPIC", "-fvisibility-inlines-hidden"])
            .args(flags)
            .arg("-I")
            .arg(&self.include)
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .output()
            .expect("these tests need a C++ compiler");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{file} does not compile:\n{errors}"
        );
        // SAFETY: the object was made above from the kernels; loading it runs no code of its own.
        let library = unsafe { Library::open(Some(&object), RTLD_NOW | RTLD_LOCAL) }.unwrap();
        // Never unloaded: kernels of a failed test may still run.
        static LOADED: Mutex<Vec<&'static Library>> = Mutex::new(Vec::new());
        let library: &'static Library = Box::leak(Box::new(library));
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.push(library);
        library
    }
}

/// g++, or in a sanitized build clang++ with its sanitizer, whose objects leave the sanitizer's runtime to the test.
fn compiler() -> Command {
    let Some(kind) = sanitizer() else {
        let mut command = Command::new("g++");
        // Else the dynamic linker would merge inline variables of all objects.
        command.arg("-fno-gnu-unique");
        return command;
    };
    let mut command = Command::new("clang++");
    command.arg(format!("-fsanitize={kind}"));
    command.arg("-fno-omit-frame-pointer");
    command
}

/// What this build is checked with: `address`, `thread` or nothing.
pub(crate) fn sanitizer() -> Option<String> {
    std::env::var("MSCCLPP_SANITIZED").ok()
}

impl Kernels {
    /// Kernels of `kernels/<file>.cpp`, built with the headers as they are.
    pub(crate) fn of(file: &'static str) -> Self {
        static BUILD: LazyLock<Build> =
            LazyLock::new(|| Build::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("include")));
        static BUILT: Mutex<Option<HashMap<&str, Kernels>>> = Mutex::new(None);
        *BUILT
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .get_or_insert_default()
            .entry(file)
            .or_insert_with(|| BUILD.compile(file))
    }

    /// The kernel in direct mode.
    pub(crate) fn direct(&self, name: &'static str) -> HostKernel {
        kernel(self.direct, name, name)
    }

    /// The kernel for memory models.
    pub(crate) fn modelled(&self, name: &'static str) -> HostKernel {
        kernel(self.modelled, name, &format!("{name}_modelled"))
    }
}

fn kernel(library: &'static Library, name: &'static str, symbol: &str) -> HostKernel {
    // SAFETY: all functions that these objects export are entries made by MSCCLPP_KERNEL.
    let entry = *unsafe { library.get::<Entry>(symbol.as_bytes()) }.unwrap();
    // SAFETY: it is such an entry, never unloaded. The callers here pass `#[repr(C)]` twins of the
    // kernels' argument types, whose addresses are of `Cells` and the like: kept until the join, or
    // leaked where the kernel may outlive it.
    unsafe { HostKernel::new(name, entry) }
}
