// SPDX-License-Identifier: MIT
//! The seam to an HCA: the host's part of queues that kernels post to.

use std::fmt;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use mlx5_queue::{Opcode, Syndrome};
use mscclpp_device::abi::{QueueDeviceHandle, QueueForm, SignalMode};
use serde::{Deserialize, Serialize};

#[cfg(feature = "gpunetio")]
use super::config::IbConfig;
use super::config::QueuePlacement;
use super::policy::{PortRecord, QueueRecord};
use crate::buffer::Buffer;
use crate::counters::{HcaCounters, QueueCounters};
use crate::device::Device;
use crate::error::Result;
use crate::memory::Access;

/// Where an HCA is found on its fabric: the 16 bytes of a GID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct HcaAddress(pub(crate) [u8; 16]);

/// A queue pair on its fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueAddress {
    pub(crate) hca: HcaAddress,
    pub(crate) number: u32,
}

/// Payload of the largest packet, as the code that verbs use: 1 for 256 bytes to 5 for 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub(crate) struct Mtu(u8);

impl Mtu {
    /// The MTU with a code, if there is one.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        (1..=5).contains(&code).then_some(Self(code))
    }

    pub(crate) const SMALLEST: Self = Self(1);

    pub(crate) fn code(self) -> u8 {
        self.0
    }
}

impl From<Mtu> for u8 {
    fn from(mtu: Mtu) -> Self {
        mtu.0
    }
}

impl TryFrom<u8> for Mtu {
    type Error = String;

    fn try_from(code: u8) -> Result<Self, String> {
        Self::from_code(code).ok_or_else(|| format!("there is no MTU with code {code}"))
    }
}

/// What an HCA can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HcaCapabilities {
    /// 64-bit RDMA atomics.
    pub(crate) atomics: bool,
    pub(crate) mtu: Mtu,
    /// Blocks of a send queue.
    pub(crate) max_blocks: u32,
    /// Reads and atomics of a queue pair that may be under way at once, either way.
    pub(crate) max_outstanding_reads: u8,
    /// Whether its queues take posts of the host, and of kernels.
    pub(crate) posts_of_host: bool,
    pub(crate) posts_of_kernels: bool,
}

/// Whether writes to a registration may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOrdering {
    /// They may: fast, and right for payload, whose arrival a signal tells.
    Relaxed,
    /// Each lands after all earlier ones of its queue: for signals.
    Strict,
}

/// How a queue is to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuePlan {
    /// Whose kernels post.
    pub(crate) device: Device,
    pub(crate) placement: QueuePlacement,
    pub(crate) form: QueueForm,
    pub(crate) signal_mode: SignalMode,
    pub(crate) blocks: u32,
    /// All that was asked for, its port among it.
    #[cfg(feature = "gpunetio")]
    pub(crate) asked: IbConfig,
}

/// What a queue is connected to, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) peer: QueueAddress,
    pub(crate) mtu: Mtu,
    /// Reads and atomics under way at once, either way.
    pub(crate) outstanding_reads: u8,
    /// The peer's port, if its HCA has such.
    pub(crate) port: Option<PortRecord>,
}

/// Why a queue failed, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueFault {
    /// A request of its own failed.
    Request {
        index: u64,
        opcode: Option<Opcode>,
        syndrome: Syndrome,
        vendor: u8,
    },
    /// It refused a request of the peer.
    Refusal,
    /// Two threads posted at once to an exclusive queue.
    NotExclusive,
}

/// A proven stream between the processes of two HCAs.
pub(crate) enum WireStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl WireStream {
    /// Something that breaks the stream off, whoever waits on it.
    pub(crate) fn breaker(
        &self,
    ) -> io::Result<impl Fn() -> io::Result<()> + Send + Sync + 'static> {
        let socket = match self {
            Self::Tcp(stream) => socket2::Socket::from(stream.try_clone()?),
            Self::Unix(stream) => socket2::Socket::from(stream.try_clone()?),
        };
        Ok(move || socket.shutdown(Shutdown::Both))
    }
}

/// An opened HCA. All calls may come from any thread; none of them waits for a peer.
pub(crate) trait GpuQueueProvider: Send + Sync {
    fn name(&self) -> &str;

    fn capabilities(&self) -> HcaCapabilities;

    /// Whether its port is up and has an address at this index of its table of GIDs.
    fn check_port(&self, gid_index: u32) -> Result<()>;

    /// Gives `len` bytes at `offset` of a buffer a key; the range was checked.
    fn register(
        &self,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        access: Access,
        ordering: WriteOrdering,
    ) -> Result<Box<dyn HcaRegistration>>;

    /// A queue pair and its completion queue in device memory.
    fn create_queue(&self, plan: QueuePlan) -> Result<Box<dyn HcaQueue>>;

    /// Whether the fabric leads to this HCA. A real one always does, as far as its HCA knows; one in
    /// software has to be wired first.
    fn reaches(&self, hca: HcaAddress) -> bool;

    /// Wires the fabric: a stream to the process of another HCA, which does the same at the same
    /// time. [`Error::PeerDown`](crate::Error::PeerDown) if the other end leaves the stream. An end
    /// that says it is another HCA than `peer` is refused.
    fn wire(&self, peer: HcaAddress, stream: WireStream, timeout: Duration) -> Result<()>;

    /// A descriptor that is readable while there may be news of queues.
    fn news(&self) -> Option<BorrowedFd<'_>>;

    /// Takes the news; what they are is asked of the queues.
    fn take_news(&self);

    /// What it counts, if it does.
    fn counters(&self) -> Option<HcaCounters> {
        None
    }

    /// The HCA on whose queues the host posts, if it is one.
    #[cfg(feature = "ib")]
    fn verbs(&self) -> Option<&crate::ib::IbHca> {
        None
    }
}

/// Memory that requests can name, until it is dropped.
pub(crate) trait HcaRegistration: Send + Sync {
    /// Its key for peers.
    fn key(&self) -> u32;

    /// Its key for requests of this end.
    fn local_key(&self) -> u32 {
        self.key()
    }
}

/// A queue pair of a reliable connection, with its completion queue and what else a kernel needs.
pub(crate) trait HcaQueue: Send + Sync {
    fn address(&self) -> QueueAddress;

    /// Puts what else peers need to know of it into its record.
    fn complete(&self, record: QueueRecord) -> QueueRecord {
        record
    }

    /// To INIT.
    fn init(&self) -> Result<()>;

    /// To RTR: from now on it answers the queue at the other end.
    fn ready_to_receive(&self, path: &Path) -> Result<()>;

    /// To RTS: from now on it sends.
    fn ready_to_send(&self, path: &Path) -> Result<()>;

    /// Through INIT and RTR to RTS.
    fn connect(&self, path: &Path) -> Result<()> {
        self.init()?;
        self.ready_to_receive(path)?;
        self.ready_to_send(path)
    }

    /// What kernels need to post. Valid while the queue lives.
    fn device_handle(&self) -> QueueDeviceHandle;

    /// How far kernels have come, as far as they tell.
    fn counters(&self) -> Option<QueueCounters> {
        None
    }

    /// Why it does not work any more, if so.
    fn fault(&self) -> Option<QueueFault>;

    /// Puts it into error: what is posted, and will be, completes with an error.
    fn stop(&self);
}

impl fmt::Display for HcaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for HcaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for dyn GpuQueueProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
