// SPDX-License-Identifier: MIT
//! The wire form of a registration: no address, only a key and what a sender must know to check.

use serde::{Deserialize, Serialize};

use crate::context::ContextId;
use crate::error::Error;
use crate::memory::Owner;
use crate::message;
use crate::transport::TransportFlags;

/// More than any record takes; checked before decoding.
const MAX_RECORD: usize = 256;

/// What is sent of a registration, or of a range of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryRecord {
    pub(crate) key: u64,
    /// Start of the range in the registration.
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) owner: Owner,
    pub(crate) transports: TransportFlags,
    /// Address of the registration's first byte, modulo 8.
    pub(crate) misalignment: u8,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    key: u64,
    offset: u64,
    size: u64,
    context: ContextId,
    rank: Option<u32>,
    transports: TransportFlags,
    misalignment: u8,
}

impl MemoryRecord {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        let wire = Wire {
            key: self.key,
            offset: self.offset,
            size: self.size,
            context: self.owner.context,
            rank: self.owner.rank.and_then(|rank| u32::try_from(rank).ok()),
            transports: self.transports,
            misalignment: self.misalignment,
        };
        message::encode("memory", &wire)
    }

    /// Decodes and checks: a range that is empty or passes the end of the address space, or a
    /// misalignment above 7, is refused.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wire: Wire = message::decode("memory", bytes, MAX_RECORD)?;
        let fail = |detail: &str| {
            Err(Error::Record {
                what: "memory",
                detail: detail.into(),
            })
        };
        if wire.size == 0 || wire.offset.checked_add(wire.size).is_none() {
            return fail("its range is empty or passes the end of the address space");
        }
        if wire.misalignment > 7 {
            return fail("its alignment is impossible");
        }
        Ok(Self {
            key: wire.key,
            offset: wire.offset,
            size: wire.size,
            owner: Owner {
                context: wire.context,
                rank: wire.rank.map(|rank| rank as usize),
            },
            transports: wire.transports,
            misalignment: wire.misalignment,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn records() -> impl Strategy<Value = MemoryRecord> {
        let owner = (any::<[u8; 16]>(), any::<Option<u32>>());
        (
            any::<u64>(),
            any::<u32>(),
            1u64..,
            owner,
            0u16..1 << 11,
            0u8..8,
        )
            .prop_map(
                |(key, offset, size, (context, rank), transports, misalignment)| MemoryRecord {
                    key,
                    offset: u64::from(offset),
                    size: size.min(u64::MAX - u64::from(offset)),
                    owner: Owner {
                        context: ContextId::from_bytes(context),
                        rank: rank.map(|rank| rank as usize),
                    },
                    transports: transports.try_into().unwrap(),
                    misalignment,
                },
            )
    }

    proptest! {
        #[test]
        fn a_record_survives_the_wire(record in records()) {
            let bytes = record.encode().unwrap();
            prop_assert!(bytes.len() <= MAX_RECORD);
            prop_assert_eq!(MemoryRecord::decode(&bytes).unwrap(), record);
        }

        #[test]
        fn a_cut_record_is_refused(record in records(), cut in 1usize..40) {
            let bytes = record.encode().unwrap();
            let cut = bytes.len().saturating_sub(cut);
            prop_assert!(MemoryRecord::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn fuzz_memory_record() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(record) = MemoryRecord::decode(bytes) {
                let again = MemoryRecord::decode(&record.encode().unwrap()).unwrap();
                assert_eq!(again, record);
            }
        });
    }
}
