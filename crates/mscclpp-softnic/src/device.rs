// SPDX-License-Identifier: MIT
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use mlx5_queue::{COMPLETION_BYTES, RingSize};

use crate::capability::{Capabilities, DeviceAddress};
use crate::config::{DeviceConfig, EngineMode, NetworkConfig};
use crate::counters::Counters;
use crate::engine::{Engine, Inner};
use crate::error::Error;
use crate::event::Event;
use crate::fault::{ControlOperation, FaultPlan};
use crate::handles::{CompletionQueue, DoorbellPage, ProtectionDomain};
use crate::link::LinkStream;
use crate::memory::{HostBuffer, HostWord, MemoryRange};
use crate::observer::{Observer, Watched};
use crate::shell::Registers;
use crate::time::Time;
use crate::violation::Violation;

/// A NIC in software.
///
/// Clones are the same device. Each [`open`](Self::open) makes a new one, as
/// if each process had an adapter of its own: devices of the same name share
/// nothing. The device exists until it and everything made on it is dropped,
/// in any order.
#[derive(Clone)]
pub struct Device {
    engine: Arc<Engine>,
}

impl Device {
    /// Opens `soft0`, `soft1` and so on.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] for any other name: a real HCA's name never
    /// gets a NIC in software. [`Error::Engine`] if no thread can be started.
    pub fn open(name: &str, config: DeviceConfig) -> Result<Self, Error> {
        if !Self::is_name(name) {
            return Err(Error::UnknownDevice {
                name: name.to_owned(),
            });
        }
        Ok(Self {
            engine: Engine::start(name, config)?,
        })
    }

    /// Whether a name is that of a NIC in software: `soft0`, `soft1` and so on.
    pub fn is_name(name: &str) -> bool {
        let number = name.strip_prefix("soft").unwrap_or_default();
        (1..=4).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    }

    /// The name it was opened by.
    pub fn name(&self) -> &str {
        &self.inner().name
    }

    /// Where peers find it.
    pub fn address(&self) -> DeviceAddress {
        self.inner().address
    }

    /// What it can do.
    pub fn capabilities(&self) -> Capabilities {
        self.inner().capabilities.clone()
    }

    /// What it has and has done.
    pub fn counters(&self) -> Counters {
        self.inner().lock().nic.counters()
    }

    /// What its posters did wrong since the last call.
    pub fn take_violations(&self) -> Vec<Violation> {
        std::mem::take(&mut self.inner().lock().nic.common.violations)
    }

    /// Replaces the fault plan. What it says of [`never_execute`] counts from
    /// the next doorbell on.
    ///
    /// [`never_execute`]: FaultPlan::never_execute
    pub fn set_faults(&self, plan: FaultPlan) {
        self.inner().lock().nic.common.config.faults = plan;
    }

    /// Has `observer` look on from now on, in place of an earlier one. Without, which is how a device
    /// begins, that costs a look at an empty field.
    pub fn set_observer(&self, observer: Option<Arc<dyn Observer>>) {
        self.inner().lock().nic.common.watched = Watched(observer);
    }

    /// Changes what the network does to packets sent from now on.
    pub fn set_network(&self, network: NetworkConfig) {
        let mut shell = self.inner().lock();
        shell.nic.common.config.network = network;
        shell.nic.common.network.config = network;
    }

    /// Pulls the cable, or plugs it in again: while it is out, packets sent
    /// are lost.
    pub fn set_link_up(&self, up: bool) {
        self.inner().lock().nic.common.network.up = up;
    }

    /// Connects this device with the one at the other end of `stream`, which
    /// does the same at the same time, and says which that is. Queue pairs of
    /// the two can reach each other from then on.
    ///
    /// Over a Unix stream, devices lend each other registrations of memory that
    /// [can be exported](crate::NicMemory::export), so that payload does not go over the
    /// link: who receives it copies it from a mapping of the sender's memory. The
    /// peer's process is trusted with that: it may map more than the registration
    /// (a whole allocation), may write to it, and can not be made to unmap it.
    /// [`Counters::bytes_mapped`] tells whether it happens.
    ///
    /// The link lasts as long as the stream, or until either device is
    /// dropped, links to the same device again, or says what is out of order, such
    /// as offers of more memory than it hears the answers of. When it is gone, requests to
    /// that device fail with RETRY_EXC_ERR.
    ///
    /// # Errors
    /// [`Error::Link`] if the other end does not answer within `timeout`, is
    /// not a NIC in software of this version, or is this device itself.
    pub fn link(
        &self,
        stream: impl Into<LinkStream>,
        timeout: Duration,
    ) -> Result<DeviceAddress, Error> {
        self.link_if(stream.into(), timeout, |_| true)
    }

    /// As [`link`](Self::link), with no other device than `peer`: whoever is at the other end says
    /// itself which device it is, and could take the place of a link that there is.
    ///
    /// # Errors
    /// As [`link`](Self::link), and if the other end says that it is another device.
    pub fn link_to(
        &self,
        peer: DeviceAddress,
        stream: impl Into<LinkStream>,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.link_if(stream.into(), timeout, |found| found == peer)
            .map(drop)
    }

    fn link_if(
        &self,
        stream: LinkStream,
        timeout: Duration,
        wanted: impl FnOnce(DeviceAddress) -> bool,
    ) -> Result<DeviceAddress, Error> {
        let failed = |source| Error::Link {
            device: self.name().to_owned(),
            source,
        };
        let refused = |what| failed(io::Error::new(io::ErrorKind::InvalidInput, what));
        let peer = stream.greet(self.address(), timeout).map_err(failed)?;
        if peer == self.address() {
            return Err(refused("the other end is the same device"));
        }
        if !wanted(peer) {
            return Err(refused("the other end says that it is another device"));
        }
        let mut shell = self.inner().lock();
        shell.add_link(peer, stream);
        Inner::unlock(shell);
        self.after_change();
        Ok(peer)
    }

    /// The devices that this one has a link to at the moment.
    pub fn links(&self) -> Vec<DeviceAddress> {
        self.inner()
            .lock()
            .links
            .iter()
            .map(|link| link.peer)
            .collect()
    }

    /// The oldest [`Event`] that nobody has taken yet, waiting for one up to
    /// `timeout` (zero: only looks); `None` if there is none by then.
    ///
    /// May be called from several threads: each event goes to one of them, in
    /// the order in which they happened. At most 4096 wait; if more happen
    /// before one is asked for, what follows is dropped and counted, and
    /// [`Event::Overflow`] comes after those that were kept. There is no order
    /// between an event and the completions of its queue pair: either may be
    /// seen first. What the event says has happened when it is seen:
    /// [`QueuePair::status`](crate::QueuePair::status) agrees.
    ///
    /// With [`EngineMode::Inline`] and [`EngineMode::Manual`] nothing happens
    /// while no one runs the device, so that a call may wait in vain.
    pub fn next_event(&self, timeout: Duration) -> Option<Event> {
        self.inner().events.next(timeout)
    }

    /// A descriptor that is readable while [`next_event`](Self::next_event)
    /// has something to return, for `poll(2)` together with others. It must
    /// not be read from or written to: taking the last event makes it
    /// unreadable.
    ///
    /// With several threads that take events it may have been another's when
    /// this one comes: ask with a timeout of zero.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.inner().events.fd()
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::Refused`].
    pub fn allocate_domain(&self) -> Result<ProtectionDomain, Error> {
        self.inner().admit(ControlOperation::AllocateDomain)?;
        let mut shell = self.inner().lock();
        shell.room(
            "protection domains",
            shell.nic.counters().live.protection_domains,
        )?;
        let number = shell.nic.add_domain();
        drop(shell);
        Ok(ProtectionDomain::new(self.clone(), number))
    }

    /// Allocates a page with a doorbell register.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::Refused`].
    pub fn allocate_doorbell_page(&self) -> Result<DoorbellPage, Error> {
        self.allocate_doorbell_page_in(HostBuffer::new(DoorbellPage::BYTES as usize).range())
    }

    /// The same in memory of the caller's choice: a GPU, say, may have to be
    /// told of a page before its threads can store to it. `page` is zeroed and
    /// [`HostMemory`](crate::HostMemory); its first [`DoorbellPage::BYTES`] bytes are the NIC's
    /// alone until the last handle is dropped.
    ///
    /// # Errors
    /// [`Error::Range`] for other memory, a page that is too short or not
    /// aligned to 8 bytes; [`Error::Limit`], [`Error::Refused`].
    pub fn allocate_doorbell_page_in(&self, page: MemoryRange) -> Result<DoorbellPage, Error> {
        const WHAT: &str = "doorbell page";
        check_range(WHAT, &page, DoorbellPage::BYTES, 8)?;
        let register = page.slice(Registers::OFFSET, 8);
        let Some(register) = register.as_ref().and_then(HostWord::of) else {
            return Err(Error::Range {
                what: WHAT,
                address: page.address(),
                length: page.len(),
                requirement: "not the host's memory",
            });
        };
        self.inner().admit(ControlOperation::AllocateDoorbellPage)?;
        let mut shell = self.inner().lock();
        shell.room("doorbell pages", shell.nic.counters().live.doorbell_pages)?;
        let number = shell.nic.add_page();
        let registers = shell.add_registers(number, register);
        drop(shell);
        Ok(DoorbellPage::new(self.clone(), number, registers))
    }

    /// Creates a completion queue of `entries` entries of 64 bytes in `ring`.
    ///
    /// The caller fills the last byte of each entry with
    /// [`Completion::UNWRITTEN`](mlx5_queue::Completion::UNWRITTEN) before, as
    /// every mlx5 driver does. Overrun is ignored: entries that are not read
    /// in time are overwritten.
    ///
    /// # Errors
    /// [`Error::Layout`] unless `entries` is a power of two, [`Error::Range`]
    /// if the ring is too small or not 64-byte aligned, [`Error::Limit`],
    /// [`Error::Refused`].
    pub fn create_completion_queue(
        &self,
        ring: MemoryRange,
        entries: u32,
    ) -> Result<CompletionQueue, Error> {
        self.inner()
            .admit(ControlOperation::CreateCompletionQueue)?;
        let size = RingSize::new(entries).map_err(|source| Error::Layout {
            what: "completion queue",
            source,
        })?;
        let limit = self.inner().capabilities.max_completions;
        if entries > limit {
            let (asked, limit) = (u64::from(entries), u64::from(limit));
            return Err(Error::Limit {
                what: "completions",
                asked,
                limit,
            });
        }
        let bytes = u64::from(entries) * COMPLETION_BYTES as u64;
        check_range("completion queue", &ring, bytes, COMPLETION_BYTES as u64)?;
        let mut shell = self.inner().lock();
        shell.room(
            "completion queues",
            shell.nic.counters().live.completion_queues,
        )?;
        let base = shell.place(&ring);
        let number = shell.nic.add_completion_queue(base, size);
        drop(shell);
        Ok(CompletionQueue::new(self.clone(), number, ring))
    }

    /// Does everything that can be done now. For [`EngineMode::Inline`], whose
    /// devices otherwise run at doorbells only; harmless in the other modes.
    pub fn run(&self) {
        if self.inner().mode != EngineMode::Manual {
            self.inner().run_until_idle();
        }
    }

    /// Sets the clock of a device with [`EngineMode::Manual`] to `now` and does
    /// everything that happens until then, each thing at its time. A clock
    /// that goes back stands still instead.
    pub fn run_at(&self, now: Time) {
        if self.inner().mode == EngineMode::Manual {
            self.inner().run_to(now);
        }
    }

    /// The device's clock, as the NIC was last told it.
    pub fn now(&self) -> Time {
        self.inner().lock().nic.common.now
    }

    /// Time until the device will do something of itself, `None` if never:
    /// how far a manual clock may be moved on at once.
    pub fn idle_for(&self) -> Option<Duration> {
        let mut shell = self.inner().lock();
        let now = shell.nic.common.now;
        shell.nic.next_time().map(|time| time.since(now))
    }

    pub(crate) fn inner(&self) -> &Inner {
        self.engine.inner()
    }

    /// Whether the fault plan lets a registration through that is none of a protection domain.
    pub(crate) fn admit_registration(&self) -> Result<(), Error> {
        self.inner().admit(ControlOperation::Register)
    }

    pub(crate) fn ring(&self, page: u32, value: [u8; 8]) {
        self.inner().ring(page, value);
    }

    /// Something was changed that the NIC has to act on.
    pub(crate) fn after_change(&self) {
        match self.inner().mode {
            EngineMode::Thread => self.inner().wake(),
            EngineMode::Inline => self.run(),
            EngineMode::Manual => {}
        }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.engine, &other.engine)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {})", self.name(), self.address())
    }
}

/// A range holds `bytes` bytes and starts at a multiple of `alignment`.
pub(crate) fn check_range(
    what: &'static str,
    range: &MemoryRange,
    bytes: u64,
    alignment: u64,
) -> Result<(), Error> {
    let requirement = if range.len() < bytes {
        "too short"
    } else if !range.address().is_multiple_of(alignment) {
        "not aligned"
    } else {
        return Ok(());
    };
    Err(Error::Range {
        what,
        address: range.address(),
        length: range.len(),
        requirement,
    })
}
