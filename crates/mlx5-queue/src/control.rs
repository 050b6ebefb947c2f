// SPDX-License-Identifier: MIT
use crate::segment::be32;
use crate::{Error, Opcode, QueueNumber, SEGMENT_BYTES};

/// When a request produces a completion: bits 2 and 3 of `fm_ce_se`.
///
/// An error produces one in every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CompletionMode {
    /// Only on error: an *unsignalled* request.
    #[default]
    OnError = 0,
    /// Only on the first error.
    OnFirstError = 1,
    /// Always: a *signalled* request (rdma-core `MLX5_WQE_CTRL_CQ_UPDATE`).
    Always = 2,
    /// Always, with an event (Linux `MLX5_WQE_CTRL_CQ_UPDATE_AND_EQE`).
    AlwaysWithEvent = 3,
}

impl CompletionMode {
    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::OnError,
            1 => Self::OnFirstError,
            2 => Self::Always,
            _ => Self::AlwaysWithEvent,
        }
    }

    /// True if success is reported too.
    pub const fn reports_success(self) -> bool {
        matches!(self, Self::Always | Self::AlwaysWithEvent)
    }
}

/// What a request waits for before it starts: bits 5 to 7 of `fm_ce_se`
/// (Linux `MLX5_FENCE_MODE_*`; rdma-core has `MLX5_WQE_CTRL_FENCE` = 4 and
/// `MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE` = 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FenceMode {
    /// Nothing.
    #[default]
    None = 0,
    /// Earlier local operations, such as a memory key change.
    InitiatorSmall = 1,
    /// Earlier reads and atomics.
    Fence = 2,
    /// All earlier requests.
    StrongOrdering = 3,
    /// Both of the first two: what verbs' `IBV_SEND_FENCE` becomes.
    SmallAndFence = 4,
}

impl FenceMode {
    fn from_bits(mode: u8) -> Result<Self, Error> {
        Ok(match mode {
            0 => Self::None,
            1 => Self::InitiatorSmall,
            2 => Self::Fence,
            3 => Self::StrongOrdering,
            4 => Self::SmallAndFence,
            _ => return Err(Error::UnknownFence { mode }),
        })
    }

    /// True if the request waits until earlier reads and atomics have their
    /// results.
    pub const fn waits_for_results(self) -> bool {
        matches!(
            self,
            Self::Fence | Self::StrongOrdering | Self::SmallAndFence
        )
    }
}

/// Byte 11 of the control segment, `fm_ce_se`: fence mode, completion mode,
/// solicited event.
///
/// | bits | what |
/// |---|---|
/// | 5-7 | [`FenceMode`] |
/// | 4, 0 | written as 0, not read |
/// | 2-3 | [`CompletionMode`] |
/// | 1 | solicited event (rdma-core `MLX5_WQE_CTRL_SOLICITED`) |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// When it completes.
    pub completion: CompletionMode,
    /// What it waits for.
    pub fence: FenceMode,
    /// Whether it wakes a peer that sleeps for solicited events.
    pub solicited: bool,
}

impl Flags {
    /// Completes always, waits for nothing: the byte 8 that GPUNetIO writes.
    pub const SIGNALLED: Self = Self {
        completion: CompletionMode::Always,
        fence: FenceMode::None,
        solicited: false,
    };

    /// Completes on error only, waits for nothing.
    pub const UNSIGNALLED: Self = Self {
        completion: CompletionMode::OnError,
        fence: FenceMode::None,
        solicited: false,
    };

    /// The byte.
    pub const fn encode(self) -> u8 {
        (self.fence as u8) << 5 | (self.completion as u8) << 2 | (self.solicited as u8) << 1
    }

    /// Reads the byte.
    ///
    /// # Errors
    /// [`Error::UnknownFence`] for fence modes 5 to 7.
    pub fn decode(byte: u8) -> Result<Self, Error> {
        Ok(Self {
            completion: CompletionMode::from_bits(byte >> 2),
            fence: FenceMode::from_bits(byte >> 5)?,
            solicited: byte & 2 != 0,
        })
    }
}

/// The control segment, first of every work request (rdma-core
/// `mlx5_wqe_ctrl_seg`).
///
/// | bytes | what |
/// |---|---|
/// | 0 | opcode modifier: 0 for everything this crate knows |
/// | 1-2 | index of the request's first block, low 16 bits, big-endian |
/// | 3 | opcode |
/// | 4-6 | queue number, big-endian |
/// | 7 | size in segments, the control segment among them |
/// | 8 | signature: written as 0, not read |
/// | 9-10 | stream channel (UCX `dci_stream_channel_id`): written as 0, not read |
/// | 11 | [`Flags`] |
/// | 12-15 | immediate data, big-endian, for the operations that have it; else written as 0, not read |
///
/// A NIC reads this one first: it says how many more blocks the request has,
/// and whether it is the request that the NIC expects there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control {
    /// Low 16 bits of the index of the first block.
    pub index: u16,
    /// The operation.
    pub opcode: Opcode,
    /// The queue that it was posted to.
    pub queue: QueueNumber,
    /// Size of the request in segments of 16 bytes, this one included; the
    /// wire has six bits for it.
    pub segments: u8,
    /// Completion, fence, solicited event.
    pub flags: Flags,
    /// Immediate data in the machine's byte order. (Verbs and GPUNetIO store
    /// what they are given; their callers swap. Here the value is given.)
    pub immediate: u32,
}

impl Control {
    /// The segment's bytes.
    pub fn encode(&self) -> [u8; SEGMENT_BYTES] {
        let first = u32::from(self.index) << 8 | u32::from(self.opcode as u8);
        let second = self.queue.get() << 8 | u32::from(self.segments & 0x3f);
        let mut bytes = [0; SEGMENT_BYTES];
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..8].copy_from_slice(&second.to_be_bytes());
        bytes[11] = self.flags.encode();
        bytes[12..].copy_from_slice(&self.immediate.to_be_bytes());
        bytes
    }

    /// Reads the segment. The two upper bits of its size are not read.
    ///
    /// # Errors
    /// [`Error::UnknownOpcode`], [`Error::UnsupportedModifier`],
    /// [`Error::UnknownFence`].
    pub fn decode(bytes: &[u8; SEGMENT_BYTES]) -> Result<Self, Error> {
        let first = be32(bytes, 0);
        let second = be32(bytes, 4);
        let opcode = Opcode::try_from(first as u8)?;
        let modifier = (first >> 24) as u8;
        if modifier != 0 {
            return Err(Error::UnsupportedModifier { opcode, modifier });
        }
        Ok(Self {
            index: (first >> 8) as u16,
            opcode,
            queue: QueueNumber::from_upper(second),
            segments: (second & 0x3f) as u8,
            flags: Flags::decode(bytes[11])?,
            immediate: be32(bytes, 12),
        })
    }

    /// Blocks that the request occupies in its ring, by its own account: at
    /// least one.
    pub const fn blocks(&self) -> u64 {
        match self.segments {
            0 => 1,
            segments => segments.div_ceil(4) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_control() {
        bolero::check!()
            .with_type::<[u8; SEGMENT_BYTES]>()
            .for_each(|bytes| {
                let Ok(control) = Control::decode(bytes) else {
                    return;
                };
                let again = control.encode();
                assert_eq!(Control::decode(&again), Ok(control));
                let mut expected = *bytes;
                expected[7] &= 0x3f;
                expected[8..11].fill(0);
                expected[11] &= 0xee;
                assert_eq!(again, expected);
            });
    }

    #[test]
    fn flags_have_the_bits_of_the_drivers() {
        assert_eq!(Flags::SIGNALLED.encode(), 2 << 2);
        assert_eq!(Flags::UNSIGNALLED.encode(), 0);
        let fenced = Flags {
            fence: FenceMode::SmallAndFence,
            ..Flags::SIGNALLED
        };
        assert_eq!(fenced.encode(), 4 << 5 | 2 << 2);
        for mode in 5..8 {
            assert_eq!(Flags::decode(mode << 5), Err(Error::UnknownFence { mode }));
        }
    }
}
