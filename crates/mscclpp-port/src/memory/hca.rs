// SPDX-License-Identifier: MIT
//! Memory as requests to HCAs name it, which kernels or the host post.

#[cfg(feature = "ib")]
use std::sync::Arc;

use mscclpp_device::abi::QueueMemory;

use super::{Backing, RegisteredMemory, View};
#[cfg(feature = "ib")]
use crate::context::ContextId;
#[cfg(feature = "ib")]
use crate::error::Error;
use crate::gpu_queue::Ends;
#[cfg(feature = "ib")]
use crate::gpu_queue::HcaRegistration;
#[cfg(feature = "ib")]
use crate::transport::TransportKind;

/// A source of requests to an HCA.
#[cfg(feature = "ib")]
pub(crate) struct HcaSource {
    pub(crate) address: u64,
    pub(crate) key: u32,
    /// What both are valid with.
    pub(crate) keep: Arc<dyn HcaRegistration>,
}

/// A place in a peer's memory, as requests to an HCA name it.
#[cfg(feature = "ib")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HcaTarget {
    pub(crate) address: u64,
    pub(crate) key: u32,
    /// From the start of the registration.
    pub(crate) offset: u64,
}

impl RegisteredMemory {
    /// This memory as the source of `len` bytes at `offset` for the HCA of a transport of the context
    /// `own`.
    #[cfg(feature = "ib")]
    pub(crate) fn hca_source(
        &self,
        what: &'static str,
        (own, transport): (ContextId, TransportKind),
        offset: u64,
        len: u64,
    ) -> Result<HcaSource, Error> {
        // Range and place are checked first.
        self.source(what, offset, len)?;
        let view = self.view(what)?;
        let local = match &view.backing {
            Backing::Local(registration) if registration.owner.context == own => registration,
            _ => {
                return Err(Error::InvalidUsage {
                    operation: what,
                    detail: "the source is registered with another context".into(),
                });
            }
        };
        let Some(registration) = local.on(transport) else {
            return Err(Error::InvalidUsage {
                operation: what,
                detail: format!(
                    "the source is registered for {}, and the connection is over {transport}: \
                     register it for that, too (MemoryOptions::transports)",
                    local.transports
                ),
            });
        };
        Ok(HcaSource {
            address: view.backing.address() + view.offset + offset,
            key: registration.local_key(),
            keep: Arc::clone(registration),
        })
    }

    /// This memory as the destination of `len` bytes at `offset`, at the context `peer` by the HCA of
    /// its `transport`: where that HCA finds it, and by which key.
    #[cfg(feature = "ib")]
    pub(crate) fn hca_target(
        &self,
        what: &'static str,
        peer: (ContextId, TransportKind),
        offset: u64,
        len: u64,
    ) -> Result<HcaTarget, Error> {
        let view = self.destination(what, peer, offset, len)?;
        let key =
            (view.backing.key_on(peer.1)).ok_or_else(|| self.unreachable_over(what, peer.1))?;
        Ok(HcaTarget {
            address: view.backing.address() + view.offset + offset,
            key,
            offset: view.offset + offset,
        })
    }

    /// This memory as the destination of an atomic on the word at `offset`.
    #[cfg(feature = "ib")]
    pub(crate) fn hca_target_word(
        &self,
        what: &'static str,
        peer: (ContextId, TransportKind),
        offset: u64,
    ) -> Result<HcaTarget, Error> {
        let target = self.hca_target(what, peer, offset, 8)?;
        if target.address.is_multiple_of(8) {
            Ok(target)
        } else {
            Err(Error::Misaligned { what, offset })
        }
    }

    /// This memory as kernels name it that post on a queue between `ends`: as own memory, as the
    /// peer's, or as both if the queue leads back here by the same HCA. Zero if the queue cannot
    /// reach it.
    pub(crate) fn on_queue(&self, ends: &Ends) -> QueueMemory {
        let (own, theirs) = (self.as_own(ends), self.as_peers(ends));
        if own.size == 0 {
            return theirs;
        }
        let same = (own.address, own.key) == (theirs.address, theirs.key);
        QueueMemory {
            access: own.access | if same { theirs.access } else { 0 },
            ..own
        }
    }

    /// This memory as the source of puts on a queue between `ends`; zero if it cannot be.
    pub(crate) fn as_own(&self, ends: &Ends) -> QueueMemory {
        // Another context's keys belong to its own protection domain, and perhaps to another HCA.
        match &self.view {
            Some(view) if view.backing.owner().context == ends.own => {
                let key = match &view.backing {
                    Backing::Local(registration) => registration.on(ends.local),
                    Backing::Remote(_) => None,
                };
                view.by_key(key.map(|hca| hca.local_key()), QueueMemory::LOCAL)
            }
            _ => QueueMemory::NONE,
        }
    }

    /// This memory as the destination of puts on a queue between `ends`; zero if it cannot be.
    pub(crate) fn as_peers(&self, ends: &Ends) -> QueueMemory {
        let theirs = (self.view.as_ref()).filter(|view| view.backing.owner().context == ends.peer);
        theirs.map_or(QueueMemory::NONE, |view| {
            view.by_key(view.backing.key_on(ends.remote), QueueMemory::REMOTE)
        })
    }
}

impl View {
    /// The range with a key of its HCA; zero if it has none.
    fn by_key(&self, key: Option<u32>, access: u32) -> QueueMemory {
        key.map_or(QueueMemory::NONE, |key| QueueMemory {
            address: self.backing.address() + self.offset,
            size: self.size,
            key: key.to_be(),
            access,
        })
    }
}
