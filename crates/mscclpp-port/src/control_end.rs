// SPDX-License-Identifier: MIT
//! One end of a connection that has a control stream, as its owner, its hand-shake and the watcher
//! share it: whether it is there, why it has ended, and that each end hears of the other's last word.
//! What posts on the connection stands on it: the host over an HCA or CUDA IPC, or kernels.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use mscclpp_bootstrap::{Deadline, Deadlines};

use crate::control::{Arrived, Control, Message, Route, watch_for_silence};
use crate::ending::{join_within, wait_until};
use crate::error::{BARRIER, Error, Result};
use crate::status::StickyStatus;
use crate::sync::lock_plain as lock;
use crate::watcher::{Watched, Watcher};

/// Ends a wait of the hand-shake.
pub(crate) type Cancel = Box<dyn Fn() + Send + Sync>;

pub(crate) struct ControlEnd {
    pub(crate) status: Arc<StickyStatus>,
    /// The rank at the other end, where it has one.
    pub(crate) rank: Option<usize>,
    pub(crate) deadlines: Deadlines,
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
    pub(crate) fn new(
        status: Arc<StickyStatus>,
        rank: Option<usize>,
        deadlines: Deadlines,
    ) -> Self {
        Self {
            status,
            rank,
            deadlines,
            control: OnceLock::new(),
            ready: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            told: AtomicBool::new(false),
            left: AtomicBool::new(false),
            cancel: Mutex::default(),
        }
    }

    /// Waits for the control stream.
    pub(crate) fn attach(&self, route: Route) -> Result<()> {
        let control = match route {
            Route::Itself => return Ok(()),
            Route::Context(stream) => Control::new(stream),
            Route::Network(arrival) => {
                self.set_cancel(Some(arrival.cancel));
                let stream = (arrival.wait)(&|| self.given_up());
                self.set_cancel(None);
                // Why the connection has ended tells more than the stream that did not come.
                let stream = stream.map_err(|error| self.status.error().unwrap_or(error))?;
                watch_for_silence(&stream, self.deadlines.stall)
                    .map_err(|error| Error::io("prepare a control stream", error))?;
                Control::new(stream)
            }
        };
        // Only the hand-shake sets it, once.
        let _ = self.control.set(control);
        Ok(())
    }

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
    pub(crate) fn check(&self) -> Result<()> {
        self.status.check()?;
        if self.closing.load(SeqCst) {
            return Err(self.peer_down("this end is closing"));
        }
        Ok(())
    }

    /// What ends the wait that the hand-shake is about to begin; at once, if it need not begin.
    pub(crate) fn set_cancel(&self, cancel: Option<Cancel>) {
        let mut slot = lock(&self.cancel);
        if self.given_up()
            && let Some(cancel) = &cancel
        {
            cancel();
        }
        *slot = cancel;
    }

    /// The owner is going: waits for the stream by which the other end can be told, if there is to be
    /// one. Else that would go on trying until its deadline.
    pub(crate) fn linger(&self, deadline: Deadline) {
        wait_until(deadline, || {
            self.is_ready() || self.given_up() || self.control.get().is_some()
        });
    }

    /// The owner is gone, and what was posted is done. Ends the hand-shake and the watching of
    /// `watched`, which has this; stops what posts, by `stop`; waits for the end of the connection's
    /// own thread; and tells the other end. Takes [`Deadlines::teardown`] at most.
    pub(crate) fn leave(
        &self,
        watcher: &Watcher,
        watched: &Arc<dyn Watched>,
        thread: Option<JoinHandle<()>>,
        stop: impl FnOnce(),
    ) {
        self.closing.store(true, SeqCst);
        self.cancel();
        let teardown = Deadline::after(self.deadlines.teardown);
        watcher.remove(watched, teardown);
        // A thread that goes on after the hand-shake ends by this.
        stop();
        if let Some(thread) = thread {
            if !self.status.is_failed() {
                wait_until(teardown, || thread.is_finished() || self.status.is_failed());
                // Of a peer that is gone more can be ended.
                self.cancel();
            }
            join_within(thread, teardown, self.rank);
        }
        // The hand-shake may have added it meanwhile.
        watcher.remove(watched, teardown);
        self.tell();
    }

    fn cancel(&self) {
        if let Some(cancel) = &*lock(&self.cancel) {
            cancel();
        }
    }

    /// Ends the connection with an error, unless it has ended already; whether it had not. The other end
    /// is not told yet.
    pub(crate) fn fail(&self, error: Error) -> bool {
        if !self.status.fail(error.clone()) {
            return false;
        }
        if self.left.load(SeqCst) {
            tracing::debug!(%error, "a connection has ended");
        } else {
            tracing::warn!(%error, "a connection has failed");
        }
        true
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
            Some(Error::QueueRefused { .. }) => Message::Refused,
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
    #[cfg(any(feature = "cuda", feature = "ib"))]
    pub(crate) fn received(&self) -> Option<Error> {
        self.meaning(self.control.get()?.receive())
    }

    /// What the other end has said or done that ends the connection, also behind steps of the
    /// hand-shake that nobody has waited for yet.
    pub(crate) fn last_word(&self) -> Option<Error> {
        self.meaning(self.control.get()?.last()?)
    }

    /// The other end's word, if it ends the connection.
    pub(crate) fn meaning(&self, arrived: Arrived) -> Option<Error> {
        let rank = self.rank;
        Some(match arrived {
            Arrived::Nothing => return None,
            Arrived::End(cause) => self.peer_down(cause),
            Arrived::Message(Message::Goodbye) => {
                self.left.store(true, SeqCst);
                self.peer_down(format!("it has closed the connection: {BARRIER}"))
            }
            Arrived::Message(Message::Failed(reason)) => Error::PeerFailed { rank, reason },
            Arrived::Message(Message::Refused) => self.refused(),
            Arrived::Message(_) => self.peer_down("it broke the protocol of the control stream"),
        })
    }

    /// The other end's NIC has refused a request of this one.
    pub(crate) fn refused(&self) -> Error {
        Error::PeerFailed {
            rank: self.rank,
            reason: "it refused a request".into(),
        }
    }

    /// What becomes readable when the other end has something to say, until this end has ended.
    pub(crate) fn stream(&self) -> Option<BorrowedFd<'_>> {
        (!self.has_told()).then(|| Some(self.control.get()?.as_fd()))?
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    struct End(ControlEnd);

    impl Watched for End {
        fn look(&self) {}

        fn stream(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    /// Some waits of the hand-shake end for a peer that is gone alone, and that may become known only
    /// when this end is leaving already.
    #[test]
    fn a_death_that_is_told_while_leaving_ends_the_hand_shake() {
        let status = StickyStatus::new().unwrap();
        let control = ControlEnd::new(Arc::clone(&status), None, Deadlines::default());
        let end = Arc::new(End(control));
        let watcher = Watcher::new().unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let (asked, ends) = (Arc::clone(&status), Arc::clone(&ended));
        end.0.set_cancel(Some(Box::new(move || {
            ends.fetch_or(asked.is_failed(), SeqCst);
        })));
        let thread = thread::spawn(move || {
            while !ended.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let told = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            status.fail(Error::PeerDown {
                rank: Some(1),
                cause: "it has died".into(),
            });
        });
        let watched: Arc<dyn Watched> = end.clone();
        let begun = Instant::now();
        end.0.leave(&watcher, &watched, Some(thread), || {});
        assert!(begun.elapsed() < end.0.deadlines.teardown);
        told.join().unwrap();
    }

    /// Added after the watcher was told to let go, by a thread that ends in time.
    #[test]
    fn what_the_hand_shake_adds_last_is_let_go_too() {
        let deadlines = Deadlines::default();
        let status = StickyStatus::new().unwrap();
        let end = Arc::new(End(ControlEnd::new(status, None, deadlines)));
        let watcher = Arc::new(Watcher::new().unwrap());
        let stopped = Arc::new(AtomicBool::new(false));
        let (theirs, adds, may) = (end.clone(), watcher.clone(), stopped.clone());
        let thread = thread::spawn(move || {
            while !may.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(theirs.0.given_up());
            adds.add(theirs).unwrap();
        });
        let watched: Arc<dyn Watched> = end.clone();
        (end.0).leave(&watcher, &watched, Some(thread), || {
            stopped.store(true, SeqCst);
        });
        drop(watched);
        assert_eq!(Arc::strong_count(&end), 1);
    }
}
