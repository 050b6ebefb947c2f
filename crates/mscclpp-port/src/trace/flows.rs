// SPDX-License-Identifier: MIT
//! Arrows: from one slice to another that has the same sequence number.

use std::collections::HashMap;

use mscclpp_device::trace::Kind;

use super::spans::Slice;

/// What leads to what.
struct Rule {
    from: Kind,
    to: Kind,
    name: &'static str,
    /// Added to the first one's number to get the second's.
    step: u16,
    /// Whether the two may be of different ranks.
    between_ranks: bool,
}

const fn rule(from: Kind, to: Kind, name: &'static str) -> Rule {
    Rule {
        from,
        to,
        name,
        step: 0,
        between_ranks: false,
    }
}

const RULES: &[Rule] = &[
    rule(Kind::Pushed, Kind::Handled, "trigger"),
    rule(Kind::Posted, Kind::Left, "post"),
    rule(Kind::Reserved, Kind::Fetched, "request"),
    Rule {
        between_ranks: true,
        ..rule(Kind::Sent, Kind::Received, "packet")
    },
    rule(Kind::Raised, Kind::Took, "signal"),
    Rule {
        step: 1,
        ..rule(Kind::Wrote, Kind::Completed, "completion")
    },
];

/// A slice, and where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) rank: usize,
    pub(super) thread: u64,
    pub(super) slice: Slice,
}

/// An arrow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) name: &'static str,
    pub(super) from: Placed,
    pub(super) to: Placed,
}

/// The arrows between slices, which are in the order of time. Each end has one begin: the last one before
/// it that has its number, unless an earlier end has had that already. Numbers have 16 bits, so of a trace
/// that is longer than that an arrow may be missing where records were dropped.
///
/// `slack`: by how much clocks may be wrong, nanoseconds.
pub(super) fn flows(placed: &[Placed], slack: u64) -> Vec<Flow> {
    let mut found = Vec::new();
    for rule in RULES {
        let mut begins: HashMap<(usize, u16, u16), Vec<Placed>> = HashMap::new();
        let rank = |at: &Placed| if rule.between_ranks { 0 } else { at.rank };
        for at in placed.iter().filter(|at| at.slice.kind == rule.from) {
            let number = at.slice.sequence.wrapping_add(rule.step);
            let key = (rank(at), at.slice.object, number);
            begins.entry(key).or_default().push(*at);
        }
        let mut after: HashMap<(usize, u16, u16), usize> = HashMap::new();
        for to in placed.iter().filter(|at| at.slice.kind == rule.to) {
            let key = (rank(to), to.slice.object, to.slice.sequence);
            let Some(all) = begins.get(&key) else {
                continue;
            };
            let used = after.entry(key).or_default();
            let before = all.partition_point(|from| from.slice.start <= to.slice.start + slack);
            if before > *used {
                *used = before;
                found.push(Flow {
                    name: rule.name,
                    from: all[before - 1],
                    to: *to,
                });
            }
        }
    }
    found
}
