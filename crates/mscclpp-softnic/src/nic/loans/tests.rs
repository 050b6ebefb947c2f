// SPDX-License-Identifier: MIT
use super::*;

const PEER: DeviceAddress = DeviceAddress([1; 16]);
const STRANGER: DeviceAddress = DeviceAddress([2; 16]);
const KEY: MemoryKey = MemoryKey::new(0x100);
const GPU: SpaceId = SpaceId(1);

fn connected() -> Loans {
    let mut loans = Loans::default();
    loans.connect(PEER);
    loans
}

fn orders(loans: &mut Loans) -> Vec<Do> {
    std::iter::from_fn(|| loans.next_order())
        .map(|order| {
            assert_eq!((order.peer, order.key), (PEER, KEY));
            order.what
        })
        .collect()
}

fn offer() -> Offer {
    Offer {
        address: 0x1000,
        length: 0x100,
        descriptor: false,
        description: Vec::new(),
    }
}

fn at(space: u16, address: u64) -> Place {
    let space = SpaceId(space);
    Place { space, address }
}

#[test]
fn a_registration_is_offered_once_and_used_when_it_is_taken() {
    let mut loans = connected();
    assert!(!loans.lends(PEER, KEY, SpaceId::HOST));
    assert!(!loans.lends(STRANGER, KEY, GPU));
    assert_eq!(orders(&mut loans), []);
    assert!(!loans.lends(PEER, KEY, GPU));
    assert!(!loans.lends(PEER, KEY, GPU));
    assert_eq!(orders(&mut loans), [Do::Offer]);
    loans.offers(PEER, KEY);
    loans.answered(PEER, KEY, true).unwrap();
    assert!(loans.lends(PEER, KEY, GPU));
    assert!(loans.answered(PEER, KEY, true).is_err());
    loans.withdraw(KEY);
    assert!(!loans.lends(PEER, KEY, GPU));
    assert_eq!(orders(&mut loans), [Do::Withdraw]);
    loans.released(PEER, KEY).unwrap();
    assert!(loans.released(PEER, KEY).is_err());
    assert_eq!(orders(&mut loans), [Do::Reclaim]);
    // The key may be another registration's now.
    assert!(!loans.lends(PEER, KEY, GPU));
    assert_eq!(orders(&mut loans), [Do::Offer]);
}

#[test]
fn one_that_is_declined_is_not_offered_again() {
    let mut loans = connected();
    loans.lends(PEER, KEY, GPU);
    loans.offers(PEER, KEY);
    loans.answered(PEER, KEY, false).unwrap();
    assert!(!loans.lends(PEER, KEY, GPU));
    assert_eq!(orders(&mut loans), [Do::Offer, Do::Reclaim]);
    loans.withdraw(KEY);
    assert_eq!(orders(&mut loans), []);
}

#[test]
fn one_that_ends_before_the_answer_is_withdrawn_after_it() {
    for (taken, then) in [(true, Do::Withdraw), (false, Do::Reclaim)] {
        let mut loans = connected();
        loans.lends(PEER, KEY, GPU);
        loans.withdraw(KEY);
        assert_eq!(orders(&mut loans), [Do::Offer]);
        loans.offers(PEER, KEY);
        loans.answered(PEER, KEY, taken).unwrap();
        assert!(!loans.lends(PEER, KEY, GPU));
        let next = orders(&mut loans);
        assert_eq!(next[0], then);
    }
}

#[test]
fn what_is_borrowed_is_found_within_its_bounds_until_it_is_withdrawn() {
    let mut loans = connected();
    let piece = |address, length| Piece {
        key: KEY,
        address,
        length,
    };
    assert_eq!(loans.locate(PEER, piece(0x1000, 1), GPU), None);
    assert!(loans.offered(PEER, KEY, &offer()).unwrap());
    assert!(loans.offered(PEER, KEY, &offer()).is_err());
    assert_eq!(loans.locate(PEER, piece(0x1000, 1), GPU), None);
    assert!(loans.withdrawn(PEER, KEY).is_err());
    loans.mapped(
        PEER,
        KEY,
        [at(2, 0x7000), at(1, 0x9000)].into_iter().collect(),
    );
    assert_eq!(orders(&mut loans), [Do::Take]);
    assert_eq!(loans.mappings(), 1);
    let found = |address, length| loans.locate(PEER, piece(address, length), GPU);
    assert_eq!(found(0x1000, 0x100), Some(at(1, 0x9000)));
    assert_eq!(found(0x10ff, 1), Some(at(1, 0x90ff)));
    for (address, length) in [(0xfff, 1), (0x1100, 1), (0x10ff, 2), (0x1001, u64::MAX)] {
        assert_eq!(found(address, length), None, "{address:#x} {length:#x}");
    }
    // Another memory gets it by the first that reaches it.
    let place = loans.locate(PEER, piece(0x1008, 8), SpaceId(3));
    assert_eq!(place, Some(at(2, 0x7008)));
    assert_eq!(loans.locate(STRANGER, piece(0x1000, 1), GPU), None);
    loans.withdrawn(PEER, KEY).unwrap();
    assert_eq!(loans.locate(PEER, piece(0x1000, 1), GPU), None);
    assert!(loans.withdrawn(PEER, KEY).is_err());
    assert!(loans.offered(PEER, KEY, &offer()).is_err());
    assert_eq!(orders(&mut loans), [Do::Release]);
    loans.left(PEER, KEY);
    assert!(loans.offered(PEER, KEY, &offer()).unwrap());
    loans.mapped(PEER, KEY, SmallVec::new());
    assert_eq!(orders(&mut loans), [Do::Decline]);
}

#[test]
fn a_peer_can_lend_only_so_much() {
    let mut loans = connected();
    for number in 0..MAX_BORROWED as u32 {
        let key = MemoryKey::new(0x1000 + number);
        assert!(loans.offered(PEER, key, &offer()).unwrap());
        loans.mapped(PEER, key, [at(1, 0x7000)].into_iter().collect());
        assert_eq!(loans.next_order().unwrap().what, Do::Take);
    }
    assert!(!loans.offered(PEER, KEY, &offer()).unwrap());
    assert_eq!(orders(&mut loans), [Do::Decline]);
}

/// Whether they are mapped, cannot be, or are more than are taken.
#[test]
fn an_offer_counts_until_its_answer_goes_to_the_link() {
    for (taken, places) in [(0, &[at(1, 0x7000)][..]), (0, &[]), (MAX_BORROWED, &[])] {
        let mut loans = connected();
        let key = |number: usize| MemoryKey::new(0x1000 + number as u32);
        for number in 0..taken {
            loans.offered(PEER, key(number), &offer()).unwrap();
            let places = [at(1, 0x7000)].into_iter().collect();
            loans.mapped(PEER, key(number), places);
            loans.next_order();
        }
        for number in taken..taken + MAX_UNANSWERED {
            if loans.offered(PEER, key(number), &offer()).unwrap() {
                loans.mapped(PEER, key(number), places.iter().copied().collect());
            }
        }
        assert!(loans.offered(PEER, KEY, &offer()).is_err());
        loans.next_order();
        loans.offered(PEER, KEY, &offer()).unwrap();
        let other = key(taken + MAX_UNANSWERED);
        assert!(loans.offered(PEER, other, &offer()).is_err());
        // What is declined may be offered again when that is said.
        if places.is_empty() {
            loans.next_order();
            loans.offered(PEER, key(taken), &offer()).unwrap();
        }
    }
}

#[test]
fn nothing_is_answered_before_it_was_offered() {
    for taken in [false, true] {
        let mut loans = connected();
        loans.lends(PEER, KEY, GPU);
        assert!(loans.answered(PEER, KEY, taken).is_err());
        assert_eq!(orders(&mut loans), [Do::Offer]);
        assert!(loans.answered(PEER, KEY, taken).is_err());
        loans.not_offered(PEER, KEY);
        assert_eq!(orders(&mut loans), [Do::Reclaim]);
        assert!(loans.answered(PEER, KEY, taken).is_err());
    }
}

/// Those that were withdrawn and not released count, too: their owners are kept.
#[test]
fn a_peer_takes_no_more_than_a_device_does() {
    let mut loans = connected();
    let key = |number: usize| MemoryKey::new(0x1000 + number as u32);
    for number in 0..=MAX_BORROWED {
        loans.lends(PEER, key(number), GPU);
        loans.offers(PEER, key(number));
        let answered = loans.answered(PEER, key(number), true);
        assert_eq!(answered.is_ok(), number < MAX_BORROWED);
        loans.withdraw(key(number));
    }
    loans.released(PEER, key(0)).unwrap();
    loans.answered(PEER, key(MAX_BORROWED), true).unwrap();
}

#[test]
fn a_link_that_is_gone_takes_everything_with_it() {
    let mut loans = connected();
    loans.lends(PEER, KEY, GPU);
    loans.offered(PEER, KEY, &offer()).unwrap();
    loans.mapped(PEER, KEY, [at(1, 0)].into_iter().collect());
    loans.disconnect(PEER);
    assert_eq!(orders(&mut loans), []);
    assert_eq!(loans.mappings(), 0);
    loans.connect(PEER);
    let piece = Piece {
        key: KEY,
        address: 0x1000,
        length: 1,
    };
    assert_eq!(loans.locate(PEER, piece, GPU), None);
    assert!(!loans.lends(PEER, KEY, GPU));
    assert_eq!(orders(&mut loans), [Do::Offer]);
}
