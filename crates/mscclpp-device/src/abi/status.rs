// SPDX-License-Identifier: MIT
//! How a blocking device call ended, and the sticky word that tells it.

use std::fmt;

use thiserror::Error;

/// What a device call returns; twin of `mscclpp::Status` in `status.hpp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// It did what was asked.
    Ok = 0,
    /// The caller's spin budget was used up first. Nothing is broken: the call
    /// may be repeated.
    Timeout = 1,
    /// The connection, its queue or the proxy failed. Sticky.
    QueueError = 2,
    /// The peer process is dead. Sticky.
    PeerDown = 3,
    /// The host stopped the service or ended the wait. Sticky.
    Aborted = 4,
    /// An id, offset or size is outside of what the channel can name. Nothing was
    /// posted. Never found in a status word.
    InvalidArgument = 5,
    /// The channel's backend or signal mode has no such operation. Nothing was
    /// posted. Never found in a status word.
    Unsupported = 6,
}

/// Its name, and what it means.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self {
            Self::Ok => "done",
            Self::Timeout => "the call's own budget was used up; it may be repeated",
            Self::QueueError => "the connection, its queue or the proxy has failed",
            Self::PeerDown => "the peer is gone, or has closed its end",
            Self::Aborted => "the host stopped the service",
            Self::InvalidArgument => {
                "an id, offset, size or alignment that the channel cannot have; nothing was posted"
            }
            Self::Unsupported => "the channel has no such operation; nothing was posted",
        };
        write!(f, "{self:?}: {meaning}")
    }
}

/// A status code that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("status code {0} is none that this version knows")]
pub struct UnknownStatus(pub u32);

impl TryFrom<u32> for Status {
    type Error = UnknownStatus;

    fn try_from(code: u32) -> Result<Self, UnknownStatus> {
        Ok(match code {
            0 => Self::Ok,
            1 => Self::Timeout,
            2 => Self::QueueError,
            3 => Self::PeerDown,
            4 => Self::Aborted,
            5 => Self::InvalidArgument,
            6 => Self::Unsupported,
            other => return Err(UnknownStatus(other)),
        })
    }
}

/// The sticky error of a connection or of a FIFO, in host memory that kernels
/// read: all zero until an error, then written once.
///
/// Both halves are read and written as one aligned 64-bit word
/// ([`to_bits`](Self::to_bits)), `code` in the low half. The first writer wins:
/// the host sets it by compare-and-swap from zero; device code only reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct StatusWord {
    /// A [`Status`] as a number.
    pub code: u32,
    /// What the host wants to tell beside it: an errno, a completion syndrome
    /// or a rank, as the owner of the word defines.
    pub detail: u32,
}

impl StatusWord {
    /// A word that says `status`, with `detail` beside it.
    pub const fn new(status: Status, detail: u32) -> Self {
        Self {
            code: status as u32,
            detail,
        }
    }

    /// The word as the 64 bits that are stored.
    pub const fn to_bits(self) -> u64 {
        self.code as u64 | (self.detail as u64) << 32
    }

    /// The word that `bits` store.
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            code: bits as u32,
            detail: (bits >> 32) as u32,
        }
    }

    /// The status that the code stands for.
    pub fn status(self) -> Result<Status, UnknownStatus> {
        Status::try_from(self.code)
    }
}

const _: () = {
    assert!(size_of::<Status>() == 4);
    assert!(size_of::<StatusWord>() == 8 && align_of::<StatusWord>() == 8);
    assert!(std::mem::offset_of!(StatusWord, code) == 0);
    assert!(std::mem::offset_of!(StatusWord, detail) == 4);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_word_keeps_the_code_in_its_low_half() {
        let word = StatusWord::new(Status::PeerDown, 0xdead_beef);
        assert_eq!(word.to_bits(), 0xdead_beef_0000_0003);
        assert_eq!(StatusWord::from_bits(word.to_bits()), word);
        assert_eq!(word.status(), Ok(Status::PeerDown));
    }

    #[test]
    fn a_status_prints_its_name_and_what_it_means() {
        for status in (0..7).map(|code| Status::try_from(code).unwrap()) {
            let text = status.to_string();
            let meaning = text.strip_prefix(&format!("{status:?}: "));
            assert!(meaning.is_some_and(|words| !words.is_empty()), "{text}");
        }
    }

    #[test]
    fn every_known_code_converts_back_and_others_are_refused() {
        for code in 0..7 {
            assert_eq!(Status::try_from(code).map(|s| s as u32), Ok(code));
        }
        assert_eq!(Status::try_from(7), Err(UnknownStatus(7)));
        assert!(StatusWord::from_bits(u64::MAX).status().is_err());
    }
}
