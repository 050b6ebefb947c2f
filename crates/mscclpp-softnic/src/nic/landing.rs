// SPDX-License-Identifier: MIT
//! How bytes reach memory: whole, or scattered over time.

use smallvec::SmallVec;

use super::access::{Place, SpaceId, Then};
use super::common::Common;
use super::packet::{Payload, Piece};
use crate::capability::DeviceAddress;
use crate::config::Landing;
use crate::memory::Bytes;
use crate::time::Time;

/// Places of consecutive bytes, with how many at each.
pub(super) type Places = SmallVec<[(Place, u64); 1]>;

/// What lands.
pub(super) enum Source {
    Bytes(Bytes),
    Places(Places),
}

impl Source {
    /// The bytes of a packet of device `from` that go to memory `to`; `None` if
    /// memory that it names is registered no more, or was never lent to this
    /// device.
    pub(super) fn of(
        c: &mut Common,
        from: DeviceAddress,
        to: SpaceId,
        payload: Payload,
    ) -> Option<Self> {
        let pieces = match payload {
            Payload::Bytes(bytes) => return Some(Self::Bytes(bytes)),
            Payload::Pieces(pieces) => pieces,
        };
        let mut places = Places::new();
        let mut mapped = 0;
        for piece in pieces {
            let Piece {
                key,
                address,
                length,
            } = piece;
            let place = if from == c.address {
                c.regions.locate(key, address, length).ok()?
            } else {
                mapped += length;
                c.loans.locate(from, piece, to)?
            };
            places.push((place, length));
        }
        c.counters.bytes_mapped += mapped;
        Some(Self::Places(places))
    }
}

/// Whether all of `source` is submitted at once, and to one memory, which keeps
/// the order of accesses.
pub(super) fn is_in_order(c: &Common, source: &Source, to: Place) -> bool {
    let direct = match source {
        Source::Bytes(_) => true,
        Source::Places(places) => places.iter().all(|(from, _)| from.space == to.space),
    };
    direct && matches!(c.config.landing, Landing::AtOnce) && c.accesses.keeps_order(to.space)
}

/// Starts to move `source` to `target`, which has as many bytes. Returns the
/// number of accesses that will report with `then`.
pub(super) fn land(c: &mut Common, source: Source, target: &[(Place, u64)], then: Then) -> u32 {
    let mut count = 0;
    match source {
        Source::Bytes(bytes) => {
            let mut rest = bytes.as_slice();
            for &(to, length) in target {
                let (now, later) = rest.split_at((length as usize).min(rest.len()));
                rest = later;
                each_piece(c, to, now.len() as u64, |c, due, offset, length| {
                    let part = &now[offset as usize..(offset + length) as usize];
                    let bytes = Bytes::from_slice(part);
                    c.accesses.write(due, to.offset(offset), bytes, then);
                    count += 1;
                });
            }
        }
        Source::Places(places) => {
            let mut target = target.iter().copied();
            let mut to = target.next();
            for (mut from, mut left) in places {
                while left > 0
                    && let Some((place, room)) = to
                {
                    let take = left.min(room);
                    each_piece(c, place, take, |c, due, offset, length| {
                        let (from, to) = (from.offset(offset), place.offset(offset));
                        c.accesses.copy(due, from, to, length, then);
                        count += 1;
                    });
                    from = from.offset(take);
                    left -= take;
                    let next = (place.offset(take), room - take);
                    to = if room == take {
                        target.next()
                    } else {
                        Some(next)
                    };
                }
            }
        }
    }
    count
}

/// Calls `start` for each piece of `length` bytes that land at `to`, with the
/// time of the piece and where it lies. Pieces end at word boundaries.
fn each_piece(
    c: &mut Common,
    to: Place,
    length: u64,
    mut start: impl FnMut(&mut Common, Option<Time>, u64, u64),
) {
    let Landing::Scattered { linger } = c.config.landing else {
        if length > 0 {
            start(c, None, 0, length);
        }
        return;
    };
    // Words at first, but never thousands of pieces.
    let longest = (length / 16).max(256);
    let mut offset = 0;
    while offset < length {
        let end = to
            .address
            .wrapping_add(offset)
            .wrapping_add(c.rng.u64(1..=longest));
        let end = (end | 7)
            .wrapping_add(1)
            .wrapping_sub(to.address)
            .min(length);
        let due = c.now.after(linger.mul_f64(c.rng.f64()));
        start(c, Some(due), offset, end - offset);
        offset = end;
    }
}

/// When the store of an atomic follows its load.
pub(super) fn store_time(c: &mut Common) -> Option<Time> {
    match c.config.landing {
        Landing::AtOnce => None,
        Landing::Scattered { linger } => Some(c.now.after(linger.mul_f64(c.rng.f64()))),
    }
}
