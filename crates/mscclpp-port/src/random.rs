// SPDX-License-Identifier: MIT
//! Random numbers of the system, for keys, ids and secrets.

use std::io;

use crate::error::{Error, Result};

/// Random bytes.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|source| Error::io("draw random bytes", io::Error::other(source.to_string())))?;
    Ok(bytes)
}

/// A random number.
pub(crate) fn random_u64() -> Result<u64> {
    random_bytes().map(u64::from_ne_bytes)
}
