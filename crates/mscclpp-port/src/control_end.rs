// SPDX-License-Identifier: MIT
//! One end of a connection that has a control stream, as its owner, its hand-shake and the watcher
//! share it: whether it is there, why it has ended, and that each end hears of the other's last word.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::control::{Arrived, Control, Message, Route, watch_for_silence};
use crate::error::{Error, Result};
use crate::status::StickyStatus;
use crate::sync::lock_plain as lock;

/// Ends a wait of the hand-shake.
type Cancel = Box<dyn Fn() + Send + Sync>;

pub(crate) struct ControlEnd {
    pub(crate) status: Arc<StickyStatus>,
    /// The rank at the other end, where it has one.
    pub(crate) rank: Option<usize>,
    /// Empty for a connection that leads to itself, and until the stream is there.
    control: OnceLock<Control>,
    ready: AtomicBool,
    /// The owner is gone.
    closing: AtomicBool,
    /// The other end was told of the end of the connection.
    told: AtomicBool,
    /// The other end has said goodbye.
    left: AtomicBool,
    cancel: Mutex<Option<Cancel>>,
}

impl ControlEnd {
    pub(crate) fn new(status: Arc<StickyStatus>, rank: Option<usize>) -> Self {
        Self {
            status,
            rank,
            control: OnceLock::new(),
            ready: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            told: AtomicBool::new(false),
            left: AtomicBool::new(false),
            cancel: Mutex::default(),
        }
    }

    /// Waits for the control stream.
    pub(crate) fn attach(&self, route: Route, stall_timeout: Duration) -> Result<()> {
        let control = match route {
            Route::Itself => return Ok(()),
            Route::Context(stream) => Control::new(stream),
            Route::Network(arrival) => {
                self.set_cancel(Some(arrival.cancel));
                let stream = (arrival.wait)(&|| self.given_up());
                self.set_cancel(None);
                let stream = stream?;
                watch_for_silence(&stream, stall_timeout)
                    .map_err(|error| Error::io("prepare a control stream", error))?;
                Control::new(stream)
            }
        };
        // Only the hand-shake sets it, once.
        let _ = self.control.set(control);
        Ok(())
    }

    #[cfg(feature = "ib")]
    pub(crate) fn control(&self) -> Option<&Control> {
        self.control.get()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(SeqCst)
    }

    pub(crate) fn set_ready(&self) {
        self.ready.store(true, SeqCst);
    }

    /// Whether the hand-shake need not go on.
    pub(crate) fn given_up(&self) -> bool {
        self.closing.load(SeqCst) || self.status.is_failed()
    }

    /// An error of the hand-shake, if it need not go on.
    #[cfg(feature = "ib")]
    pub(crate) fn check(&self) -> Result<()> {
        self.status.check()?;
        if self.closing.load(SeqCst) {
            return Err(self.peer_down("this end is closing"));
        }
        Ok(())
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
    pub(crate) fn close(&self) {
        self.closing.store(true, SeqCst);
        if let Some(cancel) = &*lock(&self.cancel) {
            cancel();
        }
    }

    /// Ends the connection with an error, unless it has ended already. The other end is not told yet.
    pub(crate) fn fail(&self, error: Error) {
        if !self.status.fail(error.clone()) {
            return;
        }
        if self.left.load(SeqCst) {
            tracing::debug!(%error, "a connection has ended");
        } else {
            tracing::warn!(%error, "a connection has failed");
        }
    }

    /// Tells the other end that the connection has failed or is dropped, once there is a way to.
    pub(crate) fn tell(&self) {
        let Some(control) = self.control.get() else {
            return;
        };
        if self.told.swap(true, SeqCst) {
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

    pub(crate) fn has_told(&self) -> bool {
        self.told.load(SeqCst)
    }

    pub(crate) fn peer_down(&self, cause: impl Into<String>) -> Error {
        Error::PeerDown {
            rank: self.rank,
            cause: cause.into(),
        }
    }

    /// Whether the other end has said goodbye.
    #[cfg(feature = "ib")]
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(SeqCst)
    }

    /// What has come from the other end, if it ends the connection.
    pub(crate) fn received(&self) -> Option<Error> {
        self.meaning(self.control.get()?.receive())
    }

    /// The other end's word, if it ends the connection.
    pub(crate) fn meaning(&self, arrived: Arrived) -> Option<Error> {
        let rank = self.rank;
        Some(match arrived {
            Arrived::Nothing => return None,
            Arrived::End(cause) => self.peer_down(cause),
            Arrived::Message(Message::Goodbye) => {
                self.left.store(true, SeqCst);
                self.peer_down("it has closed the connection")
            }
            Arrived::Message(Message::Failed(reason)) => Error::PeerFailed { rank, reason },
            Arrived::Message(_) => self.peer_down("it broke the protocol of the control stream"),
        })
    }

    /// What becomes readable when the other end has something to say, until this end has ended.
    pub(crate) fn stream(&self) -> Option<BorrowedFd<'_>> {
        (!self.has_told()).then(|| Some(self.control.get()?.as_fd()))?
    }
}
