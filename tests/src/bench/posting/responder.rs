// SPDX-License-Identifier: MIT
//! A CPU thread that sees posts and answers them, as a NIC or a proxy would see them.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, anyhow};

use super::memory::HostWords;

/// Where posts are seen.
#[derive(Clone, Copy)]
pub(super) enum Seen {
    /// The word changes with each post.
    Doorbell {
        /// Its number.
        word: usize,
    },
    /// The second word of slot n is set by post n.
    Slots {
        /// Number of the ring's first word.
        first: usize,
    },
}

/// The thread. It spins: how fast it answers is part of what is measured, and it lives for
/// milliseconds.
pub(super) struct Responder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Responder {
    /// Answers by counting posts in word `answer`.
    pub(super) fn start(words: &Arc<HostWords>, seen: Seen, answer: usize) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (words, stopped) = (words.clone(), stop.clone());
        let thread = thread::Builder::new()
            .name("responder".into())
            .spawn(move || answer_all(&words, seen, answer, &stopped))
            .context("start the thread that answers")?;
        Ok(Self { stop, thread })
    }

    pub(super) fn end(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        (self.thread.join()).map_err(|_| anyhow!("the thread that answers has panicked"))
    }
}

fn answer_all(words: &HostWords, seen: Seen, answer: usize, stop: &AtomicBool) {
    let mut posts = 0;
    let mut last = 0;
    while !stop.load(Ordering::Relaxed) {
        let new = match seen {
            Seen::Doorbell { word } => {
                let now = words.word(word).load(Ordering::Acquire);
                std::mem::replace(&mut last, now) != now
            }
            Seen::Slots { first } => words.word(first + 2 * posts + 1).load(Ordering::Acquire) != 0,
        };
        if new {
            posts += 1;
            words.word(answer).store(posts as u64, Ordering::Release);
        } else {
            hint::spin_loop();
        }
    }
}
