// SPDX-License-Identifier: MIT
//! What all queue pairs of a device share.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use mlx5_queue::{Entry, QueueIndex, QueueNumber};

use super::access::Accesses;
use super::completion::CompletionRing;
use super::loans::Loans;
use super::network::Network;
use super::packet::Packet;
use super::regions::Regions;
use super::table::Table;
use crate::capability::DeviceAddress;
use crate::config::DeviceConfig;
use crate::counters::Counters;
use crate::event::Event;
use crate::observer::{Seen, Watched};
use crate::time::Time;
use crate::violation::{Violation, ViolationKind};

/// Reports kept until they are asked for; more are dropped.
const MAX_VIOLATIONS: usize = 1024;

#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) now: Time,
    pub(crate) rng: fastrand::Rng,
    pub(crate) config: DeviceConfig,
    pub(crate) watched: Watched,
    pub(crate) address: DeviceAddress,
    pub(crate) accesses: Accesses,
    pub(crate) regions: Regions,
    pub(crate) loans: Loans,
    pub(crate) completions: Table<CompletionRing>,
    pub(crate) network: Network,
    pub(crate) counters: Counters,
    pub(crate) violations: Vec<Violation>,
    /// What has happened since the shell last asked: at most one event a
    /// queue pair.
    pub(crate) events: Vec<Event>,
    alarms: BinaryHeap<Reverse<(Time, u32)>>,
    /// Words on which an atomic is under way.
    pub(crate) locked: Vec<u64>,
    /// Queue pairs that wait for one of them.
    pub(crate) waiting: Vec<QueueNumber>,
    /// One of the words has been unlocked since.
    pub(crate) unlocked: bool,
}

impl Common {
    pub(crate) fn new(config: DeviceConfig) -> Self {
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let variant = rng.u8(..);
        Self {
            now: Time::ZERO,
            watched: Watched::default(),
            rng,
            address: DeviceAddress(random_address()),
            accesses: Accesses::default(),
            regions: Regions::new(variant),
            loans: Loans::default(),
            completions: Table::new(0x40),
            network: Network::new(config.network),
            counters: Counters::default(),
            violations: Vec::new(),
            events: Vec::new(),
            alarms: BinaryHeap::new(),
            locked: Vec::new(),
            waiting: Vec::new(),
            unlocked: false,
            config,
        }
    }

    pub(crate) fn send(&mut self, to: DeviceAddress, packet: Packet) {
        self.watched
            .tell(|| Seen::Sent(packet.transfer(packet.from, to)));
        self.network
            .send(self.now, &mut self.rng, &mut self.counters, to, packet);
    }

    /// Writes a completion to queue `number`.
    pub(crate) fn complete(
        &mut self,
        number: u32,
        queue: QueueNumber,
        wqe_counter: u16,
        entry: Entry,
    ) {
        self.watched.tell(|| Seen::Completed {
            queue,
            index: wqe_counter,
        });
        match entry {
            Entry::RequesterError { failure, .. } | Entry::ResponderError { failure } => {
                *self.counters.errors.entry(failure.syndrome.0).or_insert(0) += 1;
            }
            _ => self.counters.completions += 1,
        }
        if let Some(ring) = self.completions.get_mut(number) {
            ring.push(&mut self.accesses, queue, wqe_counter, entry);
        }
    }

    pub(crate) fn violation(&mut self, queue: QueueNumber, index: QueueIndex, kind: ViolationKind) {
        let violation = Violation { queue, kind, index };
        if self.violations.len() < MAX_VIOLATIONS {
            tracing::warn!(%violation, "a poster broke the rules of its send queue");
            self.violations.push(violation);
        }
    }

    /// Has `queue`'s timers looked at when `due` has come.
    pub(crate) fn wake_at(&mut self, due: Time, queue: QueueNumber) {
        self.alarms.push(Reverse((due, queue.get())));
    }

    /// A queue pair whose timers are to be looked at.
    pub(crate) fn due_alarm(&mut self) -> Option<u32> {
        let Reverse((due, _)) = self.alarms.peek()?;
        if *due > self.now {
            return None;
        }
        self.alarms.pop().map(|Reverse((_, queue))| queue)
    }

    pub(crate) fn next_alarm(&self) -> Option<Time> {
        self.alarms.peek().map(|Reverse((due, _))| *due)
    }
}

/// Sixteen bytes that no other device has. Not from the seed: devices of one
/// seed must still be told apart.
fn random_address() -> [u8; 16] {
    fastrand::Rng::new().u128(..).to_be_bytes()
}
