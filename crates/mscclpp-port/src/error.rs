// SPDX-License-Identifier: MIT
//! Errors of channels, and the broad classes of them that MSCCL++ names.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::device::Device;
use crate::status::Status;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Broad class of an [`Error`]; names and numbers as in MSCCL++.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    /// The operating system or the hardware failed.
    SystemError = 0,
    /// This library broke one of its own rules.
    InternalError = 1,
    /// The peer failed, or sent what nobody can use.
    RemoteError = 2,
    /// The caller asked for what cannot be.
    InvalidUsage = 3,
    /// A deadline passed.
    Timeout = 4,
    /// The work was given up: the proxy was stopped.
    Aborted = 5,
    /// A kernel executor failed.
    ExecutorError = 6,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorCode::SystemError => "SystemError",
            ErrorCode::InternalError => "InternalError",
            ErrorCode::RemoteError => "RemoteError",
            ErrorCode::InvalidUsage => "InvalidUsage",
            ErrorCode::Timeout => "Timeout",
            ErrorCode::Aborted => "Aborted",
            ErrorCode::ExecutorError => "ExecutorError",
        })
    }
}

/// Everything that can go wrong with a channel.
///
/// Cloning is cheap enough to keep the first error of a connection and hand it to every later
/// caller.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This build cannot use the device.
    #[error("{device} is not available in this build: only the CPU device is")]
    DeviceUnavailable {
        /// The device asked for.
        device: Device,
    },

    /// The peer's process died or closed the connection.
    #[error("rank {} is down: {cause}", RankName(*rank))]
    PeerDown {
        /// The rank behind the connection, when known.
        rank: Option<usize>,
        /// How it was noticed.
        cause: String,
    },

    /// A deadline passed.
    #[error("timed out after {waited:?} in {operation} (rank {})", RankName(*rank))]
    Timeout {
        /// What was being waited for.
        operation: String,
        /// The rank waited for, when there is one.
        rank: Option<usize>,
        /// How long the wait was.
        waited: Duration,
    },

    /// The operating system refused an operation.
    #[error("{operation}: {source}")]
    Io {
        /// What was being done.
        operation: String,
        /// The system's error.
        source: Arc<io::Error>,
    },

    /// A FIFO cannot have this many slots.
    #[error("a FIFO of {size} slots cannot be made: give a power of two, at most {max}")]
    FifoSize {
        /// The number asked for.
        size: usize,
        /// The largest that is possible.
        max: usize,
    },

    /// Kernels gave up positions of a stopped FIFO, and nobody will ever fill those.
    #[error(
        "kernels gave up while they waited for room in the stopped FIFO (position {head} was \
         handed out, {tail} executed): make a new service"
    )]
    FifoBroken {
        /// One past the last position handed out.
        head: u64,
        /// Number of triggers executed.
        tail: u64,
    },

    /// The proxy runs already.
    #[error("the proxy runs already")]
    ProxyRunning,

    /// The proxy's thread is lost, and with it the FIFO.
    #[error("the proxy is gone: {cause}; make a new service")]
    ProxyGone {
        /// What happened to it.
        cause: String,
    },

    /// A proxy was stopped before all that was asked of it was done.
    #[error(
        "the proxy did not finish within {waited:?}: {triggers} triggers were not executed, or \
         what they started was not acknowledged"
    )]
    NotDrained {
        /// Triggers pushed and not executed.
        triggers: u64,
        /// How long it was waited for.
        waited: Duration,
    },
}

impl Error {
    /// Broad class of the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Error::DeviceUnavailable { .. } => ErrorCode::InvalidUsage,
            Error::PeerDown { .. } => ErrorCode::RemoteError,
            Error::Timeout { .. } => ErrorCode::Timeout,
            Error::Io { .. } => ErrorCode::SystemError,
            Error::FifoSize { .. } | Error::FifoBroken { .. } | Error::ProxyRunning => {
                ErrorCode::InvalidUsage
            }
            Error::ProxyGone { .. } => ErrorCode::InternalError,
            Error::NotDrained { .. } => ErrorCode::Timeout,
        }
    }

    /// What a kernel waiting on a connection is told when this error ends the connection.
    pub fn status(&self) -> Status {
        match self {
            Error::PeerDown { .. } => Status::PeerDown,
            _ => Status::QueueError,
        }
    }

    /// An [`Error::ProxyGone`] with its cause.
    pub(crate) fn gone(cause: &str) -> Self {
        Error::ProxyGone {
            cause: cause.into(),
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

/// A rank in a message, or that nobody knows it.
struct RankName(Option<usize>);

impl fmt::Display for RankName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rank) => write!(f, "{rank}"),
            None => f.write_str("unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_prints_its_own_name() {
        let names = [
            "SystemError",
            "InternalError",
            "RemoteError",
            "InvalidUsage",
            "Timeout",
            "Aborted",
            "ExecutorError",
        ];
        let codes = [
            ErrorCode::SystemError,
            ErrorCode::InternalError,
            ErrorCode::RemoteError,
            ErrorCode::InvalidUsage,
            ErrorCode::Timeout,
            ErrorCode::Aborted,
            ErrorCode::ExecutorError,
        ];
        for (number, (code, name)) in codes.into_iter().zip(names).enumerate() {
            assert_eq!(code as usize, number);
            assert_eq!(code.to_string(), name);
        }
    }

    #[test]
    fn a_dead_peer_is_named() {
        let error = Error::PeerDown {
            rank: Some(7),
            cause: "connection reset".into(),
        };
        assert_eq!(error.to_string(), "rank 7 is down: connection reset");
        assert_eq!(error.status(), Status::PeerDown);
        assert_eq!(error.code(), ErrorCode::RemoteError);
    }
}
