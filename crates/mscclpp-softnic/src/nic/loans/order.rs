// SPDX-License-Identifier: MIT
//! What is to be done about lent memory.

use mlx5_queue::MemoryKey;

use crate::capability::DeviceAddress;

/// Something for the shell to do about a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) peer: DeviceAddress,
    pub(crate) key: MemoryKey,
    pub(crate) what: Do,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Do {
    /// Export it, keep its owner, and offer it.
    Offer,
    /// Say that it is over.
    Withdraw,
    /// The peer does not use it, or never did: let its owner go.
    Reclaim,
    /// The peer's: say that it is taken, or not.
    Take,
    Decline,
    /// The peer's, and mapped: let go of it when no access can touch it any
    /// more, and say so.
    Release,
}
