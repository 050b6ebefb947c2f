// SPDX-License-Identifier: MIT
//! The rows of the table, by what goes wrong.

use mscclpp_device::abi::{AbiHeader, QueueDeviceHandle, QueueForm, SignalMode};
use mscclpp_softnic::{Capabilities, ControlOperation, DeviceConfig, FaultPlan, State};

use super::{ChangeConfig, ChangeCounts, MakeSparse, Named, QUEUES, Rig, Table};
use crate::gpu_net_io_service::record::EdgeRecord;
use crate::gpu_net_io_service::tests::faulty::{Act, Call};
use crate::gpu_net_io_service::tests::mail::Mail;
use crate::gpu_queue::QueueFault;

type ChangeHandle = fn(&mut QueueDeviceHandle);
type ChangeRecord = fn(&mut EdgeRecord);

pub(super) fn add(table: &mut Table) {
    plans(table);
    capabilities(table);
    allocations(table);
    exchanges(table);
    transitions(table);
    panics(table);
    let late = Rig {
        late: table.late(),
        ..Rig::default()
    };
    table.add("setup, called: late", "plan", Named::Silent, late);
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
    let late = table.late();
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
    table.call(Call::Open, 0, "capability", "late", Act::Delay(late));
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
        Act::Delay(late),
    );
    table.call(Call::Port, 0, "port", "refused", Act::Refuse);
    table.call(Call::Port, 0, "port", "late", Act::Delay(late));
}

fn allocations(table: &mut Table) {
    let late = table.late();
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
    table.call(Call::CreateQueue, 1, "allocate", "late", Act::Delay(late));
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
    let other: fn(&mut crate::gpu_queue::QueueAddress) = |address| address.number += 1;
    table.call(
        Call::Address,
        0,
        "allocate",
        "another number",
        Act::Address(other),
    );
    table.call(Call::Handle, 2, "allocate", "late", Act::Delay(late));
}

fn exchanges(table: &mut Table) {
    let late = table.late();
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
    let records: [(&str, &'static str, Named, ChangeRecord); 5] = [
        ("a queue less", "exchange", Named::Finder, |record| {
            record.queues.pop();
        }),
        ("another setup", "exchange", Named::Finder, |record| {
            record.setup = record.setup.map(|setup| setup + 1);
        }),
        ("no queue", "exchange", Named::Finder, |record| {
            record.queues[0].queue = None;
        }),
        ("another rank's", "exchange", Named::Finder, |record| {
            record.queues[0].rank = Some(77);
        }),
        // Peers dial where nobody listens, and this rank waits for them.
        ("another address", "wire", Named::InText, |record| {
            for queue in &mut record.queues {
                queue.nonce = [0; 16];
                queue.address.set_port(1);
            }
        }),
    ];
    for (name, phase, named, change) in records {
        let rig = Rig {
            mail: Some(Mail::Record(change)),
            ..Rig::default()
        };
        table.add(format!("bootstrap, records: {name}"), phase, named, rig);
    }
    let slow = Rig {
        mail: Some(Mail::Late(late)),
        ..Rig::default()
    };
    table.add("bootstrap, records: late", "exchange", Named::Silent, slow);
    table.call(Call::Wire, 0, "wire", "refused", Act::Refuse);
    table.call(Call::Wire, 1, "wire", "refused the last time", Act::Refuse);
    table.call(Call::Wire, 0, "wire", "late", Act::Delay(late));
    // Its peers find no NIC at the other end of the wire, and wait for it to say why.
    table.call_naming(
        Call::Wire,
        0,
        "INIT",
        "pretended",
        Act::Pretend,
        Named::InText,
    );
}

fn transitions(table: &mut Table) {
    let late = table.late();
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
        table.call(call, 2, phase, "late", Act::Delay(late));
    }
    for (call, found) in [
        (Call::Init, "RTR"),
        (Call::Receive, "RTS"),
        (Call::Send, "self-test"),
    ] {
        table.call(call, 1, found, "pretended", Act::Pretend);
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
    table.call(Call::Fault, 0, "publish", "late", Act::Delay(late));
}

/// Each named call, in each phase that makes it. What is named is the phase before.
fn panics(table: &mut Table) {
    for (call, skip, before) in [
        (Call::Open, 0, "plan"),
        (Call::Capabilities, 0, "plan"),
        (Call::Port, 0, "capability"),
        (Call::Capabilities, 1, "port"),
        (Call::CreateQueue, 1, "port"),
        (Call::Handle, 2, "port"),
        (Call::Wire, 0, "exchange"),
        (Call::Wire, 1, "exchange"),
        (Call::Init, 0, "wire"),
        (Call::Receive, 1, "INIT"),
        (Call::Send, 2, "RTR"),
        (Call::Handle, QUEUES, "RTS"),
        (Call::Handle, 2 * QUEUES, "self-test"),
        (Call::Fault, 1, "self-test"),
    ] {
        let what = format!("panics, call {skip}");
        table.call(call, skip, before, &what, Act::Panic);
    }
}
