// SPDX-License-Identifier: MIT
//! One thread with a tokio runtime on it, behind a blocking object.

use std::io;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::BootstrapError;

/// A thread that drives a current-thread runtime until this is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread. Before it ends, it runs what `at_end` returns.
    pub(crate) fn start<F>(
        name: &str,
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
            })
            .map_err(|e| failed("starting a thread", e))?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
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
        if thread.thread().id() != thread::current().id() && thread.join().is_err() {
            tracing::warn!("the background thread of a bootstrap object panicked");
        }
    }
}
