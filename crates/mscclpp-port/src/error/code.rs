// SPDX-License-Identifier: MIT
//! The broad classes of errors that MSCCL++ names.

use std::fmt;

use mscclpp_bootstrap::BootstrapError;
use mscclpp_bootstrap::gate::Reason;
use mscclpp_device::abi::Status;

use super::Error;

/// Broad class of an [`Error`](crate::Error); names and numbers as in MSCCL++.
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

impl Error {
    /// Broad class of the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Error::DeviceUnavailable { .. } => ErrorCode::InvalidUsage,
            Error::PeerDown { .. } => ErrorCode::RemoteError,
            Error::Timeout { .. } => ErrorCode::Timeout,
            Error::Io { .. } | Error::Cuda { .. } => ErrorCode::SystemError,
            Error::InvalidUsage { .. }
            | Error::OutOfBounds { .. }
            | Error::Misaligned { .. }
            | Error::Unsupported { .. }
            | Error::IncompatibleTransports { .. }
            | Error::IncompatibleEndpoints { .. }
            | Error::HcaUnavailable { .. }
            | Error::QueueNotExclusive { .. }
            | Error::SourceGone { .. } => ErrorCode::InvalidUsage,
            Error::Hca { .. } | Error::QueueNotExecuting { .. } | Error::UnfitQueue { .. } => {
                ErrorCode::SystemError
            }
            #[cfg(feature = "ib")]
            Error::Verbs(_) | Error::HcaFailed { .. } | Error::NoUsablePort { .. } => {
                ErrorCode::SystemError
            }
            #[cfg(feature = "ib")]
            Error::RequestFailed { .. } => ErrorCode::RemoteError,
            Error::Setup(error) => match error.reason {
                Reason::Plan(_) => ErrorCode::InvalidUsage,
                Reason::Silent => ErrorCode::Timeout,
                _ => ErrorCode::RemoteError,
            },
            Error::NotSetUp { .. } | Error::SetUpAgain { .. } | Error::NoQueue { .. } => {
                ErrorCode::InvalidUsage
            }
            Error::Record { .. }
            | Error::Refused { .. }
            | Error::RefusedPeer { .. }
            | Error::QueueFailed { .. }
            | Error::QueueRefused { .. }
            | Error::PeerFailed { .. } => ErrorCode::RemoteError,
            Error::FifoSize { .. }
            | Error::FifoBroken { .. }
            | Error::ProxyRunning
            | Error::UnknownMemory { .. }
            | Error::UnknownSemaphore { .. }
            | Error::TooMany { .. }
            | Error::BadTrigger { .. }
            | Error::WrongRecord { .. }
            | Error::UnknownConnection { .. } => ErrorCode::InvalidUsage,
            Error::ProxyGone { .. } => ErrorCode::InternalError,
            Error::NotDrained { .. } => ErrorCode::Timeout,
            Error::Trigger { cause, .. } => cause.code(),
            Error::PeerGaveUp { .. } => ErrorCode::RemoteError,
            Error::Bootstrap { source, .. } => bootstrap_code(source),
            Error::QueueFull { .. } => ErrorCode::SystemError,
            Error::Stalled { .. } => ErrorCode::Timeout,
        }
    }

    /// What a kernel waiting on a connection is told when this error ends the connection.
    pub fn status(&self) -> Status {
        match self {
            Error::PeerDown { .. } => Status::PeerDown,
            Error::Trigger { cause, .. } => cause.status(),
            _ => Status::QueueError,
        }
    }
}

fn bootstrap_code(error: &BootstrapError) -> ErrorCode {
    match error {
        error if error.is_timeout() => ErrorCode::Timeout,
        error if error.gone_rank().is_some() => ErrorCode::RemoteError,
        BootstrapError::Io { .. } => ErrorCode::SystemError,
        _ => ErrorCode::InvalidUsage,
    }
}
