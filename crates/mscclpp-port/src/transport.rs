// SPDX-License-Identifier: MIT
//! What a connection can run over, and the seam that every transport implements.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitXor, Not};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::counters::LinkCounts;
use crate::error::Error;
use crate::flush::FlushWord;
use crate::gpu_queue::QueueEnd;
use crate::memory::RegisteredMemory;

/// A way to reach a peer's memory. The numbers and the printed names are MSCCL++'s.
///
/// A name existing here does not mean that this build can use it:
/// [`Context::create_endpoint`](crate::Context::create_endpoint) answers with
/// [`Error::Unsupported`] and says what is missing.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(into = "u8", try_from = "u8")]
#[repr(u8)]
pub enum TransportKind {
    /// Not chosen. No endpoint can be made of it.
    #[default]
    Unknown = 0,
    /// Memory of GPUs, shared between processes of one host: copies go from GPU to GPU. Both ends are
    /// GPUs' ([`EndpointConfig::device`](crate::EndpointConfig::device)), the same or others. Needs the
    /// feature `cuda`.
    CudaIpc = 1,
    /// InfiniBand or RoCE device 0.
    IB0 = 2,
    /// InfiniBand or RoCE device 1.
    IB1 = 3,
    /// InfiniBand or RoCE device 2.
    IB2 = 4,
    /// InfiniBand or RoCE device 3.
    IB3 = 5,
    /// InfiniBand or RoCE device 4.
    IB4 = 6,
    /// InfiniBand or RoCE device 5.
    IB5 = 7,
    /// InfiniBand or RoCE device 6.
    IB6 = 8,
    /// InfiniBand or RoCE device 7.
    IB7 = 9,
    /// TCP over any network.
    Ethernet = 10,
}

impl TransportKind {
    /// Every kind, in the order of its number.
    pub const ALL: [Self; 11] = [
        Self::Unknown,
        Self::CudaIpc,
        Self::IB0,
        Self::IB1,
        Self::IB2,
        Self::IB3,
        Self::IB4,
        Self::IB5,
        Self::IB6,
        Self::IB7,
        Self::Ethernet,
    ];

    /// Whether this is one of `IB0` to `IB7`.
    #[must_use]
    pub fn is_ib(self) -> bool {
        TransportFlags::ALL_IB.has(self)
    }

    /// Whether two ends of these kinds can be connected: the same kind, or two InfiniBand devices
    /// of any number.
    #[must_use]
    pub fn reaches(self, other: Self) -> bool {
        self != Self::Unknown && (self == other || (self.is_ib() && other.is_ib()))
    }
}

impl From<TransportKind> for u8 {
    fn from(kind: TransportKind) -> Self {
        kind as Self
    }
}

impl TryFrom<u8> for TransportKind {
    type Error = String;

    fn try_from(code: u8) -> Result<Self, Self::Error> {
        Self::ALL
            .get(usize::from(code))
            .copied()
            .ok_or_else(|| format!("there is no transport number {code}"))
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "UNK",
            Self::CudaIpc => "IPC",
            Self::IB0 => "IB0",
            Self::IB1 => "IB1",
            Self::IB2 => "IB2",
            Self::IB3 => "IB3",
            Self::IB4 => "IB4",
            Self::IB5 => "IB5",
            Self::IB6 => "IB6",
            Self::IB7 => "IB7",
            Self::Ethernet => "ETH",
        })
    }
}

/// A set of [`TransportKind`]s, one bit each (11 bits, bit n for kind number n).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(into = "u16", try_from = "u16")]
pub struct TransportFlags(u16);

impl TransportFlags {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// `IB0` to `IB7`.
    pub const ALL_IB: Self = Self(0b011_1111_1100);
    /// Every transport; [`TransportKind::Unknown`] is not one.
    pub const ALL: Self = Self(0b111_1111_1110);
    const MASK: u16 = 0b111_1111_1111;

    /// Whether `kind` is in the set.
    #[must_use]
    pub fn has(self, kind: TransportKind) -> bool {
        self.0 & (1 << kind as u16) != 0
    }

    /// Whether the set holds at least one kind.
    #[must_use]
    pub fn any(self) -> bool {
        self.0 != 0
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn none(self) -> bool {
        self.0 == 0
    }

    /// Whether every one of the 11 bits is set.
    #[must_use]
    pub fn all(self) -> bool {
        self.0 == Self::MASK
    }

    /// How many kinds the set holds.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

impl From<TransportKind> for TransportFlags {
    fn from(kind: TransportKind) -> Self {
        Self(1 << kind as u16)
    }
}

impl From<TransportFlags> for u16 {
    fn from(flags: TransportFlags) -> Self {
        flags.0
    }
}

impl TryFrom<u16> for TransportFlags {
    type Error = String;

    fn try_from(bits: u16) -> Result<Self, Self::Error> {
        if bits & !Self::MASK == 0 {
            Ok(Self(bits))
        } else {
            Err(format!(
                "transport flags {bits:#x} have bits above the 11 that exist"
            ))
        }
    }
}

impl<T: Into<TransportFlags>> BitOr<T> for TransportFlags {
    type Output = Self;
    fn bitor(self, other: T) -> Self {
        Self(self.0 | other.into().0)
    }
}

impl<T: Into<TransportFlags>> BitAnd<T> for TransportFlags {
    type Output = Self;
    fn bitand(self, other: T) -> Self {
        Self(self.0 & other.into().0)
    }
}

impl<T: Into<TransportFlags>> BitXor<T> for TransportFlags {
    type Output = Self;
    fn bitxor(self, other: T) -> Self {
        Self(self.0 ^ other.into().0)
    }
}

impl BitOr<TransportFlags> for TransportKind {
    type Output = TransportFlags;
    fn bitor(self, other: TransportFlags) -> TransportFlags {
        other | self
    }
}

impl BitOr for TransportKind {
    type Output = TransportFlags;
    fn bitor(self, other: Self) -> TransportFlags {
        TransportFlags::from(self) | other
    }
}

impl Not for TransportFlags {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0 & Self::MASK)
    }
}

impl fmt::Debug for TransportFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TransportFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.none() {
            return f.write_str("none");
        }
        let mut separator = "";
        for kind in TransportKind::ALL {
            if self.has(kind) {
                write!(f, "{separator}{kind}")?;
                separator = "|";
            }
        }
        Ok(())
    }
}

/// Where a transport's posts stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The highest flush ticket that is done; every lower one is done too. 0 before the first.
    pub(crate) flushed: u64,
    /// Whether anything is still on its way: a queued post, or a flush not yet acknowledged.
    pub(crate) busy: bool,
}

/// One end of a connection, as the proxy and [`Connection`](crate::Connection) drive it.
///
/// All calls are thread-safe and return without waiting for the peer. Posts execute at the peer in
/// the order of the calls. An error that ends the connection is sticky: it is recorded in the
/// connection's failure cell, and every later call returns it.
pub(crate) trait Transport: Send + Sync {
    /// Posts a write of `len` bytes from `src + src_off` to `dst + dst_off`. The source is read at
    /// any time until a flush that was requested later is done.
    fn write(
        &self,
        dst: &RegisteredMemory,
        dst_off: u64,
        src: &RegisteredMemory,
        src_off: u64,
        len: u64,
    ) -> Result<(), Error>;

    /// Posts `+= 1` on the 8-byte aligned word at `token + off`; all earlier posts are visible at
    /// the peer before it is.
    fn signal(&self, token: &RegisteredMemory, off: u64) -> Result<(), Error>;

    /// Posts `+= operand` (modulo 2^64) on the 8-byte aligned word at `dst + off`.
    fn accumulate(&self, dst: &RegisteredMemory, off: u64, operand: i64) -> Result<(), Error>;

    /// Posts a flush and returns its ticket, which is one more than the last. The ticket is done
    /// when the peer has executed every post made before it; posts made after it do not delay it.
    fn request_flush(&self) -> Result<u64, Error>;

    /// The same, and the transport itself tells kernels: it stores `value` in `word`, which only
    /// grows, when the ticket is done. `None`, and nothing posted, if it cannot.
    fn flush_telling(&self, word: &Arc<FlushWord>, value: u64) -> Option<Result<u64, Error>> {
        let _ = (word, value);
        None
    }

    /// For a trace: what posts of this end are named by, and the number of the last one. `None` where
    /// nobody traces.
    fn last_post(&self) -> Option<(u16, u64)> {
        None
    }

    /// Starts what was posted since the last call. A post may stay in the queue until this is
    /// called, so that a trigger's write and signal leave together: post, post, kick. A failure ends
    /// the connection; the posts were taken all the same.
    fn kick(&self);

    /// Whether a whole trigger (write, signal, flush) can be posted. False means: hold it, and ask
    /// again after [`progress`](Self::progress) says that something moved. A post made without
    /// room gets [`Error::QueueFull`] and changes nothing.
    fn has_room(&self) -> bool;

    /// Looks, without waiting, at what is done. Includes a [`kick`](Self::kick).
    fn progress(&self) -> Result<Progress, Error>;

    /// A descriptor that becomes readable when a flush is done, when room appears, or when the
    /// connection fails; to park on while `busy`. The order is: call this, which makes it unreadable,
    /// call [`progress`](Self::progress) once more, then poll.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether the peer's end has been reached.
    fn is_connected(&self) -> bool {
        true
    }

    /// Says that somebody else has recorded a failure: posts that wait are dropped, and the peer
    /// sees the connection go.
    fn abort(&self) {}

    /// What it has done so far. Holds up nobody who posts.
    fn counts(&self) -> LinkCounts {
        LinkCounts::default()
    }

    /// The queue to which kernels post themselves, if that is how this transport works.
    fn queue(&self) -> Option<&QueueEnd> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_upstreams() {
        let names = [
            "UNK", "IPC", "IB0", "IB1", "IB2", "IB3", "IB4", "IB5", "IB6", "IB7", "ETH",
        ];
        for (code, name) in (0u8..).zip(names) {
            let kind = TransportKind::try_from(code).unwrap();
            assert_eq!(u8::from(kind), code);
            assert_eq!(kind.to_string(), name);
        }
        assert!(TransportKind::try_from(11).is_err());
    }

    #[test]
    fn flags_are_a_set() {
        let set = TransportKind::CudaIpc | TransportKind::Ethernet;
        assert!(set.has(TransportKind::Ethernet) && !set.has(TransportKind::IB3));
        assert_eq!(set.count(), 2);
        assert_eq!(set.to_string(), "IPC|ETH");
        assert!((set & TransportFlags::ALL_IB).none());
        assert_eq!(
            (set ^ TransportKind::Ethernet),
            TransportKind::CudaIpc.into()
        );
        assert_eq!((!set).count(), 9);
        assert!((set | !set).all() && !TransportFlags::ALL.all());
        assert_eq!(TransportFlags::ALL_IB.count(), 8);
        assert!(TransportFlags::try_from(1 << 11).is_err());
    }

    #[test]
    fn infiniband_devices_reach_each_other() {
        assert!(TransportKind::IB0.reaches(TransportKind::IB7));
        assert!(TransportKind::Ethernet.reaches(TransportKind::Ethernet));
        assert!(!TransportKind::Ethernet.reaches(TransportKind::IB0));
        assert!(!TransportKind::Unknown.reaches(TransportKind::Unknown));
    }
}
