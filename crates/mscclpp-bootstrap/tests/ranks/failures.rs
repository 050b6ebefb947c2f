// SPDX-License-Identifier: MIT
//! Ranks that leave. Those that die are in `processes`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{
    Bootstrap, BootstrapError, FailureKind, FailureObserver, PeerFailure, Tag, TcpBootstrap,
};

use crate::body::{run_joined, secs, soon};
use crate::processes::Told;

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

#[test]
fn a_rank_that_leaves_while_others_connect_to_it_is_not_taken_for_dead() {
    for _ in 0..20 {
        run_joined(4, |b| {
            b.barrier().unwrap();
            if b.rank() == 1 {
                return;
            }
            // Ranks 2 and 3 have no connection to it; they begin one now.
            let start = Instant::now();
            let error = b.recv(1, Tag::user(1), soon()).unwrap_err();
            assert!(
                matches!(error, BootstrapError::PeerLeft { rank: 1, .. }),
                "{error}"
            );
            assert!(start.elapsed() < secs(2), "{:?}", start.elapsed());
            assert!(b.known_failure().is_none());
            b.group_barrier(&[0, 2, 3]).unwrap();
        });
    }
}

/// Waits for all of these ranks, which leave, one after the other.
fn miss(b: &TcpBootstrap, ranks: &[usize]) {
    for rank in ranks {
        let error = b.recv(*rank, Tag::user(0), soon()).unwrap_err();
        assert_eq!(error.gone_rank(), Some(*rank), "{error}");
    }
}

fn ranks(told: &[PeerFailure]) -> Vec<usize> {
    told.iter().map(|failure| failure.rank).collect()
}

/// Also when it is told of those that were gone before, on the thread that registers.
#[test]
fn an_observer_that_panics_keeps_nobody_from_hearing_of_a_failure() {
    #[derive(Default)]
    struct Panics(AtomicUsize);
    impl FailureObserver for Panics {
        fn peer_failed(&self, failure: &PeerFailure) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("a test's observer cannot bear that {failure}");
        }
    }
    run_joined(3, |b| {
        if b.rank() != 0 {
            return;
        }
        let (panics, told) = (Arc::new(Panics::default()), Arc::new(Told::default()));
        b.observe_failures(Arc::downgrade(&panics) as _);
        b.observe_failures(Arc::downgrade(&told) as _);
        miss(&b, &[1, 2]);
        assert_eq!(ranks(&told.wait_for(2, secs(20))), [1, 2]);
        let late = (Arc::new(Panics::default()), Arc::new(Told::default()));
        b.observe_failures(Arc::downgrade(&late.0) as _);
        b.observe_failures(Arc::downgrade(&late.1) as _);
        assert_eq!(ranks(&late.1.now()), [1, 2]);
        for panics in [panics, late.0] {
            let start = Instant::now();
            while panics.0.load(Ordering::SeqCst) < 2 && start.elapsed() < secs(20) {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(panics.0.load(Ordering::SeqCst), 2, "it, too, hears of each");
        }
        assert_eq!(told.now().len(), 2);
    });
}

/// Nor does it hold up the end of the bootstrap.
#[test]
fn an_observer_that_waits_keeps_nobody_from_hearing_of_a_failure() {
    struct Waits {
        /// Until what it is for has come, or the test is over.
        until: Mutex<mpsc::Receiver<()>>,
        told: Told,
    }
    impl FailureObserver for Waits {
        fn peer_failed(&self, failure: &PeerFailure) {
            let _ = self.until.lock().unwrap().recv_timeout(secs(30));
            self.told.peer_failed(failure);
        }
    }
    run_joined(4, |b| {
        if b.rank() != 0 {
            return;
        }
        let waits = || {
            let (go_on, until) = mpsc::channel();
            let (until, told) = (Mutex::new(until), Told::default());
            (go_on, Arc::new(Waits { until, told }))
        };
        let (until_told, until_dropped) = (waits(), waits());
        let told = Arc::new(Told::default());
        b.observe_failures(Arc::downgrade(&until_told.1) as _);
        b.observe_failures(Arc::downgrade(&until_dropped.1) as _);
        b.observe_failures(Arc::downgrade(&told) as _);
        miss(&b, &[1, 2]);
        assert_eq!(ranks(&told.wait_for(2, secs(20))), [1, 2]);
        assert!(until_told.1.told.now().is_empty());
        // What came while it waited it hears then, in the same order.
        drop(until_told.0);
        miss(&b, &[3]);
        for told in [&*told, &until_told.1.told] {
            assert_eq!(ranks(&told.wait_for(3, secs(20))), [1, 2, 3]);
        }
        drop(b);
        assert!(until_dropped.1.told.now().is_empty());
        drop(until_dropped.0);
    });
}
