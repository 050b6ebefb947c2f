// SPDX-License-Identifier: MIT
//! What is counted where kernels post themselves.

use mscclpp_port::Status;

use crate::support::{At, Call, call};
use crate::world::{forms, nics, pair_on};

#[test]
fn gpunetio_requests_are_counted_by_what_kernels_keep_anyway() {
    for config in forms() {
        let devices = nics();
        let [a, b] = pair_on(&devices, 4096, config);
        let queue = || a.connection.counters().queue.unwrap();
        let before = queue();
        assert_eq!(before.number, a.handle().base.queue.queue.number);
        // A put with signal has two requests; a flush has none, and sees them complete.
        for _ in 0..5 {
            let put = call(a.handle(), Call::PutWithSignal, At::both(0, 8));
            assert_eq!(put, Status::Ok);
        }
        assert_eq!(queue().posted, before.posted + 10);
        assert_eq!(call(a.handle(), Call::Flush, At::NOWHERE), Status::Ok);
        assert_eq!(queue().completed, queue().posted);
        for _ in 0..2 {
            assert_eq!(call(b.handle(), Call::Wait, At::NOWHERE), Status::Ok);
        }
        let signals = b.channel.signals().unwrap();
        assert_eq!((signals.received, signals.consumed), (5, 2));
        assert_eq!(signals.peer, Some(0));

        let counters = a.connection.counters();
        assert!(counters.posts.is_none() && counters.last_error.is_none());
        let hcas = a.communicator.counters().hcas;
        assert_eq!((hcas.len(), hcas[0].name.as_str()), (1, "soft0"));
        // The NIC has nobody else's queues.
        let requests = hcas[0].writes + hcas[0].atomics;
        assert_eq!(requests, queue().posted, "{:?}", hcas[0]);
        assert!(
            hcas[0].doorbells > 0 && hcas[0].errors == 0,
            "{:?}",
            hcas[0]
        );
        let landed = b.communicator.counters().hcas[0].landed_bytes;
        assert!(landed >= 5 * 8, "{landed}");
    }
}
