// SPDX-License-Identifier: MIT
//! Queue pairs of reliable connections. The state is part of the type.

mod post;
mod raw;
mod state;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use mscclpp_ib_sys as sys;

use super::completion::CompletionQueue;
use super::domain::ProtectionDomain;
use super::error::VerbsError;
use super::memory::AccessFlags;
use super::port::Mtu;
use raw::RawQueue;

pub use state::{Initialized, QueueState, ReadyToReceive, ReadyToSend, Receiving, Reset, State};

/// A queue pair of a reliable connection in the state `S`, as far as this process has brought it. It
/// may fail at any time, which [`query_state`](Self::query_state) tells, as do completions and events.
pub struct QueuePair<S: State> {
    raw: RawQueue,
    state: PhantomData<S>,
}

/// How much a queue pair holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairSize {
    /// Requests in the send queue.
    pub send_requests: u32,
    /// Requests in the receive queue.
    pub receive_requests: u32,
    /// Bytes that a request can carry itself ([`Source::Inline`](super::Source)).
    pub inline_bytes: u32,
}

/// Where the peer is, and how to answer it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Number of the peer's queue pair.
    pub peer: u32,
    /// Where it is.
    pub destination: Destination,
    /// The smaller of the two ports' MTUs.
    pub mtu: Mtu,
    /// Number of the first packet that the peer sends, of 24 bits: its
    /// [`Sending::packet_number`].
    pub packet_number: u32,
    /// Reads and atomics of the peer that are answered at once; not more than
    /// [`max_answered_reads`](super::DeviceCapabilities::max_answered_reads).
    pub answered_reads: u8,
    /// How long a peer is to wait that found no receive posted, as the 5-bit code of InfiniBand: 1
    /// for 10 µs, 12 for 640 µs, 18 for 4 ms, 0 for 655 ms.
    pub receiver_not_ready_timer: u8,
}

/// The way to a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The port here that packets leave from.
    pub port: u8,
    /// The peer's address in an InfiniBand subnet; 0 over Ethernet.
    pub lid: u16,
    /// 0 to 15 on InfiniBand, 0 to 7 on Ethernet.
    pub service_level: u8,
    /// Needed over Ethernet, and where a port [needs a GID](super::PortAttributes::needs_gid).
    pub route: Option<GlobalRoute>,
}

/// A route by GIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's.
    pub gid: [u8; 16],
    /// Index of the one here.
    pub source_index: u8,
    /// How many routers it may pass.
    pub hop_limit: u8,
    /// Traffic class; over RoCE v2 the type of service of the IP header.
    pub traffic_class: u8,
}

/// How to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sending {
    /// How long to wait for an acknowledgement, as the 5-bit code of InfiniBand: 4.096 µs times 2 to
    /// the power of it, 14 for 67 ms, 18 for 1.07 s; 0 for ever. The device may wait up to four times
    /// as long.
    pub timeout: u8,
    /// How often to try again, 0 to 7.
    pub retry_count: u8,
    /// How often to try again when the peer has no receive posted, 0 to 6; 7 for ever.
    pub receiver_not_ready_retries: u8,
    /// Number of the first packet, of 24 bits.
    pub packet_number: u32,
    /// Reads and atomics under way at once; not more than the peer
    /// [answers](Path::answered_reads), nor than
    /// [`max_outstanding_reads`](super::DeviceCapabilities::max_outstanding_reads).
    pub outstanding_reads: u8,
}

impl QueuePair<Reset> {
    /// Makes one. The completion queues may be the same.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Call`].
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        send_completions: &Arc<CompletionQueue>,
        receive_completions: &Arc<CompletionQueue>,
        size: QueuePairSize,
    ) -> Result<Self, VerbsError> {
        RawQueue::new(domain, send_completions, receive_completions, size).map(Self::of)
    }

    /// To INIT: it belongs to a port, and peers may do what `access` says.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Transition`]; the queue pair is gone.
    pub fn initialize(
        self,
        port: u8,
        access: AccessFlags,
    ) -> Result<QueuePair<Initialized>, VerbsError> {
        let mut attributes = sys::ibv_qp_attr::zeroed();
        attributes.pkey_index = 0;
        attributes.port_num = port;
        attributes.qp_access_flags = access.bits();
        let mask = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
        self.step(attributes, mask, || format!(" on port {port}, {access}"))
    }
}

impl QueuePair<Initialized> {
    /// To RTR: it answers the queue pair at the other end.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Transition`]; the queue pair is gone.
    pub fn ready_to_receive(self, path: &Path) -> Result<QueuePair<ReadyToReceive>, VerbsError> {
        let mut attributes = sys::ibv_qp_attr::zeroed();
        attributes.path_mtu = path.mtu.code().into();
        attributes.dest_qp_num = path.peer;
        attributes.rq_psn = path.packet_number;
        attributes.max_dest_rd_atomic = path.answered_reads;
        attributes.min_rnr_timer = path.receiver_not_ready_timer;
        attributes.ah_attr = path.destination.address();
        let mask = sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.step(attributes, mask, || format!(" {path}"))
    }
}

impl QueuePair<ReadyToReceive> {
    /// To RTS: it sends.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Transition`]; the queue pair is gone.
    pub fn ready_to_send(self, sending: &Sending) -> Result<QueuePair<ReadyToSend>, VerbsError> {
        let mut attributes = sys::ibv_qp_attr::zeroed();
        attributes.timeout = sending.timeout;
        attributes.retry_cnt = sending.retry_count;
        attributes.rnr_retry = sending.receiver_not_ready_retries;
        attributes.sq_psn = sending.packet_number;
        attributes.max_rd_atomic = sending.outstanding_reads;
        let mask = sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.step(attributes, mask, || format!(" with {sending:?}"))
    }
}

impl<S: State> QueuePair<S> {
    fn of(raw: RawQueue) -> Self {
        Self {
            raw,
            state: PhantomData,
        }
    }

    /// The step from `S` to `T`. An error drops the queue pair.
    fn step<T: State>(
        self,
        attributes: sys::ibv_qp_attr,
        mask: i32,
        detail: impl FnOnce() -> String,
    ) -> Result<QueuePair<T>, VerbsError> {
        self.raw
            .modify(S::STATE, T::STATE, attributes, mask, detail)?;
        Ok(QueuePair::of(self.raw))
    }

    /// Its number, by which the peer names it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.raw.number()
    }

    /// How much it holds: at least what was asked for.
    #[must_use]
    pub fn size(&self) -> QueuePairSize {
        self.raw.size()
    }

    /// The state that the device has it in.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Call`].
    pub fn query_state(&self) -> Result<QueueState, VerbsError> {
        self.raw.query_state()
    }

    /// Puts it into error: what is posted, and will be, completes as
    /// [flushed](super::CompletionStatus::Flushed), and the peer gets no more answers.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Transition`].
    pub fn fail(&self) -> Result<(), VerbsError> {
        let attributes = sys::ibv_qp_attr::zeroed();
        self.raw
            .modify(S::STATE, QueueState::Error, attributes, 0, String::new)
    }
}

impl<S: State> fmt::Debug for QueuePair<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &format_args!("{:#x}", self.number()))
            .field("state", &S::STATE)
            .finish_non_exhaustive()
    }
}

impl Destination {
    fn address(&self) -> sys::ibv_ah_attr {
        let mut address = sys::ibv_ah_attr::zeroed();
        address.port_num = self.port;
        address.dlid = self.lid;
        address.sl = self.service_level;
        if let Some(route) = self.route {
            address.is_global = 1;
            address.grh.dgid = sys::ibv_gid { raw: route.gid };
            address.grh.sgid_index = route.source_index;
            address.grh.hop_limit = route.hop_limit;
            address.grh.traffic_class = route.traffic_class;
        }
        address
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Destination { port, lid, .. } = self.destination;
        let (peer, mtu, reads) = (self.peer, self.mtu, self.answered_reads);
        write!(f, "to {peer:#x} from port {port}, MTU {mtu}, {reads} reads")?;
        match self.destination.route {
            Some(GlobalRoute {
                gid, source_index, ..
            }) => {
                let gid = std::net::Ipv6Addr::from(gid);
                write!(f, ", from GID index {source_index} to GID {gid}")
            }
            None => write!(f, ", to LID {lid}"),
        }
    }
}
