// SPDX-License-Identifier: MIT
//! What requests do when nothing is wrong.

mod support;

use std::time::{Duration, Instant};

use mlx5_queue::*;
use mscclpp_softnic::*;
use support::slow_memory::SlowMemory;
use support::*;

#[test]
fn a_write_lands_and_completes() {
    let mut rig = Rig::inline();
    let data: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    rig.source.write(3, &data);
    let index = rig.post_write(3, 77, 10_000);
    let completion = rig.a.wait();
    assert_eq!(completion.failure(), None);
    assert_eq!(completion.wqe_counter, index.low16());
    assert_eq!(completion.queue, rig.a.pair.number());
    assert!(matches!(
        completion.entry,
        Entry::Requester { opcode: 8, .. }
    ));
    let mut seen = vec![0; 10_002];
    rig.target.read(76, &mut seen);
    assert_eq!(seen[1..10_001], data);
    assert_eq!((seen[0], seen[10_001]), (0, 0));
    assert_eq!(rig.a.poll(), None);
}

#[test]
fn gathered_and_inline_bytes_land_in_order() {
    let mut rig = Rig::inline();
    rig.source.write(0, b"abcdefghij");
    let list = [rig.local(8, 2), rig.local(0, 1), rig.local(4, 3)].map(DataSegment::encode);
    let remote = rig.remote(1);
    rig.a.post(write(remote, &list));
    let payload = Payload::Inline(b"-inline data of more than one block, which is 64 bytes long-");
    rig.a.post(Operation::Write {
        remote: rig.remote(7),
        payload,
        immediate: None,
    });
    assert_eq!(
        (rig.a.wait().failure(), rig.a.wait().failure()),
        (None, None)
    );
    let mut seen = [0; 68];
    rig.target.read(0, &mut seen);
    assert_eq!(&seen[..7], b"\0ijaefg");
    assert_eq!(
        &seen[7..67],
        b"-inline data of more than one block, which is 64 bytes long-"
    );
    assert_eq!(rig.a.pair.status().finished, 2 + 2);
}

#[test]
fn a_read_scatters_what_is_there() {
    let mut rig = Rig::inline();
    let data: Vec<u8> = (0..200_000).map(|i| (i % 251) as u8).collect();
    rig.target.write(5, &data);
    let list = [
        rig.local(1000, 3),
        rig.local(0, 70_000),
        rig.local(200_000, 129_997),
    ];
    let list = list.map(DataSegment::encode);
    let scatter = DataSegments::new(&list);
    rig.a.post(Operation::Read {
        remote: rig.remote(5),
        scatter,
    });
    let completion = rig.a.wait();
    assert!(matches!(
        completion.entry,
        Entry::Requester {
            opcode: 0x10,
            bytes: 200_000,
            ..
        }
    ));
    let mut seen = vec![0; 200_000];
    rig.source.read(0, &mut seen[3..70_003]);
    rig.source.read(200_000, &mut seen[70_003..]);
    // The first piece was written before the second, which covers its place.
    assert_eq!(seen[3..], data[3..]);
}

#[test]
fn atomics_return_the_old_value_and_store_the_new() {
    let mut rig = Rig::inline();
    rig.target.write_u64(64, 40);
    rig.a.post(rig.fetch_add(64, 2, 0));
    assert_eq!(rig.a.wait().failure(), None);
    assert_eq!((rig.source.read_u64(0), rig.target.read_u64(64)), (40, 42));
    let swap = |rig: &Rig, compare, swap| Operation::CompareSwap {
        remote: rig.remote(64),
        compare,
        swap,
        result: rig.local(8, 8),
    };
    rig.a.post(swap(&rig, 7, 1));
    assert_eq!(rig.a.wait().failure(), None);
    assert_eq!((rig.source.read_u64(8), rig.target.read_u64(64)), (42, 42));
    rig.a.post(swap(&rig, 42, u64::MAX));
    assert_eq!(rig.a.wait().failure(), None);
    assert_eq!(
        (rig.source.read_u64(8), rig.target.read_u64(64)),
        (42, u64::MAX)
    );
    rig.a.post(rig.fetch_add(64, 3, 0));
    rig.a.wait();
    assert_eq!(rig.target.read_u64(64), 2);
}

#[test]
fn requests_without_bytes_complete() {
    let mut rig = Rig::inline();
    rig.a.post(Operation::Nop);
    let nowhere = RemoteAddress {
        address: 0,
        key: MemoryKey::new(0),
    };
    rig.a.post(write(nowhere, &[]));
    let scatter = DataSegments::new(&[]);
    rig.a.post(Operation::Read {
        remote: nowhere,
        scatter,
    });
    rig.a.post(Operation::Dump {
        source: rig.local(0, 8),
    });
    for opcode in [Opcode::Nop, Opcode::Write, Opcode::Read, Opcode::Dump] {
        let completion = rig.a.wait();
        assert_eq!(completion.failure(), None);
        let Entry::Requester { opcode: seen, .. } = completion.entry else {
            panic!()
        };
        assert_eq!(seen, opcode as u8);
        assert_eq!(rig.device.counters().requests_of(opcode), 1);
    }
}

#[test]
fn unsignalled_requests_complete_with_the_next_signalled_one() {
    let mut rig = Rig::inline();
    for i in 0..10 {
        rig.source.write_u64(i * 8, i as u64 + 1);
        let list = [rig.local(i * 8, 8).encode()];
        let remote = rig.remote(i * 8);
        let flags = if i == 9 {
            Flags::SIGNALLED
        } else {
            Flags::UNSIGNALLED
        };
        rig.a.write(flags, write(remote, &list));
    }
    rig.a.publish();
    let completion = rig.a.wait();
    assert_eq!((completion.wqe_counter, completion.failure()), (9, None));
    assert_eq!(rig.a.poll(), None);
    for i in 0..10 {
        assert_eq!(rig.target.read_u64(i * 8), i as u64 + 1);
    }
}

/// 200 000 requests through a queue of 64 blocks: the 16-bit counters wrap
/// three times, and the completion ring's owner bit many times.
#[test]
fn a_queue_wraps_and_counts_right() {
    let mut rig = Rig::inline();
    let total = 200_000u64;
    let mut posted = 0;
    let mut completed = 0;
    while completed < total {
        while posted < total && posted - completed < 32 {
            rig.a.write(Flags::SIGNALLED, rig.fetch_add(0, 1, 8));
            posted += 1;
        }
        rig.a.publish();
        while let Some(completion) = rig.a.poll() {
            assert_eq!(completion.failure(), None);
            assert_eq!(completion.wqe_counter, completed as u16);
            completed += 1;
        }
    }
    assert_eq!(rig.target.read_u64(0), total);
    assert_eq!(rig.source.read_u64(8), total - 1);
    assert_eq!(rig.device.take_violations(), []);
}

#[test]
fn a_large_request_runs_over_the_end_of_the_ring() {
    let mut rig = Rig::new(
        inline(),
        &Setup {
            blocks: 16,
            ..Setup::default()
        },
    );
    for round in 0..20usize {
        // 58 segments and the two before: 15 blocks; then 1 + 3 blocks.
        let list: Vec<_> = (0..58)
            .map(|i| rig.local(i * 11 + round, 7).encode())
            .collect();
        let text: Vec<u8> = (0..58 * 11 + 40).map(|i| (i * 3 + round) as u8).collect();
        rig.source.write(0, &text);
        let remote = rig.remote(0);
        rig.a.post(write(remote, &list));
        assert_eq!(rig.a.wait().failure(), None);
        let mut seen = vec![0; 58 * 7];
        rig.target.read(0, &mut seen);
        for (i, chunk) in seen.chunks(7).enumerate() {
            assert_eq!(chunk, &text[i * 11 + round..][..7]);
        }
        rig.a.post(Operation::Nop);
        assert_eq!(rig.a.wait().failure(), None);
    }
    assert_eq!(rig.device.take_violations(), []);
}

#[test]
fn a_thread_of_its_own_serves_plain_stores_to_the_register() {
    let mut rig = Rig::new(DeviceConfig::default(), &Setup::default());
    let register = rig.a.pair.page().register();
    for round in 0..50u64 {
        rig.source.write_u64(0, round);
        let list = [rig.local(0, 8).encode()];
        let remote = rig.remote(8);
        rig.a.write(Flags::SIGNALLED, write(remote, &list));
        rig.a.store_record();
        let bytes = Doorbell::new(rig.a.pair.number(), rig.a.head).encode();
        // SAFETY: the register is 8 aligned bytes that live as long as the
        // page, and others only access them as this does.
        let word =
            unsafe { std::sync::atomic::AtomicU64::from_ptr(register.address() as *mut u64) };
        word.store(
            u64::from_ne_bytes(bytes),
            std::sync::atomic::Ordering::Release,
        );
        assert_eq!(rig.a.wait().failure(), None);
        assert_eq!(rig.target.read_u64(8), round);
    }
    assert_eq!(rig.device.counters().doorbells, 50);
}

#[test]
fn a_doorbell_page_may_lie_in_memory_of_the_caller() {
    let rig = Rig::new(DeviceConfig::default(), &Setup::default());
    let buffer = HostBuffer::new(2 * 4096);
    let page = |offset, length| buffer.range().slice(offset, length).unwrap();
    let allocate = |page| rig.device.allocate_doorbell_page_in(page);
    let made = allocate(page(4096, 4096)).unwrap();
    assert_eq!(made.register().address(), buffer.address() + 4096 + 0x800);
    // Nobody has such a queue: that it was seen is all.
    buffer.write_u64(4096 + 0x800, u64::from_ne_bytes([7; 8]));
    let until = Instant::now() + Duration::from_secs(20);
    while buffer.read_u64(4096 + 0x800) != 0 {
        assert!(Instant::now() < until, "the NIC has not seen a doorbell");
        std::thread::yield_now();
    }

    let slow = SlowMemory::new(1);
    let refused = [page(0, 4095), page(4, 4096), slow.range(&buffer)];
    let pages = rig.device.counters().live.doorbell_pages;
    for page in refused {
        let error = allocate(page).map(drop).unwrap_err();
        assert!(
            matches!(error, mscclpp_softnic::Error::Range { .. }),
            "{error}"
        );
    }
    assert_eq!(rig.device.counters().live.doorbell_pages, pages);
}

#[test]
fn both_directions_and_many_pairs_run_at_once() {
    let rig = Rig::new(DeviceConfig::default(), &Setup::default());
    let setup = Setup::default();
    let mut threads = Vec::new();
    for pair in 0..4usize {
        let mut a = Poster::new(&rig.domain, &setup);
        let b = Poster::new(&rig.domain, &setup);
        a.connect(b.pair.address(), &setup, Mtu::Bytes1024);
        b.connect(a.pair.address(), &setup, Mtu::Bytes1024);
        let operation = rig.fetch_add(0, 1, 64 + pair * 8);
        threads.push(std::thread::spawn(move || {
            for _ in 0..2000 {
                a.post(operation);
                assert_eq!(a.wait().failure(), None);
            }
            drop(b);
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(rig.target.read_u64(0), 8000);
}

#[test]
fn same_inputs_at_same_times_give_the_same_bytes() {
    let run = |seed| {
        let landing = Landing::Scattered {
            linger: Duration::from_micros(50),
        };
        let network = NetworkConfig {
            loss: 0.05,
            ..NetworkConfig::default()
        };
        let mut rig = Rig::new(
            DeviceConfig {
                seed,
                landing,
                network,
                ..manual()
            },
            &Setup {
                blocks: 128,
                mtu: (Mtu::Bytes256, Mtu::Bytes256),
                ..Setup::default()
            },
        );
        let mut trace = Vec::new();
        for i in 0..40usize {
            rig.source.write(i, &vec![i as u8 + 1; 3000]);
            rig.post_write(i, i * 100, 3000);
            rig.a.post(rig.fetch_add(8 * 4096, i as u64, 8 * 5000));
        }
        let mut time = Time::ZERO;
        for _ in 0..20_000 {
            time = time.after(rig.device.idle_for().unwrap_or_default());
            rig.device.run_at(time);
            while let Some(completion) = rig.a.poll() {
                let mut bytes = vec![0; 8192];
                rig.target.read(0, &mut bytes);
                trace.push((time, completion, bytes));
            }
            if trace.len() == 80 {
                return trace;
            }
        }
        panic!("only {} of 80 completions", trace.len());
    };
    let first = run(1);
    assert!(first == run(1), "the same seed twice");
    assert!(first != run(2), "another seed");
}
