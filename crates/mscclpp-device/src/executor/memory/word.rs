// SPDX-License-Identifier: MIT
//! One aligned machine word of real memory, by address.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// 4 or 8 bytes that may be accessed atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    address: usize,
    wide: bool,
}

impl Word {
    /// # Safety
    ///
    /// `address` is aligned to `bytes`, which is 4 or 8 (anything but 4 counts
    /// as 8), and the memory there is valid for atomic reads and writes for as
    /// long as this or a copy of it is used.
    pub(crate) unsafe fn new(address: usize, bytes: u32) -> Self {
        Self {
            address,
            wide: bytes != 4,
        }
    }

    pub(crate) fn address(self) -> usize {
        self.address
    }

    pub(crate) fn bytes(self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// The part of `value` that fits.
    pub(crate) fn cut(self, value: u64) -> u64 {
        if self.wide {
            value
        } else {
            value & u64::from(u32::MAX)
        }
    }

    fn narrow(&self) -> &AtomicU32 {
        // SAFETY: `new` promised a valid, aligned word; all access to it is atomic.
        unsafe { AtomicU32::from_ptr(self.address as *mut u32) }
    }

    fn broad(&self) -> &AtomicU64 {
        // SAFETY: as for `narrow`, and `wide` words have 8 bytes.
        unsafe { AtomicU64::from_ptr(self.address as *mut u64) }
    }

    pub(crate) fn load(self) -> u64 {
        if self.wide {
            self.broad().load(SeqCst)
        } else {
            self.narrow().load(SeqCst).into()
        }
    }

    pub(crate) fn store(self, value: u64) {
        if self.wide {
            self.broad().store(value, SeqCst);
        } else {
            self.narrow().store(value as u32, SeqCst);
        }
    }

    pub(crate) fn fetch_add(self, operand: u64) -> u64 {
        if self.wide {
            self.broad().fetch_add(operand, SeqCst)
        } else {
            self.narrow().fetch_add(operand as u32, SeqCst).into()
        }
    }

    /// Returns the value found.
    pub(crate) fn compare_exchange(self, expected: u64, desired: u64) -> u64 {
        let either = |result: Result<u64, u64>| result.unwrap_or_else(|found| found);
        if self.wide {
            either(
                self.broad()
                    .compare_exchange(expected, desired, SeqCst, SeqCst),
            )
        } else {
            let result =
                self.narrow()
                    .compare_exchange(expected as u32, desired as u32, SeqCst, SeqCst);
            either(result.map(u64::from).map_err(u64::from))
        }
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.address < other.address + other.bytes() && other.address < self.address + self.bytes()
    }

    /// `seen`, this word's bytes, with those that a store of `value` to `other`
    /// changes.
    pub(crate) fn overlay(self, seen: u64, other: Self, value: u64) -> u64 {
        let mut bytes = seen.to_le_bytes();
        for (i, byte) in value.to_le_bytes()[..other.bytes()].iter().enumerate() {
            let at = (other.address + i).wrapping_sub(self.address);
            if at < self.bytes() {
                bytes[at] = *byte;
            }
        }
        u64::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_stores_show_in_the_wide_word_over_them() {
        let memory = AtomicU64::new(0);
        let address = memory.as_ptr().expose_provenance();
        // SAFETY: both lie in `memory`, aligned.
        let (whole, high) = unsafe { (Word::new(address, 8), Word::new(address + 4, 4)) };
        assert!(whole.overlaps(high) && high.overlaps(whole));
        assert_eq!(whole.overlay(0x1111_1111_2222_2222, high, 7), 0x7_2222_2222);
        assert_eq!(high.overlay(9, whole, 0x1234_5678_0000_0000), 0x1234_5678);

        whole.store(u64::MAX);
        assert_eq!(high.fetch_add(2), u32::MAX.into());
        assert_eq!(whole.load(), 0x1_ffff_ffff);
        assert_eq!(high.compare_exchange(0, 5), 1);
        assert_eq!(high.compare_exchange(1, 5), 1);
        assert_eq!(whole.load(), 0x5_ffff_ffff);
    }
}
