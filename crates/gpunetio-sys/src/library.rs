// SPDX-License-Identifier: MIT
//! Which library this is, and what it says of itself.

use std::fmt;
use std::sync::Arc;

use crate::Error;
use crate::ffi;
use crate::seam::{self, Backend};

/// What was compiled, and what it says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LibraryVersion {
    /// Major, minor and patch, as the compiled library tells them.
    pub version: [u8; 3],
    /// The commit that `third_party.lock` pins.
    pub pinned: &'static str,
    /// The text of its licence, which who distributes the program has to distribute too.
    pub license: &'static str,
    /// Why what was compiled is not that commit, unchanged; `None` if it is.
    pub warning: Option<&'static str>,
}

impl fmt::Display for LibraryVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.version;
        write!(f, "GPUNetIO {major}.{minor}.{patch}")?;
        match self.warning {
            None => write!(f, ", commit {}", self.pinned),
            Some(warning) => write!(f, ", not the pinned {}: {warning}", self.pinned),
        }
    }
}

/// The version that this crate was compiled against, in the library's own form.
const COMPILED: &str = env!("GPUNETIO_COMPILED_VERSION");

/// What these questions stand on.
struct Nothing;

impl Backend for Nothing {}

/// Asks the library for its version, and whether it works with the structures that this crate
/// was compiled with, on host and GPU. No device is needed.
///
/// # Errors
///
/// - [`Error::SdkPath`], as [`seam::with`].
/// - [`Error::Call`] if it tells no version.
/// - [`Error::Incompatible`] if it says that it does not work with them.
pub fn library_version() -> Result<LibraryVersion, Error> {
    let compiled: u32 = COMPILED
        .parse()
        .map_err(|_| Error::Incompatible { compiled: 0 })?;
    let mut version = 0;
    seam::with(&(Arc::new(Nothing) as Arc<dyn Backend>), || {
        // SAFETY: the pointer is valid for the call.
        let told = unsafe { ffi::doca_gpu_verbs_get_library_version(&raw mut version) };
        told.ok().map_err(|code| Error::Call {
            call: "doca_gpu_verbs_get_library_version",
            code,
        })?;
        // SAFETY: a number is all that it takes.
        let device = unsafe { ffi::doca_gpu_verbs_check_device_code_compatibility(compiled) };
        // SAFETY: as before.
        let host = unsafe { ffi::doca_gpu_verbs_check_host_code_compatibility(compiled) };
        device
            .ok()
            .and(host.ok())
            .map_err(|_| Error::Incompatible { compiled })
    })??;
    let [_, major, minor, patch] = version.to_be_bytes();
    Ok(LibraryVersion {
        version: [major, minor, patch],
        pinned: env!("GPUNETIO_PINNED_COMMIT"),
        license: include_str!(env!("GPUNETIO_LICENSE")),
        warning: Some(env!("GPUNETIO_UNPINNED")).filter(|warning| !warning.is_empty()),
    })
}
