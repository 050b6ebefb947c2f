// SPDX-License-Identifier: MIT
//! The hands of [`Sharing`](crate::nic::sharing::Sharing): who keeps what lent
//! and borrowed memory stands on, and what is said of it over links.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use mlx5_queue::MemoryKey;
use smallvec::SmallVec;

use crate::link::LinkEnd;
use crate::memory::{MemoryRange, NicMemory};
use crate::nic::sharing::{Do, Notice, Order, OutOfStep};
use crate::nic::{Nic, Place, SpaceId};
use crate::sharer::{Done, Job, Shared, Sharer};

type Owner = Arc<dyn Any + Send + Sync>;

pub(crate) struct Lending {
    pub(crate) sharer: Sharer,
    /// Registered memory that might be lent.
    ranges: HashMap<MemoryKey, MemoryRange>,
    /// Of what is lent or about to be.
    lent: HashMap<Shared, Owner>,
    /// Of what is mapped.
    borrowed: HashMap<Shared, Vec<Owner>>,
}

impl Default for Lending {
    fn default() -> Self {
        Self {
            sharer: Sharer::new(Weak::new()),
            ranges: HashMap::new(),
            lent: HashMap::new(),
            borrowed: HashMap::new(),
        }
    }
}

/// Nothing can be offered: as if the peer had declined.
fn not_lent(nic: &mut Nic, Shared { peer, key, .. }: Shared) {
    let answered = nic.common.sharing.answered(peer, key, false);
    debug_assert_eq!(answered, Ok(()), "an offer was wanted");
}

/// Owners of a mapping that nothing new will touch.
pub(crate) struct Ended {
    pub(crate) owners: Vec<Owner>,
    /// Whom to tell when nothing touches it any more.
    pub(crate) tell: Option<Shared>,
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
        let shared = Shared {
            peer,
            link: link.id,
            key,
        };
        match what {
            Do::Offer => match self.ranges.get(&key) {
                Some(range) => {
                    let owner = range.owner().clone();
                    match self.sharer.ask(Job::Export(shared, range.clone())) {
                        Ok(()) => drop(self.lent.insert(shared, owner)),
                        Err(_) => not_lent(nic, shared),
                    }
                }
                // Deregistered since.
                None => not_lent(nic, shared),
            },
            Do::Withdraw => link.tell(key, &Notice::Withdrawn, None),
            Do::Reclaim => freed.extend(self.lent.remove(&shared)),
            Do::Take => link.tell(key, &Notice::Taken, None),
            Do::Decline => link.tell(key, &Notice::Declined, None),
            Do::Release => {
                return Some(Ended {
                    owners: self.borrowed.remove(&shared).unwrap_or_default(),
                    tell: Some(shared),
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
        if let Some(Shared { peer, link, key }) = ended.tell
            && let Some(link) = links.iter_mut().find(|end| end.id == link)
        {
            nic.common.sharing.left(peer, key);
            link.tell(key, &Notice::Released, None);
        }
        if !ended.owners.is_empty()
            && let Err(Job::Drop(owners)) = self.sharer.ask(Job::Drop(ended.owners))
        {
            freed.extend(owners);
        }
    }

    /// A notice has come over a link.
    pub(crate) fn noticed(
        &mut self,
        nic: &mut Nic,
        memories: &[Arc<dyn NicMemory>],
        shared: Shared,
        notice: Notice,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), OutOfStep> {
        let Shared { peer, key, .. } = shared;
        let sharing = &mut nic.common.sharing;
        match notice {
            Notice::Offered(offer) => {
                if sharing.offered(peer, key, &offer)? {
                    let lost = offer.descriptor && descriptor.is_none();
                    let memories = memories.iter().enumerate().skip(1);
                    let memories =
                        memories.map(|(i, memory)| (SpaceId(i as u16), Arc::clone(memory)));
                    let job = Job::Import {
                        shared,
                        offer,
                        descriptor,
                        memories: memories.collect(),
                    };
                    if lost || self.sharer.ask(job).is_err() {
                        sharing.mapped(peer, key, SmallVec::new());
                    }
                }
                Ok(())
            }
            Notice::Taken => {
                tracing::debug!(%peer, key = key.get(), "a peer reaches a registration itself");
                sharing.answered(peer, key, true)
            }
            Notice::Declined => {
                tracing::debug!(%peer, key = key.get(), "a peer gets a registration's bytes by the link");
                sharing.answered(peer, key, false)
            }
            Notice::Withdrawn => sharing.withdrawn(peer, key),
            Notice::Released => sharing.released(peer, key),
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
        let (Done::Exported(shared, _) | Done::Imported(shared, _)) = &done;
        let shared @ Shared { peer, link, key } = *shared;
        let link = links.iter_mut().find(|end| end.id == link);
        match (done, link) {
            (Done::Exported(_, Some((offer, descriptor))), Some(link)) => {
                link.tell(key, &Notice::Offered(offer), descriptor);
            }
            (Done::Exported(_, None), Some(_)) => not_lent(nic, shared),
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
                    self.borrowed.insert(shared, owners);
                }
                nic.common.sharing.mapped(peer, key, places);
            }
        }
        None
    }

    /// A link is gone: what it lent, and the mappings that have ended with it.
    pub(crate) fn disconnected(&mut self, link: u64) -> (Vec<Owner>, Ended) {
        let lent = self.lent.extract_if(|shared, _| shared.link == link);
        let lent = lent.map(|(_, owner)| owner).collect();
        let borrowed = self.borrowed.extract_if(|shared, _| shared.link == link);
        let owners = borrowed.flat_map(|(_, owners)| owners).collect();
        (lent, Ended { owners, tell: None })
    }
}
