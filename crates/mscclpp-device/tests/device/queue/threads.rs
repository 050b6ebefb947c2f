// SPDX-License-Identifier: MIT
//! Several threads on one queue, at the same time or in turn.

use mlx5_queue::{
    DataSegment, DataSegments, Flags, MemoryKey, Operation, Payload, QueueNumber, RemoteAddress,
    WorkRequest,
};
use mscclpp_device::abi::QueueForm;

use super::limits::Stream;
use crate::support::end::{baton_at, ready_at};
use crate::support::script::{FLUSH, PUT_SIGNAL, PUT_SIGNAL_FLUSH, SIGNAL, WAIT};
use crate::support::{
    Cells, Kernels, Op, Outcome, Rig, Runner, Setup, all_ok, equal, seeds, within,
};

/// Each thread's flush covers its own post: its bytes are at the peer when it returns.
pub(crate) fn own_completions(kernels: &Kernels) -> Outcome {
    const THREADS: u64 = 32;
    const ROUNDS: u64 = 60;
    let rig = Rig::new(Setup::default());
    let (source, target) = (rig.ends[0].source.address(), rig.ends[1].target.address());
    let value = |thread, round| thread << 32 | (round + 1);
    let scripts: Vec<Vec<Op>> = (0..THREADS)
        .map(|thread| {
            let calls = (0..ROUNDS).flat_map(|round| {
                [
                    Op::store(source + 8 * thread, value(thread, round)),
                    Op::same(PUT_SIGNAL_FLUSH, 8 * thread, 8),
                    Op::load(target + 8 * thread),
                ]
            });
            calls.collect()
        })
        .collect();
    let runner = Runner {
        limit: within(40),
        ..Runner::direct(&rig, kernels)
    };
    // Four blocks of eight.
    for (thread, results) in runner.run_all(4, &scripts)?.iter().enumerate() {
        for (round, result) in results.chunks(3).enumerate() {
            let expected = [0, 0, value(thread as u64, round as u64)];
            equal(
                &format!("thread {thread}, round {round}"),
                result,
                &expected,
            )?;
        }
    }
    equal("signals", rig.ends[1].signals(), THREADS * ROUNDS)?;
    equal("requests", rig.ends[0].completed(), 2 * THREADS * ROUNDS)?;
    rig.no_violations()
}

#[test]
fn thirty_two_threads_on_one_queue_each_see_their_own_completion() {
    own_completions(&Kernels::of("queue")).unwrap();
}

/// No post is left unannounced, whoever publishes.
pub(crate) fn nobody_is_forgotten(kernels: &Kernels) -> Outcome {
    for blocks in [4, 64] {
        for round in 0..10 {
            let rig = Rig::new(Setup {
                blocks,
                ..Setup::default()
            });
            let stream = Stream {
                limit: within(5),
                flush_every: 7,
                ..Stream::new(SIGNAL, 400)
            };
            stream
                .run(&rig, kernels, 6, None)
                .map_err(|fault| format!("{blocks} blocks, round {round}: {fault}"))?;
            equal("signals", rig.ends[1].signals(), 6 * 400)?;
            rig.no_violations()?;
        }
    }
    Ok(())
}

#[test]
fn every_threads_posts_are_announced() {
    nobody_is_forgotten(&Kernels::of("queue")).unwrap();
}

#[test]
fn several_threads_wait_and_post_on_one_channel() {
    let kernels = Kernels::of("queue");
    let rig = Rig::new(Setup::default());
    let (near, far) = (
        Runner::direct(&rig, &kernels),
        Runner {
            end: 1,
            ..Runner::direct(&rig, &kernels)
        },
    );
    // Each thread signals and waits; the ends run at the same time.
    let mut thread = Vec::new();
    for _ in 0..50 {
        thread.extend([Op::of(SIGNAL), Op::of(WAIT)]);
    }
    let scripts = vec![thread; 4];
    std::thread::scope(|scope| {
        let other = scope.spawn(|| far.run_all(2, &scripts));
        all_ok(&near.run_all(1, &scripts).unwrap().concat()).unwrap();
        all_ok(&other.join().unwrap().unwrap().concat()).unwrap();
    });
    for end in &rig.ends {
        assert_eq!((end.signals(), end.consumed.get(0)), (200, 200));
    }
    rig.no_violations().unwrap();
}

/// An exclusive queue goes from block to block behind the grid's barrier, and from launch to launch,
/// on direct and on weak memory.
pub(crate) fn handed_over(kernels: &Kernels) -> Outcome {
    (0..3).try_for_each(|seed| hand_over(kernels, seed, false))?;
    seeds(3).try_for_each(|seed| hand_over(kernels, seed, true))
}

fn hand_over(kernels: &Kernels, seed: u64, weak: bool) -> Outcome {
    const BLOCKS: u64 = 3;
    let setup = Setup {
        blocks: 8,
        ..Setup::exclusive()
    };
    let setup = if weak { setup.modelled() } else { setup };
    let rig = Rig::new(setup.seed(seed));
    let source = rig.ends[0].source.address();
    let syncer = Cells::new(2);
    let model = weak.then(|| rig.weak(seed, || {}).into());
    let mut turn = 0;
    for launch in 0..3 {
        let mut scripts = vec![Vec::new(); BLOCKS as usize];
        for _ in 0..5 {
            for block in 0..BLOCKS {
                // Two posts, the second of what the last poster's block stored.
                let at = 8 * turn;
                scripts[block as usize].extend([
                    Op::store(source + at, turn + 1),
                    Op::same(PUT_SIGNAL, at, 8),
                ]);
                turn += 1;
                if turn % 4 == 0 {
                    scripts[block as usize].push(Op::of(FLUSH));
                }
                for script in &mut scripts {
                    script.push(Op::grid_barrier(syncer));
                }
            }
        }
        let runner = Runner {
            model: model.clone(),
            ..Runner::direct(&rig, kernels)
        };
        all_ok(&runner.run_all(BLOCKS as u32, &scripts)?.concat())
            .map_err(|fault| format!("seed {seed}, launch {launch}: {fault}"))?;
    }
    let runner = Runner {
        model: model.clone(),
        ..Runner::direct(&rig, kernels)
    };
    all_ok(&runner.run(&[Op::of(FLUSH)])?)?;
    let seen: Vec<_> = (0..turn)
        .map(|turn| rig.ends[1].target.read_u64(8 * turn as usize))
        .collect();
    equal("target", seen, (1..=turn).collect())?;
    equal("signals", rig.ends[1].signals(), turn)?;
    equal("requests", rig.ends[0].completed(), 2 * turn)?;
    rig.no_violations()
}

#[test]
fn an_exclusive_queue_is_handed_over_by_barriers_and_launches_on_weak_memory_too() {
    handed_over(&Kernels::of("queue")).unwrap();
}

/// A thread stores payload, request and ready word, and is not heard of again; the one before it
/// has the baton and announces both. It must take over all that the other had stored.
pub(crate) fn another_threads_request(kernels: &Kernels) -> Outcome {
    for seed in seeds(60) {
        let rig = Rig::new(Setup::default().modelled().seed(seed));
        let [own, peer] = &rig.ends;
        let channel = rig.channel(0);
        let (dst, src) = (channel.dst_memory, channel.src_memory);
        let key = |wire: u32| MemoryKey::new(u32::from_be(wire));
        let piece = DataSegment::new(src.address, key(src.key), 8).unwrap();
        let list = [piece.encode()];
        let request = WorkRequest {
            queue: QueueNumber::new(channel.base.queue.queue.number).unwrap(),
            index: 1,
            flags: Flags::SIGNALLED,
            operation: Operation::Write {
                remote: RemoteAddress {
                    address: dst.address,
                    key: key(dst.key),
                },
                payload: Payload::Gather(DataSegments::new(&list)),
                immediate: None,
            },
        };
        let mut bytes = [0; 64];
        let written = request.encode(&mut bytes).unwrap();
        let mut first = vec![Op::store(src.address, 42)];
        for (i, word) in bytes[..written].chunks(8).enumerate() {
            let word = u64::from_ne_bytes(word.try_into().unwrap());
            first.push(Op::store(own.ring.address() + 64 + 8 * i as u64, word));
        }
        let ready = own.ready.address();
        first.extend([Op::release(), Op::store_half(ready + 4, ready_at(1))]);
        // It gives the other time to announce it: nothing more that it stores releases anything.
        first.push(Op::await_half(ready + 8, baton_at(2)));
        let second = vec![
            Op::await_half(ready + 4, ready_at(1)),
            Op::of(SIGNAL),
            Op::sync(2, -1),
        ];
        let runner = Runner {
            limit: within(5),
            ..Runner::on(&rig, kernels, rig.weak(seed, || {}))
        };
        let ran = runner.run_all(2, &[first, second]);
        let seen = rig.violations();
        let results = ran.map_err(|fault| format!("seed {seed}: {fault}, {seen:?}"))?;
        all_ok(&results.concat()).map_err(|fault| {
            format!(
                "seed {seed}: {fault}, {seen:?}, {:x?}, {:?}",
                own.error(),
                own.pair.status()
            )
        })?;
        equal(&format!("seed {seed}: target"), peer.target.read_u64(0), 42)?;
        equal("completed", own.completed(), 2)?;
    }
    Ok(())
}

#[test]
fn on_weak_memory_a_publisher_takes_over_what_others_stored() {
    another_threads_request(&Kernels::of("queue")).unwrap();
}

/// The shared form by one thread at a time is a queue like any other: launch after launch.
#[test]
fn a_shared_queues_state_survives_launches() {
    let kernels = Kernels::of("queue");
    for weak in [false, true] {
        let setup = Setup {
            form: QueueForm::Shared,
            blocks: 16,
            ..Setup::default()
        };
        let rig = Rig::new(if weak { setup.modelled() } else { setup });
        let model = weak.then(|| rig.weak(3, || {}).into());
        for launch in 1..=20 {
            let runner = Runner {
                model: model.clone(),
                ..Runner::direct(&rig, &kernels)
            };
            let scripts = vec![vec![Op::same(PUT_SIGNAL, 0, 8); 3]; 4];
            all_ok(&runner.run_all(2, &scripts).unwrap().concat()).unwrap();
            assert_eq!(rig.ends[0].reserved(), launch * 24);
        }
        let runner = Runner {
            model,
            ..Runner::direct(&rig, &kernels)
        };
        all_ok(&runner.run(&[Op::of(FLUSH)]).unwrap()).unwrap();
        assert_eq!(rig.ends[1].signals(), 240);
        rig.no_violations().unwrap();
    }
}
