// SPDX-License-Identifier: MIT
//! HCAs that libibverbs knows.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::memory;
use super::news::News;
use super::port::{self, Choice, PortFacts, Wish};
use crate::buffer::Buffer;
use crate::error::{Error, Result, check_range};
use crate::gpu_queue::{
    GpuQueueProvider, HcaAddress, HcaCapabilities, HcaQueue, HcaRegistration, Mtu, QueuePlan,
    WireStream, WriteOrdering,
};
use crate::memory::Access;
use crate::transport::TransportKind;
use crate::verbs::{AccessFlags, Device, LinkLayer, PortState, ProtectionDomain, VerbsError};

/// An opened HCA, and the protection domain of this context on it.
pub(crate) struct IbHca {
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) device: Arc<Device>,
    pub(super) news: Arc<News>,
}

impl IbHca {
    pub(super) fn new(device: Arc<Device>) -> Result<Self, VerbsError> {
        Ok(Self {
            domain: ProtectionDomain::new(&device)?,
            device,
            news: Arc::default(),
        })
    }

    /// The port and GID to use, as they are now.
    pub(super) fn choose(&self, transport: TransportKind, wish: Wish) -> Result<Choice> {
        let failed = |error: VerbsError| error.into_error(transport);
        let mut ports = Vec::new();
        for number in 1..=self.device.capabilities().ports {
            let attributes = self.device.port(number).map_err(failed)?;
            let active = matches!(
                attributes.state,
                PortState::Active | PortState::ActiveDeferred
            );
            ports.push(PortFacts {
                number,
                state: if active {
                    Ok(())
                } else {
                    Err(format!("it is {}", attributes.state))
                },
                ethernet: match attributes.link_layer {
                    LinkLayer::Ethernet => Some(true),
                    LinkLayer::InfiniBand => Some(false),
                    _ => None,
                },
                gids: self.device.gids(number).map_err(failed)?,
            });
        }
        let name = self.name();
        let choice = port::choose(&ports, wish).map_err(|why| Error::HcaUnavailable {
            transport,
            detail: format!("{name}: {why}"),
        })?;
        let rejected = format_args!("{:?}", choice.rejected);
        if port::is_routable(&choice.gid) || wish.gid_index.is_some() {
            tracing::info!(hca = name, port = choice.port, gid = %choice.gid, %rejected, "chosen");
        } else {
            tracing::warn!(
                hca = name, port = choice.port, gid = %choice.gid, %rejected,
                "no GID of this port can be routed to; give its network interface an address"
            );
        }
        Ok(choice)
    }
}

impl GpuQueueProvider for IbHca {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn capabilities(&self) -> HcaCapabilities {
        let has = self.device.capabilities();
        let reads = has.max_outstanding_reads.min(has.max_answered_reads);
        HcaCapabilities {
            atomics: has.atomics,
            // That of the port is known when it is chosen.
            mtu: Mtu::SMALLEST,
            max_blocks: has.max_queue_requests.min(has.max_completions),
            max_outstanding_reads: u8::try_from(reads).unwrap_or(u8::MAX),
            posts_of_host: true,
            posts_of_kernels: false,
        }
    }

    fn check_port(&self, gid_index: u32) -> Result<()> {
        let wish = Wish {
            gid_index: Some(gid_index),
            ..Wish::default()
        };
        self.choose(TransportKind::IB0, wish).map(drop)
    }

    fn register(
        &self,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        access: Access,
        ordering: WriteOrdering,
    ) -> Result<Box<dyn HcaRegistration>> {
        check_range("memory for an HCA", offset, len, buffer.len())?;
        let flags = access_flags(access, ordering, self.device.capabilities().atomics);
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(buffer.clone());
        let region = memory::register(&self.domain, buffer, (offset, len), flags, owner)
            .map_err(|error| Error::Verbs(Arc::new(error)))?;
        Ok(Box::new(region))
    }

    fn create_queue(&self, _plan: QueuePlan) -> Result<Box<dyn HcaQueue>> {
        // No endpoint comes so far: the capabilities say it.
        Err(Error::UnfitQueue {
            hca: self.name().into(),
            queue: 0,
            reason: "this build has no way for kernels to post to it".into(),
        })
    }

    fn reaches(&self, _hca: HcaAddress) -> bool {
        true
    }

    fn wire(&self, _peer: HcaAddress, _stream: WireStream, _timeout: Duration) -> Result<()> {
        Ok(())
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.event_fd())
    }

    fn take_news(&self) {
        loop {
            match self.device.take_event() {
                Ok(Some(event)) => self.news.take(self.name(), &event),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "the events of an HCA cannot be read");
                    return;
                }
            }
        }
    }

    fn verbs(&self) -> Option<&IbHca> {
        Some(self)
    }
}

/// What the HCA is told of a registration. Signals must not be overtaken by what they tell of, so their
/// memory is never relaxed.
fn access_flags(access: Access, ordering: WriteOrdering, atomics: bool) -> AccessFlags {
    let relaxed = ordering == WriteOrdering::Relaxed;
    let flags = [
        (access.remote_write, AccessFlags::REMOTE_WRITE),
        (access.remote_read, AccessFlags::REMOTE_READ),
        (access.remote_atomic && atomics, AccessFlags::REMOTE_ATOMIC),
        (relaxed, AccessFlags::RELAXED_ORDERING),
    ];
    let allowed = flags.into_iter().filter(|(allowed, _)| *allowed);
    // Results of reads and atomics land in it.
    allowed.fold(AccessFlags::LOCAL_WRITE, |all, (_, flag)| all | flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ib_memory_of_signals_is_strict_and_nobody_gets_more_than_was_opened() {
        let flags = |access, ordering, atomics| access_flags(access, ordering, atomics).to_string();
        let (relaxed, strict) = (WriteOrdering::Relaxed, WriteOrdering::Strict);
        let full = "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC";
        assert_eq!(flags(Access::FULL, strict, true), full);
        let all = format!("{full}|RELAXED_ORDERING");
        assert_eq!(flags(Access::FULL, relaxed, true), all);
        let without = "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ";
        assert_eq!(flags(Access::FULL, strict, false), without);
        assert_eq!(flags(Access::LOCAL, strict, true), "LOCAL_WRITE");
    }
}
