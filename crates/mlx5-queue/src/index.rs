// SPDX-License-Identifier: MIT
//! Positions in rings: the arithmetic that goes wrong at 2^16 and 2^32.

use crate::Error;

/// Number of a queue pair, send queue or completion queue: 24 bits.
///
/// Source: GPUNetIO and rdma-core put it in the upper 24 bits of a 32-bit
/// word (`qpn << 8 | ds`), so a larger one would damage its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueNumber(u32);

impl QueueNumber {
    /// The largest number.
    pub const MAX: Self = Self(0x00ff_ffff);

    /// Takes a number of at most 24 bits.
    ///
    /// # Errors
    /// [`Error::QueueNumber`] if it does not fit.
    pub const fn new(number: u32) -> Result<Self, Error> {
        if number > Self::MAX.0 {
            return Err(Error::QueueNumber { number });
        }
        Ok(Self(number))
    }

    /// The upper 24 bits of a wire word.
    pub(crate) const fn from_upper(word: u32) -> Self {
        Self(word >> 8)
    }

    /// The lower 24 bits of a wire word.
    pub(crate) const fn from_lower(word: u32) -> Self {
        Self(word & Self::MAX.0)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Size of a ring: a power of two, at most 2^31 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingSize {
    log: u8,
}

impl RingSize {
    /// The most blocks a send queue can have. Its counters have 16 bits on
    /// the wire, and a full queue of 65536 blocks would look empty (GPUNetIO
    /// keeps the size in a `u16`, NVSHMEM asserts the same bound).
    pub const MAX_SEND_BLOCKS: u32 = 1 << 15;

    /// Takes a number of entries.
    ///
    /// # Errors
    /// [`Error::RingSize`] unless it is a power of two of at most 2^31.
    pub const fn new(entries: u32) -> Result<Self, Error> {
        if !entries.is_power_of_two() {
            return Err(Error::RingSize { entries });
        }
        Ok(Self {
            log: entries.trailing_zeros() as u8,
        })
    }

    /// Entries in the ring.
    pub const fn entries(self) -> u32 {
        1 << self.log
    }

    /// Logarithm of the number of entries, base 2.
    pub const fn log2(self) -> u32 {
        self.log as u32
    }
}

/// Position in a ring, counted from the queue's first entry and never reset.
///
/// Hardware keeps these counters in 16 bits and software must not: a 16-bit
/// or 32-bit copy that is widened before it is subtracted makes a waiter hang
/// at the wrap. This type carries 64 bits everywhere and narrows only at the
/// wire ([`low16`](Self::low16)). It widens what the wire says *relative to a
/// position that is known* ([`at_or_after`](Self::at_or_after),
/// [`at_or_before`](Self::at_or_before)), which is right as long as less than
/// 2^16 entries lie between the two: see [`RingSize::MAX_SEND_BLOCKS`].
///
/// There is no `Ord`: positions are compared modulo 2^64 with
/// [`is_before`](Self::is_before) and [`distance_from`](Self::distance_from).
///
/// ```
/// use mlx5_queue::{QueueIndex, RingSize};
/// let ring = RingSize::new(64).unwrap();
/// let executed = QueueIndex::new(0x1_fffe);
/// // The record says 3: five entries further, not 65531 back.
/// let posted = executed.at_or_after(3);
/// assert_eq!(posted, QueueIndex::new(0x2_0003));
/// assert_eq!(posted.distance_from(executed), 5);
/// assert_eq!(posted.slot(ring), 3);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueueIndex(u64);

impl QueueIndex {
    /// The first entry of a queue.
    pub const ZERO: Self = Self(0);

    /// The entry with this number.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The number, from the first entry.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// What the wire carries: work requests, records and completions hold the
    /// low 16 bits (rdma-core: "should wrap at 0xffff, regardless of size of
    /// the WQ").
    pub const fn low16(self) -> u16 {
        self.0 as u16
    }

    /// The entry `count` further on.
    #[must_use]
    pub const fn advance(self, count: u64) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// Entries from `earlier` to here, modulo 2^64.
    pub const fn distance_from(self, earlier: Self) -> u64 {
        self.0.wrapping_sub(earlier.0)
    }

    /// True if this comes before `other`, by less than 2^63.
    pub const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i64) < 0
    }

    /// The first position at or after this one whose low bits are `low16`.
    ///
    /// What an executor asks: it knows how far it has come and reads how far
    /// the poster says it has.
    #[must_use]
    pub const fn at_or_after(self, low16: u16) -> Self {
        self.advance(low16.wrapping_sub(self.low16()) as u64)
    }

    /// The last position at or before this one whose low bits are `low16`.
    ///
    /// What a poster asks: it knows how far it has posted and reads in a
    /// completion which request that was.
    #[must_use]
    pub const fn at_or_before(self, low16: u16) -> Self {
        Self(self.0.wrapping_sub(self.low16().wrapping_sub(low16) as u64))
    }

    /// The slot of the ring that holds this entry.
    pub const fn slot(self, ring: RingSize) -> u32 {
        (self.0 & (ring.entries() as u64 - 1)) as u32
    }

    /// The owner bit that a completion with this number carries: it changes
    /// with every lap and is 0 on the first (GPUNetIO's poll functions compare
    /// it with `(index / entries) & 1`).
    pub const fn owner(self, ring: RingSize) -> bool {
        (self.0 >> ring.log2()) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_are_powers_of_two() {
        for entries in [0, 3, 65535, u32::MAX] {
            assert_eq!(RingSize::new(entries), Err(Error::RingSize { entries }));
        }
        for log in 0..32 {
            let ring = RingSize::new(1 << log).unwrap();
            assert_eq!((ring.entries(), ring.log2()), (1 << log, log));
        }
    }

    #[test]
    fn queue_numbers_have_24_bits() {
        assert_eq!(QueueNumber::new(0x00ff_ffff), Ok(QueueNumber::MAX));
        assert_eq!(
            QueueNumber::new(0x0100_0000),
            Err(Error::QueueNumber {
                number: 0x0100_0000
            })
        );
    }

    /// Walks every position around a wrap and asks for every distance that a
    /// send queue can have.
    #[test]
    fn widening_crosses_2_to_the_16_and_2_to_the_32() {
        for wrap in [1u64 << 16, 1 << 17, 1 << 32, 3 << 32, 0] {
            for offset in 0..64u64 {
                let here = QueueIndex::new(wrap.wrapping_sub(32).wrapping_add(offset));
                for ahead in [0, 1, 31, 63, 64, 32767, 32768, 65535] {
                    let there = here.advance(ahead);
                    assert_eq!(here.at_or_after(there.low16()), there);
                    assert_eq!(there.at_or_before(here.low16()), here);
                    assert_eq!(there.distance_from(here), ahead);
                    assert_eq!(here.is_before(there), ahead != 0);
                    assert!(!there.is_before(here));
                }
            }
        }
    }

    #[test]
    fn slot_and_owner_follow_the_lap_across_wraps() {
        for ring in [1, 2, 64, 32768].map(|n| RingSize::new(n).unwrap()) {
            let n = u64::from(ring.entries());
            for start in [0, (1u64 << 16) - 2 * n, (1u64 << 32) - 2 * n] {
                let mut owner = QueueIndex::new(start).owner(ring);
                for step in 0..4 * n {
                    let index = QueueIndex::new(start + step);
                    if step != 0 && index.slot(ring) == 0 {
                        owner = !owner;
                    }
                    assert_eq!(u64::from(index.slot(ring)), (start + step) % n);
                    assert_eq!(index.owner(ring), owner);
                }
            }
        }
    }
}
