// SPDX-License-Identifier: MIT
//! Finding a library, and its functions.

use std::ffi::OsString;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

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

/// A library to look for.
pub(crate) struct Wanted {
    pub(crate) library: &'static str,
    pub(crate) package: &'static str,
    pub(crate) variable: &'static str,
    pub(crate) names: &'static [&'static str],
}

/// A loaded library. It stays loaded: its functions are used until the process ends.
pub(crate) struct Loaded {
    library: &'static str,
    file: String,
    handle: Library,
}

impl Wanted {
    /// The file that the variable names, and nothing else if it is set; else the first of the names
    /// that the system's loader finds.
    pub(crate) fn load(&self) -> Result<Loaded, LoadError> {
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
    ) -> Result<Loaded, LoadError> {
        let mut tried = Vec::new();
        for file in files {
            match open(file.as_ref()) {
                Ok(handle) => {
                    return Ok(Loaded {
                        library: self.library,
                        file: file.display().to_string(),
                        handle,
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

impl Loaded {
    /// A function that has to be there.
    ///
    /// # Safety
    ///
    /// `T` is the type of a pointer to the library's function `name`.
    pub(crate) unsafe fn function<T: Copy>(&self, name: &str) -> Result<T, LoadError> {
        // SAFETY: the caller's promise.
        let symbol: Result<Symbol<T>, _> = unsafe { self.handle.get(name.as_bytes()) };
        symbol
            .map(|symbol| *symbol)
            .map_err(|error| LoadError::Symbol {
                library: self.library,
                file: self.file.clone(),
                reason: std::error::Error::source(&error)
                    .map_or_else(|| error.to_string(), ToString::to_string),
            })
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

    /// Keeps the library loaded until the process ends, and gives the file's name.
    pub(crate) fn keep(self) -> String {
        std::mem::forget(self.handle);
        self.file
    }
}
