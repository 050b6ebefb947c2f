// SPDX-License-Identifier: MIT
//! What others may do while a thread stops a proxy.

use std::sync::mpsc::channel;
use std::sync::{OnceLock, Weak};

use mscclpp_device::abi::Trigger;

use super::*;
use crate::testing::{Fake, PATIENCE, eventually, semaphore};
use crate::{ErrorCode, ProxyService};

/// A stop with this deadline ends when all is done, or not in a test's time.
const HOUR: Duration = Duration::from_secs(3600);
/// For a stop that is to give up.
const BRIEF: Duration = Duration::from_millis(100);

fn is_stopping(proxy: &Proxy) -> bool {
    matches!(&*proxy.lock(), State::Running(running) if running.outcome.is_none())
}

/// As a service's users and whoever reads its counters see it.
#[test]
fn a_stop_under_way_holds_up_neither_another_stop_nor_counters() {
    let service = ProxyService::new(4).unwrap();
    let (connection, fake) = Fake::connect(0);
    service.add_semaphore(semaphore(&connection)).unwrap();
    let proxy = &service.shared().proxy;
    let signal = Trigger::Signal { semaphore: 0 }.encode().unwrap();
    for round in 1..=2 {
        fake.set_full(true);
        service.start_proxy().unwrap();
        proxy.ring.try_push(signal).unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| service.stop_proxy_by(Deadline::after(HOUR)));
            eventually("the stop", || is_stopping(proxy));
            let (send, others) = channel();
            let service = &service;
            scope.spawn(move || {
                let counters = service.counters();
                let start = service.start_proxy();
                let second = service.stop_proxy_by(Deadline::after(BRIEF));
                let _ = send.send((counters, start, second));
            });
            let others = others.recv_timeout(PATIENCE);
            // Whatever became of them, the test ends.
            fake.set_full(false);
            first.join().unwrap().unwrap();
            let (counters, start, second) = others.expect("they wait for the first");
            assert!(counters.running);
            assert_eq!((counters.pushed, counters.taken), (round, round - 1));
            assert!(matches!(start, Err(Error::ProxyRunning)), "{start:?}");
            assert!(
                matches!(second, Err(Error::Timeout { waited: BRIEF, .. })),
                "{second:?}"
            );
        });
        assert!(!service.counters().running);
        assert_eq!(fake.ops().len() as u64, round);
    }
}

#[test]
fn stops_at_the_same_time_end_together() {
    let (proxy, open, _) = gate();
    proxy.start().unwrap();
    push(&proxy.ring, 0);
    thread::scope(|scope| {
        let stop = || proxy.stop(Deadline::after(PATIENCE));
        let first = scope.spawn(|| proxy.stop(Deadline::after(HOUR)));
        eventually("the stop", || is_stopping(&proxy));
        let others = [scope.spawn(stop), scope.spawn(stop)];
        open.store(true, Ordering::Relaxed);
        first.join().unwrap().unwrap();
        for other in others {
            other.join().unwrap().unwrap();
        }
    });
    assert_eq!(proxy.ring.tail(), 1);

    // The same when there is no proxy left.
    let (go, gone) = (Arc::new(AtomicBool::new(false)), "cannot do that");
    let until = Arc::clone(&go);
    let panics = move |_: ProxyTrigger| {
        assert!(!until.load(Ordering::Relaxed), "{gone}");
        ProxyHandlerResult::Hold
    };
    let proxy = Proxy::new(4, panics).unwrap();
    proxy.start().unwrap();
    push(&proxy.ring, 0);
    thread::scope(|scope| {
        let stop = || proxy.stop(Deadline::after(PATIENCE));
        let first = scope.spawn(|| proxy.stop(Deadline::after(HOUR)));
        eventually("the stop", || is_stopping(&proxy));
        let second = scope.spawn(stop);
        go.store(true, Ordering::Relaxed);
        for result in [first, second].map(|thread| thread.join().unwrap()) {
            let error = result.unwrap_err();
            assert!(error.to_string().contains(gone), "{error}");
        }
    });
}

/// A handler that asks the proxy that it serves, whoever stops it.
#[test]
fn a_handler_may_ask_a_proxy_that_is_being_stopped() {
    let asks: Arc<OnceLock<Weak<Proxy>>> = Arc::default();
    let (send, answers) = channel();
    let handler = {
        let asks = Arc::clone(&asks);
        move |_: ProxyTrigger| {
            let proxy = asks.get().unwrap().upgrade().unwrap();
            eventually("the stop", || is_stopping(&proxy));
            let answers = (proxy.is_running(), proxy.stop(Deadline::after(HOUR)));
            let _ = send.send(answers);
            ProxyHandlerResult::Continue
        }
    };
    let proxy = Arc::new(Proxy::new(4, handler).unwrap());
    asks.set(Arc::downgrade(&proxy)).unwrap();
    for round in 1..=2 {
        proxy.start().unwrap();
        push(&proxy.ring, 0);
        proxy.stop(Deadline::after(PATIENCE)).unwrap();
        assert_eq!(proxy.ring.tail(), round);
        let (running, stopped) = answers.recv_timeout(PATIENCE).unwrap();
        assert!(running);
        // It can hardly wait for its own thread; and it has not ended the proxy.
        let error = stopped.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidUsage, "{error}");
    }
}

#[test]
fn a_handler_that_stops_its_proxy_ends_it() {
    let asks: Arc<OnceLock<Weak<Proxy>>> = Arc::default();
    let (send, answers) = channel();
    let handler = {
        let asks = Arc::clone(&asks);
        move |_: ProxyTrigger| {
            let proxy = asks.get().unwrap().upgrade().unwrap();
            let stopped = proxy.stop(Deadline::after(HOUR));
            let _ = send.send(stopped);
            ProxyHandlerResult::Continue
        }
    };
    let proxy = Arc::new(Proxy::new(4, handler).unwrap());
    asks.set(Arc::downgrade(&proxy)).unwrap();
    proxy.start().unwrap();
    push(&proxy.ring, 0);
    let stopped = answers.recv_timeout(PATIENCE).unwrap();
    for result in [stopped, proxy.stop(Deadline::after(PATIENCE))] {
        let error = result.unwrap_err();
        assert!(error.to_string().contains("its own handler"), "{error}");
    }
    assert_eq!(proxy.status(), Status::Aborted);
    assert!(!proxy.is_running());
}
