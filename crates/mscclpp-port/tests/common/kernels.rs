// SPDX-License-Identifier: MIT
//! The kernels of a test, compiled when first asked for, and what they write.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use libloading::Library;
use mscclpp_device::executor::{Entry, HostKernel, LaunchDims, Running};
use mscclpp_port::{Buffer, Device, Status};

/// One file of kernels.
pub(crate) struct Kernels {
    source: &'static str,
    flags: &'static [&'static str],
    patience: Duration,
    library: OnceLock<Library>,
}

impl Kernels {
    /// Those of a file below the crate's directory, compiled with some flags more than usual. They
    /// end within `patience`, if they work.
    pub(crate) const fn new(
        source: &'static str,
        flags: &'static [&'static str],
        patience: Duration,
    ) -> Self {
        Self {
            source,
            flags,
            patience,
            library: OnceLock::new(),
        }
    }

    /// A kernel by name.
    pub(crate) fn get(&self, name: &'static str) -> HostKernel {
        let library = self.library.get_or_init(|| self.compile());
        // SAFETY: the file defines all names that the tests ask for with MSCCLPP_KERNEL, and the
        // library stays loaded. The tests' argument types are the C++ ones, and the tests keep what
        // they point to until the launch has ended.
        unsafe {
            let entry = library
                .get::<Entry>(name.as_bytes())
                .expect("a kernel of that file");
            HostKernel::new(name, *entry)
        }
    }

    /// Starts a kernel in one block, whose threads write their statuses to words of `status`.
    pub(crate) fn start<T: Copy + Send + 'static>(
        &self,
        name: &'static str,
        block: u32,
        args: T,
        status: Words,
    ) -> Calling {
        let dims = LaunchDims { grid: 1, block };
        Calling {
            running: self.get(name).launch(dims, args).unwrap(),
            status,
            patience: self.patience,
        }
    }

    fn compile(&self) -> Library {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let directory = tempfile::tempdir().expect("a temporary directory");
        let object = directory.path().join("kernels.so");
        // clang++'s objects leave the sanitizer's runtime to the test.
        let kind = std::env::var("MSCCLPP_SANITIZED").ok();
        let sanitizer = kind.map(|kind| format!("-fsanitize={kind}"));
        let compiler = match sanitizer {
            Some(_) => "clang++",
            None => "g++",
        };
        let output = Command::new(compiler)
            .args(sanitizer)
            .args(["-std=c++17", "-O2", "-shared", "-fPIC"])
            .args(["-Wall", "-Wextra", "-Werror"])
            .args(self.flags)
            .arg("-I")
            .arg(root.join("../mscclpp-device/include"))
            .arg(root.join(self.source))
            .arg("-o")
            .arg(&object)
            .output()
            .expect("a C++ compiler");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler}: {errors}");
        // SAFETY: the object was just made of the file, which runs nothing when loaded.
        unsafe { Library::new(&object) }.expect("the kernels load")
    }
}

/// Words that a kernel writes, all ones at first.
pub(crate) struct Words(Buffer, u64);

impl Words {
    pub(crate) fn new(count: u64) -> Self {
        let buffer = Buffer::new(Device::cpu(), count * 8).unwrap();
        for i in 0..count {
            buffer.store_u64(i * 8, u64::MAX).unwrap();
        }
        Self(buffer, count)
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn all(&self) -> Vec<u64> {
        (0..self.1)
            .map(|i| self.0.load_u64(i * 8).unwrap())
            .collect()
    }

    /// The statuses that were written; none where nothing was.
    pub(crate) fn statuses(&self) -> Vec<Option<Status>> {
        let status = |word| Status::try_from(u32::try_from(word).ok()?).ok();
        self.all().into_iter().map(status).collect()
    }
}

/// A kernel on its way.
pub(crate) struct Calling {
    running: Running,
    status: Words,
    patience: Duration,
}

impl Calling {
    /// Waits, and gives what the threads' calls returned.
    pub(crate) fn end(self) -> Vec<Status> {
        self.running.join(self.patience).unwrap();
        let statuses = self.status.statuses().into_iter();
        statuses.map(|status| status.expect("a status")).collect()
    }

    /// Whether all threads have returned.
    pub(crate) fn is_finished(&self) -> bool {
        self.running.is_finished()
    }

    /// Whether no thread has returned yet.
    pub(crate) fn all_waiting(&self) -> bool {
        self.status.all().iter().all(|word| *word == u64::MAX)
    }
}
