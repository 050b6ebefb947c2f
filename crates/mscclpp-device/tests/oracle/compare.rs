// SPDX-License-Identifier: MIT
//! What has to be equal, and what is not looked at.

use std::fmt;

use mlx5_queue::{BLOCK_BYTES, Opcode, QueueIndex, RingSize, SEGMENT_BYTES};
use mscclpp_device::executor::memory::Scope;

use super::calls::{Call, requests};
use super::machine::Step;
use super::queue::{Found, Image};

/// Where two queues differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// A byte of a slot of the ring.
    Slot {
        slot: u32,
        offset: usize,
    },
    /// What is masked is zero here.
    NotZero {
        slot: u32,
        offset: usize,
    },
    Record {
        offset: usize,
    },
    Doorbell {
        offset: usize,
    },
    /// What the call returned.
    Found,
    /// Where it left the queue's end.
    End,
    /// Stores to doorbell and record, in their order.
    Steps,
    /// Fences before them.
    Fences,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) operation: &'static str,
    pub(crate) at: At,
    pub(crate) ours: String,
    pub(crate) theirs: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            at,
            ours,
            theirs,
        } = self;
        write!(f, "{operation}: {at:?}: {ours} here, {theirs} there")
    }
}

/// Bytes that were equal, and bytes that were masked, of what a call wrote.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Compared {
    pub(crate) bytes: u64,
    pub(crate) masked: u64,
}

/// Bytes of a slot that are not compared.
pub(crate) type Mask = [bool; BLOCK_BYTES];

/// What is masked of what `block` was written with; other segments keep the mask of what they hold.
///
/// The library keeps segments in variables that it does not set as a whole: their other bytes are
/// whatever was on its stack. Behind inline data it writes nothing. The second half of a
/// fetch-and-add's operand is nothing to a NIC.
pub(crate) fn cover(mask: &mut Mask, block: &[u8]) {
    let (opcode, written) = (block[3], usize::from(block[7] & 0x3f) * SEGMENT_BYTES);
    let written = written.min(BLOCK_BYTES);
    mask[..written].fill(false);
    // Signature and stream; immediate data, which no request here has; behind the remote key.
    for unset in [8..11, 12..16, 28..32] {
        mask[..written]
            .iter_mut()
            .take(unset.end)
            .skip(unset.start)
            .for_each(|byte| *byte = true);
    }
    if opcode == Opcode::FetchAdd as u8 {
        mask[40..48].fill(true);
    }
    if opcode == Opcode::Write as u8 && written > 32 && block[32] & 0x80 != 0 {
        mask[36 + usize::from(block[35])..written].fill(true);
    }
}

/// Masked bytes that are zero in what is written here, all but the operand's half.
const ZERO: [std::ops::Range<usize>; 3] = [8..11, 12..16, 28..32];

/// The first byte of the doorbell has bits of the position that NICs do not look at.
const DOORBELL_MASKED: usize = 0;

/// One side after a call.
pub(crate) struct Side<'a> {
    pub(crate) image: &'a Image,
    pub(crate) found: &'a Found,
}

/// The queue that both sides have.
pub(crate) struct Ring<'a> {
    pub(crate) size: RingSize,
    pub(crate) masks: &'a [Mask],
    /// Where the call began.
    pub(crate) first: u64,
}

/// Holds what a call left here against what it left there. All of the ring is compared, slots that
/// were not written without a mask.
pub(crate) fn compare(
    call: &Call,
    ring: &Ring<'_>,
    ours: &Side<'_>,
    theirs: &Side<'_>,
) -> Result<Compared, Vec<Difference>> {
    let mut all = Vec::new();
    let mut differ = |at: At, ours: String, theirs: String| {
        all.push(Difference {
            operation: call.operation.name(),
            at,
            ours,
            theirs,
        });
    };
    let hex = |byte: u8| format!("{byte:02x}");
    let pairs = ours.image.ring.chunks(BLOCK_BYTES);
    for (slot, (here, there)) in pairs.zip(theirs.image.ring.chunks(BLOCK_BYTES)).enumerate() {
        if here == there {
            continue;
        }
        for offset in 0..BLOCK_BYTES {
            if !ring.masks[slot][offset] && here[offset] != there[offset] {
                let slot = slot as u32;
                let at = At::Slot { slot, offset };
                differ(at, hex(here[offset]), hex(there[offset]));
            }
        }
    }
    let count = requests(call);
    let mut compared = Compared {
        bytes: 0,
        masked: 0,
    };
    for index in ring.first..ring.first + count {
        let slot = QueueIndex::new(index).slot(ring.size);
        let block = &ours.image.ring[slot as usize * BLOCK_BYTES..][..BLOCK_BYTES];
        for (offset, &byte) in block.iter().enumerate() {
            let masked = ring.masks[slot as usize][offset];
            let written = offset < usize::from(block[7]) * SEGMENT_BYTES;
            if written && byte != 0 && ZERO.iter().any(|range| range.contains(&offset)) {
                differ(At::NotZero { slot, offset }, hex(byte), "masked".into());
            }
            match masked {
                true => compared.masked += 1,
                false => compared.bytes += 1,
            }
        }
    }
    if count > 0 {
        compared.bytes += 15;
        compared.masked += 1;
    }
    for offset in 0..8 {
        let (here, there) = (ours.image.record[offset], theirs.image.record[offset]);
        if here != there {
            differ(At::Record { offset }, hex(here), hex(there));
        }
        let (here, there) = (ours.image.doorbell[offset], theirs.image.doorbell[offset]);
        if here != there && offset != DOORBELL_MASKED {
            differ(At::Doorbell { offset }, hex(here), hex(there));
        }
    }
    let (here, there) = (ours.found, theirs.found);
    if here.what != there.what {
        differ(
            At::Found,
            format!("{:?}", here.what),
            format!("{:?}", there.what),
        );
    }
    if here.end != there.end {
        differ(At::End, here.end.to_string(), there.end.to_string());
    }
    if let (Some(here), Some(there)) = (&here.steps, &there.steps)
        && let Some((at, ours, theirs)) =
            steps(here, there, count <= ring.size.entries() as u64 / 2)
    {
        differ(at, ours, theirs);
    }
    if all.is_empty() {
        Ok(compared)
    } else {
        Err(all)
    }
}

/// A store that tells the NIC, and the widest release since the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    step: Step,
    released: Option<Scope>,
}

fn told(steps: &[Step]) -> Vec<Told> {
    let mut released = None;
    let mut all = Vec::new();
    for &step in steps {
        match step {
            Step::Request => {}
            Step::Release(scope) => released = released.max(Some(scope)),
            Step::Record(_) => all.push(Told {
                step,
                released: released.take(),
            }),
            Step::Doorbell(value) => all.push(Told {
                step: Step::Doorbell(value & !0xff),
                released: released.take(),
            }),
        }
    }
    all
}

/// Doorbell, record, doorbell, with the same values, behind fences that are no weaker; and no request
/// is written behind them. A call that is more than half of the ring is announced in pieces here: each
/// has that form, and the last one those values.
fn steps(ours: &[Step], theirs: &[Step], in_one_piece: bool) -> Option<(At, String, String)> {
    let (here, there) = (told(ours), told(theirs));
    let values = |told: &[Told]| -> Vec<Step> { told.iter().map(|told| told.step).collect() };
    let words = |at| Some((at, format!("{ours:?}"), format!("{theirs:?}")));
    let formed = |told: &[Told]| {
        matches!(
            values(told)[..],
            [Step::Doorbell(a), Step::Record(_), Step::Doorbell(b)] if a == b
        )
    };
    let last = &here[here.len().saturating_sub(3)..];
    let first_told = |steps: &[Step]| {
        let told = |step: &Step| matches!(step, Step::Doorbell(_) | Step::Record(_));
        steps.iter().position(told).unwrap_or(steps.len())
    };
    let late = |steps: &[Step]| steps[first_told(steps)..].contains(&Step::Request);
    if here.is_empty() && there.is_empty() {
        return None;
    }
    if !here.chunks(3).all(formed)
        || values(last) != values(&there)
        || (in_one_piece && (here.len() != 3 || late(ours)))
    {
        return words(At::Steps);
    }
    let weaker = last
        .iter()
        .zip(&there)
        .any(|(here, there)| here.released < there.released);
    if weaker { words(At::Fences) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNG: [Step; 5] = [
        Step::Release(Scope::Device),
        Step::Doorbell(0x300),
        Step::Record(3),
        Step::Release(Scope::Device),
        Step::Doorbell(0x300),
    ];

    fn found(ours: &[Step], in_one_piece: bool) -> Option<At> {
        let requests = [&[Step::Request; 3][..], ours].concat();
        steps(&requests, &RUNG, in_one_piece).map(|(at, ..)| at)
    }

    #[test]
    fn a_post_tells_the_nic_in_the_same_order_behind_fences_that_are_no_weaker() {
        assert_eq!(found(&RUNG, true), None);
        let with = |at: usize, step| {
            let mut steps = RUNG;
            steps[at] = step;
            steps
        };
        for scope in [0, 3] {
            assert_eq!(
                found(&with(scope, Step::Release(Scope::System)), true),
                None
            );
            let weaker = with(scope, Step::Release(Scope::Block));
            assert_eq!(found(&weaker, true), Some(At::Fences));
            assert_eq!(found(&with(scope, Step::Request), false), Some(At::Fences));
        }
        for (at, step) in [
            (1, Step::Doorbell(0x400)),
            (2, Step::Record(4)),
            (2, Step::Doorbell(0x300)),
            (4, Step::Record(3)),
            (3, Step::Request),
        ] {
            assert_eq!(found(&with(at, step), true), Some(At::Steps), "{step:?}");
        }
        assert_eq!(found(&RUNG[..3], true), Some(At::Steps));
        assert_eq!(found(&[], true), Some(At::Steps));
        // In pieces, of which the last has the values.
        let pieces = |first| [&with(1, Step::Doorbell(first))[..], &RUNG].concat();
        assert_eq!(found(&pieces(0x300), false), None);
        assert_eq!(found(&pieces(0x200), false), Some(At::Steps));
        assert_eq!(found(&pieces(0x300), true), Some(At::Steps));
    }

    #[test]
    fn a_slot_is_masked_where_its_last_writer_sets_nothing() {
        let mut mask = [false; BLOCK_BYTES];
        let block = |opcode, segments| {
            let mut block = [0; BLOCK_BYTES];
            (block[3], block[7]) = (opcode, segments);
            block
        };
        let masked =
            |mask: &Mask| -> Vec<usize> { (0..BLOCK_BYTES).filter(|at| mask[*at]).collect() };
        let control = [8, 9, 10, 12, 13, 14, 15];
        cover(&mut mask, &block(Opcode::Nop as u8, 1));
        assert_eq!(masked(&mask), control);
        cover(&mut mask, &block(Opcode::FetchAdd as u8, 4));
        let atomic: Vec<usize> = control.into_iter().chain(28..32).chain(40..48).collect();
        assert_eq!(masked(&mask), atomic);
        // What a shorter one leaves there stays masked.
        cover(&mut mask, &block(Opcode::Nop as u8, 1));
        assert_eq!(masked(&mask), atomic);
        cover(&mut mask, &block(Opcode::Write as u8, 3));
        let write: Vec<usize> = control.into_iter().chain(28..32).collect();
        assert_eq!(masked(&mask), write);
        let mut inline = block(Opcode::Write as u8, 3);
        (inline[32], inline[35]) = (0x80, 8);
        cover(&mut mask, &inline);
        let inline: Vec<usize> = write.into_iter().chain(44..48).collect();
        assert_eq!(masked(&mask), inline);
    }
}
