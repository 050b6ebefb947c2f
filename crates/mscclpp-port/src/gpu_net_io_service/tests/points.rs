// SPDX-License-Identifier: MIT
//! The named calls of a setup, and how each can go wrong on one rank.

use std::time::Duration;

use mscclpp_device::abi::{AbiHeader, QueueDeviceHandle, QueueForm, SignalMode};
use mscclpp_softnic::{
    Capabilities, ControlOperation, DeviceConfig, FaultKind, FaultPlan, FaultRule, State,
};

use super::faulty::{Act, Call, Fault, Mail};
use crate::gpu_net_io_service::GpuNetIoConfig;
use crate::gpu_queue::QueueFault;

/// Queues from each rank to each rank of the world in which faults are tried.
pub(super) const COUNTS: [[i32; 4]; 4] = [[0, 2, 0, 1], [2, 0, 1, 0], [0, 1, 0, 2], [1, 0, 2, 0]];
/// Queues of each rank.
pub(super) const QUEUES: u32 = 3;
/// When a setup is over in which a rank is late, and how late that is.
pub(super) const SHORT: Duration = Duration::from_millis(1600);
const LATE: Duration = Duration::from_millis(2100);

/// Who is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// The rank with the fault, whose step failed.
    Failed,
    /// The rank with the fault, whose plan it is.
    Plan,
    /// The lower rank of an edge of the rank with the fault.
    Edge,
    /// A peer of the rank with the fault: it found out, and says who it was.
    Finder,
    /// The rank with the fault, which did not come in time.
    Silent,
}

/// Changes a rank's row of counts.
type ChangeCounts = fn(usize, &mut Vec<i32>);
/// What a rank asks for instead of its row.
type MakeSparse = fn(usize) -> Vec<(usize, u32)>;
type ChangeConfig = fn(&mut GpuNetIoConfig);
type ChangeHandle = fn(&mut QueueDeviceHandle);

/// What is wrong on one rank.
#[derive(Clone, Default)]
pub(super) struct Rig {
    pub(super) nic: Option<DeviceConfig>,
    pub(super) nic_faults: FaultPlan,
    pub(super) fault: Option<Fault>,
    pub(super) mail: Option<Mail>,
    pub(super) counts: Option<ChangeCounts>,
    pub(super) sparse: Option<MakeSparse>,
    pub(super) config: Option<ChangeConfig>,
    pub(super) late: Duration,
}

/// One row of the table.
pub(super) struct Point {
    pub(super) name: String,
    pub(super) phase: &'static str,
    pub(super) named: Named,
    /// Ranks that the setup may take so long.
    pub(super) timeout: Duration,
    pub(super) rig: Rig,
}

/// Longer than a setup takes.
const LONG: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Table(Vec<Point>);

impl Table {
    fn add(&mut self, name: impl Into<String>, phase: &'static str, named: Named, rig: Rig) {
        let timeout = match named {
            Named::Silent => SHORT,
            _ if rig.nic_faults.never_execute || rig.mail == Some(Mail::Lost) => SHORT,
            _ => LONG,
        };
        self.0.push(Point {
            name: name.into(),
            phase,
            named,
            timeout,
            rig,
        });
    }

    /// A call of the NIC: refused the first and the last time, and delayed.
    fn nic(&mut self, operation: ControlOperation, phase: &'static str, times: u32) {
        let rule = |skip, kind| {
            let rule = FaultRule {
                operation,
                skip,
                count: 1,
                kind,
            };
            Rig {
                nic_faults: FaultPlan::default().and(rule),
                ..Rig::default()
            }
        };
        let name = |what: &str| format!("NIC, {operation}: {what}");
        let refused = rule(0, FaultKind::Refuse);
        self.add(name("refused"), phase, Named::Failed, refused);
        if times > 1 {
            let last = rule(times - 1, FaultKind::Refuse);
            self.add(name("refused the last time"), phase, Named::Failed, last);
        }
        let late = rule(0, FaultKind::Delay(LATE));
        self.add(name("late"), phase, Named::Silent, late);
    }

    /// A call of the provider.
    fn call(&mut self, call: Call, skip: u32, phase: &'static str, what: &str, act: Act) {
        let named = match act {
            Act::Delay(_) => Named::Silent,
            _ => Named::Failed,
        };
        let fault = Fault {
            call,
            skip: skip as usize,
            act,
        };
        let rig = Rig {
            fault: Some(fault),
            ..Rig::default()
        };
        self.add(format!("provider, {call:?}: {what}"), phase, named, rig);
    }
}

/// All of them.
pub(super) fn all() -> Vec<Point> {
    let mut table = Table::default();
    plans(&mut table);
    capabilities(&mut table);
    allocations(&mut table);
    exchanges(&mut table);
    transitions(&mut table);
    let late = Rig {
        late: LATE,
        ..Rig::default()
    };
    table.add("setup, called: late", "plan", Named::Silent, late);
    table.0
}

fn plans(table: &mut Table) {
    let changes: [(&str, Named, ChangeCounts); 7] = [
        ("a negative count", Named::Plan, |rank, row| {
            row[(rank + 1) % 4] = -1;
        }),
        ("65 queues", Named::Plan, |rank, row| {
            row[(rank + 1) % 4] = 65;
        }),
        ("queues to itself", Named::Plan, |rank, row| row[rank] = 1),
        ("too few ranks", Named::Plan, |_, row| row.truncate(3)),
        ("too many ranks", Named::Plan, |_, row| row.push(0)),
        ("one queue more than the peer", Named::Edge, |rank, row| {
            row[(rank + 1) % 4] += 1;
        }),
        (
            "queues that the peer does not want",
            Named::Edge,
            |rank, row| {
                row[(rank + 2) % 4] = 1;
            },
        ),
    ];
    for (name, named, change) in changes {
        let rig = Rig {
            counts: Some(change),
            ..Rig::default()
        };
        table.add(format!("plan, dense: {name}"), "plan", named, rig);
    }
    let sparse: [(&str, MakeSparse); 2] = [
        ("a rank that does not exist", |_| vec![(4, 1)]),
        ("a rank twice", |rank| {
            vec![((rank + 1) % 4, 1), ((rank + 1) % 4, 1)]
        }),
    ];
    for (name, make) in sparse {
        let rig = Rig {
            sparse: Some(make),
            ..Rig::default()
        };
        table.add(format!("plan, sparse: {name}"), "plan", Named::Plan, rig);
    }
}

fn capabilities(table: &mut Table) {
    table.nic(ControlOperation::AllocateDomain, "capability", 1);
    let nic = |capabilities| Rig {
        nic: Some(DeviceConfig {
            capabilities,
            ..DeviceConfig::default()
        }),
        ..Rig::default()
    };
    let without = nic(Capabilities {
        atomics: false,
        ..Capabilities::default()
    });
    table.add(
        "NIC, capabilities: no atomics",
        "capability",
        Named::Failed,
        without,
    );
    let small = nic(Capabilities {
        max_send_blocks: 512,
        ..Capabilities::default()
    });
    table.add(
        "NIC, capabilities: short queues",
        "capability",
        Named::Failed,
        small,
    );
    let few = nic(Capabilities {
        max_completions: 512,
        ..Capabilities::default()
    });
    table.add(
        "NIC, capabilities: few completions",
        "capability",
        Named::Failed,
        few,
    );
    let changes: [(&str, &'static str, ChangeConfig); 4] = [
        ("a size that is no power of two", "capability", |config| {
            config.queue.max_send_wr = Some(1000);
        }),
        ("inline signals on a shared queue", "capability", |config| {
            config.queue.signal_mode = SignalMode::InlineWrite;
        }),
        ("a GID that there is not", "port", |config| {
            config.gid_index = 3
        }),
        ("a GID that is no number", "port", |config| {
            config.gid_index = u32::MAX;
        }),
    ];
    for (name, phase, change) in changes {
        let rig = Rig {
            config: Some(change),
            ..Rig::default()
        };
        table.add(format!("configuration: {name}"), phase, Named::Failed, rig);
    }
    table.call(Call::Open, 0, "capability", "refused", Act::Refuse);
    table.call(Call::Open, 0, "capability", "late", Act::Delay(LATE));
    let lies: fn(&mut crate::gpu_queue::HcaCapabilities) = |has| has.atomics = false;
    table.call(
        Call::Capabilities,
        0,
        "capability",
        "no atomics",
        Act::Capabilities(lies),
    );
    table.call(
        Call::Capabilities,
        1,
        "allocate",
        "no atomics any more",
        Act::Capabilities(lies),
    );
    table.call(
        Call::Capabilities,
        0,
        "capability",
        "late",
        Act::Delay(LATE),
    );
    table.call(Call::Port, 0, "port", "refused", Act::Refuse);
    table.call(Call::Port, 0, "port", "late", Act::Delay(LATE));
}

fn allocations(table: &mut Table) {
    for operation in [
        ControlOperation::AllocateDoorbellPage,
        ControlOperation::CreateCompletionQueue,
        ControlOperation::Register,
        ControlOperation::CreateQueuePair,
    ] {
        table.nic(operation, "allocate", QUEUES);
    }
    table.call(Call::CreateQueue, 0, "allocate", "refused", Act::Refuse);
    table.call(
        Call::CreateQueue,
        2,
        "allocate",
        "refused the last time",
        Act::Refuse,
    );
    table.call(Call::CreateQueue, 1, "allocate", "late", Act::Delay(LATE));
    let wrong: [(&str, ChangeHandle); 14] = [
        ("another layout", |handle| {
            handle.abi = AbiHeader::of::<u64>()
        }),
        ("no doorbell", |handle| handle.doorbell = 0),
        ("no doorbell record", |handle| handle.record = 0),
        ("a record in host memory", |handle| {
            handle.record_in_host_memory = 1
        }),
        ("no send ring", |handle| handle.send_ring = 0),
        ("a shorter send ring", |handle| handle.blocks /= 2),
        ("no completion ring", |handle| handle.completions = 0),
        ("a collapsed completion ring", |handle| {
            handle.completion_entries = 1
        }),
        ("no state", |handle| handle.state = 0),
        ("no scratch", |handle| handle.scratch = 0),
        ("another number", |handle| handle.number += 1),
        ("an exclusive queue", |handle| {
            handle.form = QueueForm::Exclusive as u32
        }),
        ("other signals", |handle| {
            handle.signal_mode = SignalMode::InlineWrite as u32
        }),
        ("no messages", |handle| handle.max_message = 0),
    ];
    for (name, change) in wrong {
        table.call(Call::Handle, 0, "allocate", name, Act::Handle(change));
    }
    table.call(Call::Handle, 2, "allocate", "late", Act::Delay(LATE));
}

fn exchanges(table: &mut Table) {
    for (name, mail, named) in [
        ("garbled", Mail::Garbled, Named::Finder),
        ("cut", Mail::Cut, Named::Finder),
        ("lost", Mail::Lost, Named::Finder),
        ("refused to be sent", Mail::RefusedToSend, Named::Failed),
        (
            "refused to be received",
            Mail::RefusedToReceive,
            Named::Failed,
        ),
    ] {
        let rig = Rig {
            mail: Some(mail),
            ..Rig::default()
        };
        table.add(
            format!("bootstrap, records: {name}"),
            "exchange",
            named,
            rig,
        );
    }
    let without_atomics = Rig {
        nic: Some(DeviceConfig {
            capabilities: Capabilities {
                atomics: false,
                ..Capabilities::default()
            },
            ..DeviceConfig::default()
        }),
        config: Some(|config| {
            config.queue.queue_form = QueueForm::Exclusive;
            config.queue.signal_mode = SignalMode::InlineWrite;
        }),
        ..Rig::default()
    };
    let name = "policy: signals by atomics to a rank without";
    table.add(name, "exchange", Named::Edge, without_atomics);
    table.call(Call::Wire, 0, "wire", "refused", Act::Refuse);
    table.call(Call::Wire, 1, "wire", "refused the last time", Act::Refuse);
    table.call(Call::Wire, 0, "wire", "late", Act::Delay(LATE));
}

fn transitions(table: &mut Table) {
    for (state, phase) in [
        (State::Init, "INIT"),
        (State::ReadyToReceive, "RTR"),
        (State::ReadyToSend, "RTS"),
    ] {
        table.nic(ControlOperation::Transition(state), phase, QUEUES);
    }
    for (call, phase) in [
        (Call::Init, "INIT"),
        (Call::Receive, "RTR"),
        (Call::Send, "RTS"),
    ] {
        table.call(call, 1, phase, "refused", Act::Refuse);
    }
    let never = Rig {
        nic_faults: FaultPlan {
            never_execute: true,
            ..FaultPlan::default()
        },
        ..Rig::default()
    };
    table.add("NIC: never executes", "self-test", Named::Failed, never);
    // Of each queue the handle is asked for in three phases, in this order.
    let number: ChangeHandle = |handle| handle.doorbell = 0;
    table.call(
        Call::Handle,
        2 * QUEUES,
        "publish",
        "no doorbell any more",
        Act::Handle(number),
    );
    let refusal = Act::Fault(QueueFault::Refusal);
    table.call(Call::Fault, 0, "publish", "a failed queue", refusal);
    table.call(Call::Fault, 2, "publish", "a failed last queue", refusal);
    let shared = Act::Fault(QueueFault::NotExclusive);
    table.call(
        Call::Fault,
        1,
        "publish",
        "a queue that was posted to",
        shared,
    );
    table.call(Call::Fault, 0, "publish", "late", Act::Delay(LATE));
}
