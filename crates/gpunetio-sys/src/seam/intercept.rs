// SPDX-License-Identifier: MIT
//! A backend that watches another one, and can fail its calls.

use std::sync::Arc;

use super::{Backend, Call};

/// Told of each call before it is made; `true` fails it instead.
pub type Decide = dyn Fn(Call) -> bool + Send + Sync;

/// Another backend, under the eyes of a function that can count its calls, or fail them as a
/// driver would.
///
/// A failed call is not passed on and writes nothing. Fault injection is its purpose: a call
/// that releases something and fails keeps it.
pub struct Intercepted {
    inner: Arc<dyn Backend>,
    decide: Box<Decide>,
}

impl Intercepted {
    /// Watches `inner`. `decide` is called on any thread that calls the library.
    pub fn new(
        inner: Arc<dyn Backend>,
        decide: impl Fn(Call) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner,
            decide: Box::new(decide),
        }
    }

    pub(super) fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    pub(super) fn fails(&self, call: Call) -> bool {
        (self.decide)(call)
    }
}

impl std::fmt::Debug for Intercepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intercepted").finish_non_exhaustive()
    }
}
