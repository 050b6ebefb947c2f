// SPDX-License-Identifier: MIT
//! Which devices there are.

use std::ffi::CStr;
use std::ptr::NonNull;

use mscclpp_ib_sys as sys;
use mscclpp_ib_sys::Verbs;

use super::error::{Errno, VerbsError};

/// The list of devices, until it is dropped. Devices that are open stay.
pub(super) struct List {
    verbs: &'static Verbs,
    first: NonNull<*mut sys::ibv_device>,
    len: usize,
}

impl List {
    /// `None` where the kernel has no InfiniBand.
    pub(super) fn new(verbs: &'static Verbs) -> Result<Option<Self>, VerbsError> {
        let mut len = 0;
        // SAFETY: a valid integer to write to.
        let first = unsafe { verbs.ibv_get_device_list(&mut len) };
        match NonNull::new(first) {
            Some(first) => Ok(Some(Self {
                verbs,
                first,
                len: usize::try_from(len).unwrap_or(0),
            })),
            None => match Errno::last() {
                // The kernel has no InfiniBand at all.
                Errno(libc::ENOSYS | libc::ENODEV) => Ok(None),
                errno => Err(VerbsError::NoDevice {
                    reason: format!("libibverbs cannot list them: {errno}"),
                }),
            },
        }
    }

    /// Their names.
    pub(super) fn named(&self) -> Vec<(String, *mut sys::ibv_device)> {
        (0..self.len)
            // SAFETY: the library has made this many entries.
            .map(|index| unsafe { *self.first.as_ptr().add(index) })
            // SAFETY: a device of the list; its name is a text inside of it.
            .map(|device| unsafe {
                let name = CStr::from_ptr(self.verbs.ibv_get_device_name(device));
                (name.to_string_lossy().into_owned(), device)
            })
            .collect()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from `ibv_get_device_list`, freed once.
        unsafe { self.verbs.ibv_free_device_list(self.first.as_ptr()) };
    }
}
