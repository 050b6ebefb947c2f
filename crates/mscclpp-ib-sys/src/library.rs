// SPDX-License-Identifier: MIT
//! Finding a library, and its functions.

use std::ffi::{OsString, c_void};
use std::path::Path;
use std::ptr::NonNull;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Why a library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It is not there.
    #[error(
        "{library} cannot be loaded ({}); install it (Debian, Ubuntu: {package}){}",
        tried.join("; "), hint(variable)
    )]
    NotFound {
        /// Its name.
        library: &'static str,
        /// The package that has it.
        package: &'static str,
        /// The environment variable that may hold its path; empty if there is none.
        variable: &'static str,
        /// Each file tried, with the loader's reason.
        tried: Vec<String>,
    },
    /// It is too old, or another.
    #[error("{file} is no {library} that can be used: {reason}")]
    Symbol {
        /// Name of the library.
        library: &'static str,
        /// The file that was loaded.
        file: String,
        /// The loader's reason, with the function.
        reason: String,
    },
}

fn hint(variable: &str) -> String {
    match variable {
        "" => String::new(),
        variable => format!(" or set {variable} to its path"),
    }
}

/// What a function returns that this library is too old for: null, with EOPNOTSUPP in errno.
pub(crate) fn no_such_function<T>() -> *mut T {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    std::ptr::null_mut()
}

/// A library to look for.
pub(crate) struct Wanted {
    pub(crate) library: &'static str,
    pub(crate) package: &'static str,
    pub(crate) variable: &'static str,
    pub(crate) names: &'static [&'static str],
}

/// A library whose functions can be taken.
pub(crate) struct Loaded<'a> {
    library: &'static str,
    file: String,
    symbols: Symbols<'a>,
}

/// Where a library's functions are found.
enum Symbols<'a> {
    Loaded(Library),
    Given(&'a dyn Fn(&str) -> Option<NonNull<c_void>>),
}

impl Wanted {
    /// The file that the variable names, and nothing else if it is set; else the first of the names
    /// that the system's loader finds.
    pub(crate) fn load(&self) -> Result<Loaded<'static>, LoadError> {
        let named = match self.variable {
            "" => None,
            variable => std::env::var_os(variable).filter(|path| !path.is_empty()),
        };
        match named {
            Some(path) => self.load_first([path]),
            None => self.load_first(self.names.iter().map(OsString::from)),
        }
    }

    pub(crate) fn load_first(
        &self,
        files: impl IntoIterator<Item = OsString>,
    ) -> Result<Loaded<'static>, LoadError> {
        let mut tried = Vec::new();
        for file in files {
            match open(file.as_ref()) {
                Ok(handle) => {
                    return Ok(Loaded {
                        library: self.library,
                        file: file.display().to_string(),
                        symbols: Symbols::Loaded(handle),
                    });
                }
                Err(reason) => tried.push(reason),
            }
        }
        Err(LoadError::NotFound {
            library: self.library,
            package: self.package,
            variable: self.variable,
            tried,
        })
    }
}

fn open(path: &Path) -> Result<Library, String> {
    // SAFETY: the initialisers of libibverbs and of its providers have no preconditions.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        match std::error::Error::source(&error) {
            // The loader's own words.
            Some(reason) => reason.to_string(),
            None => format!("{}: {error}", path.display()),
        }
    })
}

fn address(library: &Library, name: &str) -> Result<NonNull<c_void>, String> {
    // SAFETY: only its address is used.
    let symbol = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
    match symbol {
        Ok(symbol) => NonNull::new(*symbol).ok_or_else(|| format!("its {name} is null")),
        // The loader's own words, if there are any.
        Err(error) => Err(std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), ToString::to_string)),
    }
}

impl<'a> Loaded<'a> {
    /// A library of functions that are there already.
    pub(crate) fn given(
        library: &'static str,
        name: &str,
        symbols: &'a dyn Fn(&str) -> Option<NonNull<c_void>>,
    ) -> Self {
        Self {
            library,
            file: name.to_owned(),
            symbols: Symbols::Given(symbols),
        }
    }

    /// A function that has to be there.
    ///
    /// # Safety
    ///
    /// `T` is the type of a pointer to the library's function `name`.
    pub(crate) unsafe fn function<T: Copy>(&self, name: &str) -> Result<T, LoadError> {
        const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
        let found = match &self.symbols {
            Symbols::Given(symbols) => symbols(name).ok_or_else(|| format!("it has no {name}")),
            Symbols::Loaded(library) => address(library, name),
        };
        match found {
            // SAFETY: the caller's promise; it is of the same size.
            Ok(symbol) => Ok(unsafe { std::mem::transmute_copy(&symbol) }),
            Err(reason) => Err(LoadError::Symbol {
                library: self.library,
                file: self.file.clone(),
                reason,
            }),
        }
    }

    /// A function that older versions lack.
    ///
    /// # Safety
    ///
    /// `T` is the type of a pointer to the library's function `name`.
    pub(crate) unsafe fn newer_function<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller's promise.
        unsafe { self.function(name) }.ok()
    }

    /// Keeps the library loaded until the process ends, as its functions are used until then, and
    /// gives the file's name.
    pub(crate) fn keep(self) -> String {
        std::mem::forget(self.symbols);
        self.file
    }
}
