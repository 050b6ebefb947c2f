// SPDX-License-Identifier: MIT
//! Many threads on one shared queue, posts of every size mixed: each is announced once, whoever
//! does it.

use std::sync::Arc;

use mlx5_queue::{DoorbellRecord, Opcode, QueueIndex};
use mscclpp_device::abi::QueueForm;
use mscclpp_device::executor::Trace;
use mscclpp_device::executor::memory::Access;

use crate::support::end::{baton_at, ready_at};
use crate::support::script::{PUT, PUT_SIGNAL, PUT_SIGNAL_FLUSH, SIGNAL};
use crate::support::{Kernels, Op, Outcome, Rig, Runner, Setup, all_ok, equal, seeds, within};

/// Bytes of a part; the largest transfers here have nine.
const PART: u64 = 8;
/// Bytes of each thread's piece of the memories.
const PIECE: u64 = 9 * PART;
/// The word that all add to.
const SUM: u64 = 1 << 15;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }
}

#[derive(Default)]
struct Expected {
    requests: u64,
    writes: u64,
    atomics: u64,
    signals: u64,
    sum: u64,
}

/// A thread's calls: `rounds` posts of one request, of two, or of many, and last a flushed put of its
/// whole piece, which holds words of its own.
fn script(
    random: &mut Random,
    source: u64,
    thread: u64,
    rounds: u64,
    expected: &mut Expected,
) -> Vec<Op> {
    let at = thread * PIECE;
    let mut ops: Vec<Op> = (0..PIECE / 8)
        .map(|word| Op::store(source + at + 8 * word, value(thread, word)))
        .collect();
    for _ in 0..rounds {
        let parts = 1 + random.below(9);
        let (op, writes, signals) = match random.below(7) {
            0 | 1 => (Op::of(SIGNAL), 0, 1),
            2 => (Op::same(PUT, at, PART), 1, 0),
            3 => (Op::same(PUT_SIGNAL, at, PART), 1, 1),
            4 => (Op::same(PUT_SIGNAL, at, parts * PART), parts, 1),
            5 => {
                let flushed = Op::bound(PUT_SIGNAL_FLUSH, at, at, parts * PART);
                (flushed.value(1 << 40), parts, 1)
            }
            _ => {
                expected.sum += thread;
                expected.atomics += 1;
                expected.requests += 1;
                (Op::accumulate(SUM, thread as i64), 0, 0)
            }
        };
        ops.push(op);
        expected.writes += writes;
        expected.signals += signals;
        expected.atomics += signals;
        expected.requests += writes + signals;
    }
    ops.push(Op::bound(PUT_SIGNAL_FLUSH, at, at, PIECE));
    expected.writes += PIECE / PART;
    expected.signals += 1;
    expected.atomics += 1;
    expected.requests += PIECE / PART + 1;
    ops
}

fn value(thread: u64, word: u64) -> u64 {
    (thread + 1) << 32 | (word + 1)
}

fn run(
    kernels: &Kernels,
    setup: Setup,
    threads: u64,
    rounds: u64,
    seed: u64,
    weak: bool,
) -> Outcome {
    let setup = Setup {
        form: QueueForm::Shared,
        max_message: PART,
        ..setup.seed(seed)
    };
    let setup = if weak { setup.modelled() } else { setup };
    let what = format!(
        "{} blocks from {}, {threads} threads, seed {seed}, weak {weak}",
        setup.blocks, setup.start
    );
    let rig = Rig::new(setup);
    let source = rig.ends[0].source.address();
    let mut random = Random(seed);
    let mut expected = Expected::default();
    let scripts: Vec<_> = (0..threads)
        .map(|thread| script(&mut random, source, thread, rounds, &mut expected))
        .collect();
    let runner = Runner {
        model: weak.then(|| rig.weak(seed, || {}).into()),
        limit: within(10),
        ..Runner::direct(&rig, kernels)
    };
    // Half of them in each block.
    let ran = runner.run_all(2, &scripts);
    let checks = || {
        all_ok(&ran?.concat())?;
        let [own, peer] = &rig.ends;
        let posted = own.reserved() - rig.setup.start;
        equal("requests", posted, expected.requests)?;
        equal("signals", peer.signals(), expected.signals)?;
        equal("sum", peer.target.read_u64(SUM as usize), expected.sum)?;
        let counters = rig.devices[0].counters();
        let writes = counters.requests_of(Opcode::Write);
        equal("writes", writes, expected.writes)?;
        let atomics = counters.requests_of(Opcode::FetchAdd);
        equal("atomics", atomics, expected.atomics)?;
        for thread in 0..threads {
            for word in 0..PIECE / 8 {
                let seen = peer.target.read_u64((thread * PIECE + 8 * word) as usize);
                equal("word", seen, value(thread, word))?;
            }
        }
        rig.no_violations()
    };
    checks().map_err(|fault: String| {
        let own = &rig.ends[0];
        let at = (own.reserved(), own.completed(), own.error());
        format!("{what}: {fault}; at {at:x?}")
    })
}

/// On memory itself.
pub(crate) fn mixed(kernels: &Kernels) -> Outcome {
    for (blocks, start, threads) in [
        (2, 0, 32),
        (4, (1 << 31) - (1 << 16), 40),
        (8, 0, 64),
        (64, 0, 48),
    ] {
        for seed in 0..3 {
            let setup = Setup {
                blocks,
                start,
                ..Setup::default()
            };
            run(kernels, setup, threads, 40, seed, false)?;
        }
    }
    Ok(())
}

#[test]
fn posts_of_one_two_and_many_requests_of_many_threads_are_each_announced_once() {
    mixed(&Kernels::of("queue")).unwrap();
}

/// The same on weak memory.
fn weak<S: Iterator<Item = u64>>(kernels: &Kernels, seeds: impl Fn() -> S) -> Outcome {
    for blocks in [2, 4, 16, 64] {
        for seed in seeds() {
            let setup = Setup {
                blocks,
                ..Setup::default()
            };
            run(kernels, setup, 8, 8, seed, true)?;
        }
    }
    Ok(())
}

/// For mutants: which threads meet is up to the system too, so that a few seeds may show nothing.
pub(crate) fn weak_for_long(kernels: &Kernels) -> Outcome {
    weak(kernels, || 0..64)
}

#[test]
fn on_weak_memory_mixed_posts_of_several_threads_are_each_announced_once() {
    weak(&Kernels::of("queue"), || seeds(4)).unwrap();
}

/// One thread posts; what others do meanwhile is done for it, when its record reaches a step.
fn meanwhile(
    kernels: &Kernels,
    op: Op,
    first_word: u32,
    others: impl Fn(&Rig, Access) + Send + Sync + 'static,
) -> Result<Rig, String> {
    let mut setup = Setup::default().modelled();
    // Nobody fetches the others' requests, of which there are only ready words.
    setup.nic.faults.never_execute = true;
    let rig = Arc::new(Rig::new(setup));
    rig.ends[0].ready.write(0, &first_word.to_ne_bytes());
    let seen = rig.clone();
    let trace = Trace::observed(move |event| others(&seen, event.access));
    equal(
        "post",
        Runner::on(&rig, kernels, trace).run(&[op])?,
        vec![0],
    )?;
    Arc::into_inner(rig).ok_or_else(|| "the record is still in use".to_owned())
}

fn word(rig: &Rig, index: u64) -> u32 {
    let mut word = [0; 4];
    rig.ends[0].ready.read(index as usize * 4, &mut word);
    u32::from_ne_bytes(word)
}

fn announced(rig: &Rig, end: u64) -> Outcome {
    let mut record = [0; 4];
    rig.ends[0]
        .record
        .read(DoorbellRecord::SEND_OFFSET, &mut record);
    let expected = DoorbellRecord::send_word(QueueIndex::new(end));
    equal("record", record, expected)
}

/// The baton comes after the poster has looked for it and before it says that its post is ready: it
/// takes it then.
pub(crate) fn late_baton(kernels: &Kernels) -> Outcome {
    let rig = meanwhile(
        kernels,
        Op::same(PUT_SIGNAL, 0, 8),
        ready_at(1000),
        |rig, access| {
            let own = &rig.ends[0];
            let ring = own.ring.address() as usize;
            if matches!(access, Access::Store { address, .. } if address == ring) {
                own.ready.write(0, &baton_at(0).to_ne_bytes());
            }
        },
    )?;
    announced(&rig, 2)?;
    equal("the next word", word(&rig, 2), baton_at(2))
}

#[test]
fn a_baton_that_comes_late_is_taken() {
    late_baton(&Kernels::of("queue")).unwrap();
}

/// Each time that the NIC is told of all before `n`, the request at `n` becomes ready, up to the
/// sixth: the thread with the baton sees each and goes on, and leaves the baton behind the last.
pub(crate) fn late_posts(kernels: &Kernels) -> Outcome {
    const LAST: u64 = 6;
    let rig = meanwhile(kernels, Op::of(SIGNAL), baton_at(0), |rig, access| {
        let own = &rig.ends[0];
        if let Access::StoreMmio { value, .. } = access {
            let end = u64::from((value as u32).swap_bytes() >> 8);
            if end < LAST {
                own.ready
                    .write(end as usize * 4, &ready_at(end).to_ne_bytes());
            }
        }
    })?;
    announced(&rig, LAST)?;
    equal("the next word", word(&rig, LAST), baton_at(LAST))
}

#[test]
fn posts_that_become_ready_while_the_nic_is_told_are_announced() {
    late_posts(&Kernels::of("queue")).unwrap();
}
