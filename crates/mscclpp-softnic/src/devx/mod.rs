// SPDX-License-Identifier: MIT
//! The commands of an mlx5 device (DEVX), carried out by the NIC in software.
//!
//! A driver in user space that makes its objects by commands, as NVIDIA's GPUNetIO does, speaks
//! to firmware: it registers memory for the device's own use ([`Umem`]), takes a page of
//! doorbells ([`Uar`]), and sends commands of a few hundred bytes that make, change and query
//! queues. [`Devx`] answers them on a [`Device`]: what is made by a command is an object of
//! that device, with its checks, faults, events and counters.
//!
//! It knows the commands that make, connect, query and destroy reliable queue pairs without a
//! receive queue, and what a driver asks before: see [`Command`]. It is strict: what it does not
//! model is refused, never ignored, if it would change what the queue does:
//!
//! | asked for | answer |
//! |---|---|
//! | a collapsed completion queue, entries of 128 bytes, checked overrun | BAD_PARAM |
//! | a queue pair without a doorbell record, with a receive queue, of another service than RC | BAD_PARAM |
//! | memory that was not registered, or is too short | BAD_RES, BAD_PARAM |
//! | a transition that is not one from the queue's state | BAD_RES_STATE |
//! | a port, MTU, number of outstanding reads or UDP port beyond what was queried | BAD_PARAM, EXCEED_LIM |
//! | to let go of memory, a page or a completion queue that a queue stands on | RES_BUSY |
//! | a page of doorbells for one owner alone | refused, as older kernels do |
//!
//! Where the peer is, a path says by GID, which is the device's [`DeviceAddress`], or on an
//! InfiniBand port without GRH by LID ([`Devx::learn`]). On an Ethernet port it also has the
//! peer's MAC, which is [`mac`] of the GID: a wrong one reaches nobody.

mod answer;
mod capability;
mod command;
mod create;
mod layout;
mod path;
mod transition;

#[cfg(test)]
#[path = "../../tests/devx/commands.rs"]
#[expect(dead_code, reason = "the tests of devices use more of it")]
mod commands;
#[cfg(test)]
mod fuzz;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub use answer::{Refusal, Status, Syndrome};
pub use command::Command;
use command::{answered, misplaced};
use create::{Completions, Pair};

use crate::{Device, DeviceAddress, DoorbellPage, Error, MemoryRange, ProtectionDomain};

/// What kind of port the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Port {
    /// InfiniBand, with this LID.
    InfiniBand {
        /// Not 0.
        lid: u16,
    },
    /// Ethernet: RoCE, version 2.
    Ethernet,
}

/// An opened device that takes commands. Clones are the same one.
#[derive(Clone)]
pub struct Devx(Arc<Shared>);

struct Shared {
    device: Device,
    port: Port,
    tables: Mutex<Tables>,
}

/// What commands can name. An entry does not keep its object.
#[derive(Default)]
struct Tables {
    last_umem: u32,
    umems: HashMap<u32, Weak<UmemOwner>>,
    pages: HashMap<u32, Weak<UarOwner>>,
    domains: HashMap<u32, ProtectionDomain>,
    completions: HashMap<u32, Weak<Completions>>,
    lids: HashMap<u16, DeviceAddress>,
}

/// Memory that is registered for the device's own use. Queues that lie in it keep it.
pub struct Umem(Arc<UmemOwner>);

struct UmemOwner {
    number: u32,
    range: MemoryRange,
}

/// A page of doorbells. Queues that use it keep it.
pub struct Uar(Arc<UarOwner>);

struct UarOwner {
    page: DoorbellPage,
}

/// An object that was made by a command.
pub struct Object(Kind);

enum Kind {
    Completions(Arc<Completions>),
    Pair(Box<Pair>),
}

/// Which kind of page a driver asks for: mlx5's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UarKind {
    /// Write-combining.
    BlueFlame,
    /// Not cached.
    NonCached,
    /// Not cached, and for one owner alone: refused.
    Dedicated,
}

impl Devx {
    /// On `device`, with a port of this kind.
    pub fn new(device: Device, port: Port) -> Self {
        let tables = Mutex::default();
        Self(Arc::new(Shared {
            device,
            port,
            tables,
        }))
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The kind of its port.
    pub fn port(&self) -> Port {
        self.0.port
    }

    /// Lets commands name this protection domain, until [`forget_domain`](Self::forget_domain).
    pub fn use_domain(&self, domain: &ProtectionDomain) {
        self.tables()
            .domains
            .insert(domain.number(), domain.clone());
    }

    /// Ends that.
    pub fn forget_domain(&self, domain: &ProtectionDomain) {
        self.tables().domains.remove(&domain.number());
    }

    /// Says which device has a LID, as a subnet manager does.
    pub fn learn(&self, lid: u16, device: DeviceAddress) {
        self.tables().lids.insert(lid, device);
    }

    /// The number of the event queue of a completion vector; there is one of each.
    pub fn event_queue(&self, vector: u32) -> Option<u32> {
        (vector == 0).then_some(capability::EVENT_QUEUE)
    }

    /// Registers memory for the device's own use.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if it is empty, or the device's fault plan refuses registrations.
    pub fn register(&self, range: MemoryRange) -> Result<Umem, Refusal> {
        const COMMAND: &str = "CREATE_UMEM";
        self.0
            .device
            .admit_registration()
            .map_err(|error| Refusal::of_device(COMMAND, &error))?;
        if range.is_empty() {
            let status = Status::BadParameter;
            return Err(Refusal::new(
                COMMAND,
                status,
                Syndrome::UmemBounds,
                "no memory",
            ));
        }
        let mut tables = self.tables();
        tables.umems.retain(|_, umem| umem.strong_count() > 0);
        let number = (1..=u32::MAX).map(|step| tables.last_umem.wrapping_add(step));
        // 0 is what a command has that names none.
        let number = number
            .into_iter()
            .find(|n| *n != 0 && !tables.umems.contains_key(n));
        let number = number.unwrap_or(u32::MAX);
        tables.last_umem = number;
        let owner = Arc::new(UmemOwner { number, range });
        tables.umems.insert(number, Arc::downgrade(&owner));
        Ok(Umem(owner))
    }

    /// Lets go of memory.
    ///
    /// # Errors
    ///
    /// [`Status::ResourceBusy`] while a queue lies in it; it stays registered.
    pub fn deregister(&self, umem: Umem) -> Result<(), (Umem, Refusal)> {
        match Arc::try_unwrap(umem.0) {
            Ok(owner) => {
                self.tables().umems.remove(&owner.number);
                Ok(())
            }
            Err(owner) => {
                let reason = format!("umem {:#x} has a queue in it", owner.number);
                Err((Umem(owner), busy("DESTROY_UMEM", reason)))
            }
        }
    }

    /// Allocates a page of doorbells, in memory of the NIC's choice.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for [`UarKind::Dedicated`]; what
    /// [`Device::allocate_doorbell_page`] returns.
    pub fn allocate_page(&self, kind: UarKind) -> Result<Uar, Error> {
        Self::supported(kind)?;
        Ok(self.uar(self.0.device.allocate_doorbell_page()?))
    }

    /// The same in memory of the caller's choice, as
    /// [`Device::allocate_doorbell_page_in`] takes it.
    ///
    /// # Errors
    ///
    /// As [`allocate_page`](Self::allocate_page).
    pub fn allocate_page_in(&self, kind: UarKind, memory: MemoryRange) -> Result<Uar, Error> {
        Self::supported(kind)?;
        Ok(self.uar(self.0.device.allocate_doorbell_page_in(memory)?))
    }

    fn supported(kind: UarKind) -> Result<(), Error> {
        let dedicated = kind == UarKind::Dedicated;
        let what = "doorbell pages for one owner alone";
        if dedicated {
            Err(Error::Unsupported { what })
        } else {
            Ok(())
        }
    }

    fn uar(&self, page: DoorbellPage) -> Uar {
        let owner = Arc::new(UarOwner { page });
        let mut tables = self.tables();
        tables.pages.retain(|_, page| page.strong_count() > 0);
        tables
            .pages
            .insert(owner.page.number(), Arc::downgrade(&owner));
        Uar(owner)
    }

    /// Lets go of a page.
    ///
    /// # Errors
    ///
    /// [`Status::ResourceBusy`] while a queue uses it; it stays allocated.
    pub fn free_page(&self, uar: Uar) -> Result<(), (Uar, Refusal)> {
        let number = uar.number();
        match Arc::try_unwrap(uar.0) {
            Ok(_) => {
                self.tables().pages.remove(&number);
                Ok(())
            }
            Err(owner) => {
                let reason = format!("a queue uses page {number:#x}");
                Err((Uar(owner), busy("DEALLOC_UAR", reason)))
            }
        }
    }

    /// Carries out a command that names no object: a query of the device.
    ///
    /// # Errors
    ///
    /// [`Refusal`], which `output` says too.
    pub fn general(&self, input: &[u8], output: &mut [u8]) -> Result<(), Refusal> {
        answered(output, |output| match Command::of(input)? {
            Command::QueryHcaCap => capability::query(self, input, output),
            Command::QueryRoceAddress => capability::query_address(self, input, output),
            command => Err(misplaced(command, "without an object")),
        })
    }

    /// Makes an object.
    ///
    /// # Errors
    ///
    /// [`Refusal`], which `output` says too.
    pub fn create(&self, input: &[u8], output: &mut [u8]) -> Result<Object, Refusal> {
        answered(output, |output| match Command::of(input)? {
            Command::CreateCq => create::completions(self, input, output),
            Command::CreateQp => create::pair(self, input, output),
            command => Err(misplaced(command, "to make an object")),
        })
    }

    /// Carries out a command that changes an object.
    ///
    /// # Errors
    ///
    /// [`Refusal`], which `output` says too. The object is as it was.
    pub fn modify(&self, object: &Object, input: &[u8], output: &mut [u8]) -> Result<(), Refusal> {
        answered(output, |output| match (&object.0, Command::of(input)?) {
            (Kind::Pair(pair), command) if command.is_transition() => {
                transition::step(self, pair, command, input, output)
            }
            (_, command) => Err(misplaced(command, "to change this object")),
        })
    }

    /// Carries out a command that queries an object.
    ///
    /// # Errors
    ///
    /// [`Refusal`], which `output` says too.
    pub fn query(&self, object: &Object, input: &[u8], output: &mut [u8]) -> Result<(), Refusal> {
        answered(output, |output| match (&object.0, Command::of(input)?) {
            (Kind::Pair(pair), Command::QueryQp) => transition::query(pair, input, output),
            (_, command) => Err(misplaced(command, "to query this object")),
        })
    }

    /// Destroys an object.
    ///
    /// # Errors
    ///
    /// [`Status::ResourceBusy`] for a completion queue that a queue pair completes to; it stays.
    pub fn destroy(&self, object: Object) -> Result<(), (Object, Refusal)> {
        match object.0 {
            Kind::Pair(pair) => drop(pair),
            Kind::Completions(queue) => match Arc::try_unwrap(queue) {
                Ok(queue) => drop(self.tables().completions.remove(&queue.number())),
                Err(queue) => {
                    let reason = format!("queue pairs complete to {:#x}", queue.number());
                    let object = Object(Kind::Completions(queue));
                    return Err((object, busy("DESTROY_CQ", reason)));
                }
            },
        }
        Ok(())
    }

    /// How many umems there are, beside the objects that [`Device::counters`] counts.
    pub fn live_umems(&self) -> usize {
        self.tables()
            .umems
            .values()
            .filter(|umem| umem.strong_count() > 0)
            .count()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // Nothing is left half done under it.
        self.0.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Umem {
    /// By which commands name it.
    pub fn number(&self) -> u32 {
        self.0.number
    }
}

impl Uar {
    /// By which commands name it.
    pub fn number(&self) -> u32 {
        self.0.page.number()
    }

    /// The page.
    pub fn page(&self) -> &DoorbellPage {
        &self.0.page
    }
}

impl Object {
    /// By which commands name it: a queue pair's or completion queue's number.
    pub fn number(&self) -> u32 {
        match &self.0 {
            Kind::Completions(queue) => queue.number(),
            Kind::Pair(pair) => pair.number(),
        }
    }
}

/// The MAC that the port of a GID has: locally administered, and made of the GID.
pub fn mac(gid: DeviceAddress) -> [u8; 6] {
    let [.., a, b, c, d, e] = gid.0;
    [0x02, a, b, c, d, e]
}

fn busy(command: &'static str, reason: String) -> Refusal {
    Refusal::new(command, Status::ResourceBusy, Syndrome::Busy, reason)
}

impl fmt::Debug for Devx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Devx({:?})", self.0.device)
    }
}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Umem({:#x}, {:?})", self.0.number, self.0.range)
    }
}

impl fmt::Debug for Uar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uar({:#x})", self.number())
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            Kind::Completions(_) => "completion queue",
            Kind::Pair(_) => "queue pair",
        };
        write!(f, "Object({kind} {:#x})", self.number())
    }
}
