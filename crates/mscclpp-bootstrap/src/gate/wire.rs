// SPDX-License-Identifier: MIT
//! What ranks tell each other at a gate.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{MAX_PHASE, SetupError};
use crate::{BootstrapError, message};

/// The largest message: an error with all its texts, or a full value.
pub(crate) const MAX_MESSAGE: usize = 2048;
/// How many words of a value ranks may add up at one gate.
pub(crate) const MAX_WORDS: usize = 8;

/// What a rank, or all ranks below one, say of a phase: the sum of their values,
/// or the error that counts.
pub(crate) type Outcome = Result<Vec<u128>, SetupError>;

/// One message between neighbours in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    /// Which use of the tag it belongs to, from 0.
    pub(crate) turn: u64,
    /// Which gate of that use, from 1.
    pub(crate) step: u32,
    /// The name of the sender's phase.
    pub(crate) phase: String,
    pub(crate) body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Body {
    /// To the parent: the outcome of the sender and all below it.
    #[serde(rename = "R")]
    Report(Outcome),
    /// To a child: the outcome of all. Also to a parent, from a rank that had to
    /// give up without one.
    #[serde(rename = "V")]
    Verdict(Outcome),
    /// The sender needs an answer within so many milliseconds.
    #[serde(rename = "H")]
    Hurry(u32),
    /// To one that asked to hurry: the rank that the sender waits for, as far as
    /// it knows.
    #[serde(rename = "W")]
    Waiting(usize),
}

impl Body {
    pub(crate) fn hurry(left: Duration) -> Self {
        Self::Hurry(u32::try_from(left.as_millis()).unwrap_or(u32::MAX))
    }
}

impl Message {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, BootstrapError> {
        message::encode(self)
    }

    /// A message from one of `world` ranks.
    pub(crate) fn decode(bytes: &[u8], world: usize) -> Result<Self, BootstrapError> {
        let message: Self = message::decode(bytes, MAX_MESSAGE)?;
        let bad = |reason: &str| BootstrapError::BadMessage {
            reason: format!("a gate's message {reason}"),
        };
        if message.phase.len() > MAX_PHASE {
            return Err(bad("has too long a name of a phase"));
        }
        match &message.body {
            Body::Report(outcome) | Body::Verdict(outcome) => match outcome {
                Ok(words) if words.len() > MAX_WORDS => Err(bad("has too long a value")),
                Err(error) if error.rank >= world || !error.reason.is_of(world) => {
                    Err(bad("blames a rank that does not exist"))
                }
                Err(error) if error.phase.len() > MAX_PHASE || !error.reason.fits() => {
                    Err(bad("has too long a text"))
                }
                _ => Ok(message),
            },
            Body::Waiting(rank) if *rank >= world => {
                Err(bad("waits for a rank that does not exist"))
            }
            Body::Hurry(_) | Body::Waiting(_) => Ok(message),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::super::error::{Cause, Reason};
    use super::*;
    use crate::plan::PlanFault;

    fn reason() -> impl Strategy<Value = Reason> {
        let cause = ".{0,1100}".prop_map(Cause::new);
        prop_oneof![
            cause.clone().prop_map(Reason::Failed),
            cause.clone().prop_map(Reason::OutOfStep),
            cause.clone().prop_map(Reason::Unreachable),
            cause.prop_map(Reason::Died),
            Just(Reason::Silent),
            Just(Reason::Left),
            any::<(usize, i64)>()
                .prop_map(|(peer, count)| Reason::Plan(PlanFault::Count { peer, count })),
            (0..512_usize, 0..512_usize, any::<[u32; 2]>()).prop_map(|(lower, higher, [a, b])| {
                Reason::Plan(PlanFault::Mismatch {
                    lower,
                    higher,
                    lower_count: a,
                    higher_count: b,
                })
            }),
        ]
    }

    fn outcome() -> impl Strategy<Value = Outcome> {
        prop_oneof![
            proptest::collection::vec(any::<u128>(), 0..=MAX_WORDS).prop_map(Ok),
            ("[a-z]{0,32}", 0..512_usize, reason())
                .prop_map(|(phase, rank, reason)| Err(SetupError::new(&phase, rank, reason))),
        ]
    }

    fn any_message() -> impl Strategy<Value = Message> {
        let body = prop_oneof![
            outcome().prop_map(Body::Report),
            outcome().prop_map(Body::Verdict),
            any::<u32>().prop_map(Body::Hurry),
            (0..512_usize).prop_map(Body::Waiting),
        ];
        (any::<u64>(), any::<u32>(), "[a-z]{0,32}", body).prop_map(|(turn, step, phase, body)| {
            Message {
                turn,
                step,
                phase,
                body,
            }
        })
    }

    proptest! {
        #[test]
        fn a_message_comes_back_whole_within_its_limit(message in any_message()) {
            let bytes = message.encode().unwrap();
            prop_assert!(bytes.len() <= MAX_MESSAGE, "{}", bytes.len());
            prop_assert_eq!(Message::decode(&bytes, 512).unwrap(), message);
        }
    }

    fn with(body: Body) -> Result<Message, BootstrapError> {
        let message = Message {
            turn: 0,
            step: 1,
            phase: "x".into(),
            body,
        };
        Message::decode(&message.encode().unwrap(), 4)
    }

    #[test]
    fn what_no_rank_would_send_is_refused() {
        assert!(with(Body::Report(Ok(vec![0; MAX_WORDS]))).is_ok());
        assert!(with(Body::Report(Ok(vec![0; MAX_WORDS + 1]))).is_err());
        let blame = |rank| Body::Verdict(Err(SetupError::new("x", rank, Reason::Silent)));
        assert!(with(blame(3)).is_ok());
        assert!(with(blame(4)).is_err());
        assert!(with(Body::Waiting(3)).is_ok());
        assert!(with(Body::Waiting(4)).is_err());
        let edge = |lower, higher| {
            let fault = PlanFault::Mismatch {
                lower,
                higher,
                lower_count: 1,
                higher_count: 2,
            };
            Body::Report(Err(SetupError::new("x", 0, Reason::Plan(fault))))
        };
        assert!(with(edge(0, 3)).is_ok());
        assert!(with(edge(0, 4)).is_err() && with(edge(4, 0)).is_err());
        let long = "x".repeat(MAX_PHASE + 1);
        let error = SetupError::new(&long, 0, Reason::Silent);
        assert!(with(Body::Verdict(Err(error))).is_err());
        let huge = vec![0; MAX_MESSAGE + 1];
        assert!(matches!(
            Message::decode(&huge, 4),
            Err(BootstrapError::MessageTooLarge { .. })
        ));
    }

    #[test]
    fn fuzz_gate_message() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(message) = mscclpp_fuzz::in_proportion(bytes, || Message::decode(bytes, 512))
            {
                let again = message.encode().unwrap();
                assert_eq!(Message::decode(&again, 512).unwrap(), message);
            }
        });
    }
}
