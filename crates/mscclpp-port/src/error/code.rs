// SPDX-License-Identifier: MIT
//! The broad classes of errors that MSCCL++ names.

use std::fmt;

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
