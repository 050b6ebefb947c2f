// SPDX-License-Identifier: MIT
//! One end of a connection over CUDA IPC, as its owner, its hand-shake and the watcher share it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::transport::Posts;
use crate::context::ContextId;
use crate::control::{Arrived, Control, Message, Route, watch_for_silence};
use crate::error::{Error, Result};
use crate::status::StickyStatus;
use crate::sync::lock_plain as lock;
use crate::watcher::Watched;

/// Ends a wait of the hand-shake.
type Cancel = Box<dyn Fn() + Send + Sync>;

pub(super) struct IpcEnd {
    pub(super) posts: Mutex<Posts>,
    pub(super) status: Arc<StickyStatus>,
    /// The context at the other end, and the rank, where it has one.
    pub(super) peer: ContextId,
    pub(super) rank: Option<usize>,
    /// Empty for a connection that leads to itself, and until the stream is there.
    control: OnceLock<Control>,
    ready: AtomicBool,
    /// The owner is gone.
    closing: AtomicBool,
    /// The connection is over; the other end was told, if there was a way to.
    ended: AtomicBool,
    cancel: Mutex<Option<Cancel>>,
}

impl IpcEnd {
    pub(super) fn new(
        posts: Posts,
        status: Arc<StickyStatus>,
        peer: ContextId,
        rank: Option<usize>,
    ) -> Self {
        Self {
            posts: Mutex::new(posts),
            status,
            peer,
            rank,
            control: OnceLock::new(),
            ready: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            cancel: Mutex::default(),
        }
    }

    /// Waits for the control stream.
    pub(super) fn attach(&self, route: Route, stall_timeout: Duration) -> Result<()> {
        let control = match route {
            Route::Itself => None,
            Route::Context(stream) => Some(Control::new(stream)),
            Route::Network(arrival) => {
                self.set_cancel(Some(arrival.cancel));
                let stream = (arrival.wait)(&|| self.given_up());
                self.set_cancel(None);
                let stream = stream?;
                watch_for_silence(&stream, stall_timeout)
                    .map_err(|error| Error::io("prepare a control stream", error))?;
                Some(Control::new(stream))
            }
        };
        if let Some(control) = control {
            // Only the hand-shake sets it, once.
            let _ = self.control.set(control);
        }
        self.ready.store(true, SeqCst);
        Ok(())
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(SeqCst)
    }

    /// Whether the hand-shake need not go on.
    pub(super) fn given_up(&self) -> bool {
        self.closing.load(SeqCst) || self.status.is_failed()
    }

    fn set_cancel(&self, cancel: Option<Cancel>) {
        let mut slot = lock(&self.cancel);
        if self.given_up()
            && let Some(cancel) = &cancel
        {
            cancel();
        }
        *slot = cancel;
    }

    /// The owner is gone: ends the wait of the hand-shake.
    pub(super) fn close(&self) {
        self.closing.store(true, SeqCst);
        if let Some(cancel) = &*lock(&self.cancel) {
            cancel();
        }
    }

    /// Ends the connection with an error, unless it has ended already.
    pub(super) fn fail(&self, error: Error) {
        if self.status.fail(error.clone()) {
            tracing::warn!(%error, "a connection has failed");
        }
        self.end();
    }

    /// Tells the other end that the connection has failed or is dropped.
    pub(super) fn end(&self) {
        let Some(control) = self.control.get() else {
            return;
        };
        if self.ended.swap(true, SeqCst) {
            return;
        }
        let last = match self.status.error() {
            Some(error) => Message::Failed(error.to_string()),
            None => Message::Goodbye,
        };
        if let Err(error) = control.send(&last) {
            tracing::debug!(%error, "the other end could not be told of the end");
        }
    }

    /// What the other end's word means here.
    fn meaning(&self, arrived: Arrived) -> Option<Error> {
        let rank = self.rank;
        let down = |cause: String| Error::PeerDown { rank, cause };
        Some(match arrived {
            Arrived::Nothing => return None,
            Arrived::End(cause) => down(cause),
            Arrived::Message(Message::Goodbye) => down("it has closed the connection".into()),
            Arrived::Message(Message::Failed(reason)) => Error::PeerFailed { rank, reason },
            Arrived::Message(_) => down("it broke the protocol of the control stream".into()),
        })
    }
}

impl Watched for IpcEnd {
    fn look(&self) {
        if self.ended.load(SeqCst) {
            return;
        }
        if self.status.is_failed() {
            // Somebody else knew first.
            self.end();
            return;
        }
        let Some(arrived) = self.control.get().map(Control::receive) else {
            return;
        };
        let left = matches!(arrived, Arrived::Message(Message::Goodbye));
        match self.meaning(arrived) {
            None => {}
            Some(error) if left => {
                tracing::debug!(%error, "a connection has ended");
                self.status.fail(error);
                self.end();
            }
            Some(error) => self.fail(error),
        }
    }

    fn stream(&self) -> Option<BorrowedFd<'_>> {
        (!self.ended.load(SeqCst)).then(|| Some(self.control.get()?.as_fd()))?
    }
}
