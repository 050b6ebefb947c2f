// SPDX-License-Identifier: MIT
//! The thread that notices what happens to the connections of a context whose data it never sees: a
//! failed queue, the last word of the other end, its death.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mscclpp_bootstrap::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ending::join_within;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::gpu_queue::GpuQueueProvider;

/// It looks so often even when nothing tells it to: another context may have taken the news of an HCA
/// that both use.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is watched: one end of such a connection.
pub(crate) trait Watched: Send + Sync {
    /// Looks, without waiting, whether something has ended the connection. Called when something may
    /// have happened, and every now and then.
    fn look(&self);

    /// What becomes readable when the other end has something to say, until the connection ends.
    fn stream(&self) -> Option<BorrowedFd<'_>>;

    /// The HCA that has news of it.
    fn hca(&self) -> Option<&Arc<dyn GpuQueueProvider>> {
        None
    }
}

/// One thread for all such connections of a context. It runs while there are some.
pub(crate) struct Watcher {
    shared: Arc<Shared>,
}

struct Shared {
    wake: Event,
    state: Mutex<State>,
    /// A round is over.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ends: Vec<Arc<dyn Watched>>,
    thread: Option<JoinHandle<()>>,
    /// The thread is looking at ends that may not be in the list any more.
    looking: bool,
    rounds: u64,
}

impl Watcher {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared {
                wake: Event::new().map_err(|error| Error::io("make an eventfd", error))?,
                state: Mutex::default(),
                changed: Condvar::new(),
            }),
        })
    }

    /// Watches a connection from now on.
    pub(crate) fn add(&self, end: Arc<dyn Watched>) -> Result<()> {
        let mut state = self.shared.lock();
        if state.thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new()
                .name("mscclpp-watch".into())
                .spawn(move || shared.run())
                .map_err(|error| Error::io("start the thread that watches queues", error))?;
            state.thread = Some(thread);
        }
        state.ends.push(end);
        drop(state);
        self.shared.wake.ring();
        Ok(())
    }

    /// Lets go of a connection. When this returns, the thread does not have it any more, unless a call
    /// of a driver has kept it until the deadline.
    pub(crate) fn remove(&self, end: &Arc<dyn Watched>, deadline: Deadline) {
        let mut state = self.shared.lock();
        let known = state.ends.len();
        state.ends.retain(|other| !Arc::ptr_eq(other, end));
        if state.ends.len() == known {
            return;
        }
        let thread = if state.ends.is_empty() {
            state.thread.take()
        } else {
            None
        };
        self.shared.wake.ring();
        let round = state.rounds;
        let busy = |state: &mut State| state.looking && state.rounds == round;
        let waited = (self.shared.changed).wait_timeout_while(state, deadline.remaining(), busy);
        drop(waited);
        if let Some(thread) = thread {
            join_within(thread, deadline, None);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at everything whenever something may have happened; ends with the last connection.
    fn run(&self) {
        let this = thread::current().id();
        loop {
            self.wake.clear();
            let mut state = self.lock();
            // Without connections its handle was taken, and perhaps given to a successor since.
            let mine = (state.thread.as_ref()).is_some_and(|thread| thread.thread().id() == this);
            if !mine {
                return;
            }
            let ends = state.ends.clone();
            state.looking = true;
            drop(state);

            let hcas = hcas(&ends);
            for hca in &hcas {
                hca.take_news();
            }
            for end in &ends {
                end.look();
            }
            self.park(&ends, &hcas);
            drop(hcas);
            drop(ends);

            let mut state = self.lock();
            state.looking = false;
            state.rounds += 1;
            drop(state);
            self.changed.notify_all();
        }
    }

    fn park(&self, ends: &[Arc<dyn Watched>], hcas: &[&Arc<dyn GpuQueueProvider>]) {
        let news = hcas.iter().filter_map(|hca| hca.news());
        let words = ends.iter().filter_map(|end| end.stream());
        let mut fds: Vec<PollFd<'_>> = std::iter::once(self.wake.as_fd())
            .chain(news)
            .chain(words)
            .map(|fd: BorrowedFd<'_>| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: LOOK_EVERY.subsec_nanos().into(),
        };
        if let Err(errno) = poll(&mut fds, Some(&time)) {
            tracing::debug!(%errno, "cannot poll control streams");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Each HCA once.
fn hcas(ends: &[Arc<dyn Watched>]) -> Vec<&Arc<dyn GpuQueueProvider>> {
    let mut hcas: Vec<&Arc<dyn GpuQueueProvider>> = Vec::new();
    for end in ends {
        if let Some(hca) = end.hca()
            && !hcas.iter().any(|other| Arc::ptr_eq(other, hca))
        {
            hcas.push(hca);
        }
    }
    hcas
}
