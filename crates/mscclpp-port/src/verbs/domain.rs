// SPDX-License-Identifier: MIT
//! Protection domains: which queue pairs may use which memory.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use mscclpp_ib_sys as sys;

use super::device::Device;
use super::error::{Errno, VerbsError};

/// Memory regions and queue pairs that belong together.
pub struct ProtectionDomain {
    pub(super) raw: NonNull<sys::ibv_pd>,
    device: Arc<Device>,
}

// SAFETY: libibverbs only reads it, but when it is given back.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Call`].
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: an open context.
        let raw = unsafe { device.verbs.ibv_alloc_pd(device.context.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(device.failed("make a protection domain", Errno::last()));
        };
        let device = Arc::clone(device);
        Ok(Arc::new(Self { raw, device }))
    }

    /// As libibverbs has it.
    #[cfg(feature = "gpunetio")]
    pub(crate) fn raw(&self) -> NonNull<sys::ibv_pd> {
        self.raw
    }

    /// The device that it was made on.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: live, and what was made in it is gone: it holds this.
        let code = unsafe { self.device.verbs.ibv_dealloc_pd(self.raw.as_ptr()) };
        if code != 0 {
            self.device.kept("a protection domain", code);
        }
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain")
            .field(&self.device.name())
            .finish()
    }
}
