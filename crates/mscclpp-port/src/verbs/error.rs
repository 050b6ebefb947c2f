// SPDX-License-Identifier: MIT
//! What verbs refuse, with all that is known.

use std::fmt;
use std::io;
use std::sync::Arc;

use mscclpp_ib_sys as sys;
use mscclpp_ib_sys::LoadError;

use super::queue::QueueState;
use crate::error::Error;
use crate::transport::TransportKind;

/// Why a call of libibverbs failed, or was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no libibverbs that can be used.
    #[error(transparent)]
    Library(#[from] LoadError),

    /// The library is there, and no device.
    #[error(
        "no RDMA device: {reason}; `rdma link` lists those that the kernel knows, and each needs a \
         file in /dev/infiniband and its provider (Debian, Ubuntu: ibverbs-providers)"
    )]
    NoDevice {
        /// How it was noticed.
        reason: String,
    },

    /// There are devices, and none of this name.
    #[error("there is no RDMA device {name:?}; there are: {}", found.join(", "))]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// Those that there are.
        found: Vec<String>,
    },

    /// A port that the device does not have.
    #[error("{device} has no port {port}: its ports are 1 to {ports}")]
    UnknownPort {
        /// The device.
        device: String,
        /// The port asked for; they are counted from 1.
        port: u8,
        /// How many there are.
        ports: u8,
    },

    /// A registration that no device makes.
    #[error("{device} cannot register {len} bytes: {reason}")]
    Region {
        /// The device.
        device: String,
        /// Length in bytes.
        len: u64,
        /// Why, and what to do.
        reason: String,
    },

    /// A call failed.
    #[error("{device}: cannot {operation}{detail}: {errno}{}", hint(operation, *errno))]
    Call {
        /// The device.
        device: String,
        /// What was asked for.
        operation: &'static str,
        /// Its sizes and flags; empty or begins with a space.
        detail: String,
        /// The system's reason.
        errno: Errno,
    },

    /// A queue pair did not change its state.
    #[error(
        "{device}: queue pair {queue:#x} does not go from {from} to {to} ({attributes}){detail}: \
         {errno}{}", transition_hint(*to, *errno)
    )]
    Transition {
        /// The device.
        device: String,
        /// Number of the queue pair.
        queue: u32,
        /// The state that it was in.
        from: QueueState,
        /// The state asked for.
        to: QueueState,
        /// The attributes that were given.
        attributes: AttributeMask,
        /// Their values that depend on the peer or the configuration; empty or begins with a space.
        detail: String,
        /// The system's reason.
        errno: Errno,
    },
}

/// An error number of the system. Never a status of a work completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// That of this thread.
    pub(super) fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// What a call returned that returns an error number. Some providers return -1 and set errno, and
    /// some a negative number.
    pub(super) fn returned(code: i32) -> Self {
        match code {
            -1 => Self::last(),
            code => Self(code.saturating_abs()),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // A provider that has forgotten to say why.
            0 => f.write_str("no reason given"),
            code => io::Error::from_raw_os_error(code).fmt(f),
        }
    }
}

/// The attributes of a transition, as bits of `ibv_qp_attr_mask`. Shown by their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttributeMask(pub i32);

const ATTRIBUTES: [(i32, &str); 15] = [
    (sys::IBV_QP_STATE, "STATE"),
    (sys::IBV_QP_ACCESS_FLAGS, "ACCESS_FLAGS"),
    (sys::IBV_QP_PKEY_INDEX, "PKEY_INDEX"),
    (sys::IBV_QP_PORT, "PORT"),
    (sys::IBV_QP_AV, "AV"),
    (sys::IBV_QP_PATH_MTU, "PATH_MTU"),
    (sys::IBV_QP_TIMEOUT, "TIMEOUT"),
    (sys::IBV_QP_RETRY_CNT, "RETRY_CNT"),
    (sys::IBV_QP_RNR_RETRY, "RNR_RETRY"),
    (sys::IBV_QP_RQ_PSN, "RQ_PSN"),
    (sys::IBV_QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"),
    (sys::IBV_QP_MIN_RNR_TIMER, "MIN_RNR_TIMER"),
    (sys::IBV_QP_SQ_PSN, "SQ_PSN"),
    (sys::IBV_QP_MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"),
    (sys::IBV_QP_DEST_QPN, "DEST_QPN"),
];

impl fmt::Display for AttributeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut rest = self.0;
        for (bit, name) in ATTRIBUTES {
            if rest & bit != 0 {
                write!(f, "{separator}{name}")?;
                separator = "|";
                rest &= !bit;
            }
        }
        match rest {
            0 => Ok(()),
            rest => write!(f, "{separator}{rest:#x}"),
        }
    }
}

/// What is usually behind an errno.
fn hint(operation: &str, errno: Errno) -> &'static str {
    match (operation, errno.0) {
        ("open it", libc::EACCES | libc::EPERM | libc::ENOENT) => {
            "; the process needs read and write access to its file in /dev/infiniband"
        }
        ("register memory", libc::ENOMEM | libc::EAGAIN) => {
            "; registered memory is locked: raise the limit (ulimit -l), or register less"
        }
        ("register memory", libc::EFAULT) => {
            "; memory of a GPU needs dma-buf, or the module nvidia_peermem"
        }
        ("register a DMA buffer", libc::EOPNOTSUPP) => {
            "; this device, kernel or libibverbs cannot register DMA buffers"
        }
        ("make a queue pair" | "make a completion queue", libc::ENOMEM) => {
            "; fewer entries may fit, or the limit of locked memory (ulimit -l) is too low"
        }
        _ => "",
    }
}

fn transition_hint(to: QueueState, errno: Errno) -> &'static str {
    match (to, errno.0) {
        (QueueState::ReadyToReceive, libc::ENODEV | libc::ENETUNREACH | libc::ETIMEDOUT) => {
            "; no way leads from this GID to the peer's: the two are of different kinds or networks, \
             or the port is down"
        }
        (QueueState::ReadyToReceive, libc::EINVAL) => {
            "; an MTU above the port's, a GID index without a GID, or more reads than the device \
             answers"
        }
        _ => "",
    }
}

impl VerbsError {
    /// As an error of a transport: an HCA that is not there, or one that refuses.
    #[must_use]
    pub fn into_error(self, transport: TransportKind) -> Error {
        match self {
            VerbsError::Library(_)
            | VerbsError::NoDevice { .. }
            | VerbsError::UnknownDevice { .. } => Error::HcaUnavailable {
                transport,
                detail: self.to_string(),
            },
            _ => Error::Verbs(Arc::new(self)),
        }
    }
}
