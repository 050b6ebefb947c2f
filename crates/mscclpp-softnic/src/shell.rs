// SPDX-License-Identifier: MIT
//! The state machine's hands: memory, registers, links.

use std::any::Any;
use std::sync::{Arc, Weak};

use crate::capability::DeviceAddress;
use crate::error::Error;
use crate::event::{Event, EventQueue};
use crate::lending::{Done, Ended, Lending, Loan};
use crate::link::{Frame, LinkEnd, LinkStream, READ};
use crate::memory::{HostMemory, HostWord, MemoryRange, NicMemory, Submitted};
use crate::nic::loans::OutOfStep;
use crate::nic::{Effect, Nic, Place, SpaceId, Start};

/// The register of a doorbell page, in the first 8 bytes of which device code
/// without a call stores.
pub(crate) struct Registers {
    page: u32,
    pub(crate) register: HostWord,
}

impl Registers {
    /// Where the register is in its page (mlx5: the UAR's doorbell).
    pub(crate) const OFFSET: u64 = 0x800;

    /// What was stored since the last look, if anything. A doorbell is never
    /// all zeroes: no queue pair has number 0.
    fn take(&self) -> Option<[u8; 8]> {
        let value = self.register.take();
        (value != 0).then(|| value.to_ne_bytes())
    }
}

/// The state machine and what it acts on.
pub(crate) struct Shell {
    pub(crate) nic: Nic,
    events: Arc<EventQueue>,
    spaces: Vec<Arc<dyn NicMemory>>,
    registers: Vec<Weak<Registers>>,
    pub(crate) links: Vec<LinkEnd>,
    /// Links there have been.
    numbered: u64,
    /// Behind the memories, whose copies may use what it keeps.
    pub(crate) lending: Lending,
    /// A memory has completed an access since this was last asked.
    pub(crate) answered: bool,
    /// What streams are read into: there is nothing in it between calls, but
    /// clearing it at each would be most of what an idle look costs.
    buffer: Box<[u8]>,
    /// Memory that was let go, with the turns of time since.
    retired: Vec<(u8, Retired)>,
    /// Those that no access can touch any more, to be dropped when the lock is
    /// not held: their drop is the caller's code.
    pub(crate) freed: Vec<Arc<dyn Any + Send + Sync>>,
}

/// What accesses that have begun may still touch.
enum Retired {
    Own(Arc<dyn Any + Send + Sync>),
    Mapped(Ended),
}

impl Shell {
    pub(crate) fn new(mut nic: Nic, events: Arc<EventQueue>) -> Self {
        let host = HostMemory::shared();
        nic.common.accesses.add_space(host.in_order());
        Self {
            nic,
            events,
            spaces: vec![host],
            registers: Vec::new(),
            links: Vec::new(),
            numbered: 0,
            lending: Lending::default(),
            answered: false,
            buffer: vec![0; READ].into(),
            retired: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// Where a range is, for the state machine.
    pub(crate) fn place(&mut self, range: &MemoryRange) -> Place {
        let memory = range.memory();
        let same =
            |known: &Arc<dyn NicMemory>| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(memory));
        let space = self.spaces.iter().position(same).unwrap_or_else(|| {
            self.nic.common.accesses.add_space(memory.in_order());
            self.spaces.push(memory.clone());
            self.spaces.len() - 1
        });
        Place {
            space: SpaceId(space as u16),
            address: range.address(),
        }
    }

    pub(crate) fn room(&self, what: &'static str, live: u64) -> Result<(), Error> {
        let limit = u64::from(self.nic.common.config.capabilities.max_objects);
        if live >= limit {
            return Err(Error::Limit {
                what,
                asked: live + 1,
                limit,
            });
        }
        Ok(())
    }

    pub(crate) fn add_registers(&mut self, page: u32, register: HostWord) -> Arc<Registers> {
        let registers = Arc::new(Registers { page, register });
        self.registers
            .retain(|registers| registers.strong_count() > 0);
        self.registers.push(Arc::downgrade(&registers));
        registers
    }

    /// Takes doorbells that were stored to registers; true if there were any.
    pub(crate) fn look_at_registers(&mut self) -> bool {
        let mut any = false;
        for registers in &self.registers {
            let Some(registers) = registers.upgrade() else {
                continue;
            };
            if let Some(value) = registers.take() {
                self.nic.doorbell(registers.page, value);
                any = true;
            }
        }
        any
    }

    /// Keeps `owner` until no access that has begun can touch its memory.
    pub(crate) fn retire(&mut self, owner: Arc<dyn Any + Send + Sync>) {
        self.retired.push((0, Retired::Own(owner)));
        self.settle();
    }

    fn settle(&mut self) {
        while !self.retired.is_empty() && self.nic.turn() {
            for (turns, _) in &mut self.retired {
                *turns += 1;
            }
            let free = self.retired.extract_if(.., |(turns, _)| *turns >= 2);
            for (_, retired) in free {
                match retired {
                    Retired::Own(owner) => self.freed.push(owner),
                    Retired::Mapped(ended) => {
                        let (nic, links) = (&mut self.nic, &mut self.links);
                        self.lending.ended(nic, links, ended, &mut self.freed);
                    }
                }
            }
        }
    }

    /// Takes a new link, in place of an earlier one to the same device.
    pub(crate) fn add_link(&mut self, peer: DeviceAddress, stream: LinkStream) {
        self.remove_links(|link| link.peer == peer);
        self.numbered += 1;
        let link = LinkEnd::new(peer, self.numbered, stream);
        if link.passes_descriptors() {
            self.nic.common.loans.connect(peer);
        }
        self.links.push(link);
    }

    /// Lets go of some links; whom they led to.
    fn remove_links(&mut self, gone: impl Fn(&LinkEnd) -> bool) -> Vec<DeviceAddress> {
        let gone: Vec<LinkEnd> = self.links.extract_if(.., |link| gone(link)).collect();
        for link in &gone {
            self.nic.common.loans.disconnect(link.peer);
            let (lent, ended) = self.lending.disconnected(link.id);
            self.freed.extend(lent);
            self.retired.push((0, Retired::Mapped(ended)));
        }
        gone.iter().map(|link| link.peer).collect()
    }

    /// Takes in what has come of exports and imports.
    pub(crate) fn take_done(&mut self, done: Vec<Done>) {
        for done in done {
            let ended = self.lending.done(&mut self.nic, &mut self.links, done);
            self.retired
                .extend(ended.map(|ended| (0, Retired::Mapped(ended))));
        }
    }

    /// Carries out at most `budget` effects; how many there were.
    pub(crate) fn carry_out(&mut self, budget: usize) -> usize {
        let mut count = 0;
        while count < budget
            && !self.links.iter().any(LinkEnd::is_congested)
            && let Some(effect) = self.nic.next()
        {
            count += 1;
            match effect {
                Effect::Start(Start { id, space, access }) => {
                    let Some(memory) = self.spaces.get(space.0 as usize) else {
                        continue;
                    };
                    // SAFETY: the state machine starts accesses inside ranges
                    // that it was given only, and their owners are kept: by
                    // their handles, and after those are dropped in `retired`
                    // until the accesses that had begun are done. It reads from
                    // mappings that this memory has imported, too, which are kept
                    // by `lending`, and after their end in the same way.
                    match unsafe { memory.submit(id, access) } {
                        Submitted::Done(result) => self.nic.access_done(id, result),
                        Submitted::Pending => {}
                    }
                }
                Effect::Lend(order) => {
                    let (nic, links) = (&mut self.nic, &mut self.links);
                    let ended = self.lending.carry_out(nic, links, order, &mut self.freed);
                    self.retired
                        .extend(ended.map(|ended| (0, Retired::Mapped(ended))));
                }
                Effect::Transmit(to, packet) => {
                    let link = self.links.iter_mut().find(|link| link.peer == to);
                    if !link.is_some_and(|link| link.push(&packet)) {
                        self.nic.common.counters.packets_lost += 1;
                    }
                }
            }
        }
        // The host's memory, always the first, completes at once.
        for memory in &self.spaces[1..] {
            while let Some((id, result)) = memory.complete() {
                self.nic.access_done(id, result);
                self.answered = true;
                count += 1;
            }
        }
        for link in &mut self.links {
            count += usize::from(link.flush());
        }
        self.report();
        // Behind what has just been retired: nobody may look again for long.
        if !self.retired.is_empty() {
            self.settle();
        }
        count
    }

    /// Takes in the packets of other devices; true if there were any.
    pub(crate) fn receive(&mut self) -> bool {
        let mut any = false;
        let (nic, lending, spaces) = (&mut self.nic, &mut self.lending, &self.spaces);
        for end in &mut self.links {
            let (peer, link, lends) = (end.peer, end.id, end.passes_descriptors());
            any |= end.receive(&mut self.buffer, &mut |frame, descriptor| match frame {
                Frame::Packet(packet) => {
                    nic.packet(peer, packet);
                    Ok(())
                }
                Frame::Notice(..) if !lends => Err(OutOfStep("over a link to another host")),
                Frame::Notice(key, notice) => {
                    let loan = Loan { peer, link, key };
                    lending.noticed(nic, spaces, loan, notice, descriptor)
                }
            });
        }
        any
    }

    /// Hands over what has happened, and lets go of links that are down.
    pub(crate) fn report(&mut self) {
        for event in self.nic.common.events.drain(..) {
            self.events.push(event);
        }
        for peer in self.remove_links(|link| link.closed) {
            self.events.push(Event::LinkDown { peer });
        }
    }
}
