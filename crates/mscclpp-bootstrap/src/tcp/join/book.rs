// SPDX-License-Identifier: MIT
//! Who has checked in with rank 0. No I/O.

use super::wire::{NAMED, Trouble};
use crate::collectives::tree;
use crate::tcp::node::Place;

/// The list of ranks as it fills.
#[derive(Debug)]
pub(super) struct Book {
    places: Vec<Option<Place>>,
    ready: Vec<bool>,
    absent: usize,
    not_ready: usize,
}

impl Book {
    /// A world in which rank 0 is in.
    pub(super) fn new(world: usize, mine: Place) -> Self {
        let mut places = vec![None; world];
        let mut ready = vec![false; world];
        places[0] = Some(mine);
        ready[0] = true;
        Self {
            places,
            ready,
            absent: world - 1,
            not_ready: world - 1,
        }
    }

    pub(super) fn world(&self) -> usize {
        self.places.len()
    }

    pub(super) fn check_in(&mut self, rank: u32, world: u32, place: Place) -> Result<(), Trouble> {
        let ours = self.places.len() as u32;
        if world != ours {
            return Err(Trouble::World {
                rank,
                theirs: world,
                ours,
            });
        }
        let Some(seat) = self.places.get_mut(rank as usize) else {
            return Err(Trouble::Other {
                rank,
                cause: format!("there is no such rank among {ours}"),
            });
        };
        if let Some(first) = seat {
            return Err(Trouble::Duplicate {
                rank,
                first: first.address.to_string(),
                second: place.address.to_string(),
            });
        }
        *seat = Some(place);
        self.absent -= 1;
        Ok(())
    }

    /// Where a rank that has checked in listens.
    pub(super) fn place(&self, rank: u32) -> Option<Place> {
        *self.places.get(rank as usize)?
    }

    pub(super) fn complete(&self) -> bool {
        self.absent == 0
    }

    /// Notes that a rank is connected to its parent; true if all are now.
    pub(super) fn ready(&mut self, rank: u32) -> bool {
        if let Some(ready) = self.ready.get_mut(rank as usize)
            && !std::mem::replace(ready, true)
        {
            self.not_ready -= 1;
        }
        self.all_ready()
    }

    pub(super) fn all_ready(&self) -> bool {
        self.not_ready == 0
    }

    /// The first ranks that have not checked in, or are not connected.
    pub(super) fn missing(&self) -> Vec<u32> {
        let late = |rank: &usize| {
            if self.complete() {
                !self.ready[*rank]
            } else {
                self.places[*rank].is_none()
            }
        };
        let late = (0..self.places.len()).filter(late);
        late.take(NAMED).map(|rank| rank as u32).collect()
    }

    /// Whom a rank connects to, once all are in.
    pub(super) fn parent(&self, rank: u32) -> Option<(u32, Place)> {
        let parent = tree::parent(rank as usize)?;
        Some((parent as u32, (*self.places.get(parent)?)?))
    }

    /// Where everybody is, once all are in.
    pub(super) fn places(&self) -> Vec<Place> {
        self.places.iter().copied().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(port: u16) -> Place {
        Place {
            address: ([127, 0, 0, 1], port).into(),
            host: 0,
        }
    }

    #[test]
    fn the_book_fills_and_names_who_is_missing() {
        let mut book = Book::new(4, place(10));
        assert_eq!(book.missing(), [1, 2, 3]);
        for rank in [3, 1] {
            book.check_in(rank, 4, place(10 + rank as u16)).unwrap();
        }
        assert_eq!(book.missing(), [2]);
        assert!(!book.complete());
        book.check_in(2, 4, place(12)).unwrap();
        assert!(book.complete());
        assert_eq!(book.parent(3), Some((2, place(12))));
        assert_eq!(book.parent(0), None);
        assert_eq!(book.places(), [10, 11, 12, 13].map(place));
        assert!(!book.ready(1));
        assert!(!book.ready(1));
        assert_eq!(book.missing(), [2, 3]);
        assert!(!book.ready(3));
        assert!(book.ready(2));
    }

    #[test]
    fn contradictions_are_told_apart() {
        let mut book = Book::new(3, place(10));
        assert!(matches!(
            book.check_in(1, 4, place(1)),
            Err(Trouble::World {
                rank: 1,
                theirs: 4,
                ours: 3
            })
        ));
        assert!(matches!(
            book.check_in(3, 3, place(1)),
            Err(Trouble::Other { rank: 3, .. })
        ));
        assert!(matches!(
            book.check_in(0, 3, place(1)),
            Err(Trouble::Duplicate { rank: 0, .. })
        ));
        book.check_in(1, 3, place(1)).unwrap();
        assert!(book.check_in(1, 3, place(2)).is_err());
        assert_eq!(book.missing(), [2]);
    }

    #[test]
    fn a_world_of_one_is_complete_at_once() {
        let book = Book::new(1, place(1));
        assert!(book.complete() && book.all_ready());
        assert!(book.missing().is_empty());
    }
}
