// SPDX-License-Identifier: MIT
//! The backends that the suite and the benchmark run on, a row each.

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;

use mscclpp_bootstrap::Bootstrap;
use mscclpp_port::{
    Communicator, ContextConfig, Device, EndpointConfig, Hca, IbConfig, IbMode, TransportKind,
};
use mscclpp_softnic as softnic;

/// What runs kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Executor {
    /// CPU threads.
    Host,
    /// GPUs.
    Cuda,
}

/// A way for a kernel's calls to reach the peer.
#[derive(Debug)]
pub struct Backend {
    /// As the benchmark's report names it.
    pub name: &'static str,
    /// What test names end with, as upstream's do.
    pub suffix: &'static str,
    /// Who carries out a kernel's calls.
    pub initiator: Initiator,
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

/// Who carries out what a kernel asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initiator {
    /// A thread of the host, which can also be asked by the host.
    Proxy,
    /// The kernel itself, on a queue that is nobody else's.
    Kernel,
}

/// What a test wants of a GPU-initiated backend. Others have none of it.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// How a NIC in software behaves.
    pub nic: softnic::DeviceConfig,
    /// What the queues are like. The mode is the backend's.
    pub queue: IbConfig,
}

impl Setup {
    /// A NIC in software that looks closely at who posts to it, at some cost.
    pub fn strict() -> Self {
        let nic = softnic::DeviceConfig {
            checks: softnic::Checks {
                fetch_twice: true,
                clear_slots: true,
                audit_interval: Duration::from_millis(20),
            },
            ..softnic::DeviceConfig::default()
        };
        Self {
            nic,
            ..Self::default()
        }
    }
}

impl Backend {
    /// Whether kernels post to queues of their own, so that no proxy runs and the host can ask for
    /// nothing.
    pub fn posts_to_queue(&self) -> bool {
        self.initiator == Initiator::Kernel
    }

    /// A rank's endpoint.
    pub fn endpoint(&self, rank: usize, setup: &Setup) -> EndpointConfig {
        let mode = match self.initiator {
            Initiator::Proxy => IbMode::Default,
            Initiator::Kernel => IbMode::GpuNetIo,
        };
        EndpointConfig {
            device: (self.device)(rank),
            ib: IbConfig {
                mode,
                ..setup.queue
            },
            ..EndpointConfig::new((self.transport)(rank))
        }
    }

    /// A communicator, with the NIC in software that is its HCA, if it has one.
    pub fn communicator(
        &self,
        bootstrap: Arc<dyn Bootstrap>,
        setup: &Setup,
    ) -> anyhow::Result<(Communicator, Option<softnic::Device>)> {
        let mut config = ContextConfig::of_rank(&*bootstrap);
        let nic = match self.provider {
            Some("soft") => Some(softnic::Device::open("soft0", setup.nic.clone())?),
            _ => None,
        };
        config.hca_devices = nic.iter().cloned().map(Hca::from).collect();
        Ok((Communicator::with_config(bootstrap, config)?, nic))
    }
}

/// Every backend of this build.
pub static BACKENDS: &[Backend] = &[
    Backend {
        name: "proxy-ethernet",
        suffix: "Ethernet",
        initiator: Initiator::Proxy,
        provider: None,
        executor: "host",
        transport: |_| TransportKind::Ethernet,
        device: |_| Device::cpu(),
        accumulate: true,
        obstacle: || None,
    },
    Backend {
        name: "gpu-initiated",
        suffix: "IbGpuNetIoMode",
        initiator: Initiator::Kernel,
        provider: Some("soft"),
        executor: "host",
        transport: |_| TransportKind::IB0,
        device: |_| Device::cpu(),
        accumulate: true,
        obstacle: || None,
    },
];
