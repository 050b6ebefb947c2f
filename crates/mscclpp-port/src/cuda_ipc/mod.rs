// SPDX-License-Identifier: MIT
//! One-sided operations between GPUs of one host: each end copies straight into the other's memory.
//!
//! The owner of a registration says in its record how the memory is reached; whoever gets the record
//! maps it (`map`), by a file descriptor that a small server (`server`) of the owner hands over a
//! proven Unix socket, or by the driver's own handle. Memory of the same process is used as it is.
//!
//! A connection has one stream. A write is a copy on it, a signal the next count written to the
//! peer's token behind it, a flush a word of host memory written behind all that: the stream itself
//! writes the word that the flushing kernel polls, so that no thread has a part in it. Nobody at the
//! peer executes anything, so nobody there can say that it has died: for that there is a
//! [control stream](crate::control) between the two hosts.
//!
//! What is promised, and to whom:
//! - Copies execute in order, and a signal is visible behind all of them.
//! - A flush ends when the bytes are in the peer's memory.
//! - Range and transport are checked by the sender, against what the owner's record says. The memory
//!   is mapped as a whole, so the owner cannot refuse anything: a registration that has ended is
//!   still written to, until the peer drops its memory; the physical memory stays until then.
//! - Accumulates are refused: the copy engines have none, and a kernel of the host's could wait for
//!   ever behind one that spins.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod descriptor;
#[cfg(feature = "cuda")]
mod end;
#[cfg(feature = "cuda")]
mod map;
// Its test needs no GPU.
#[cfg(any(feature = "cuda", test))]
mod open_once;
#[cfg(feature = "cuda")]
mod server;
#[cfg(all(test, feature = "cuda", not(loom)))]
mod tests;
#[cfg(feature = "cuda")]
mod transport;

/// What a control stream is made for.
pub(crate) const CONTROL: &str = "mscclpp-port CUDA IPC control";

#[cfg(feature = "cuda")]
pub(crate) use crate::memory::ProcessId;
#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{IpcTransport, check};
#[cfg(feature = "cuda")]
pub(crate) use map::{Sharing, open_legacy, process_id};
#[cfg(feature = "cuda")]
pub(crate) use transport::{IpcTransport, check};
