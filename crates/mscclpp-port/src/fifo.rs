// SPDX-License-Identifier: MIT
//! The host side of the queue through which kernels ask the proxy for work.
//!
//! Many device threads push, one host thread polls. A position is a u64 that never wraps; position
//! `p` lies in slot `p mod size`, and bit 63 of a slot's second word says in which lap it was
//! written, so that a zeroed ring and the lap before both read as empty. The device side writes the
//! second word last (or both at once) with release ordering, takes positions from `head`, and waits
//! for room until `position < size + tail`.

use std::sync::{Arc, Mutex};

use mscclpp_device::abi::{AbiHeader, FifoDeviceHandle, ProxyTrigger, Status, StatusWord};

use crate::buffer::Buffer;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering, lock_plain as lock};
use crate::visible::Visible;

/// Slots of a FIFO that nobody chose another size for.
pub const DEFAULT_FIFO_SIZE: usize = 512;

/// The largest ring: its slots take 16 MiB.
const MAX_FIFO_SIZE: usize = 1 << 20;

/// One slot; the layout of [`ProxyTrigger`].
#[derive(Default)]
#[repr(C, align(16))]
struct Slot {
    fst: AtomicU64,
    snd: AtomicU64,
}

/// A word on a cache line of its own (two, for processors that fetch lines in pairs).
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

#[derive(Default)]
struct Lines {
    head: Line,
    tail: Line,
    tail_cache: Line,
    status: Line,
}

/// The memory that device code and the host share.
pub(crate) struct Ring {
    slots: Visible<[Slot]>,
    shift: u32,
    lines: Visible<Lines>,
    /// Whose kernels push, once that is known.
    pushers: Mutex<Option<Pushers>>,
}

/// The device whose kernels push.
#[derive(Clone)]
struct Pushers {
    device: Device,
    /// A GPU has head and tail cache in its own memory, on a line each: only its kernels use them.
    words: Option<Buffer>,
}

/// Where the tail cache lies behind the head in a GPU's memory.
const TAIL_CACHE: u64 = 128;

impl Ring {
    fn new(size: usize) -> Result<Self> {
        if !size.is_power_of_two() || size > MAX_FIFO_SIZE {
            return Err(Error::FifoSize {
                size,
                max: MAX_FIFO_SIZE,
            });
        }
        Ok(Self {
            slots: Visible::many(size)?,
            shift: size.trailing_zeros(),
            lines: Visible::new()?,
            pushers: Mutex::default(),
        })
    }

    /// Serves kernels of `device` from now on, and of no other: positions are taken by atomics
    /// that are one device's own.
    pub(crate) fn bind(&self, device: Device) -> Result<()> {
        let mut pushers = lock(&self.pushers);
        match &*pushers {
            Some(bound) if bound.device == device => return Ok(()),
            Some(bound) => {
                return Err(Error::InvalidUsage {
                    operation: "serve kernels",
                    detail: format!(
                        "the FIFO serves kernels of {}, not of {device}: make another service",
                        bound.device
                    ),
                });
            }
            None => {}
        }
        let words = match device.kind() {
            DeviceKind::Cpu => None,
            DeviceKind::Gpu => {
                self.show_to(device)?;
                let words = Buffer::new(device, 2 * TAIL_CACHE)?;
                words.store_u64(0, self.lines.head.0.load(Ordering::Acquire))?;
                words.store_u64(TAIL_CACHE, self.lines.tail.0.load(Ordering::Acquire))?;
                Some(words)
            }
        };
        *pushers = Some(Pushers { device, words });
        Ok(())
    }

    /// Lets kernels of a device see what lies in host memory.
    pub(crate) fn show_to(&self, device: Device) -> Result<()> {
        self.slots.show_to(device)?;
        self.lines.show_to(device)
    }

    /// Head and tail cache in a GPU's memory, if a GPU's kernels push.
    fn words(&self) -> Option<Buffer> {
        (lock(&self.pushers).as_ref()).and_then(|pushers| pushers.words.clone())
    }

    pub(crate) fn device_handle(&self) -> FifoDeviceHandle {
        let line = |line: &Line| std::ptr::from_ref(&line.0).expose_provenance() as u64;
        let lines = &*self.lines;
        let (head, tail_cache) = match self.words() {
            Some(words) => (words.address(), words.address() + TAIL_CACHE),
            None => (line(&lines.head), line(&lines.tail_cache)),
        };
        FifoDeviceHandle {
            abi: AbiHeader::of::<FifoDeviceHandle>(),
            triggers: self.slots.as_ptr().expose_provenance() as u64,
            head,
            tail: line(&lines.tail),
            tail_cache,
            size: self.slots.len() as i32,
            reserved: 0,
            size_mask: self.slots.len() as u64 - 1,
            size_shift: self.shift.into(),
            status: line(&lines.status),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.slots.len()
    }

    /// One past the last position that a kernel has taken.
    pub(crate) fn head(&self) -> u64 {
        match self.words() {
            None => self.lines.head.0.load(Ordering::Acquire),
            Some(words) => words.load_u64(0).unwrap_or_else(|error| {
                tracing::warn!(%error, "a FIFO's head cannot be read: what is left in it is not known");
                self.lines.tail.0.load(Ordering::Acquire)
            }),
        }
    }

    /// As many triggers have been taken out, and their slots given back.
    pub(crate) fn tail(&self) -> u64 {
        self.lines.tail.0.load(Ordering::Acquire)
    }

    /// What kernels that wait on this FIFO are told; [`Status::Ok`] while it is served.
    pub(crate) fn status(&self) -> StatusWord {
        StatusWord::from_bits(self.lines.status.0.load(Ordering::Acquire))
    }

    /// Releases whoever waits for room or for a flush.
    pub(crate) fn set_aborted(&self) {
        let word = StatusWord::new(Status::Aborted, 0).to_bits();
        self.lines.status.0.store(word, Ordering::Release);
    }

    /// Takes the FIFO into service again, unless device threads gave up positions meanwhile:
    /// nobody will ever fill those.
    pub(crate) fn clear_status(&self) -> Result<()> {
        let (head, tail) = (self.head(), self.lines.tail.0.load(Ordering::Acquire));
        if head.saturating_sub(tail) > self.slots.len() as u64 {
            return Err(Error::FifoBroken { head, tail });
        }
        self.lines.status.0.store(0, Ordering::Release);
        Ok(())
    }
}

/// The host side of a FIFO: its one consumer.
///
/// Threads of a [`FifoDeviceHandle`] push; this end takes triggers in the order of their positions.
/// The handle is plain data: the `Fifo` must outlive the kernels that use it.
pub struct Fifo {
    ring: Arc<Ring>,
    /// Position of the next trigger to look at.
    position: u64,
}

impl Fifo {
    /// An empty FIFO of `size` slots.
    ///
    /// # Errors
    /// [`Error::FifoSize`] unless `size` is a power of two, at most 2^20.
    pub fn new(size: usize) -> Result<Self> {
        Ok(Self {
            ring: Arc::new(Ring::new(size)?),
            position: 0,
        })
    }

    /// Serves kernels of `device`: the CPU, unless this says something else before the first push. A
    /// GPU gets the words that only its kernels use in its own memory; take the handle after this.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if it serves another device; those of [`Buffer::new`].
    pub fn bind(&self, device: Device) -> Result<()> {
        self.ring.bind(device)
    }

    /// What kernels need to push.
    pub fn device_handle(&self) -> FifoDeviceHandle {
        self.ring.device_handle()
    }

    /// The trigger at [`Fifo::tail`], if it has been pushed. Asking again gives it again, until
    /// [`Fifo::pop`]. The commit bit is clear in what is returned, whatever the lap.
    #[inline]
    pub fn poll(&self) -> Option<ProxyTrigger> {
        let slot = &self.ring.slots[self.position as usize & (self.ring.slots.len() - 1)];
        // Acquire: the first word, and the payload behind the trigger, were written before.
        let snd = slot.snd.load(Ordering::Acquire);
        let lap = ProxyTrigger::commit_bit(self.position, self.ring.shift);
        if (snd ^ lap) & ProxyTrigger::COMMIT_BIT != 0 {
            return None;
        }
        Some(ProxyTrigger {
            fst: slot.fst.load(Ordering::Relaxed),
            snd: snd & !ProxyTrigger::COMMIT_BIT,
        })
    }

    /// Gives the slot of the trigger that [`Fifo::poll`] returned back to the device side. Without
    /// one it does nothing.
    pub fn pop(&mut self) {
        if self.poll().is_some() {
            self.advance();
            self.publish();
        }
    }

    /// Steps over the trigger that was polled, without giving its slot back yet.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.position += 1;
    }

    /// Gives all slots that were stepped over back to the device side.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // Release: the slots were read before they are overwritten.
        self.ring
            .lines
            .tail
            .0
            .store(self.position, Ordering::Release);
    }

    /// Position of the next trigger; as many have been popped.
    pub fn tail(&self) -> u64 {
        self.position
    }

    /// Number of slots.
    pub fn size(&self) -> usize {
        self.ring.size()
    }

    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }
}

#[cfg(test)]
mod testing {
    use super::*;

    /// The device side's push, in Rust. For tests that need no kernel.
    impl Ring {
        #[cfg(not(loom))]
        /// Takes a position and fills its slot if there is room; `None` if there is none now (the
        /// position is not taken then).
        pub(crate) fn try_push(&self, trigger: ProxyTrigger) -> Option<u64> {
            let position = self
                .lines
                .head
                .0
                .try_update(Ordering::Relaxed, Ordering::Relaxed, |head| {
                    let tail = self.lines.tail.0.load(Ordering::Acquire);
                    (head < tail + self.slots.len() as u64).then_some(head + 1)
                })
                .ok()?;
            self.fill(position, trigger);
            Some(position)
        }

        /// Takes a position whether there is room or not, as device code does.
        pub(crate) fn take(&self) -> u64 {
            self.lines.head.0.fetch_add(1, Ordering::Relaxed)
        }

        pub(crate) fn fill(&self, position: u64, trigger: ProxyTrigger) {
            let slot = &self.slots[position as usize & (self.slots.len() - 1)];
            slot.fst.store(trigger.fst, Ordering::Relaxed);
            let snd = trigger.snd & !ProxyTrigger::COMMIT_BIT
                | ProxyTrigger::commit_bit(position, self.shift);
            slot.snd.store(snd, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
