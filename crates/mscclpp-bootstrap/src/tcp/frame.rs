// SPDX-License-Identifier: MIT
//! The pieces in which messages travel between two ranks.
//!
//! Every frame has a head of 24 bytes, little-endian: kind (1), version (1),
//! unused (2), length of the body (4), tag (8), number (8). A message is cut into
//! pieces of at most 1 MiB, so that news of a death passes a large message.
//!
//! | kind | tag | number | body |
//! |---|---|---|---|
//! | 1 open | 0 | 0 | none; the first frame of the connector, and of the acceptor in answer |
//! | 2 first piece | tag | length of the whole message | bytes |
//! | 3 further piece | tag | 0 | bytes |
//! | 4 credit | 0 | cost of the messages that were taken | none |
//! | 5 death | 0 | the rank that died | cause, UTF-8, at most 1 KiB |
//! | 6 goodbye | 0 | 0 | none; the last frame |
//! | 7 beat | 0 | 1 if an answer is wanted, 0 in the answer | none |

use crate::{BootstrapError, Tag};

/// The largest message: 4 GiB.
pub(crate) const MAX_MESSAGE: u64 = 1 << 32;
/// The largest piece of one.
pub(crate) const MAX_PIECE: usize = 1 << 20;
/// The longest cause of a death.
pub(crate) const MAX_CAUSE: usize = 1024;

const VERSION: u8 = 1;

/// The head of a frame; how many bytes of body follow is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Open,
    First { tag: Tag, total: u64, piece: usize },
    Further { tag: Tag, piece: usize },
    Credit { cost: u64 },
    Death { rank: u64, cause: usize },
    Goodbye,
    Beat { answer: bool },
}

impl Head {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let (kind, tag, number, body) = match self {
            Self::Open => (1, 0, 0, 0),
            Self::First { tag, total, piece } => (2, tag.value(), total, piece),
            Self::Further { tag, piece } => (3, tag.value(), 0, piece),
            Self::Credit { cost } => (4, 0, cost, 0),
            Self::Death { rank, cause } => (5, 0, rank, cause),
            Self::Goodbye => (6, 0, 0, 0),
            Self::Beat { answer } => (7, 0, u64::from(answer), 0),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[0] = kind;
        bytes[1] = VERSION;
        bytes[4..8].copy_from_slice(&(body as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&tag.to_le_bytes());
        bytes[16..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, BootstrapError> {
        let bad = |reason: &str| BootstrapError::BadMessage {
            reason: reason.into(),
        };
        let [kind, version, 0, 0, b0, b1, b2, b3, rest @ ..] = *bytes else {
            return Err(bad("a frame sets bytes that are unused"));
        };
        if version != VERSION {
            return Err(bad(
                "a frame has another version; run the same build on all ranks",
            ));
        }
        let body = u32::from_le_bytes([b0, b1, b2, b3]) as usize;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&rest[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (tag, number) = (word(0), word(8));
        if kind >= 4 && tag != 0 {
            return Err(bad("a frame without a message has a tag"));
        }
        Ok(match (kind, body, number) {
            (1, 0, 0) if tag == 0 => Self::Open,
            (2, piece, total) => {
                if total > MAX_MESSAGE {
                    return Err(BootstrapError::MessageTooLarge {
                        bytes: total,
                        max: MAX_MESSAGE,
                    });
                }
                // A message comes in full pieces but for the last.
                if piece as u64 != total.min(MAX_PIECE as u64) {
                    return Err(bad("the first piece of a message has a wrong length"));
                }
                let tag = Tag::from_value(tag);
                Self::First { tag, total, piece }
            }
            (3, piece, 0) if (1..=MAX_PIECE).contains(&piece) => {
                let tag = Tag::from_value(tag);
                Self::Further { tag, piece }
            }
            (4, 0, cost) => Self::Credit { cost },
            (5, cause, rank) if cause <= MAX_CAUSE => Self::Death { rank, cause },
            (6, 0, 0) => Self::Goodbye,
            (7, 0, answer @ (0 | 1)) => Self::Beat {
                answer: answer == 1,
            },
            _ => return Err(bad("a frame is of no known form")),
        })
    }
}

/// A cause, cut to what fits into a frame.
pub(crate) fn short_cause(cause: &str) -> &str {
    let mut end = cause.len().min(MAX_CAUSE);
    while !cause.is_char_boundary(end) {
        end -= 1;
    }
    &cause[..end]
}

/// Puts pieces together. One message at a time travels on a connection.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    current: Option<(Tag, u64)>,
    pub(crate) bytes: Vec<u8>,
}

impl Assembly {
    /// Prepares for the body of a piece; it is to be appended to `bytes`.
    pub(crate) fn begin(&mut self, head: Head) -> Result<(), BootstrapError> {
        let bad = |reason: &str| BootstrapError::BadMessage {
            reason: reason.into(),
        };
        match (head, self.current) {
            (Head::First { tag, total, .. }, None) => {
                self.current = Some((tag, total));
                // Room is made for what arrives, not for what is claimed.
                self.bytes = Vec::new();
                Ok(())
            }
            (Head::Further { tag, piece }, Some((current, total))) if tag == current => {
                let left = total - self.bytes.len() as u64;
                if piece as u64 == left.min(MAX_PIECE as u64) {
                    Ok(())
                } else {
                    Err(bad("a piece of a message has a wrong length"))
                }
            }
            _ => Err(bad("a piece does not belong to the message before it")),
        }
    }

    /// The message, once its last piece has been appended.
    pub(crate) fn finish(&mut self) -> Option<(Tag, Vec<u8>)> {
        let (tag, total) = self.current?;
        if (self.bytes.len() as u64) < total {
            return None;
        }
        self.current = None;
        Some((tag, std::mem::take(&mut self.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn heads() -> impl Strategy<Value = Head> {
        let tag = any::<u64>().prop_map(Tag::from_value);
        prop_oneof![
            Just(Head::Open),
            (tag.clone(), 0..=MAX_MESSAGE).prop_map(|(tag, total)| Head::First {
                tag,
                total,
                piece: total.min(MAX_PIECE as u64) as usize
            }),
            (tag, 1..=MAX_PIECE).prop_map(|(tag, piece)| Head::Further { tag, piece }),
            any::<u64>().prop_map(|cost| Head::Credit { cost }),
            (any::<u64>(), 0..=MAX_CAUSE).prop_map(|(rank, cause)| Head::Death { rank, cause }),
            Just(Head::Goodbye),
            any::<bool>().prop_map(|answer| Head::Beat { answer }),
        ]
    }

    proptest! {
        #[test]
        fn a_head_comes_back(head in heads()) {
            prop_assert_eq!(Head::decode(&head.encode()).unwrap(), head);
        }

        #[test]
        fn a_message_comes_back_from_its_pieces(length in 0..5 * MAX_PIECE / 2) {
            let message: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let mut assembly = Assembly::default();
            let mut pieces = message.chunks(MAX_PIECE);
            let tag = Tag::user(1);
            let first = pieces.next().unwrap_or(&[]);
            assembly.begin(Head::First { tag, total: length as u64, piece: first.len() }).unwrap();
            assembly.bytes.extend(first);
            for piece in pieces {
                prop_assert_eq!(assembly.finish(), None);
                assembly.begin(Head::Further { tag, piece: piece.len() }).unwrap();
                assembly.bytes.extend(piece);
            }
            prop_assert_eq!(assembly.finish(), Some((tag, message)));
            prop_assert_eq!(assembly.finish(), None);
        }
    }

    #[test]
    fn pieces_out_of_place_are_refused() {
        let tag = Tag::user(1);
        let first = Head::First {
            tag,
            total: MAX_PIECE as u64 + 2,
            piece: MAX_PIECE,
        };
        let mut assembly = Assembly::default();
        assert!(assembly.begin(Head::Further { tag, piece: 1 }).is_err());
        assembly.begin(first).unwrap();
        assembly.bytes.resize(MAX_PIECE, 0);
        assert!(assembly.begin(first).is_err());
        let other = Tag::user(2);
        assert!(
            assembly
                .begin(Head::Further {
                    tag: other,
                    piece: 2
                })
                .is_err()
        );
        assert!(assembly.begin(Head::Further { tag, piece: 3 }).is_err());
        assembly.begin(Head::Further { tag, piece: 2 }).unwrap();
    }

    #[test]
    fn a_claimed_length_beyond_the_limit_is_refused() {
        let mut bytes = Head::First {
            tag: Tag::user(1),
            total: 9,
            piece: 9,
        }
        .encode();
        bytes[16..].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(
            Head::decode(&bytes),
            Err(BootstrapError::MessageTooLarge { .. })
        ));
    }

    #[test]
    fn a_cause_is_cut_between_letters() {
        let long = "é".repeat(MAX_CAUSE);
        assert_eq!(short_cause(&long).len(), MAX_CAUSE);
        let odd = format!("x{long}");
        assert_eq!(short_cause(&odd).len(), MAX_CAUSE - 1);
        assert_eq!(short_cause("short"), "short");
    }

    #[test]
    fn fuzz_head() {
        bolero::check!()
            .with_type::<[u8; Head::BYTES]>()
            .for_each(|bytes| {
                if let Ok(head) = Head::decode(bytes) {
                    assert_eq!(&head.encode(), bytes);
                }
            });
    }

    /// What a reader does with a stream of bytes, without the reading.
    #[test]
    fn fuzz_frames() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let mut rest = bytes;
            let mut assembly = Assembly::default();
            while let Some((head, after)) = rest.split_first_chunk() {
                let Ok(head) = Head::decode(head) else { return };
                let length = match head {
                    Head::First { piece, .. } | Head::Further { piece, .. } => {
                        let begun = mscclpp_fuzz::in_proportion(&[], || assembly.begin(head));
                        if begun.is_err() {
                            return;
                        }
                        piece
                    }
                    Head::Death { cause, .. } => cause,
                    _ => 0,
                };
                let Some((body, after)) = after.split_at_checked(length) else {
                    return;
                };
                if matches!(head, Head::First { .. } | Head::Further { .. }) {
                    assembly.bytes.extend(body);
                    let _ = assembly.finish();
                }
                rest = after;
            }
        });
    }
}
