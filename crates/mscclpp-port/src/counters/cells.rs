// SPDX-License-Identifier: MIT
//! Where counts are kept while work goes on.
//!
//! A count belongs to who posts. It orders nothing and publishes nothing, so all accesses are
//! relaxed, and readers never hold a writer up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{Pauses, Posts};

/// A count that only grows.
#[derive(Debug, Default)]
pub(crate) struct Cell(AtomicU64);

impl Cell {
    /// Adds, where there is one writer at a time: a load and a store.
    #[inline]
    pub(crate) fn grow(&self, by: u64) {
        self.set(self.get().wrapping_add(by));
    }

    /// Adds, where there may be several writers.
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Relaxed);
    }

    /// Takes over a count that its one writer keeps elsewhere.
    #[inline]
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How often something had to wait, and for how long.
#[derive(Debug, Default)]
pub(crate) struct PauseCells {
    times: Cell,
    nanos: Cell,
}

impl PauseCells {
    /// One wait has begun. Of the one writer.
    pub(crate) fn begin(&self) {
        self.times.grow(1);
    }

    /// It has lasted so much longer. Of the one writer.
    pub(crate) fn lengthen(&self, time: Duration) {
        self.nanos.grow(nanos(time));
    }

    /// A whole wait, of any thread.
    pub(crate) fn add(&self, time: Duration) {
        self.times.add(1);
        self.nanos.add(nanos(time));
    }

    pub(crate) fn read(&self) -> Pauses {
        Pauses {
            times: self.times.get(),
            time: Duration::from_nanos(self.nanos.get()),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What one poster has posted on one connection: a proxy's thread, or all threads that call the
/// connection. On lines of its own, so that a poster shares none with another.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct PostCells {
    pub(crate) puts: Cell,
    pub(crate) signals: Cell,
    pub(crate) puts_with_signal: Cell,
    pub(crate) accumulates: Cell,
    pub(crate) flushes: Cell,
    pub(crate) flushes_done: Cell,
    pub(crate) bytes: Cell,
    pub(crate) backpressure: PauseCells,
}

impl PostCells {
    /// Adds what another poster has posted, that posts no more.
    pub(crate) fn take_over(&self, other: &Self) {
        let Posts {
            puts,
            signals,
            puts_with_signal,
            accumulates,
            flushes,
            flushes_done,
            bytes,
            backpressure,
        } = other.read();
        self.puts.add(puts);
        self.signals.add(signals);
        self.puts_with_signal.add(puts_with_signal);
        self.accumulates.add(accumulates);
        self.flushes.add(flushes);
        self.flushes_done.add(flushes_done);
        self.bytes.add(bytes);
        self.backpressure.times.add(backpressure.times);
        self.backpressure.nanos.add(nanos(backpressure.time));
    }

    pub(crate) fn read(&self) -> Posts {
        Posts {
            puts: self.puts.get(),
            signals: self.signals.get(),
            puts_with_signal: self.puts_with_signal.get(),
            accumulates: self.accumulates.get(),
            flushes: self.flushes.get(),
            flushes_done: self.flushes_done.get(),
            bytes: self.bytes.get(),
            backpressure: self.backpressure.read(),
        }
    }
}

/// What a transport has done, under its own lock.
#[derive(Debug, Default)]
pub(crate) struct LinkCells {
    pub(crate) doorbells: Cell,
    /// Over Ethernet they are the acknowledged flushes.
    #[cfg(any(feature = "ib", feature = "cuda"))]
    pub(crate) completions: Cell,
    pub(crate) retries: Cell,
}

/// What a transport tells of itself; `None` for what it does not know.
#[derive(Debug, Default)]
pub(crate) struct LinkCounts {
    pub(crate) doorbells: Option<u64>,
    pub(crate) completions: Option<u64>,
    pub(crate) retries: Option<u64>,
    pub(crate) queue: Option<super::QueueCounters>,
}
