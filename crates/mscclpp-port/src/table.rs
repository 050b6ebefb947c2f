// SPDX-License-Identifier: MIT
//! Tables that grow while another thread reads them.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::{Error, Result};

/// A table of at most a fixed number of entries, handed out in order and never taken back.
///
/// Looking up takes one acquire load and never waits for whoever inserts, so a kernel may name an
/// id as soon as the insertion has returned it.
pub(crate) struct Table<T> {
    what: &'static str,
    slots: Box<[OnceLock<T>]>,
    len: Mutex<usize>,
}

impl<T> Table<T> {
    pub(crate) fn new(what: &'static str, limit: u32) -> Self {
        Self {
            what,
            slots: (0..limit).map(|_| OnceLock::new()).collect(),
            len: Mutex::new(0),
        }
    }

    /// Adds an entry, and returns its id.
    pub(crate) fn push(&self, value: T) -> Result<u32> {
        let mut len = self.len.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.slots.get(*len).ok_or_else(|| self.full(1))?;
        let id = *len as u32;
        // The slots are filled in order under the lock, so this one is empty.
        let _ = slot.set(value);
        *len += 1;
        Ok(id)
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.get()
    }

    pub(crate) fn len(&self) -> u32 {
        *self.len.lock().unwrap_or_else(PoisonError::into_inner) as u32
    }

    /// The id that the next entry will get, if `count` more have room.
    pub(crate) fn next(&self, count: u32) -> Result<u32> {
        let next = self.len();
        match next.checked_add(count) {
            Some(end) if end as usize <= self.slots.len() => Ok(next),
            _ => Err(self.full(count)),
        }
    }

    fn full(&self, asked: u32) -> Error {
        Error::TooMany {
            what: self.what,
            limit: self.slots.len() as u32,
            used: self.len_unlocked(),
            asked,
        }
    }

    /// The number of entries, for a caller that may hold the lock.
    fn len_unlocked(&self) -> u32 {
        self.slots.partition_point(|slot| slot.get().is_some()) as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn entries_are_numbered_in_order_up_to_the_limit() {
        let table = Table::new("things", 3);
        assert_eq!(table.next(3).unwrap(), 0);
        for id in 0..3 {
            assert_eq!(table.get(id), None);
            assert_eq!(table.push(id * 10).unwrap(), id);
            assert_eq!(table.get(id), Some(&(id * 10)));
        }
        assert!(table.next(1).is_err());
        assert!(table.next(u32::MAX).is_err());
        let error = table.push(0).unwrap_err();
        assert!(
            matches!(
                error,
                Error::TooMany {
                    limit: 3,
                    used: 3,
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(table.get(3), None);
    }
}
