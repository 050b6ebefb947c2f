// SPDX-License-Identifier: MIT
//! What ranks say where they meet: a length of 4 bytes, little-endian, and a
//! record.

use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::tcp::node::Place;
use crate::{BootstrapError, message};

/// The largest record.
pub(super) const MAX_RECORD: usize = 16 * 1024;
/// How often in the time of a silence each side gives a sign of life.
pub(super) const LOOKS: u32 = 5;
/// How many missing ranks are named.
pub(super) const NAMED: usize = 64;

/// From a visitor to rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Visit {
    CheckIn {
        rank: u32,
        world: u32,
        place: Place,
    },
    /// The connection to the parent stands.
    Ready,
    /// This rank can not go on.
    Sorry {
        cause: String,
    },
    /// This rank waits no longer.
    GaveUp,
    /// A sign of life.
    Here,
}

/// From rank 0 to a visitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The visitor is checked in.
    Seated {
        nonce: [u8; 32],
    },
    /// Ranks that are still missing, at most [`NAMED`] of them.
    Missing(Vec<u32>),
    /// All are in; connect to this rank.
    Parent {
        rank: u32,
        place: Place,
    },
    /// All are connected.
    Go,
    Failed(Trouble),
}

/// Why nobody can join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Trouble {
    Died {
        rank: u32,
        cause: String,
    },
    Missing {
        ranks: Vec<u32>,
        waited: Duration,
    },
    Duplicate {
        rank: u32,
        first: String,
        second: String,
    },
    World {
        rank: u32,
        theirs: u32,
        ours: u32,
    },
    Other {
        rank: u32,
        cause: String,
    },
}

/// What ranks wait for first, and what to look at if it does not come.
pub(super) const NOT_ALL_IN: &str = "joining: not all ranks checked in with rank 0";
pub(super) const NOT_ALL_IN_HINT: &str =
    "were they started, and with the same MSCCLPP_ROOT or unique id?";

impl Trouble {
    /// The error of rank `me`.
    pub(super) fn into_error(self, me: usize) -> BootstrapError {
        match self {
            Self::Died { rank, cause } => BootstrapError::PeerFailed {
                rank: rank as usize,
                observer: me,
                operation: "joining".into(),
                cause,
            },
            Self::Missing { ranks, waited } => BootstrapError::Timeout {
                rank: me,
                operation: NOT_ALL_IN.into(),
                waiting_for: ranks.into_iter().map(|rank| rank as usize).collect(),
                waited,
                hint: NOT_ALL_IN_HINT.into(),
            },
            Self::Duplicate {
                rank,
                first,
                second,
            } => BootstrapError::DuplicateRank {
                rank: rank as usize,
                first,
                second,
            },
            Self::World { rank, theirs, ours } => BootstrapError::WorldMismatch {
                rank: rank as usize,
                theirs: theirs as usize,
                ours: ours as usize,
            },
            Self::Other { rank, cause } => BootstrapError::JoinFailed {
                rank: me,
                by: rank as usize,
                cause,
            },
        }
    }
}

pub(super) async fn write<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    record: &T,
) -> io::Result<()> {
    let record = message::encode(record).map_err(io::Error::other)?;
    let mut frame = (record.len() as u32).to_le_bytes().to_vec();
    frame.extend(record);
    stream.write_all(&frame).await
}

pub(super) async fn read<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_RECORD {
        return Err(io::Error::other(format!(
            "a record of {length} bytes is larger than {MAX_RECORD}"
        )));
    }
    let mut record = vec![0; length];
    stream.read_exact(&mut record).await?;
    message::decode(&record, MAX_RECORD).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = Place> {
        (any::<std::net::SocketAddr>(), any::<u64>()).prop_map(|(mut address, host)| {
            // Flow labels and scopes do not travel.
            if let std::net::SocketAddr::V6(v6) = &mut address {
                v6.set_flowinfo(0);
                v6.set_scope_id(0);
            }
            Place { address, host }
        })
    }

    fn round_trip<T: Serialize + DeserializeOwned>(value: &T) -> T {
        message::decode(&message::encode(value).unwrap(), MAX_RECORD).unwrap()
    }

    proptest! {
        #[test]
        fn records_come_back(rank: u32, world: u32, place in place(), nonce: [u8; 32], ranks in proptest::collection::vec(any::<u32>(), 0..NAMED), cause in ".{0,99}") {
            for visit in [Visit::CheckIn { rank, world, place }, Visit::Ready, Visit::GaveUp, Visit::Sorry { cause: cause.clone() }] {
                prop_assert_eq!(&round_trip(&visit), &visit);
            }
            let waited = Duration::from_millis(u64::from(world));
            let troubles = [
                Trouble::Died { rank, cause: cause.clone() },
                Trouble::Missing { ranks: ranks.clone(), waited },
                Trouble::Duplicate { rank, first: cause.clone(), second: cause.clone() },
                Trouble::World { rank, theirs: world, ours: rank },
                Trouble::Other { rank, cause },
            ];
            let answers = [Answer::Seated { nonce }, Answer::Missing(ranks), Answer::Parent { rank, place }, Answer::Go];
            for answer in answers.into_iter().chain(troubles.map(Answer::Failed)) {
                prop_assert_eq!(&round_trip(&answer), &answer);
            }
        }

        #[test]
        fn a_place_takes_few_bytes(place in place()) {
            prop_assert!(message::encode(&place).unwrap().len() <= 56);
        }
    }

    #[test]
    fn the_table_of_a_large_world_is_small() {
        let place = |rank: u32| Place {
            address: (std::net::Ipv4Addr::from(0x0a00_0000 + rank / 8), 40000).into(),
            host: u64::MAX / u64::from(rank + 1),
        };
        let places: Vec<Place> = (0..4096).map(place).collect();
        let bytes = message::encode(&places).unwrap().len();
        println!("4096 ranks: {bytes} bytes");
        assert!(bytes <= 24 * places.len());
    }

    #[test]
    fn fuzz_visit() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(visit) =
                mscclpp_fuzz::in_proportion(bytes, || message::decode::<Visit>(bytes, MAX_RECORD))
            {
                assert_eq!(round_trip(&visit), visit);
            }
        });
    }

    /// The table of addresses that comes down the tree.
    #[test]
    fn fuzz_places() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let places =
                mscclpp_fuzz::in_proportion(bytes, || message::decode::<Vec<Place>>(bytes, 4096));
            if let Ok(places) = places {
                assert_eq!(round_trip(&places), places);
            }
        });
    }

    #[test]
    fn fuzz_answer() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(answer) =
                mscclpp_fuzz::in_proportion(bytes, || message::decode::<Answer>(bytes, MAX_RECORD))
            {
                assert_eq!(round_trip(&answer), answer);
            }
        });
    }

    #[tokio::test]
    async fn a_record_that_claims_to_be_large_is_refused_unread() {
        let mut bytes: &[u8] = &[0xff, 0xff, 0xff, 0x7f, 1, 2];
        assert!(read::<Visit>(&mut bytes).await.is_err());
        assert_eq!(bytes, [1, 2]);
    }
}
