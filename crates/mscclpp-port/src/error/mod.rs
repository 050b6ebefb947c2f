// SPDX-License-Identifier: MIT
//! Errors of channels, and the broad classes of them that MSCCL++ names.

mod code;
mod describe;
mod make;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mlx5_queue::Syndrome;
use mscclpp_bootstrap::{BootstrapError, SetupError};
use mscclpp_device::abi::{Trigger, TriggerError};

pub use code::ErrorCode;
pub(crate) use make::check_range;

use crate::device::Device;
use crate::refusal::Refused;
use crate::transport::TransportKind;
#[cfg(feature = "ib")]
use crate::verbs::VerbsError;
pub(crate) use describe::BARRIER;
#[cfg(feature = "ib")]
use describe::list;
use describe::{Described, Hint, OtherEnd, RankName, UnnamedRank, WaitedFor};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong with a channel.
///
/// Cloning is cheap enough to keep the first error of a connection and hand it to every later
/// caller.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This build or machine cannot use the device.
    #[error("{device} is not available: {reason}")]
    DeviceUnavailable {
        /// The device asked for.
        device: Device,
        /// What is missing, and what to do.
        reason: String,
    },

    /// The CUDA driver refused an operation, or a copy failed.
    #[error("{device} cannot {operation}: {source}")]
    Cuda {
        /// The GPU.
        device: Device,
        /// What was asked of it.
        operation: &'static str,
        /// The driver's error.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The peer's process died, or closed its end of the connection.
    #[error("rank {} cannot be reached any more: {cause}", RankName(*rank))]
    PeerDown {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// How it was noticed.
        cause: String,
    },

    /// A deadline passed.
    #[error("timed out after {waited:?} in {operation}{}", UnnamedRank(operation, *rank))]
    Timeout {
        /// What was being waited for.
        operation: String,
        /// The rank waited for, when there is one.
        rank: Option<usize>,
        /// How long the wait was.
        waited: Duration,
    },

    /// The operating system refused an operation.
    #[error("{operation}: {source}")]
    Io {
        /// What was being done.
        operation: String,
        /// The system's error.
        source: Arc<io::Error>,
    },

    /// An argument that can never be right.
    #[error("cannot {operation}: {detail}")]
    InvalidUsage {
        /// What was asked for.
        operation: &'static str,
        /// What is wrong with it.
        detail: String,
    },

    /// A range that does not lie inside its registration or buffer.
    #[error("{what}: {len} bytes at offset {offset} are out of bounds: the size is {size} bytes")]
    OutOfBounds {
        /// The operation and which of its operands.
        what: &'static str,
        /// First byte, relative to the registration.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Size of the registration in bytes.
        size: u64,
    },

    /// A word that does not lie at a multiple of 8 bytes.
    #[error("{what}: the word at offset {offset} is not aligned to 8 bytes")]
    Misaligned {
        /// The operation.
        what: &'static str,
        /// Offset relative to the registration.
        offset: u64,
    },

    /// The operation is known and this build or machine cannot do it.
    #[error("cannot {operation} for transport {transport}: {missing}")]
    Unsupported {
        /// What was asked for.
        operation: &'static str,
        /// Over which transport.
        transport: TransportKind,
        /// What is missing.
        missing: &'static str,
    },

    /// The two ends of a connection were made for transports that do not reach each other. Both
    /// ends get this error.
    #[error("an endpoint for {local} cannot connect to one for {remote}{}", OtherEnd(*rank, *tag))]
    IncompatibleTransports {
        /// This end.
        local: TransportKind,
        /// The other end.
        remote: TransportKind,
        /// The rank of the other end, when known.
        rank: Option<usize>,
        /// The tag that the two ranks connect on, where they do so by one.
        tag: Option<u32>,
    },

    /// A record of a peer that cannot be used.
    #[error("the peer's {what} record cannot be used: {detail}")]
    Record {
        /// Which record.
        what: &'static str,
        /// What is wrong with it.
        detail: String,
    },

    /// The connection's send queue is full and nothing was posted. It empties by itself.
    #[error("the send queue to rank {} is full ({limit} posts)", RankName(*rank))]
    QueueFull {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// How many posts the queue holds.
        limit: usize,
    },

    /// The peer is alive, as far as one can tell, and takes or acknowledges nothing any more. Ends
    /// the connection.
    #[error("rank {} took and acknowledged nothing for {after:?}", RankName(*rank))]
    Stalled {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// For how long.
        after: Duration,
    },

    /// The peer refused an operation that was posted here. Ends the connection.
    #[error("rank {} refused a {refused}", RankName(*rank))]
    Refused {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// What, and why.
        refused: Refused,
    },

    /// An operation of the peer was refused here. Ends the connection: the peer has been told, and
    /// nothing that it posted later is executed, its signals included.
    #[error("refused a {refused}; rank {} had posted it", RankName(*rank))]
    RefusedPeer {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// What, and why.
        refused: Refused,
    },

    /// The raw memory that a queued write was to read was deregistered before it was sent. Ends
    /// the connection.
    #[error("the source of a write to rank {} was deregistered before it was sent", RankName(*rank))]
    SourceGone {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
    },

    /// [`Hca::nearest`](crate::Hca::nearest) has found no port that can be used.
    #[cfg(feature = "ib")]
    #[error(
        "no port of an HCA can be used from {gpu}: {}; repair one of them, or name an HCA in \
         ContextConfig::hca_devices or MSCCLPP_HCA_DEVICES (soft0 is a NIC in software)",
        list(ports)
    )]
    NoUsablePort {
        /// Where the GPU is.
        gpu: crate::machine::PciAddress,
        /// Every port of the machine, or of the HCAs that were named, and why it cannot be used.
        ports: Vec<crate::nearest::UnusablePort>,
    },

    /// The two ends of a connection over HCAs do not fit together. Both ends get this error.
    #[error("the two endpoints cannot be connected: {reason}{}", OtherEnd(*rank, *tag))]
    IncompatibleEndpoints {
        /// What does not fit.
        reason: String,
        /// The rank of the other end, when known.
        rank: Option<usize>,
        /// The tag that the two ranks connect on, where they do so by one.
        tag: Option<u32>,
    },

    /// A transport stands for no HCA that this build can use.
    #[error("{transport} cannot be used: {detail}")]
    HcaUnavailable {
        /// The transport.
        transport: TransportKind,
        /// Why, and what there is.
        detail: String,
    },

    /// An HCA refused an operation.
    #[error("HCA {hca}: cannot {operation}: {source}")]
    Hca {
        /// Name of the HCA.
        hca: String,
        /// What was asked for.
        operation: &'static str,
        /// Its error.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// An HCA refused an operation, in the words of libibverbs.
    #[cfg(feature = "ib")]
    #[error(transparent)]
    Verbs(Arc<VerbsError>),

    /// An HCA made a queue that kernels cannot post to without help of the host, or that is not what
    /// was asked for.
    #[error("HCA {hca} made queue {queue:#x} and kernels cannot use it: {reason}")]
    UnfitQueue {
        /// Name of the HCA.
        hca: String,
        /// Number of the queue pair.
        queue: u32,
        /// What is wrong with it.
        reason: String,
    },

    /// A setup of all ranks has failed. All of them get this error, the same on each while all live.
    #[error(transparent)]
    Setup(Arc<SetupError>),

    /// A service is used before it has queues.
    #[error("cannot {operation}: {found}")]
    NotSetUp {
        /// What was asked for.
        operation: &'static str,
        /// What became of the setup.
        found: &'static str,
    },

    /// A second setup of a service.
    #[error("a service is set up once, and {found}: make a new service")]
    SetUpAgain {
        /// What became of the first one.
        found: &'static str,
    },

    /// A queue that is not in the plan of the service's setup.
    #[error("there is no queue {index} to rank {peer}: the setup made {count}, numbered from 0")]
    NoQueue {
        /// The peer.
        peer: usize,
        /// The number asked for.
        index: u32,
        /// How many there are.
        count: u32,
    },

    /// A work request that a kernel posted has failed, and with it the queue. Ends the connection.
    #[error(
        "request {index} ({operation}) on queue {queue:#x} to rank {} failed: {syndrome}{}",
        RankName(*rank), Hint(*syndrome)
    )]
    QueueFailed {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// Number of the queue pair.
        queue: u32,
        /// The request's place in the queue, counted from 0.
        index: u64,
        /// What kernels call such a request; "unknown" if the HCA did not say.
        operation: &'static str,
        /// Why it failed.
        syndrome: Syndrome,
        /// The HCA's own code beside it: a number for its vendor.
        vendor: u8,
    },

    /// A request that the host posted to a queue of an HCA has failed, and with it the queue. Ends the
    /// connection.
    #[cfg(feature = "ib")]
    #[error(
        "request {index} ({operation}) on queue {queue:#x} to rank {} failed: {status} (vendor's code \
         {vendor:#x})",
        RankName(*rank)
    )]
    RequestFailed {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// Number of the queue pair.
        queue: u32,
        /// The request's place in the queue, counted from 0.
        index: u64,
        /// What it was: a put, a signal or an accumulate.
        operation: &'static str,
        /// How it ended, with its usual cause.
        status: crate::verbs::CompletionStatus,
        /// The HCA's own code beside it: a number for its vendor.
        vendor: u32,
    },

    /// An HCA has reported something that ends the connection.
    #[cfg(feature = "ib")]
    #[error("HCA {hca}, connection to rank {}: {event}", RankName(*rank))]
    HcaFailed {
        /// Name of the HCA.
        hca: String,
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// What it reported.
        event: String,
    },

    /// The queue refused a request of the peer. Ends the connection.
    #[error(
        "queue {queue:#x} refused a request of rank {}: memory that is not registered (any more), \
         out of its bounds, or not open to it",
        RankName(*rank)
    )]
    QueueRefused {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// Number of the queue pair.
        queue: u32,
    },

    /// Two threads of a kernel posted at once to an exclusive queue. Ends the connection.
    #[error(
        "two threads posted at once to queue {queue:#x} to rank {}, which is exclusive: order them, \
         or use QueueForm::Shared",
        RankName(*rank)
    )]
    QueueNotExclusive {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// Number of the queue pair.
        queue: u32,
    },

    /// A new queue came up and executes nothing.
    #[error(
        "queue {queue:#x} to rank {} came up without error and never executes: its first request \
         was not done within {waited:?}",
        RankName(*rank)
    )]
    QueueNotExecuting {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// Number of the queue pair.
        queue: u32,
        /// How long it was waited for.
        waited: Duration,
    },

    /// The other end of a connection over HCAs has failed. Ends this end, too.
    #[error("the end of rank {} has failed: {reason}", RankName(*rank))]
    PeerFailed {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// Its error.
        reason: String,
    },

    /// A FIFO cannot have this many slots.
    #[error("a FIFO of {size} slots cannot be made: give a power of two, at most {max}")]
    FifoSize {
        /// The number asked for.
        size: usize,
        /// The largest that is possible.
        max: usize,
    },

    /// Kernels gave up positions of a stopped FIFO, and nobody will ever fill those.
    #[error(
        "kernels gave up while they waited for room in the stopped FIFO (position {head} was \
         handed out, {tail} executed): make a new service"
    )]
    FifoBroken {
        /// One past the last position handed out.
        head: u64,
        /// Number of triggers executed.
        tail: u64,
    },

    /// The proxy runs already.
    #[error("the proxy runs already")]
    ProxyRunning,

    /// The proxy's thread is lost, and with it the FIFO.
    #[error("the proxy is gone: {cause}; make a new service")]
    ProxyGone {
        /// What happened to it.
        cause: String,
    },

    /// A proxy was stopped before all that was asked of it was done.
    #[error(
        "the proxy did not finish within {waited:?}: {triggers} triggers were not executed, or \
         what they started was not acknowledged{}",
        WaitedFor(ranks)
    )]
    NotDrained {
        /// Triggers pushed and not executed.
        triggers: u64,
        /// How long it was waited for.
        waited: Duration,
        /// The ranks that it waited for, as far as they are known.
        ranks: Vec<usize>,
    },

    /// A trigger names a memory that was never added to its service.
    #[error("memory id {id} is unknown: the service has {known} memories")]
    UnknownMemory {
        /// The id.
        id: u32,
        /// Number of memories, whose ids are counted from 0.
        known: u32,
    },

    /// A semaphore that was never added to its service.
    #[error("semaphore id {id} is unknown: the service has {known} semaphores")]
    UnknownSemaphore {
        /// The id.
        id: u32,
        /// Number of semaphores, whose ids are counted from 0.
        known: u32,
    },

    /// A table of a service is full: triggers have no bits for more.
    #[error("no room for {asked} more {what}: {used} of {limit} that triggers can name are used")]
    TooMany {
        /// What the table holds.
        what: &'static str,
        /// Most entries.
        limit: u32,
        /// Entries used.
        used: u32,
        /// Entries asked for.
        asked: u32,
    },

    /// A trigger that is no operation. Ends the connection of its semaphore.
    #[error("FIFO position {position}, connection to rank {}: {cause}", RankName(*rank))]
    BadTrigger {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// Its position in the FIFO.
        position: u64,
        /// What is wrong with it.
        cause: TriggerError,
    },

    /// A trigger that could not be executed. Ends the connection of its semaphore.
    #[error(
        "{} (FIFO position {position}, connection to rank {}) failed: {cause}",
        Described(trigger), RankName(*rank)
    )]
    Trigger {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// What the kernel asked for.
        trigger: Trigger,
        /// Its position in the FIFO.
        position: u64,
        /// Why it could not be done.
        cause: Arc<Error>,
    },

    /// The peer sent another kind of thing than this rank waits for: the calls of the two ranks
    /// for this tag do not pair up.
    #[error(
        "rank {rank} sent {found} on tag {tag} where this rank expected {expected}: both must make \
         matching calls in the same order"
    )]
    WrongRecord {
        /// The peer.
        rank: usize,
        /// The tag.
        tag: u32,
        /// What this rank waits for.
        expected: &'static str,
        /// What the peer sent.
        found: &'static str,
    },

    /// The peer could not make its half of what the two ranks were to share.
    #[error("rank {rank} did not make {what} for tag {tag}: {reason}")]
    PeerGaveUp {
        /// The peer.
        rank: usize,
        /// The tag.
        tag: u32,
        /// What it was to make.
        what: &'static str,
        /// Its error.
        reason: String,
    },

    /// The communicator did not make this connection.
    #[error("this communicator did not make the connection to rank {}", RankName(*rank))]
    UnknownConnection {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
    },

    /// The bootstrap could not deliver or receive.
    #[error("{operation}: {source}")]
    Bootstrap {
        /// What was being done.
        operation: String,
        /// The bootstrap's error.
        source: Arc<BootstrapError>,
    },
}
