// SPDX-License-Identifier: MIT
//! Compiling and loading kernels, and the host memory that they work on.

mod fifo;
mod kernels;
mod memory;

use std::time::Duration;

pub(crate) use fifo::TestFifo;
pub(crate) use kernels::{Build, Kernels};
pub(crate) use memory::{Cells, TestChannel, TestSemaphore};

/// Longer than anything here takes, also on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// What a check returns: what is wrong, in words.
pub(crate) type Outcome = Result<(), String>;

/// `Err` unless both are equal.
pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(what: &str, left: T, right: T) -> Outcome {
    if left == right {
        Ok(())
    } else {
        Err(format!("{what}: {left:?}, not {right:?}"))
    }
}

/// `Err` with these words unless it holds.
pub(crate) fn ensure(holds: bool, words: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(words()) }
}
