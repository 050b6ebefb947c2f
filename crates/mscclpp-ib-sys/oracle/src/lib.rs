// SPDX-License-Identifier: MIT
//! What the system's headers say, by bindgen, and what rdma-sys says, of all that `mscclpp-ib-sys`
//! declares.

/// What bindgen makes of the headers.
#[allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    reason = "bindgen's style"
)]
mod c {
    include!(concat!(env!("OUT_DIR"), "/headers.rs"));
}
use rdma_sys as r;

/// A structure as the compiler has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Its name in `mscclpp-ib-sys`.
    pub name: &'static str,
    /// In bytes.
    pub size: usize,
    /// In bytes.
    pub align: usize,
    /// Name, offset and size of each field in bytes.
    pub fields: Vec<(&'static str, usize, usize)>,
}

/// Sizes of a function's arguments and of its result, in bytes.
pub type Sizes = (Vec<usize>, usize);

fn field_size<T, F>(_: impl Fn(&T) -> *const F) -> usize {
    size_of::<F>()
}

trait Signature {
    fn sizes(self) -> Sizes;
}

macro_rules! signatures {
    ($(($($argument:ident)*))*) => {$(
        impl<$($argument,)* Result> Signature for unsafe extern "C" fn($($argument),*) -> Result {
            fn sizes(self) -> Sizes {
                (vec![$(size_of::<$argument>()),*], size_of::<Result>())
            }
        }
    )*};
}

signatures! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) }

#[allow(missing_docs, unused_unsafe, reason = "generated")]
mod measures {
    use super::*;

    include!(concat!(env!("OUT_DIR"), "/measures.rs"));
}
pub use measures::*;
