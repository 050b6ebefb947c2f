// SPDX-License-Identifier: MIT
//! Requests that fail: the sticky error, and who learns of it.

use std::mem::offset_of;
use std::time::Duration;

use mlx5_queue::{Completion, Entry, Failure, Opcode, QueueNumber, Syndrome};
use mscclpp_device::abi::{
    QueueFailureCause, QueueForm, QueueMemory, QueueState, Status, StatusWord,
};
use mscclpp_device::executor::Trace;
use mscclpp_device::executor::memory::Access;
use mscclpp_softnic::SendAttributes;

use crate::support::nic::{SOURCE, TARGET};
use crate::support::script::{FLUSH, GET, PUT, PUT_SIGNAL, PUT_SIGNAL_FLUSH, SIGNAL, WAIT};
use crate::support::{Cells, Kernels, Op, Outcome, Rig, Runner, Setup, equal, within};

const FAILED: u64 = Status::QueueError as u64;

fn forms() -> [Setup; 3] {
    let every = Setup {
        form: QueueForm::Exclusive,
        ..Setup::default()
    };
    [Setup::default(), Setup::exclusive(), every]
}

/// Runs with a deadline that a hang exceeds soon.
fn run(rig: &Rig, kernels: &Kernels, ops: &[Op]) -> Result<Vec<u64>, String> {
    let runner = Runner {
        limit: within(5),
        ..Runner::direct(rig, kernels)
    };
    runner.run(ops)
}

fn says(rig: &Rig, syndrome: Syndrome, opcode: Opcode, index: u64) -> Outcome {
    let (bits, at) = rig.ends[0].error();
    let word = StatusWord::from_bits(bits);
    equal("code", word.code, Status::QueueError as u32)?;
    let [seen, _vendor, of, cause] = word.detail.to_le_bytes();
    equal("syndrome", Syndrome(seen), syndrome)?;
    equal("opcode", of, opcode as u8)?;
    equal("cause", cause, QueueFailureCause::Completion as u8)?;
    equal("failed request", at, index)
}

/// What is wrong, in the middle of what is right.
pub(crate) fn sticky(kernels: &Kernels) -> Outcome {
    const BAD: u32 = 9;
    let by_id = |kind, dst, src| Op::ids(kind, (dst, 0), (src, 0), 8);
    type Case = (fn(&Rig) -> QueueMemory, Op, Syndrome, Opcode);
    fn foreign(access: u32, rig: &Rig) -> QueueMemory {
        QueueMemory {
            // A key that no registration has.
            address: rig.ends[1].target.address(),
            size: 4096,
            key: 0x0123_4567,
            access,
        }
    }
    let cases: [Case; 3] = [
        (
            |rig| foreign(QueueMemory::REMOTE, rig),
            by_id(PUT, BAD, SOURCE),
            Syndrome::REMOTE_ACCESS,
            Opcode::Write,
        ),
        (
            |rig| foreign(QueueMemory::LOCAL, rig),
            by_id(PUT, TARGET, BAD),
            Syndrome::LOCAL_PROTECTION,
            Opcode::Write,
        ),
        (
            |rig| foreign(QueueMemory::REMOTE, rig),
            by_id(GET, BAD, SOURCE),
            Syndrome::REMOTE_ACCESS,
            Opcode::Read,
        ),
    ];
    for setup in forms() {
        // Also where the NIC's 16 bits have wrapped before.
        for start in [0, 7 << 16] {
            for (memory, bad, syndrome, opcode) in cases {
                let setup = Setup {
                    start,
                    ..setup.clone()
                };
                let rig = Rig::new(setup.clone());
                rig.ends[0].set_memory(BAD, memory(&rig));
                let index = start + 5;
                let results = run(
                    &rig,
                    kernels,
                    &[
                        Op::of(SIGNAL),
                        Op::same(PUT_SIGNAL, 0, 8),
                        Op::same(PUT_SIGNAL_FLUSH, 0, 8),
                        bad,
                        Op::same(PUT_SIGNAL_FLUSH, 0, 8),
                        Op::of(FLUSH),
                    ],
                )?;
                let expected = [0, 0, 0, 0, FAILED, FAILED];
                equal(&format!("{bad:?}"), &results[..], &expected)?;
                says(&rig, syndrome, opcode, index)?;

                // Sticky: later posts fail at once, whatever the budget. On a shared queue they have
                // taken their slots by then, unless they have a budget.
                let reserved = rig.ends[0].reserved();
                let later = run(
                    &rig,
                    kernels,
                    &[
                        Op::same(PUT, 0, 8),
                        Op::of(SIGNAL),
                        Op::same(PUT_SIGNAL, 0, 8),
                        Op::bound(PUT_SIGNAL_FLUSH, 0, 0, 8).value(3),
                        Op::same(GET, 0, 8),
                        Op::accumulate(0, 1),
                        Op::of(FLUSH),
                        // A wait for a signal that cannot come any more ends too.
                        Op::of(WAIT),
                        // What had completed before is complete; the failed one is not.
                        Op::sync(index, -1),
                        Op::sync(index + 1, -1),
                    ],
                )?;
                let mut expected = [FAILED; 10];
                expected[8] = Status::Ok as u64;
                equal("later calls", &later[..], &expected)?;
                let taken = match setup.form {
                    QueueForm::Exclusive => 0,
                    QueueForm::Shared => 6,
                };
                equal("requests", rig.ends[0].reserved(), reserved + taken)?;
                equal("signals", rig.ends[1].signals(), 3)?;
                equal("completed", rig.ends[0].completed(), index)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_failed_request_is_a_sticky_error_with_its_syndrome_and_index() {
    sticky(&Kernels::of("queue")).unwrap();
}

/// A signal that arrived is consumed, though the queue has failed.
#[test]
fn a_signal_that_arrived_wins_over_a_failed_queue() {
    let kernels = Kernels::of("queue");
    let rig = Rig::new(Setup::default());
    let [own, peer] = &rig.ends;
    own.set_memory(
        9,
        QueueMemory {
            address: 8,
            size: 8,
            key: 1,
            access: QueueMemory::REMOTE,
        },
    );
    let bad = Op::ids(PUT, (9, 0), (SOURCE, 0), 8);
    let results = run(&rig, &kernels, &[bad, Op::of(FLUSH)]).unwrap();
    assert_eq!(results, [0, FAILED]);
    assert_eq!(peer.signals(), 0);
    own.token.write_u64(0, 1);
    let waits = [Op::of(WAIT), Op::of(WAIT)];
    assert_eq!(run(&rig, &kernels, &waits).unwrap(), [0, FAILED]);
}

/// Full of requests that fail, and one more post: it ends, and what was reserved never blocks.
pub(crate) fn flushed(kernels: &Kernels) -> Outcome {
    for setup in forms() {
        let setup = Setup { blocks: 4, ..setup };
        let rig = Rig::new(setup);
        rig.ends[0].set_memory(
            9,
            QueueMemory {
                address: 8,
                size: 8,
                key: 1,
                access: QueueMemory::REMOTE,
            },
        );
        let bad = Op::ids(PUT, (9, 0), (SOURCE, 0), 8);
        let mut ops = vec![bad; 40];
        ops.push(Op::of(FLUSH));
        let results = run(&rig, kernels, &ops)?;
        equal("the last", &results[30..], &[FAILED; 11])?;
        says(&rig, Syndrome::REMOTE_ACCESS, Opcode::Write, 0)?;
    }
    Ok(())
}

#[test]
fn a_queue_full_of_failures_ends_posts_and_flushes() {
    flushed(&Kernels::of("queue")).unwrap();
}

/// The cable is out: retries end, and with them whoever waits, also for a signal only.
#[test]
fn a_peer_that_does_not_answer_ends_flushes_and_waits() {
    let kernels = Kernels::of("queue");
    for waits in [Op::of(FLUSH), Op::of(WAIT)] {
        let rig = Rig::new(Setup {
            send: SendAttributes {
                timeout: Duration::from_millis(2),
                retry_count: 1,
                ..SendAttributes::default()
            },
            linked: true,
            ..Setup::default()
        });
        rig.devices[0].set_link_up(false);
        let results = run(&rig, &kernels, &[Op::same(PUT_SIGNAL, 0, 8), waits]).unwrap();
        assert_eq!(results, [0, FAILED]);
        says(&rig, Syndrome::TRANSPORT_RETRY_EXCEEDED, Opcode::Write, 0).unwrap();
    }
}

/// Completions that are neither success nor unwritten count as failures, whatever they are.
pub(crate) fn unknown_completions(kernels: &Kernels) -> Outcome {
    for opcode in (1..15).filter(|opcode| *opcode != 13).chain([13]) {
        // Requests are posted to a queue whose NIC does nothing; the test completes them.
        let mut setup = Setup::default();
        setup.nic.faults.never_execute = true;
        let rig = Rig::new(setup);
        let own = &rig.ends[0];
        let completion = Completion {
            queue: QueueNumber::MAX,
            wqe_counter: 1,
            owner: false,
            entry: Entry::RequesterError {
                opcode: Opcode::FetchAdd as u8,
                failure: Failure {
                    vendor: 0x77,
                    ..Failure::new(Syndrome(0x42))
                },
            },
        };
        let mut bytes = completion.encode();
        bytes[63] = opcode << 4;
        own.completions.write(0, &bytes);
        let results = run(
            &rig,
            kernels,
            &[Op::of(SIGNAL), Op::of(SIGNAL), Op::of(FLUSH)],
        )?;
        equal(&format!("opcode {opcode}"), results[2], FAILED)?;
        says(&rig, Syndrome(0x42), Opcode::FetchAdd, 1)?;
        equal("vendor", rig.ends[0].error().0 >> 40 & 0xff, 0x77)?;
        equal("before it", rig.ends[0].completed(), 1)?;
    }
    Ok(())
}

#[test]
fn whatever_is_not_a_success_is_a_failure() {
    unknown_completions(&Kernels::of("queue")).unwrap();
}

/// A thread looks at an entry that others have long consumed, and finds in its slot the flushed
/// request of two laps later: that is not the one that failed.
pub(crate) fn stale_looks(kernels: &Kernels) -> Outcome {
    let mut setup = Setup::default().modelled();
    setup.nic.faults.never_execute = true;
    let rig = Rig::new(setup);
    let own = &rig.ends[0];
    let entry = |number: u64, syndrome| {
        let completion = Completion {
            queue: own.pair.number(),
            wqe_counter: number as u16,
            owner: number / 64 % 2 == 1,
            entry: Entry::RequesterError {
                opcode: Opcode::Write as u8,
                failure: Failure::new(syndrome),
            },
        };
        (number as usize % 64 * 64, completion.encode())
    };
    let (failed, flushed) = (
        entry(100, Syndrome::REMOTE_ACCESS),
        entry(128, Syndrome::FLUSHED),
    );
    let (state, completions) = (own.state.clone(), own.completions.clone());
    let consumed = state.address() as usize + offset_of!(QueueState, consumed);
    let once = std::sync::Once::new();
    let trace = Trace::observed(move |event| {
        if matches!(event.access, Access::Load { address, .. } if address == consumed) {
            once.call_once(|| {
                for (at, bytes) in [failed, flushed] {
                    completions.write(at, &bytes);
                }
                for (word, value) in [
                    (offset_of!(QueueState, reserved), 130),
                    (offset_of!(QueueState, completed), 100),
                    (offset_of!(QueueState, consumed), 100),
                ] {
                    state.write_u64(word, value);
                }
            });
        }
    });
    let runner = Runner::on(&rig, kernels, trace);
    let results = runner.run(&[Op::sync(129, -1), Op::sync(100, -1)])?;
    equal("statuses", results, vec![FAILED, 0])?;
    says(&rig, Syndrome::REMOTE_ACCESS, Opcode::Write, 100)?;
    equal("completed", own.completed(), 100)
}

#[test]
fn a_flushed_request_in_a_slot_seen_late_is_not_the_failure() {
    stale_looks(&Kernels::of("queue")).unwrap();
}

/// Debug builds: a second thread in an exclusive queue is an error, one at a time is none.
pub(crate) fn not_exclusive(kernels: &Kernels) -> Outcome {
    let rig = Rig::new(Setup::exclusive());
    let own = &rig.ends[0];
    let post = Op::same(PUT_SIGNAL_FLUSH, 0, 8);
    equal("alone", run(&rig, kernels, &[post; 3])?, vec![0; 3])?;
    equal("threads posting", own.in_use(), 0)?;
    // Handed over behind a barrier.
    let syncer = Cells::new(2);
    let turns: Vec<Vec<Op>> = (0..2)
        .map(|turn| {
            let mut ops = vec![Op::grid_barrier(syncer), Op::grid_barrier(syncer)];
            ops.insert(turn, post);
            ops
        })
        .collect();
    let results = Runner::direct(&rig, kernels).run_all(2, &turns)?;
    equal("in turn", results.concat(), vec![0; 6])?;

    // As if another thread were posting.
    own.set_in_use(1);
    let results = run(&rig, kernels, &[post, post])?;
    equal("together", results, vec![FAILED; 2])?;
    let word = StatusWord::from_bits(own.error().0);
    let cause = QueueFailureCause::NotExclusive as u8;
    equal("detail", word.detail.to_le_bytes(), [0, 0, 0, cause])?;
    equal("requests", own.reserved(), 10)?;
    equal("threads posting", own.in_use(), 1)
}

#[test]
fn debug_builds_catch_a_broken_exclusive_promise() {
    not_exclusive(&Kernels::of("queue_debug")).unwrap();
}
