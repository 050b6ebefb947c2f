// SPDX-License-Identifier: MIT
//! Objects of a device. Each keeps what it stands on alive and frees itself
//! when its last clone is dropped.

use std::fmt;
use std::sync::Arc;

use mlx5_queue::{BLOCK_BYTES, Doorbell, DoorbellRecord, MemoryKey, QueueNumber, RingSize};

use crate::device::{Device, check_range};
use crate::engine::Inner;
use crate::error::Error;
use crate::fault::ControlOperation;
use crate::memory::MemoryRange;
use crate::nic::{QueuePairParts, ReceiveParts, Region};
use crate::queue_config::{
    QueueAddress, QueuePairConfig, QueuePairStatus, ReceiveQueueConfig, State, Transition,
};
use crate::region::{AccessFlags, WriteOrdering};
use crate::shell::Registers;

/// A protection domain: queue pairs reach only registrations of their own.
#[derive(Clone)]
pub struct ProtectionDomain(Arc<DomainOwner>);

struct DomainOwner {
    device: Device,
    number: u32,
}

impl Drop for DomainOwner {
    fn drop(&mut self) {
        self.device.inner().lock().nic.remove_domain(self.number);
    }
}

impl ProtectionDomain {
    pub(crate) fn new(device: Device, number: u32) -> Self {
        Self(Arc::new(DomainOwner { device, number }))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Registers `range`: gives it the key by which requests name it.
    ///
    /// # Errors
    /// [`Error::Range`] if it is empty; [`Error::Access`] for remote write or
    /// atomic access without local write; [`Error::Limit`],
    /// [`Error::Refused`].
    pub fn register(
        &self,
        range: MemoryRange,
        access: AccessFlags,
        ordering: WriteOrdering,
    ) -> Result<Registration, Error> {
        let device = &self.0.device;
        device.inner().admit(ControlOperation::Register)?;
        check_range("registration", &range, 1, 1)?;
        if (access.remote_write || access.remote_atomic) && !access.local_write {
            return Err(Error::Access);
        }
        let mut shell = device.inner().lock();
        shell.room("registrations", shell.nic.counters().live.registrations)?;
        let place = shell.place(&range);
        let key = shell.nic.add_region(Region {
            domain: self.0.number,
            space: place.space,
            address: range.address(),
            length: range.len(),
            access,
            ordering,
            variant: 0,
        });
        shell.lending.registered(key, place, &range);
        drop(shell);
        let domain = self.clone();
        Ok(Registration(Arc::new(RegistrationOwner {
            domain,
            key,
            range,
        })))
    }

    /// Creates a queue pair in state Reset.
    ///
    /// # Errors
    /// [`Error::Layout`] if a size is not a power of two, [`Error::Range`] if a
    /// range is too short or misaligned, [`Error::ForeignObject`],
    /// [`Error::Limit`], [`Error::Refused`].
    pub fn create_queue_pair(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, Error> {
        let device = &self.0.device;
        device.inner().admit(ControlOperation::CreateQueuePair)?;
        let QueuePairConfig {
            send_ring,
            send_blocks,
            record,
            send_completions,
            receive,
            page,
            trigger,
        } = config;
        let limits = &device.inner().capabilities;
        let blocks = ring_size("send queue", send_blocks, limits.max_send_blocks)?;
        check_range(
            "send queue",
            &send_ring,
            u64::from(send_blocks) * 64,
            BLOCK_BYTES as u64,
        )?;
        check_range("doorbell record", &record, DoorbellRecord::BYTES as u64, 8)?;
        if !send_completions.0.device.is(device) {
            return Err(Error::ForeignObject {
                what: "the completion queue",
            });
        }
        if !page.0.device.is(device) {
            return Err(Error::ForeignObject {
                what: "the doorbell page",
            });
        }
        let mut shell = device.inner().lock();
        shell.room("queue pairs", shell.nic.counters().live.queue_pairs)?;
        let mut ranges = vec![send_ring, record];
        let mut completions = vec![send_completions.clone()];
        let receive = match receive {
            None => None,
            Some(ReceiveQueueConfig {
                ring,
                entries,
                segments,
                completions: queue,
            }) => {
                let size = ring_size("receive queue", entries, limits.max_receive_entries)?;
                ring_size("receive segments", segments, limits.max_receive_segments)?;
                let bytes = u64::from(entries) * u64::from(segments) * 16;
                check_range("receive queue", &ring, bytes, 16)?;
                if !queue.0.device.is(device) {
                    return Err(Error::ForeignObject {
                        what: "the receive completion queue",
                    });
                }
                let place = shell.place(&ring);
                ranges.push(ring);
                completions.push(queue.clone());
                let completions = queue.0.number;
                Some(ReceiveParts {
                    ring: place,
                    entries: size,
                    segments,
                    completions,
                })
            }
        };
        let parts = QueuePairParts {
            domain: self.0.number,
            page: page.0.number,
            trigger: trigger.unwrap_or(shell.nic.common.config.trigger),
            ring: shell.place(&ranges[0]),
            blocks,
            record: shell.place(&ranges[1]),
            completions: send_completions.0.number,
            receive,
        };
        let number = shell.nic.add_queue_pair(parts)?;
        drop(shell);
        device.after_change();
        Ok(QueuePair(Arc::new(QueuePairOwner {
            domain: self.clone(),
            number,
            ranges,
            _completions: completions,
            page: page.clone(),
        })))
    }
}

fn ring_size(what: &'static str, entries: u32, limit: u32) -> Result<RingSize, Error> {
    let size = RingSize::new(entries).map_err(|source| Error::Layout { what, source })?;
    if entries > limit {
        return Err(Error::Limit {
            what,
            asked: u64::from(entries),
            limit: u64::from(limit),
        });
    }
    Ok(size)
}

/// A registration: memory that requests can name.
///
/// When the last clone is dropped its key is no longer valid: requests that
/// name it fail, here or at the peer, and copies that had begun may still
/// finish, in memory that lives until they have. That a peer's device which has
/// [mapped](Device::link) it does not use it any more is heard a moment later;
/// the memory's owner is kept until then.
#[derive(Clone)]
pub struct Registration(Arc<RegistrationOwner>);

struct RegistrationOwner {
    domain: ProtectionDomain,
    key: MemoryKey,
    range: MemoryRange,
}

impl Drop for RegistrationOwner {
    fn drop(&mut self) {
        let mut shell = self.domain.0.device.inner().lock();
        shell.nic.remove_region(self.key);
        let range = shell.lending.deregistered(self.key);
        shell.retire(self.range.owner().clone());
        let lent = shell.nic.common.loans.has_orders();
        Inner::unlock(shell);
        drop(range);
        if lent {
            self.domain.0.device.inner().wake();
        }
    }
}

impl Registration {
    /// Its key, for local and for remote use.
    pub fn key(&self) -> MemoryKey {
        self.0.key
    }

    /// The memory.
    pub fn range(&self) -> &MemoryRange {
        &self.0.range
    }
}

/// A completion queue.
#[derive(Clone)]
pub struct CompletionQueue(Arc<CompletionQueueOwner>);

struct CompletionQueueOwner {
    device: Device,
    number: u32,
    range: MemoryRange,
}

impl Drop for CompletionQueueOwner {
    fn drop(&mut self) {
        let mut shell = self.device.inner().lock();
        shell.nic.remove_completion_queue(self.number);
        shell.retire(self.range.owner().clone());
        Inner::unlock(shell);
    }
}

impl CompletionQueue {
    pub(crate) fn new(device: Device, number: u32, range: MemoryRange) -> Self {
        Self(Arc::new(CompletionQueueOwner {
            device,
            number,
            range,
        }))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.number
    }
}

/// A page with a doorbell register.
///
/// Doorbells come in two ways. [`ring`](Self::ring) is a call, and the NIC
/// sees every one. A plain 8-byte store to the register's memory is found when
/// the NIC next looks; of several stores in between it sees the last, so queue
/// pairs whose doorbells are plain stores need a page each, or
/// [`TriggerMode::PollRecord`](crate::TriggerMode::PollRecord).
#[derive(Clone)]
pub struct DoorbellPage(Arc<PageOwner>);

struct PageOwner {
    device: Device,
    number: u32,
    registers: Arc<Registers>,
}

impl Drop for PageOwner {
    fn drop(&mut self) {
        self.device.inner().lock().nic.remove_page(self.number);
    }
}

impl DoorbellPage {
    /// Bytes of a page.
    pub const BYTES: u64 = 4096;

    pub(crate) fn new(device: Device, number: u32, registers: Arc<Registers>) -> Self {
        Self(Arc::new(PageOwner {
            device,
            number,
            registers,
        }))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Rings: as the 8-byte store that a poster makes, but seen each time.
    /// Everything that the poster has published before is visible to the NIC.
    pub fn ring(&self, doorbell: Doorbell) {
        self.ring_bytes(doorbell.encode());
    }

    /// The same with the register's bytes as a poster computed them.
    pub fn ring_bytes(&self, value: [u8; 8]) {
        self.0.device.ring(self.0.number, value);
    }

    /// The register, for posters that store to it: 8 bytes at offset 0x800 of
    /// a page that lives as long as this handle and what it returns.
    pub fn register(&self) -> MemoryRange {
        self.0.registers.register.range()
    }
}

/// A queue pair of a reliable connection.
#[derive(Clone)]
pub struct QueuePair(Arc<QueuePairOwner>);

struct QueuePairOwner {
    domain: ProtectionDomain,
    number: QueueNumber,
    ranges: Vec<MemoryRange>,
    _completions: Vec<CompletionQueue>,
    page: DoorbellPage,
}

impl Drop for QueuePairOwner {
    fn drop(&mut self) {
        let mut shell = self.domain.0.device.inner().lock();
        shell.nic.remove_queue_pair(self.number);
        for range in &self.ranges {
            shell.retire(range.owner().clone());
        }
        Inner::unlock(shell);
    }
}

impl QueuePair {
    /// Its number.
    pub fn number(&self) -> QueueNumber {
        self.0.number
    }

    /// What its peer connects to.
    pub fn address(&self) -> QueueAddress {
        QueueAddress {
            device: self.0.domain.0.device.address(),
            queue: self.0.number,
        }
    }

    /// The page that its doorbells go to.
    pub fn page(&self) -> &DoorbellPage {
        &self.0.page
    }

    /// Takes one step of its life.
    ///
    /// # Errors
    /// [`Error::Transition`] if the step is not one from its state,
    /// [`Error::Limit`] if an attribute is more than the device can do,
    /// [`Error::Refused`].
    pub fn modify(&self, step: Transition) -> Result<(), Error> {
        let device = &self.0.domain.0.device;
        device
            .inner()
            .admit(ControlOperation::Transition(step.target()))?;
        let mut shell = device.inner().lock();
        shell.nic.transition(self.0.number, step)?;
        shell.report();
        drop(shell);
        device.after_change();
        Ok(())
    }

    /// What it is doing.
    pub fn status(&self) -> QueuePairStatus {
        let status = self
            .0
            .domain
            .0
            .device
            .inner()
            .lock()
            .nic
            .status(self.0.number);
        // It exists while this handle does.
        status.unwrap_or(QueuePairStatus {
            state: State::Reset,
            announced: 0,
            finished: 0,
            failure: None,
        })
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({:#x})", self.number())
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({:#x})", self.key().get())
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue({:#x})", self.number())
    }
}

impl fmt::Debug for DoorbellPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DoorbellPage({:#x})", self.number())
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair({:#x})", self.number().get())
    }
}
