// SPDX-License-Identifier: MIT
//! The backends that the suite and the benchmark run on, a row each.

use mscclpp_port::{Device, EndpointConfig, TransportKind};

/// A way for a kernel's calls to reach the peer.
#[derive(Debug)]
pub struct Backend {
    /// As the benchmark's report names it.
    pub name: &'static str,
    /// What test names end with, as upstream's do.
    pub suffix: &'static str,
    /// Whose queues a GPU-initiated backend uses.
    pub provider: Option<&'static str>,
    /// What runs the device code.
    pub executor: &'static str,
    /// The transport of a rank's endpoints.
    pub transport: fn(rank: usize) -> TransportKind,
    /// The device of a rank, whose memory the buffers are.
    pub device: fn(rank: usize) -> Device,
    /// Whether peers can add to memory.
    pub accumulate: bool,
    /// Why this machine cannot run it; none: it can.
    pub obstacle: fn() -> Option<String>,
}

impl Backend {
    /// Whether kernels post to the NIC's queue themselves.
    pub fn posts_to_queue(&self) -> bool {
        self.provider.is_some()
    }

    /// A rank's endpoint.
    pub fn endpoint(&self, rank: usize) -> EndpointConfig {
        EndpointConfig {
            device: (self.device)(rank),
            ..EndpointConfig::new((self.transport)(rank))
        }
    }
}

/// Every backend of this build.
pub static BACKENDS: &[Backend] = &[Backend {
    name: "proxy-ethernet",
    suffix: "Ethernet",
    provider: None,
    executor: "host",
    transport: |_| TransportKind::Ethernet,
    device: |_| Device::cpu(),
    accumulate: true,
    obstacle: || None,
}];
