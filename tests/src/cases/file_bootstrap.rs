// SPDX-License-Identifier: MIT
//! A bootstrap as a user might write one: messages are files in a shared directory.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag};

/// The four methods that a bootstrap must have, and no more.
pub(crate) struct FileBootstrap {
    directory: PathBuf,
    rank: usize,
    world: usize,
    /// How many messages went to, and came from, a rank with a tag.
    sent: Mutex<HashMap<(usize, u64), u64>>,
    received: Mutex<HashMap<(usize, u64), u64>>,
}

impl FileBootstrap {
    pub(crate) fn new(directory: PathBuf, rank: usize, world: usize) -> Self {
        Self {
            directory,
            rank,
            world,
            sent: Mutex::default(),
            received: Mutex::default(),
        }
    }

    fn file(&self, from: usize, to: usize, tag: Tag, number: u64) -> PathBuf {
        self.directory
            .join(format!("{from}-{to}-{:x}-{number}", tag.value()))
    }
}

/// The number of the next message of a stream.
fn next(counts: &Mutex<HashMap<(usize, u64), u64>>, peer: usize, tag: Tag) -> u64 {
    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    let count = counts.entry((peer, tag.value())).or_insert(0);
    *count += 1;
    *count
}

impl Bootstrap for FileBootstrap {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world
    }

    fn send(
        &self,
        peer: usize,
        tag: Tag,
        data: &[u8],
        _deadline: Deadline,
    ) -> Result<(), BootstrapError> {
        let file = self.file(self.rank, peer, tag, next(&self.sent, peer, tag));
        let hidden = file.with_extension("part");
        let written = fs::write(&hidden, data).and_then(|()| fs::rename(&hidden, &file));
        written.map_err(|source| BootstrapError::Io {
            operation: format!("write {}", file.display()),
            hint: String::new(),
            source,
        })
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        let file = self.file(peer, self.rank, tag, next(&self.received, peer, tag));
        loop {
            if let Ok(data) = fs::read(&file) {
                // Nobody reads it again; what stays goes with the directory.
                let _ = fs::remove_file(&file);
                return Ok(data);
            }
            if deadline.expired() {
                return Err(BootstrapError::Timeout {
                    rank: self.rank,
                    operation: format!("waiting for the file {}", file.display()),
                    waiting_for: vec![peer],
                    waited: deadline.budget(),
                    hint: String::new(),
                });
            }
            thread::sleep(Duration::from_micros(300));
        }
    }
}
