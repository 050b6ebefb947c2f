// SPDX-License-Identifier: MIT
use std::fmt;
use std::time::Duration;

use mlx5_queue::QueueNumber;

use crate::{CompletionQueue, DeviceAddress, DoorbellPage, MemoryRange, Mtu, TriggerMode};

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Made, or set back: nothing is configured.
    Reset,
    /// Port and access rights are set; receive requests may be posted.
    Init,
    /// Connected to its peer: answers its requests.
    ReadyToReceive,
    /// Sends too.
    ReadyToSend,
    /// A request failed, or the owner said so: nothing is executed, and what
    /// is posted completes with WR_FLUSH_ERR.
    Error,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::Error => "ERROR",
        })
    }
}

/// What a queue pair is made of. Every range is memory of the caller's
/// choice, in host or other memory.
#[derive(Debug)]
pub struct QueuePairConfig<'a> {
    /// The send queue: `send_blocks` blocks of 64 bytes, 64-byte aligned.
    pub send_ring: MemoryRange,
    /// Blocks in it: a power of two.
    pub send_blocks: u32,
    /// The doorbell record: 8 bytes, 8-byte aligned
    /// ([`mlx5_queue::DoorbellRecord`]).
    pub record: MemoryRange,
    /// Where send requests complete. It should have at least as many entries
    /// as the send queue has blocks: errors complete unsignalled requests too.
    pub send_completions: &'a CompletionQueue,
    /// The receive queue, if there is one. Without it every message that
    /// needs a receive request is answered with "receiver not ready".
    pub receive: Option<ReceiveQueueConfig<'a>>,
    /// The register page that its doorbells are written to.
    pub page: &'a DoorbellPage,
    /// How it is started; `None` for the device's way.
    pub trigger: Option<TriggerMode>,
}

/// A receive queue.
#[derive(Debug)]
pub struct ReceiveQueueConfig<'a> {
    /// `entries` times `segments` encoded
    /// [`DataSegment`](mlx5_queue::DataSegment)s of 16 bytes; a segment with
    /// [`MemoryKey::INVALID`](mlx5_queue::MemoryKey::INVALID) ends an entry.
    pub ring: MemoryRange,
    /// Receive requests in it: a power of two.
    pub entries: u32,
    /// Segments of each: a power of two.
    pub segments: u32,
    /// Where they complete.
    pub completions: &'a CompletionQueue,
}

/// One step of a queue pair's life. The transitions that exist are those of
/// the InfiniBand specification for reliable connections, without the
/// draining states:
///
/// | to | from |
/// |---|---|
/// | Init | Reset, Init |
/// | ReadyToReceive | Init |
/// | ReadyToSend | ReadyToReceive, ReadyToSend |
/// | Error, Reset | any |
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Transition {
    /// Forget everything; the rings start again at index 0.
    Reset,
    /// Allow or refuse the peer's requests.
    Init(InitAttributes),
    /// Connect, and answer.
    ReadyToReceive(ReceiveAttributes),
    /// Send.
    ReadyToSend(SendAttributes),
    /// Stop, and flush what is posted.
    Error,
}

impl Transition {
    /// The state it leads to.
    pub const fn target(&self) -> State {
        match self {
            Self::Reset => State::Reset,
            Self::Init(_) => State::Init,
            Self::ReadyToReceive(_) => State::ReadyToReceive,
            Self::ReadyToSend(_) => State::ReadyToSend,
            Self::Error => State::Error,
        }
    }
}

/// What the peer may do through the queue pair, on top of what each
/// registration allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitAttributes {
    /// RDMA writes.
    pub remote_write: bool,
    /// RDMA reads.
    pub remote_read: bool,
    /// Atomics.
    pub remote_atomic: bool,
}

impl InitAttributes {
    /// Everything.
    pub const ALL: Self = Self {
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
    };
}

/// Name of a queue pair on a network of devices: what peers exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueAddress {
    /// The device.
    pub device: DeviceAddress,
    /// The queue pair.
    pub queue: QueueNumber,
}

/// Attributes of the transition to ready-to-receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveAttributes {
    /// The peer.
    pub remote: QueueAddress,
    /// Packet payload of the path. The peer's larger packets are refused, so
    /// both ends must use the smaller of the two ports'.
    pub mtu: Mtu,
    /// The peer's first packet sequence number: 24 bits.
    pub first_packet: u32,
    /// Reads and atomics of the peer that may be under way at once.
    pub max_outstanding_reads: u8,
    /// How long a peer waits before it repeats what found no receive request.
    pub receiver_not_ready: Duration,
}

impl ReceiveAttributes {
    /// For `remote`, with what a ConnectX user commonly sets.
    pub fn new(remote: QueueAddress) -> Self {
        Self {
            remote,
            mtu: Mtu::default(),
            first_packet: 0,
            max_outstanding_reads: 16,
            receiver_not_ready: Duration::from_micros(640),
        }
    }
}

/// Attributes of the transition to ready-to-send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendAttributes {
    /// The first packet sequence number: 24 bits; the peer expects it.
    pub first_packet: u32,
    /// Own reads and atomics that may be under way at once.
    pub max_outstanding_reads: u8,
    /// How long an acknowledgement may take before everything is sent again.
    pub timeout: Duration,
    /// How often in a row, before the request fails.
    pub retry_count: u8,
    /// How often in a row while the peer has no receive request; 7: for ever.
    pub rnr_retry: u8,
}

/// InfiniBand's code 14: 4.096 us times 2 to its power.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_micros(67_109);

impl Default for SendAttributes {
    /// A timeout of 67 ms (code 14) and 7 retries.
    fn default() -> Self {
        Self {
            first_packet: 0,
            max_outstanding_reads: 16,
            timeout: ACKNOWLEDGED_WITHIN,
            retry_count: 7,
            rnr_retry: 7,
        }
    }
}

/// What a queue pair is doing. A snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairStatus {
    /// Its state.
    pub state: State,
    /// Blocks announced to it, since its last reset.
    pub announced: u64,
    /// Blocks whose requests are finished.
    pub finished: u64,
    /// The first failure since its last reset.
    pub failure: Option<mlx5_queue::Syndrome>,
}
