// SPDX-License-Identifier: MIT
//! Records to and from peers, with this crate's errors.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

pub(crate) fn encode<T: Serialize>(what: &'static str, record: &T) -> Result<Vec<u8>> {
    mscclpp_bootstrap::message::encode(record).map_err(|error| Error::Record {
        what,
        detail: error.to_string(),
    })
}

/// Decodes a record of at most `max` bytes.
pub(crate) fn decode<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
    max: usize,
) -> Result<T> {
    mscclpp_bootstrap::message::decode(bytes, max).map_err(|error| Error::Record {
        what,
        detail: error.to_string(),
    })
}
