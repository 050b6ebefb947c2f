// SPDX-License-Identifier: MIT
//! What ends a call that waits for a queue: budgets, room, status words.

use std::time::Duration;

use mlx5_queue::{Doorbell, QueueIndex};
use mscclpp_device::abi::{QueueForm, Status};
use mscclpp_softnic::FaultPlan;

use crate::support::script::{FLUSH, PUT, PUT_SIGNAL_FLUSH, SIGNAL, WAIT};
use crate::support::{Kernels, Op, Outcome, Rig, Runner, Setup, all_ok, equal, within};

fn stopped(form: QueueForm, blocks: u32) -> Rig {
    let mut setup = Setup {
        form,
        blocks,
        ..Setup::default()
    };
    setup.nic.faults.never_execute = true;
    Rig::new(setup)
}

/// A NIC that takes doorbells and does nothing.
pub(crate) fn budgets(kernels: &Kernels) -> Outcome {
    for form in [QueueForm::Exclusive, QueueForm::Shared] {
        let rig = stopped(form, 8);
        let own = &rig.ends[0];
        let runner = Runner::direct(&rig, kernels);
        let timeout = Status::Timeout as u64;
        // Never Ok before it is complete.
        let flushes = [0, 1, 50].map(|budget| Op::of(FLUSH).value(budget));
        let mut ops = vec![Op::of(SIGNAL)];
        ops.extend(flushes);
        equal("one flush", &runner.run(&ops)?[1..], &[timeout; 3])?;
        // There is room for it; its flush is in vain.
        let post = Op::bound(PUT_SIGNAL_FLUSH, 0, 0, 8);
        equal("a post", runner.run(&[post.value(10)])?, vec![timeout])?;
        equal("slots taken", own.reserved(), 3)?;
        // One is free then, and a post needs two.
        all_ok(&runner.run(&[Op::of(SIGNAL); 4])?)?;
        let results = runner.run(&[0, 0, 1, 50].map(|budget| post.value(budget)))?;
        equal("posts", results, vec![timeout; 4])?;
        equal("slots taken", own.reserved(), 7)?;
        all_ok(&runner.run(&[Op::of(SIGNAL)])?)?;
        let results = runner.run(&[0, 0, 1, 50].map(|budget| post.value(budget)))?;
        equal("posts", results, vec![timeout; 4])?;
        equal("slots taken", own.reserved(), 8)?;

        // The NIC goes on: what was posted is executed, each once. It counts from the next doorbell.
        rig.devices[0].set_faults(FaultPlan::default());
        let ring = Doorbell::new(own.pair.number(), QueueIndex::new(8));
        own.pair.page().ring(ring);
        all_ok(&runner.run(&[Op::of(FLUSH), post])?)?;
        equal("signals", rig.ends[1].signals(), 8)?;
        equal("slots taken", own.reserved(), 10)?;
        rig.no_violations()?;
    }
    Ok(())
}

#[test]
fn a_budget_ends_with_timeout_and_never_early_and_takes_no_slot_without_room() {
    budgets(&Kernels::of("queue")).unwrap();
}

/// A budget that is used up within a transfer of several pieces: whole pieces were posted, the
/// signal was not, and the queue goes on.
#[test]
fn a_budget_used_up_between_pieces_leaves_a_queue_that_goes_on() {
    let kernels = Kernels::of("queue");
    for form in [QueueForm::Exclusive, QueueForm::Shared] {
        let mut setup = Setup {
            form,
            blocks: 4,
            max_message: 8,
            ..Setup::default()
        };
        setup.nic.faults.never_execute = true;
        let rig = Rig::new(setup);
        let own = &rig.ends[0];
        let runner = Runner::direct(&rig, &kernels);
        let post = Op::bound(PUT_SIGNAL_FLUSH, 0, 0, 64);
        let results = runner.run(&[post.value(10)]).unwrap();
        assert_eq!(results, [Status::Timeout as u64]);
        assert_eq!(own.reserved(), 4);
        rig.devices[0].set_faults(FaultPlan::default());
        let ring = Doorbell::new(own.pair.number(), QueueIndex::new(4));
        own.pair.page().ring(ring);
        all_ok(&runner.run(&[post]).unwrap()).unwrap();
        assert_eq!((rig.ends[1].signals(), own.reserved()), (1, 13));
        rig.no_violations().unwrap();
    }
}

/// Waiting for room or for completions of a NIC that has stopped ends by either status word.
pub(crate) fn aborts(kernels: &Kernels) -> Outcome {
    for form in [QueueForm::Exclusive, QueueForm::Shared] {
        for (which, status) in [(0, Status::PeerDown), (1, Status::Aborted)] {
            for waits in [Op::of(FLUSH), Op::same(PUT, 0, 8), Op::of(WAIT)] {
                if (form, which, waits.is(PUT)) == (QueueForm::Shared, 1, true) {
                    // It has taken its slots: see taken_slots.
                    continue;
                }
                let rig = stopped(form, 2);
                let own = &rig.ends[0];
                match which {
                    0 => own.status.fail(status),
                    _ => own.fifo.status.fail(status),
                }
                let runner = Runner {
                    limit: within(5),
                    ..Runner::direct(&rig, kernels)
                };
                let results = runner.run(&[Op::of(SIGNAL), Op::of(SIGNAL), waits])?;
                equal(&format!("{waits:?}"), results[2], status as u64)?;
            }
        }
    }
    Ok(())
}

#[test]
fn either_status_word_ends_what_waits_for_a_queue() {
    aborts(&Kernels::of("queue")).unwrap();
}

/// Without a budget a post to a shared queue takes its slots first. Then the word of a service, which
/// says nothing of the queue, does not end it: others may post behind these slots. Room does, and the
/// word of the connection.
pub(crate) fn taken_slots(kernels: &Kernels) -> Outcome {
    for goes_on in [true, false] {
        for kind in [PUT, SIGNAL] {
            let rig = stopped(QueueForm::Shared, 4);
            let own = &rig.ends[0];
            own.fifo.status.fail(Status::Aborted);
            let runner = Runner::direct(&rig, kernels);
            let one = Op::same(kind, 0, 8);
            let (took, ended) = std::thread::scope(|scope| {
                let posting = scope.spawn(|| runner.run(&[one; 5]));
                while own.reserved() < 5 && !posting.is_finished() {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(20));
                let took = (own.reserved(), posting.is_finished());
                if goes_on {
                    rig.devices[0].set_faults(FaultPlan::default());
                    let ring = Doorbell::new(own.pair.number(), QueueIndex::new(4));
                    own.pair.page().ring(ring);
                } else {
                    own.status.fail(Status::PeerDown);
                }
                (took, posting.join().unwrap())
            });
            equal("slots taken, and whether it ended", took, (5, false))?;
            let last = if goes_on {
                Status::Ok
            } else {
                Status::PeerDown
            };
            equal("posts", ended?, vec![0, 0, 0, 0, last as u64])?;
            if goes_on {
                rig.no_violations()?;
            }
        }
    }
    // With a budget it has taken none.
    let rig = stopped(QueueForm::Shared, 4);
    rig.ends[0].fifo.status.fail(Status::Aborted);
    let runner = Runner::direct(&rig, kernels);
    let post = Op::bound(PUT_SIGNAL_FLUSH, 0, 0, 8).value(i64::MAX);
    let results = runner.run(&[Op::of(SIGNAL), Op::of(SIGNAL), Op::of(SIGNAL), post])?;
    equal("posts", results, vec![0, 0, 0, Status::Aborted as u64])?;
    equal("slots taken", rig.ends[0].reserved(), 3)
}

#[test]
fn taken_slots_of_a_shared_queue_wait_for_room_or_for_the_end_of_the_connection() {
    taken_slots(&Kernels::of("queue")).unwrap();
}

/// Who calls again and again with a budget of a look or two learns of an error, too.
pub(crate) fn small_budgets(kernels: &Kernels) -> Outcome {
    for form in [QueueForm::Exclusive, QueueForm::Shared] {
        let rig = stopped(form, 2);
        rig.ends[0].status.fail(Status::PeerDown);
        let runner = Runner::direct(&rig, kernels);
        let flushes = [0, 1].map(|budget| Op::of(FLUSH).value(budget));
        let results = runner.run(&[Op::of(SIGNAL), flushes[0], flushes[1]])?;
        equal("flushes", &results[1..], &[Status::PeerDown as u64; 2])?;
    }
    Ok(())
}

#[test]
fn a_budget_of_a_look_or_two_still_learns_of_an_error() {
    small_budgets(&Kernels::of("queue")).unwrap();
}
