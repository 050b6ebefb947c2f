// SPDX-License-Identifier: MIT
//! Each operation moves the bytes that it names, counts what it counts, and
//! touches nothing else.

use std::time::Duration;

use mscclpp_device::abi::{PortChannelDeviceHandle, QueueForm, SignalMode, Status};
use mscclpp_device::executor::Weak;

use crate::support::SCRATCH;
use crate::support::nic::{PART, PART_FROM, SOURCE, TARGET};
use crate::support::script::{
    ACCUMULATE, COMPATIBLE, FLUSH, GET, POLL, PUT, PUT_SIGNAL, PUT_SIGNAL_FLUSH, SIGNAL, WAIT,
};
use crate::support::{
    Kernels, Op, Outcome, Rig, Runner, Setup, TestChannel, all_ok, ensure, equal, seeds,
};

/// All of a buffer.
pub(crate) fn bytes(buffer: &mscclpp_softnic::HostBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes);
    bytes
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i * 7 + i / 251 + seed) as u8)
        .collect()
}

/// The memories' expected bytes, moved along with the calls.
struct Expected {
    source: Vec<u8>,
    target: Vec<u8>,
}

impl Expected {
    fn put(&mut self, to: usize, from: usize, size: usize) {
        self.target[to..to + size].copy_from_slice(&self.source[from..from + size]);
    }

    fn get(&mut self, from: usize, to: usize, size: usize) {
        self.source[to..to + size].copy_from_slice(&self.target[from..from + size]);
    }

    fn add(&mut self, at: usize, operand: i64) {
        let word: [u8; 8] = self.target[at..at + 8].try_into().unwrap();
        let sum = u64::from_le_bytes(word).wrapping_add(operand as u64);
        self.target[at..at + 8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Every form of every call, on direct or on weak memory; what they were made on.
fn every_call(kernels: &Kernels, setup: Setup, weak: Option<u64>) -> Result<Rig, String> {
    let atomic = setup.signal_mode == SignalMode::Atomic;
    let what = format!("{setup:?}, weak {weak:?}");
    let rig = Rig::new(setup);
    let [own, peer] = &rig.ends;
    let mut expected = Expected {
        source: pattern(3, own.source.len()),
        target: pattern(5, peer.target.len()),
    };
    own.source.write(0, &expected.source);
    peer.target.write(0, &expected.target);
    own.scratch.write(0, &pattern(9, own.scratch.len()));

    let mut ops = vec![
        Op::bound(PUT, 1, 2, 3),
        Op::same(PUT, 40, 50),
        Op::ids(PUT, (PART, 7), (SOURCE, 11), 13),
        Op::ids_same(PUT, TARGET, SOURCE, 200, 9),
        Op::bound(PUT, 0, 0, 0),
        Op::of(SIGNAL),
        Op::bound(PUT_SIGNAL, 300, 301, 17),
        Op::same(PUT_SIGNAL, 400, 18),
        Op::ids(PUT_SIGNAL, (PART, 100), (SOURCE, 500), 19),
        Op::ids_same(PUT_SIGNAL, TARGET, SOURCE, 600, 20),
        Op::bound(PUT_SIGNAL_FLUSH, 700, 801, 21),
        Op::same(PUT_SIGNAL_FLUSH, 900, 22),
        Op::ids(PUT_SIGNAL_FLUSH, (PART, 300), (SOURCE, 1000), 23),
        Op::ids_same(PUT_SIGNAL_FLUSH, TARGET, SOURCE, 1100, 24),
        // Larger than a page.
        Op::bound(PUT, 10_001, 20_003, 9999),
        Op::of(FLUSH),
        Op::bound(GET, 31, 30_001, 33),
        Op::same(GET, 32_000, 34),
        Op::ids(GET, (PART, 5), (SOURCE, 33_000), 35),
        Op::bound(GET, 0, 0, 0),
        Op::of(FLUSH),
    ];
    let moved = &mut expected;
    moved.put(1, 2, 3);
    moved.put(40, 40, 50);
    moved.put(PART_FROM + 7, 11, 13);
    moved.put(200, 200, 9);
    moved.put(300, 301, 17);
    moved.put(400, 400, 18);
    moved.put(PART_FROM + 100, 500, 19);
    moved.put(600, 600, 20);
    moved.put(700, 801, 21);
    moved.put(900, 900, 22);
    moved.put(PART_FROM + 300, 1000, 23);
    moved.put(1100, 1100, 24);
    moved.put(10_001, 20_003, 9999);
    moved.get(31, 30_001, 33);
    moved.get(32_000, 32_000, 34);
    moved.get(PART_FROM + 5, 33_000, 35);
    let mut sums = vec![
        Op::accumulate(2000, -17),
        Op::ids(ACCUMULATE, (PART, 16), (0, 0), 0).value(0x1234_5678_9abc_def0),
        Op::of(FLUSH),
    ];
    if atomic {
        moved.add(2000, -17);
        moved.add(PART_FROM + 16, 0x1234_5678_9abc_def0);
        ops.append(&mut sums);
    }
    let runner = match weak {
        None => Runner::direct(&rig, kernels),
        Some(seed) => Runner::on(&rig, kernels, rig.weak(seed, || {})),
    };
    let run = |ops: &[Op]| runner.run(ops).map_err(|fault| format!("{fault}: {what}"));
    all_ok(&run(&ops)?)?;
    if !atomic {
        let unsupported = vec![Status::Unsupported as u64; 2];
        let reserved = own.reserved();
        equal("sums", run(&sums[..2])?, unsupported)?;
        equal("requests", own.reserved(), reserved)?;
    }
    ensure(bytes(&own.source) == expected.source, || {
        format!("the source differs: {what}")
    })?;
    ensure(bytes(&peer.target) == expected.target, || {
        format!("the target differs: {what}")
    })?;
    equal("signals", peer.signals(), 9)?;

    // The peer consumes them: nine, and no more.
    let receiver = Runner {
        end: 1,
        model: None,
        ..Runner::direct(&rig, kernels)
    };
    let mut looks = vec![Op::of(WAIT); 8];
    looks.extend([Op::of(POLL), Op::of(POLL), Op::of(WAIT).value(20)]);
    let mut seen = vec![Status::Ok as u64; 8];
    seen.extend([1, 0, Status::Timeout as u64]);
    equal("the peer's looks", receiver.run(&looks)?, seen)?;
    equal("consumed", peer.consumed.get(0), 9)?;

    // Old values land in the queue's own word and nowhere else.
    let mut scratch = bytes(&own.scratch);
    let before = pattern(9, scratch.len());
    scratch[SCRATCH..SCRATCH + 8].copy_from_slice(&before[SCRATCH..SCRATCH + 8]);
    ensure(scratch == before, || "stray results".to_owned())?;
    Ok(rig)
}

fn setups() -> Vec<Setup> {
    let inline = Setup {
        signal_mode: SignalMode::InlineWrite,
        ..Setup::exclusive()
    };
    let every = Setup {
        form: QueueForm::Exclusive,
        ..Setup::default()
    };
    let linked = Setup {
        linked: true,
        ..Setup::default()
    };
    let split = Setup {
        max_message: 64,
        entries_per_block: 4,
        ..Setup::exclusive()
    };
    vec![
        Setup::default(),
        Setup::exclusive(),
        inline,
        every,
        linked,
        split,
    ]
}

pub(crate) fn direct(kernels: &Kernels) -> Outcome {
    // Longer than a thread is kept waiting between a record and its doorbell.
    let audits = Duration::from_secs(2);
    let rigs = setups().into_iter().map(|mut setup| {
        setup.nic.checks.audit_interval = audits;
        every_call(kernels, setup, None)
    });
    let rigs: Vec<Rig> = rigs.collect::<Result<_, _>>()?;
    // Two audits of each.
    std::thread::sleep(3 * audits);
    rigs.iter().try_for_each(Rig::no_violations)
}

#[test]
fn every_call_moves_its_bytes_and_counts_its_signals() {
    direct(&Kernels::of("queue")).unwrap();
}

pub(crate) fn weak(kernels: &Kernels) -> Outcome {
    for setup in setups().into_iter().filter(|setup| !setup.linked) {
        for seed in seeds(6) {
            let setup = setup.clone().modelled().seed(seed);
            every_call(kernels, setup, Some(seed))?.no_violations()?;
        }
    }
    Ok(())
}

#[test]
fn on_weak_memory_every_call_moves_its_bytes_and_counts_its_signals() {
    weak(&Kernels::of("queue")).unwrap();
}

#[test]
fn a_get_on_a_proxy_channel_is_unsupported_and_nothing_is_pushed() {
    let kernels = Kernels::of("queue");
    let rig = Rig::new(Setup::default());
    let channel = TestChannel::new(4);
    let ops = vec![
        Op::bound(GET, 0, 0, 8),
        Op::same(GET, 0, 8),
        Op::ids(GET, (0, 0), (0, 0), 8),
    ];
    let results = Runner::direct(&rig, &kernels)
        .run_with(channel.handle(), 1, &[ops])
        .unwrap();
    assert_eq!(results.concat(), [Status::Unsupported as u64; 3]);
    assert_eq!(channel.fifo.head.get(0), 0);
}

#[test]
fn a_queue_of_another_layout_is_seen_on_both_sides() {
    let kernels = Kernels::of("queue");
    let rig = Rig::new(Setup::default());
    let runner = Runner::direct(&rig, &kernels);
    let look = |channel: PortChannelDeviceHandle| {
        let ops = [vec![Op::of(COMPATIBLE)]];
        runner.run_with(channel, 1, &ops).unwrap().concat()[0] == 1
    };
    let channel = rig.channel(0);
    assert!(channel.check().is_ok() && look(channel));
    let mut foreign = channel;
    foreign.base.queue.queue.abi.size += 8;
    assert_eq!(foreign.check().unwrap_err().handle, "QueueDeviceHandle");
    assert!(!look(foreign));
    let mut old = channel;
    old.base.queue.queue.abi.version -= 1;
    assert!(old.check().is_err() && !look(old));
}

/// Two channels of one device: each counts and moves its own.
#[test]
fn channels_do_not_share_counters_or_memory() {
    let kernels = Kernels::of("queue");
    let rig = Rig::new(Setup::default());
    for end in &rig.ends {
        end.source
            .write(0, &pattern(end.pair.number().get() as usize, 64));
    }
    for (end, signals) in [(0, 3), (1, 5)] {
        let runner = Runner {
            end,
            ..Runner::direct(&rig, &kernels)
        };
        let mut ops = vec![Op::same(PUT_SIGNAL, 0, 64); signals];
        ops.push(Op::of(FLUSH));
        all_ok(&runner.run(&ops).unwrap()).unwrap();
    }
    let [a, b] = &rig.ends;
    assert_eq!((a.signals(), b.signals()), (5, 3));
    assert_eq!((a.reserved(), b.reserved()), (6, 10));
    for (own, peer) in [(a, b), (b, a)] {
        assert_eq!(bytes(&own.source)[..64], bytes(&peer.target)[..64]);
    }
    rig.no_violations().unwrap();
}

/// 100000 signals: their old values land in the queue's word, and no byte of the user changes.
#[test]
fn results_of_atomics_never_land_in_the_users_memory() {
    let kernels = Kernels::of("queue");
    let rig = Rig::new(Setup::default());
    let [own, peer] = &rig.ends;
    for (i, buffer) in [
        &own.source,
        &own.target,
        &peer.source,
        &peer.target,
        &own.scratch,
    ]
    .into_iter()
    .enumerate()
    {
        buffer.write(0, &pattern(i, buffer.len()));
    }
    crate::queue::limits::Stream::new(SIGNAL, 100_000)
        .run(&rig, &kernels, 1, None)
        .unwrap();
    assert_eq!(peer.signals(), 100_000);
    assert_eq!(own.scratch.read_u64(SCRATCH), 99_999);
    own.scratch
        .write(SCRATCH, &pattern(4, 4096)[SCRATCH..SCRATCH + 8]);
    for (i, buffer) in [
        &own.source,
        &own.target,
        &peer.source,
        &peer.target,
        &own.scratch,
    ]
    .into_iter()
    .enumerate()
    {
        assert!(bytes(buffer) == pattern(i, buffer.len()), "buffer {i}");
    }
}

/// What a put's source held when the flush returned is what arrived: it may be written again.
#[test]
fn on_weak_memory_a_source_may_be_written_again_behind_a_flush() {
    let kernels = Kernels::of("queue");
    for seed in seeds(10) {
        let rig = Rig::new(Setup::exclusive().modelled().seed(seed));
        let gpu = rig.weak(seed, || {});
        let source = rig.ends[0].source.address();
        let mut ops = Vec::new();
        for round in 0..16 {
            ops.push(Op::store(source, round + 1));
            ops.push(Op::bound(PUT, round * 8, 0, 8));
            ops.push(Op::of(FLUSH));
        }
        all_ok(
            &Runner::on(&rig, &kernels, Weak::clone(&gpu))
                .run(&ops)
                .unwrap(),
        )
        .unwrap();
        for round in 0..16 {
            assert_eq!(rig.ends[1].target.read_u64(round * 8), round as u64 + 1);
        }
    }
}
