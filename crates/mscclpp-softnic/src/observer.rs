// SPDX-License-Identifier: MIT
use std::fmt;
use std::sync::Arc;

use mlx5_queue::QueueNumber;

use crate::capability::DeviceAddress;

/// What a device does, as an [`Observer`] sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Seen {
    /// It was told of requests: the low 16 bits of one past the last.
    Doorbell {
        /// The queue pair.
        queue: QueueNumber,
        /// One past the last request.
        end: u16,
    },
    /// It has taken a request from a send queue.
    Fetched {
        /// The queue pair.
        queue: QueueNumber,
        /// The low 16 bits of the request's index.
        index: u16,
        /// The request's opcode.
        opcode: u8,
    },
    /// It has written a completion, of a send queue or of a receive queue, good or bad.
    Completed {
        /// The queue pair.
        queue: QueueNumber,
        /// The low 16 bits of the request's index.
        index: u16,
    },
    /// It hands a packet, or some that travel together, to the network, which may lose it.
    Sent(Transfer),
    /// A packet has come for one of its queue pairs, which may refuse it.
    Received(Transfer),
    /// A peer's atomic has changed a word of this device's memory.
    Added {
        /// The queue pair that it came by.
        queue: QueueNumber,
        /// The word's address.
        address: u64,
        /// What the word held before.
        old: u64,
    },
}

/// A packet between two queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfer {
    /// This device's queue pair.
    pub local: QueueNumber,
    /// The device that it goes to.
    pub to: DeviceAddress,
    /// The queue pair that it goes to.
    pub to_queue: QueueNumber,
    /// Its number, of the direction that it goes in: answers have that of what they answer.
    pub number: u64,
    /// Whether it is an answer.
    pub answer: bool,
}

/// Looks on while a device works. Called by the engine, in the order of what happens, with the device's
/// lock held: it has to be short, and must not call the device.
pub trait Observer: Send + Sync {
    /// Something has happened.
    fn see(&self, seen: Seen);
}

/// Who looks on, if anybody does.
#[derive(Clone, Default)]
pub(crate) struct Watched(pub(crate) Option<Arc<dyn Observer>>);

impl Watched {
    /// Tells the observer, if there is one. All but the look is out of the way of who has none.
    #[inline(always)]
    pub(crate) fn tell(&self, seen: impl FnOnce() -> Seen) {
        if let Some(observer) = &self.0 {
            told(&**observer, seen);
        }
    }
}

#[cold]
#[inline(never)]
fn told(observer: &dyn Observer, seen: impl FnOnce() -> Seen) {
    observer.see(seen());
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Watched"
        } else {
            "Unwatched"
        })
    }
}
