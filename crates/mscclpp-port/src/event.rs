// SPDX-License-Identifier: MIT
//! Descriptors that wake a parked thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::sync::{AtomicBool, Ordering::SeqCst};

/// What a thread parks on.
trait Wake {
    /// Makes it readable.
    fn write(&self);
    /// Makes it unreadable.
    fn read(&self);
}

impl Wake for OwnedFd {
    fn write(&self) {
        // A full counter is readable too; nothing else can fail.
        let _ = rustix::io::write(self, &1u64.to_ne_bytes());
    }

    fn read(&self) {
        let _ = rustix::io::read(self, &mut [0u8; 8]);
    }
}

/// An event: readable from a ring until it is cleared.
///
/// Its flags are only ever swapped: of two swaps the later one sees all that came before the other.
pub(crate) struct Event<W = OwnedFd> {
    fd: W,
    /// Somebody may be parked; without, a ring costs no system call.
    armed: AtomicBool,
    /// The descriptor was rung and not yet cleared.
    rung: AtomicBool,
}

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self::on(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }
}

#[expect(private_bounds, reason = "a model has another")]
impl<W: Wake> Event<W> {
    fn on(fd: W) -> Self {
        Self {
            fd,
            armed: AtomicBool::new(false),
            rung: AtomicBool::new(false),
        }
    }

    /// Says that the caller is about to park. What it waits for must be looked at once more between
    /// this and the park.
    pub(crate) fn arm(&self) {
        // That look finds what is told of by a `ring_if_armed` before this; later ones ring.
        self.armed.swap(true, SeqCst);
    }

    /// Wakes whoever armed the event.
    pub(crate) fn ring_if_armed(&self) {
        if self.armed.swap(false, SeqCst) {
            self.ring();
        }
    }

    pub(crate) fn ring(&self) {
        self.fd.write();
        // After the write: a clear in between leaves the descriptor readable for one wake too many
        // and the next clear finds it.
        self.rung.swap(true, SeqCst);
    }

    /// Makes the descriptor unreadable; cheap when it was not rung.
    pub(crate) fn clear(&self) {
        if self.rung.swap(false, SeqCst) {
            self.fd.read();
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// In the place of a descriptor, which is the system's.
    #[derive(Default)]
    struct Modelled {
        count: Mutex<u64>,
        written: Condvar,
    }

    impl Wake for Modelled {
        fn write(&self) {
            *self.count.lock().unwrap() += 1;
            self.written.notify_all();
        }

        fn read(&self) {
            *self.count.lock().unwrap() = 0;
        }
    }

    impl Modelled {
        /// For ever if nobody writes: a model that hangs has failed.
        fn park(&self) {
            let mut count = self.count.lock().unwrap();
            while *count == 0 {
                count = self.written.wait(count).unwrap();
            }
        }

        fn is_readable(&self) -> bool {
            *self.count.lock().unwrap() > 0
        }
    }

    /// Nothing but the event says that there is news: a thread that parks on some, or is woken
    /// before it can see it, hangs. `ring`: by whom it is told, `arms`: whether it says that it parks.
    fn all_news_is_found(ringers: usize, arms: bool, ring: fn(&Event<Modelled>)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let event = Arc::new(Event::on(Modelled::default()));
            let news = Arc::new(AtomicUsize::new(0));
            let ringers: Vec<_> = (0..ringers)
                .map(|_| {
                    let (event, news) = (event.clone(), news.clone());
                    thread::spawn(move || {
                        news.fetch_add(1, Relaxed);
                        ring(&event);
                    })
                })
                .collect();
            let all = || news.load(Relaxed) == ringers.len();
            loop {
                event.clear();
                if all() {
                    break;
                }
                if arms {
                    event.arm();
                    if all() {
                        break;
                    }
                }
                event.fd.park();
                // A ring makes the descriptor readable before a clear does anything.
                thread::yield_now();
            }
            for ringer in ringers {
                ringer.join().unwrap();
            }
            // Otherwise nobody could ever park on it again.
            event.clear();
            assert!(!event.fd.is_readable(), "rung, and not to be cleared");
        });
    }

    #[test]
    fn loom_who_has_armed_an_event_is_woken_by_news() {
        for ringers in 1..=2 {
            all_news_is_found(ringers, true, Event::ring_if_armed);
        }
    }

    #[test]
    fn loom_a_clear_loses_no_later_ring() {
        for ringers in 1..=2 {
            all_news_is_found(ringers, false, Event::ring);
        }
    }

    /// As in a connection, whose I/O thread is rung either way.
    #[test]
    fn loom_an_event_is_rung_in_both_ways_at_once() {
        all_news_is_found(2, true, |event| {
            event.ring_if_armed();
            event.ring();
        });
    }
}
