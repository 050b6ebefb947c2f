// SPDX-License-Identifier: MIT
//! The hands of [`Loans`](crate::nic::loans::Loans): who keeps what lent
//! and borrowed memory stands on, and what is said of it over links.

mod thread;

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use mlx5_queue::MemoryKey;
use smallvec::SmallVec;
use thread::Job;
pub(crate) use thread::{Done, LendingThread, Loan};

use crate::link::LinkEnd;
use crate::memory::{MemoryRange, NicMemory};
use crate::nic::loans::{Do, Notice, Order, OutOfStep};
use crate::nic::{Nic, Place, SpaceId};

type Owner = Arc<dyn Any + Send + Sync>;

pub(crate) struct Lending {
    pub(crate) thread: LendingThread,
    /// Registered memory that might be lent.
    ranges: HashMap<MemoryKey, MemoryRange>,
    /// Of what is lent or about to be.
    lent: HashMap<Loan, Owner>,
    /// Of what is mapped.
    borrowed: HashMap<Loan, Vec<Owner>>,
}

impl Default for Lending {
    fn default() -> Self {
        Self {
            thread: LendingThread::new(Weak::new()),
            ranges: HashMap::new(),
            lent: HashMap::new(),
            borrowed: HashMap::new(),
        }
    }
}

/// Owners of a mapping that nothing new will touch.
pub(crate) struct Ended {
    pub(crate) owners: Vec<Owner>,
    /// Whom to tell when nothing touches it any more.
    pub(crate) tell: Option<Loan>,
}

impl Lending {
    pub(crate) fn registered(&mut self, key: MemoryKey, place: Place, range: &MemoryRange) {
        if place.space != SpaceId::HOST {
            self.ranges.insert(key, range.clone());
        }
    }

    /// The range is the caller's to drop.
    pub(crate) fn deregistered(&mut self, key: MemoryKey) -> Option<MemoryRange> {
        self.ranges.remove(&key)
    }

    /// Does what the state machine wants. What is let go goes to `freed`, and
    /// mappings that have ended are returned.
    pub(crate) fn carry_out(
        &mut self,
        nic: &mut Nic,
        links: &mut [LinkEnd],
        Order { peer, key, what }: Order,
        freed: &mut Vec<Owner>,
    ) -> Option<Ended> {
        let link = links.iter_mut().find(|link| link.peer == peer)?;
        let loan = Loan {
            peer,
            link: link.id,
            key,
        };
        match what {
            Do::Offer => match self.ranges.get(&key) {
                Some(range) => {
                    let owner = range.owner().clone();
                    match self.thread.ask(Job::Export(loan, range.clone())) {
                        Ok(()) => drop(self.lent.insert(loan, owner)),
                        Err(_) => nic.common.loans.not_offered(peer, key),
                    }
                }
                // Deregistered since.
                None => nic.common.loans.not_offered(peer, key),
            },
            Do::Withdraw => link.tell(key, &Notice::Withdrawn, None),
            Do::Reclaim => freed.extend(self.lent.remove(&loan)),
            Do::Take => link.tell(key, &Notice::Taken, None),
            Do::Decline => link.tell(key, &Notice::Declined, None),
            Do::Release => {
                return Some(Ended {
                    owners: self.borrowed.remove(&loan).unwrap_or_default(),
                    tell: Some(loan),
                });
            }
        }
        None
    }

    /// No access can touch a mapping any more.
    pub(crate) fn ended(
        &mut self,
        nic: &mut Nic,
        links: &mut [LinkEnd],
        ended: Ended,
        freed: &mut Vec<Owner>,
    ) {
        if let Some(Loan { peer, link, key }) = ended.tell
            && let Some(link) = links.iter_mut().find(|end| end.id == link)
        {
            nic.common.loans.left(peer, key);
            link.tell(key, &Notice::Released, None);
        }
        if !ended.owners.is_empty()
            && let Err(Job::Drop(owners)) = self.thread.ask(Job::Drop(ended.owners))
        {
            freed.extend(owners);
        }
    }

    /// A notice has come over a link.
    pub(crate) fn noticed(
        &mut self,
        nic: &mut Nic,
        memories: &[Arc<dyn NicMemory>],
        loan: Loan,
        notice: Notice,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), OutOfStep> {
        let Loan { peer, key, .. } = loan;
        let loans = &mut nic.common.loans;
        match notice {
            Notice::Offered(offer) => {
                if loans.offered(peer, key, &offer)? {
                    let lost = offer.descriptor && descriptor.is_none();
                    let memories = memories.iter().enumerate().skip(1);
                    let memories =
                        memories.map(|(i, memory)| (SpaceId(i as u16), Arc::clone(memory)));
                    let job = Job::Import {
                        loan,
                        offer,
                        descriptor,
                        memories: memories.collect(),
                    };
                    if lost || self.thread.ask(job).is_err() {
                        loans.mapped(peer, key, SmallVec::new());
                    }
                }
                Ok(())
            }
            Notice::Taken => {
                tracing::debug!(%peer, key = key.get(), "a peer reaches a registration itself");
                loans.answered(peer, key, true)
            }
            Notice::Declined => {
                tracing::debug!(%peer, key = key.get(), "a peer gets a registration's bytes by the link");
                loans.answered(peer, key, false)
            }
            Notice::Withdrawn => loans.withdrawn(peer, key),
            Notice::Released => loans.released(peer, key),
        }
    }

    /// An export or import has ended. A mapping that nobody wants any more is
    /// returned.
    pub(crate) fn done(
        &mut self,
        nic: &mut Nic,
        links: &mut [LinkEnd],
        done: Done,
    ) -> Option<Ended> {
        let (Done::Exported(loan, _) | Done::Imported(loan, _)) = &done;
        let loan @ Loan { peer, link, key } = *loan;
        let link = links.iter_mut().find(|end| end.id == link);
        match (done, link) {
            (Done::Exported(_, Some((offer, descriptor))), Some(link)) => {
                nic.common.loans.offers(peer, key);
                link.tell(key, &Notice::Offered(offer), descriptor);
            }
            (Done::Exported(_, None), Some(_)) => nic.common.loans.not_offered(peer, key),
            (Done::Exported(..), None) => {}
            (Done::Imported(_, imported), link) => {
                let places = imported.iter().map(|(space, range)| Place {
                    space: *space,
                    address: range.address,
                });
                let places: SmallVec<_> = places.collect();
                let owners = imported.into_iter().map(|(_, range)| range.owner);
                let owners: Vec<Owner> = owners.collect();
                if link.is_none() {
                    return Some(Ended { owners, tell: None });
                }
                let memories = places.len();
                tracing::debug!(%peer, key = key.get(), memories, "a peer offered a registration");
                if memories > 0 {
                    self.borrowed.insert(loan, owners);
                }
                nic.common.loans.mapped(peer, key, places);
            }
        }
        None
    }

    /// A link is gone: what it lent, and the mappings that have ended with it.
    pub(crate) fn disconnected(&mut self, link: u64) -> (Vec<Owner>, Ended) {
        let lent = self.lent.extract_if(|loan, _| loan.link == link);
        let lent = lent.map(|(_, owner)| owner).collect();
        let borrowed = self.borrowed.extract_if(|loan, _| loan.link == link);
        let owners = borrowed.flat_map(|(_, owners)| owners).collect();
        (lent, Ended { owners, tell: None })
    }
}
