// SPDX-License-Identifier: MIT
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::ffi::DocaGpu;
use crate::{Error, Library};

/// A GPU, as far as it takes to open it: device `number` at any address.
struct Gpu {
    number: c_int,
    asked: AtomicUsize,
    attributes: Mutex<Vec<(c_int, c_int)>>,
    panics: bool,
}

impl Gpu {
    fn new(number: c_int) -> Self {
        Self {
            number,
            asked: AtomicUsize::new(0),
            attributes: Mutex::default(),
            panics: false,
        }
    }
}

impl Backend for Gpu {
    unsafe fn cuda_device_get_by_pci_bus_id(
        &self,
        device: *mut c_int,
        bus_id: *const c_char,
    ) -> CudaError {
        assert!(!self.panics, "as was asked for");
        // SAFETY: a string, as the function of this name takes.
        let bus_id = unsafe { std::ffi::CStr::from_ptr(bus_id) };
        assert_eq!(bus_id, c"0000:01:00.0");
        self.asked.fetch_add(1, Ordering::Relaxed);
        // SAFETY: valid, as the function of this name requires.
        unsafe { device.write(self.number) };
        CudaError::SUCCESS
    }

    unsafe fn cu_device_get_attribute(
        &self,
        value: *mut c_int,
        attribute: c_int,
        device: c_int,
    ) -> CuResult {
        self.attributes.lock().unwrap().push((attribute, device));
        // SAFETY: valid, as the function of this name requires.
        unsafe { value.write(1) };
        CuResult::SUCCESS
    }
}

/// The library, if one is named: without, a test is skipped.
fn library(test: &str) -> Option<&'static Library> {
    match Library::over_table() {
        Ok(library) => Some(library),
        Err(Error::NotNamed) => {
            println!("SKIP {test}: no GPUNetIO: GPUNETIO_LIBRARY is not set");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Opens a GPU and closes it.
fn open(library: &Library) -> DocaError {
    let functions = &library.functions;
    let mut gpu: *mut DocaGpu = std::ptr::null_mut();
    // SAFETY: a string, and a place for the result.
    let opened = unsafe { (functions.doca_gpu_create)(c"0000:01:00.0".as_ptr(), &raw mut gpu) };
    if opened == DocaError::SUCCESS {
        // SAFETY: it was just made.
        let closed = unsafe { (functions.doca_gpu_destroy)(gpu) };
        assert_eq!(closed, DocaError::SUCCESS);
    }
    opened
}

fn shared(gpu: Gpu) -> (Arc<Gpu>, Arc<dyn Backend>) {
    let gpu = Arc::new(gpu);
    (Arc::clone(&gpu), gpu)
}

#[test]
fn both_sides_have_the_same_list() {
    let ours: Vec<_> = Call::ALL.iter().map(|call| call.symbol()).collect();
    assert_eq!(objects::names(), ours);
    assert_eq!(ours.len(), 31);
}

#[test]
fn calls_reach_what_is_in_force_and_fail_where_nothing_is() {
    let name = "calls_reach_what_is_in_force_and_fail_where_nothing_is";
    let Some(library) = library(name) else {
        return;
    };
    let open = || open(library);
    let (gpu, backend) = shared(Gpu::new(3));
    assert_ne!(open(), DocaError::SUCCESS);
    assert_eq!(with(&backend, open), DocaError::SUCCESS);
    assert_ne!(open(), DocaError::SUCCESS);
    assert_eq!(gpu.asked.load(Ordering::Relaxed), 1);
    let attributes = gpu.attributes.lock().unwrap();
    // dma-buf, and who orders what the NIC writes, of that device.
    assert_eq!(*attributes, [(124, 3), (118, 3)]);
}

#[test]
fn the_innermost_counts_and_the_outer_one_comes_back() {
    let name = "the_innermost_counts_and_the_outer_one_comes_back";
    let Some(library) = library(name) else {
        return;
    };
    let open = || open(library);
    let (outer, outside) = shared(Gpu::new(0));
    let (inner, inside) = shared(Gpu::new(1));
    with(&outside, || {
        assert_eq!(with(&inside, open), DocaError::SUCCESS);
        let left = catch_unwind(AssertUnwindSafe(|| with(&inside, || panic!("left"))));
        assert!(left.is_err());
        assert_eq!(open(), DocaError::SUCCESS);
    });
    assert_eq!(inner.asked.load(Ordering::Relaxed), 1);
    assert_eq!(outer.asked.load(Ordering::Relaxed), 1);
}

#[test]
fn threads_have_each_their_own() {
    let name = "threads_have_each_their_own";
    let Some(library) = library(name) else {
        return;
    };
    let open = || open(library);
    std::thread::scope(|scope| {
        let one = |number| {
            let (gpu, backend) = shared(Gpu::new(number));
            for _ in 0..100 {
                assert_eq!(with(&backend, open), DocaError::SUCCESS);
            }
            let attributes = gpu.attributes.lock().unwrap();
            assert_eq!(attributes.len(), 200);
            assert!(attributes.iter().all(|(_, device)| *device == number));
        };
        for number in 0..4 {
            scope.spawn(move || one(number));
        }
    });
    let (_, backend) = shared(Gpu::new(0));
    with(&backend, || {
        // What is in force here is not in force there.
        let elsewhere = std::thread::spawn(open).join().unwrap();
        assert_ne!(elsewhere, DocaError::SUCCESS);
    });
}

#[test]
fn each_call_can_be_failed() {
    let name = "each_call_can_be_failed";
    let Some(library) = library(name) else {
        return;
    };
    let open = || open(library);
    let (gpu, backend) = shared(Gpu::new(0));
    for failed in [Call::CudaDeviceGetByPciBusId, Call::CudaMalloc] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&seen);
        let watched = Intercepted::new(Arc::clone(&backend), move |call| {
            list.lock().unwrap().push(call);
            call == failed
        });
        let watched: Arc<dyn Backend> = Arc::new(watched);
        let opened = with(&watched, open);
        let seen = seen.lock().unwrap();
        assert_eq!(seen[0], Call::CudaDeviceGetByPciBusId);
        if failed == Call::CudaMalloc {
            assert_eq!(opened, DocaError::SUCCESS);
            assert_eq!(seen[1..3], [Call::CuDeviceGetAttribute; 2]);
        } else {
            assert_ne!(opened, DocaError::SUCCESS);
        }
    }
    assert_eq!(gpu.asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_panic_goes_around_the_library_and_nothing_is_broken_after_it() {
    let name = "a_panic_goes_around_the_library_and_nothing_is_broken_after_it";
    let Some(library) = library(name) else {
        return;
    };
    let open = || open(library);
    let mut gpu = Gpu::new(0);
    gpu.panics = true;
    let (_, backend) = shared(gpu);
    let panic = catch_unwind(AssertUnwindSafe(|| with(&backend, open))).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"as was asked for"));
    let (_, backend) = shared(Gpu::new(0));
    assert_eq!(with(&backend, open), DocaError::SUCCESS);
}
