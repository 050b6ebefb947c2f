// SPDX-License-Identifier: MIT
//! An HCA that behaves until a fault says otherwise, and a service on it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mscclpp_bootstrap::Bootstrap;
use mscclpp_device::abi::QueueDeviceHandle;
use mscclpp_softnic::Device as Nic;
use rustix::process::Signal;

use super::mail::FaultyMail;
use super::points::Rig;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu_net_io_service::{GpuNetIoConfig, GpuNetIoService};
use crate::gpu_queue::{
    GpuQueueProvider, Hca, HcaAddress, HcaCapabilities, HcaQueue, HcaRegistration, Path,
    QueueAddress, QueueFault, QueuePlan, SoftHca, WireStream, WriteOrdering,
};
use crate::memory::Access;

/// A call that a fault can be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Open,
    Capabilities,
    Port,
    CreateQueue,
    Address,
    Handle,
    Wire,
    Init,
    Receive,
    Send,
    Fault,
}

/// What a call does instead.
#[derive(Clone, Copy)]
pub(super) enum Act {
    Refuse,
    Delay(Duration),
    /// It says that it is done, and does nothing.
    Pretend,
    Panic,
    /// The process is killed.
    Die,
    Capabilities(fn(&mut HcaCapabilities)),
    Address(fn(&mut QueueAddress)),
    Handle(fn(&mut QueueDeviceHandle)),
    Fault(QueueFault),
}

/// The fault of one rank: from the call after `skip` others of its kind on.
#[derive(Clone)]
pub(super) struct Fault {
    pub(super) call: Call,
    pub(super) skip: usize,
    pub(super) act: Act,
}

/// What a call panics with.
pub(super) const PANIC: &str = "a call panics in a test";

/// Ends this process as nothing can prevent.
pub(super) fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    std::process::abort()
}

/// Counts calls.
#[derive(Default)]
pub(super) struct Script {
    fault: Option<Fault>,
    seen: AtomicUsize,
}

impl Script {
    pub(super) fn new(fault: Option<Fault>) -> Arc<Self> {
        Arc::new(Self {
            fault,
            seen: AtomicUsize::new(0),
        })
    }

    fn act(&self, call: Call) -> Option<Act> {
        let fault = self.fault.as_ref().filter(|fault| fault.call == call)?;
        let seen = self.seen.fetch_add(1, Ordering::SeqCst);
        // A delay is long enough once.
        let due = match fault.act {
            Act::Delay(_) => seen == fault.skip,
            _ => seen >= fault.skip,
        };
        if !due {
            return None;
        }
        match fault.act {
            Act::Delay(time) => std::thread::sleep(time),
            // Without the hook, which would print it.
            Act::Panic => std::panic::resume_unwind(Box::new(PANIC)),
            Act::Die => die(),
            _ => {}
        }
        Some(fault.act)
    }

    /// Refuses a call, or says whether it is to be made at all.
    pub(super) fn enter(&self, call: Call) -> Result<bool> {
        match self.act(call) {
            Some(Act::Refuse) => Err(Error::InvalidUsage {
                operation: "go on",
                detail: format!("{call:?} is refused by the test"),
            }),
            Some(Act::Pretend) => Ok(false),
            _ => Ok(true),
        }
    }
}

/// A provider with a fault.
pub(super) struct FaultyHca {
    pub(super) inner: Arc<dyn GpuQueueProvider>,
    pub(super) script: Arc<Script>,
}

impl GpuQueueProvider for FaultyHca {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> HcaCapabilities {
        let mut capabilities = self.inner.capabilities();
        if let Some(Act::Capabilities(change)) = self.script.act(Call::Capabilities) {
            change(&mut capabilities);
        }
        capabilities
    }

    fn check_port(&self, gid_index: u32) -> Result<()> {
        self.script.enter(Call::Port)?;
        self.inner.check_port(gid_index)
    }

    fn register(
        &self,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        access: Access,
        ordering: WriteOrdering,
    ) -> Result<Box<dyn HcaRegistration>> {
        self.inner.register(buffer, offset, len, access, ordering)
    }

    fn create_queue(&self, plan: QueuePlan) -> Result<Box<dyn HcaQueue>> {
        self.script.enter(Call::CreateQueue)?;
        Ok(Box::new(FaultyQueue {
            inner: self.inner.create_queue(plan)?,
            script: Arc::clone(&self.script),
        }))
    }

    fn reaches(&self, hca: HcaAddress) -> bool {
        self.inner.reaches(hca)
    }

    fn wire(&self, peer: HcaAddress, stream: WireStream, timeout: Duration) -> Result<()> {
        match self.script.enter(Call::Wire)? {
            true => self.inner.wire(peer, stream, timeout),
            false => Ok(()),
        }
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        self.inner.news()
    }

    fn take_news(&self) {
        self.inner.take_news();
    }
}

struct FaultyQueue {
    inner: Box<dyn HcaQueue>,
    script: Arc<Script>,
}

impl HcaQueue for FaultyQueue {
    fn address(&self) -> QueueAddress {
        let mut address = self.inner.address();
        if let Some(Act::Address(change)) = self.script.act(Call::Address) {
            change(&mut address);
        }
        address
    }

    fn init(&self) -> Result<()> {
        match self.script.enter(Call::Init)? {
            true => self.inner.init(),
            false => Ok(()),
        }
    }

    fn ready_to_receive(&self, path: &Path) -> Result<()> {
        match self.script.enter(Call::Receive)? {
            true => self.inner.ready_to_receive(path),
            false => Ok(()),
        }
    }

    fn ready_to_send(&self, path: &Path) -> Result<()> {
        match self.script.enter(Call::Send)? {
            true => self.inner.ready_to_send(path),
            false => Ok(()),
        }
    }

    fn device_handle(&self) -> QueueDeviceHandle {
        let mut handle = self.inner.device_handle();
        if let Some(Act::Handle(change)) = self.script.act(Call::Handle) {
            change(&mut handle);
        }
        handle
    }

    fn fault(&self) -> Option<QueueFault> {
        match self.script.act(Call::Fault) {
            Some(Act::Fault(fault)) => Some(fault),
            _ => self.inner.fault(),
        }
    }

    fn stop(&self) {
        self.inner.stop();
    }
}

/// A service on a NIC with the faults of a rig.
pub(super) fn faulty_service(
    bootstrap: &Arc<dyn Bootstrap>,
    nic: &Nic,
    rig: &Rig,
) -> GpuNetIoService {
    let (script, nic) = (Script::new(rig.fault.clone()), nic.clone());
    let hca = Hca::made(move || {
        script.enter(Call::Open)?;
        Ok(Arc::new(FaultyHca {
            inner: Arc::new(SoftHca::new(nic.clone())?),
            script: Arc::clone(&script),
        }))
    });
    let mut config = GpuNetIoConfig {
        gid_index: 0,
        ..GpuNetIoConfig::default()
    };
    if let Some(change) = rig.config {
        change(&mut config);
    }
    let bootstrap = Arc::new(FaultyMail::new(Arc::clone(bootstrap), rig.mail));
    GpuNetIoService::with_config(bootstrap, hca, Device::cpu(), config).unwrap()
}
