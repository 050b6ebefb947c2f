// SPDX-License-Identifier: MIT
//! Compiling and loading kernels, the host memory that they work on, and the
//! NIC that executes what they post.

pub(crate) mod end;
mod fifo;
mod kernels;
mod memory;
pub(crate) mod nic;
pub(crate) mod script;
mod seeds;

use std::time::Duration;

pub(crate) use end::SCRATCH;
pub(crate) use fifo::TestFifo;
pub(crate) use kernels::{Build, Kernels, sanitizer};
pub(crate) use memory::{Cells, TestChannel, TestSemaphore, keep};
pub(crate) use nic::{Rig, Setup};
pub(crate) use script::{Op, Runner, all_ok};
pub(crate) use seeds::{seeds, weak, weak_observed};

/// Longer than anything here takes, also on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// How long a check waits for what takes far less: longer in a sanitized build, which is slow.
pub(crate) fn within(seconds: u64) -> Duration {
    let factor = if sanitizer().is_some() { 20 } else { 1 };
    Duration::from_secs(factor * seconds)
}

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
