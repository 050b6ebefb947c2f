// SPDX-License-Identifier: MIT
use std::time::Duration;

use crate::{Capabilities, FaultPlan};

/// How a device is opened. [`DeviceConfig::default`] is a NIC that behaves,
/// on an engine thread of its own.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Where all chance comes from: a device that is given the same inputs at
    /// the same times does the same.
    pub seed: u64,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Who runs it.
    pub engine: EngineMode,
    /// How a doorbell starts it, unless a queue pair says otherwise.
    pub trigger: TriggerMode,
    /// How bytes reach memory.
    pub landing: Landing,
    /// When the responder acknowledges a write.
    pub acknowledge: Acknowledge,
    /// What it does to catch a poster that breaks the rules.
    pub checks: Checks,
    /// What the network does to packets.
    pub network: NetworkConfig,
    /// What it refuses, delays or forgets.
    pub faults: FaultPlan,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            capabilities: Capabilities::default(),
            engine: EngineMode::Thread,
            trigger: TriggerMode::Doorbell,
            landing: Landing::AtOnce,
            acknowledge: Acknowledge::Landed,
            checks: Checks::default(),
            network: NetworkConfig::default(),
            faults: FaultPlan::default(),
        }
    }
}

/// Who runs the NIC's state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineMode {
    /// A thread of the device's own, which sleeps when there is nothing to do.
    Thread,
    /// Whoever rings: a doorbell call returns when the NIC has done all it
    /// can at that moment. What the poster's stores have not made visible
    /// *by then* is missed. Packets that are delayed and retries run at later
    /// doorbells, or when [`Device::run`](crate::Device::run) is called.
    Inline,
    /// Whoever calls [`Device::run_at`](crate::Device::run_at), at the times
    /// that it says: for tests that must repeat exactly.
    Manual,
}

/// How the NIC learns that a send queue has work.
///
/// In every mode it fetches requests only after it has seen what told it of
/// them, and only up to the index that it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TriggerMode {
    /// It starts at once, from the value in the doorbell. Right for a poster
    /// that rings before its record is written, as long as its requests are
    /// visible by then.
    Doorbell,
    /// It drops a doorbell that comes before its record and starts from the
    /// record at the last one, as a NIC that missed the first. A poster that
    /// rings only early is never served.
    Record,
    /// Chance chooses between the two at each doorbell.
    Either,
    /// It polls the record and needs no doorbell: for queues that share a
    /// register, and for posters whose doorbells cannot be seen.
    PollRecord,
}

/// How the bytes of a write or of a read's result reach memory.
///
/// In every mode: an aligned 8-byte word does not tear; a write has landed
/// before a later atomic, read or completion of its queue pair acts; a write to a
/// [strict](crate::WriteOrdering::Strict) registration lands after all earlier
/// writes of its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Landing {
    /// Whole, and in order.
    AtOnce,
    /// In pieces, in random order, each up to `linger` late, so that later
    /// writes overtake earlier ones: all that the ordering contract leaves
    /// open. Atomics store up to `linger` after they load.
    Scattered {
        /// The longest delay of a piece.
        linger: Duration,
    },
}

/// When the responder acknowledges a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acknowledge {
    /// When its bytes are visible.
    Landed,
    /// When it is accepted: a completion at the requester then says nothing
    /// about visibility at the peer, which is all that RDMA promises. The bytes
    /// have left the requester's memory, which may be used again: what is fetched
    /// from [lent memory](crate#lent-memory) is acknowledged when that is done, and
    /// between queue pairs of one device the bytes are read before they are sent.
    Accepted,
}

/// Ways to catch posters that break the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Fetch each request twice and report a difference.
    pub fetch_twice: bool,
    /// Clear a slot once its request has been taken, so that a segment that
    /// the next one does not write is missed. No real NIC writes its send
    /// queue: wrong for posters that leave constant parts in place.
    pub clear_slots: bool,
    /// How often the record is compared with the doorbells; a difference must
    /// last from one time to the next. Zero: never.
    pub audit_interval: Duration,
}

/// How often the record is compared with the doorbells, by default.
const AUDIT_EVERY: Duration = Duration::from_millis(250);

impl Default for Checks {
    fn default() -> Self {
        Self {
            fetch_twice: false,
            clear_slots: false,
            audit_interval: AUDIT_EVERY,
        }
    }
}

/// What the network does to packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkConfig {
    /// The chance of a packet to be lost, 0 to 1.
    pub loss: f64,
    /// The longest delay of a packet. Packets never overtake each other.
    pub delay: Duration,
    /// Send each packet by itself. Otherwise up to 64 KiB of a message travel,
    /// and are lost or delivered, together; or 1 MiB of memory that is lent to the
    /// receiver.
    pub single_packets: bool,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            loss: 0.0,
            delay: Duration::ZERO,
            single_packets: false,
        }
    }
}
