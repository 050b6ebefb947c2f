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

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::gpu_queue::{
    GpuQueueProvider, HcaAddress, HcaCapabilities, HcaQueue, HcaRegistration, Path, QueueAddress,
    QueueFault, QueuePlan, WireStream, WriteOrdering,
};
use crate::memory::Access;

/// A call that a fault can be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Open,
    Capabilities,
    Port,
    CreateQueue,
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
    Capabilities(fn(&mut HcaCapabilities)),
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
        due.then_some(fault.act)
    }

    /// Refuses or delays a call.
    pub(super) fn enter(&self, call: Call) -> Result<()> {
        match self.act(call) {
            Some(Act::Refuse) => Err(Error::InvalidUsage {
                operation: "go on",
                detail: format!("{call:?} is refused by the test"),
            }),
            Some(Act::Delay(time)) => {
                std::thread::sleep(time);
                Ok(())
            }
            _ => Ok(()),
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
        match self.script.act(Call::Capabilities) {
            Some(Act::Capabilities(change)) => change(&mut capabilities),
            Some(Act::Delay(time)) => std::thread::sleep(time),
            _ => {}
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
        self.script.enter(Call::Wire)?;
        self.inner.wire(stream, timeout)
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
        self.inner.address()
    }

    fn init(&self) -> Result<()> {
        self.script.enter(Call::Init)?;
        self.inner.init()
    }

    fn ready_to_receive(&self, path: &Path) -> Result<()> {
        self.script.enter(Call::Receive)?;
        self.inner.ready_to_receive(path)
    }

    fn ready_to_send(&self, path: &Path) -> Result<()> {
        self.script.enter(Call::Send)?;
        self.inner.ready_to_send(path)
    }

    fn device_handle(&self) -> QueueDeviceHandle {
        let mut handle = self.inner.device_handle();
        match self.script.act(Call::Handle) {
            Some(Act::Handle(change)) => change(&mut handle),
            Some(Act::Delay(time)) => std::thread::sleep(time),
            _ => {}
        }
        handle
    }

    fn fault(&self) -> Option<QueueFault> {
        match self.script.act(Call::Fault) {
            Some(Act::Fault(fault)) => return Some(fault),
            Some(Act::Delay(time)) => std::thread::sleep(time),
            _ => {}
        }
        self.inner.fault()
    }

    fn stop(&self) {
        self.inner.stop();
    }
}

/// What a rank's bootstrap does to the messages of a setup that go between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mail {
    /// Another byte in the middle.
    Garbled,
    /// The last byte is missing.
    Cut,
    /// They do not arrive.
    Lost,
    /// They cannot be sent, or not be received.
    RefusedToSend,
    RefusedToReceive,
}

/// A bootstrap with such a fault.
pub(super) struct FaultyMail {
    pub(super) inner: Arc<dyn Bootstrap>,
    pub(super) fault: Option<Mail>,
}

impl FaultyMail {
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
            Some(Mail::RefusedToSend) => return Err(self.refused()),
            _ => {}
        }
        self.inner.send(peer, tag, &data, deadline)
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        if self.fault(tag) == Some(Mail::RefusedToReceive) {
            return Err(self.refused());
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
