// SPDX-License-Identifier: MIT
//! A shared object such as a user may build: it exports one function, and has this crate inside,
//! even with what tests put under the library. `tests/library.rs` looks at what else it exports.

use gpunetio_sys::Library;

/// Major version of the library; 0 if it cannot be used.
#[unsafe(no_mangle)]
pub extern "C" fn users_entry() -> u32 {
    let library = Library::over_table().or_else(|_| Library::over_system());
    library.map_or(0, |library| library.version().version[0].into())
}
