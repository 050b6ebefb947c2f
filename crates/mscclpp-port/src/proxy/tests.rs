// SPDX-License-Identifier: MIT
mod stopping;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

const SHORT: Duration = Duration::from_secs(10);

fn trigger(value: u64) -> ProxyTrigger {
    ProxyTrigger {
        fst: value,
        snd: value,
    }
}

fn push(ring: &Ring, value: u64) -> u64 {
    let until = Instant::now() + SHORT;
    loop {
        if let Some(position) = ring.try_push(trigger(value)) {
            return position;
        }
        assert!(Instant::now() < until, "no room");
        thread::yield_now();
    }
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + SHORT;
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A proxy that counts, and checks that values come in order.
fn counting(fifo_size: usize) -> (Proxy, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&count);
    let proxy = Proxy::new(fifo_size, move |trigger: ProxyTrigger| {
        assert_eq!(trigger.fst, seen.fetch_add(1, Ordering::Relaxed));
        ProxyHandlerResult::Continue
    });
    (proxy.unwrap(), count)
}

#[test]
fn triggers_are_executed_in_push_order() {
    let (proxy, count) = counting(8);
    proxy.start().unwrap();
    for value in 0..10_000 {
        assert_eq!(push(&proxy.ring, value), value);
    }
    proxy.stop(Deadline::after(SHORT)).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 10_000);
}

#[test]
fn stopping_executes_what_was_pushed_and_aborts_the_fifo() {
    let (proxy, count) = counting(64);
    for value in 0..40 {
        push(&proxy.ring, value);
    }
    assert_eq!(count.load(Ordering::Relaxed), 0, "not started");
    proxy.start().unwrap();
    assert_eq!(proxy.status(), Status::Ok);
    assert!(matches!(proxy.start(), Err(Error::ProxyRunning)));
    proxy.stop(Deadline::after(SHORT)).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 40);
    assert_eq!(proxy.status(), Status::Aborted);
    proxy.stop(Deadline::after(SHORT)).unwrap();
}

#[test]
fn a_stopped_proxy_starts_again_and_goes_on() {
    let (proxy, count) = counting(4);
    for round in 0..5 {
        proxy.start().unwrap();
        assert_eq!(proxy.status(), Status::Ok);
        push(&proxy.ring, 2 * round);
        proxy.stop(Deadline::after(SHORT)).unwrap();
        push(&proxy.ring, 2 * round + 1);
    }
    assert_eq!(count.load(Ordering::Relaxed), 9);
}

#[test]
fn positions_given_up_while_stopped_make_a_restart_impossible() {
    let (proxy, _) = counting(2);
    for _ in 0..3 {
        proxy.ring.take();
    }
    let error = proxy.start().unwrap_err();
    assert!(
        matches!(error, Error::FifoBroken { head: 3, tail: 0 }),
        "{error}"
    );
}

/// Holds its triggers until told to go on.
struct Gate {
    open: Arc<AtomicBool>,
    progressed: Arc<AtomicU64>,
}

impl ProxyHandler for Gate {
    fn handle(&mut self, _trigger: ProxyTrigger, _position: u64) -> ProxyHandlerResult {
        if self.open.load(Ordering::Relaxed) {
            ProxyHandlerResult::Continue
        } else {
            ProxyHandlerResult::Hold
        }
    }

    fn progress(&mut self) -> ProxyProgress {
        self.progressed.fetch_add(1, Ordering::Relaxed);
        ProxyProgress::default()
    }
}

fn gate() -> (Proxy, Arc<AtomicBool>, Arc<AtomicU64>) {
    let open = Arc::new(AtomicBool::new(false));
    let progressed = Arc::new(AtomicU64::new(0));
    let handler = Gate {
        open: Arc::clone(&open),
        progressed: Arc::clone(&progressed),
    };
    (Proxy::new(4, handler).unwrap(), open, progressed)
}

#[test]
fn a_held_trigger_is_offered_again_while_progress_goes_on() {
    let (proxy, open, progressed) = gate();
    proxy.start().unwrap();
    push(&proxy.ring, 0);
    eventually("progress under a held trigger", || {
        progressed.load(Ordering::Relaxed) > 100
    });
    assert_eq!(proxy.ring.tail(), 0);
    open.store(true, Ordering::Relaxed);
    eventually("the trigger", || proxy.ring.tail() == 1);
}

#[test]
fn a_stop_that_cannot_drain_ends_at_its_deadline() {
    let (proxy, open, _) = gate();
    proxy.start().unwrap();
    push(&proxy.ring, 0);
    push(&proxy.ring, 1);
    let begin = Instant::now();
    let error = proxy
        .stop(Deadline::after(Duration::from_millis(50)))
        .unwrap_err();
    assert!(
        matches!(error, Error::NotDrained { triggers: 2, .. }),
        "{error}"
    );
    assert!(begin.elapsed() < SHORT);
    assert_eq!(proxy.status(), Status::Aborted);
    // Nothing is lost: the next start goes on.
    open.store(true, Ordering::Relaxed);
    proxy.start().unwrap();
    proxy.stop(Deadline::after(SHORT)).unwrap();
    assert_eq!(proxy.ring.tail(), 2);
}

#[test]
fn a_stream_of_pushes_does_not_keep_a_proxy_from_stopping() {
    let (proxy, count) = counting(64);
    proxy.start().unwrap();
    let (ring, done) = (Arc::clone(proxy.ring()), Arc::new(AtomicBool::new(false)));
    let pusher = {
        let done = Arc::clone(&done);
        thread::spawn(move || {
            let mut value = 0;
            while !done.load(Ordering::Relaxed) {
                match ring.try_push(trigger(value)) {
                    Some(_) => value += 1,
                    None => thread::yield_now(),
                }
            }
        })
    };
    eventually("some triggers", || count.load(Ordering::Relaxed) > 100);
    proxy.stop(Deadline::after(SHORT)).unwrap();
    done.store(true, Ordering::Relaxed);
    pusher.join().unwrap();
}

#[test]
fn dropping_a_proxy_gives_up_at_the_deadline_that_it_was_made_with() {
    let mut deadlines = Deadlines::read(|_| None);
    deadlines.proxy_stop = Duration::from_millis(50);
    let holds = |_: ProxyTrigger| ProxyHandlerResult::Hold;
    let proxy = Proxy::with_deadlines(4, holds, &deadlines).unwrap();
    proxy.start().unwrap();
    push(&proxy.ring, 0);
    let begun = Instant::now();
    drop(proxy);
    let took = begun.elapsed();
    // By default it would wait for 5 s.
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(took >= deadlines.proxy_stop, "{took:?}");
}

#[test]
fn a_panicking_handler_releases_kernels_and_is_reported() {
    let handler = |trigger: ProxyTrigger| {
        assert_ne!(trigger.fst, 1, "cannot do ones");
        ProxyHandlerResult::Continue
    };
    let proxy = Proxy::new(4, handler).unwrap();
    proxy.start().unwrap();
    push(&proxy.ring, 0);
    push(&proxy.ring, 1);
    eventually("the status", || proxy.status() == Status::Aborted);
    let error = proxy.stop(Deadline::after(SHORT)).unwrap_err();
    assert!(error.to_string().contains("cannot do ones"), "{error}");
    assert!(matches!(proxy.start(), Err(Error::ProxyGone { .. })));
}

#[test]
fn a_handler_that_never_returns_does_not_hang_a_stop() {
    let stuck = Arc::new(AtomicBool::new(true));
    let until = Arc::clone(&stuck);
    let proxy = Proxy::new(4, move |_: ProxyTrigger| {
        while until.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        ProxyHandlerResult::Continue
    });
    let proxy = proxy.unwrap();
    proxy.start().unwrap();
    push(&proxy.ring, 0);
    let error = proxy
        .stop(Deadline::after(Duration::from_millis(10)))
        .unwrap_err();
    assert!(matches!(error, Error::ProxyGone { .. }), "{error}");
    assert_eq!(proxy.status(), Status::Aborted);
    stuck.store(false, Ordering::Relaxed);
}

#[test]
fn a_handler_can_end_its_proxy() {
    let proxy = Proxy::new(4, |trigger: ProxyTrigger| match trigger.fst {
        1 => ProxyHandlerResult::Stop,
        _ => ProxyHandlerResult::Continue,
    });
    let proxy = proxy.unwrap();
    proxy.start().unwrap();
    for value in 0..3 {
        push(&proxy.ring, value);
    }
    eventually("the status", || proxy.status() == Status::Aborted);
    assert_eq!(proxy.ring.tail(), 2);
    let error = proxy.stop(Deadline::after(SHORT)).unwrap_err();
    assert!(
        matches!(error, Error::NotDrained { triggers: 1, .. }),
        "{error}"
    );
}

#[test]
fn dropping_drains() {
    let (proxy, count) = counting(64);
    proxy.start().unwrap();
    for value in 0..50 {
        push(&proxy.ring, value);
    }
    let ring = Arc::clone(proxy.ring());
    drop(proxy);
    assert_eq!(count.load(Ordering::Relaxed), 50);
    assert_eq!(ring.status().status(), Ok(Status::Aborted));
}

#[test]
fn an_idle_proxy_takes_less_than_a_tenth_of_a_core() {
    let clock = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let _ = clock();
    let thread_time = Arc::new(AtomicU64::new(0));
    struct Meter(Arc<AtomicU64>);
    impl ProxyHandler for Meter {
        fn handle(&mut self, _: ProxyTrigger, _: u64) -> ProxyHandlerResult {
            ProxyHandlerResult::Continue
        }
        fn park(&mut self, nap: Duration) {
            thread::sleep(nap);
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            self.0.store(nanos, Ordering::Relaxed);
        }
    }
    let proxy = Proxy::new(4, Meter(Arc::clone(&thread_time))).unwrap();
    proxy.start().unwrap();
    thread::sleep(Duration::from_millis(100));
    let before = thread_time.load(Ordering::Relaxed);
    let begin = Instant::now();
    thread::sleep(Duration::from_millis(1000));
    let share =
        (thread_time.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_nanos() as f64;
    println!("an idle proxy takes {:.2} % of a core", share * 100.0);
    assert!(share < 0.1, "{share}");
}
