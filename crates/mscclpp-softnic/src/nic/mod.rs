// SPDX-License-Identifier: MIT
//! The NIC itself: a state machine without I/O, threads or clock.
//!
//! It is told what happens (a doorbell, the end of a memory access, a packet,
//! the time) and says what is to be done (an access to start, a packet to
//! transmit). The same inputs at the same times give the same outputs.

mod accept;
mod access;
mod common;
mod completion;
#[cfg(test)]
mod floods;
mod landing;
pub(crate) mod loans;
mod network;
pub(crate) mod packet;
mod queue;
mod receive_queue;
mod regions;
mod request;
mod requester;
mod responder;
mod result;
mod retry;
mod send_queue;
mod table;
mod transmit;
mod trigger;

use mlx5_queue::{Doorbell, MemoryKey, QueueIndex, QueueNumber, RingSize};

pub(crate) use access::{Place, SpaceId, Start};
use access::{QueueLife, Then};
use common::Common;
use completion::CompletionRing;
use packet::{Body, Packet};
use queue::QueuePair;
use receive_queue::ReceiveQueue;
pub(crate) use regions::Region;
use requester::Requester;
use responder::Responder;
use send_queue::SendQueue;
use table::Table;

use crate::capability::DeviceAddress;
use crate::config::{DeviceConfig, TriggerMode};
use crate::counters::Counters;
use crate::error::Error;
use crate::memory::{AccessId, AccessResult};
use crate::observer::Seen;
use crate::queue_config::{InitAttributes, QueuePairStatus, SendAttributes, State, Transition};
use crate::time::Time;

/// Something for the shell to do.
#[derive(Debug)]
pub(crate) enum Effect {
    Start(Start),
    // Boxed: on its way to a socket a packet's size does not matter, and an
    // access is started for every request.
    Transmit(DeviceAddress, Box<Packet>),
    Lend(loans::Order),
}

/// What a queue pair is made of.
#[derive(Debug)]
pub(crate) struct QueuePairParts {
    pub(crate) domain: u32,
    pub(crate) page: u32,
    pub(crate) trigger: TriggerMode,
    pub(crate) ring: Place,
    pub(crate) blocks: RingSize,
    pub(crate) record: Place,
    pub(crate) completions: u32,
    pub(crate) receive: Option<ReceiveParts>,
}

#[derive(Debug)]
pub(crate) struct ReceiveParts {
    pub(crate) ring: Place,
    pub(crate) entries: RingSize,
    pub(crate) segments: u32,
    pub(crate) completions: u32,
}

#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) common: Common,
    domains: Table<()>,
    pages: Table<()>,
    queues: Table<QueuePair>,
    /// Queue pairs that are started by their record, and those that have been.
    polled: Vec<u32>,
    lives: u32,
}

impl Nic {
    pub(crate) fn new(config: DeviceConfig) -> Self {
        Self {
            common: Common::new(config),
            domains: Table::new(1),
            pages: Table::new(1),
            queues: Table::new(0x100),
            polled: Vec::new(),
            lives: 0,
        }
    }

    pub(crate) fn add_domain(&mut self) -> u32 {
        self.domains.insert(())
    }

    pub(crate) fn remove_domain(&mut self, domain: u32) {
        self.domains.remove(domain);
    }

    pub(crate) fn add_page(&mut self) -> u32 {
        self.pages.insert(())
    }

    pub(crate) fn remove_page(&mut self, page: u32) {
        self.pages.remove(page);
    }

    pub(crate) fn add_region(&mut self, region: Region) -> MemoryKey {
        self.common.regions.insert(region)
    }

    pub(crate) fn remove_region(&mut self, key: MemoryKey) {
        self.common.regions.remove(key);
        self.common.loans.withdraw(key);
    }

    pub(crate) fn add_completion_queue(&mut self, base: Place, ring: RingSize) -> u32 {
        let produced = QueueIndex::ZERO;
        self.common.completions.insert(CompletionRing {
            base,
            ring,
            produced,
        })
    }

    pub(crate) fn remove_completion_queue(&mut self, number: u32) {
        self.common.completions.remove(number);
    }

    pub(crate) fn add_queue_pair(&mut self, parts: QueuePairParts) -> Result<QueueNumber, Error> {
        let QueuePairParts {
            domain,
            page,
            trigger,
            ring,
            blocks,
            record,
            completions,
            receive,
        } = parts;
        self.lives = self.lives.wrapping_add(1);
        let receive = receive.map(|parts| {
            let ReceiveParts {
                ring,
                entries,
                segments,
                completions,
            } = parts;
            ReceiveQueue::new(ring, entries, segments, record, completions)
        });
        let number = self.queues.insert(QueuePair {
            life: QueueLife {
                queue: QueueNumber::default(),
                life: 0,
            },
            domain,
            page,
            trigger,
            state: State::Reset,
            rights: InitAttributes::default(),
            path: None,
            attributes: SendAttributes::default(),
            send: SendQueue::new(ring, blocks, record, completions),
            receive,
            requester: Requester::default(),
            responder: Responder::default(),
            failure: None,
            untold: None,
        });
        let queue = QueueNumber::new(number)
            .inspect_err(|_| drop(self.queues.remove(number)))
            .map_err(|source| Error::Layout {
                what: "queue pair number",
                source,
            })?;
        if let Some(pair) = self.queues.get_mut(number) {
            // A number that is used again must not meet its past.
            pair.life = QueueLife {
                queue,
                life: self.lives << 8,
            };
        }
        if trigger == TriggerMode::PollRecord {
            self.polled.push(number);
        }
        Ok(queue)
    }

    pub(crate) fn remove_queue_pair(&mut self, queue: QueueNumber) {
        if let Some(mut pair) = self.queues.remove(queue.get()) {
            pair.responder.stop(&mut self.common);
        }
        self.polled.retain(|number| *number != queue.get());
    }

    pub(crate) fn transition(&mut self, queue: QueueNumber, step: Transition) -> Result<(), Error> {
        match self.queues.get_mut(queue.get()) {
            Some(pair) => pair.transition(&mut self.common, step),
            None => Ok(()),
        }
    }

    pub(crate) fn status(&self, queue: QueueNumber) -> Option<QueuePairStatus> {
        self.queues.get(queue.get()).map(QueuePair::status)
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.common.counters.clone();
        counters.live.protection_domains = self.domains.live();
        counters.live.doorbell_pages = self.pages.live();
        counters.live.registrations = self.common.regions.live();
        counters.live.completion_queues = self.common.completions.live();
        counters.live.queue_pairs = self.queues.live();
        counters.mappings = self.common.loans.mappings();
        counters
    }

    /// True if some queue pair may be given work by stores that no one reports.
    pub(crate) fn has_queues(&self) -> bool {
        self.queues.live() > 0
    }

    /// The time is now `now`; it never goes back.
    pub(crate) fn set_time(&mut self, now: Time) {
        self.common.now = self.common.now.max(now);
    }

    /// Eight bytes were stored to the doorbell register of `page`.
    pub(crate) fn doorbell(&mut self, page: u32, bytes: [u8; 8]) {
        self.common.counters.doorbells += 1;
        let doorbell = Doorbell::decode(bytes);
        match self.queues.get_mut(doorbell.queue.get()) {
            Some(pair) if pair.page == page => {
                self.common.watched.tell(|| Seen::Doorbell {
                    queue: doorbell.queue,
                    end: doorbell.low16(),
                });
                pair.on_doorbell(&mut self.common, doorbell.low16());
            }
            _ => tracing::warn!(
                queue = doorbell.queue.get(),
                "a doorbell for no queue pair of its page"
            ),
        }
    }

    /// Reads the records of the queue pairs that are started by them.
    pub(crate) fn poll_records(&mut self) {
        for number in &self.polled {
            if let Some(pair) = self.queues.get_mut(*number) {
                pair.poll_record(&mut self.common);
            }
        }
    }

    /// Records that are read again and again.
    pub(crate) fn polls(&self) -> usize {
        self.polled.len()
    }

    /// A packet has come from another device.
    pub(crate) fn packet(&mut self, from: DeviceAddress, packet: Packet) {
        let c = &mut self.common;
        let pair = self.queues.get_mut(packet.to.get()).filter(|pair| {
            let path = pair.path.as_ref();
            path.is_some_and(|path| path.remote.device == from && path.remote.queue == packet.from)
        });
        let Some(pair) = pair else {
            c.counters.packets_stray += 1;
            return;
        };
        c.watched
            .tell(|| Seen::Received(packet.transfer(packet.to, c.address)));
        let number = packet.number;
        let sending = pair.state == State::ReadyToSend;
        match packet.body {
            Body::Write { .. } | Body::Send { .. } | Body::Read { .. } | Body::Atomic { .. } => {
                pair.on_request(c, packet);
            }
            _ if !sending => c.counters.packets_stray += 1,
            Body::Acknowledge => pair.on_acknowledge(c, number),
            Body::Refuse(refusal) => pair.on_refuse(c, number, refusal),
            Body::ReadResponse { part, payload } => {
                pair.on_read_response(c, number, part, payload);
            }
            Body::AtomicResponse { old } => pair.on_atomic_response(c, number, old),
        }
    }

    /// Access `id` is done.
    pub(crate) fn access_done(&mut self, id: AccessId, result: AccessResult) {
        let (mut bytes, ok) = match result {
            Ok(bytes) => (Some(bytes), true),
            Err(fault) => {
                tracing::warn!(%fault, "a memory access failed");
                (None, false)
            }
        };
        let Some(then) = self.common.accesses.done(id, bytes.as_mut()) else {
            return;
        };
        let queue = match then {
            Then::Nothing => return,
            Then::Fetched { queue, .. }
            | Then::Record { queue, .. }
            | Then::ReceiveRecord { queue }
            | Then::ReceiveEntry { queue, .. }
            | Then::Landed { queue, .. }
            | Then::Loaded { queue, .. }
            | Then::Stored { queue, .. }
            | Then::AnswerRead { queue, .. }
            | Then::Staged { queue, .. }
            | Then::Result { queue, .. } => queue,
        };
        let c = &mut self.common;
        let Some(pair) = self
            .queues
            .get_mut(queue.queue.get())
            .filter(|pair| pair.life == queue)
        else {
            return;
        };
        match (then, bytes) {
            (Then::Landed { operation, .. }, _) => pair.on_landed(c, operation, ok),
            (Then::Stored { operation, old, .. }, _) => pair.on_stored(c, operation, old, ok),
            (Then::Result { packet, .. }, _) => pair.on_result_landed(c, packet, ok),
            (Then::Loaded { operation, .. }, bytes) => {
                pair.on_loaded(c, operation, bytes.as_ref());
            }
            (
                Then::AnswerRead {
                    operation, offset, ..
                },
                bytes,
            ) => {
                pair.on_answer_read(c, operation, offset, bytes.as_ref());
            }
            (Then::Fetched { first, .. }, Some(bytes)) => {
                pair.on_fetched(c, first, bytes);
            }
            (Then::Record { reason, .. }, Some(bytes)) => pair.on_record(c, &bytes, reason),
            (Then::ReceiveRecord { .. }, Some(bytes)) => pair.on_receive_record(c, &bytes),
            (Then::ReceiveEntry { operation, .. }, Some(bytes)) => {
                pair.on_receive_entry(c, operation, &bytes);
            }
            (Then::Staged { stage, offset, .. }, Some(bytes)) => {
                pair.on_staged(c, stage, offset, &bytes);
            }
            (Then::Fetched { first, .. }, None) => pair.on_fetch_failed(c, first),
            // A queue whose own memory cannot be read is of no use.
            (_, None) => pair.fail(c, mlx5_queue::Syndrome::LOCAL_PROTECTION),
            (Then::Nothing, _) => {}
        }
    }

    /// The next thing to do at this time; `None` if there is nothing.
    pub(crate) fn next(&mut self) -> Option<Effect> {
        loop {
            if let Some(start) = self.common.accesses.next() {
                return Some(Effect::Start(start));
            }
            if let Some(order) = self.common.loans.next_order() {
                return Some(Effect::Lend(order));
            }
            if std::mem::take(&mut self.common.unlocked) {
                for queue in std::mem::take(&mut self.common.waiting) {
                    if let Some(pair) = self.queues.get_mut(queue.get()) {
                        pair.pump_operations(&mut self.common);
                    }
                }
                continue;
            }
            if let Some((to, packet)) = self.common.network.arrive(self.common.now) {
                if to != self.common.address {
                    return Some(Effect::Transmit(to, Box::new(packet)));
                }
                self.packet(to, packet);
                continue;
            }
            let now = self.common.now;
            self.common.accesses.release(now);
            if let Some(number) = self.common.due_alarm() {
                if let Some(pair) = self.queues.get_mut(number) {
                    pair.on_alarm(&mut self.common);
                }
                continue;
            }
            return self.common.accesses.next().map(Effect::Start);
        }
    }

    /// When there will be something to do of itself.
    pub(crate) fn next_time(&mut self) -> Option<Time> {
        let now = self.common.now;
        [
            self.common.accesses.release(now),
            self.common.network.next_arrival(),
            self.common.next_alarm(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// See [`Accesses::waits`](access::Accesses::waits).
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.common.accesses.waits()
    }

    /// See [`Accesses::turn`](access::Accesses::turn).
    pub(crate) fn turn(&mut self) -> bool {
        self.common.accesses.turn()
    }
}
