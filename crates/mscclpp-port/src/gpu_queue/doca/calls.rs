// SPDX-License-Identifier: MIT
//! Calls of the library, and owners of what it makes.

use std::ffi::CString;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use gpunetio_sys::Library;
use gpunetio_sys::result::DocaError;
#[cfg(feature = "gpunetio-soft")]
use gpunetio_sys::seam::{self, Backend};
use gpunetio_sys::verbs::IbvPd;

use crate::error::Result as PortResult;

/// What the library stands on for one queue: an opened device, and the memory of who posts.
pub(super) trait Ground: Send + Sync {
    /// The protection domain that the queue is of. Lives as long as this.
    fn domain(&self) -> NonNull<IbvPd>;

    /// Where the GPU is on PCIe.
    fn gpu(&self) -> CString;

    /// Copies what lies in memory that the library allocated for the device.
    fn read(&self, address: u64, to: &mut [u8]) -> PortResult<()>;

    /// Makes a call of the library, on the GPU that is meant.
    fn call(&self, call: &mut dyn FnMut() -> DocaError) -> DocaError;

    /// Why a call failed since this was last asked, in the words of what it stands on.
    fn reason(&self) -> Option<String>;

    /// What the library's own calls reach, if that is no library of the system.
    #[cfg(feature = "gpunetio-soft")]
    fn backend(self: Arc<Self>) -> Option<Arc<dyn Backend>> {
        None
    }
}

/// A call of the library that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: DOCA error {code}{}", Because(reason.as_deref()))]
pub(super) struct Failed {
    pub(super) call: &'static str,
    pub(super) code: i32,
    pub(super) reason: Option<String>,
}

struct Because<'a>(Option<&'a str>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |reason| write!(f, " ({reason})"))
    }
}

/// The way of one queue's calls into the library.
pub(super) struct Calls {
    pub(super) library: &'static Library,
    ground: Arc<dyn Ground>,
    #[cfg(feature = "gpunetio-soft")]
    backend: Option<Arc<dyn Backend>>,
}

impl Calls {
    pub(super) fn new(library: &'static Library, ground: Arc<dyn Ground>) -> Arc<Self> {
        Arc::new(Self {
            library,
            #[cfg(feature = "gpunetio-soft")]
            backend: Arc::clone(&ground).backend(),
            ground,
        })
    }

    pub(super) fn ground(&self) -> &dyn Ground {
        &*self.ground
    }

    /// One call, by its name.
    pub(super) fn run(
        &self,
        name: &'static str,
        mut call: impl FnMut() -> DocaError,
    ) -> Result<(), Failed> {
        let result = self.ground.call(&mut || {
            #[cfg(feature = "gpunetio-soft")]
            if let Some(backend) = &self.backend {
                return seam::with(backend, &mut call);
            }
            call()
        });
        // Asked in any case, so that the next failure does not get the reason of this one.
        let reason = self.ground.reason();
        result.ok().map_err(|error| Failed {
            call: name,
            code: error.0,
            reason,
        })
    }
}

/// Calls a function of the library.
macro_rules! call {
    ($calls:expr, $function:ident $(, $argument:expr)* $(,)?) => {
        // SAFETY: pointers are places for results on the stack, text that lives as long as the
        // program, or objects whose owners are borrowed for the call; who calls on one object from
        // several threads holds its lock.
        $calls.run(stringify!($function), || unsafe {
            ($calls.library.functions.$function)($($argument),*)
        })
    };
}

/// Makes an object of the library, whose place is its function's last argument.
macro_rules! object {
    ($calls:expr, $create:ident => $destroy:ident $(, $argument:expr)* $(,)?) => {{
        let mut raw = std::ptr::null_mut();
        call!($calls, $create, $($argument,)* &raw mut raw)
            .map(|()| Object::new(raw, $calls, (stringify!($destroy), $calls.library.functions.$destroy)))
    }};
}

pub(super) use {call, object};

/// A function that lets go of an object, and its name.
type Destroy<T> = (&'static str, unsafe extern "C" fn(*mut T) -> DocaError);

/// An object of the library, which stands on nothing that is let go of before it.
pub(super) struct Object<T> {
    raw: *mut T,
    calls: Arc<Calls>,
    destroy: Destroy<T>,
}

// SAFETY: the library ties no object to a thread, and whoever calls with one does so from one thread
// at a time.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as for Send; the owner itself is not changed by anybody.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    pub(super) fn new(raw: *mut T, calls: &Arc<Calls>, destroy: Destroy<T>) -> Self {
        let calls = Arc::clone(calls);
        Self {
            raw,
            calls,
            destroy,
        }
    }

    pub(super) fn raw(&self) -> *mut T {
        self.raw
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        let (name, destroy) = self.destroy;
        // SAFETY: it is alive, nothing stands on it any more, and this is its only owner.
        let result = self.calls.run(name, || unsafe { destroy(self.raw) });
        if let Err(error) = result {
            tracing::warn!(%error, "an object of GPUNetIO's cannot be let go of");
        }
    }
}
