// SPDX-License-Identifier: MIT
//! Data races, as ThreadSanitizer sees them (`cargo xtask test-cpu --sanitize=thread`).
//!
//! In such a build every test in direct mode is one: kernels, the NIC in software and the host are
//! threads of one program, and payload is plain memory. Here are checks that it would report a race
//! if there were one: each runs in a process of its own with something spoilt.

use std::cell::UnsafeCell;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mutants::{Mutant, build};
use crate::queue::stale;
use crate::support::{Kernels, Outcome, ensure, sanitizer};
use crate::{fifo, semaphore};

const CHILD: &str = "MSCCLPP_TEST_PLANTED_RACE";

/// Whether this process is the one in which the race is planted; if not, starts it and looks at
/// what is said of it.
fn planted(test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    if sanitizer().as_deref() != Some("thread") {
        println!(
            "SKIP races::{test}: this build has no ThreadSanitizer; cargo xtask test-cpu \
             --sanitize=thread makes one"
        );
        return false;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("races::{test}"), "--nocapture"])
        .args(["--test-threads", "1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    // What it exits with after a report.
    assert_eq!(output.status.code(), Some(66), "{text}");
    assert!(
        text.contains("WARNING: ThreadSanitizer: data race"),
        "{text}"
    );
    false
}

/// A word handed from one thread to another.
struct Handed {
    word: UnsafeCell<u64>,
    there: AtomicBool,
    taken: AtomicBool,
}

// SAFETY: who finds `there` set reads the word, which is written before that; in the child that
// plants a race there is one, of which nothing depends on the outcome.
unsafe impl Sync for Handed {}

impl Handed {
    fn give(&self, order: Ordering) {
        // SAFETY: the other thread reads it when the flag is set.
        unsafe { *self.word.get() = 7 };
        self.there.store(true, order);
        // What a thread that has ended did is soon forgotten.
        while !self.taken.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }

    fn take(&self) -> u64 {
        while !self.there.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: it was written before the flag was set.
        let seen = unsafe { *self.word.get() };
        self.taken.store(true, Ordering::Relaxed);
        seen
    }
}

/// In Rust: a word is handed over by a flag.
fn hand_over(order: Ordering) -> Outcome {
    let handed = Handed {
        word: UnsafeCell::new(0),
        there: AtomicBool::new(false),
        taken: AtomicBool::new(false),
    };
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| handed.give(order));
        handed.take()
    });
    ensure(seen == 7, || format!("{seen}"))
}

#[test]
fn a_flag_that_is_not_released_is_reported() {
    hand_over(Ordering::Release).unwrap();
    if planted("a_flag_that_is_not_released_is_reported") {
        hand_over(Ordering::Relaxed).unwrap();
    }
}

/// The header spoilt, and the check under which the race shows. What the check finds is not asked
/// for: on x86 it mostly finds nothing.
fn spoilt(mutant: Mutant, test: &str) {
    let child = std::env::var_os(CHILD).is_some();
    if !child && sanitizer().as_deref() == Some("thread") {
        // As the headers are, it holds, and nothing is reported.
        (mutant.check)(&Kernels::of(mutant.kernels)).unwrap();
    }
    if planted(test) {
        let (_build, kernels): (_, Kernels) = build(&mutant);
        let _ = (mutant.check)(&kernels);
    }
}

#[test]
fn a_trigger_that_is_not_released_is_reported() {
    let mutant = Mutant {
        header: "memory_host.hpp",
        from: "store<scopeSystem>(address + 1, second, memoryOrderRelease);",
        to: "store<scopeSystem>(address + 1, second, memoryOrderRelaxed);",
        kernels: "fifo",
        check: fifo::payload_behind_triggers,
    };
    spoilt(mutant, "a_trigger_that_is_not_released_is_reported");
}

#[test]
fn a_doorbell_without_fences_before_it_is_reported() {
    let mutant = Mutant {
        // All of them: behind the next one the NIC may come late enough.
        header: "memory_host.hpp",
        from: "    sanitizer::fence(order);",
        to: "    (void)order;",
        kernels: "queue",
        check: stale::received,
    };
    spoilt(mutant, "a_doorbell_without_fences_before_it_is_reported");
}

#[test]
fn a_signal_that_is_not_acquired_is_reported() {
    let mutant = Mutant {
        header: "semaphore_device.hpp",
        from: "atomicLoad<uint64_t, scopeSystem>(inboundToken, memoryOrderAcquire)",
        to: "atomicLoad<uint64_t, scopeSystem>(inboundToken, memoryOrderRelaxed)",
        kernels: "semaphore",
        check: semaphore::datum_behind_a_signal,
    };
    spoilt(mutant, "a_signal_that_is_not_acquired_is_reported");
}
