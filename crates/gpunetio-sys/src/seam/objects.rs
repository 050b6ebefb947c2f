// SPDX-License-Identifier: MIT
//! The shared objects under the library, and whether its calls go there.

use std::ffi::{c_char, c_int};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::os::unix::{Library as Object, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{Backend, calls, with};
use crate::Error;
use crate::library::Library;
use crate::result::{CuResult, CudaError};

/// One that `build.rs` has made.
macro_rules! object {
    ($name:literal) => {
        (
            $name,
            include_bytes!(concat!(env!("OUT_DIR"), "/", $name)).as_slice(),
        )
    };
}

/// The functions.
const SEAM: (&str, &[u8]) = object!("seam.so");

/// Nothing, by the names of what the library may be linked with.
const STAND_INS: [(&str, &[u8]); 6] = [
    object!("libcuda.so.1"),
    object!("libcudart.so.11.0"),
    object!("libcudart.so.12"),
    object!("libcudart.so.13"),
    object!("libibverbs.so.1"),
    object!("libmlx5.so.1"),
];

/// Loads, once and for good, what is to be under the library.
///
/// The loader looks for the library's names in objects that are open for all to see before it looks
/// in those that the library was linked with, so that these may be there or not. Where one is not,
/// an object without anything in it stands in for it.
pub(crate) fn load() -> Result<(), String> {
    static DONE: std::sync::Mutex<bool> = std::sync::Mutex::new(false);
    let mut done = DONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if *done {
        return Ok(());
    }
    // Open until the end, so that no two have one number and with it one path.
    let mut files = Vec::new();
    let seam = open(SEAM, RTLD_NOW | RTLD_GLOBAL, &mut files)?;
    // SAFETY: it is made of `seam.c`, and the library is loaded after it.
    unsafe { calls::install(&seam) }.map_err(|error| error.to_string())?;
    std::mem::forget(seam);
    for stand_in in STAND_INS {
        // SAFETY: these libraries' initialisers have no preconditions.
        let there = unsafe { Object::open(Some(stand_in.0), RTLD_LAZY | RTLD_LOCAL) };
        if there.is_err() {
            std::mem::forget(open(stand_in, RTLD_NOW | RTLD_LOCAL, &mut files)?);
        }
    }
    *done = true;
    Ok(())
}

/// Loads an object that is a part of this program.
fn open(
    (name, bytes): (&str, &[u8]),
    flags: c_int,
    files: &mut Vec<File>,
) -> Result<Object, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{name}: {error}");
    let file = memfd_create(name, MemfdFlags::CLOEXEC).map_err(|error| failed(&error))?;
    let mut file = File::from(file);
    file.write_all(bytes).map_err(|error| failed(&error))?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    files.push(file);
    // SAFETY: it has no initialisers.
    unsafe { Object::open(Some(path), flags) }.map_err(|error| failed(&error))
}

#[cfg(test)]
pub(super) fn names() -> Vec<String> {
    calls::symbols(&open(SEAM, RTLD_NOW | RTLD_LOCAL, &mut Vec::new()).unwrap())
}

/// What the library may have inside instead of asking the loader for it.
pub(crate) enum NotLinked {}

impl NotLinked {
    /// Refuses a library that looks verbs or CUDA's driver up itself: nothing can be put under it,
    /// and in trying the real ones would be given objects that are none.
    pub(crate) fn refuse(object: &Object, file: &str) -> Result<(), Error> {
        for (inside, reason) in [
            (
                "doca_verbs_wrapper_ibv_query_device",
                "it loads libibverbs itself",
            ),
            (
                "doca_verbs_wrapper_mlx5dv_init_obj",
                "it loads libmlx5 itself",
            ),
            (
                "doca_gpu_cuda_wrapper_cuDeviceGetAttribute",
                "it loads libcuda itself",
            ),
        ] {
            // SAFETY: the address is not used.
            if unsafe { object.get::<*const ()>(inside.as_bytes()) }.is_ok() {
                let file = file.to_owned();
                return Err(Error::NotReached { file, reason });
            }
        }
        Ok(())
    }
}

/// A GPU that counts who asks for it.
#[derive(Default)]
struct Asked {
    runtime: AtomicU32,
    driver: AtomicU32,
}

impl Backend for Asked {
    unsafe fn cuda_device_get_by_pci_bus_id(
        &self,
        device: *mut c_int,
        _: *const c_char,
    ) -> CudaError {
        self.runtime.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a place for a number.
        unsafe { device.write(0) };
        CudaError::SUCCESS
    }

    unsafe fn cu_device_get_attribute(&self, value: *mut c_int, _: c_int, _: c_int) -> CuResult {
        self.driver.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a place for a number.
        unsafe { value.write(1) };
        CuResult::SUCCESS
    }
}

/// Whether the library's calls to CUDA reach the table: opening a GPU makes some of both kinds.
pub(crate) fn reached(library: &Library) -> Result<(), Error> {
    let asked = Arc::new(Asked::default());
    let backend = Arc::clone(&asked) as Arc<dyn Backend>;
    with(&backend, || {
        let mut gpu = std::ptr::null_mut();
        let functions = &library.functions;
        // SAFETY: a string, a place for the result, and then what was made.
        unsafe {
            let opened = (functions.doca_gpu_create)(c"0000:00:00.0".as_ptr(), &raw mut gpu);
            if opened.ok().is_ok() {
                (functions.doca_gpu_destroy)(gpu);
            }
        }
    });
    let not = |reason| {
        Err(Error::NotReached {
            file: library.version().file.clone(),
            reason,
        })
    };
    if asked.runtime.load(Ordering::Relaxed) == 0 {
        return not("it has CUDA's run-time library inside");
    }
    if asked.driver.load(Ordering::Relaxed) == 0 {
        return not("its calls of CUDA's driver go elsewhere");
    }
    Ok(())
}
