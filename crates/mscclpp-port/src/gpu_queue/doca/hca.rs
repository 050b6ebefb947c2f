// SPDX-License-Identifier: MIT
//! The provider: an HCA whose queues the library makes.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use gpunetio_sys::Library;

use super::super::QueuePlacement;
use super::super::config::IbConfig;
use super::super::layout::QueueLayout;
use super::super::provider::{
    GpuQueueProvider, HcaAddress, HcaCapabilities, HcaQueue, HcaRegistration, QueuePlan,
    WireStream, WriteOrdering,
};
use super::super::soft;
use super::calls::{Calls, Ground};
use super::create::Made;
use super::queue::{DocaQueue, PortUse};
use crate::buffer::Buffer;
use crate::counters::HcaCounters;
use crate::error::{Error, Result};
use crate::ib::IbHca;
use crate::memory::Access;

/// What registered memory begins and ends at: a page of the host.
pub(super) const PAGE: u64 = 4096;

/// Requests that a queue of the library can hold: it counts them in 16 bits.
const MAX_BLOCKS: u32 = 32768;

/// Where queues are made: what the library stands on there.
pub(super) trait Site: Send + Sync {
    /// The library, loaded over that.
    fn library(&self) -> Result<&'static Library, gpunetio_sys::Error>;

    /// For a queue in `rings`.
    fn ground(&self, plan: &QueuePlan, rings: &Buffer) -> Result<Arc<dyn Ground>>;

    /// The port of a queue that is asked for so.
    fn port(&self, config: &IbConfig) -> Result<PortUse>;
}

/// An HCA whose queues the library makes.
pub(crate) struct DocaHca {
    name: String,
    /// What does all but the queues.
    rest: Arc<dyn GpuQueueProvider>,
    site: Box<dyn Site>,
}

impl DocaHca {
    pub(super) fn new(name: String, rest: Arc<dyn GpuQueueProvider>, site: Box<dyn Site>) -> Self {
        Self { name, rest, site }
    }

    /// The library, which is loaded when it is first asked for.
    pub(super) fn library(&self) -> Result<&'static Library> {
        static TOLD: Once = Once::new();
        let library = self.site.library();
        let library = library.map_err(|error| Error::hca(&self.name, "use GPUNetIO", error))?;
        TOLD.call_once(|| match library.version().warning {
            None => tracing::info!(version = %library.version(), "queues are made by it"),
            Some(_) => tracing::warn!(version = %library.version(), "queues are made by it"),
        });
        Ok(library)
    }
}

impl GpuQueueProvider for DocaHca {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> HcaCapabilities {
        let has = self.rest.capabilities();
        HcaCapabilities {
            posts_of_kernels: true,
            max_blocks: has.max_blocks.min(MAX_BLOCKS),
            ..has
        }
    }

    fn check_port(&self, gid_index: u32) -> Result<()> {
        self.rest.check_port(gid_index)
    }

    fn register(
        &self,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        access: Access,
        ordering: WriteOrdering,
    ) -> Result<Box<dyn HcaRegistration>> {
        self.rest.register(buffer, offset, len, access, ordering)
    }

    fn create_queue(&self, plan: QueuePlan) -> Result<Box<dyn HcaQueue>> {
        if plan.placement != QueuePlacement::Device {
            return Err(Error::InvalidUsage {
                operation: "create an endpoint",
                detail: format!(
                    "queues of {} lie in the device's memory (QueuePlacement::Device)",
                    self.name
                ),
            });
        }
        // Not before: who uses an mlx5 device for posts of the host alone needs nothing of the library.
        let library = self.library()?;
        soft::prepare(plan.device)?;
        let memory = QueueLayout::new(plan, PAGE)?;
        let scratch = self.register(
            &memory.words,
            memory.scratch,
            8,
            Access::LOCAL,
            WriteOrdering::Relaxed,
        )?;
        let port = self.site.port(&plan.asked)?;
        let ground = self.site.ground(&plan, &memory.rings)?;
        let calls = Calls::new(library, ground);
        let made = Made::new(&self.name, calls, &memory)?;
        Ok(Box::new(DocaQueue {
            made,
            scratch,
            memory,
            plan,
            port,
            hca: self.name.clone(),
            atomics: self.capabilities().atomics,
            calling: Mutex::new(()),
        }))
    }

    fn reaches(&self, hca: HcaAddress) -> bool {
        self.rest.reaches(hca)
    }

    fn wire(&self, peer: HcaAddress, stream: WireStream, timeout: Duration) -> Result<()> {
        self.rest.wire(peer, stream, timeout)
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        self.rest.news()
    }

    fn take_news(&self) {
        self.rest.take_news();
    }

    fn counters(&self) -> Option<HcaCounters> {
        self.rest.counters()
    }

    fn verbs(&self) -> Option<&IbHca> {
        self.rest.verbs()
    }
}

impl fmt::Debug for DocaHca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
