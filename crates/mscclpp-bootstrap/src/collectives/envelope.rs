// SPDX-License-Identifier: MIT
//! What precedes the bytes of a collective's message.

use std::fmt;

use super::UNCOUNTED;
use crate::{BootstrapError, ReduceOp};

/// Which collective a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    AllGather,
    Broadcast,
    AllReduce(ReduceOp),
    Barrier,
    /// With the number of members.
    GroupBarrier(u32),
}

impl Kind {
    fn code(self) -> (u8, u32) {
        match self {
            Self::AllGather => (1, 0),
            Self::Broadcast => (2, 0),
            Self::AllReduce(op) => (
                3,
                match op {
                    ReduceOp::Min => 0,
                    ReduceOp::Max => 1,
                    ReduceOp::Sum => 2,
                    ReduceOp::And => 3,
                    ReduceOp::Or => 4,
                },
            ),
            Self::Barrier => (4, 0),
            Self::GroupBarrier(members) => (5, members),
        }
    }

    fn from_code(code: u8, detail: u32) -> Option<Self> {
        Some(match (code, detail) {
            (1, 0) => Self::AllGather,
            (2, 0) => Self::Broadcast,
            (3, 0) => Self::AllReduce(ReduceOp::Min),
            (3, 1) => Self::AllReduce(ReduceOp::Max),
            (3, 2) => Self::AllReduce(ReduceOp::Sum),
            (3, 3) => Self::AllReduce(ReduceOp::And),
            (3, 4) => Self::AllReduce(ReduceOp::Or),
            (4, 0) => Self::Barrier,
            (5, members) => Self::GroupBarrier(members),
            _ => return None,
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllGather => f.write_str("all-gather"),
            Self::Broadcast => f.write_str("broadcast"),
            Self::AllReduce(op) => write!(f, "all-reduce ({op:?})"),
            Self::Barrier => f.write_str("barrier"),
            Self::GroupBarrier(members) => write!(f, "group barrier of {members} ranks"),
        }
    }
}

/// The head of a message: kind, step, and which collective of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) kind: Kind,
    pub(super) step: u32,
    pub(super) number: u64,
}

impl Envelope {
    /// version, kind, 2 unused, detail (4), step (4), number (8); then the body.
    const BYTES: usize = 20;
    const VERSION: u8 = 1;

    pub(super) fn wrap(&self, body: &[u8]) -> Vec<u8> {
        let (code, detail) = self.kind.code();
        let mut message = Vec::with_capacity(Self::BYTES + body.len());
        message.extend([Self::VERSION, code, 0, 0]);
        message.extend(detail.to_le_bytes());
        message.extend(self.step.to_le_bytes());
        message.extend(self.number.to_le_bytes());
        message.extend(body);
        message
    }

    /// Takes the head off the message.
    pub(super) fn unwrap(message: &mut Vec<u8>) -> Result<Self, BootstrapError> {
        let bad = |reason: &str| BootstrapError::BadMessage {
            reason: format!("a collective's message {reason}"),
        };
        let Some((head, _)) = message.split_first_chunk::<{ Self::BYTES }>() else {
            return Err(bad("is shorter than its head"));
        };
        let [
            version,
            code,
            0,
            0,
            d0,
            d1,
            d2,
            d3,
            s0,
            s1,
            s2,
            s3,
            number @ ..,
        ] = *head
        else {
            return Err(bad("sets bytes that are unused"));
        };
        if version != Self::VERSION {
            return Err(bad("has another version; run the same build on all ranks"));
        }
        let kind = Kind::from_code(code, u32::from_le_bytes([d0, d1, d2, d3]))
            .ok_or_else(|| bad("is of no known kind"))?;
        message.drain(..Self::BYTES);
        Ok(Self {
            kind,
            step: u32::from_le_bytes([s0, s1, s2, s3]),
            number: u64::from_le_bytes(number),
        })
    }
}

impl fmt::Display for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.number == UNCOUNTED {
            write!(f, "{}, step {}", self.kind, self.step)
        } else {
            write!(
                f,
                "{}, step {} (collective {})",
                self.kind, self.step, self.number
            )
        }
    }
}

/// Slices in one piece: each with its length (8 bytes) before it.
pub(super) fn join(slices: &[Vec<u8>]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(slices.iter().map(|s| s.len() + 8).sum());
    for slice in slices {
        joined.extend((slice.len() as u64).to_le_bytes());
        joined.extend(slice);
    }
    joined
}

/// The `count` slices that [`join`] put together.
pub(super) fn split(mut joined: &[u8], count: usize) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let bad = || BootstrapError::BadMessage {
        reason: format!("an all-gather message does not consist of {count} slices"),
    };
    // Each slice takes 8 bytes at least: a larger count is a lie.
    let mut slices = Vec::with_capacity(count.min(joined.len() / 8));
    for _ in 0..count {
        let (length, rest) = joined.split_first_chunk::<8>().ok_or_else(bad)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| bad())?;
        let (slice, rest) = rest.split_at_checked(length).ok_or_else(bad)?;
        slices.push(slice.to_vec());
        joined = rest;
    }
    if joined.is_empty() {
        Ok(slices)
    } else {
        Err(bad())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::AllGather),
            Just(Kind::Broadcast),
            Just(Kind::Barrier),
            any::<u32>().prop_map(Kind::GroupBarrier),
            prop_oneof![
                Just(ReduceOp::Min),
                Just(ReduceOp::Max),
                Just(ReduceOp::Sum),
                Just(ReduceOp::And),
                Just(ReduceOp::Or),
            ]
            .prop_map(Kind::AllReduce),
        ]
    }

    proptest! {
        #[test]
        fn an_envelope_comes_back(kind in kinds(), step: u32, number: u64, body: Vec<u8>) {
            let envelope = Envelope { kind, step, number };
            let mut message = envelope.wrap(&body);
            prop_assert_eq!(Envelope::unwrap(&mut message).unwrap(), envelope);
            prop_assert_eq!(message, body);
        }

        #[test]
        fn slices_come_back(slices in proptest::collection::vec(any::<Vec<u8>>(), 0..12)) {
            let joined = join(&slices);
            prop_assert_eq!(split(&joined, slices.len()).unwrap(), slices.clone());
            prop_assert!(split(&joined, slices.len() + 1).is_err());
        }
    }

    #[test]
    fn fuzz_envelope() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let mut message = bytes.to_vec();
            let unwrapped = mscclpp_fuzz::in_proportion(bytes, || Envelope::unwrap(&mut message));
            if let Ok(envelope) = unwrapped {
                assert_eq!(envelope.wrap(&message), bytes);
            }
        });
    }

    #[test]
    fn fuzz_slices() {
        bolero::check!()
            .with_type::<(u8, Vec<u8>)>()
            .for_each(|(count, bytes)| {
                if let Ok(slices) =
                    mscclpp_fuzz::in_proportion(bytes, || split(bytes, usize::from(*count)))
                {
                    assert_eq!(&join(&slices), bytes);
                }
            });
    }
}
