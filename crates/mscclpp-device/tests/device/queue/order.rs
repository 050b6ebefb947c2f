// SPDX-License-Identifier: MIT
//! The order of a post's stores, fences and doorbells, in the record of what
//! device code does.

use mscclpp_device::abi::{QueueForm, SignalMode};
use mscclpp_device::executor::memory::{Access, Order, Scope};

use crate::support::end::ready_at;
use crate::support::script::{FLUSH, GET, PUT, PUT_SIGNAL, PUT_SIGNAL_FLUSH, SIGNAL};
use crate::support::{Kernels, Op, Outcome, Rig, Runner, Setup, ensure, equal};

/// What matters of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Request,
    Ready,
    /// A compare-and-swap of a ready word, which released at the scope of the GPU or did not.
    Swap {
        released: bool,
    },
    Release(Scope),
    AcquireRelease(Scope),
    Record(u64),
    Doorbell(u64),
}

/// The steps of a script of one thread.
fn steps(kernels: &Kernels, setup: &Setup, ops: &[Op]) -> Result<Vec<Step>, String> {
    let rig = Rig::new(setup.clone().modelled());
    let seen = steps_on(kernels, &rig, ops)?;
    rig.no_violations()?;
    Ok(seen)
}

fn steps_on(kernels: &Kernels, rig: &Rig, ops: &[Op]) -> Result<Vec<Step>, String> {
    let trace = rig.trace();
    let results = Runner::on(rig, kernels, &trace).run(ops)?;
    equal("results", results, vec![0; ops.len()])?;
    let own = &rig.ends[0];
    let within = |buffer: &mscclpp_softnic::HostBuffer, address: usize| {
        let start = buffer.address() as usize;
        (start..start + buffer.len()).contains(&address)
    };
    let step = |access| match access {
        Access::Store { address, order, .. } if within(&own.ring, address) => {
            // Relaxed: all ordering is by fences, so that there are few.
            (order == Order::Relaxed).then_some(Step::Request)
        }
        Access::Store { address, .. } if within(&own.ready, address) => Some(Step::Ready),
        Access::Store { address, value, .. } if within(&own.record, address) => {
            Some(Step::Record(value))
        }
        Access::CompareExchange {
            address,
            order,
            scope,
            ..
        } if within(&own.ready, address) => Some(Step::Swap {
            released: order.releases() && scope == Scope::Device,
        }),
        Access::Fence { order, scope } if order.releases() => Some(match order.acquires() {
            true => Step::AcquireRelease(scope),
            false => Step::Release(scope),
        }),
        Access::StoreMmio { value, .. } => Some(Step::Doorbell(value)),
        _ => None,
    };
    let events = trace.events();
    Ok(events
        .into_iter()
        .filter_map(|event| step(event.access))
        .collect())
}

fn setups() -> Vec<Setup> {
    let inline = Setup {
        signal_mode: SignalMode::InlineWrite,
        ..Setup::exclusive()
    };
    let mut all = Vec::new();
    for setup in [Setup::default(), Setup::exclusive(), inline] {
        for record_in_host_memory in [true, false] {
            all.push(Setup {
                record_in_host_memory,
                ..setup.clone()
            });
        }
    }
    all
}

/// Each call that posts one piece publishes it by: system release, doorbell, record, release,
/// doorbell.
pub(crate) fn published(kernels: &Kernels) -> Outcome {
    for setup in setups() {
        let calls = [
            (Op::same(PUT, 0, 8), 1),
            (Op::same(PUT, 0, 0), 1),
            (Op::of(SIGNAL), 1),
            (Op::same(PUT_SIGNAL, 0, 8), 2),
            (Op::same(PUT_SIGNAL_FLUSH, 0, 8), 2),
            (Op::same(GET, 0, 8), 1),
        ];
        for (op, requests) in calls {
            let what = format!("{op:?} on {:?}", setup.form);
            let mut seen = steps(kernels, &setup, &[op])?;
            let stored = seen.iter().take_while(|step| **step == Step::Request);
            let stored = stored.count();
            ensure((2 * requests..=8 * requests).contains(&stored), || {
                format!("{what}: {stored} words of requests")
            })?;
            seen.drain(..stored);
            // On a shared queue the thread leaves the baton, which it had found.
            let shared = setup.form == QueueForm::Shared;
            let left = if shared {
                vec![Step::Swap { released: true }]
            } else {
                vec![]
            };
            let rung = seen.len() - left.len();
            let (record, doorbell) = match seen[..rung] {
                [
                    ..,
                    Step::Record(record),
                    Step::Release(_),
                    Step::Doorbell(doorbell),
                ] => (record, doorbell),
                _ => return Err(format!("{what}: {seen:?}")),
            };
            let host = setup.record_in_host_memory;
            let last = if host { Scope::System } else { Scope::Device };
            let mut expected = vec![Step::Ready; if shared { requests - 1 } else { 0 }];
            expected.extend([
                Step::AcquireRelease(Scope::System),
                Step::Doorbell(doorbell),
                Step::Record(record),
                Step::Release(last),
                Step::Doorbell(doorbell),
            ]);
            expected.extend(left);
            equal(&what, seen, expected)?;
            equal("record", record as u32, (requests as u32).to_be())?;
            let position = (doorbell as u32).swap_bytes() >> 8;
            equal("doorbell", position as usize, requests)?;
        }
    }
    Ok(())
}

#[test]
fn a_post_is_published_by_release_doorbell_record_release_doorbell() {
    published(&Kernels::of("queue")).unwrap();
}

/// A post that finds no baton hands its requests over: it releases them to the GPU, then changes its
/// first ready word, and tells the NIC nothing.
pub(crate) fn handed_over(kernels: &Kernels) -> Outcome {
    let calls = [
        (Op::of(SIGNAL), 1),
        (Op::same(PUT_SIGNAL, 0, 8), 2),
        // Half of the ring at once.
        (Op::same(PUT_SIGNAL, 0, 31 * 8), 32),
    ];
    for (op, requests) in calls {
        let rig = Rig::new(
            Setup {
                max_message: 8,
                ..Setup::default()
            }
            .modelled(),
        );
        let own = &rig.ends[0];
        own.ready.write(0, &ready_at(1000).to_ne_bytes());
        let mut seen = steps_on(kernels, &rig, &[op])?;
        let stored = seen.iter().take_while(|step| **step == Step::Request);
        let stored = stored.count();
        seen.drain(..stored);
        let mut expected = vec![Step::Ready; requests - 1];
        expected.extend([Step::Release(Scope::Device), Step::Swap { released: false }]);
        equal(&format!("{op:?}"), seen, expected)?;
        for index in 0..requests as u64 {
            let mut word = [0; 4];
            own.ready.read(index as usize * 4, &mut word);
            let word = u32::from_ne_bytes(word);
            equal("ready word", word, ready_at(index))?;
        }
    }
    Ok(())
}

#[test]
fn a_post_without_the_baton_releases_its_requests_and_says_that_they_are_ready() {
    handed_over(&Kernels::of("queue")).unwrap();
}

/// Loads of completions acquire; a post to an exclusive queue has no atomic.
pub(crate) fn looks_acquire(kernels: &Kernels) -> Outcome {
    for setup in [Setup::default(), Setup::exclusive()] {
        let rig = Rig::new(setup.clone().modelled());
        let trace = rig.trace();
        let posts = [Op::same(PUT_SIGNAL, 0, 8), Op::of(SIGNAL)];
        Runner::on(&rig, kernels, &trace).run(&posts)?;
        let own = &rig.ends[0];
        for event in trace.events() {
            if let Access::FetchAdd { .. } | Access::CompareExchange { .. } = event.access {
                ensure(setup.form == QueueForm::Shared, || "an atomic".to_owned())?;
            }
        }

        // The flush behind them: what it reads from the NIC, it acquires.
        let trace = rig.trace();
        Runner::on(&rig, kernels, &trace).run(&[Op::of(FLUSH)])?;
        let start = own.completions.address() as usize;
        let entries = start..start + own.completions.len();
        let mut seen = 0;
        for event in trace.events() {
            if let Access::Load {
                address,
                order,
                scope,
                ..
            } = event.access
                && entries.contains(&address)
            {
                seen += 1;
                equal("word of an entry", address % 64, 56)?;
                equal(
                    "look at an entry",
                    (order, scope),
                    (Order::Acquire, Scope::System),
                )?;
            }
        }
        ensure(seen > 0, || "no look at an entry".to_owned())?;
    }
    Ok(())
}

#[test]
fn looks_at_completions_acquire_and_an_exclusive_post_has_no_atomic() {
    looks_acquire(&Kernels::of("queue")).unwrap();
}
