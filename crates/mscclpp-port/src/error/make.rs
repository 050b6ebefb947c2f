// SPDX-License-Identifier: MIT
//! How errors of this crate come about from those of others.

use std::io;
use std::sync::Arc;

use mscclpp_bootstrap::BootstrapError;
use mscclpp_device::abi::Trigger;

use super::{Error, Result};

impl Error {
    /// Names the rank whose record cannot be used, or does not fit, and the tag that it came on.
    pub(crate) fn said_by(peer: usize, on: u32) -> impl Fn(Error) -> Error {
        move |error| match error {
            Error::Record { what, detail } => Error::Record {
                what,
                detail: format!("rank {peer} sent it (tag {on}): {detail}"),
            },
            Error::IncompatibleTransports { local, remote, .. } => Error::IncompatibleTransports {
                local,
                remote,
                rank: Some(peer),
                tag: Some(on),
            },
            Error::IncompatibleEndpoints { reason, .. } => Error::IncompatibleEndpoints {
                reason,
                rank: Some(peer),
                tag: Some(on),
            },
            error => error,
        }
    }

    /// This error as the reason why a trigger to a rank could not be executed.
    pub(crate) fn of_trigger(self, trigger: Trigger, position: u64, rank: Option<usize>) -> Self {
        Error::Trigger {
            rank,
            trigger,
            position,
            cause: Arc::new(self),
        }
    }

    /// A bootstrap's error in this crate's terms: a dead rank is [`Error::PeerDown`], a passed
    /// deadline [`Error::Timeout`].
    pub(crate) fn bootstrap(
        operation: impl Into<String>,
        peer: usize,
        error: BootstrapError,
    ) -> Self {
        let operation = operation.into();
        match error {
            error if error.gone_rank() == Some(peer) => Error::PeerDown {
                rank: Some(peer),
                cause: error.to_string(),
            },
            BootstrapError::Timeout { waited, .. } | BootstrapError::Underway { waited, .. } => {
                Error::Timeout {
                    operation,
                    rank: Some(peer),
                    waited,
                }
            }
            error => Error::Bootstrap {
                operation,
                source: Arc::new(error),
            },
        }
    }

    /// An [`Error::ProxyGone`] with its cause.
    pub(crate) fn gone(cause: &str) -> Self {
        Error::ProxyGone {
            cause: cause.into(),
        }
    }

    /// An [`Error::Hca`] of an operation.
    pub(crate) fn hca(
        hca: impl Into<String>,
        operation: &'static str,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Error::Hca {
            hca: hca.into(),
            operation,
            source: Arc::new(source),
        }
    }

    /// An [`Error::Io`] of an operation.
    pub(crate) fn io(operation: impl Into<String>, source: io::Error) -> Self {
        Error::Io {
            operation: operation.into(),
            source: Arc::new(source),
        }
    }
}

/// Checks that `len` bytes at `offset` lie inside `size` bytes, whatever the numbers are.
pub(crate) fn check_range(what: &'static str, offset: u64, len: u64, size: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfBounds {
            what,
            offset,
            len,
            size,
        }),
    }
}
