// SPDX-License-Identifier: MIT
//! What connections, proxies and HCAs have done so far.

mod cells;
mod prometheus;
mod table;

use std::ops::AddAssign;
use std::time::Duration;

pub(crate) use cells::{LinkCells, LinkCounts, PauseCells, PostCells};

use crate::error::Error;
use crate::proxy_service::ProxyService;
use crate::transport::TransportKind;

/// What has been done on one connection since it was made; see
/// [`Connection::counters`](crate::Connection::counters).
///
/// Each count is exact, and none ever falls. They are read one after the other while work goes on,
/// so two of them may be of slightly different times.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Counters {
    /// The rank at this end, where it has one.
    pub rank: Option<usize>,
    /// The rank at the other end, where it has one.
    pub peer: Option<usize>,
    /// The transport of this end.
    pub transport: TransportKind,
    /// Number of the connection: unlike that of any other in this process.
    pub connection: u64,
    /// What the host has posted: proxies, and callers of the connection. `None` where kernels post
    /// themselves: counting would cost them instructions in every post.
    pub posts: Option<Posts>,
    /// Calls of the host that had to wait for a flush, for the connection, or for a signal.
    pub waits: Pauses,
    /// How often the transport was told to start: sends on a socket, chains of requests handed to an
    /// HCA, operations started on a GPU's stream. `None` where kernels ring the doorbell (the HCA
    /// may know: [`HcaCounters::doorbells`]), and where nothing needs starting.
    pub doorbells: Option<u64>,
    /// What is known to be complete. Of an HCA: entries taken from the completion queue; over CUDA IPC:
    /// posts that are done; over Ethernet: flushes that the peer has acknowledged.
    pub completions: Option<u64>,
    /// How often the transport began again: sends that a full socket did not take. `None` where only
    /// an HCA knows.
    pub retries: Option<u64>,
    /// The send queue, where kernels post themselves.
    pub queue: Option<QueueCounters>,
    /// The error that ended the connection, if it has ended.
    pub last_error: Option<Error>,
}

/// What was posted by the host, by kind. What was refused, or found no room, is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Posts {
    /// Puts without a signal; writes, of a host's caller.
    pub puts: u64,
    /// Signals without a put.
    pub signals: u64,
    /// Puts with signal, those with a flush included. (Host's callers post the two apart.)
    pub puts_with_signal: u64,
    /// Accumulates.
    pub accumulates: u64,
    /// Flushes, those of puts with signal and flush included.
    pub flushes: u64,
    /// Flushes that have ended.
    pub flushes_done: u64,
    /// Bytes of payload of all puts.
    pub bytes: u64,
    /// Posts that had to wait for room on the connection. Of a proxy: triggers that waited in its
    /// FIFO, and with them those behind; the time grows while one waits.
    pub backpressure: Pauses,
}

/// How often something had to wait, and for how long in all. What found at once what it wanted did
/// not wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pauses {
    /// How often.
    pub times: u64,
    /// For how long in all.
    pub time: Duration,
}

/// A send queue to which kernels post: what they keep in its state anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounters {
    /// Number of the queue pair.
    pub number: u32,
    /// Requests that it holds.
    pub slots: u32,
    /// Requests posted. The one that tests a new queue is among them; a put with signal has two.
    pub posted: u64,
    /// Requests that kernels know to be complete: kernels that never flush or run out of room do not
    /// look.
    pub completed: u64,
}

/// A FIFO and the thread that serves it; see
/// [`ProxyService::counters`](crate::ProxyService::counters).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProxyCounters {
    /// Number of the service: unlike that of any other in this process.
    pub service: u64,
    /// The rank of its connections, where they have one.
    pub rank: Option<usize>,
    /// Whether the proxy runs.
    pub running: bool,
    /// Slots of the FIFO.
    pub slots: usize,
    /// Positions of the FIFO that kernels have taken. More than `taken + slots` means that kernels
    /// wait for room.
    pub pushed: u64,
    /// Triggers whose slots were given back: executed, or dropped.
    pub taken: u64,
    /// Triggers that named no semaphore of the service.
    pub dropped: u64,
    /// The semaphores, by id.
    pub semaphores: Vec<SemaphoreCounters>,
}

impl ProxyCounters {
    /// How many triggers wait, those included whose kernels wait for room.
    #[must_use]
    pub fn depth(&self) -> u64 {
        self.pushed.saturating_sub(self.taken)
    }
}

/// Signals that have arrived at this end of a semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SemaphoreCounters {
    /// Id in the service; 0 for a channel without one.
    pub semaphore: u32,
    /// [`Counters::connection`] of the connection that they come by.
    pub connection: u64,
    /// The rank that sends them, where it has one.
    pub peer: Option<usize>,
    /// Signals that have arrived.
    pub received: u64,
    /// Signals that a `wait` or `poll` has consumed.
    pub consumed: u64,
}

/// What an HCA counts itself, for all its queues, also those of other contexts of this process. NICs in
/// software do. What a real one counts is in `/sys/class/infiniband/DEVICE/ports/PORT`, in `counters`
/// and `hw_counters`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HcaCounters {
    /// Its name.
    pub name: String,
    /// The rank of the context that asked, where it has one.
    pub rank: Option<usize>,
    /// Doorbells seen: of several in quick succession the last.
    pub doorbells: u64,
    /// RDMA writes taken from send queues: puts, and signals of [`SignalMode::InlineWrite`](crate::SignalMode).
    pub writes: u64,
    /// RDMA reads: gets.
    pub reads: u64,
    /// Atomics: signals and accumulates.
    pub atomics: u64,
    /// Successful completions written.
    pub completions: u64,
    /// Completions with an error written.
    pub errors: u64,
    /// How often a queue began to send again.
    pub retries: u64,
    /// Bytes of its peers that landed in memory here.
    pub landed_bytes: u64,
}

/// The counters of everything at one time.
///
/// [`Context::counters`](crate::Context::counters) and those of communicator and `GpuNetIoService` make
/// one; [`with_proxy`](Self::with_proxy) and [`and`](Self::and) put more into it. As text it is a table
/// for people ([`Display`](std::fmt::Display)) or Prometheus's ([`prometheus`](Self::prometheus)).
///
/// ```
/// use mscclpp_port::{Context, ContextConfig, ProxyService};
///
/// # fn main() -> mscclpp_port::Result<()> {
/// let context = Context::with_config(ContextConfig::new([127, 0, 0, 1].into()))?;
/// let service = ProxyService::with_default_size()?;
/// let snapshot = context.counters().with_proxy(&service);
/// assert_eq!(snapshot.proxies[0].depth(), 0);
/// let text = snapshot.prometheus();
/// assert!(text.contains("# TYPE mscclpp_fifo_depth gauge\n"));
/// println!("{snapshot}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Connections that exist, in the order in which they were made.
    pub connections: Vec<Counters>,
    /// Services.
    pub proxies: Vec<ProxyCounters>,
    /// HCAs that count.
    pub hcas: Vec<HcaCounters>,
}

impl Snapshot {
    /// With a service's counters.
    #[must_use]
    pub fn with_proxy(mut self, service: &ProxyService) -> Self {
        self.proxies.push(service.counters());
        self
    }

    /// With those of another context, for example of a `GpuNetIoService` beside a communicator. What is
    /// in both is kept once.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.connections.extend(other.connections);
        self.connections.sort_by_key(|counters| counters.connection);
        self.connections
            .dedup_by_key(|counters| counters.connection);
        self.proxies.extend(other.proxies);
        self.proxies.sort_by_key(|counters| counters.service);
        self.proxies.dedup_by_key(|counters| counters.service);
        for hca in other.hcas {
            let is_it = |known: &HcaCounters| (known.rank, &known.name) == (hca.rank, &hca.name);
            if !self.hcas.iter().any(is_it) {
                self.hcas.push(hca);
            }
        }
        self
    }
}

impl AddAssign for Posts {
    fn add_assign(&mut self, other: Self) {
        self.puts += other.puts;
        self.signals += other.signals;
        self.puts_with_signal += other.puts_with_signal;
        self.accumulates += other.accumulates;
        self.flushes += other.flushes;
        self.flushes_done += other.flushes_done;
        self.bytes += other.bytes;
        self.backpressure.times += other.backpressure.times;
        self.backpressure.time += other.backpressure.time;
    }
}

impl HcaCounters {
    /// As a rank's context tells it.
    pub(crate) fn of_rank(self, rank: Option<usize>) -> Self {
        Self { rank, ..self }
    }
}

impl Posts {
    /// All posts together. A put with signal, and one with a flush besides, counts once for each kind
    /// that it is counted by.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.puts + self.signals + self.puts_with_signal + self.accumulates + self.flushes
    }
}
