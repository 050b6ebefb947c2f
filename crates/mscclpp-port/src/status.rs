// SPDX-License-Identifier: MIT
//! Sticky status of a connection or of a FIFO: one word that kernels read, one error for the host.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// What a kernel's blocking call reports; numbers as in the device headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The caller's budget was used up.
    Timeout = 1,
    /// The connection failed.
    QueueError = 2,
    /// The peer is dead.
    PeerDown = 3,
    /// The host gave the work up.
    Aborted = 4,
}

/// The first error of a connection: set once, never cleared.
///
/// The word is what device code polls: `{u32 code; u32 detail}` little endian, zero until the
/// error. The typed error is stored before the word, so whoever saw the word finds the error.
/// All methods may be called from any thread.
#[derive(Debug)]
pub struct StickyStatus {
    word: AtomicU64,
    error: Mutex<Option<Error>>,
    /// Kept alive for as long as the status is: whoever would tell it of a peer's death.
    guardian: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl StickyStatus {
    /// A status without error.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU64::new(0),
            error: Mutex::new(None),
            guardian: OnceLock::new(),
        })
    }

    /// Records `error` if it is the first. Returns whether it was.
    pub(crate) fn fail(&self, error: Error) -> bool {
        let mut slot = lock(&self.error);
        if slot.is_some() {
            return false;
        }
        let code = error.status() as u32;
        *slot = Some(error);
        // Release: a thread that reads the word finds the error and all that led to it.
        self.word.store(u64::from(code), Ordering::Release);
        true
    }

    /// Whether an error was recorded. One load: cheap enough for every operation.
    pub(crate) fn is_failed(&self) -> bool {
        self.word.load(Ordering::Acquire) != 0
    }

    /// The first error, if there was one.
    pub fn error(&self) -> Option<Error> {
        if self.is_failed() {
            lock(&self.error).clone()
        } else {
            None
        }
    }

    /// Fails with the first error, if there was one.
    pub(crate) fn check(&self) -> Result<()> {
        match self.error() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl StickyStatus {
    /// Address of the word for device handles. Valid while the status lives.
    pub(crate) fn address(&self) -> *const u64 {
        std::ptr::from_ref(&self.word).cast()
    }

    /// Keeps `guardian` alive as long as the status: whoever would tell it of a peer's death.
    /// Only the first is kept.
    pub(crate) fn keep(&self, guardian: Arc<dyn Any + Send + Sync>) {
        let _ = self.guardian.set(guardian);
    }
}
