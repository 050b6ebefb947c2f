// SPDX-License-Identifier: MIT
use std::fmt;
use std::time::Duration;

use crate::State;

/// A control operation, to be refused or delayed by a [`FaultPlan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ControlOperation {
    /// Allocate a protection domain.
    AllocateDomain,
    /// Register memory.
    Register,
    /// Allocate a doorbell page.
    AllocateDoorbellPage,
    /// Create a completion queue.
    CreateCompletionQueue,
    /// Create a queue pair.
    CreateQueuePair,
    /// Bring a queue pair into this state.
    Transition(State),
}

impl fmt::Display for ControlOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllocateDomain => f.write_str("allocation of a protection domain"),
            Self::Register => f.write_str("memory registration"),
            Self::AllocateDoorbellPage => f.write_str("allocation of a doorbell page"),
            Self::CreateCompletionQueue => f.write_str("creation of a completion queue"),
            Self::CreateQueuePair => f.write_str("creation of a queue pair"),
            Self::Transition(state) => write!(f, "transition to {state}"),
        }
    }
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// It fails with [`Error::Refused`](crate::Error::Refused).
    Refuse,
    /// It succeeds, after this long.
    Delay(Duration),
}

/// One rule of a [`FaultPlan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// The operation meant.
    pub operation: ControlOperation,
    /// How many of them pass before the rule acts.
    pub skip: u32,
    /// How many of them it acts on, after those.
    pub count: u32,
    /// What it does.
    pub kind: FaultKind,
}

/// Control operations that fail or take long, and queues that never run.
///
/// ```
/// use std::time::Duration;
/// use mscclpp_softnic::{ControlOperation, FaultKind, FaultPlan, FaultRule};
///
/// // The first queue pair is refused, and the third registration takes a second.
/// let plan = FaultPlan::refuse(ControlOperation::CreateQueuePair).and(FaultRule {
///     operation: ControlOperation::Register,
///     skip: 2,
///     count: 1,
///     kind: FaultKind::Delay(Duration::from_secs(1)),
/// });
/// assert_eq!(plan.rules.len(), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Rules, looked at in order; each counts the operations of its kind.
    pub rules: Vec<FaultRule>,
    /// Queue pairs come up and take doorbells, but execute nothing and report
    /// nothing: a field fault of real adapters.
    pub never_execute: bool,
}

impl FaultPlan {
    /// A plan that refuses the first such operation.
    pub fn refuse(operation: ControlOperation) -> Self {
        Self::default().and(FaultRule {
            operation,
            skip: 0,
            count: 1,
            kind: FaultKind::Refuse,
        })
    }

    /// This plan with one more rule.
    #[must_use]
    pub fn and(mut self, rule: FaultRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// What happens to `operation`, now.
    pub(crate) fn next(&mut self, operation: ControlOperation) -> Option<FaultKind> {
        for rule in &mut self.rules {
            if rule.operation != operation {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.count > 0 {
                rule.count -= 1;
                return Some(rule.kind);
            }
        }
        None
    }
}
