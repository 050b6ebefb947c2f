// SPDX-License-Identifier: MIT
use crate::segment::{be32, be64, encode_atomic};
use crate::{
    Control, DataSegment, DataSegments, Error, Flags, MAX_SEGMENTS, Opcode, Payload, QueueNumber,
    RemoteAddress, SEGMENT_BYTES,
};

/// What a work request does, and with what.
///
/// Segments after the control segment, in wire order:
///
/// | operation | segments | source |
/// |---|---|---|
/// | [`Nop`](Self::Nop) | none | GPUNetIO |
/// | [`Write`](Self::Write) | remote address, payload | rdma-core |
/// | [`Send`](Self::Send) | payload | rdma-core |
/// | [`Read`](Self::Read) | remote address, data segments | rdma-core |
/// | [`FetchAdd`](Self::FetchAdd), [`CompareSwap`](Self::CompareSwap) | remote address, atomic, one data segment | rdma-core |
/// | [`Wait`](Self::Wait) | be32 index at 8, be32 queue at 12 | GPUNetIO |
/// | [`Dump`](Self::Dump) | one data segment | GPUNetIO |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Nothing; completes in its turn.
    Nop,
    /// RDMA write of the payload to `remote`.
    Write {
        /// Where the bytes go.
        remote: RemoteAddress,
        /// The bytes.
        payload: Payload<'a>,
        /// With immediate data the peer's next receive request completes and
        /// its completion carries them.
        immediate: Option<u32>,
    },
    /// Message into the peer's next receive request.
    Send {
        /// The bytes.
        payload: Payload<'a>,
        /// Immediate data for the receive completion.
        immediate: Option<u32>,
    },
    /// RDMA read from `remote` into local pieces, in order.
    Read {
        /// Where the bytes come from.
        remote: RemoteAddress,
        /// Where they go.
        scatter: DataSegments<'a>,
    },
    /// Adds to the remote 64-bit word; its old value lands in `result`.
    FetchAdd {
        /// The word: 8-byte aligned.
        remote: RemoteAddress,
        /// The addend.
        add: u64,
        /// Where the old value goes: 8 bytes.
        result: DataSegment,
    },
    /// Stores `swap` in the remote 64-bit word if it holds `compare`; its old
    /// value lands in `result`.
    CompareSwap {
        /// The word: 8-byte aligned.
        remote: RemoteAddress,
        /// The value it has to hold.
        compare: u64,
        /// The value it gets.
        swap: u64,
        /// Where the old value goes: 8 bytes.
        result: DataSegment,
    },
    /// Waits until completion `index` of the completion queue `queue` exists.
    Wait {
        /// The completion queue.
        queue: QueueNumber,
        /// Low 32 bits of the completion's number.
        index: u32,
    },
    /// Reads local memory and drops it.
    Dump {
        /// What is read.
        source: DataSegment,
    },
}

impl Operation<'_> {
    /// The operation's number.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Nop => Opcode::Nop,
            Self::Write {
                immediate: None, ..
            } => Opcode::Write,
            Self::Write { .. } => Opcode::WriteImmediate,
            Self::Send {
                immediate: None, ..
            } => Opcode::Send,
            Self::Send { .. } => Opcode::SendImmediate,
            Self::Read { .. } => Opcode::Read,
            Self::FetchAdd { .. } => Opcode::FetchAdd,
            Self::CompareSwap { .. } => Opcode::CompareSwap,
            Self::Wait { .. } => Opcode::Wait,
            Self::Dump { .. } => Opcode::Dump,
        }
    }

    /// Segments with the control segment.
    const fn segments(&self) -> usize {
        match self {
            Self::Nop => 1,
            Self::Write { payload, .. } => 2 + payload.segments(),
            Self::Send { payload, .. } => 1 + payload.segments(),
            Self::Read { scatter, .. } => 2 + scatter.len(),
            Self::FetchAdd { .. } | Self::CompareSwap { .. } => 4,
            Self::Wait { .. } | Self::Dump { .. } => 2,
        }
    }

    const fn immediate(&self) -> u32 {
        match *self {
            Self::Write {
                immediate: Some(value),
                ..
            }
            | Self::Send {
                immediate: Some(value),
                ..
            } => value,
            _ => 0,
        }
    }
}

/// A work request: a [`Control`] segment and what follows it.
///
/// It occupies whole blocks of its ring but writes only its own segments; what
/// an earlier request left in the rest of the last block stays there. In the
/// ring a large request may run over the end and go on at the start: whoever
/// reads or writes it deals with that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkRequest<'a> {
    /// The queue that it is posted to.
    pub queue: QueueNumber,
    /// Low 16 bits of the index of its first block.
    pub index: u16,
    /// Completion, fence, solicited event.
    pub flags: Flags,
    /// What it does.
    pub operation: Operation<'a>,
}

impl<'a> WorkRequest<'a> {
    /// Size in segments of 16 bytes.
    ///
    /// # Errors
    /// [`Error::RequestTooLong`] if it does not fit [`MAX_SEGMENTS`].
    pub const fn segments(&self) -> Result<u8, Error> {
        let segments = self.operation.segments();
        if segments > MAX_SEGMENTS {
            return Err(Error::RequestTooLong { segments });
        }
        Ok(segments as u8)
    }

    /// Blocks of 64 bytes that it occupies in its ring.
    ///
    /// # Errors
    /// [`Error::RequestTooLong`] if it does not fit [`MAX_SEGMENTS`].
    pub fn blocks(&self) -> Result<u64, Error> {
        Ok(u64::from(self.segments()?.div_ceil(4)))
    }

    /// Writes the request's segments to the start of `out` and returns how
    /// many bytes that was, a multiple of 16. Bytes after them are not
    /// touched.
    ///
    /// # Errors
    /// [`Error::RequestTooLong`]; [`Error::Truncated`] if `out` is too short.
    /// Nothing is written then.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, Error> {
        let segments = self.segments()?;
        let need = usize::from(segments) * SEGMENT_BYTES;
        let have = out.len();
        let Some(out) = out.get_mut(..need) else {
            return Err(Error::Truncated {
                what: "work request",
                need,
                have,
            });
        };
        let control = Control {
            index: self.index,
            opcode: self.operation.opcode(),
            queue: self.queue,
            segments,
            flags: self.flags,
            immediate: self.operation.immediate(),
        };
        let (out, _) = out.as_chunks_mut();
        let [first, rest @ ..] = out else {
            return Ok(need);
        };
        *first = control.encode();
        encode_operation(&self.operation, rest);
        Ok(need)
    }

    /// Reads the request at the start of `bytes`, which hold at least the
    /// segments that its control segment counts. What the NIC ignores is
    /// ignored.
    ///
    /// # Errors
    /// Those of [`Control::decode`]; [`Error::Truncated`];
    /// [`Error::SegmentCount`] if the size is not one of the operation's;
    /// [`Error::InlineLength`], [`Error::InlineResult`],
    /// [`Error::MixedPayload`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let truncated = |need| Error::Truncated {
            what: "work request",
            need,
            have: bytes.len(),
        };
        let (all, _) = bytes.as_chunks::<SEGMENT_BYTES>();
        let [first, ..] = all else {
            return Err(truncated(SEGMENT_BYTES));
        };
        let control = Control::decode(first)?;
        let segments = usize::from(control.segments);
        let Some(wire) = all.get(..segments) else {
            return Err(truncated(segments * SEGMENT_BYTES));
        };
        let rest = wire.get(1..).ok_or(wrong_size(&control))?;
        let operation = decode_operation(&control, rest)?;
        let Control {
            queue,
            index,
            flags,
            ..
        } = control;
        Ok(Self {
            queue,
            index,
            flags,
            operation,
        })
    }
}

fn encode_operation(operation: &Operation<'_>, out: &mut [[u8; SEGMENT_BYTES]]) {
    match (operation, out) {
        (
            Operation::Write {
                remote, payload, ..
            },
            [raddr, rest @ ..],
        ) => {
            *raddr = remote.encode();
            payload.encode(rest);
        }
        (Operation::Send { payload, .. }, rest) => payload.encode(rest),
        (Operation::Read { remote, scatter }, [raddr, rest @ ..]) => {
            *raddr = remote.encode();
            rest.copy_from_slice(scatter.wire());
        }
        (
            Operation::FetchAdd {
                remote,
                add,
                result,
            },
            [raddr, atomic, data],
        ) => {
            *raddr = remote.encode();
            // The NIC reads the first half. GPUNetIO fills both, so do we:
            // the bytes can be compared with its own.
            *atomic = encode_atomic(*add, *add);
            *data = result.encode();
        }
        (
            Operation::CompareSwap {
                remote,
                compare,
                swap,
                result,
            },
            [raddr, atomic, data],
        ) => {
            *raddr = remote.encode();
            *atomic = encode_atomic(*swap, *compare);
            *data = result.encode();
        }
        (Operation::Wait { queue, index }, [wait]) => {
            *wait = [0; SEGMENT_BYTES];
            wait[8..12].copy_from_slice(&index.to_be_bytes());
            wait[12..].copy_from_slice(&queue.get().to_be_bytes());
        }
        (Operation::Dump { source }, [data]) => *data = source.encode(),
        // A NOP has no more segments; the others were sized by `segments`.
        _ => {}
    }
}

fn decode_operation<'a>(
    control: &Control,
    wire: &'a [[u8; SEGMENT_BYTES]],
) -> Result<Operation<'a>, Error> {
    let opcode = control.opcode;
    let immediate = Some(control.immediate);
    Ok(match (opcode, wire) {
        (Opcode::Nop, []) => Operation::Nop,
        (Opcode::Write | Opcode::WriteImmediate, [raddr, rest @ ..]) => Operation::Write {
            remote: RemoteAddress::decode(raddr),
            payload: Payload::decode(control, rest)?,
            immediate: immediate.filter(|_| opcode == Opcode::WriteImmediate),
        },
        (Opcode::Send | Opcode::SendImmediate, rest) => Operation::Send {
            payload: Payload::decode(control, rest)?,
            immediate: immediate.filter(|_| opcode == Opcode::SendImmediate),
        },
        (Opcode::Read, [raddr, rest @ ..]) => match Payload::decode(control, rest)? {
            Payload::Gather(scatter) => Operation::Read {
                remote: RemoteAddress::decode(raddr),
                scatter,
            },
            Payload::Inline(_) => return Err(Error::InlineResult { opcode }),
        },
        (Opcode::FetchAdd, [raddr, atomic, data]) => Operation::FetchAdd {
            remote: RemoteAddress::decode(raddr),
            add: be64(atomic, 0),
            result: result_segment(opcode, data)?,
        },
        (Opcode::CompareSwap, [raddr, atomic, data]) => Operation::CompareSwap {
            remote: RemoteAddress::decode(raddr),
            swap: be64(atomic, 0),
            compare: be64(atomic, 8),
            result: result_segment(opcode, data)?,
        },
        (Opcode::Wait, [wait]) => Operation::Wait {
            queue: QueueNumber::from_lower(be32(wait, 12)),
            index: be32(wait, 8),
        },
        (Opcode::Dump, [data]) => Operation::Dump {
            source: result_segment(opcode, data)?,
        },
        _ => return Err(wrong_size(control)),
    })
}

fn result_segment(opcode: Opcode, data: &[u8; SEGMENT_BYTES]) -> Result<DataSegment, Error> {
    DataSegment::decode(data).ok_or(Error::InlineResult { opcode })
}

const fn wrong_size(control: &Control) -> Error {
    Error::SegmentCount {
        opcode: control.opcode,
        segments: control.segments,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BLOCK_BYTES, MAX_BLOCKS};

    #[test]
    fn fuzz_work_request() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let Ok(request) = WorkRequest::decode(bytes) else {
                return;
            };
            let mut again = [0; MAX_BLOCKS * BLOCK_BYTES];
            let written = request.encode(&mut again).unwrap();
            assert!(written <= bytes.len());
            assert_eq!(WorkRequest::decode(&again[..written]), Ok(request));
        });
    }
}
