// SPDX-License-Identifier: MIT
//! Which registrations a peer's device reaches by itself, and which of its own
//! it has lent to this one.
//!
//! A registration is *offered* to a peer when a payload of it first goes there;
//! until the peer has *taken* the offer, and for ever if it *declines*, bytes go
//! over the link. Each offer gets one answer. When the registration ends, one
//! that was taken is *withdrawn*: the peer uses its mapping no more, and says
//! that it has *released* it when no copy from it is under way. Until then the
//! owner of the memory is kept.
//!
//! What a device remembers for a peer is bounded, whatever that says and whether
//! or not it reads. Offers without an answer are at most [`MAX_UNANSWERED`], until
//! the answer has gone to the link; the lender, which reads it later, counts no
//! fewer. A device takes [`MAX_BORROWED`] and declines the rest. A peer that goes
//! beyond either is [`OutOfStep`]. So of each registration, and of each kind, at
//! most one order waits.

mod notice;
mod order;

use std::collections::{HashMap, VecDeque};

use mlx5_queue::MemoryKey;
pub(crate) use notice::{Notice, Offer, OutOfStep};
pub(crate) use order::{Do, Order};
use smallvec::SmallVec;

use super::access::{Place, SpaceId};
use super::packet::Piece;
use crate::capability::DeviceAddress;

/// Registrations of one peer that a device takes; more are declined. The lender
/// relies on it: it is a part of the protocol.
const MAX_BORROWED: usize = if cfg!(test) { 36 } else { 4096 };

/// Offers to one peer without an answer. Each may hold a descriptor at both ends,
/// of which a process has 1024 where nobody has raised that.
const MAX_UNANSWERED: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lent {
    /// No answer yet. `said`: the offer has gone to the link. `ended`: the
    /// registration is gone meanwhile.
    Offered {
        said: bool,
        ended: bool,
    },
    Taken,
    Declined,
    /// Withdrawn and not released.
    Leaving,
}

#[derive(Debug)]
enum Borrowed {
    /// Being mapped.
    Asked {
        address: u64,
        length: u64,
    },
    Mapped(Mapping),
    /// Not taken, which was not said yet.
    Declined,
    /// Withdrawn; accesses may be under way.
    Leaving,
}

#[derive(Debug)]
struct Mapping {
    address: u64,
    length: u64,
    /// Its first byte, for each memory of this device that reaches it.
    places: SmallVec<[Place; 1]>,
}

#[derive(Debug)]
struct Peer {
    device: DeviceAddress,
    lent: HashMap<MemoryKey, Lent>,
    /// Of `lent`: those that are offered.
    unanswered: usize,
    /// Of `lent`: those that were taken, and not released.
    taken: usize,
    borrowed: HashMap<MemoryKey, Borrowed>,
    /// Of `borrowed`: those whose answer has not gone to the link.
    asked: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Loans {
    /// Those with a link that can hand over what lending takes.
    peers: Vec<Peer>,
    orders: VecDeque<Order>,
}

impl Loans {
    fn peer(&mut self, device: DeviceAddress) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.device == device)
    }

    /// There is a link to a device now, in place of an earlier one.
    pub(crate) fn connect(&mut self, device: DeviceAddress) {
        self.disconnect(device);
        self.peers.push(Peer {
            device,
            lent: HashMap::new(),
            unanswered: 0,
            taken: 0,
            borrowed: HashMap::new(),
            asked: 0,
        });
    }

    /// A link is gone, and all that was lent over it either way.
    pub(crate) fn disconnect(&mut self, device: DeviceAddress) {
        self.peers.retain(|peer| peer.device != device);
        self.orders.retain(|order| order.peer != device);
    }

    /// What to do next. An answer counts as said: it has to go to the link before
    /// the peer's next notice is taken in.
    pub(crate) fn next_order(&mut self) -> Option<Order> {
        let order = self.orders.pop_front()?;
        if let Do::Take | Do::Decline = order.what
            && let Some(peer) = self.peer(order.peer)
        {
            peer.asked -= 1;
            if order.what == Do::Decline {
                peer.borrowed.remove(&order.key);
            }
        }
        Some(order)
    }

    pub(crate) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Registrations of peers that are mapped.
    pub(crate) fn mappings(&self) -> u64 {
        let borrowed = self.peers.iter().flat_map(|peer| peer.borrowed.values());
        borrowed
            .filter(|borrowed| matches!(borrowed, Borrowed::Mapped(_)))
            .count() as u64
    }

    fn order(&mut self, peer: DeviceAddress, key: MemoryKey, what: Do) {
        self.orders.push_back(Order { peer, key, what });
    }

    /// Whether a device reaches a registration in memory `space` by itself. The
    /// first time it is offered to it, unless too many are: then the next time.
    pub(crate) fn lends(&mut self, device: DeviceAddress, key: MemoryKey, space: SpaceId) -> bool {
        if space == SpaceId::HOST {
            return false;
        }
        let Some(peer) = self.peer(device) else {
            return false;
        };
        match peer.lent.get(&key) {
            Some(lent) => *lent == Lent::Taken,
            None if peer.unanswered >= MAX_UNANSWERED => false,
            None => {
                peer.unanswered += 1;
                let (said, ended) = (false, false);
                peer.lent.insert(key, Lent::Offered { said, ended });
                self.order(device, key, Do::Offer);
                false
            }
        }
    }

    /// An offer goes to the link: from now on there may be an answer.
    pub(crate) fn offers(&mut self, device: DeviceAddress, key: MemoryKey) {
        if let Some(peer) = self.peer(device)
            && let Some(Lent::Offered { said, .. }) = peer.lent.get_mut(&key)
        {
            *said = true;
        }
    }

    /// There was nothing to offer: as if the peer had declined.
    pub(crate) fn not_offered(&mut self, device: DeviceAddress, key: MemoryKey) {
        self.settled(device, key, false);
    }

    /// A peer has answered an offer.
    pub(crate) fn answered(
        &mut self,
        device: DeviceAddress,
        key: MemoryKey,
        taken: bool,
    ) -> Result<(), OutOfStep> {
        let Some(peer) = self.peer(device) else {
            return Ok(());
        };
        match peer.lent.get(&key) {
            None | Some(Lent::Offered { said: false, .. }) => {
                Err(OutOfStep("an answer without an offer"))
            }
            Some(Lent::Offered { .. }) if taken && peer.taken >= MAX_BORROWED => {
                Err(OutOfStep("more is taken than a device takes"))
            }
            Some(Lent::Offered { .. }) => {
                self.settled(device, key, taken);
                Ok(())
            }
            Some(_) => Err(OutOfStep("a second answer")),
        }
    }

    /// It is known what becomes of an offer.
    fn settled(&mut self, device: DeviceAddress, key: MemoryKey, taken: bool) {
        let Some(peer) = self.peer(device) else {
            return;
        };
        let Some(lent @ &mut Lent::Offered { ended, .. }) = peer.lent.get_mut(&key) else {
            return;
        };
        peer.unanswered -= 1;
        peer.taken += usize::from(taken);
        match (taken, ended) {
            (true, false) => *lent = Lent::Taken,
            (true, true) => {
                *lent = Lent::Leaving;
                self.order(device, key, Do::Withdraw);
            }
            (false, false) => {
                *lent = Lent::Declined;
                self.order(device, key, Do::Reclaim);
            }
            (false, true) => {
                peer.lent.remove(&key);
                self.order(device, key, Do::Reclaim);
            }
        }
    }

    /// A registration is gone.
    pub(crate) fn withdraw(&mut self, key: MemoryKey) {
        let mut orders = SmallVec::<[_; 1]>::new();
        for peer in &mut self.peers {
            let Some(lent) = peer.lent.get_mut(&key) else {
                continue;
            };
            match lent {
                Lent::Offered { ended, .. } => *ended = true,
                Lent::Taken => {
                    *lent = Lent::Leaving;
                    orders.push(peer.device);
                }
                Lent::Declined => drop(peer.lent.remove(&key)),
                Lent::Leaving => {}
            }
        }
        for device in orders {
            self.order(device, key, Do::Withdraw);
        }
    }

    /// A peer does not use a registration any more that was withdrawn.
    pub(crate) fn released(
        &mut self,
        device: DeviceAddress,
        key: MemoryKey,
    ) -> Result<(), OutOfStep> {
        let Some(peer) = self.peer(device) else {
            return Ok(());
        };
        if peer.lent.get(&key) != Some(&Lent::Leaving) {
            return Err(OutOfStep("a release of what was not withdrawn"));
        }
        peer.lent.remove(&key);
        peer.taken -= 1;
        self.order(device, key, Do::Reclaim);
        Ok(())
    }

    /// A peer offers a registration: whether to try to map it.
    pub(crate) fn offered(
        &mut self,
        device: DeviceAddress,
        key: MemoryKey,
        offer: &Offer,
    ) -> Result<bool, OutOfStep> {
        let Some(peer) = self.peer(device) else {
            return Ok(false);
        };
        if peer.borrowed.contains_key(&key) {
            return Err(OutOfStep("a second offer"));
        }
        if peer.asked >= MAX_UNANSWERED {
            return Err(OutOfStep("too many offers that wait for an answer"));
        }
        peer.asked += 1;
        if peer.borrowed.len() >= MAX_BORROWED {
            peer.borrowed.insert(key, Borrowed::Declined);
            self.order(device, key, Do::Decline);
            return Ok(false);
        }
        let (address, length) = (offer.address, offer.length);
        let asked = Borrowed::Asked { address, length };
        peer.borrowed.insert(key, asked);
        Ok(true)
    }

    /// An offer was mapped at these places, of a memory each; at none if it
    /// could not be.
    pub(crate) fn mapped(
        &mut self,
        device: DeviceAddress,
        key: MemoryKey,
        places: SmallVec<[Place; 1]>,
    ) {
        let Some(peer) = self.peer(device) else {
            return;
        };
        let Some(Borrowed::Asked { address, length }) = peer.borrowed.get(&key) else {
            return;
        };
        let (address, length) = (*address, *length);
        if places.is_empty() {
            peer.borrowed.insert(key, Borrowed::Declined);
            return self.order(device, key, Do::Decline);
        }
        let mapping = Mapping {
            address,
            length,
            places,
        };
        peer.borrowed.insert(key, Borrowed::Mapped(mapping));
        self.order(device, key, Do::Take);
    }

    /// A peer has withdrawn a registration: from now on nothing in it is found.
    pub(crate) fn withdrawn(
        &mut self,
        device: DeviceAddress,
        key: MemoryKey,
    ) -> Result<(), OutOfStep> {
        let Some(peer) = self.peer(device) else {
            return Ok(());
        };
        match peer.borrowed.get_mut(&key) {
            Some(borrowed @ Borrowed::Mapped(_)) => *borrowed = Borrowed::Leaving,
            _ => return Err(OutOfStep("a withdrawal of what was not taken")),
        }
        self.order(device, key, Do::Release);
        Ok(())
    }

    /// No access can touch a mapping any more that was withdrawn.
    pub(crate) fn left(&mut self, device: DeviceAddress, key: MemoryKey) {
        if let Some(peer) = self.peer(device) {
            peer.borrowed.remove(&key);
        }
    }

    /// Where a piece of a device's memory is that it has lent to this one, in
    /// memory `space` if that reaches it.
    pub(crate) fn locate(
        &self,
        device: DeviceAddress,
        piece: Piece,
        space: SpaceId,
    ) -> Option<Place> {
        let peer = self.peers.iter().find(|peer| peer.device == device)?;
        let Borrowed::Mapped(mapping) = peer.borrowed.get(&piece.key)? else {
            return None;
        };
        let offset = piece.address.checked_sub(mapping.address)?;
        if offset.checked_add(piece.length)? > mapping.length {
            return None;
        }
        let near = mapping.places.iter().find(|place| place.space == space);
        let place = near.or_else(|| mapping.places.first())?;
        Some(place.offset(offset))
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod pairs;
#[cfg(test)]
mod tests;
