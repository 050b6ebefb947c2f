// SPDX-License-Identifier: MIT
//! The states of queue pairs, as values and as types.

use std::fmt;

use mscclpp_ib_sys as sys;

/// A state of a queue pair, as the device tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueState {
    /// Made.
    Reset,
    /// It belongs to a port and takes receives.
    Initialized,
    /// It answers its peer.
    ReadyToReceive,
    /// It sends.
    ReadyToSend,
    /// It sends no more, and lets what is under way come to its end.
    Draining,
    /// Its send queue has failed.
    SendError,
    /// It has failed.
    Error,
    /// Another; its number in `ibv_qp_state`.
    Unknown(u32),
}

impl QueueState {
    pub(super) fn from_number(number: u32) -> Self {
        match number {
            sys::IBV_QPS_RESET => Self::Reset,
            sys::IBV_QPS_INIT => Self::Initialized,
            sys::IBV_QPS_RTR => Self::ReadyToReceive,
            sys::IBV_QPS_RTS => Self::ReadyToSend,
            sys::IBV_QPS_SQD => Self::Draining,
            sys::IBV_QPS_SQE => Self::SendError,
            sys::IBV_QPS_ERR => Self::Error,
            number => Self::Unknown(number),
        }
    }

    pub(super) fn number(self) -> u32 {
        match self {
            Self::Reset => sys::IBV_QPS_RESET,
            Self::Initialized => sys::IBV_QPS_INIT,
            Self::ReadyToReceive => sys::IBV_QPS_RTR,
            Self::ReadyToSend => sys::IBV_QPS_RTS,
            Self::Draining => sys::IBV_QPS_SQD,
            Self::SendError => sys::IBV_QPS_SQE,
            Self::Error => sys::IBV_QPS_ERR,
            Self::Unknown(number) => number,
        }
    }
}

impl fmt::Display for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Initialized => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::Draining => "SQD",
            Self::SendError => "SQE",
            Self::Error => "ERR",
            Self::Unknown(number) => return write!(f, "unknown state {number}"),
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A state in a type: [`Reset`], [`Initialized`], [`ReadyToReceive`], [`ReadyToSend`].
pub trait State: sealed::Sealed + Send + Sync + 'static {
    /// The same, as a value.
    const STATE: QueueState;
}

/// The states in which receives can be posted: all but [`Reset`].
pub trait Receiving: State {}

macro_rules! states {
    ($($(#[$meta:meta])* $name:ident)*) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        pub enum $name {}

        impl sealed::Sealed for $name {}

        impl State for $name {
            const STATE: QueueState = QueueState::$name;
        }
    )*};
}

states! {
    /// Made.
    Reset
    /// INIT: it belongs to a port and takes receives.
    Initialized
    /// RTR: it answers its peer.
    ReadyToReceive
    /// RTS: it sends.
    ReadyToSend
}

impl Receiving for Initialized {}
impl Receiving for ReadyToReceive {}
impl Receiving for ReadyToSend {}
