// SPDX-License-Identifier: MIT
//! Two devices that lend to each other, over a link that keeps the order and may
//! break, in any order of everything else.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// More than may be offered at a time, and than are taken.
const KEYS: usize = 48;
const _: () = assert!(KEYS > MAX_UNANSWERED && KEYS > MAX_BORROWED);
const LENGTH: u64 = 0x100;
const GPU: SpaceId = SpaceId(1);

#[derive(Clone, Debug)]
enum Step {
    Register(usize),
    Deregister(usize),
    /// A payload of this registration goes to the peer.
    Send(usize),
    /// One of each.
    Burst,
    /// Carries out what the state machine wants next.
    Order,
    /// What was asked for first ends, well or not.
    Export(bool),
    Import(bool),
    /// The last access ends that may touch a mapping.
    Release,
    /// What the peer has said comes.
    Deliver,
    Hang,
    /// There is a new link.
    Link,
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let key = || 0..KEYS;
    let step = prop_oneof![
        4 => key().prop_map(Step::Register),
        2 => key().prop_map(Step::Deregister),
        8 => key().prop_map(Step::Send),
        8 => Just(Step::Order),
        4 => prop::bool::weighted(0.9).prop_map(Step::Export),
        4 => prop::bool::weighted(0.9).prop_map(Step::Import),
        2 => Just(Step::Release),
        8 => Just(Step::Deliver),
    ];
    let rare = prop_oneof![Just(Step::Burst), Just(Step::Hang), Just(Step::Link)];
    (0..2usize, prop_oneof![100 => step, 1 => rare])
}

/// One of the many registrations that a key has been.
type Instance = u64;

/// Where one lies, at both ends.
fn address(instance: Instance) -> u64 {
    (instance + 1) * LENGTH
}

enum Said {
    Notice(MemoryKey, Notice),
    /// The place of a payload.
    Packet(MemoryKey, Instance),
    End,
}

/// What an end has of a mapping.
#[derive(Clone, Copy, PartialEq)]
struct Mapped {
    instance: Instance,
    withdrawn: bool,
}

#[derive(Default)]
struct End {
    loans: Loans,
    up: bool,
    registered: HashMap<MemoryKey, Instance>,
    /// Owners, none for what had been deregistered before it could be kept.
    kept: HashMap<MemoryKey, Option<Instance>>,
    mapped: HashMap<MemoryKey, Mapped>,
    /// What a key was last that is not mapped any more.
    released: HashMap<MemoryKey, Instance>,
    exports: VecDeque<(usize, MemoryKey, Instance)>,
    imports: VecDeque<(usize, MemoryKey, Instance)>,
    releases: VecDeque<(usize, MemoryKey)>,
    /// What the peer has said.
    coming: VecDeque<Said>,
}

impl End {
    fn down(&mut self, peer: DeviceAddress) {
        self.loans.disconnect(peer);
        self.up = false;
        self.kept.clear();
        let mapped = self.mapped.drain();
        (self.released).extend(mapped.map(|(key, mapped)| (key, mapped.instance)));
        self.coming.clear();
    }
}

#[derive(Default)]
struct Pair {
    ends: [End; 2],
    /// Links there have been.
    links: usize,
    instances: Instance,
}

const PEERS: [DeviceAddress; 2] = [DeviceAddress([1; 16]), DeviceAddress([2; 16])];

fn key(number: usize) -> MemoryKey {
    MemoryKey::new(number as u32)
}

impl Pair {
    fn say(&mut self, from: usize, said: Said) {
        let peer = &mut self.ends[from ^ 1];
        if peer.up {
            peer.coming.push_back(said);
        }
    }

    fn tell(&mut self, from: usize, key: MemoryKey, notice: Notice) {
        self.say(from, Said::Notice(key, notice));
    }

    fn hang_up(&mut self, at: usize) {
        let end = &mut self.ends[at];
        if end.up {
            end.down(PEERS[at ^ 1]);
            self.say(at, Said::End);
        }
    }

    fn link(&mut self) {
        self.links += 1;
        for (at, end) in self.ends.iter_mut().enumerate() {
            end.down(PEERS[at ^ 1]);
            end.loans.connect(PEERS[at ^ 1]);
            end.up = true;
        }
    }

    fn order(&mut self, at: usize) {
        let (end, peer) = (&mut self.ends[at], PEERS[at ^ 1]);
        let Some(Order { key, what, .. }) = end.loans.next_order() else {
            return;
        };
        match what {
            Do::Offer => {
                let instance = end.registered.get(&key).copied();
                let before = end.kept.insert(key, instance);
                assert_eq!(before, None, "an owner in the place of another");
                match instance {
                    Some(instance) => end.exports.push_back((self.links, key, instance)),
                    None => end.loans.not_offered(peer, key),
                }
            }
            Do::Withdraw => self.tell(at, key, Notice::Withdrawn),
            Do::Reclaim => {
                let owner = end.kept.remove(&key).expect("an owner, once");
                let mapped = self.ends[at ^ 1].mapped.get(&key);
                let used = mapped.filter(|mapped| Some(mapped.instance) == owner);
                assert!(used.is_none(), "memory that is mapped is let go");
            }
            Do::Take => self.tell(at, key, Notice::Taken),
            Do::Decline => self.tell(at, key, Notice::Declined),
            Do::Release => end.releases.push_back((self.links, key)),
        }
    }

    fn export(&mut self, at: usize, well: bool) {
        let (end, peer) = (&mut self.ends[at], PEERS[at ^ 1]);
        match end.exports.pop_front() {
            Some((link, key, instance)) if link == self.links && end.up => {
                if !well {
                    return end.loans.not_offered(peer, key);
                }
                end.loans.offers(peer, key);
                let offer = Offer {
                    address: address(instance),
                    length: LENGTH,
                    descriptor: false,
                    description: instance.to_le_bytes().to_vec(),
                };
                self.tell(at, key, Notice::Offered(offer));
            }
            _ => {}
        }
    }

    fn import(&mut self, at: usize, well: bool) {
        let (end, peer) = (&mut self.ends[at], PEERS[at ^ 1]);
        match end.imports.pop_front() {
            Some((link, key, instance)) if link == self.links && end.up => {
                let mut places = SmallVec::new();
                if well {
                    let address = address(instance);
                    places.push(Place {
                        space: GPU,
                        address,
                    });
                    let withdrawn = false;
                    let mapped = Mapped {
                        instance,
                        withdrawn,
                    };
                    assert!(end.mapped.insert(key, mapped).is_none());
                    // It may have been over an earlier link.
                    end.released.retain(|_, released| *released != instance);
                }
                end.loans.mapped(peer, key, places);
            }
            _ => {}
        }
    }

    fn release(&mut self, at: usize) {
        let (end, peer) = (&mut self.ends[at], PEERS[at ^ 1]);
        match end.releases.pop_front() {
            Some((link, key)) if link == self.links && end.up => {
                let mapped = end.mapped.remove(&key).unwrap();
                end.released.insert(key, mapped.instance);
                end.loans.left(peer, key);
                self.tell(at, key, Notice::Released);
            }
            _ => {}
        }
    }

    fn deliver(&mut self, at: usize) {
        let (end, peer) = (&mut self.ends[at], PEERS[at ^ 1]);
        let (key, notice) = match end.coming.pop_front() {
            None => return,
            Some(Said::End) => return end.down(peer),
            Some(Said::Packet(key, instance)) => {
                let found = end.find(peer, key, instance);
                return assert!(found, "what is named is not found");
            }
            Some(Said::Notice(key, notice)) => (key, notice),
        };
        let loans = &mut end.loans;
        match notice {
            Notice::Offered(offer) => {
                let instance = offer.description.as_array().unwrap();
                let instance = Instance::from_le_bytes(*instance);
                if loans.offered(peer, key, &offer).unwrap() {
                    end.imports.push_back((self.links, key, instance));
                }
            }
            Notice::Taken => loans.answered(peer, key, true).unwrap(),
            Notice::Declined => loans.answered(peer, key, false).unwrap(),
            Notice::Withdrawn => {
                loans.withdrawn(peer, key).unwrap();
                end.mapped.get_mut(&key).unwrap().withdrawn = true;
            }
            Notice::Released => loans.released(peer, key).unwrap(),
        }
    }

    fn take(&mut self, at: usize, step: &Step) {
        let (end, peer) = (&mut self.ends[at], PEERS[at ^ 1]);
        match *step {
            Step::Register(number) => {
                self.instances += 1;
                let instance = self.instances;
                end.registered.entry(key(number)).or_insert(instance);
            }
            Step::Deregister(number) => {
                if end.registered.remove(&key(number)).is_some() {
                    end.loans.withdraw(key(number));
                }
            }
            Step::Send(number) => {
                let key = key(number);
                if let Some(&instance) = end.registered.get(&key)
                    && end.loans.lends(peer, key, GPU)
                {
                    assert_eq!(end.kept.get(&key), Some(&Some(instance)));
                    self.say(at, Said::Packet(key, instance));
                }
            }
            Step::Burst => {
                for number in 0..KEYS {
                    self.take(at, &Step::Register(number));
                    self.take(at, &Step::Send(number));
                }
            }
            Step::Order => self.order(at),
            Step::Export(well) => self.export(at, well),
            Step::Import(well) => self.import(at, well),
            Step::Release => self.release(at),
            Step::Deliver => self.deliver(at),
            Step::Hang => self.hang_up(at),
            Step::Link => self.link(),
        }
    }

    /// All that is under way ends.
    fn settle(&mut self) {
        let rest = [
            Step::Order,
            Step::Export(true),
            Step::Import(true),
            Step::Release,
            Step::Deliver,
        ];
        // Of what is there at most six things follow one from the other.
        for _ in 0..6 * 6 * KEYS {
            for at in 0..2 {
                for step in &rest {
                    self.take(at, step);
                }
            }
        }
    }

    fn check(&self) {
        for (at, end) in self.ends.iter().enumerate() {
            let peer = PEERS[at ^ 1];
            end.loans.check();
            // What is on its way counts with who waits for it.
            let other = &self.ends[at ^ 1].loans;
            if let ([lender], [borrower]) = (&end.loans.peers[..], &other.peers[..]) {
                assert!(borrower.asked <= lender.unanswered);
            }
            for (&key, mapped) in &end.mapped {
                assert_eq!(end.find(peer, key, mapped.instance), !mapped.withdrawn);
            }
            for (&key, &instance) in &end.released {
                assert!(!end.find(peer, key, instance), "what was let go is found");
            }
            let usable = end.mapped.values().filter(|mapped| !mapped.withdrawn);
            assert_eq!(end.loans.mappings(), usable.count() as u64);
        }
    }
}

impl End {
    /// Whether one of the peer's registrations is found where it was mapped.
    fn find(&self, peer: DeviceAddress, key: MemoryKey, instance: Instance) -> bool {
        let address = address(instance);
        let piece = Piece {
            key,
            address,
            length: LENGTH,
        };
        let place = Place {
            space: GPU,
            address,
        };
        let found = self.loans.locate(peer, piece, GPU);
        assert!(found.is_none_or(|found| found == place));
        found.is_some()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn two_devices_agree_on_what_is_lent(
        steps in prop::collection::vec(step(), 0..1000),
    ) {
        let mut pair = Pair::default();
        pair.link();
        for (at, step) in &steps {
            pair.take(*at, step);
            pair.check();
        }
        for at in 0..2 {
            for number in 0..KEYS {
                pair.take(at, &Step::Deregister(number));
            }
        }
        pair.settle();
        pair.check();
        for end in &pair.ends {
            prop_assert!(end.kept.is_empty() && end.mapped.is_empty());
            prop_assert!(!end.loans.has_orders());
            for peer in &end.loans.peers {
                prop_assert!(peer.lent.is_empty() && peer.borrowed.is_empty());
            }
        }
    }
}
