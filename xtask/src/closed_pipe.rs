// SPDX-License-Identifier: MIT
//! When nobody reads any more what a program prints (`cargo xtask report … | head`), it ends without a
//! word, as other Unix programs do. When it cannot be written otherwise (`> /dev/full`), that is an
//! error like any other. For `xtask` and, by its path, for the suite's programs.
//!
//! SIGPIPE stays ignored, as Rust has it: its default would end a rank whose peer has closed a socket,
//! and an `xtask` that still has ranks to stop and secrets to remove. A write fails instead. `println!`
//! then panics, which lets go of everything; this module takes the message away and sets the exit status.

use std::any::Any;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::{ExitCode, Termination};
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit status: what a shell reports of a program that SIGPIPE has ended.
pub const STATUS: u8 = 128 + 13;

/// Whether a write to standard output or standard error has failed for want of a reader.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs a program's `main`.
///
/// If nobody reads its output any more, the exit status is [`STATUS`]; if it cannot be written for
/// another reason, that is said. Other panics go on.
pub fn guard<T: Termination>(main: impl FnOnce() -> T) -> ExitCode {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| match of_printing(panic.payload()) {
        Some(text) if text.contains("Broken pipe") => CLOSED.store(true, Ordering::Relaxed),
        Some(text) => {
            // It may be what failed.
            let _ = writeln!(io::stderr(), "error: {text}");
        }
        None => usual(panic),
    }));
    let ended = panic::catch_unwind(AssertUnwindSafe(|| main().report()));
    match ended {
        _ if noted() => STATUS.into(),
        Ok(code) => code,
        Err(panic) if of_printing(&*panic).is_some() => ExitCode::FAILURE,
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

/// What `println!` or `eprintln!` said if it is they that panicked. The standard library tells by words
/// alone; tests would notice others.
fn of_printing(payload: &(dyn Any + Send)) -> Option<&str> {
    let text = payload.downcast_ref::<String>()?;
    text.starts_with("failed printing to std").then_some(text)
}
