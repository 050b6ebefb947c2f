// SPDX-License-Identifier: MIT
//! The function table between the library and what it stands on.
//!
//! The library is compiled so that each of its calls to verbs, mlx5 and CUDA leads here: to
//! hidden functions of this crate's object file, which go through one table, to the
//! [`Backend`] that is in force on the calling thread. [`with`] puts one in force while the
//! library is called:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use gpunetio_sys::{Error, ffi, seam::{self, Backend}};
//! # fn open(backend: &Arc<dyn Backend>) -> Result<(), Error> {
//! let mut gpu = std::ptr::null_mut();
//! let opened = seam::with(backend, || {
//!     // SAFETY: a string, and a place for the result.
//!     unsafe { ffi::doca_gpu_create(c"0000:01:00.0".as_ptr(), &raw mut gpu) }
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! So one program can have several devices open at once, each of another kind: the real
//! libraries, a NIC in software, or either under [`Intercepted`], which can fail any call.
//! Nothing is linked: who implements [`Backend`] may load libraries at run time.
//!
//! A call of the library outside of [`with`] fails, as if nothing were installed. So does one
//! on a thread that the library has made itself; it makes one for its CPU service only, which
//! is not to be used.

mod calls;
mod intercept;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Once};

pub use calls::{Backend, Call};
pub use intercept::{Decide, Intercepted};

use crate::Error;
use crate::result::{CuResult, CudaError, DocaError};

/// Set by those who have NVIDIA's closed library: with it each object of the open one is
/// silently made by the closed one, which knows nothing of this table.
const SDK: &str = "DOCA_SDK_LIB_PATH";

thread_local! {
    /// Those in force on this thread, the innermost last.
    static IN_FORCE: RefCell<Vec<Arc<dyn Backend>>> = const { RefCell::new(Vec::new()) };
    /// What a backend panicked with, on its way around the library's frames.
    static PANIC: RefCell<Option<Box<dyn Any + Send>>> = const { RefCell::new(None) };
}

/// Calls `call` with `backend` in force on this thread. May be nested; the innermost counts.
///
/// If a method of `backend` panics, the library's call fails, and the panic goes on when `call`
/// has returned.
///
/// # Errors
///
/// [`Error::SdkPath`] where `DOCA_SDK_LIB_PATH` is set; `call` is not called then.
pub fn with<R>(backend: &Arc<dyn Backend>, call: impl FnOnce() -> R) -> Result<R, Error> {
    if std::env::var_os(SDK).is_some() {
        return Err(Error::SdkPath);
    }
    calls::install();
    let outer = PANIC.take();
    IN_FORCE.with_borrow_mut(|stack| stack.push(Arc::clone(backend)));
    let leave = Leave { outer };
    let result = call();
    let panic = PANIC.take();
    drop(leave);
    match panic {
        None => Ok(result),
        Some(panic) => resume_unwind(panic),
    }
}

/// Ends a scope, also when it is left by a panic.
struct Leave {
    /// A panic that was on its way when the scope began.
    outer: Option<Box<dyn Any + Send>>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let backend = IN_FORCE.with_borrow_mut(Vec::pop);
        PANIC.set(self.outer.take());
        // After the borrow: the last owner's drop may call anything.
        drop(backend);
    }
}

/// What a call returns that did not get through.
trait Failure {
    /// Nothing is in force on this thread.
    fn outside() -> Self;
    /// The call has failed, for no reason that its type can tell.
    fn failed() -> Self;
}

impl Failure for DocaError {
    fn outside() -> Self {
        Self::BAD_STATE
    }
    fn failed() -> Self {
        Self::DRIVER
    }
}

impl Failure for CuResult {
    fn outside() -> Self {
        Self::NOT_INITIALIZED
    }
    fn failed() -> Self {
        Self::UNKNOWN
    }
}

impl Failure for CudaError {
    fn outside() -> Self {
        Self::NOT_INITIALIZED
    }
    fn failed() -> Self {
        Self::UNKNOWN
    }
}

/// A text for the log.
impl Failure for *const c_char {
    fn outside() -> Self {
        c"outside of a scope of the function table".as_ptr()
    }
    fn failed() -> Self {
        c"no text".as_ptr()
    }
}

/// Runs `call` on what is in force. Never unwinds: the caller is C++.
fn dispatch<R: Failure>(call: impl FnOnce(&dyn Backend) -> R) -> R {
    let Ok(Some(backend)) = IN_FORCE.try_with(|stack| stack.borrow().last().cloned()) else {
        return R::outside();
    };
    match catch_unwind(AssertUnwindSafe(|| call(&*backend))) {
        Ok(result) => result,
        Err(panic) => {
            // The first one tells why; the library goes on to clean up.
            PANIC.with_borrow_mut(|slot| {
                slot.get_or_insert(panic);
            });
            R::failed()
        }
    }
}
