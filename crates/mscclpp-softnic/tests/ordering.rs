// SPDX-License-Identifier: MIT
//! The ordering contract: what it promises holds at every moment, and what it
//! leaves open is used.

mod support;

use std::time::Duration;

use mlx5_queue::*;
use mscclpp_softnic::*;
use support::slow_memory::SlowMemory;
use support::*;

const LINGER: Duration = Duration::from_micros(100);

fn scattered(seed: u64) -> DeviceConfig {
    DeviceConfig {
        seed,
        landing: Landing::Scattered { linger: LINGER },
        ..manual()
    }
}

/// Moves the clock from event to event until `done` says so.
fn watch(rig: &mut Rig, mut done: impl FnMut(&mut Rig) -> bool) {
    let mut time = Time::ZERO;
    for _ in 0..100_000 {
        rig.device.run_at(time);
        if done(rig) {
            return;
        }
        time = time.after(rig.device.idle_for().expect("something is under way"));
    }
    panic!("not done");
}

const PAYLOAD: u32 = 2048;
const SIGNAL: usize = 8192;

fn payload_is(rig: &Rig, value: u8) -> bool {
    let mut bytes = [0; PAYLOAD as usize];
    rig.target.read(0, &mut bytes);
    bytes.iter().all(|&byte| byte == value)
}

fn payload_begun(rig: &Rig) -> bool {
    let mut bytes = [0; PAYLOAD as usize];
    rig.target.read(0, &mut bytes);
    bytes.iter().any(|&byte| byte != 0)
}

#[test]
fn a_write_has_landed_before_a_later_atomic_acts() {
    let mut partial = 0;
    for seed in 0..100 {
        let mut rig = Rig::new(scattered(seed), &Setup::default());
        rig.source.write(0, &[9; PAYLOAD as usize]);
        let list = [rig.local(0, PAYLOAD).encode()];
        rig.a.write(Flags::UNSIGNALLED, write(rig.remote(0), &list));
        rig.a.post(rig.fetch_add(SIGNAL, 1, 4096));
        watch(&mut rig, |rig| {
            if rig.target.read_u64(SIGNAL) == 1 {
                assert!(
                    payload_is(rig, 9),
                    "seed {seed}: the signal overtook the payload"
                );
            } else if payload_begun(rig) && !payload_is(rig, 9) {
                partial += 1;
            }
            rig.a.poll().is_some()
        });
    }
    assert!(
        partial > 1000,
        "the payload landed in pieces only {partial} times"
    );
}

/// What must act after a write is not held back until its end where the memory
/// itself keeps the order.
#[test]
fn a_memory_that_keeps_the_order_is_not_waited_for() {
    // Where the payload comes from: the same memory, or the host's.
    for (in_order, from_host, expected) in [
        (true, false, 2),
        (false, false, 1),
        // A copy from elsewhere is submitted in two halves.
        (true, true, 1),
    ] {
        for strict in [false, true] {
            let memory = SlowMemory::with(1, in_order);
            let reach = |buffer: &HostBuffer| match buffer.len() {
                LENGTH if !from_host => memory.range(buffer),
                _ => buffer.range(),
            };
            let mut rig = Rig::within(manual(), &Setup::default(), &reach);
            let ordering = WriteOrdering::Strict;
            let target = memory.range(&rig.target);
            let target = (rig.domain)
                .register(target, AccessFlags::ALL, ordering)
                .unwrap();
            rig.target_key = target.key();
            rig.source.write(0, &[9; PAYLOAD as usize]);
            memory.stall(true);
            let list = [rig.local(0, PAYLOAD).encode()];
            rig.a.write(Flags::UNSIGNALLED, write(rig.remote(0), &list));
            let signal = match strict {
                true => Operation::Write {
                    remote: rig.remote(SIGNAL),
                    payload: Payload::Inline(&[1; 8]),
                    immediate: None,
                },
                false => rig.fetch_add(SIGNAL, 1, 4096),
            };
            rig.a.post(signal);
            rig.device.run_at(Time::ZERO);
            let case =
                format!("in order: {in_order}, from the host: {from_host}, written: {strict}");
            assert_eq!(memory.most_waiting(), expected, "{case}");
            memory.stall(false);
            let mut seen = 0;
            watch(&mut rig, |rig| {
                if rig.target.read_u64(SIGNAL) != 0 {
                    seen += 1;
                    assert!(payload_is(rig, 9), "{case}");
                }
                rig.a.poll().is_some()
            });
            assert!(seen > 0, "{case}");
        }
    }
}

/// A flag that is written, not added to: late enough only where it is strict.
#[test]
fn only_a_strict_registration_keeps_a_written_flag_behind_the_payload() {
    let mut overtaken = [0, 0];
    for (i, ordering) in [WriteOrdering::Strict, WriteOrdering::Relaxed]
        .into_iter()
        .enumerate()
    {
        for seed in 0..100 {
            let mut rig = Rig::new(scattered(seed), &Setup::default());
            rig.source.write(0, &[9; PAYLOAD as usize]);
            let range = rig.target.slice(SIGNAL, 8);
            let flag = rig
                .domain
                .register(range, AccessFlags::ALL, ordering)
                .unwrap();
            let list = [rig.local(0, PAYLOAD).encode()];
            rig.a.write(Flags::UNSIGNALLED, write(rig.remote(0), &list));
            let remote = RemoteAddress {
                key: flag.key(),
                ..rig.remote(SIGNAL)
            };
            let payload = Payload::Inline(&[1; 8]);
            rig.a.post(Operation::Write {
                remote,
                payload,
                immediate: None,
            });
            watch(&mut rig, |rig| {
                if rig.target.read_u64(SIGNAL) != 0 && !payload_is(rig, 9) {
                    overtaken[i] += 1;
                    return true;
                }
                rig.a.poll().is_some()
            });
        }
    }
    assert_eq!(overtaken[0], 0, "strict");
    assert!(overtaken[1] > 20, "relaxed: {}", overtaken[1]);
}

#[test]
fn aligned_words_land_whole() {
    for seed in 0..50 {
        let mut rig = Rig::new(scattered(seed), &Setup::default());
        let value = 0x0123_4567_89ab_cdef_u64;
        rig.source.write(3, &value.to_ne_bytes().repeat(200));
        // From an odd address, to an aligned one.
        rig.post_write(3, 64, 1600);
        watch(&mut rig, |rig| {
            for word in 0..200 {
                let seen = rig.target.read_u64(64 + word * 8);
                assert!(seen == 0 || seen == value, "torn: {seen:#x}");
            }
            rig.a.poll().is_some()
        });
    }
}

#[test]
fn a_read_sees_the_writes_before_it() {
    for seed in 0..100 {
        let mut rig = Rig::new(scattered(seed), &Setup::default());
        rig.source.write(0, &[9; PAYLOAD as usize]);
        let list = [rig.local(0, PAYLOAD).encode()];
        rig.a.write(Flags::UNSIGNALLED, write(rig.remote(0), &list));
        let back = [rig.local(65536, PAYLOAD).encode()];
        let scatter = DataSegments::new(&back);
        rig.a.post(Operation::Read {
            remote: rig.remote(0),
            scatter,
        });
        watch(&mut rig, |rig| rig.a.poll().is_some());
        let mut bytes = [0; PAYLOAD as usize];
        rig.source.read(65536, &mut bytes);
        assert_eq!(bytes, [9; PAYLOAD as usize], "seed {seed}");
    }
}

/// A write that sends on what a read brings: stale without a fence.
#[test]
fn what_depends_on_a_read_needs_a_fence() {
    let mut stale = [0, 0];
    for (i, fence) in [FenceMode::SmallAndFence, FenceMode::None]
        .into_iter()
        .enumerate()
    {
        for seed in 0..50 {
            let mut rig = Rig::new(scattered(seed), &Setup::default());
            rig.target.write_u64(0, 7);
            let list = [rig.local(0, 8).encode()];
            let scatter = DataSegments::new(&list);
            rig.a.write(
                Flags::UNSIGNALLED,
                Operation::Read {
                    remote: rig.remote(0),
                    scatter,
                },
            );
            let flags = Flags {
                fence,
                ..Flags::SIGNALLED
            };
            rig.a.write(flags, write(rig.remote(512), &list));
            rig.a.publish();
            watch(&mut rig, |rig| rig.a.poll().is_some());
            stale[i] += u32::from(rig.target.read_u64(512) != 7);
        }
    }
    assert_eq!(stale[0], 0, "with a fence");
    assert!(stale[1] > 10, "without: {}", stale[1]);
}

#[test]
fn an_early_acknowledgement_says_nothing_about_visibility() {
    let mut before = [0, 0];
    for (i, acknowledge) in [Acknowledge::Landed, Acknowledge::Accepted]
        .into_iter()
        .enumerate()
    {
        for seed in 0..50 {
            let config = DeviceConfig {
                acknowledge,
                ..scattered(seed)
            };
            let mut rig = Rig::new(config, &Setup::default());
            rig.source.write(0, &[9; PAYLOAD as usize]);
            rig.post_write(0, 0, PAYLOAD);
            watch(&mut rig, |rig| rig.a.poll().is_some());
            before[i] += u32::from(!payload_is(&rig, 9));
        }
    }
    assert_eq!(before[0], 0, "acknowledged when landed");
    assert!(before[1] > 40, "acknowledged when accepted: {}", before[1]);
}

/// Early or not: the sender may use its memory again.
#[test]
fn what_is_acknowledged_was_fetched() {
    for acknowledge in [Acknowledge::Landed, Acknowledge::Accepted] {
        for seed in 0..50 {
            let config = DeviceConfig {
                acknowledge,
                ..scattered(seed)
            };
            let mut rig = Rig::new(config, &Setup::default());
            rig.source.write(0, &[9; PAYLOAD as usize]);
            rig.post_write(0, 0, PAYLOAD);
            watch(&mut rig, |rig| rig.a.poll().is_some());
            rig.source.write(0, &[0; PAYLOAD as usize]);
            rig.device.run_at(Time::at(Duration::from_secs(1)));
            assert!(payload_is(&rig, 9), "{acknowledge:?}, seed {seed}");
        }
    }
}

/// Atomics of one device exclude each other, whatever queue they come from.
#[test]
fn atomics_of_one_device_are_atomic_to_each_other() {
    let setup = Setup::default();
    let rig = Rig::new(scattered(5), &setup);
    let mut posters: Vec<(Poster, Poster)> = (0..4)
        .map(|_| {
            let (a, b) = (
                Poster::new(&rig.domain, &setup),
                Poster::new(&rig.domain, &setup),
            );
            a.connect(b.pair.address(), &setup, Mtu::Bytes4096);
            b.connect(a.pair.address(), &setup, Mtu::Bytes4096);
            (a, b)
        })
        .collect();
    for (i, (a, _)) in posters.iter_mut().enumerate() {
        for _ in 0..50 {
            a.write(Flags::SIGNALLED, rig.fetch_add(0, 1, 64 + i * 8));
        }
        a.publish();
    }
    rig.device.run_at(Time::at(Duration::from_secs(1)));
    assert_eq!(rig.target.read_u64(0), 200);
}

/// And to nothing else: a processor's addition in between is lost, as on
/// adapters whose atomics are a load and a store.
#[test]
fn atomics_are_not_atomic_to_a_processor() {
    let mut lost = 0;
    for seed in 0..20 {
        let mut rig = Rig::new(scattered(seed), &Setup::default());
        for _ in 0..10 {
            rig.a.write(Flags::SIGNALLED, rig.fetch_add(0, 1, 0));
        }
        rig.a.publish();
        let (mut added, mut done) = (0, 0);
        watch(&mut rig, |rig| {
            added += 1;
            rig.target.write_u64(0, rig.target.read_u64(0) + 1000);
            done += u32::from(rig.a.poll().is_some());
            done == 10
        });
        lost += u32::from(rig.target.read_u64(0) != 10 + 1000 * added);
    }
    assert!(lost > 10, "{lost} of 20");
}

#[test]
fn a_receive_completion_comes_after_the_bytes() {
    for seed in 0..50 {
        let setup = Setup {
            receive_queue: true,
            ..Setup::default()
        };
        let mut rig = Rig::new(scattered(seed), &setup);
        rig.source.write(0, &[9; PAYLOAD as usize]);
        rig.b.post_receive(&[]);
        let list = [rig.local(0, PAYLOAD).encode()];
        let payload = Payload::Gather(DataSegments::new(&list));
        let immediate = Some(0x0102_0304);
        rig.a.post(Operation::Write {
            remote: rig.remote(0),
            payload,
            immediate,
        });
        watch(&mut rig, |rig| match rig.b.poll_receive() {
            Some(completion) => {
                assert!(payload_is(rig, 9), "seed {seed}");
                let kind = ReceiveKind::WriteImmediate {
                    immediate: 0x0102_0304,
                };
                assert!(matches!(completion.entry, Entry::Responder { kind: k, .. } if k == kind));
                true
            }
            None => false,
        });
    }
}
