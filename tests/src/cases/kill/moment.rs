// SPDX-License-Identifier: MIT
//! The moments in which something happens to a rank.

use crate::backend::BACKENDS;

/// A moment in a job's life.
pub(super) struct Moment {
    /// Of the test.
    pub(super) name: String,
    /// The backend, if one takes part.
    pub(super) row: Option<usize>,
    pub(super) what: What,
}

/// What the ranks are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// They wait for a rank that has not come yet.
    Join,
    /// They wait for a message, or in a barrier.
    Receive,
    /// A setup of queues between all; the victim is about to tell of this phase.
    Phase(&'static str),
    /// They make queues of one edge, without a setup of all, or again.
    OnDemand,
    Rebuild,
    /// An exchange between two ranks.
    Exchange(Half),
    /// A kernel's call, again and again.
    Call(Operation),
    /// They drop all that they have.
    Teardown,
}

/// What two ranks exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Endpoint,
    Memory,
    Semaphore,
}

/// A call of the device API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Wait,
    Put,
    Signal,
    Flush,
    PutWithSignal,
    PutWithSignalAndFlush,
    Accumulate,
    Get,
}

/// The phases of a setup, in order.
const PHASES: [(&str, &str); 11] = [
    ("plan", "Plan"),
    ("capability", "Capability"),
    ("port", "Port"),
    ("allocate", "Allocate"),
    ("exchange", "Exchange"),
    ("wire", "Wire"),
    ("INIT", "Init"),
    ("RTR", "Rtr"),
    ("RTS", "Rts"),
    ("self-test", "SelfTest"),
    ("publish", "Publish"),
];

const HALVES: [Half; 3] = [Half::Endpoint, Half::Memory, Half::Semaphore];

const OPERATIONS: [Operation; 8] = [
    Operation::Wait,
    Operation::Put,
    Operation::Signal,
    Operation::Flush,
    Operation::PutWithSignal,
    Operation::PutWithSignalAndFlush,
    Operation::Accumulate,
    Operation::Get,
];

/// All moments, on all backends of this build, in an order that all processes agree on.
pub(super) fn moments() -> Vec<Moment> {
    let mut all = Vec::new();
    let mut add = |name: String, row, what| all.push(Moment { name, row, what });
    add("KillBootstrap.Join".into(), None, What::Join);
    add("KillBootstrap.Receive".into(), None, What::Receive);
    for (number, backend) in BACKENDS.iter().enumerate() {
        let (row, suffix) = (Some(number), backend.suffix);
        if backend.posts_to_queue() {
            for (phase, name) in PHASES {
                add(format!("KillSetup.{name}{suffix}"), row, What::Phase(phase));
            }
            add(
                format!("KillExchange.OnDemand{suffix}"),
                row,
                What::OnDemand,
            );
            add(format!("KillExchange.Rebuild{suffix}"), row, What::Rebuild);
        }
        for half in HALVES {
            add(
                format!("KillExchange.{half:?}{suffix}"),
                row,
                What::Exchange(half),
            );
        }
        for operation in OPERATIONS {
            let there = match operation {
                Operation::Get => backend.posts_to_queue(),
                Operation::Accumulate => backend.accumulate,
                _ => true,
            };
            if there {
                add(
                    format!("KillCall.{operation:?}{suffix}"),
                    row,
                    What::Call(operation),
                );
            }
        }
        add(format!("KillTeardown.All{suffix}"), row, What::Teardown);
    }
    all
}
