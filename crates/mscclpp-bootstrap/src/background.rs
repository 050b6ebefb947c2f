// SPDX-License-Identifier: MIT
//! One thread with a tokio runtime on it, behind a blocking object.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::BootstrapError;

/// A thread that drives a current-thread runtime until this is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Closed when all that the thread ran is gone. Locked by nobody: a receiver is no [`Sync`].
    ended: Mutex<Receiver<()>>,
    ends_within: Duration,
}

impl Background {
    /// Starts the thread. Before it ends, it runs what `at_end` returns. One that does not end
    /// within the time is left behind: a call of the system may hang, such as on a file system
    /// that does not answer.
    pub(crate) fn start<F>(
        name: &str,
        ends_within: Duration,
        at_end: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self, BootstrapError>
    where
        F: Future<Output = ()>,
    {
        let failed = |what: &str, error: io::Error| BootstrapError::io(what, error);
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name(name)
            .build()
            .map_err(|e| failed("starting a tokio runtime", e))?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (at_its_end, ended) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    // Both a message and a dropped sender mean: stop.
                    let _ = stopped.await;
                    at_end().await;
                });
                // Look-ups of names may still block; nobody waits for them.
                runtime.shutdown_background();
                drop::<mpsc::Sender<()>>(at_its_end);
            })
            .map_err(|e| failed("starting a thread", e))?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
            ended: Mutex::new(ended),
            ends_within,
        })
    }

    /// For starting tasks on the thread.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else {
            return;
        };
        // The last owner may be a task of the thread itself, which can not wait
        // for its own end.
        if thread.thread().id() == thread::current().id() {
            return;
        }
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(self.ends_within) == Err(RecvTimeoutError::Timeout) {
            let name = thread.thread().name().unwrap_or_default();
            let waited = self.ends_within;
            tracing::warn!(name, ?waited, "a thread does not end: it is left behind");
        } else if thread.join().is_err() {
            tracing::warn!("the background thread of a bootstrap object panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_thread_that_hangs_is_left_behind_when_the_time_is_up() {
        let brief = Duration::from_millis(50);
        let background = Background::start("hangs", brief, || async {}).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let (hangs, it_hangs) = mpsc::channel();
        let (ended, end) = mpsc::channel();
        background.handle().spawn(async move {
            hangs.send(()).unwrap();
            let _ = held.recv();
            ended.send(()).unwrap();
        });
        it_hangs.recv_timeout(PATIENCE).unwrap();
        let (dropped, drops) = mpsc::channel();
        thread::spawn(move || {
            drop(background);
            dropped.send(()).unwrap();
        });
        drops.recv_timeout(PATIENCE).unwrap();
        drop(release);
        end.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn what_is_done_at_the_end_is_waited_for() {
        let (done, at_end) = mpsc::channel();
        let background = Background::start("ends", PATIENCE, || async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            done.send(()).unwrap();
        });
        drop(background.unwrap());
        assert_eq!(at_end.try_recv(), Ok(()));
    }
}
