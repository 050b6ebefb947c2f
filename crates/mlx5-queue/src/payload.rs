// SPDX-License-Identifier: MIT
use core::fmt;

use crate::{Control, DataSegment, Error, SEGMENT_BYTES};

/// Bit of an inline segment's first word (rdma-core `MLX5_INLINE_SEG`); the
/// other 31 bits are the length.
const INLINE: u32 = 0x8000_0000;

/// Bytes before the data of an inline segment (rdma-core
/// `mlx5_wqe_inl_data_seg`).
const INLINE_HEADER: usize = 4;

/// Pieces of local memory, as encoded [`DataSegment`]s.
///
/// Borrowed in wire form so that neither encoding nor decoding copies or
/// allocates. Bytes that are no data segment (those that bit 31 marks as
/// inline) are skipped by the iterator; a decoded request has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DataSegments<'a>(&'a [[u8; SEGMENT_BYTES]]);

impl<'a> DataSegments<'a> {
    /// A list of segments, each from [`DataSegment::encode`]. An empty list
    /// is a message of no bytes.
    pub const fn new(segments: &'a [[u8; SEGMENT_BYTES]]) -> Self {
        Self(segments)
    }

    /// The segments in order.
    pub fn iter(self) -> impl Iterator<Item = DataSegment> + 'a {
        self.0.iter().filter_map(DataSegment::decode)
    }

    /// Number of segments.
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of all of them together.
    pub fn bytes(self) -> u64 {
        self.iter().map(|segment| u64::from(segment.length())).sum()
    }

    pub(crate) const fn wire(self) -> &'a [[u8; SEGMENT_BYTES]] {
        self.0
    }
}

impl fmt::Debug for DataSegments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What a request sends: memory that the NIC gathers, or bytes inside the
/// request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payload<'a> {
    /// Pieces of registered memory.
    Gather(DataSegments<'a>),
    /// Bytes that travel with the request; the caller's buffer is free at
    /// once. An empty slice writes no segment, as rdma-core does, and reads
    /// back as an empty [`Gather`](Self::Gather).
    Inline(&'a [u8]),
}

impl<'a> Payload<'a> {
    /// Bytes of the message.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Gather(segments) => segments.bytes(),
            Self::Inline(data) => data.len() as u64,
        }
    }

    /// Segments it occupies.
    pub(crate) const fn segments(self) -> usize {
        match self {
            Self::Gather(segments) => segments.len(),
            Self::Inline([]) => 0,
            Self::Inline(data) => (INLINE_HEADER + data.len()).div_ceil(SEGMENT_BYTES),
        }
    }

    /// Writes it; `out` is as long as [`segments`](Self::segments) says. The
    /// bytes between the end of inline data and the end of its segment are
    /// cleared.
    pub(crate) fn encode(self, out: &mut [[u8; SEGMENT_BYTES]]) {
        match self {
            Self::Gather(segments) => out.copy_from_slice(segments.wire()),
            Self::Inline([]) => {}
            Self::Inline(data) => {
                let out = out.as_flattened_mut();
                let (header, room) = out.split_at_mut(INLINE_HEADER);
                header.copy_from_slice(&(INLINE | data.len() as u32).to_be_bytes());
                let (data_out, rest) = room.split_at_mut(data.len());
                data_out.copy_from_slice(data);
                rest.fill(0);
            }
        }
    }

    pub(crate) fn decode(
        control: &Control,
        wire: &'a [[u8; SEGMENT_BYTES]],
    ) -> Result<Self, Error> {
        match wire.iter().position(|segment| segment[0] & 0x80 != 0) {
            None => Ok(Self::Gather(DataSegments(wire))),
            Some(0) => decode_inline(control, wire),
            Some(segments) => Err(Error::MixedPayload { segments }),
        }
    }
}

fn decode_inline<'a>(
    control: &Control,
    wire: &'a [[u8; SEGMENT_BYTES]],
) -> Result<Payload<'a>, Error> {
    let mut word = [0; INLINE_HEADER];
    let (header, room) = wire.as_flattened().split_at(INLINE_HEADER);
    word.copy_from_slice(header);
    let length = u32::from_be_bytes(word) & !INLINE;
    match room.get(..length as usize) {
        Some(data) if !data.is_empty() => {
            let payload = Payload::Inline(data);
            if payload.segments() == wire.len() {
                return Ok(payload);
            }
            let Control {
                opcode, segments, ..
            } = *control;
            Err(Error::SegmentCount { opcode, segments })
        }
        _ => Err(Error::InlineLength {
            length,
            room: room.len(),
        }),
    }
}
