// SPDX-License-Identifier: MIT
//! One end of a connection whose queue kernels post to, as its owner, its hand-shake and the watcher
//! share it.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mlx5_queue::Opcode;
use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::{QueueDeviceHandle, SignalMode};

use super::config::IbConfig;
use super::lock;
use super::policy::check_made;
use super::provider::{GpuQueueProvider, HcaQueue, Path, QueueFault};
use crate::context::ContextId;
use crate::control::{Arrived, Message};
use crate::control_end::ControlEnd;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::transport::TransportKind;
use crate::watcher::Watched;

/// How long a peer that refused a request of this end waits for this end's own, more telling error.
pub(super) const OWN_ERROR_WITHIN: Duration = Duration::from_millis(250);

/// Who the two ends are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    /// Whose kernels post at this end.
    pub(crate) device: Device,
    pub(crate) local: TransportKind,
    pub(crate) remote: TransportKind,
    /// The context at this end.
    pub(crate) own: ContextId,
    /// The context at the other end, and the rank, where it has one.
    pub(crate) peer: ContextId,
    pub(crate) rank: Option<usize>,
}

pub(crate) struct QueueEnd {
    queue: Box<dyn HcaQueue>,
    /// Behind the queue, which is made on it.
    pub(super) hca: Arc<dyn GpuQueueProvider>,
    pub(crate) control: ControlEnd,
    pub(crate) ends: Ends,
    pub(super) path: Path,
    pub(crate) signal_mode: SignalMode,
    /// When the hand-shake has ended at the latest, with its error.
    pub(crate) ends_by: Deadline,
    /// The queue was stopped.
    ended: AtomicBool,
    /// Since when the other end is known to have refused a request.
    refused: Mutex<Option<Instant>>,
}

impl QueueEnd {
    pub(crate) fn new(
        queue: Box<dyn HcaQueue>,
        hca: Arc<dyn GpuQueueProvider>,
        control: ControlEnd,
        ends: Ends,
        path: Path,
        signal_mode: SignalMode,
        deadline: Deadline,
    ) -> Self {
        // A self-test that began just in time has its own.
        let late = (control.deadlines.self_test).saturating_add(control.deadlines.teardown);
        let ends_by = Deadline::after(deadline.remaining().saturating_add(late));
        Self {
            queue,
            hca,
            control,
            ends,
            path,
            signal_mode,
            ends_by,
            ended: AtomicBool::new(false),
            refused: Mutex::default(),
        }
    }

    /// What kernels need to post. Valid while this lives.
    pub(crate) fn device_handle(&self) -> QueueDeviceHandle {
        self.queue.device_handle()
    }

    pub(crate) fn queue(&self) -> &dyn HcaQueue {
        &*self.queue
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the queue works and is what was asked for.
    pub(crate) fn check_queue(&self, config: &IbConfig) -> Result<()> {
        check_made(self.hca.name(), self.queue(), config)?;
        self.queue
            .fault()
            .map_or(Ok(()), |fault| Err(self.error_of(fault)))
    }

    /// Ends the connection with an error, unless it has ended already.
    pub(crate) fn fail(&self, error: Error) {
        self.control.fail(error);
        self.end();
    }

    /// Stops the queue, and tells the other end that the connection failed or is dropped, as soon as
    /// there is a way to.
    pub(super) fn end(&self) {
        if !self.ended.swap(true, SeqCst) {
            self.queue.stop();
        }
        self.control.tell();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    fn failure(&self) -> Option<Error> {
        let fault = self.queue.fault();
        if let Some(fault) = fault.filter(|fault| *fault != QueueFault::Refusal) {
            return Some(self.error_of(fault));
        }
        let mut refused = lock(&self.refused);
        if let Some(control) = self.control.control() {
            let arrived = control.receive();
            if matches!(arrived, Arrived::Message(Message::Refused)) {
                refused.get_or_insert_with(Instant::now);
            } else if let Some(error) = self.control.meaning(arrived) {
                // What came before it says more.
                return Some(refused.map_or(error, |_| self.control.refused()));
            }
        }
        if refused.is_some_and(|at| at.elapsed() > OWN_ERROR_WITHIN) {
            return Some(self.control.refused());
        }
        if let Some(fault) = fault {
            return Some(self.error_of(fault));
        }
        let lost = !self.hca.reaches(self.path.peer.hca);
        let cause = "the link between the two HCAs is down";
        lost.then(|| self.control.peer_down(cause))
    }

    /// A queue's fault as the connection's error.
    pub(super) fn error_of(&self, fault: QueueFault) -> Error {
        let rank = self.ends.rank;
        let queue = self.queue.address().number;
        match fault {
            QueueFault::Refusal => Error::QueueRefused { rank, queue },
            QueueFault::NotExclusive => Error::QueueNotExclusive { rank, queue },
            QueueFault::Request {
                index,
                opcode,
                syndrome,
                vendor,
            } => Error::QueueFailed {
                rank,
                queue,
                index,
                operation: opcode.map_or("unknown", operation),
                syndrome,
                vendor,
            },
        }
    }
}

impl Watched for QueueEnd {
    fn look(&self) {
        if self.has_ended() {
            return;
        }
        if self.control.status.is_failed() {
            // The bootstrap knew first.
            self.end();
        } else if let Some(error) = self.failure() {
            self.fail(error);
        }
    }

    fn stream(&self) -> Option<BorrowedFd<'_>> {
        (!self.has_ended()).then(|| self.control.stream())?
    }

    fn hca(&self) -> Option<&Arc<dyn GpuQueueProvider>> {
        Some(&self.hca)
    }
}

/// What kernels call the work request.
fn operation(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::Nop => "put of no bytes",
        Opcode::Write => "put or inline signal",
        Opcode::FetchAdd => "signal or accumulate",
        Opcode::Read => "get",
        _ => "unknown",
    }
}
