// SPDX-License-Identifier: MIT
//! What an observer is told of a device's work.

mod support;

use std::sync::{Arc, Mutex};

use mscclpp_softnic::*;
use support::*;

#[derive(Default)]
struct Log(Mutex<Vec<Seen>>);

impl Observer for Log {
    fn see(&self, seen: Seen) {
        self.0.lock().unwrap().push(seen);
    }
}

impl Log {
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[test]
fn a_request_is_seen_from_the_doorbell_to_its_completion() {
    let mut rig = Rig::inline();
    let log = Arc::new(Log::default());
    rig.post_write(0, 0, 100);
    assert_eq!(rig.a.wait().failure(), None);
    assert_eq!(log.take(), [], "nobody looks on");
    rig.device.set_observer(Some(log.clone()));

    rig.target.write(8, &41u64.to_ne_bytes());
    let operation = rig.fetch_add(8, 1, 64);
    let posted = rig.a.post(operation);
    assert_eq!(rig.a.wait().failure(), None);
    let seen = log.take();
    let (queue, index, peer) = (rig.a.pair.number(), posted.low16(), rig.b.pair.number());
    let places = [
        seen.iter().position(|seen| {
            *seen == Seen::Doorbell { queue, end: index + 1 }
        }),
        seen.iter().position(|seen| {
            matches!(seen, Seen::Fetched { queue: q, index: i, .. } if (*q, *i) == (queue, index))
        }),
        seen.iter().position(|seen| matches!(seen, Seen::Sent(t) if !t.answer)),
        seen.iter().position(|seen| matches!(seen, Seen::Received(t) if !t.answer)),
        seen.iter().position(|seen| {
            let address = rig.target.address() + 8;
            *seen == Seen::Added { queue: peer, address, old: 41 }
        }),
        seen.iter().position(|seen| matches!(seen, Seen::Sent(t) if t.answer)),
        seen.iter().position(|seen| matches!(seen, Seen::Received(t) if t.answer)),
        seen.iter().position(|seen| *seen == Seen::Completed { queue, index }),
    ];
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{places:?} {seen:?}"
    );
    // Both ends of a packet say the same of it, but for whose queue it is.
    for seen_sent in &seen {
        let Seen::Sent(sent) = seen_sent else {
            continue;
        };
        let arrived = seen.iter().any(|seen| {
            let Seen::Received(come) = seen else {
                return false;
            };
            (come.to, come.to_queue, come.number, come.answer, come.local)
                == (
                    sent.to,
                    sent.to_queue,
                    sent.number,
                    sent.answer,
                    sent.to_queue,
                )
        });
        assert!(arrived, "{sent:?}");
    }

    rig.device.set_observer(None);
    rig.post_write(0, 0, 100);
    assert_eq!(rig.a.wait().failure(), None);
    assert_eq!(log.take(), [], "not any more");
}
