// SPDX-License-Identifier: MIT
//! Records of one thread become slices.

use mscclpp_device::trace::{Kind, Phase, Record};

/// What a viewer shows as a bar, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) kind: Kind,
    pub(super) start: u64,
    /// At least 1: viewers let arrows end at bars only.
    pub(super) len: u64,
    pub(super) object: u16,
    pub(super) sequence: u16,
    /// It began and did not end.
    pub(super) open: bool,
}

/// The slices of one track in the order of their starts, longer ones first, and how many records were the
/// end of something whose begin is not there. `records` are in the order of time.
pub(super) fn slices(records: &[Record]) -> (Vec<Slice>, u64) {
    let mut slices: Vec<Slice> = Vec::new();
    let mut begun: Vec<usize> = Vec::new();
    let mut halves = 0;
    let last = records.last().map_or(0, |record| record.time);
    for record in records {
        let (Some(kind), Some(phase)) = (record.kind(), record.phase()) else {
            halves += 1;
            continue;
        };
        if phase == Phase::End {
            // What began inside of it and did not end is over, too.
            let at = begun.iter().rposition(|at| slices[*at].kind == kind);
            let Some(at) = at else {
                halves += 1;
                continue;
            };
            for (inner, index) in begun.drain(at..).enumerate() {
                let slice = &mut slices[index];
                slice.len = (record.time - slice.start).max(1);
                slice.open = inner > 0;
            }
            continue;
        }
        if phase == Phase::Begin {
            begun.push(slices.len());
        }
        slices.push(Slice {
            kind,
            start: record.time,
            len: 1,
            object: record.object(),
            sequence: record.sequence(),
            open: phase == Phase::Begin,
        });
    }
    for index in begun {
        let slice = &mut slices[index];
        slice.len = (last - slice.start).max(1);
    }
    // Those of one time, of a clock with coarse steps, are shown in each other.
    slices.sort_by_key(|slice| (slice.start, std::cmp::Reverse(slice.len)));
    fit(&mut slices);
    (slices, halves)
}

/// Cuts what sticks out of the slice around it: a moment at the very end of one.
fn fit(slices: &mut [Slice]) {
    let mut around: Vec<u64> = Vec::new();
    for slice in slices {
        while around.last().is_some_and(|end| *end <= slice.start) {
            around.pop();
        }
        if let Some(end) = around.last() {
            slice.len = slice.len.min(end - slice.start);
        }
        around.push(slice.start + slice.len);
    }
}
