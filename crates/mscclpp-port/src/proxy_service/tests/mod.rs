// SPDX-License-Identifier: MIT
//! A service over a connection that a test moves on.

mod counters;
mod failures;
mod full;
mod tables;

use std::thread;
use std::time::{Duration, Instant};

use mscclpp_device::abi::{MAX_MEMORIES, MAX_SEMAPHORES, ProxyTrigger, Transfer, Trigger};

use super::*;
use crate::testing::{Fake, Op, PATIENCE, device_semaphore, eventually, memory, semaphore};
use crate::{ErrorCode, TransportKind};

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

fn push_raw(service: &ProxyService, trigger: ProxyTrigger) -> u64 {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(position) = service.shared.proxy.ring().try_push(trigger) {
            return position;
        }
        assert!(Instant::now() < until, "no room");
        thread::yield_now();
    }
}

fn push(service: &ProxyService, trigger: Trigger) -> u64 {
    push_raw(service, trigger.encode().unwrap())
}

fn transfer(dst: u32, src: u32, offset: u64, size: u64) -> Transfer {
    Transfer {
        dst,
        dst_offset: offset,
        src,
        src_offset: offset + 1,
        size,
    }
}

fn write(offset: u64, len: u64) -> Op {
    Op::Write {
        dst: offset,
        src: offset + 1,
        len,
    }
}

/// A service with memory 0 of 64 bytes, and a semaphore for each of some connections.
struct Bench {
    service: ProxyService,
    connections: Vec<Connection>,
    fakes: Vec<Fake>,
}

impl Bench {
    fn new(connections: usize) -> Self {
        let service = ProxyService::new(64).unwrap();
        assert_eq!(service.add_memory(memory(64)).unwrap(), MemoryId(0));
        let (connections, fakes): (Vec<_>, Vec<_>) = (0..connections).map(Fake::connect).unzip();
        for (id, connection) in (0_u32..).zip(&connections) {
            let semaphore = semaphore(connection);
            assert_eq!(service.add_semaphore(semaphore).unwrap(), SemaphoreId(id));
        }
        Self {
            service,
            connections,
            fakes,
        }
    }

    fn started(connections: usize) -> Self {
        let bench = Self::new(connections);
        bench.service.start_proxy().unwrap();
        bench
    }

    /// One past the highest flushed position, as kernels of a channel see it.
    fn flushed(&self, semaphore: u32) -> u64 {
        let entry = self.service.shared.tables.semaphore(semaphore).unwrap();
        entry.lane.flush.done()
    }
}

/// Whatever a kernel pushes: each trigger is executed, ends the connection that it names, or is a
/// stray; the other connection goes on.
#[test]
fn fuzz_triggers() {
    use super::handler::Handler;
    use crate::proxy::{ProxyHandler, ProxyHandlerResult};
    bolero::check!().for_each(|bytes: &[u8]| {
        let bench = Bench::new(2);
        let mut handler = Handler::new(Arc::clone(&bench.service.shared.tables));
        let mut position = 0;
        for pair in bytes.chunks_exact(16).take(32) {
            let (fst, snd) = pair.split_at(8);
            let [fst, snd] = [fst, snd].map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            let raw = ProxyTrigger { fst, snd };
            let named = raw.decode().map(|trigger| {
                assert_eq!(trigger.encode().unwrap().decode(), Ok(trigger));
                trigger.semaphore()
            });
            let failed = || [0, 1].map(|at| bench.connections[at].status().is_some());
            let before = failed();
            if let ProxyHandlerResult::Continue = handler.handle(raw, position) {
                position += 1;
            }
            let after = failed();
            for at in [0, 1] {
                let named = !matches!(named, Ok(semaphore) if semaphore != at as u32);
                assert!(
                    before[at] == after[at] || named,
                    "{raw:?} ended connection {at}"
                );
            }
            handler.progress();
        }
    });
}

#[test]
fn each_trigger_becomes_its_operations_in_push_order() {
    let bench = Bench::started(1);
    let put = |offset| transfer(0, 0, offset, 8);
    let (operand, dst_offset) = (-((1 << 32) + 3), 24);
    for trigger in [
        Trigger::Put {
            transfer: put(0),
            semaphore: 0,
        },
        Trigger::Signal { semaphore: 0 },
        Trigger::PutWithSignal {
            transfer: put(8),
            semaphore: 0,
        },
        Trigger::Accumulate {
            dst: 0,
            dst_offset,
            operand,
            semaphore: 0,
        },
        Trigger::Flush { semaphore: 0 },
        Trigger::PutWithSignalAndFlush {
            transfer: put(16),
            semaphore: 0,
        },
    ] {
        push(&bench.service, trigger);
    }
    bench.service.stop_proxy().unwrap();
    let expected = [
        write(0, 8),
        Op::Signal,
        write(8, 8),
        Op::Signal,
        Op::Accumulate {
            dst: dst_offset,
            operand,
        },
        Op::Flush,
        write(16, 8),
        Op::Signal,
        Op::Flush,
    ];
    assert_eq!(bench.fakes[0].ops(), expected);
    assert_eq!(bench.flushed(0), 6);
    assert!(bench.connections[0].status().is_none());
}

#[test]
fn a_flush_is_not_delayed_by_what_is_posted_after_it() {
    let bench = Bench::started(1);
    bench.fakes[0].finish_flushes(0);
    let first = push(&bench.service, Trigger::Flush { semaphore: 0 });
    let second = push(&bench.service, Trigger::Flush { semaphore: 0 });
    let mut posted = 0;
    eventually("operations under a pending flush", || {
        push(&bench.service, Trigger::Signal { semaphore: 0 });
        posted += 1;
        bench.fakes[0].ops().len() > 50
    });
    assert_eq!(bench.flushed(0), 0);
    bench.fakes[0].finish_flushes(1);
    eventually("the first flush, while signals go on", || {
        push(&bench.service, Trigger::Signal { semaphore: 0 });
        bench.flushed(0) == first + 1
    });
    bench.fakes[0].finish_flushes(2);
    eventually("the second flush", || bench.flushed(0) == second + 1);
}

#[test]
fn two_services_flush_one_connection_apart() {
    let (connection, fake) = Fake::connect(1);
    let services: Vec<_> = (0..2)
        .map(|_| {
            let service = ProxyService::new(8).unwrap();
            service.add_semaphore(semaphore(&connection)).unwrap();
            service.start_proxy().unwrap();
            service
        })
        .collect();
    let done = |service: &ProxyService| {
        let entry = service.shared.tables.semaphore(0).unwrap();
        entry.lane.flush.done()
    };
    for _ in 0..5 {
        push(&services[0], Trigger::Signal { semaphore: 0 });
    }
    fake.finish_flushes(0);
    push(&services[1], Trigger::Flush { semaphore: 0 });
    eventually("the flush of the second", || {
        fake.ops().contains(&Op::Flush)
    });
    let position = push(&services[0], Trigger::Flush { semaphore: 0 });
    eventually("both flushes", || fake.ops().len() == 7);
    fake.finish_flushes(1);
    eventually("the second's", || done(&services[1]) == 1);
    assert_eq!(done(&services[0]), 0);
    fake.finish_flushes(2);
    eventually("the first's", || done(&services[0]) == position + 1);
    assert_eq!(done(&services[1]), 1);
}

#[test]
fn channels_of_one_connection_share_its_flushes() {
    let bench = Bench::new(1);
    let second = bench
        .service
        .add_semaphore(semaphore(&bench.connections[0]));
    let handle = |id| {
        let channel = bench.service.base_port_channel(id).unwrap();
        channel.device_handle()
    };
    let (a, b) = (handle(SemaphoreId(0)), handle(second.unwrap()));
    assert_eq!(a.flush_done_pos, b.flush_done_pos);
    assert_eq!(a.semaphore.status, b.semaphore.status);
    assert_ne!(a.semaphore.inbound_token, b.semaphore.inbound_token);
    assert_ne!(
        a.semaphore.expected_inbound_token,
        b.semaphore.expected_inbound_token
    );
}

/// Pushes a trigger that cannot be executed, and gives the error of its connection back. Checks
/// that another connection goes on.
#[test]
fn a_full_connection_holds_its_trigger_while_flushes_of_others_finish() {
    let bench = Bench::started(2);
    bench.fakes[1].finish_flushes(0);
    let flush = push(&bench.service, Trigger::Flush { semaphore: 1 });
    bench.fakes[0].set_full(true);
    push(&bench.service, Trigger::Signal { semaphore: 0 });
    let behind = push(&bench.service, Trigger::Signal { semaphore: 1 });
    bench.fakes[1].finish_flushes(1);
    eventually("the other's flush", || bench.flushed(1) == flush + 1);
    assert_eq!(bench.fakes[0].ops(), []);
    assert_eq!(bench.fakes[1].ops(), [Op::Flush]);
    bench.fakes[0].set_full(false);
    eventually("the rest", || {
        bench.service.shared.proxy.ring().tail() == behind + 1
    });
    assert_eq!(bench.fakes[0].ops(), [Op::Signal]);
    assert_eq!(bench.fakes[1].ops(), [Op::Flush, Op::Signal]);
}

#[test]
fn a_trigger_whose_room_others_take_goes_on_where_it_stopped() {
    let bench = Bench::new(1);
    bench.fakes[0].set_room(1);
    for offset in [0, 8] {
        push(
            &bench.service,
            Trigger::PutWithSignalAndFlush {
                transfer: transfer(0, 0, offset, 8),
                semaphore: 0,
            },
        );
    }
    bench.service.start_proxy().unwrap();
    let mut expected = vec![];
    for op in [
        write(0, 8),
        Op::Signal,
        Op::Flush,
        write(8, 8),
        Op::Signal,
        Op::Flush,
    ] {
        expected.push(op);
        eventually("one more operation", || bench.fakes[0].ops() == expected);
        bench.fakes[0].set_room(1);
    }
    eventually("both flushes", || bench.flushed(0) == 2);
    assert!(bench.connections[0].status().is_none());
}

#[test]
fn a_held_trigger_goes_on_when_its_connection_fails() {
    let bench = Bench::started(2);
    bench.fakes[0].set_full(true);
    push(&bench.service, Trigger::Signal { semaphore: 0 });
    let behind = push(&bench.service, Trigger::Flush { semaphore: 1 });
    bench.connections[0].fail(Error::PeerDown {
        rank: Some(0),
        cause: "test".into(),
    });
    eventually("the other connection", || bench.flushed(1) == behind + 1);
}

#[test]
fn stopping_waits_for_flushes_until_its_deadline() {
    let bench = Bench::started(1);
    bench.fakes[0].finish_flushes(0);
    push(&bench.service, Trigger::Flush { semaphore: 0 });
    let fake = bench.fakes[0].clone();
    let helper = thread::spawn(move || {
        eventually("the flush", || fake.ops() == [Op::Flush]);
        thread::sleep(Duration::from_millis(20));
        fake.finish_flushes(1);
    });
    bench.service.stop_proxy_by(soon()).unwrap();
    assert_eq!(bench.flushed(0), 1);
    helper.join().unwrap();

    // The next one never finishes.
    bench.service.start_proxy().unwrap();
    push(&bench.service, Trigger::Flush { semaphore: 0 });
    let deadline = Deadline::after(Duration::from_millis(50));
    let error = bench.service.stop_proxy_by(deadline).unwrap_err();
    assert!(
        matches!(error, Error::NotDrained { triggers: 0, .. }),
        "{error}"
    );
    assert_eq!(bench.service.status(), Status::Aborted);
    assert_eq!(bench.flushed(0), 1);
}

#[test]
fn a_stop_that_comes_to_its_deadline_names_the_ranks_that_it_waited_for() {
    let bench = Bench::started(3);
    for semaphore in [1, 0, 2] {
        bench.fakes[semaphore].finish_flushes(u64::from(semaphore == 0));
        push(
            &bench.service,
            Trigger::Flush {
                semaphore: semaphore as u32,
            },
        );
    }
    eventually("the flush that may", || bench.flushed(0) == 2);
    let deadline = Deadline::after(Duration::from_millis(50));
    let error = bench.service.stop_proxy_by(deadline).unwrap_err();
    assert!(error.to_string().contains("ranks 1, 2"), "{error}");
}

#[test]
fn a_flush_that_outlived_a_stop_finishes_after_the_restart() {
    let bench = Bench::started(1);
    bench.fakes[0].finish_flushes(0);
    push(&bench.service, Trigger::Flush { semaphore: 0 });
    let deadline = Deadline::after(Duration::from_millis(20));
    bench.service.stop_proxy_by(deadline).unwrap_err();
    bench.fakes[0].finish_flushes(1);
    bench.service.start_proxy().unwrap();
    eventually("the flush", || bench.flushed(0) == 1);
}
