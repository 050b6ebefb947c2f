// SPDX-License-Identifier: MIT
//! Lost and late packets, a pulled cable, a peer that is gone: requests are
//! carried out exactly once, in order, or fail with the right syndrome.

mod support;

use std::time::Duration;

use mlx5_queue::*;
use mscclpp_softnic::*;
use support::*;

fn lossy(seed: u64, loss: f64, delay: Duration) -> DeviceConfig {
    let network = NetworkConfig {
        loss,
        delay,
        single_packets: true,
    };
    DeviceConfig {
        seed,
        network,
        ..manual()
    }
}

fn patient() -> Setup {
    let send = SendAttributes {
        timeout: Duration::from_millis(1),
        retry_count: 255,
        ..SendAttributes::default()
    };
    Setup {
        mtu: (Mtu::Bytes256, Mtu::Bytes256),
        send,
        ..Setup::default()
    }
}

/// Completions until `count` have come, all of them successes.
fn finish(rig: &mut Rig, count: usize) {
    let mut seen = 0;
    for second in 1..1000 {
        rig.device.run_at(Time::at(Duration::from_secs(second)));
        while let Some(completion) = rig.a.poll() {
            assert_eq!(completion.failure(), None);
            seen += 1;
        }
        if seen == count {
            return;
        }
    }
    panic!("{seen} of {count} completions: {:?}", rig.device.counters());
}

#[test]
fn under_loss_every_atomic_is_done_once() {
    for seed in 0..20 {
        let mut rig = Rig::new(lossy(seed, 0.2, Duration::from_micros(20)), &patient());
        for round in 0..3 {
            for i in 0..50usize {
                rig.a.write(Flags::SIGNALLED, rig.fetch_add(0, 1, i * 8));
            }
            rig.a.publish();
            finish(&mut rig, 50);
            for i in 0..50 {
                assert_eq!(
                    rig.source.read_u64(i * 8),
                    round * 50 + i as u64,
                    "in order"
                );
            }
        }
        let counters = rig.device.counters();
        assert_eq!(rig.target.read_u64(0), 150);
        assert!(
            counters.packets_lost > 20 && counters.retransmissions > 5,
            "{counters:?}"
        );
    }
}

#[test]
fn under_loss_long_writes_and_reads_are_whole() {
    for seed in 0..10 {
        let mut rig = Rig::new(lossy(seed, 0.05, Duration::from_micros(5)), &patient());
        let data: Vec<u8> = (0..20_000u32)
            .map(|i| (i * 31 + seed as u32) as u8)
            .collect();
        rig.source.write(0, &data);
        rig.post_write(0, 100, 20_000);
        let back = [
            rig.local(65536, 12_000).encode(),
            rig.local(100_000, 8_000).encode(),
        ];
        let scatter = DataSegments::new(&back);
        rig.a.post(Operation::Read {
            remote: rig.remote(100),
            scatter,
        });
        finish(&mut rig, 2);
        let mut seen = vec![0; 20_000];
        rig.source.read(65536, &mut seen[..12_000]);
        rig.source.read(100_000, &mut seen[12_000..]);
        assert!(seen == data, "seed {seed}");
    }
}

#[test]
fn a_pulled_cable_fails_the_oldest_and_flushes_the_rest() {
    let send = SendAttributes {
        timeout: Duration::from_millis(10),
        retry_count: 3,
        ..SendAttributes::default()
    };
    let mut rig = Rig::new(
        manual(),
        &Setup {
            send,
            ..Setup::default()
        },
    );
    rig.device.set_link_up(false);
    let list = [rig.local(0, 8).encode()];
    for _ in 0..5 {
        rig.a.write(Flags::UNSIGNALLED, write(rig.remote(0), &list));
    }
    rig.a.publish();
    rig.device.run_at(Time::at(Duration::from_millis(39)));
    assert_eq!(rig.a.poll(), None);
    rig.device.run_at(Time::at(Duration::from_millis(41)));
    assert_eq!(rig.a.wait_failure(), Syndrome::TRANSPORT_RETRY_EXCEEDED);
    for i in 1..5 {
        let completion = rig.a.wait();
        assert_eq!(completion.wqe_counter, i);
        assert_eq!(completion.failure().unwrap().syndrome, Syndrome::FLUSHED);
    }
}

#[test]
fn a_cable_that_is_plugged_in_again_in_time_is_not_noticed() {
    let mut rig = Rig::new(manual(), &Setup::default());
    rig.device.set_link_up(false);
    rig.post_write(0, 0, 8);
    rig.device.run_at(Time::at(Duration::from_millis(300)));
    assert_eq!(rig.a.poll(), None);
    rig.device.set_link_up(true);
    rig.device.run_at(Time::at(Duration::from_millis(400)));
    assert_eq!(rig.a.wait().failure(), None);
    assert!(rig.device.counters().retransmissions > 0);
}

/// Progress gives all retries back: only a standstill ends a connection.
#[test]
fn retries_are_counted_from_the_last_progress() {
    let mut setup = patient();
    setup.send.retry_count = 7;
    let mut rig = Rig::new(lossy(8, 0.1, Duration::ZERO), &setup);
    for _ in 0..20 {
        for _ in 0..50 {
            rig.a.write(Flags::SIGNALLED, rig.fetch_add(0, 1, 0));
        }
        rig.a.publish();
        finish(&mut rig, 50);
    }
    assert!(rig.device.counters().retransmissions > 50);
}

#[test]
fn a_peer_that_is_gone_does_not_answer() {
    let mut rig = Rig::new(DeviceConfig::default(), &patient());
    let gone = std::mem::replace(&mut rig.b, Poster::new(&rig.domain, &Setup::default()));
    drop(gone);
    rig.a
        .pair
        .modify(Transition::ReadyToSend(SendAttributes {
            timeout: Duration::from_millis(5),
            retry_count: 2,
            ..SendAttributes::default()
        }))
        .unwrap();
    rig.post_write(0, 0, 8);
    assert_eq!(rig.a.wait_failure(), Syndrome::TRANSPORT_RETRY_EXCEEDED);
}

#[test]
fn another_first_packet_number_is_never_answered() {
    let mut setup = patient();
    setup.send.retry_count = 2;
    setup.send.first_packet = 5;
    let mut rig = Rig::new(manual(), &setup);
    rig.post_write(0, 0, 8);
    rig.device.run_at(Time::at(Duration::from_secs(1)));
    assert_eq!(rig.a.wait_failure(), Syndrome::TRANSPORT_RETRY_EXCEEDED);
}

fn receiving(receives: usize) -> Rig {
    let send = SendAttributes {
        rnr_retry: 3,
        ..SendAttributes::default()
    };
    let setup = Setup {
        receive_queue: true,
        send,
        ..Setup::default()
    };
    let mut rig = Rig::new(manual(), &setup);
    for i in 0..receives {
        let pieces = [(0, 16), (64, 1000)].map(|(offset, length)| {
            let address = rig.target.address() + (i * 4096 + offset) as u64;
            DataSegment::new(address, rig.target_key, length).unwrap()
        });
        rig.b.post_receive(&pieces);
    }
    rig
}

fn send(rig: &mut Rig, length: u32, immediate: Option<u32>) {
    let list = [rig.local(0, length).encode()];
    let payload = Payload::Gather(DataSegments::new(&list));
    rig.a.post(Operation::Send { payload, immediate });
}

#[test]
fn messages_use_receive_requests_in_order() {
    let mut rig = receiving(3);
    rig.source.write(0, &[7; 4096]);
    send(&mut rig, 1016, None);
    send(&mut rig, 5, Some(77));
    send(&mut rig, 0x10, None);
    rig.device.run_at(Time::ZERO);
    let kinds = [
        (ReceiveKind::Send, 1016),
        (ReceiveKind::SendImmediate { immediate: 77 }, 5),
        (ReceiveKind::Send, 16),
    ];
    for (i, (kind, length)) in kinds.into_iter().enumerate() {
        assert_eq!(rig.a.wait().failure(), None);
        let completion = rig.b.poll_receive().unwrap();
        assert_eq!(
            (completion.wqe_counter, completion.queue),
            (i as u16, rig.b.pair.number())
        );
        let Entry::Responder {
            kind: seen, bytes, ..
        } = completion.entry
        else {
            panic!()
        };
        assert_eq!((seen, bytes), (kind, length));
    }
    let mut first = [0; 1064];
    rig.target.read(0, &mut first);
    assert!(
        first[..16]
            .iter()
            .chain(&first[64..])
            .all(|&byte| byte == 7)
    );
    assert!(first[16..64].iter().all(|&byte| byte == 0));
}

#[test]
fn without_a_receive_request_the_peer_is_told_to_wait_and_then_gives_up() {
    let mut rig = receiving(0);
    send(&mut rig, 8, None);
    rig.device
        .run_at(Time::at(Duration::from_micros(3 * 640 - 1)));
    assert_eq!(rig.a.poll(), None);
    rig.device
        .run_at(Time::at(Duration::from_micros(3 * 640 + 1)));
    assert_eq!(rig.a.wait_failure(), Syndrome::RNR_RETRY_EXCEEDED);
    assert_eq!(
        rig.b.pair.status().state,
        State::ReadyToSend,
        "the receiver did nothing wrong"
    );

    // Without any receive queue it is the same.
    let send_attributes = SendAttributes {
        rnr_retry: 0,
        ..SendAttributes::default()
    };
    let mut rig = Rig::new(
        manual(),
        &Setup {
            send: send_attributes,
            ..Setup::default()
        },
    );
    let payload = Payload::Inline(&[1]);
    rig.a.post(Operation::Send {
        payload,
        immediate: None,
    });
    rig.device.run_at(Time::ZERO);
    assert_eq!(rig.a.wait_failure(), Syndrome::RNR_RETRY_EXCEEDED);
}

#[test]
fn a_receive_request_that_comes_late_is_used() {
    let mut rig = receiving(0);
    rig.source.write(0, &[7; 64]);
    send(&mut rig, 8, None);
    rig.a.post(rig.fetch_add(65536, 1, 4096));
    rig.device.run_at(Time::at(Duration::from_micros(1000)));
    assert_eq!((rig.a.poll(), rig.target.read_u64(65536)), (None, 0));
    let address = rig.target.address();
    rig.b
        .post_receive(&[DataSegment::new(address, rig.target_key, 8).unwrap()]);
    rig.device.run_at(Time::at(Duration::from_micros(2000)));
    assert_eq!(
        (rig.a.wait().failure(), rig.a.wait().failure()),
        (None, None)
    );
    assert_eq!(rig.target.read_u64(0), 0x0707_0707_0707_0707);
    assert_eq!(rig.target.read_u64(65536), 1);
}

#[test]
fn a_message_too_long_for_its_receive_request() {
    let mut rig = receiving(2);
    send(&mut rig, 1017, None);
    rig.device.run_at(Time::ZERO);
    assert_eq!(rig.a.wait_failure(), Syndrome::REMOTE_INVALID_REQUEST);
    let failure = rig.b.poll_receive().unwrap().failure().unwrap();
    assert_eq!(failure.syndrome, Syndrome::LOCAL_LENGTH);
    let flushed = rig.b.poll_receive().unwrap();
    assert_eq!(flushed.wqe_counter, 1);
    assert_eq!(flushed.failure().unwrap().syndrome, Syndrome::FLUSHED);
    assert_eq!(rig.b.pair.status().failure, Some(Syndrome::LOCAL_LENGTH));
}

#[test]
fn a_receive_request_that_names_bad_memory() {
    let mut rig = receiving(0);
    let bad = DataSegment::new(rig.target.address(), MemoryKey::new(0x123), 64).unwrap();
    rig.b.post_receive(&[bad]);
    send(&mut rig, 8, None);
    rig.device.run_at(Time::ZERO);
    assert_eq!(rig.a.wait_failure(), Syndrome::REMOTE_OPERATION);
    let failure = rig.b.poll_receive().unwrap().failure().unwrap();
    assert_eq!(failure.syndrome, Syndrome::LOCAL_PROTECTION);
}

#[test]
fn under_loss_messages_arrive_once_and_in_order() {
    let send_attributes = SendAttributes {
        rnr_retry: 7,
        ..patient().send
    };
    let setup = Setup {
        blocks: 256,
        receive_queue: true,
        send: send_attributes,
        ..patient()
    };
    for seed in 0..10 {
        let mut rig = Rig::new(lossy(seed, 0.15, Duration::from_micros(5)), &setup);
        let mut received = 0u32;
        for i in 0..40u32 {
            let payload = Payload::Inline(&[1; 300]);
            rig.a.post(Operation::Send {
                payload,
                immediate: Some(i),
            });
        }
        let address = rig.target.address();
        for step in 1..4000 {
            if received < 40 && rig.b.received.distance_from(rig.b.receive_polled) < 4 {
                let piece = DataSegment::new(address, rig.target_key, 512).unwrap();
                rig.b.post_receive(&[piece]);
            }
            rig.device.run_at(Time::at(Duration::from_millis(step)));
            while let Some(completion) = rig.b.poll_receive() {
                let Entry::Responder {
                    kind, bytes: 300, ..
                } = completion.entry
                else {
                    panic!()
                };
                assert_eq!(
                    kind,
                    ReceiveKind::SendImmediate {
                        immediate: received
                    }
                );
                received += 1;
            }
        }
        assert_eq!(received, 40, "seed {seed}");
        assert_eq!(rig.a.pair.status().failure, None);
    }
}
