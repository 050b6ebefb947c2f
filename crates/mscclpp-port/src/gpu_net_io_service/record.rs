// SPDX-License-Identifier: MIT
//! What the two ends of an edge tell each other in a setup: their queues, in one message.

use mscclpp_bootstrap::plan::MAX_QUEUES;
use serde::{Deserialize, Serialize};

use crate::endpoint::{EndpointRecord, MAX_RECORD};
use crate::error::{Error, Result};
use crate::message;

/// More than any record takes; checked before decoding.
const MAX_EDGE: usize = 64 + MAX_QUEUES as usize * MAX_RECORD;

/// One rank's queues to one peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EdgeRecord {
    /// Which setup of the tag it belongs to, where that is counted.
    pub(super) setup: Option<u64>,
    /// In the order of their indices.
    pub(super) queues: Vec<EndpointRecord>,
}

impl EdgeRecord {
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        message::encode("edge", self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let record: Self = message::decode("edge", bytes, MAX_EDGE)?;
        record.check()?;
        Ok(record)
    }

    /// Refuses what no rank says of its queues.
    pub(super) fn check(&self) -> Result<()> {
        self.queues.iter().try_for_each(EndpointRecord::check)
    }

    /// Whether an earlier setup has left it behind. A later one's cannot be here.
    pub(super) fn is_stale(&self, setup: Option<u64>) -> Result<bool> {
        match (self.setup, setup) {
            (Some(theirs), Some(ours)) if theirs < ours => Ok(true),
            (theirs, ours) if theirs == ours => Ok(false),
            (theirs, ours) => Err(Error::Record {
                what: "edge",
                detail: format!("it is of setup {theirs:?} of this tag, and this is {ours:?}"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_setup_left_behind_is_told_apart() {
        let of = |setup| EdgeRecord {
            setup,
            queues: Vec::new(),
        };
        assert!(of(Some(1)).is_stale(Some(2)).unwrap());
        assert!(!of(Some(2)).is_stale(Some(2)).unwrap());
        assert!(!of(None).is_stale(None).unwrap());
        for (theirs, ours) in [(Some(3), Some(2)), (None, Some(0)), (Some(0), None)] {
            assert!(of(theirs).is_stale(ours).is_err());
        }
    }

    #[test]
    fn fuzz_edge_record() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(record) = mscclpp_fuzz::in_proportion(bytes, || EdgeRecord::decode(bytes)) {
                let again = EdgeRecord::decode(&record.encode().unwrap()).unwrap();
                assert_eq!(again, record);
            }
        });
    }
}
