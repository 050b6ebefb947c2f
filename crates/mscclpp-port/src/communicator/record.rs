// SPDX-License-Identifier: MIT
//! What communicators send each other: one record a call.

use std::fmt;

use mscclpp_bootstrap::gate::Cause;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::message;

/// More than any record takes; checked before decoding.
const MAX_RECORD: usize = 8192;

/// What a record carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Memory,
    Endpoint,
    Semaphore,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "a registered memory",
            Self::Endpoint => "an endpoint",
            Self::Semaphore => "a semaphore",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One message between two communicators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) kind: Kind,
    /// The record of the thing itself, or why the sender could not make it.
    pub(super) body: Result<Vec<u8>, String>,
}

impl Record {
    pub(super) fn new(kind: Kind, body: Vec<u8>) -> Self {
        Self {
            kind,
            body: Ok(body),
        }
    }

    pub(super) fn gave_up(kind: Kind, reason: &str) -> Self {
        Self {
            kind,
            body: Err(Cause::new(reason).to_string()),
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        message::encode("communicator", self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        message::decode("communicator", bytes, MAX_RECORD)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> impl Strategy<Value = Record> {
        let kind = prop_oneof![
            Just(Kind::Memory),
            Just(Kind::Endpoint),
            Just(Kind::Semaphore)
        ];
        let body = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..600).prop_map(Ok),
            ".{0,1200}".prop_map(Err)
        ];
        (kind, body).prop_map(|(kind, body)| match body {
            Ok(body) => Record::new(kind, body),
            Err(reason) => Record::gave_up(kind, &reason),
        })
    }

    proptest! {
        #[test]
        fn a_record_comes_back_whole(record in record()) {
            let bytes = record.encode().unwrap();
            prop_assert!(bytes.len() <= MAX_RECORD);
            prop_assert_eq!(Record::decode(&bytes).unwrap(), record);
        }
    }

    #[test]
    fn fuzz_communicator_record() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(record) = mscclpp_fuzz::in_proportion(bytes, || Record::decode(bytes)) {
                let again = record.encode().unwrap();
                assert_eq!(Record::decode(&again).unwrap(), record);
            }
        });
    }
}
