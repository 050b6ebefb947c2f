// SPDX-License-Identifier: MIT
//! What is said of lent memory.

/// What two devices say to each other of one registration, named by its key.
/// `Offered` and `Withdrawn` come from who lends, the others from who borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Offered(Offer),
    Taken,
    Declined,
    Withdrawn,
    Released,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Where the registration is, in the lender's terms. It has at least one
    /// byte and does not wrap.
    pub(crate) address: u64,
    pub(crate) length: u64,
    /// A descriptor comes with it.
    pub(crate) descriptor: bool,
    /// For the memory that imports it.
    pub(crate) description: Vec<u8>,
}

/// A peer broke the protocol: its link is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a notice of lent memory that does not fit what was said before: {0}")]
pub(crate) struct OutOfStep(pub(crate) &'static str);
