// SPDX-License-Identifier: MIT
//! Connections over InfiniBand and RoCE whose requests the host posts: the proxy's transport for
//! clusters, over real libibverbs.
//!
//! A queue pair is made with its endpoint, in INIT. Connecting brings it to RTS on a thread of the
//! connection, which meets the peer's by a [control stream](crate::control): neither end posts before
//! both are ready, so no retry is used up, and each learns at once that the other has failed, left or
//! died.
//!
//! A put is an RDMA write, or several. There are two ways to signal, by the mode that the HCA allows:
//! - [`Host`](crate::IbMode::Host): a fetch-and-add on the peer's token, executed by its HCA behind all
//!   writes of the queue pair. An accumulate is the same with an operand.
//! - [`HostNoAtomic`](crate::IbMode::HostNoAtomic): a write of nothing with immediate data, which is
//!   the key of the peer's token. The peer's host takes it from its receive queue, behind the data of
//!   all writes before it, and raises the token. One connection so serves any number of semaphores.
//!
//! What is promised, and to whom:
//! - Posts execute in order, and a signal or an accumulate is visible behind all writes before it. A
//!   write after it may be visible before it.
//! - A flush ends when the peer's HCA has taken everything before it. Posts of others do not delay it.
//! - Key, range and access are checked by the peer's HCA. A request that it refuses ends the
//!   connection.
//! - Atomics of the HCA are atomic among each other, and not against the host's or a GPU's on the same
//!   word: a word is for one kind.
//! - Memory that a request reads stays registered, and allocated, until the request is done.
//!
//! - [`port`], [`account`]: decisions, without I/O. [`posts`] puts them to work on each
//!   [`post`].
//! - [`queue`]: from endpoint to connection. [`end`], [`receiver`], [`news`]: what becomes of it.
//! - [`hca`], [`devices`], [`memory`]: what it stands on.

mod account;
pub(crate) mod devices;
mod end;
mod hca;
#[cfg(feature = "gpunetio")]
mod kernels;
mod memory;
mod news;
pub(crate) mod port;
mod post;
mod posts;
mod queue;
mod receiver;
#[cfg(all(test, not(loom)))]
mod tests;
mod transport;

pub(crate) use hca::IbHca;
pub(crate) use queue::{IbQueue, Joined};
pub(crate) use transport::{CONTROL, Places};
