// SPDX-License-Identifier: MIT
//! What is kept of a peer that sends as it likes, while this device can do nothing because a link
//! takes nothing.

use super::packet::{Part, Payload};
use super::responder::{MOST_ANSWERS, MOST_HELD, REACH};
use super::transmit::MOST_UNACKNOWLEDGED;
use super::*;
use crate::config::Acknowledge;
use crate::memory::Bytes;
use crate::queue_config::{QueueAddress, ReceiveAttributes};
use crate::region::{AccessFlags, WriteOrdering};

const PEER: DeviceAddress = DeviceAddress([1; 16]);
/// More than anything that waits may be.
const FLOOD: u64 = 300_000;
/// What may wait of one queue: its requests, and as many answers.
const MOST: u64 = 2 * REACH;
const _: () = assert!(FLOOD > MOST_ANSWERS + MOST);

struct Target {
    nic: Nic,
    queue: QueueNumber,
    theirs: QueueNumber,
    key: MemoryKey,
}

impl Target {
    /// A queue pair that answers a peer's requests.
    fn new(acknowledge: Acknowledge) -> Self {
        let mut nic = Nic::new(DeviceConfig {
            acknowledge,
            ..DeviceConfig::default()
        });
        nic.common.accesses.add_space(true);
        let place = |address| Place {
            space: SpaceId(0),
            address,
        };
        let ring = RingSize::new(64).unwrap();
        let domain = nic.add_domain();
        let key = nic.add_region(Region {
            domain,
            space: SpaceId(0),
            address: 0x1000,
            length: 0x1000,
            access: AccessFlags::ALL,
            ordering: WriteOrdering::Relaxed,
            variant: 0,
        });
        let completions = nic.add_completion_queue(place(0x10_0000), ring);
        let page = nic.add_page();
        let queue = nic
            .add_queue_pair(QueuePairParts {
                domain,
                page,
                trigger: TriggerMode::Doorbell,
                ring: place(0x20_0000),
                blocks: ring,
                record: place(0x30_0000),
                completions,
                receive: Some(ReceiveParts {
                    ring: place(0x40_0000),
                    entries: ring,
                    segments: 1,
                    completions,
                }),
            })
            .unwrap();
        let theirs = QueueNumber::new(0x77).unwrap();
        let remote = QueueAddress {
            device: PEER,
            queue: theirs,
        };
        let connect = ReceiveAttributes::new(remote);
        for step in [
            Transition::Init(InitAttributes::ALL),
            Transition::ReadyToReceive(connect),
        ] {
            nic.transition(queue, step).unwrap();
        }
        Self {
            nic,
            queue,
            theirs,
            key,
        }
    }

    fn hear(&mut self, number: u64, body: Body) {
        let packet = Packet {
            to: self.queue,
            from: self.theirs,
            number,
            body,
        };
        self.nic.packet(PEER, packet);
    }

    fn write(&self) -> Body {
        Body::Write {
            key: self.key,
            address: 0x1000,
            part: word(),
            immediate: None,
            payload: Payload::Bytes(Bytes::from_elem(7, 8)),
        }
    }

    fn read(&self) -> Body {
        Body::Read {
            key: self.key,
            address: 0x1000,
            length: 8,
            packets: 1,
        }
    }

    /// What waits to be done, answers to be sent included.
    fn waiting(&self) -> u64 {
        let pair = self.nic.queues.get(self.queue.get()).unwrap();
        let kept = pair.responder.operations.len() + pair.responder.held.len();
        (kept + self.nic.common.network.waiting()) as u64
    }

    fn lost(&self) -> u64 {
        self.nic.common.counters.packets_lost
    }

    /// Does what is to be done, as memory that does it at once.
    fn work(&mut self) -> Vec<Packet> {
        let mut sent = Vec::new();
        while let Some(effect) = self.nic.next() {
            match effect {
                Effect::Start(start) => {
                    let bytes = match start.access {
                        crate::memory::Access::Read { bytes, .. } => bytes,
                        _ => Bytes::new(),
                    };
                    self.nic.access_done(start.id, Ok(bytes));
                }
                Effect::Transmit(_, packet) => sent.push(*packet),
                Effect::Lend(_) => {}
            }
        }
        sent
    }
}

fn word() -> Part {
    Part {
        total: 8,
        offset: 0,
        length: 8,
        packets: 1,
    }
}

#[test]
fn writes_beyond_any_window_are_lost_and_taken_when_it_has_moved() {
    for acknowledge in [Acknowledge::Landed, Acknowledge::Accepted] {
        let mut target = Target::new(acknowledge);
        for number in 0..FLOOD {
            target.hear(number, target.write());
        }
        assert!(target.waiting() < MOST, "{}", target.waiting());
        let taken = FLOOD - target.lost();
        assert!((MOST_UNACKNOWLEDGED..MOST).contains(&taken), "{taken}");
        let last = target.work().pop().unwrap();
        assert_eq!((last.number, last.body), (taken - 1, Body::Acknowledge));
        target.hear(taken, target.write());
        assert_eq!(target.work().pop().unwrap().number, taken);
    }
}

#[test]
fn a_write_is_not_accepted_early_beyond_a_window() {
    let mut target = Target::new(Acknowledge::Accepted);
    let mut acknowledged = 0;
    for number in 0..6000 {
        target.hear(number, target.write());
        while let Some((_, packet)) = target.nic.common.network.arrive(Time::ZERO) {
            assert_eq!(packet.body, Body::Acknowledge);
            acknowledged = packet.number + 1;
        }
    }
    assert_eq!((acknowledged, target.lost()), (MOST_UNACKNOWLEDGED, 0));
    assert_eq!(target.work().pop().unwrap().number, 5999);
}

#[test]
fn what_comes_again_and_again_is_not_answered_without_end() {
    let mut target = Target::new(Acknowledge::Landed);
    target.hear(0, target.write());
    assert_eq!(target.work().len(), 1);
    for _ in 0..FLOOD {
        target.hear(0, target.write());
    }
    assert_eq!(target.waiting(), MOST_ANSWERS);
    assert_eq!(target.lost(), FLOOD - MOST_ANSWERS);
    // An answer that is lost is asked for again.
    target.work();
    target.hear(0, target.write());
    assert_eq!(target.work().pop().unwrap().body, Body::Acknowledge);
}

#[test]
fn reads_that_come_again_are_answered_as_many_at_a_time_as_may_be() {
    let mut target = Target::new(Acknowledge::Landed);
    for number in 0..FLOOD {
        target.hear(number, target.read());
        target.work();
    }
    for number in 0..FLOOD {
        target.hear(number, target.read());
    }
    assert_eq!((target.waiting(), target.lost()), (16, FLOOD - 16));
    assert_eq!(target.work().len(), 16);
}

#[test]
fn messages_that_find_no_receive_request_are_not_kept_without_end() {
    let mut target = Target::new(Acknowledge::Landed);
    let message = Body::Send {
        part: word(),
        immediate: None,
        payload: Payload::Bytes(Bytes::from_elem(7, 8)),
    };
    // The record is being read.
    for number in 0..FLOOD {
        target.hear(number, message.clone());
    }
    assert_eq!(target.waiting(), MOST_HELD);
    // What needs none is no way around it.
    target.hear(FLOOD, target.write());
    assert_eq!(target.lost(), FLOOD + 1 - MOST_HELD);
    let answers = target.work();
    let not_ready = |packet: &Packet| matches!(packet.body, Body::Refuse(_));
    assert!(!answers.is_empty() && answers.iter().all(not_ready));
}

/// A read takes as many numbers as its answer has packets, and what is sent behind it is within the
/// window of its last.
#[test]
fn what_comes_behind_a_long_read_is_taken() {
    let mut target = Target::new(Acknowledge::Landed);
    let packets = 2 * REACH;
    let long = Body::Read {
        key: target.key,
        address: 0x1000,
        length: 8,
        packets,
    };
    target.hear(0, long.clone());
    target.hear(packets, target.write());
    assert_eq!((target.waiting(), target.lost()), (2, 0));
    target.work();
    // Also when it is asked for again.
    target.hear(0, long);
    target.hear(packets + 1, target.write());
    assert_eq!((target.waiting(), target.lost()), (2, 0));
}

/// Trains of packets are acknowledged as a whole.
#[test]
fn a_peer_that_keeps_to_its_window_loses_nothing_however_long_its_trains() {
    let train = |target: &Target, packets| Body::Write {
        key: target.key,
        address: 0x1000,
        part: Part { packets, ..word() },
        immediate: None,
        payload: Payload::Bytes(Bytes::from_elem(7, 8)),
    };
    for lengths in [[256, 144], [256, 256], [1, 255]] {
        let mut target = Target::new(Acknowledge::Accepted);
        let (mut next, mut acknowledged) = (0, 0);
        let mut lengths = lengths.into_iter().cycle();
        while next - acknowledged < MOST_UNACKNOWLEDGED {
            let packets = lengths.next().unwrap();
            target.hear(next, train(&target, packets));
            next += packets;
            while let Some((_, packet)) = target.nic.common.network.arrive(Time::ZERO) {
                assert_eq!(packet.body, Body::Acknowledge);
                acknowledged = packet.number + 1;
            }
        }
        assert_eq!(target.lost(), 0);
        assert!(acknowledged > MOST_UNACKNOWLEDGED / 2, "{acknowledged}");
        assert_eq!(target.work().pop().unwrap().number, next - 1);
    }
}
