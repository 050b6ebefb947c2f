// SPDX-License-Identifier: MIT
//! HCAs that are NICs in software.

use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use mlx5_queue::{COMPLETION_BYTES, DoorbellRecord, QueueNumber, RingSize};
use mscclpp_device::abi::{AbiHeader, QueueDeviceHandle, QueueForm, QueueState};
use mscclpp_softnic as nic;

use super::config::QueuePlacement;
use super::fault;
use super::gpu_memory::GpuMemories;
use super::layout::QueueLayout;
use super::provider::{
    GpuQueueProvider, HcaAddress, HcaCapabilities, HcaQueue, HcaRegistration, Mtu, Path,
    QueueAddress, QueueFault, QueuePlan, WireStream, WriteOrdering,
};
use crate::buffer::Buffer;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::memory::Access;

/// How long an acknowledgement may take before everything is sent again: code 16 of verbs. Peers that
/// die are noticed by the control stream, long before the retries are used up.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_micros(268_435);

/// Bytes of a request at most: its length has 31 bits, and one more says that data is inline.
const MAX_MESSAGE: u64 = 1 << 30;
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
    fn range(&self, buffer: &Buffer, offset: u64, len: u64) -> Result<nic::MemoryRange> {
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
fn prepare(device: Device) -> Result<()> {
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
        let memory = QueueLayout::new(plan)?;
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
        let entries = RingSize::new(entries)
            .map_err(|error| Error::hca(self.name(), "create a completion queue", error))?;
        Ok(Box::new(SoftQueue {
            pair,
            scratch,
            page,
            memory,
            entries,
            plan,
            device: self.device.clone(),
        }))
    }

    fn reaches(&self, hca: HcaAddress) -> bool {
        let address = nic::DeviceAddress(hca.0);
        address == self.device.address() || self.device.links().contains(&address)
    }

    fn wire(&self, stream: WireStream, timeout: Duration) -> Result<()> {
        let stream: nic::LinkStream = match stream {
            WireStream::Tcp(stream) => stream.into(),
            WireStream::Unix(stream) => stream.into(),
        };
        (self.device.link(stream, timeout))
            .map(drop)
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

/// A queue pair, and its memory. Fields are let go in this order.
struct SoftQueue {
    pair: nic::QueuePair,
    scratch: nic::Registration,
    page: nic::DoorbellPage,
    memory: QueueLayout,
    entries: RingSize,
    plan: QueuePlan,
    device: nic::Device,
}

impl SoftQueue {
    fn step(&self, operation: &'static str, step: nic::Transition) -> Result<()> {
        (self.pair.modify(step)).map_err(|error| Error::hca(self.device.name(), operation, error))
    }

    fn state_word(&self, offset: usize) -> u64 {
        // The state lies in the buffer, aligned.
        (self.memory.words)
            .load_u64(self.memory.state + offset as u64)
            .unwrap_or(0)
    }

    /// What kernels and completions tell.
    fn told(&self) -> Option<QueueFault> {
        // In this order, because kernels may be consuming: entries are counted on from what was
        // complete before the first of them.
        let completed = self.state_word(offset_of!(QueueState, completed));
        let consumed = self.state_word(offset_of!(QueueState, consumed));
        let read = |slot: u32| {
            let mut entry = [0; COMPLETION_BYTES];
            let at = self.memory.completions + u64::from(slot) * COMPLETION_BYTES as u64;
            // A queue in error has written its completions, so none is torn.
            let _ = self.memory.rings.read(at, &mut entry);
            entry
        };
        fault::of_completions(self.entries, consumed, completed, read).or_else(|| {
            let error = self.state_word(offset_of!(QueueState, error));
            fault::of_state(error, self.state_word(offset_of!(QueueState, error_index)))
        })
    }
}

impl HcaQueue for SoftQueue {
    fn address(&self) -> QueueAddress {
        let nic::QueueAddress { device, queue, .. } = self.pair.address();
        QueueAddress {
            hca: HcaAddress(device.0),
            number: queue.get(),
        }
    }

    fn init(&self) -> Result<()> {
        self.step(
            "bring a queue pair to INIT",
            nic::Transition::Init(nic::InitAttributes {
                remote_write: true,
                remote_read: true,
                remote_atomic: self.device.capabilities().atomics,
            }),
        )
    }

    fn ready_to_receive(&self, path: &Path) -> Result<()> {
        let refused = |error| Error::hca(self.device.name(), "connect a queue pair", error);
        let queue = QueueNumber::new(path.peer.number).map_err(refused)?;
        let remote = nic::QueueAddress {
            device: nic::DeviceAddress(path.peer.hca.0),
            queue,
        };
        self.step(
            "bring a queue pair to RTR",
            nic::Transition::ReadyToReceive(nic::ReceiveAttributes {
                mtu: nic::Mtu::from_code(path.mtu.code()).unwrap_or_default(),
                max_outstanding_reads: path.outstanding_reads,
                ..nic::ReceiveAttributes::new(remote)
            }),
        )
    }

    fn ready_to_send(&self, path: &Path) -> Result<()> {
        self.step(
            "bring a queue pair to RTS",
            nic::Transition::ReadyToSend(nic::SendAttributes {
                max_outstanding_reads: path.outstanding_reads,
                timeout: ACKNOWLEDGED_WITHIN,
                ..nic::SendAttributes::default()
            }),
        )
    }

    fn device_handle(&self) -> QueueDeviceHandle {
        let memory = &self.memory;
        let shared = self.plan.form == QueueForm::Shared;
        let (rings, words) = (memory.rings.address(), memory.words.address());
        QueueDeviceHandle {
            abi: AbiHeader::of::<QueueDeviceHandle>(),
            send_ring: rings + memory.ring,
            record: rings + memory.record + DoorbellRecord::SEND_OFFSET as u64,
            doorbell: self.page.register().address(),
            completions: rings + memory.completions,
            state: words + memory.state,
            ready: if shared { words + memory.ready } else { 0 },
            scratch: words + memory.scratch,
            scratch_key: self.scratch.key().get().to_be(),
            number: self.pair.number().get(),
            blocks: memory.blocks,
            completion_entries: memory.entries,
            form: self.plan.form as u32,
            signal_mode: self.plan.signal_mode as u32,
            record_in_host_memory: (self.plan.placement == QueuePlacement::Host).into(),
            // The n-th completion of a shared queue is that of the n-th request.
            signal_every: shared.into(),
            max_message: self.device.capabilities().max_message.min(MAX_MESSAGE),
        }
    }

    fn fault(&self) -> Option<QueueFault> {
        let status = self.pair.status();
        if status.state != nic::State::Error {
            // A kernel found two threads where one had been promised; the NIC knows nothing of it.
            let error = fault::of_state(self.state_word(offset_of!(QueueState, error)), 0);
            return error.filter(|fault| *fault == QueueFault::NotExclusive);
        }
        Some(match (status.failure, self.told()) {
            (None, Some(QueueFault::NotExclusive)) => QueueFault::NotExclusive,
            // Flushed requests say nothing of why.
            (None, _) => QueueFault::Refusal,
            (Some(_), Some(told)) => told,
            (Some(syndrome), None) => QueueFault::Request {
                index: status.finished,
                opcode: None,
                syndrome,
                vendor: 0,
            },
        })
    }

    fn stop(&self) {
        if let Err(error) = self.pair.modify(nic::Transition::Error) {
            tracing::warn!(queue = ?self.pair, %error, "a queue cannot be stopped");
        }
    }
}
