// SPDX-License-Identifier: MIT
//! Loading the library, and what it says of itself.

use std::ffi::OsStr;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};

use crate::Error;
use crate::ffi::Functions;
use crate::result::DocaError;
use crate::version::Versioned;

/// Names the shared object.
pub(crate) const LIBRARY: &str = "GPUNETIO_LIBRARY";
/// `1` lets it be another version than the pinned one, of those that are understood.
pub(crate) const ALLOW_UNPINNED: &str = "GPUNETIO_ALLOW_UNPINNED";
/// Set by those who have NVIDIA's closed library: with it each object of the open one is
/// silently made by the closed one.
const SDK: &str = "DOCA_SDK_LIB_PATH";

/// The version of the commit that `third_party.lock` pins.
const PINNED: [u8; 3] = [4, 0, 1];

/// What the library's calls to verbs, mlx5 and CUDA reach: one of the two for a whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// What the shared object was linked with: libibverbs, libmlx5 and CUDA of the system.
    System,
    /// A table of functions, for tests (feature `seam`).
    Table,
}

/// Which library it is, as it says itself. Which commit it was made from, and whether of unchanged
/// files, it does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LibraryVersion {
    /// Major, minor and patch.
    pub version: [u8; 3],
    /// The file that was named.
    pub file: String,
    /// That it is not the pinned version, if so.
    pub warning: Option<&'static str>,
}

impl fmt::Display for LibraryVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPUNetIO {} of {}", dotted(self.version), self.file)?;
        match self.warning {
            None => Ok(()),
            Some(warning) => write!(f, ", {warning}"),
        }
    }
}

pub(crate) fn dotted([major, minor, patch]: [u8; 3]) -> String {
    format!("{major}.{minor}.{patch}")
}

/// The library, loaded. It stays so until the process ends.
#[derive(Debug)]
pub struct Library {
    version: LibraryVersion,
    /// Its functions.
    pub functions: Functions,
    pub(crate) versioned: Versioned,
}

/// A shared object whose functions can be taken.
pub(crate) struct Loaded<'a> {
    file: &'a str,
    object: &'a Object,
}

impl Loaded<'_> {
    /// # Safety
    ///
    /// `T` is a pointer to a function, and the one of that name is such a one.
    pub(crate) unsafe fn function<T: Copy>(&self, name: &str) -> Result<T, Error> {
        // SAFETY: the caller's promise.
        let symbol = unsafe { self.object.get::<T>(name.as_bytes()) };
        symbol.map(|symbol| *symbol).map_err(|error| Error::Symbol {
            file: self.file.to_owned(),
            reason: reason(&error),
        })
    }
}

/// The loader's own words.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[derive(Default)]
struct State {
    under: Option<Under>,
    library: Option<&'static Library>,
}

static STATE: Mutex<State> = Mutex::new(State {
    under: None,
    library: None,
});

impl Library {
    /// The library that `GPUNETIO_LIBRARY` names, loaded at the first call, over the system's RDMA
    /// and CUDA.
    ///
    /// # Errors
    ///
    /// All of [`Error`] but `Call`. After an error the next call tries again.
    pub fn over_system() -> Result<&'static Self, Error> {
        Self::over(Under::System)
    }

    /// The same, over the table of [`seam`](crate::seam).
    ///
    /// # Errors
    ///
    /// As [`over_system`](Self::over_system).
    #[cfg(feature = "seam")]
    pub fn over_table() -> Result<&'static Self, Error> {
        Self::over(Under::Table)
    }

    /// Which one it is.
    #[must_use]
    pub fn version(&self) -> &LibraryVersion {
        &self.version
    }

    fn over(under: Under) -> Result<&'static Self, Error> {
        if std::env::var_os(SDK).is_some() {
            return Err(Error::SdkPath);
        }
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = state.under.filter(|loaded| *loaded != under) {
            return Err(Error::Elsewhere { under, loaded });
        }
        if let Some(library) = state.library {
            return Ok(library);
        }
        let named = std::env::var_os(LIBRARY).filter(|name| !name.is_empty());
        let named = named.ok_or(Error::NotNamed)?;
        // What is under it comes first, and never goes.
        state.under = Some(under);
        #[cfg(feature = "seam")]
        if under == Under::Table {
            crate::seam::load().map_err(|error| Error::NotLoaded {
                file: named.display().to_string(),
                reason: format!("what goes under it: {error}"),
            })?;
        }
        let library = Self::load(&named)?;
        #[cfg(feature = "seam")]
        if under == Under::Table {
            crate::seam::reached(&library)?;
        }
        let library: &Self = Box::leak(Box::new(library));
        state.library = Some(library);
        Ok(library)
    }

    fn load(named: &OsStr) -> Result<Self, Error> {
        let file = named.display().to_string();
        // SAFETY: the library's initialisers have no preconditions.
        let object = unsafe { Object::open(Some(named), RTLD_NOW | RTLD_LOCAL) };
        let object = object.map_err(|error| Error::NotLoaded {
            file: file.clone(),
            reason: reason(&error),
        })?;
        let loaded = Loaded {
            file: &file,
            object: &object,
        };
        let version = version(&loaded)?;
        let allowed = std::env::var_os(ALLOW_UNPINNED).is_some_and(|value| value == "1");
        let warning = judge(&file, version, allowed)?;
        check_code(&loaded, [version[0], 0, 0])?;
        let functions = Functions::of(&loaded)?;
        let versioned = Versioned::of(&loaded, version[0])?;
        #[cfg(feature = "seam")]
        crate::seam::NotLinked::refuse(&object, &file)?;
        // Its functions are called as long as the process lives.
        std::mem::forget(object);
        Ok(Self {
            version: LibraryVersion {
                version,
                file,
                warning,
            },
            functions,
            versioned,
        })
    }
}

fn version(library: &Loaded<'_>) -> Result<[u8; 3], Error> {
    const CALL: &str = "doca_gpu_verbs_get_library_version";
    // SAFETY: such is its signature, in each version that has it.
    let ask = unsafe { library.function::<unsafe extern "C" fn(*mut u32) -> DocaError>(CALL) }?;
    let mut version = 0;
    // SAFETY: a place for a number.
    let told = unsafe { ask(&raw mut version) };
    told.ok().map_err(|code| Error::Call { call: CALL, code })?;
    let [_, major, minor, patch] = version.to_be_bytes();
    Ok([major, minor, patch])
}

/// Whether a version can be used, and with which warning.
fn judge(file: &str, version: [u8; 3], allowed: bool) -> Result<Option<&'static str>, Error> {
    let file = file.to_owned();
    match version {
        PINNED => Ok(None),
        [3, 0, 0] | [4, 0, _] if allowed => Ok(Some("not the pinned 4.0.1")),
        [3, 0, 0] | [4, 0, _] => Err(Error::Unpinned { file, version }),
        _ => Err(Error::Version { file, version }),
    }
}

/// Whether it works with structures of a version, on host and GPU: of the one whose headers this
/// crate's declarations were held against.
fn check_code(library: &Loaded<'_>, version: [u8; 3]) -> Result<(), Error> {
    let [major, minor, patch] = version;
    let number = u32::from_be_bytes([0, major, minor, patch]);
    for call in [
        "doca_gpu_verbs_check_device_code_compatibility",
        "doca_gpu_verbs_check_host_code_compatibility",
    ] {
        // SAFETY: such is its signature, in each version that has it.
        let check = unsafe { library.function::<unsafe extern "C" fn(u32) -> DocaError>(call) }?;
        // SAFETY: a number is all that it takes.
        unsafe { check(number) }
            .ok()
            .map_err(|_| Error::Incompatible {
                file: library.file.to_owned(),
                version,
            })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_version_is_that_of_the_lock_file() {
        let lock = include_str!("../third_party.lock");
        let line = format!("version = \"{}\"", dotted(PINNED));
        assert!(lock.lines().any(|found| found == line), "{line}");
    }

    #[test]
    fn one_version_is_pinned_few_are_understood_and_all_others_refused() {
        let file = || "file".to_owned();
        assert_eq!(judge("file", PINNED, false), Ok(None));
        assert_eq!(judge("file", PINNED, true), Ok(None));
        for version in [[3, 0, 0], [4, 0, 0], [4, 0, 2]] {
            assert!(judge("file", version, true).unwrap().is_some());
            let error = judge("file", version, false).unwrap_err();
            assert_eq!(
                error,
                Error::Unpinned {
                    file: file(),
                    version
                }
            );
            assert!(
                error.to_string().contains("GPUNETIO_ALLOW_UNPINNED=1"),
                "{error}"
            );
        }
        for version in [[2, 0, 0], [3, 0, 1], [3, 1, 0], [4, 1, 0], [5, 0, 0]] {
            let error = judge("file", version, true).unwrap_err();
            assert_eq!(
                error,
                Error::Version {
                    file: file(),
                    version
                }
            );
        }
    }
}
