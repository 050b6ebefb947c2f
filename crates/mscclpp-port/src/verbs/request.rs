// SPDX-License-Identifier: MIT
//! Work requests.

use super::error::VerbsError;

/// Memory of this process in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// Its first byte.
    pub address: u64,
    /// In bytes. A message has at most as many as its port allows.
    pub len: u32,
    /// The [`lkey`](super::MemoryRegion::lkey) of a region that it is in.
    pub key: u32,
}

/// Memory of the peer in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its first byte.
    pub address: u64,
    /// The [`rkey`](super::MemoryRegion::rkey) of a region that it is in.
    pub key: u32,
}

/// What a write or send takes its bytes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// Registered memory, read by the device later: until the completion.
    Region(Local),
    /// Any bytes, copied into the request; as many as the queue pair was made for
    /// ([`QueuePairSize::inline_bytes`](super::QueuePairSize)).
    Inline(&'a [u8]),
    /// No bytes.
    Nothing,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Writes to the peer's memory. With an immediate it also takes a receive of the peer, which
    /// completes with it.
    Write {
        /// From here.
        source: Source<'a>,
        /// To there.
        remote: Remote,
        /// For the peer's completion.
        immediate: Option<u32>,
    },
    /// Reads from the peer's memory.
    Read {
        /// To here.
        local: Local,
        /// From there.
        remote: Remote,
    },
    /// Adds to an aligned 64-bit word of the peer.
    FetchAdd {
        /// 8 bytes for the word's old value.
        local: Local,
        /// The word.
        remote: Remote,
        /// What to add; it wraps.
        add: u64,
    },
    /// Writes to an aligned 64-bit word of the peer if it has a value.
    CompareSwap {
        /// 8 bytes for the word's old value.
        local: Local,
        /// The word.
        remote: Remote,
        /// The value that it must have.
        compare: u64,
        /// The value that it gets.
        swap: u64,
    },
    /// Sends a message, which takes a receive of the peer.
    Send {
        /// From here.
        source: Source<'a>,
        /// For the peer's completion.
        immediate: Option<u32>,
    },
}

/// A request for a send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// Comes back with the completion.
    pub id: u64,
    /// Whether it completes with an entry if it succeeds. The place of one without is free again
    /// when a later one has completed.
    pub signaled: bool,
    /// Whether it waits for the reads and atomics before it.
    pub fence: bool,
    /// What to do.
    pub operation: Operation<'a>,
}

/// A request for a receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Comes back with the completion.
    pub id: u64,
    /// Where a message goes; a write with immediate needs no memory.
    pub local: Option<Local>,
}

/// Not all requests of a call were posted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source} (request {posted} of the call; those before it were posted)")]
pub struct PostError {
    /// How many were, counted from the first.
    pub posted: usize,
    /// Why the next was not.
    pub source: VerbsError,
}

impl PostError {
    /// Whether there was no room: completions have to be taken first.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(&self.source, VerbsError::Call { errno, .. } if errno.0 == libc::ENOMEM)
    }
}
