// SPDX-License-Identifier: MIT
//! The named calls of a setup, and how each can go wrong on one rank.

mod rows;

use std::time::Duration;

use mscclpp_softnic::{ControlOperation, DeviceConfig, FaultKind, FaultPlan, FaultRule};

use super::faulty::{Act, Call, Fault};
use super::mail::Mail;
use crate::gpu_net_io_service::GpuNetIoConfig;

/// Queues from each rank to each rank of the world in which faults are tried.
pub(super) const COUNTS: [[i32; 4]; 4] = [[0, 2, 0, 1], [2, 0, 1, 0], [0, 1, 0, 2], [1, 0, 2, 0]];
/// Queues of each rank.
pub(super) const QUEUES: u32 = 3;
/// When a setup is over in which a rank is late. In half of that it has to come to the step of which
/// the row is; where the machine is too slow for that it gets more ([`Point::with_more_time`]).
const SHORT: Duration = Duration::from_millis(2400);
/// By how much a rank that is late comes too late.
const TOO_LATE: Duration = Duration::from_millis(500);

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
    /// The rank with the fault or another one, which says that it waited for it.
    InText,
    /// The rank with the fault, which did not come in time.
    Silent,
    /// The rank with the fault, whose step of the next phase panicked.
    Panicked,
}

/// Changes a rank's row of counts.
type ChangeCounts = fn(usize, &mut Vec<i32>);
/// What a rank asks for instead of its row.
type MakeSparse = fn(usize) -> Vec<(usize, u32)>;
type ChangeConfig = fn(&mut GpuNetIoConfig);

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

impl Point {
    /// The same with twice the time, unless it has as much as a setup may take.
    pub(super) fn with_more_time(&self) -> Option<Self> {
        let short = (2 * self.timeout).min(LONG);
        let longer = all_within(short).into_iter();
        (longer.filter(|_| self.timeout < LONG)).find(|point| point.name == self.name)
    }
}

struct Table {
    points: Vec<Point>,
    /// When a setup is over in which a rank is late.
    short: Duration,
}

impl Table {
    /// How late a rank is that is late.
    fn late(&self) -> Duration {
        self.short + TOO_LATE
    }

    fn add(&mut self, name: impl Into<String>, phase: &'static str, named: Named, rig: Rig) {
        let timeout = match named {
            Named::Silent | Named::InText => self.short,
            _ if rig.nic_faults.never_execute || matches!(rig.mail, Some(Mail::Lost)) => self.short,
            _ => LONG,
        };
        self.points.push(Point {
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
        let late = rule(0, FaultKind::Delay(self.late()));
        self.add(name("late"), phase, Named::Silent, late);
    }

    /// A call of the provider.
    fn call(&mut self, call: Call, skip: u32, phase: &'static str, what: &str, act: Act) {
        let named = match act {
            Act::Delay(_) => Named::Silent,
            Act::Panic => Named::Panicked,
            _ => Named::Failed,
        };
        self.call_naming(call, skip, phase, what, act, named);
    }

    /// The same where another rank is named than usual.
    fn call_naming(
        &mut self,
        call: Call,
        skip: u32,
        phase: &'static str,
        what: &str,
        act: Act,
        named: Named,
    ) {
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
    all_within(SHORT)
}

fn all_within(short: Duration) -> Vec<Point> {
    let points = Vec::new();
    let mut table = Table { points, short };
    rows::add(&mut table);
    table.points
}
