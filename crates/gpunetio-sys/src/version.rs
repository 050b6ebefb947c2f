// SPDX-License-Identifier: MIT
//! What differs between 3.0 and 4.0. In C++ it is what `layout.cpp` has under a version.

use std::ffi::c_void;

use crate::Error;
use crate::ffi::{DocaCq, DocaExportedQp, DocaGpu, DocaQp};
use crate::library::{Library, Loaded};
use crate::result::DocaError;

/// `doca_gpu_verbs_export_qp`, as each version has it.
#[derive(Debug)]
pub(crate) enum Versioned {
    Three(
        unsafe extern "C" fn(
            gpu: *mut DocaGpu,
            qp: *mut DocaQp,
            handler: i32,
            queue: *mut c_void,
            cq: *mut DocaCq,
            record_mode: i32,
            exported: *mut *mut DocaExportedQp,
        ) -> DocaError,
    ),
    Four(
        unsafe extern "C" fn(
            gpu: *mut DocaGpu,
            qp: *mut DocaQp,
            handler: i32,
            queue: *mut c_void,
            cq: *mut DocaCq,
            record_mode: i32,
            cq_type: u8,
            data_direct: bool,
            exported: *mut *mut DocaExportedQp,
        ) -> DocaError,
    ),
}

impl Versioned {
    pub(crate) fn of(library: &Loaded<'_>, major: u8) -> Result<Self, Error> {
        const EXPORT: &str = "doca_gpu_verbs_export_qp";
        // SAFETY: such is its signature in that version; `layout.cpp` holds it against the headers.
        unsafe {
            Ok(match major {
                3 => Self::Three(library.function(EXPORT)?),
                _ => Self::Four(library.function(EXPORT)?),
            })
        }
    }
}

impl Library {
    /// `doca_gpu_verbs_export_qp`, of a queue whose completions are 64 bytes each in the GPU's
    /// memory, one an entry, and without Data Direct.
    ///
    /// # Safety
    ///
    /// As the library's function: the objects are alive, and `queue` is the GPU's memory that was
    /// registered for the send queue.
    #[expect(clippy::too_many_arguments, reason = "the library's")]
    pub unsafe fn export_qp(
        &self,
        gpu: *mut DocaGpu,
        qp: *mut DocaQp,
        handler: i32,
        queue: *mut c_void,
        cq: *mut DocaCq,
        record_mode: i32,
        exported: *mut *mut DocaExportedQp,
    ) -> DocaError {
        match self.versioned {
            // SAFETY: passed on.
            Versioned::Three(export) => unsafe {
                export(gpu, qp, handler, queue, cq, record_mode, exported)
            },
            // SAFETY: passed on. The type 0 is `DOCA_GPUNETIO_VERBS_CQ_64B`.
            Versioned::Four(export) => unsafe {
                export(gpu, qp, handler, queue, cq, record_mode, 0, false, exported)
            },
        }
    }
}
