// SPDX-License-Identifier: MIT
//! Channels between ranks 0 and 1, however they come about: tests of what kernels do with them are
//! written once.

use std::sync::{Arc, Mutex, PoisonError};

use mscclpp_bootstrap::Bootstrap;
use mscclpp_port::{
    Buffer, Device, GpuNetIoConfig, GpuNetIoService, PortChannel, RegisteredMemory,
};
use mscclpp_softnic as softnic;

use crate::backend::{Backend, Setup};
use crate::fixture::{Fixture, no_violations};
use crate::harness::{Context, TestResult};
use crate::provider::Provider;

/// One of two ranks that make channels to each other.
pub trait Pair {
    /// The test.
    fn context(&self) -> &Context;

    /// Zeroed memory of this rank's device.
    fn buffer(&self, bytes: u64) -> anyhow::Result<Buffer>;

    /// A channel over connection `index` of the pair: puts go from `out` here into `into` there.
    fn channel(&self, index: u32, out: &Buffer, into: &Buffer) -> anyhow::Result<PortChannel>;

    /// Waits until both are here. Fails if this rank's NIC in software saw a poster break a rule.
    fn meet(&self) -> TestResult;
}

impl Pair for Fixture<'_> {
    fn context(&self) -> &Context {
        self.context
    }

    fn buffer(&self, bytes: u64) -> anyhow::Result<Buffer> {
        self.buffer(bytes)
    }

    fn channel(&self, index: u32, out: &Buffer, into: &Buffer) -> anyhow::Result<PortChannel> {
        let (out, into) = (self.register(out)?, self.register(into)?);
        Ok(self.pair(index, &out, &into)?.channel)
    }

    fn meet(&self) -> TestResult {
        self.meet()
    }
}

/// How queues between two ranks are asked for.
#[derive(Clone, Copy)]
pub enum Way {
    /// One by one, by endpoints of a communicator.
    Endpoints(&'static Backend),
    /// All at once, by a [`GpuNetIoService`].
    Service(&'static Backend),
}

impl Way {
    /// What names of tests end with. A service's have the names that they have upstream.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Endpoints(backend) => backend.suffix,
            Self::Service(backend) => backend.suffix.trim_start_matches("IbGpuNetIoMode"),
        }
    }

    /// This rank's end, with up to `queues` queues, which are made as described.
    pub fn open<'a>(
        self,
        context: &'a Context,
        setup: &Setup,
        queues: u32,
    ) -> anyhow::Result<Box<dyn Pair + 'a>> {
        Ok(match self {
            Self::Endpoints(backend) => Box::new(Fixture::with(context, backend, setup)?),
            Self::Service(backend) => Box::new(ServicePair::new(context, backend, setup, queues)?),
        })
    }
}

struct ServicePair<'a> {
    context: &'a Context,
    service: GpuNetIoService,
    device: Device,
    nic: softnic::Device,
    /// What the peer's puts go to.
    targets: Mutex<Vec<RegisteredMemory>>,
}

impl<'a> ServicePair<'a> {
    fn new(
        context: &'a Context,
        backend: &Backend,
        setup: &Setup,
        queues: u32,
    ) -> anyhow::Result<Self> {
        let device = (backend.device)(context.rank());
        let nic = softnic::Device::open("soft0", setup.nic.clone())?;
        let config = GpuNetIoConfig {
            queue: (backend.queue)(setup.queue),
            ..GpuNetIoConfig::default()
        };
        context.stage("join");
        let bootstrap: Arc<dyn Bootstrap> = context.bootstrap()?;
        let hca = Provider::chosen().hca(nic.clone());
        let service = GpuNetIoService::with_config(bootstrap, hca, device, config)?;
        context.stage(format!("set {queues} queues up"));
        service.setup(&[(1 - context.rank(), queues)], 0)?;
        Ok(Self {
            context,
            service,
            device,
            nic,
            targets: Mutex::default(),
        })
    }
}

impl Pair for ServicePair<'_> {
    fn context(&self) -> &Context {
        self.context
    }

    fn buffer(&self, bytes: u64) -> anyhow::Result<Buffer> {
        Ok(Buffer::new(self.device, bytes)?)
    }

    fn channel(&self, index: u32, out: &Buffer, into: &Buffer) -> anyhow::Result<PortChannel> {
        self.context.stage(format!("a channel on queue {index}"));
        let (service, peer) = (&self.service, 1 - self.context.rank());
        let connection = service.connect(peer, index)?;
        let source = service.register_memory(out, 0..out.len())?;
        let target = service.register_memory(into, 0..into.len())?;
        let remote = service.exchange_memory(peer, &target, index)?;
        let semaphore = service.build_semaphore(&connection, index)?;
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.push(target);
        let remote = remote.get_by(self.context.deadline())?;
        let semaphore = semaphore.get_by(self.context.deadline())?;
        Ok(service.port_channel(semaphore, &remote, &source)?)
    }

    fn meet(&self) -> TestResult {
        self.context.stage("meet");
        self.service.bootstrap().barrier()?;
        no_violations(&self.nic)
    }
}
