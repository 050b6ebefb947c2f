// SPDX-License-Identifier: MIT
//! An HCA and a bootstrap that behave until a fault says otherwise.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mscclpp_bootstrap::{
    Bootstrap, BootstrapError, Deadline, FailureObserver, JobKey, PeerFailure, Tag, Turns,
};
use mscclpp_device::abi::QueueDeviceHandle;
use mscclpp_softnic::Device as Nic;
use rustix::process::Signal;

use super::points::Rig;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu_net_io_service::record::EdgeRecord;
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
fn die() -> ! {
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

    fn wire(&self, stream: WireStream, timeout: Duration) -> Result<()> {
        match self.script.enter(Call::Wire)? {
            true => self.inner.wire(stream, timeout),
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

/// What a rank's bootstrap does to the messages of a setup that go between two ranks.
#[derive(Clone, Copy)]
pub(super) enum Mail {
    /// Another byte in the middle.
    Garbled,
    /// The last byte is missing.
    Cut,
    /// They do not arrive.
    Lost,
    /// They are sent so much later.
    Late(Duration),
    /// They say something else.
    Record(fn(&mut EdgeRecord)),
    /// They cannot be sent, or not be received.
    RefusedToSend,
    RefusedToReceive,
    /// The process is killed before it sends, or receives, the first.
    DeadlyToSend,
    DeadlyToReceive,
    /// The process is killed a moment after it has sent so many messages to gates.
    DeadlyAfterGateMessages(usize),
}

/// A bootstrap with such a fault.
pub(super) struct FaultyMail {
    inner: Arc<dyn Bootstrap>,
    fault: Option<Mail>,
    /// Messages to gates so far.
    to_gates: AtomicUsize,
}

impl FaultyMail {
    pub(super) fn new(inner: Arc<dyn Bootstrap>, fault: Option<Mail>) -> Self {
        let to_gates = AtomicUsize::new(0);
        Self {
            inner,
            fault,
            to_gates,
        }
    }

    fn fault(&self, tag: Tag) -> Option<Mail> {
        let ours = tag.value() >> 32 == Tag::layered(2, 0).value() >> 32;
        self.fault.filter(|_| ours)
    }

    fn refused(&self) -> BootstrapError {
        BootstrapError::Io {
            operation: "a message that the test refuses".into(),
            hint: String::new(),
            source: std::io::Error::other("refused"),
        }
    }
}

impl Bootstrap for FaultyMail {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn send(
        &self,
        peer: usize,
        tag: Tag,
        data: &[u8],
        deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let mut data = data.to_vec();
        match self.fault(tag) {
            Some(Mail::Garbled) => {
                let middle = data.len() / 2;
                data[middle..].fill(0xc1);
            }
            Some(Mail::Cut) => drop(data.pop()),
            Some(Mail::Lost) => return Ok(()),
            Some(Mail::Late(time)) => std::thread::sleep(time),
            Some(Mail::Record(change)) => {
                let mut record = EdgeRecord::decode(&data).expect("a record");
                change(&mut record);
                data = record.encode().expect("a record");
            }
            Some(Mail::RefusedToSend) => return Err(self.refused()),
            Some(Mail::DeadlyToSend) => die(),
            _ => {}
        }
        self.inner.send(peer, tag, &data, deadline)?;
        if let Some(Mail::DeadlyAfterGateMessages(last)) = self.fault
            && tag.to_string().starts_with("setup")
            && self.to_gates.fetch_add(1, Ordering::SeqCst) + 1 == last
        {
            std::thread::sleep(Duration::from_millis(100));
            die();
        }
        Ok(())
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        match self.fault(tag) {
            Some(Mail::RefusedToReceive) => return Err(self.refused()),
            Some(Mail::DeadlyToReceive) => die(),
            _ => {}
        }
        self.inner.recv(peer, tag, deadline)
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn local_ip(&self) -> Option<IpAddr> {
        self.inner.local_ip()
    }

    fn job_key(&self) -> Option<JobKey> {
        self.inner.job_key()
    }

    fn observe_failures(&self, observer: Weak<dyn FailureObserver>) {
        self.inner.observe_failures(observer);
    }

    fn failure_of(&self, rank: usize) -> Option<PeerFailure> {
        self.inner.failure_of(rank)
    }

    fn turns(&self) -> Option<&Turns> {
        self.inner.turns()
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
