// SPDX-License-Identifier: MIT
//! The backends that the suite and the benchmark run on, a row each.

mod cuda;
mod ib;

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;

use mscclpp_bootstrap::Bootstrap;
use mscclpp_port::{
    Communicator, ContextConfig, Device, EndpointConfig, IbConfig, IbMode, QueuePlacement,
    TransportKind,
};
use mscclpp_softnic as softnic;

use crate::harness::Context;
use crate::provider::Provider;

/// A way for a kernel's calls to reach the peer.
#[derive(Debug)]
pub struct Backend {
    /// As the benchmark's report names it.
    pub name: &'static str,
    /// What test names end with, as upstream's do.
    pub suffix: &'static str,
    /// Who carries out a kernel's calls.
    pub initiator: Initiator,
    /// Whose queues it uses, if kernels post to them: `soft` for those of [`Provider::chosen`].
    pub provider: Option<&'static str>,
    /// Who posts to the queues of an HCA, and how signals are made.
    pub mode: IbMode,
    /// What runs the device code.
    pub executor: Executor,
    /// The transport of a rank's endpoints.
    pub transport: fn(rank: usize) -> TransportKind,
    /// The device of a rank, whose memory the buffers are.
    pub device: fn(rank: usize) -> Device,
    /// What an endpoint's queue is like here, of what a test asks for.
    pub queue: fn(IbConfig) -> IbConfig,
    /// Whether peers can add to memory.
    pub accumulate: bool,
    /// Why the ranks of a test cannot run it on this machine; none: they can.
    pub obstacle: fn(&Context) -> Option<String>,
}

/// Threads of a block on a GPU, where there is work for many: each may use all the registers that a
/// thread can have.
pub const MANY: u32 = 256;

/// What runs kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Executor {
    /// CPU threads.
    Host,
    /// GPUs.
    Cuda,
}

impl Executor {
    /// As the benchmark's report names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda => "cuda",
        }
    }

    /// The device of a rank that it runs kernels on.
    pub fn device(self, rank: usize) -> Device {
        match self {
            Self::Host => Device::cpu(),
            Self::Cuda => cuda::device(rank),
        }
    }

    /// The backends that it runs, with their numbers among [`BACKENDS`].
    pub fn backends(self) -> impl Iterator<Item = (usize, &'static Backend)> {
        let all = BACKENDS.iter().enumerate();
        all.filter(move |(_, backend)| backend.executor == self)
    }
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
    /// Whether a registration that its owner has ended is out of its peers' reach. What was mapped
    /// into their GPUs is not.
    pub fn revokes(&self) -> bool {
        (self.transport)(0) != TransportKind::CudaIpc
    }

    /// How many threads a kernel is to have: few where each is an OS thread, many on a GPU.
    pub fn threads(&self, host: u32, gpu: u32) -> u32 {
        match self.executor {
            Executor::Host => host,
            Executor::Cuda => gpu,
        }
    }

    /// Whether kernels post to queues of their own, so that no proxy runs and the host can ask for
    /// nothing.
    pub fn posts_to_queue(&self) -> bool {
        self.initiator == Initiator::Kernel
    }

    /// A rank's endpoint.
    pub fn endpoint(&self, rank: usize, setup: &Setup) -> EndpointConfig {
        EndpointConfig {
            device: (self.device)(rank),
            ib: IbConfig {
                mode: self.mode,
                ..(self.queue)(setup.queue)
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
        if let Some(nic) = &nic {
            config.hca_devices = vec![Provider::chosen().hca(nic.clone())];
        }
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
        mode: IbMode::Default,
        executor: Executor::Host,
        transport: |_| TransportKind::Ethernet,
        device: |_| Device::cpu(),
        queue: |asked| asked,
        accumulate: true,
        obstacle: |_| None,
    },
    Backend {
        name: "proxy-ib-host",
        suffix: "IbHostMode",
        initiator: Initiator::Proxy,
        provider: None,
        mode: IbMode::Host,
        executor: Executor::Host,
        transport: ib::transport,
        device: |_| Device::cpu(),
        queue: |asked| asked,
        accumulate: true,
        obstacle: |_| ib::obstacle(),
    },
    Backend {
        name: "proxy-ib-host-no-atomic",
        suffix: "IbHostNoAtomicMode",
        initiator: Initiator::Proxy,
        provider: None,
        mode: IbMode::HostNoAtomic,
        executor: Executor::Host,
        transport: ib::transport,
        device: |_| Device::cpu(),
        queue: |asked| asked,
        accumulate: false,
        obstacle: |_| ib::obstacle(),
    },
    Backend {
        name: "gpu-initiated",
        suffix: "IbGpuNetIoMode",
        initiator: Initiator::Kernel,
        provider: Some("soft"),
        mode: IbMode::GpuNetIo,
        executor: Executor::Host,
        transport: |_| TransportKind::IB0,
        device: |_| Device::cpu(),
        queue: |asked| asked,
        accumulate: true,
        obstacle: |_| None,
    },
    Backend {
        name: "proxy-ethernet",
        suffix: "Ethernet",
        initiator: Initiator::Proxy,
        provider: None,
        mode: IbMode::Default,
        executor: Executor::Cuda,
        transport: |_| TransportKind::Ethernet,
        device: cuda::device,
        queue: |asked| asked,
        accumulate: true,
        obstacle: cuda::obstacle,
    },
    Backend {
        name: "proxy-ipc",
        suffix: "",
        initiator: Initiator::Proxy,
        provider: None,
        mode: IbMode::Default,
        executor: Executor::Cuda,
        transport: |_| TransportKind::CudaIpc,
        device: cuda::device,
        queue: |asked| asked,
        accumulate: false,
        obstacle: cuda::obstacle,
    },
    Backend {
        name: "gpu-initiated",
        suffix: "IbGpuNetIoMode",
        initiator: Initiator::Kernel,
        provider: Some("soft"),
        mode: IbMode::GpuNetIo,
        executor: Executor::Cuda,
        transport: |_| TransportKind::IB0,
        device: cuda::device,
        queue: |asked| IbConfig {
            queue_placement: QueuePlacement::Device,
            ..asked
        },
        accumulate: true,
        obstacle: cuda::obstacle,
    },
    Backend {
        name: "gpu-initiated-host-queue",
        suffix: "IbGpuNetIoModeHostQueue",
        initiator: Initiator::Kernel,
        provider: Some("soft"),
        mode: IbMode::GpuNetIo,
        executor: Executor::Cuda,
        transport: |_| TransportKind::IB0,
        device: cuda::device,
        queue: |asked| IbConfig {
            queue_placement: QueuePlacement::Host,
            ..asked
        },
        accumulate: true,
        obstacle: |context| {
            (Provider::chosen().host_queue_obstacle()).or_else(|| cuda::obstacle(context))
        },
    },
];
