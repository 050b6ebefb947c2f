// SPDX-License-Identifier: MIT
//! What a service counts.

use super::*;
use crate::counters::{Pauses, Posts};

/// One trigger of each kind, and how many posts that is.
fn push_one_of_each(service: &ProxyService) -> u64 {
    push(
        service,
        Trigger::Put {
            transfer: transfer(0, 0, 1, 5),
            semaphore: 0,
        },
    );
    push(service, Trigger::Signal { semaphore: 0 });
    push(
        service,
        Trigger::PutWithSignal {
            transfer: transfer(0, 0, 2, 7),
            semaphore: 0,
        },
    );
    push(
        service,
        Trigger::Accumulate {
            dst: 0,
            dst_offset: 8,
            operand: -1,
            semaphore: 0,
        },
    );
    push(service, Trigger::Flush { semaphore: 0 });
    push(
        service,
        Trigger::PutWithSignalAndFlush {
            transfer: transfer(0, 0, 3, 11),
            semaphore: 0,
        },
    )
}

#[test]
fn triggers_are_counted_by_kind() {
    let bench = Bench::started(2);
    bench.fakes[0].finish_flushes(1);
    let counted = |connection: usize| bench.connections[connection].counters().posts.unwrap();
    assert_eq!(counted(0), Posts::default());
    push_one_of_each(&bench.service);
    eventually("all are executed", || bench.service.counters().taken == 6);
    eventually("one flush is done", || counted(0).flushes_done == 1);
    let expected = Posts {
        puts: 1,
        signals: 1,
        puts_with_signal: 2,
        accumulates: 1,
        flushes: 2,
        flushes_done: 1,
        bytes: 5 + 7 + 11,
        ..Posts::default()
    };
    assert_eq!(counted(0), expected);
    assert_eq!(counted(0).total(), 7);
    assert_eq!(counted(1), Posts::default(), "of the other connection");
    bench.fakes[0].finish_flushes(2);
    eventually("both are done", || counted(0).flushes_done == 2);
    let counters = bench.service.counters();
    assert_eq!((counters.pushed, counters.depth()), (6, 0));
    assert_eq!((counters.slots, counters.dropped), (64, 0));
    assert!(counters.running);
}

#[test]
fn what_was_refused_is_no_post_but_an_error() {
    let bench = Bench::started(1);
    push(
        &bench.service,
        Trigger::Put {
            transfer: transfer(77, 0, 0, 8),
            semaphore: 0,
        },
    );
    push_raw(&bench.service, {
        let signal = Trigger::Signal { semaphore: 9 };
        signal.encode().unwrap()
    });
    eventually("both are taken", || bench.service.counters().taken == 2);
    let counters = bench.connections[0].counters();
    assert_eq!(counters.posts, Some(Posts::default()));
    let text = counters.last_error.unwrap().to_string();
    assert!(text.contains("memory id 77"), "{text}");
    assert_eq!(bench.service.counters().dropped, 1);
}

#[test]
fn a_wait_for_room_is_counted_once_and_grows_while_it_lasts() {
    let bench = Bench::started(1);
    let held = || bench.connections[0].counters().posts.unwrap().backpressure;
    assert_eq!(held(), Pauses::default());
    bench.fakes[0].set_full(true);
    push(&bench.service, Trigger::Signal { semaphore: 0 });
    push(&bench.service, Trigger::Signal { semaphore: 0 });
    eventually("it waits", || held().times == 1);
    let before = held().time;
    eventually("the time grows", || {
        held().time > before + Duration::from_millis(5)
    });
    assert_eq!(
        bench.service.counters().depth(),
        2,
        "a trigger and the one behind"
    );
    bench.fakes[0].set_full(false);
    eventually("both are posted", || {
        bench.connections[0].counters().posts.unwrap().signals == 2
    });
    eventually("both are taken", || bench.service.counters().depth() == 0);
    let after = held();
    assert_eq!(after.times, 1);
    push(&bench.service, Trigger::Signal { semaphore: 0 });
    eventually("a third is posted", || {
        bench.connections[0].counters().posts.unwrap().signals == 3
    });
    assert_eq!(held(), after, "it found room");
}

#[test]
fn room_that_others_took_counts_as_one_post_and_one_wait() {
    let bench = Bench::started(1);
    bench.fakes[0].set_room(1);
    let counted = || bench.connections[0].counters().posts.unwrap();
    push(
        &bench.service,
        Trigger::PutWithSignalAndFlush {
            transfer: transfer(0, 0, 0, 8),
            semaphore: 0,
        },
    );
    eventually("it waits", || counted().backpressure.times == 1);
    assert_eq!(counted().total(), 0, "not all of it is posted");
    bench.fakes[0].set_room(2);
    eventually("it is done", || counted().flushes_done == 1);
    let expected = Posts {
        puts_with_signal: 1,
        flushes: 1,
        flushes_done: 1,
        bytes: 8,
        backpressure: counted().backpressure,
        ..Posts::default()
    };
    assert_eq!(counted(), expected);
    assert_eq!(counted().backpressure.times, 1);
}

/// Counts of a service stay when it is gone, and do not pile up.
#[test]
fn a_connection_keeps_what_its_services_have_counted() {
    let Bench {
        service,
        connections,
        fakes,
    } = Bench::started(1);
    fakes[0].finish_flushes(100);
    let counted = || connections[0].counters().posts.unwrap();
    push_one_of_each(&service);
    eventually("all are done", || counted().flushes_done == 2);
    let first = counted();
    drop(service);
    assert_eq!(counted(), first);
    for round in 2..5 {
        let service = ProxyService::new(64).unwrap();
        service.add_memory(memory(64)).unwrap();
        service.add_semaphore(semaphore(&connections[0])).unwrap();
        service.start_proxy().unwrap();
        push_one_of_each(&service);
        eventually("all are done", || counted().flushes_done == 2 * round);
        assert_eq!(counted().bytes, round * first.bytes);
    }
    assert!(connections[0].posters() <= 1);
}

#[test]
fn callers_of_a_connection_are_counted_too() {
    let (connection, fake) = Fake::connect(3);
    fake.finish_flushes(0);
    let memory = memory(64);
    connection.write(&memory, 0, &memory, 8, 8).unwrap();
    connection.signal(&memory, 0).unwrap();
    connection.accumulate(&memory, 0, 4).unwrap();
    assert!(connection.write(&memory, 60, &memory, 0, 8).is_err());
    let short = Deadline::after(Duration::from_millis(20));
    assert!(connection.flush(short).is_err());
    let counters = connection.counters();
    let expected = Posts {
        puts: 1,
        signals: 1,
        accumulates: 1,
        flushes: 1,
        bytes: 8,
        ..Posts::default()
    };
    assert_eq!(counters.posts, Some(expected));
    assert_eq!((counters.peer, counters.waits.times), (Some(3), 1));
    assert!(counters.waits.time >= Duration::from_millis(20));
    fake.finish_flushes(100);
    connection.flush(soon()).unwrap();
    let counters = connection.counters();
    assert_eq!(counters.posts.unwrap().flushes_done, 1);
    assert_eq!(counters.waits.times, 1, "it was done at once");
}

/// Whoever reads sees every count grow, and never fall.
#[test]
fn counts_never_fall_while_they_are_read() {
    let bench = Bench::started(1);
    let counted = || bench.connections[0].counters().posts.unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                push_one_of_each(&bench.service);
            }
        });
        let mut last = Posts::default();
        while last.flushes_done < 400 {
            let now = counted();
            assert!(now.puts >= last.puts && now.bytes >= last.bytes);
            assert!(now.flushes_done >= last.flushes_done);
            last = now;
        }
    });
    assert_eq!(counted().total(), 200 * 7);
}
