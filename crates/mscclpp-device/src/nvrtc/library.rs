// SPDX-License-Identifier: MIT
//! The library: finding it, its functions, one program in it.
//!
//! cudarc's bindings were considered: they panic where the library is missing
//! and have no way to give headers or a path, so the dozen functions needed
//! stand here.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use super::NvrtcError;

/// The environment variable that may hold the library's path.
pub const LIBRARY_VARIABLE: &str = "MSCCLPP_NVRTC_SO";

const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

type Handle = *mut c_void;

/// A loaded NVRTC. May be shared by threads. The library stays loaded until the process ends.
pub struct Nvrtc {
    name: String,
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    num_archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int,
    log: Text,
    ptx: Text,
    cubin: Text,
}

/// A pair of functions that give a text: its size, and its bytes.
#[derive(Clone, Copy)]
struct Text {
    call: &'static str,
    size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
    get: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
}

/// # Safety
///
/// `T` is the type of the library's function `name`.
unsafe fn function<T: Copy>(library: &Library, of: &str, name: &str) -> Result<T, NvrtcError> {
    // SAFETY: the caller's promise.
    let symbol: Result<Symbol<T>, _> = unsafe { library.get(name.as_bytes()) };
    symbol
        .map(|symbol| *symbol)
        .map_err(|error| NvrtcError::Symbol {
            library: of.to_owned(),
            reason: error.to_string(),
        })
}

impl Nvrtc {
    /// Loads the library that `MSCCLPP_NVRTC_SO` names, else the one that the
    /// system's loader finds.
    ///
    /// # Errors
    ///
    /// [`NvrtcError::NotFound`], [`NvrtcError::Symbol`].
    pub fn load() -> Result<Self, NvrtcError> {
        if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
            return Self::load_from(path.as_ref());
        }
        let mut tried = Vec::new();
        for name in NAMES {
            match open(name.as_ref()) {
                Ok(library) => return Self::of(library, name),
                Err(reason) => tried.push(reason),
            }
        }
        Err(NvrtcError::NotFound { tried })
    }

    /// Loads the library at `path`, and the built-ins that lie beside it.
    ///
    /// # Errors
    ///
    /// [`NvrtcError::NotFound`], [`NvrtcError::Symbol`].
    pub fn load_from(path: &Path) -> Result<Self, NvrtcError> {
        open_builtins(path);
        let library = open(path).map_err(|reason| NvrtcError::NotFound {
            tried: vec![reason],
        })?;
        Self::of(library, &path.display().to_string())
    }

    fn of(library: Library, name: &str) -> Result<Self, NvrtcError> {
        let text = |call, size: &str, get: &str| {
            Ok(Text {
                call,
                // SAFETY: the types are those of nvrtc.h.
                size: unsafe { function(&library, name, size) }?,
                // SAFETY: as above.
                get: unsafe { function(&library, name, get) }?,
            })
        };
        let log = text(
            "nvrtcGetProgramLog",
            "nvrtcGetProgramLogSize",
            "nvrtcGetProgramLog",
        )?;
        let ptx = text("nvrtcGetPTX", "nvrtcGetPTXSize", "nvrtcGetPTX")?;
        let cubin = text("nvrtcGetCUBIN", "nvrtcGetCUBINSize", "nvrtcGetCUBIN")?;
        // SAFETY: the fields' types are those of the functions in nvrtc.h, the same in CUDA 11.2
        // to 13.
        let loaded = unsafe {
            Self {
                name: name.to_owned(),
                version: function(&library, name, "nvrtcVersion")?,
                num_archs: function(&library, name, "nvrtcGetNumSupportedArchs")?,
                archs: function(&library, name, "nvrtcGetSupportedArchs")?,
                error_string: function(&library, name, "nvrtcGetErrorString")?,
                create: function(&library, name, "nvrtcCreateProgram")?,
                destroy: function(&library, name, "nvrtcDestroyProgram")?,
                compile: function(&library, name, "nvrtcCompileProgram")?,
                log,
                ptx,
                cubin,
            }
        };
        // It stays loaded: the functions are its, it has state that outlives an unloading as a leak,
        // and loading it again costs most of a second.
        std::mem::forget(library);
        Ok(loaded)
    }

    /// The file that was loaded, by the name that found it.
    pub fn file(&self) -> &str {
        &self.name
    }

    /// Its version, as (major, minor) of CUDA.
    ///
    /// # Errors
    ///
    /// [`NvrtcError::Call`].
    pub fn version(&self) -> Result<(i32, i32), NvrtcError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two valid integers to write to.
        let code = unsafe { (self.version)(&mut major, &mut minor) };
        self.check("nvrtcVersion", code)?;
        Ok((major, minor))
    }

    /// The architectures that it can compile for, as numbers such as 90.
    ///
    /// # Errors
    ///
    /// [`NvrtcError::Call`].
    pub fn archs(&self) -> Result<Vec<u32>, NvrtcError> {
        let mut count = 0;
        // SAFETY: a valid integer to write to.
        let code = unsafe { (self.num_archs)(&mut count) };
        self.check("nvrtcGetNumSupportedArchs", code)?;
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: room for as many integers as it said that it will write.
        let code = unsafe { (self.archs)(archs.as_mut_ptr()) };
        self.check("nvrtcGetSupportedArchs", code)?;
        Ok(archs
            .into_iter()
            .filter_map(|arch| u32::try_from(arch).ok())
            .collect())
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), NvrtcError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: it returns a static text for any number.
        let message = unsafe { CStr::from_ptr((self.error_string)(code)) };
        Err(NvrtcError::Call {
            call,
            code,
            message: message.to_string_lossy().into_owned(),
        })
    }

    pub(super) fn create(
        &self,
        name: &CString,
        source: &CString,
        header_names: &[CString],
        headers: &[CString],
    ) -> Result<Run<'_>, NvrtcError> {
        let mut handle = std::ptr::null_mut();
        let (names, texts) = (pointers(header_names), pointers(headers));
        // SAFETY: zero-terminated texts, as many names as headers, all alive during the call.
        let code = unsafe {
            (self.create)(
                &mut handle,
                source.as_ptr(),
                name.as_ptr(),
                texts.len().min(names.len()) as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", code)?;
        Ok(Run {
            nvrtc: self,
            handle,
        })
    }
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Nvrtc").field(&self.name).finish()
    }
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn open(path: &Path) -> Result<Library, String> {
    // SAFETY: NVRTC's initialisers have no preconditions.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| {
        match std::error::Error::source(&error) {
            // The loader's own words.
            Some(reason) => reason.to_string(),
            None => format!("{}: {error}", path.display()),
        }
    })
}

/// NVRTC looks for its built-ins by name when it first compiles; an installation outside of the
/// loader's path is found only if they are loaded already.
fn open_builtins(path: &Path) {
    let Some(files) = path
        .parent()
        .and_then(|directory| directory.read_dir().ok())
    else {
        return;
    };
    for file in files.flatten() {
        if file
            .file_name()
            .to_string_lossy()
            .starts_with("libnvrtc-builtins.so")
            && let Ok(library) = open(&file.path())
        {
            // It stays loaded, as NVRTC itself would keep it.
            std::mem::forget(library);
        }
    }
}

/// A program inside of the library.
pub(super) struct Run<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl Run<'_> {
    pub(super) fn compile(&mut self, options: &[CString]) -> Result<(), NvrtcError> {
        let options = pointers(options);
        // SAFETY: a live program and as many zero-terminated texts as said.
        let code =
            unsafe { (self.nvrtc.compile)(self.handle, options.len() as c_int, options.as_ptr()) };
        self.nvrtc.check("nvrtcCompileProgram", code)
    }

    pub(super) fn log(&self) -> Result<String, NvrtcError> {
        let log = self.text(self.nvrtc.log)?;
        let log = String::from_utf8_lossy(&log);
        Ok(log.trim_end_matches('\0').trim_end().to_owned())
    }

    pub(super) fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        self.text(self.nvrtc.cubin)
    }

    pub(super) fn ptx(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut ptx = self.text(self.nvrtc.ptx)?;
        if ptx.last() == Some(&0) {
            ptx.pop();
        }
        Ok(ptx)
    }

    fn text(&self, text: Text) -> Result<Vec<u8>, NvrtcError> {
        let mut size = 0;
        // SAFETY: a live program and a valid integer.
        let code = unsafe { (text.size)(self.handle, &mut size) };
        self.nvrtc.check(text.call, code)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: room for the bytes that it said that it will write.
        let code = unsafe { (text.get)(self.handle, bytes.as_mut_ptr().cast()) };
        self.nvrtc.check(text.call, code)?;
        Ok(bytes)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // SAFETY: a live program, not used again.
        let code = unsafe { (self.nvrtc.destroy)(&mut self.handle) };
        if let Err(error) = self.nvrtc.check("nvrtcDestroyProgram", code) {
            tracing::warn!(%error, "an NVRTC program was not destroyed");
        }
    }
}
