// SPDX-License-Identifier: MIT
//! When nobody reads any more what a program prints (`cargo xtask report … | head`), it ends without a
//! word, as other Unix programs do. For `xtask` and, by its path, for the suite's programs.
//!
//! SIGPIPE stays ignored, as Rust has it: its default would end a rank whose peer has closed a socket,
//! and an `xtask` that still has ranks to stop and secrets to remove. A write fails instead. `println!`
//! then panics, which lets go of everything; this module takes the message away and sets the exit status.

use std::any::Any;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::process::{ExitCode, Termination};
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit status: what a shell reports of a program that SIGPIPE has ended.
pub const STATUS: u8 = 128 + 13;

/// Whether a write to standard output or standard error has failed for want of a reader.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs a program's `main`.
///
/// If nobody reads its output any more, the exit status is [`STATUS`]. Other panics go on.
pub fn guard<T: Termination>(main: impl FnOnce() -> T) -> ExitCode {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if is_of_printing(panic.payload()) {
            CLOSED.store(true, Ordering::Relaxed);
        } else {
            usual(panic);
        }
    }));
    let ended = panic::catch_unwind(AssertUnwindSafe(|| main().report()));
    match ended {
        _ if noted() => STATUS.into(),
        Ok(code) => code,
        Err(panic) => panic::resume_unwind(panic),
    }
}

/// Notes a failed write to standard output or standard error that did not panic.
pub fn note(error: &io::Error) {
    if error.kind() == io::ErrorKind::BrokenPipe {
        CLOSED.store(true, Ordering::Relaxed);
    }
}

/// Whether a write has failed for want of a reader: an error that comes of it needs no words.
pub fn noted() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Whether it is `println!` or `eprintln!` that panicked for want of a reader. The standard library
/// tells by words alone; tests would notice others.
fn is_of_printing(payload: &(dyn Any + Send)) -> bool {
    let text = payload.downcast_ref::<String>();
    text.is_some_and(|text| {
        text.starts_with("failed printing to std") && text.contains("Broken pipe")
    })
}
