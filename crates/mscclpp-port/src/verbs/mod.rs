// SPDX-License-Identifier: MIT
//! InfiniBand and RoCE: libibverbs as owners that hold their parents, and queue pairs whose state is
//! part of their type.
//!
//! ```text
//! Device ◀── ProtectionDomain ◀── MemoryRegion ──▶ the memory's owner
//!   ▲               ▲
//!   └─ CompletionQueue ◀── QueuePair<Reset ▸ Initialized ▸ ReadyToReceive ▸ ReadyToSend>
//! ```
//!
//! The library is loaded by the first use ([`mscclpp_ib_sys`]). Where there is none, or no device, the
//! error says so in a sentence.
//!
//! # Threads
//!
//! All types may be used from any thread, by several at a time: libibverbs takes a lock a queue.
//! Whoever needs an order among posts has to keep it. No call waits for a peer; what is slow
//! (opening, registering, making, changing a state) takes up to some milliseconds.
//!
//! # Failure
//!
//! Dropping gives everything back, the newest first. A step of a queue pair takes the pair and gives
//! the next one, or an error; then the pair and what it alone held is gone.
//!
//! # States
//!
//! A queue pair that is not ready to send cannot post:
//!
//! ```compile_fail,E0599
//! # use mscclpp_port::verbs::*;
//! fn post(queue: &QueuePair<Initialized>, request: SendRequest<'_>) {
//!     queue.post(&[request]);
//! }
//! ```
//!
//! ```compile_fail,E0599
//! # use mscclpp_port::verbs::*;
//! fn post(queue: &QueuePair<ReadyToReceive>, request: SendRequest<'_>) {
//!     queue.post(&[request]);
//! }
//! ```
//!
//! ```
//! # use mscclpp_port::verbs::*;
//! fn post(queue: &QueuePair<ReadyToSend>, request: SendRequest<'_>) {
//!     let _ = queue.post(&[request]);
//! }
//! ```
//!
//! One that was only made cannot be given receives:
//!
//! ```compile_fail,E0599
//! # use mscclpp_port::verbs::*;
//! fn receive(queue: &QueuePair<Reset>, request: ReceiveRequest) {
//!     queue.post_receive(&[request]);
//! }
//! ```
//!
//! ```
//! # use mscclpp_port::verbs::*;
//! fn receive(queue: &QueuePair<Initialized>, request: ReceiveRequest) {
//!     let _ = queue.post_receive(&[request]);
//! }
//! ```
//!
//! No step can be left out, and none taken twice:
//!
//! ```compile_fail,E0599
//! # use mscclpp_port::verbs::*;
//! fn skip(queue: QueuePair<Initialized>, sending: &Sending) {
//!     queue.ready_to_send(sending);
//! }
//! ```
//!
//! ```compile_fail,E0382
//! # use mscclpp_port::verbs::*;
//! fn twice(queue: QueuePair<Initialized>, path: &Path) {
//!     let first = queue.ready_to_receive(path);
//!     let second = queue.ready_to_receive(path);
//! }
//! ```
//!
//! ```
//! # use mscclpp_port::verbs::*;
//! fn connect(
//!     queue: QueuePair<Initialized>,
//!     path: &Path,
//!     sending: &Sending,
//! ) -> Result<QueuePair<ReadyToSend>, VerbsError> {
//!     queue.ready_to_receive(path)?.ready_to_send(sending)
//! }
//! ```

mod capabilities;
mod channel;
mod completion;
mod device;
mod domain;
mod error;
mod event;
#[cfg(all(test, not(loom)))]
pub(crate) mod fake;
mod list;
mod memory;
mod port;
mod queue;
mod request;
mod status;
#[cfg(all(test, not(loom)))]
mod tests;

pub use capabilities::DeviceCapabilities;
pub use channel::CompletionChannel;
pub use completion::{CompletionOpcode, CompletionQueue, WorkCompletion};
pub use device::Device;
pub use domain::ProtectionDomain;
pub use error::{AttributeMask, Errno, VerbsError};
pub use event::{AsyncEvent, PortChange, QueueChange};
pub use memory::{AccessFlags, DmaBuf, DmaBufRoute, MemoryRegion};
pub use mscclpp_ib_sys::{LoadError, Verbs};
pub use port::{Gid, GidKind, LinkLayer, Mtu, PortAttributes, PortState};
pub use queue::{
    Destination, GlobalRoute, Initialized, Path, QueuePair, QueuePairSize, QueueState,
    ReadyToReceive, ReadyToSend, Receiving, Reset, Sending, State,
};
pub use request::{Local, Operation, PostError, ReceiveRequest, Remote, SendRequest, Source};
pub use status::CompletionStatus;
