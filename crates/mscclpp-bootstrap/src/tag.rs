// SPDX-License-Identifier: MIT
//! Names of message streams between two ranks.

use std::fmt;

/// Names one of the message streams between two ranks. Messages of one stream
/// arrive in the order they were sent; streams are independent of each other.
///
/// The upper half of the 64 bits says whose the stream is, so that a user's
/// tags never meet those of collectives or of a library in between.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u64);

const OWNER_SHIFT: u32 = 56;
const OWNER_USER: u64 = 0;
const OWNER_WORLD: u64 = 1;
const OWNER_GROUP: u64 = 2;
const OWNER_LAYER: u64 = 3;
const OWNER_GATE: u64 = 4;
const LAYER_SHIFT: u32 = 48;

impl Tag {
    /// All collectives of the whole world share this stream: every rank calls
    /// them in the same order, and a rank that does not is found out.
    pub(crate) const WORLD: Self = Self(OWNER_WORLD << OWNER_SHIFT);

    /// A stream for the user of a bootstrap; every value is free to use.
    #[must_use]
    pub const fn user(value: u32) -> Self {
        Self(OWNER_USER << OWNER_SHIFT | value as u64)
    }

    /// A stream for a library between the user and the bootstrap. Libraries
    /// take different numbers for `layer` and do with `value` as they like.
    #[must_use]
    pub const fn layered(layer: u8, value: u32) -> Self {
        Self(OWNER_LAYER << OWNER_SHIFT | (layer as u64) << LAYER_SHIFT | value as u64)
    }

    /// The stream of a group barrier; `digest` stands for the member list.
    pub(crate) const fn group(digest: u64) -> Self {
        Self(OWNER_GROUP << OWNER_SHIFT | digest & ((1 << OWNER_SHIFT) - 1))
    }

    /// The stream of the gates of one setup.
    pub(crate) const fn gate(value: u32) -> Self {
        Self(OWNER_GATE << OWNER_SHIFT | value as u64)
    }

    /// The 64 bits, equal on both ends of a stream. A bootstrap of your own
    /// may carry them with each message.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }

    /// The tag with the given bits, as [`Tag::value`] gave them on the other
    /// end.
    #[must_use]
    pub const fn from_value(value: u64) -> Self {
        Self(value)
    }
}

impl From<u32> for Tag {
    fn from(value: u32) -> Self {
        Self::user(value)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({self})")
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = self.0 & u64::from(u32::MAX);
        match self.0 >> OWNER_SHIFT {
            OWNER_USER if self.0 == low => write!(f, "{low}"),
            OWNER_WORLD => write!(f, "collective"),
            OWNER_GROUP => write!(f, "group:{:x}", self.0 & ((1 << OWNER_SHIFT) - 1)),
            OWNER_GATE => write!(f, "setup {low}"),
            OWNER_LAYER => write!(f, "layer {}:{low}", self.0 >> LAYER_SHIFT & 0xff),
            _ => write!(f, "{:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_never_share_a_tag() {
        let tags = [
            Tag::user(0),
            Tag::user(u32::MAX),
            Tag::WORLD,
            Tag::group(0),
            Tag::group(u64::MAX),
            Tag::layered(0, 0),
            Tag::layered(1, 0),
            Tag::layered(255, u32::MAX),
            Tag::gate(0),
            Tag::gate(u32::MAX),
        ];
        for (i, a) in tags.iter().enumerate() {
            for b in &tags[i + 1..] {
                assert_ne!(a, b);
            }
        }
    }

    #[test]
    fn the_bits_make_the_same_tag_again() {
        let tag = Tag::layered(7, 9);
        assert_eq!(Tag::from_value(tag.value()), tag);
        assert_eq!(tag.to_string(), "layer 7:9");
        assert_eq!(Tag::user(5).to_string(), "5");
    }
}
