// SPDX-License-Identifier: MIT
//! HCAs that are NICs in software.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use mlx5_queue::{COMPLETION_BYTES, DoorbellRecord, Opcode};
use mscclpp_softnic as nic;

use super::gpu_memory::GpuMemories;
use super::layout::{LINE, QueueLayout};
use super::provider::{
    GpuQueueProvider, HcaAddress, HcaCapabilities, HcaQueue, HcaRegistration, Mtu, QueuePlan,
    WireStream, WriteOrdering,
};
use super::soft_queue::SoftQueue;
use crate::buffer::Buffer;
use crate::counters::HcaCounters;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::memory::Access;

/// Bytes that a signal takes.
const SIGNAL: u64 = 8;

/// A NIC in software, and the protection domain of this context on it.
pub(crate) struct SoftHca {
    // Before the device, whose engine is then the last to have them: it waits for the end of what it
    // asked of them before it lets the memory itself go.
    gpus: GpuMemories,
    domain: nic::ProtectionDomain,
    device: nic::Device,
}

impl SoftHca {
    pub(crate) fn new(device: nic::Device) -> Result<Self> {
        let domain = (device.allocate_domain())
            .map_err(|error| Error::hca(device.name(), "allocate a protection domain", error))?;
        Ok(Self {
            gpus: GpuMemories::default(),
            domain,
            device,
        })
    }

    /// A range of a buffer as the NIC sees it, which keeps the buffer alive.
    pub(super) fn range(&self, buffer: &Buffer, offset: u64, len: u64) -> Result<nic::MemoryRange> {
        crate::error::check_range("memory for an HCA", offset, len, buffer.len())?;
        let memory = match buffer.gpu() {
            None => nic::HostMemory::shared(),
            Some(memory) => self.gpus.of(memory.device())?,
        };
        let address = buffer.address() + offset;
        let owner = Arc::new(buffer.clone());
        // SAFETY: the range lies in the buffer, which lives as long as the owner, which `memory`
        // reaches, and which this program touches by atomic accesses, foreign code and the operating
        // system only.
        Ok(unsafe { nic::MemoryRange::new(memory, address, len, owner) })
    }

    /// A page with a doorbell that kernels of a device can ring.
    fn page(&self, device: Device) -> Result<nic::DoorbellPage> {
        let page = match device.kind() {
            DeviceKind::Cpu => self.device.allocate_doorbell_page(),
            DeviceKind::Gpu => {
                prepare(device)?;
                let memory = Buffer::pinned(device, nic::DoorbellPage::BYTES)?;
                let range = self.range(&memory, 0, memory.len())?;
                self.device.allocate_doorbell_page_in(range)
            }
        };
        page.map_err(self.failed("allocate a doorbell page"))
    }

    /// The protection domain.
    #[cfg(feature = "gpunetio-soft")]
    pub(super) fn domain(&self) -> &nic::ProtectionDomain {
        &self.domain
    }

    /// The NIC.
    #[cfg(feature = "gpunetio-soft")]
    pub(super) fn device(&self) -> &nic::Device {
        &self.device
    }

    fn failed(&self, operation: &'static str) -> impl Fn(nic::Error) -> Error + '_ {
        move |error| Error::hca(self.device.name(), operation, error)
    }
}

/// Whether the other end of a stream has closed it.
fn is_left(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let kinds = [
        BrokenPipe,
        ConnectionAborted,
        ConnectionReset,
        UnexpectedEof,
    ];
    kinds.contains(&error.kind())
}

/// Makes a GPU ready to test queues: now, because later kernels may run there.
#[cfg(feature = "cuda")]
pub(super) fn prepare(device: Device) -> Result<()> {
    if device.kind() == DeviceKind::Cpu {
        return Ok(());
    }
    let gpu = crate::gpu::open(device)?;
    mscclpp_device::self_test::prepare(&gpu).map_err(crate::gpu::failed(
        device,
        "load the kernel that tests queues",
    ))
}

#[cfg(not(feature = "cuda"))]
fn prepare(device: Device) -> Result<()> {
    device.check_available()
}

impl GpuQueueProvider for SoftHca {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn capabilities(&self) -> HcaCapabilities {
        let has = self.device.capabilities();
        HcaCapabilities {
            atomics: has.atomics,
            mtu: Mtu::from_code(has.mtu.code()).unwrap_or(Mtu::SMALLEST),
            max_blocks: has.max_send_blocks.min(has.max_completions),
            max_outstanding_reads: has.max_outstanding_reads,
            posts_of_host: false,
            posts_of_kernels: true,
        }
    }

    fn check_port(&self, gid_index: u32) -> Result<()> {
        if gid_index == 0 {
            return Ok(());
        }
        Err(Error::InvalidUsage {
            operation: "use a GID of an HCA",
            detail: format!(
                "index {gid_index} was asked for (MSCCLPP_IB_GID_INDEX), and {}, a NIC in \
                 software, has one GID, at index 0",
                self.name()
            ),
        })
    }

    fn register(
        &self,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        access: Access,
        ordering: WriteOrdering,
    ) -> Result<Box<dyn HcaRegistration>> {
        let flags = nic::AccessFlags {
            // A get lands in it.
            local_write: true,
            remote_write: access.remote_write,
            remote_read: access.remote_read,
            remote_atomic: access.remote_atomic,
        };
        let ordering = match ordering {
            WriteOrdering::Relaxed => nic::WriteOrdering::Relaxed,
            WriteOrdering::Strict => nic::WriteOrdering::Strict,
        };
        let registration = (self.domain)
            .register(self.range(buffer, offset, len)?, flags, ordering)
            .map_err(self.failed("register memory"))?;
        Ok(Box::new(SoftRegistration(registration)))
    }

    fn counters(&self) -> Option<HcaCounters> {
        let counters = self.device.counters();
        let all = |opcodes: &[Opcode]| opcodes.iter().map(|code| counters.requests_of(*code)).sum();
        Some(HcaCounters {
            name: self.name().into(),
            rank: None,
            doorbells: counters.doorbells,
            writes: all(&[Opcode::Write, Opcode::WriteImmediate]),
            reads: all(&[Opcode::Read]),
            atomics: all(&[Opcode::FetchAdd, Opcode::CompareSwap]),
            completions: counters.completions,
            errors: counters.errors.values().sum(),
            retries: counters.retransmissions,
            landed_bytes: counters.bytes_landed,
        })
    }

    fn create_queue(&self, plan: QueuePlan) -> Result<Box<dyn HcaQueue>> {
        let largest = self.device.capabilities().max_message;
        if largest < SIGNAL {
            return Err(Error::InvalidUsage {
                operation: "create an endpoint",
                detail: format!(
                    "the largest message of {} is {largest} bytes, and signals take {SIGNAL}",
                    self.name()
                ),
            });
        }
        let memory = QueueLayout::new(plan, LINE)?;
        let QueueLayout {
            blocks, entries, ..
        } = memory;
        let part = |offset, len| self.range(&memory.rings, offset, len);
        let page = self.page(plan.device)?;
        let ring = part(
            memory.completions,
            u64::from(entries) * COMPLETION_BYTES as u64,
        )?;
        let completions = (self.device)
            .create_completion_queue(ring, entries)
            .map_err(self.failed("create a completion queue"))?;
        let results = nic::AccessFlags {
            local_write: true,
            ..nic::AccessFlags::LOCAL_READ
        };
        let scratch = (self.domain)
            .register(
                self.range(&memory.words, memory.scratch, 8)?,
                results,
                nic::WriteOrdering::Relaxed,
            )
            .map_err(self.failed("register the scratch word of a queue"))?;
        let pair = (self.domain)
            .create_queue_pair(nic::QueuePairConfig {
                send_ring: part(memory.ring, u64::from(blocks) * 64)?,
                send_blocks: blocks,
                record: part(memory.record, DoorbellRecord::BYTES as u64)?,
                send_completions: &completions,
                receive: None,
                page: &page,
                trigger: None,
            })
            .map_err(self.failed("create a queue pair"))?;
        Ok(Box::new(SoftQueue {
            pair,
            scratch,
            page,
            memory,
            plan,
            device: self.device.clone(),
        }))
    }

    fn reaches(&self, hca: HcaAddress) -> bool {
        let address = nic::DeviceAddress(hca.0);
        address == self.device.address() || self.device.links().contains(&address)
    }

    fn wire(&self, peer: HcaAddress, stream: WireStream, timeout: Duration) -> Result<()> {
        let stream: nic::LinkStream = match stream {
            WireStream::Tcp(stream) => stream.into(),
            WireStream::Unix(stream) => stream.into(),
        };
        (self.device)
            .link_to(nic::DeviceAddress(peer.0), stream, timeout)
            .map_err(|error| match &error {
                nic::Error::Link { source, .. } if is_left(source) => Error::PeerDown {
                    rank: None,
                    cause: error.to_string(),
                },
                _ => self.failed("link it to the peer's")(error),
            })
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.event_fd())
    }

    fn take_news(&self) {
        while self.device.next_event(Duration::ZERO).is_some() {}
    }
}

struct SoftRegistration(nic::Registration);

impl HcaRegistration for SoftRegistration {
    fn key(&self) -> u32 {
        self.0.key().get()
    }
}
