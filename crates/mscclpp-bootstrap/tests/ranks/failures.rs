// SPDX-License-Identifier: MIT
//! Ranks that leave. Those that die are in `processes`.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{
    Bootstrap, BootstrapError, FailureKind, FailureObserver, PeerFailure, Tag,
};

use crate::body::{run_joined, secs, soon};

#[derive(Default)]
struct Seen(Mutex<Vec<(usize, FailureKind)>>);

impl FailureObserver for Seen {
    fn peer_failed(&self, failure: &PeerFailure) {
        self.0.lock().unwrap().push((failure.rank, failure.kind));
    }
}

#[test]
fn waiting_for_a_rank_that_leaves_ends_at_once_and_is_reported() {
    run_joined(3, |b| {
        let seen = Arc::new(Seen::default());
        let weak = Arc::downgrade(&seen);
        b.observe_failures(weak);
        match b.rank() {
            2 => {
                // Leaves while others wait for it.
                thread::sleep(Duration::from_millis(300));
            }
            _ => {
                let start = Instant::now();
                let error = b.recv(2, Tag::user(0), soon()).unwrap_err();
                assert!(
                    matches!(error, BootstrapError::PeerLeft { rank: 2, .. }),
                    "{error}"
                );
                assert!(start.elapsed() < secs(2));
                assert!(b.known_failure().is_none());
                assert_eq!(b.failure_of(2).unwrap().kind, FailureKind::Left);
                // Told on a thread of the bootstrap.
                let told = Instant::now();
                while seen.0.lock().unwrap().is_empty() && told.elapsed() < secs(2) {
                    thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(*seen.0.lock().unwrap(), [(2, FailureKind::Left)]);
                b.group_barrier(&[0, 1]).unwrap();
            }
        }
    });
}

#[test]
fn leaving_in_good_order_is_told_to_nobody() {
    let all: Vec<Arc<Seen>> = run_joined(5, |b| {
        let seen = Arc::new(Seen::default());
        b.observe_failures(Arc::downgrade(&seen) as _);
        b.barrier().unwrap();
        // Everybody leaves at another moment.
        thread::sleep(Duration::from_millis(20 * b.rank() as u64));
        drop(b);
        seen
    });
    for seen in all {
        assert!(seen.0.lock().unwrap().is_empty());
    }
}

#[test]
fn leaving_is_quick() {
    let took = run_joined(8, |b| {
        b.all_gather(&[1]).unwrap();
        b.barrier().unwrap();
        let start = Instant::now();
        drop(b);
        start.elapsed()
    });
    for took in took {
        assert!(took < Duration::from_millis(1500), "{took:?}");
    }
}
