// SPDX-License-Identifier: MIT
//! The four messages of a proof, without any I/O.
//!
//! | message | from | bytes | content |
//! |---|---|---|---|
//! | hello | connector | 72 | magic (8), version (2), unused (2), from, to, world (4 each), link id (16), nonce (32) |
//! | challenge | acceptor | 44 | magic (8), version (2), unused (2), nonce (32) |
//! | proof | connector | 32 | keyed hash of hello and challenge |
//! | verdict | acceptor | 36 | verdict (1), unused (3), keyed hash of hello, challenge, verdict |
//!
//! Numbers are little-endian. All sizes are fixed, so nothing is allocated for
//! what a stranger says.

use hmac::Mac;

use super::{LinkId, LinkKey};
use crate::BootstrapError;
use crate::secret::{keyed_bytes, keyed_hash, random};

pub(crate) const HELLO: usize = 72;
pub(crate) const CHALLENGE: usize = 44;
pub(crate) const PROOF: usize = 32;
pub(crate) const VERDICT: usize = 36;

pub(crate) const VERSION: u16 = 1;
const MAGIC_HELLO: &[u8; 8] = b"MSCCLPPH";
const MAGIC_CHALLENGE: &[u8; 8] = b"MSCCLPPC";
const AS_CONNECTOR: &[u8] = b"mscclpp link connector";
const AS_ACCEPTOR: &[u8] = b"mscclpp link acceptor";

/// Who the connector says it is and whom it wants. Part of the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) world: u32,
}

impl Claims {
    /// Ranks play no role in this connection, or are in the key's context.
    pub(crate) const NONE: Self = Self {
        from: u32::MAX,
        to: u32::MAX,
        world: u32::MAX,
    };
}

/// Why an acceptor declines a connector that has proven itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The acceptor is connecting to the connector, or already connected.
    Crossing,
    /// The claimed ranks are not those that the acceptor knows.
    WrongRank,
    /// The claimed world size is not the acceptor's.
    WrongWorld,
    /// The acceptor is about to leave, or knows that the connector has left.
    Gone,
    /// The acceptor counts the connector among the dead.
    Dead,
}

impl Refusal {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Crossing => "the two ranks are connected, or about to be, the other way round",
            Self::WrongRank => "the ranks do not fit; does each process have its own rank?",
            Self::WrongWorld => "the ranks do not agree on the size of the world",
            Self::Gone => "it is about to leave, or counts this rank as gone",
            Self::Dead => "it counts this rank as dead",
        }
    }
}

/// The acceptor's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Welcome,
    /// The proof was wrong; the only verdict without a hash.
    BadProof,
    Declined(Refusal),
}

impl Verdict {
    fn code(self) -> u8 {
        match self {
            Self::Welcome => 1,
            Self::BadProof => 2,
            Self::Declined(Refusal::Crossing) => 3,
            Self::Declined(Refusal::WrongRank) => 4,
            Self::Declined(Refusal::WrongWorld) => 5,
            Self::Declined(Refusal::Gone) => 6,
            Self::Declined(Refusal::Dead) => 7,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Welcome,
            2 => Self::BadProof,
            3 => Self::Declined(Refusal::Crossing),
            4 => Self::Declined(Refusal::WrongRank),
            5 => Self::Declined(Refusal::WrongWorld),
            6 => Self::Declined(Refusal::Gone),
            7 => Self::Declined(Refusal::Dead),
            _ => return None,
        })
    }
}

/// How the connector's side of a proof failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The other end is no acceptor of this project.
    NotAnAcceptor,
    /// The other end speaks this version.
    OtherVersion(u16),
    /// The other end did not accept our proof.
    ProofRefused,
    /// The other end could not prove itself.
    ProofMissing,
    /// The other end proved itself and declined.
    Declined(Refusal),
}

fn head(magic: &[u8; 8]) -> [u8; 12] {
    let mut head = [0; 12];
    head[..8].copy_from_slice(magic);
    head[8..10].copy_from_slice(&VERSION.to_le_bytes());
    head
}

/// The version in a head, `None` if it is no head.
fn version(message: &[u8], magic: &[u8; 8]) -> Option<u16> {
    match message {
        [m @ .., v0, v1, 0, 0] if m == magic => Some(u16::from_le_bytes([*v0, *v1])),
        _ => None,
    }
}

/// The connector's side.
pub(crate) struct Connector {
    hello: [u8; HELLO],
    challenge: [u8; CHALLENGE],
    key: LinkKey,
}

impl Connector {
    pub(crate) fn new(id: LinkId, key: &LinkKey, claims: Claims) -> Result<Self, BootstrapError> {
        let nonce: [u8; 32] = random()?;
        let mut hello = [0; HELLO];
        hello[..12].copy_from_slice(&head(MAGIC_HELLO));
        hello[12..16].copy_from_slice(&claims.from.to_le_bytes());
        hello[16..20].copy_from_slice(&claims.to.to_le_bytes());
        hello[20..24].copy_from_slice(&claims.world.to_le_bytes());
        hello[24..40].copy_from_slice(&id.0);
        hello[40..].copy_from_slice(&nonce);
        Ok(Self {
            hello,
            challenge: [0; CHALLENGE],
            key: key.clone(),
        })
    }

    pub(crate) fn hello(&self) -> &[u8; HELLO] {
        &self.hello
    }

    /// The proof that answers the challenge.
    pub(crate) fn answer(&mut self, challenge: &[u8; CHALLENGE]) -> Result<[u8; PROOF], Failure> {
        match version(&challenge[..12], MAGIC_CHALLENGE) {
            Some(VERSION) => {}
            Some(other) => return Err(Failure::OtherVersion(other)),
            None => return Err(Failure::NotAnAcceptor),
        }
        self.challenge = *challenge;
        Ok(*keyed_bytes(
            &self.key.0,
            &[AS_CONNECTOR, &self.hello, challenge],
        ))
    }

    /// Whether the acceptor proved itself and welcomes us.
    pub(crate) fn conclude(&self, verdict: &[u8; VERDICT]) -> Result<(), Failure> {
        let (head, hash) = verdict.split_at(4);
        let [code, 0, 0, 0] = *head else {
            return Err(Failure::NotAnAcceptor);
        };
        let outcome = match Verdict::from_code(code) {
            None => return Err(Failure::NotAnAcceptor),
            Some(Verdict::BadProof) => return Err(Failure::ProofRefused),
            Some(outcome) => outcome,
        };
        keyed_hash(
            &self.key.0,
            &[AS_ACCEPTOR, &self.hello, &self.challenge, head],
        )
        .verify_slice(hash)
        .map_err(|_| Failure::ProofMissing)?;
        match outcome {
            Verdict::Declined(refusal) => Err(Failure::Declined(refusal)),
            _ => Ok(()),
        }
    }
}

/// What a connector said first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) claims: Claims,
    pub(crate) id: LinkId,
    raw: [u8; HELLO],
}

/// The acceptor's side.
pub(crate) struct Acceptance {
    hello: Hello,
    challenge: [u8; CHALLENGE],
}

impl Acceptance {
    /// Reads a hello. `Ok(None)` if it is one of another version.
    pub(crate) fn read(raw: &[u8; HELLO]) -> Option<Result<Hello, u16>> {
        let version = version(&raw[..12], MAGIC_HELLO)?;
        if version != VERSION {
            return Some(Err(version));
        }
        let number = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&raw[at..at + 4]);
            u32::from_le_bytes(bytes)
        };
        let mut id = [0; 16];
        id.copy_from_slice(&raw[24..40]);
        Some(Ok(Hello {
            claims: Claims {
                from: number(12),
                to: number(16),
                world: number(20),
            },
            id: LinkId(id),
            raw: *raw,
        }))
    }

    /// A challenge that only says which version we speak.
    pub(crate) fn version_only() -> [u8; CHALLENGE] {
        let mut challenge = [0; CHALLENGE];
        challenge[..12].copy_from_slice(&head(MAGIC_CHALLENGE));
        challenge
    }

    pub(crate) fn new(hello: Hello) -> Result<Self, BootstrapError> {
        let nonce: [u8; 32] = random()?;
        let mut challenge = Self::version_only();
        challenge[12..].copy_from_slice(&nonce);
        Ok(Self { hello, challenge })
    }

    pub(crate) fn challenge(&self) -> &[u8; CHALLENGE] {
        &self.challenge
    }

    /// Whether the connector has the key. Takes the same time for every wrong
    /// proof.
    pub(crate) fn proven(&self, key: &LinkKey, proof: &[u8; PROOF]) -> bool {
        keyed_hash(&key.0, &[AS_CONNECTOR, &self.hello.raw, &self.challenge])
            .verify_slice(proof)
            .is_ok()
    }

    /// What a connector with a wrong proof is told; nothing in it depends on the
    /// key.
    pub(crate) fn bad_proof() -> [u8; VERDICT] {
        let mut message = [0; VERDICT];
        message[0] = Verdict::BadProof.code();
        message
    }

    /// The verdict for a connector that has proven itself.
    pub(crate) fn verdict(&self, key: &LinkKey, admitted: Result<(), Refusal>) -> [u8; VERDICT] {
        let verdict = match admitted {
            Ok(()) => Verdict::Welcome,
            Err(refusal) => Verdict::Declined(refusal),
        };
        let head = [verdict.code(), 0, 0, 0];
        let hash = keyed_bytes(
            &key.0,
            &[AS_ACCEPTOR, &self.hello.raw, &self.challenge, &head],
        );
        let mut message = [0; VERDICT];
        message[..4].copy_from_slice(&head);
        message[4..].copy_from_slice(&hash[..]);
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIMS: Claims = Claims {
        from: 3,
        to: 1,
        world: 8,
    };

    fn key(context: &[u8]) -> LinkKey {
        LinkKey::derive(None, "test", context)
    }

    fn begin(key: &LinkKey) -> (Connector, Acceptance) {
        let connector = Connector::new(LinkId([7; 16]), key, CLAIMS).unwrap();
        let hello = Acceptance::read(connector.hello()).unwrap().unwrap();
        (connector, Acceptance::new(hello).unwrap())
    }

    #[test]
    fn both_ends_with_the_key_agree() {
        let key = key(b"a");
        let (mut connector, acceptance) = begin(&key);
        assert_eq!(acceptance.hello.claims, CLAIMS);
        assert_eq!(acceptance.hello.id, LinkId([7; 16]));
        let proof = connector.answer(acceptance.challenge()).unwrap();
        assert!(acceptance.proven(&key, &proof));
        assert_eq!(
            connector.conclude(&acceptance.verdict(&key, Ok(()))),
            Ok(())
        );
    }

    #[test]
    fn another_key_is_refused_on_both_ends() {
        let (mut connector, acceptance) = begin(&key(b"a"));
        let proof = connector.answer(acceptance.challenge()).unwrap();
        assert!(!acceptance.proven(&key(b"b"), &proof));
        assert_eq!(
            connector.conclude(&Acceptance::bad_proof()),
            Err(Failure::ProofRefused)
        );
        assert_eq!(
            connector.conclude(&acceptance.verdict(&key(b"b"), Ok(()))),
            Err(Failure::ProofMissing)
        );
    }

    #[test]
    fn a_proof_is_good_for_its_own_challenge_and_hello_only() {
        let key = key(b"a");
        let (mut connector, first) = begin(&key);
        let proof = connector.answer(first.challenge()).unwrap();
        let second = Acceptance::new(first.hello).unwrap();
        assert!(!second.proven(&key, &proof), "replayed");
        for at in 12..HELLO {
            let mut raw = *connector.hello();
            raw[at] ^= 1;
            let hello = Acceptance::read(&raw).unwrap().unwrap();
            let forged = Acceptance {
                hello,
                challenge: first.challenge,
            };
            assert!(!forged.proven(&key, &proof), "byte {at}");
        }
    }

    #[test]
    fn a_verdict_can_not_be_turned_around_or_reflected() {
        let key = key(b"a");
        let (mut connector, acceptance) = begin(&key);
        let proof = connector.answer(acceptance.challenge()).unwrap();
        let mut declined = acceptance.verdict(&key, Err(Refusal::Gone));
        assert_eq!(
            connector.conclude(&declined),
            Err(Failure::Declined(Refusal::Gone))
        );
        declined[0] = Verdict::Welcome.code();
        assert_eq!(connector.conclude(&declined), Err(Failure::ProofMissing));
        let mut reflected = [0; VERDICT];
        reflected[0] = Verdict::Welcome.code();
        reflected[4..].copy_from_slice(&proof);
        assert_eq!(connector.conclude(&reflected), Err(Failure::ProofMissing));
    }

    #[test]
    fn other_versions_and_other_protocols_are_told_apart() {
        let (mut connector, acceptance) = begin(&key(b"a"));
        let mut challenge = *acceptance.challenge();
        challenge[8] = 9;
        assert_eq!(connector.answer(&challenge), Err(Failure::OtherVersion(9)));
        challenge[0] = 0;
        assert_eq!(connector.answer(&challenge), Err(Failure::NotAnAcceptor));
        let mut raw = *connector.hello();
        raw[8] = 9;
        assert_eq!(Acceptance::read(&raw), Some(Err(9)));
        raw[0] = 0;
        assert_eq!(Acceptance::read(&raw), None);
    }

    #[test]
    fn fuzz_hello() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let Some(raw) = bytes.first_chunk::<HELLO>() else {
                return;
            };
            match Acceptance::read(raw) {
                Some(Ok(hello)) => assert_eq!(&hello.raw, raw),
                Some(Err(version)) => assert_ne!(version, VERSION),
                None => {}
            }
        });
    }

    #[test]
    fn fuzz_connector_side() {
        let key = key(b"a");
        bolero::check!()
            .with_type::<(Vec<u8>, Vec<u8>)>()
            .for_each(|(challenge, verdict)| {
                let mut connector = Connector::new(LinkId([0; 16]), &key, CLAIMS).unwrap();
                let mut padded = [0; CHALLENGE];
                let n = challenge.len().min(CHALLENGE);
                padded[..n].copy_from_slice(&challenge[..n]);
                let _ = connector.answer(&padded);
                let mut padded = [0; VERDICT];
                let n = verdict.len().min(VERDICT);
                padded[..n].copy_from_slice(&verdict[..n]);
                assert!(connector.conclude(&padded).is_err());
            });
    }
}
