// SPDX-License-Identifier: MIT
//! For tests: a function table between the library and what it stands on.
//!
//! A library that was linked with libibverbs, libmlx5 and CUDA as shared libraries leaves the names
//! of their functions open. With the feature `seam` a program has a small shared object inside that
//! has them (`seam.c`). [`Library::over_table`](crate::Library::over_table) loads it, for the whole
//! process to see, before it loads the library, whose calls so lead there: through one table, to the
//! [`Backend`] that is in force on the calling thread. [`with`] puts one in force while the library
//! is called:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use gpunetio_sys::{Error, Library, seam::{self, Backend}};
//! # fn open(backend: &Arc<dyn Backend>) -> Result<(), Error> {
//! let library = Library::over_table()?;
//! let mut gpu = std::ptr::null_mut();
//! let opened = seam::with(backend, || {
//!     // SAFETY: a string, and a place for the result.
//!     unsafe { (library.functions.doca_gpu_create)(c"0000:01:00.0".as_ptr(), &raw mut gpu) }
//! });
//! # Ok(())
//! # }
//! ```
//!
//! So one process can have several devices open at once, each over a NIC in software, or over
//! [`Intercepted`], which can fail any call. What loads libibverbs or CUDA itself and asks for
//! functions by handle (as this project's crates do) is not touched; the real libmlx5, loaded after
//! the table, would be, so a process with the table is none for RDMA devices.
//!
//! A call of the library outside of [`with`] fails. So does one on a thread that the library has
//! made itself; it makes one for its CPU service only, which is not to be used.

mod calls;
mod intercept;
mod objects;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

pub use calls::{Backend, Call};
pub use intercept::{Decide, Intercepted};
pub(crate) use objects::{NotLinked, load, reached};

use crate::result::{CuResult, CudaError, DocaError};

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
pub fn with<R>(backend: &Arc<dyn Backend>, call: impl FnOnce() -> R) -> R {
    let outer = PANIC.take();
    IN_FORCE.with_borrow_mut(|stack| stack.push(Arc::clone(backend)));
    let leave = Leave { outer };
    let result = call();
    let panic = PANIC.take();
    drop(leave);
    match panic {
        None => result,
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
