// SPDX-License-Identifier: MIT
//! A receive on a line, and what became of it.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock};

use mscclpp_bootstrap::Deadline;

use super::record::Kind;
use crate::error::{Error, Result};
use crate::sync::lock_plain as lock;

/// Makes something of a record. Called again if the time was too short.
type Make<T> = Box<dyn FnMut(&[u8], Deadline) -> Result<T> + Send>;

/// A receive that is not through, whatever it is of.
pub(super) trait Receive: Send + Sync {
    fn kind(&self) -> Kind;
    /// Takes the record, or why there is none; false if making something of it took longer than
    /// `deadline`. Then the record is [kept](Self::kept).
    fn complete(&self, body: Result<Vec<u8>>, deadline: Deadline) -> bool;
    /// Takes back the record that has come before.
    fn kept(&self) -> Option<Vec<u8>>;
}

pub(super) struct Slot<T> {
    pub(super) kind: Kind,
    make: Mutex<Option<Make<T>>>,
    record: Mutex<Option<Vec<u8>>>,
    /// Nobody will ask for the result.
    abandoned: AtomicBool,
    pub(super) result: OnceLock<Result<T>>,
}

impl<T> Slot<T> {
    pub(super) fn new(
        kind: Kind,
        make: impl FnMut(&[u8], Deadline) -> Result<T> + Send + 'static,
    ) -> Self {
        Self {
            kind,
            make: Mutex::new(Some(Box::new(make))),
            record: Mutex::default(),
            abandoned: AtomicBool::new(false),
            result: OnceLock::new(),
        }
    }

    /// Lets go of what it would take to make the result: a half, a connection. The receive keeps its
    /// place, so that the next gets the next record.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, SeqCst);
        drop(self.take());
    }

    fn take(&self) -> Option<Make<T>> {
        lock(&self.make).take()
    }
}

impl<T: Send + Sync> Receive for Slot<T> {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn complete(&self, body: Result<Vec<u8>>, deadline: Deadline) -> bool {
        // Not under the lock: it may take as long as the deadline.
        let Some(mut make) = self.take() else {
            return true;
        };
        let made = match body {
            Ok(bytes) => match make(&bytes, deadline) {
                // An endpoint is connected once.
                Err(Error::Timeout { .. }) if deadline.expired() && self.kind != Kind::Endpoint => {
                    *lock(&self.record) = Some(bytes);
                    *lock(&self.make) = Some(make);
                    // One of this and `abandon` sees the other.
                    let through = self.abandoned.load(SeqCst);
                    if through {
                        drop(self.take());
                    }
                    return through;
                }
                made => made,
            },
            Err(error) => Err(error),
        };
        let _ = self.result.set(made);
        true
    }

    fn kept(&self) -> Option<Vec<u8>> {
        lock(&self.record).take()
    }
}
