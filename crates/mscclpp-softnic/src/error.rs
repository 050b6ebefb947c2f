// SPDX-License-Identifier: MIT
use mlx5_queue::QueueNumber;

use crate::{ControlOperation, State};

/// Why a call to the NIC failed. Nothing was changed then.
///
/// What goes wrong with a *request* is not here: that is a completion with a
/// syndrome, and perhaps a [`Violation`](crate::Violation).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not the name of a NIC in software. A real HCA's name is never taken
    /// for one.
    #[error("{name:?} is not a NIC in software: those are called soft0, soft1, ...")]
    UnknownDevice {
        /// The name asked for.
        name: String,
    },
    /// The fault plan refused the operation.
    #[error("{operation} refused by the fault plan")]
    Refused {
        /// What was asked for.
        operation: ControlOperation,
    },
    /// More than the device's capabilities allow.
    #[error("{what}: {asked} asked for, {limit} possible")]
    Limit {
        /// Which capability.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// What the device has.
        limit: u64,
    },
    /// The device cannot do this at all.
    #[error("the device does not support {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// A memory range is too short, misaligned or empty.
    #[error("{what}: {length} bytes at {address:#x}: {requirement}")]
    Range {
        /// What the range is for.
        what: &'static str,
        /// Its first byte.
        address: u64,
        /// Its length in bytes.
        length: u64,
        /// What it should be.
        requirement: &'static str,
    },
    /// Remote write or atomic permission without local write permission.
    #[error("remote write and atomic access need local write access")]
    Access,
    /// The queue pair cannot go there from where it is.
    #[error("queue pair {queue:?}: no transition from {from} to {to}")]
    Transition {
        /// The queue pair.
        queue: QueueNumber,
        /// Its state.
        from: State,
        /// The state asked for.
        to: State,
    },
    /// An object of another device was handed in.
    #[error("{what} belongs to another device")]
    ForeignObject {
        /// What was handed in.
        what: &'static str,
    },
    /// A value that a queue's layout cannot hold.
    #[error("{what}: {source}")]
    Layout {
        /// What was being described.
        what: &'static str,
        /// Why it does not fit.
        source: mlx5_queue::Error,
    },
    /// The stream to another device could not be used.
    #[error("cannot link {device} to another device: {source}")]
    Link {
        /// This device.
        device: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The engine thread could not be started.
    #[error("cannot start the engine of {device}: {source}")]
    Engine {
        /// The device.
        device: String,
        /// The cause.
        source: std::io::Error,
    },
}
