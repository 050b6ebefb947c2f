// SPDX-License-Identifier: MIT
//! One end of a connection whose queue kernels post to, as its owner, its hand-shake and the watcher
//! share it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use mlx5_queue::Opcode;
use mscclpp_bootstrap::Deadline;
use mscclpp_device::abi::{QueueDeviceHandle, SignalMode};

use super::config::IbConfig;
use super::lock;
use super::policy::check_made;
use super::provider::{GpuQueueProvider, HcaQueue, Path, QueueFault};
use crate::context::ContextId;
use crate::control::{Arrived, Control, Message};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::status::StickyStatus;
use crate::transport::TransportKind;
use crate::watcher::Watched;

/// How long a peer that refused a request of this end waits for this end's own, more telling error.
pub(super) const OWN_ERROR_WITHIN: Duration = Duration::from_millis(250);

/// Ends a wait of the hand-shake.
pub(super) type Cancel = Box<dyn Fn() + Send + Sync>;

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
    pub(super) status: Arc<StickyStatus>,
    pub(crate) ends: Ends,
    pub(super) path: Path,
    pub(crate) signal_mode: SignalMode,
    /// When the hand-shake has ended.
    pub(crate) deadline: Deadline,
    /// Empty for a queue that is connected to itself, and until the stream is there.
    control: OnceLock<Control>,
    ready: AtomicBool,
    /// The owner is gone.
    closing: AtomicBool,
    /// The queue was stopped.
    ended: AtomicBool,
    /// The other end was told.
    told: AtomicBool,
    /// The other end has said goodbye.
    left: AtomicBool,
    refused: Mutex<Option<Instant>>,
    cancel: Mutex<Option<Cancel>>,
}

impl QueueEnd {
    pub(crate) fn new(
        queue: Box<dyn HcaQueue>,
        hca: Arc<dyn GpuQueueProvider>,
        status: Arc<StickyStatus>,
        ends: Ends,
        path: Path,
        signal_mode: SignalMode,
        deadline: Deadline,
    ) -> Self {
        Self {
            queue,
            hca,
            status,
            ends,
            path,
            signal_mode,
            deadline,
            control: OnceLock::new(),
            ready: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            told: AtomicBool::new(false),
            left: AtomicBool::new(false),
            refused: Mutex::default(),
            cancel: Mutex::default(),
        }
    }

    /// What kernels need to post. Valid while this lives.
    pub(crate) fn device_handle(&self) -> QueueDeviceHandle {
        self.queue.device_handle()
    }

    /// Whether both ends are connected and have executed a request.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(SeqCst)
    }

    pub(super) fn set_ready(&self) {
        self.ready.store(true, SeqCst);
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

    pub(super) fn control(&self) -> Option<&Control> {
        self.control.get()
    }

    pub(super) fn set_control(&self, control: Control) {
        // The hand-shake sets it, once.
        let _ = self.control.set(control);
    }

    /// Whether the hand-shake need not go on.
    pub(super) fn given_up(&self) -> bool {
        self.closing.load(SeqCst) || self.status.is_failed()
    }

    /// What ends the wait that the hand-shake is about to begin.
    pub(super) fn set_cancel(&self, cancel: Option<Cancel>) {
        let mut slot = lock(&self.cancel);
        if self.closing.load(SeqCst)
            && let Some(cancel) = &cancel
        {
            cancel();
        }
        *slot = cancel;
    }

    /// The owner is gone, or has given up: ends the waits of the hand-shake.
    pub(super) fn close(&self) {
        self.closing.store(true, SeqCst);
        if let Some(cancel) = &*lock(&self.cancel) {
            cancel();
        }
    }

    /// Ends the connection with an error, unless it has ended already.
    pub(crate) fn fail(&self, error: Error) {
        if self.status.fail(error.clone()) {
            if self.left.load(SeqCst) {
                tracing::debug!(%error, "a connection has ended");
            } else {
                tracing::warn!(%error, "a connection has failed");
            }
        }
        self.end();
    }

    /// Stops the queue, and tells the other end that the connection failed or is dropped, as soon as
    /// there is a way to.
    pub(super) fn end(&self) {
        if !self.ended.swap(true, SeqCst) {
            self.queue.stop();
        }
        let Some(control) = self.control() else {
            return;
        };
        if self.told.swap(true, SeqCst) {
            return;
        }
        let last = match self.status.error() {
            Some(Error::QueueRefused { .. }) => Message::Refused,
            Some(error) => Message::Failed(error.to_string()),
            None => Message::Goodbye,
        };
        if let Err(error) = control.send(&last) {
            tracing::debug!(%error, "the other end could not be told of a failure");
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    pub(super) fn peer_down(&self, cause: impl Into<String>) -> Error {
        Error::PeerDown {
            rank: self.ends.rank,
            cause: cause.into(),
        }
    }

    fn refused_by_peer(&self) -> Error {
        Error::PeerFailed {
            rank: self.ends.rank,
            reason: "it refused a request".into(),
        }
    }

    /// What the other end's word means here, if it ends the connection.
    pub(super) fn meaning(&self, arrived: Arrived) -> Option<Error> {
        let rank = self.ends.rank;
        Some(match arrived {
            Arrived::Nothing => return None,
            Arrived::End(cause) => self.peer_down(cause),
            Arrived::Message(Message::Goodbye) => {
                self.left.store(true, SeqCst);
                self.peer_down("it has closed the connection")
            }
            Arrived::Message(Message::Failed(reason)) => Error::PeerFailed { rank, reason },
            Arrived::Message(Message::Refused) => self.refused_by_peer(),
            Arrived::Message(_) => self.peer_down("it broke the protocol of the control stream"),
        })
    }

    /// What the other end has said or done that ends the connection, also behind steps of the
    /// hand-shake that nobody has waited for yet.
    pub(super) fn last_word(&self) -> Option<Error> {
        self.meaning(self.control()?.last()?)
    }

    fn failure(&self) -> Option<Error> {
        let fault = self.queue.fault();
        if let Some(fault) = fault.filter(|fault| *fault != QueueFault::Refusal) {
            return Some(self.error_of(fault));
        }
        let mut refused = lock(&self.refused);
        if let Some(control) = self.control() {
            let arrived = control.receive();
            if matches!(arrived, Arrived::Message(Message::Refused)) {
                refused.get_or_insert_with(Instant::now);
            } else if let Some(error) = self.meaning(arrived) {
                // What came before it says more.
                return Some(if refused.is_some() {
                    self.refused_by_peer()
                } else {
                    error
                });
            }
        }
        if refused.is_some_and(|at| at.elapsed() > OWN_ERROR_WITHIN) {
            return Some(self.refused_by_peer());
        }
        if let Some(fault) = fault {
            return Some(self.error_of(fault));
        }
        let lost = !self.hca.reaches(self.path.peer.hca);
        lost.then(|| self.peer_down("the link between the two HCAs is down"))
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

    /// An error of the hand-shake, if the connection has not ended meanwhile.
    pub(super) fn check(&self) -> Result<()> {
        self.status.check()?;
        if self.closing.load(SeqCst) {
            return Err(self.peer_down("this end is closing"));
        }
        Ok(())
    }
}

impl Watched for QueueEnd {
    fn look(&self) {
        if self.has_ended() {
            return;
        }
        if self.status.is_failed() {
            // The bootstrap knew first.
            self.end();
        } else if let Some(error) = self.failure() {
            self.fail(error);
        }
    }

    fn stream(&self) -> Option<BorrowedFd<'_>> {
        (!self.has_ended()).then(|| Some(self.control()?.as_fd()))?
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
