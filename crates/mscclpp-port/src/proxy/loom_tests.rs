// SPDX-License-Identifier: MIT
use std::time::Duration;

use super::*;
use crate::sync::{AtomicU64, Ordering, yield_now};

/// One trigger is pushed before the stop and one while the proxy stops. The first is executed. The
/// thread that pushed the second learns that it was executed, or that it will not be: it never
/// waits for ever.
#[test]
fn loom_stopping_executes_what_was_pushed_and_releases_whoever_waits() {
    let mut model = loom::model::Builder::new();
    // Three forced switches find what was tried, in a fraction of the time that all orders take.
    model.preemption_bound = Some(3);
    model.check(|| {
        let fifo = Fifo::new(2).unwrap();
        let ring = Arc::clone(fifo.ring());
        let control = Arc::new(Control::new());
        let executed = Arc::new(AtomicU64::new(0));

        let proxy = {
            let (ring, control) = (Arc::clone(&ring), Arc::clone(&control));
            let count = Arc::clone(&executed);
            let handler = move |_: ProxyTrigger| {
                count.fetch_add(1, Ordering::Relaxed);
                ProxyHandlerResult::Continue
            };
            let mut worker = Worker {
                fifo,
                handler: Box::new(handler),
            };
            loom::thread::spawn(move || {
                worker.run(&control);
                ring.set_aborted();
            })
        };
        let push = |ring: &Ring| {
            let position = ring.take();
            ring.fill(position, ProxyTrigger::default());
            position
        };
        let first = push(&ring);
        let late = {
            let ring = Arc::clone(&ring);
            loom::thread::spawn(move || {
                let position = push(&ring);
                while ring.tail() <= position {
                    if ring.status().code != 0 {
                        // Once more, as device code does: what was executed wins.
                        return ring.tail() > position;
                    }
                    yield_now();
                }
                true
            })
        };
        control.stop_by(Instant::now() + Duration::from_secs(3600));
        let late_executed = late.join().unwrap();
        proxy.join().unwrap();
        assert!(ring.tail() > first, "pushed before the stop, not executed");
        assert_ne!(ring.status().code, 0);
        let count = executed.load(Ordering::Relaxed);
        assert_eq!(count, ring.tail());
        assert!(count == 2 || !late_executed);
    });
}
