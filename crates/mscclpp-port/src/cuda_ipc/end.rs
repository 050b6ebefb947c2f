// SPDX-License-Identifier: MIT
//! One end of a connection over CUDA IPC, as its owner, its hand-shake and the watcher share it.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use super::transport::Posts;
use crate::context::ContextId;
use crate::control_end::ControlEnd;
use crate::counters::LinkCells;
use crate::error::{Error, Result};
use crate::sync::lock_plain as lock;
use crate::watcher::Watched;

pub(super) struct IpcEnd {
    pub(super) posts: Mutex<Posts>,
    pub(super) counts: Arc<LinkCells>,
    /// The context at the other end.
    pub(super) peer: ContextId,
    pub(super) control: ControlEnd,
}

impl IpcEnd {
    pub(super) fn new(posts: Posts, peer: ContextId, control: ControlEnd) -> Self {
        Self {
            counts: Arc::clone(posts.counts()),
            posts: Mutex::new(posts),
            peer,
            control,
        }
    }

    /// Does something with the posts. An error other than a full queue ends the connection.
    pub(super) fn with_posts<T>(&self, act: impl FnOnce(&mut Posts) -> Result<T>) -> Result<T> {
        self.control.status.check()?;
        let mut posts = lock(&self.posts);
        let done = act(&mut posts);
        drop(posts);
        done.map_err(|error| match error {
            Error::QueueFull { .. } => error,
            error => {
                self.fail(error.clone());
                // Somebody else may have been first.
                self.control.status.error().unwrap_or(error)
            }
        })
    }

    /// Ends the connection with an error, unless it has ended already, and tells the other end.
    pub(super) fn fail(&self, error: Error) {
        self.control.fail(error);
        self.control.tell();
    }
}

impl Watched for IpcEnd {
    fn look(&self) {
        if self.control.has_told() {
            return;
        }
        if self.control.status.is_failed() {
            // Somebody else knew first.
            self.control.tell();
        } else if let Some(error) = self.control.received() {
            self.fail(error);
        }
    }

    fn stream(&self) -> Option<BorrowedFd<'_>> {
        self.control.stream()
    }
}
