// SPDX-License-Identifier: MIT
//! Connections that have proven nothing yet, and who has to go when there are
//! too many.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One connection that has proven nothing yet.
#[derive(Debug)]
pub(super) struct Guest<H> {
    /// Its address; those of this host have none and count as one.
    from: Option<IpAddr>,
    /// Set once it has named an id that the acceptor knows.
    pub(super) promising: Arc<AtomicBool>,
    /// What ends it.
    pub(super) handle: H,
}

/// All connections that have proven nothing yet, by order of arrival.
#[derive(Debug)]
pub(super) struct Guests<H> {
    guests: BTreeMap<u64, Guest<H>>,
    next: u64,
    limit: usize,
}

impl<H> Guests<H> {
    /// Room for `limit` guests, at least 2.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            guests: BTreeMap::new(),
            next: 0,
            limit: limit.max(2),
        }
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Takes a guest in; returns the one that has to go for it, if any.
    pub(super) fn enter(
        &mut self,
        from: Option<IpAddr>,
        promising: Arc<AtomicBool>,
        handle: H,
    ) -> Option<Guest<H>> {
        let leaving = if self.guests.len() >= self.limit {
            self.evict()
        } else {
            None
        };
        self.guests.insert(
            self.next,
            Guest {
                from,
                promising,
                handle,
            },
        );
        self.next += 1;
        leaving
    }

    pub(super) fn leave(&mut self, number: u64) {
        self.guests.remove(&number);
    }

    /// Chooses who goes: first those who named nothing that is known, among them
    /// those from the address that holds most places, among them the one that is
    /// here longest. So a flood displaces itself.
    pub(super) fn evict(&mut self) -> Option<Guest<H>> {
        let mut held: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for guest in self.guests.values() {
            *held.entry(guest.from).or_default() += 1;
        }
        let number = self
            .guests
            .iter()
            .min_by_key(|(number, guest)| {
                let places = held.get(&guest.from).copied().unwrap_or(0);
                (
                    guest.promising.load(Ordering::Relaxed),
                    std::cmp::Reverse(places),
                    **number,
                )
            })
            .map(|(number, _)| *number)?;
        self.guests.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn enter(guests: &mut Guests<u32>, from: u8, promising: bool, name: u32) -> Option<u32> {
        guests
            .enter(Some(ip(from)), Arc::new(promising.into()), name)
            .map(|g| g.handle)
    }

    #[test]
    fn nobody_goes_while_there_is_room() {
        let mut guests = Guests::new(3);
        for name in 0..3 {
            assert_eq!(enter(&mut guests, 1, false, name), None);
        }
        guests.leave(0);
        assert_eq!(enter(&mut guests, 1, false, 3), None);
        assert_eq!(enter(&mut guests, 1, false, 4), Some(1));
    }

    #[test]
    fn a_flood_from_one_address_displaces_itself() {
        let mut guests = Guests::new(4);
        enter(&mut guests, 9, false, 100);
        for name in 0..50 {
            assert_ne!(enter(&mut guests, 1, false, name), Some(100));
        }
    }

    #[test]
    fn those_who_know_an_id_outlast_those_who_do_not() {
        let mut guests = Guests::new(4);
        enter(&mut guests, 1, true, 100);
        for name in 0..50 {
            assert_ne!(enter(&mut guests, 1, false, name), Some(100));
        }
        // And even they do not block the door for ever.
        let mut guests = Guests::new(2);
        enter(&mut guests, 1, true, 0);
        enter(&mut guests, 1, true, 1);
        assert_eq!(enter(&mut guests, 2, true, 2), Some(0));
    }
}
