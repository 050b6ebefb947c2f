// SPDX-License-Identifier: MIT
//! A device and a peer that says anything, and reads nothing for long.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const KEYS: u32 = 100;
const PEER: DeviceAddress = DeviceAddress([1; 16]);
const GPU: SpaceId = SpaceId(1);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A payload of this registration goes to the peer.
    Send,
    Deregister,
    /// All that is being exported, or imported, ends, well or not.
    Export(bool),
    Import(bool),
    /// The link takes this many orders.
    Orders(u32),
    /// What the peer says, with or without reason.
    Offered,
    Answered(bool),
    Withdrawn,
    Released,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => Just(Step::Send),
        10 => Just(Step::Deregister),
        10 => prop::bool::ANY.prop_map(Step::Export),
        10 => prop::bool::ANY.prop_map(Step::Import),
        1 => (1..200u32).prop_map(Step::Orders),
        20 => Just(Step::Offered),
        20 => prop::bool::ANY.prop_map(Step::Answered),
        20 => Just(Step::Withdrawn),
        20 => Just(Step::Released),
    ]
}

#[derive(Default)]
struct Device {
    loans: Loans,
    exports: Vec<MemoryKey>,
    imports: Vec<MemoryKey>,
}

impl Device {
    fn order(&mut self) {
        let Some(Order { key, what, .. }) = self.loans.next_order() else {
            return;
        };
        match what {
            Do::Offer => self.exports.push(key),
            Do::Release => self.loans.left(PEER, key),
            Do::Withdraw | Do::Reclaim | Do::Take | Do::Decline => {}
        }
    }

    /// `reason`: only if there is one, so that the link lasts for a while.
    fn take(&mut self, step: Step, key: MemoryKey, reason: bool) -> Result<(), OutOfStep> {
        let peer = self.loans.peer(PEER).unwrap();
        let (lent, borrowed) = (peer.lent.get(&key), peer.borrowed.get(&key));
        let said = match step {
            Step::Offered => borrowed.is_none() && peer.asked < MAX_UNANSWERED,
            Step::Answered(taken) => {
                matches!(lent, Some(Lent::Offered { said: true, .. }))
                    && (!taken || peer.taken < MAX_BORROWED)
            }
            Step::Withdrawn => matches!(borrowed, Some(Borrowed::Mapped(_))),
            Step::Released => lent == Some(&Lent::Leaving),
            _ => true,
        };
        if reason && !said {
            return Ok(());
        }
        let loans = &mut self.loans;
        match step {
            Step::Send => drop(loans.lends(PEER, key, GPU)),
            Step::Deregister => loans.withdraw(key),
            Step::Export(well) => {
                for key in self.exports.drain(..) {
                    match well {
                        true => loans.offers(PEER, key),
                        false => loans.not_offered(PEER, key),
                    }
                }
            }
            Step::Import(well) => {
                for key in self.imports.drain(..) {
                    let place = Place {
                        space: GPU,
                        address: 0,
                    };
                    let places = well.then_some(place);
                    loans.mapped(PEER, key, places.into_iter().collect());
                }
            }
            Step::Orders(count) => (0..count).for_each(|_| self.order()),
            Step::Offered => {
                let offer = Offer {
                    address: 0,
                    length: 1,
                    descriptor: false,
                    description: Vec::new(),
                };
                if loans.offered(PEER, key, &offer)? {
                    self.imports.push(key);
                }
            }
            Step::Answered(taken) => loans.answered(PEER, key, taken)?,
            Step::Withdrawn => loans.withdrawn(PEER, key)?,
            Step::Released => loans.released(PEER, key)?,
        }
        // What the peer says without reason would be refused.
        assert!(said, "{step:?} is taken in");
        Ok(())
    }
}

impl Loans {
    /// Its counts are right, and all that it remembers is bounded.
    pub(super) fn check(&self) {
        let waiting = |device, what: &[Do]| {
            let waiting = self.orders.iter();
            let waiting =
                waiting.filter(|order| order.peer == device && what.contains(&order.what));
            waiting.count()
        };
        for peer in &self.peers {
            let offered = |lent: &&Lent| matches!(lent, Lent::Offered { .. });
            let taken = |lent: &&Lent| matches!(lent, Lent::Taken | Lent::Leaving);
            let asked = |borrowed: &&Borrowed| matches!(borrowed, Borrowed::Asked { .. });
            assert_eq!(peer.unanswered, peer.lent.values().filter(offered).count());
            assert_eq!(peer.taken, peer.lent.values().filter(taken).count());
            let asked = peer.borrowed.values().filter(asked).count();
            let unsaid = waiting(peer.device, &[Do::Take, Do::Decline]);
            assert_eq!(peer.asked, asked + unsaid);
            assert!(peer.unanswered <= MAX_UNANSWERED && peer.asked <= MAX_UNANSWERED);
            assert!(peer.taken <= MAX_BORROWED);
            assert!(peer.borrowed.len() <= MAX_BORROWED + MAX_UNANSWERED);
            assert!(waiting(peer.device, &[Do::Offer]) <= MAX_UNANSWERED);
            assert!(waiting(peer.device, &[Do::Withdraw]) <= MAX_BORROWED);
            assert!(waiting(peer.device, &[Do::Release]) <= MAX_BORROWED);
            let most = MAX_BORROWED + MAX_UNANSWERED;
            assert!(waiting(peer.device, &[Do::Reclaim]) <= most);
        }
        let mut distinct = HashSet::new();
        for Order { peer, key, what } in &self.orders {
            assert!(distinct.insert((peer, key, *what as u8)), "{what:?} twice");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_a_peer_has_a_device_remember_is_bounded(
        steps in prop::collection::vec(
            (step(), 0..KEYS, prop::bool::weighted(0.999)),
            0..3000,
        ),
    ) {
        let mut device = Device::default();
        device.loans.connect(PEER);
        for (step, key, reason) in steps {
            if device.take(step, MemoryKey::new(key), reason).is_err() {
                device = Device::default();
                device.loans.connect(PEER);
            }
            device.loans.check();
        }
    }
}
