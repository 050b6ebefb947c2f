// SPDX-License-Identifier: MIT
//! What only a kernel's RDMA stack can show, on Soft-RoCE: `cargo xtask test-rxe` boots a guest with a
//! device `rxe0` and runs this there. Elsewhere its tests are skipped.
#![cfg(feature = "ib")]

mod pair;
mod verbs_data;
mod verbs_failures;
mod verbs_objects;

/// Skips a test outside of the guest.
macro_rules! in_guest {
    ($name:ident) => {
        if std::env::var_os("RXE_VM_GUEST").is_none() {
            println!("SKIP {}: not in the Soft-RoCE guest", stringify!($name));
            return;
        }
    };
}
pub(crate) use in_guest;
