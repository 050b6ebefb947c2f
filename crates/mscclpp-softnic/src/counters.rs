// SPDX-License-Identifier: MIT
use std::collections::BTreeMap;

use mlx5_queue::{Opcode, Syndrome};

/// What a device has and has done. A snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Objects that exist now: all zero when everything has been let go.
    pub live: LiveObjects,
    /// Requests taken from send queues by opcode, those that failed included.
    pub requests: BTreeMap<u8, u64>,
    /// Successful completions written.
    pub completions: u64,
    /// Error completions written, by syndrome.
    pub errors: BTreeMap<u8, u64>,
    /// Doorbells seen.
    pub doorbells: u64,
    /// Doorbells that came before their record and were dropped for it.
    pub doorbells_dropped: u64,
    /// Packets handed to the network, acknowledgements among them.
    pub packets_sent: u64,
    /// Packets that the network lost, that a device did not take because their peer keeps to no
    /// window, or that it did not send because too many waited.
    pub packets_lost: u64,
    /// Packets that arrived for no queue pair that could take them.
    pub packets_stray: u64,
    /// Times that a queue pair began to send again.
    pub retransmissions: u64,
    /// Bytes that landed in this device's memory for its peers.
    pub bytes_landed: u64,
    /// Bytes that this device fetched from its peers' memory itself, through
    /// mappings of it, instead of getting them over a link.
    pub bytes_mapped: u64,
    /// Registrations of peers that it has mapped at the moment.
    pub mappings: u64,
}

impl Counters {
    /// Requests taken with this opcode.
    pub fn requests_of(&self, opcode: Opcode) -> u64 {
        self.requests.get(&(opcode as u8)).copied().unwrap_or(0)
    }

    /// Error completions with this syndrome.
    pub fn errors_of(&self, syndrome: Syndrome) -> u64 {
        self.errors.get(&syndrome.0).copied().unwrap_or(0)
    }
}

/// Objects that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveObjects {
    /// Protection domains.
    pub protection_domains: u64,
    /// Registrations.
    pub registrations: u64,
    /// Completion queues.
    pub completion_queues: u64,
    /// Queue pairs.
    pub queue_pairs: u64,
    /// Doorbell pages.
    pub doorbell_pages: u64,
}

impl LiveObjects {
    /// All of them together.
    pub const fn total(&self) -> u64 {
        self.protection_domains
            + self.registrations
            + self.completion_queues
            + self.queue_pairs
            + self.doorbell_pages
    }
}
