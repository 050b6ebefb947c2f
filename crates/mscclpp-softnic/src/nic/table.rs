// SPDX-License-Identifier: MIT

/// Objects by number. A freed number rests before it is used again, so that a
/// stale one is noticed and not taken for its successor.
#[derive(Debug)]
pub(crate) struct Table<T> {
    first: u32,
    slots: Vec<Option<T>>,
    free: std::collections::VecDeque<u32>,
    live: u64,
}

impl<T> Table<T> {
    /// Numbers that rest.
    const REST: usize = 64;

    /// Numbers from `first`.
    pub(crate) fn new(first: u32) -> Self {
        Self {
            first,
            slots: Vec::new(),
            free: Default::default(),
            live: 0,
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.live += 1;
        if self.free.len() > Self::REST
            && let Some(slot) = self.free.pop_front()
        {
            self.slots[slot as usize] = Some(value);
            return self.first + slot;
        }
        self.slots.push(Some(value));
        self.first + (self.slots.len() as u32 - 1)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let slot = number.checked_sub(self.first)?;
        let value = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push_back(slot);
        self.live -= 1;
        Some(value)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.slots
            .get(number.checked_sub(self.first)? as usize)?
            .as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slots
            .get_mut(number.checked_sub(self.first)? as usize)?
            .as_mut()
    }

    /// How many exist.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_number_rests() {
        let mut table = Table::new(0x40);
        let first = table.insert(1);
        assert_eq!(first, 0x40);
        assert_eq!(table.remove(first), Some(1));
        assert_eq!(table.remove(first), None);
        assert!(table.get(first).is_none());
        for _ in 0..64 {
            let number = table.insert(2);
            assert_ne!(number, first);
            table.remove(number);
        }
        assert_eq!(table.insert(3), first);
        assert_eq!(table.live(), 1);
        assert!(table.get(0x3f).is_none() && table.get(u32::MAX).is_none());
    }
}
