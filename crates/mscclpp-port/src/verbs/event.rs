// SPDX-License-Identifier: MIT
//! What a device tells by itself.

use mscclpp_ib_sys as sys;

/// An asynchronous event of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// Something happened to a queue pair.
    QueuePair {
        /// Its number.
        number: u32,
        /// What.
        change: QueueChange,
    },
    /// A completion queue cannot be used any more: it was overrun.
    CompletionQueue {
        /// Its [`CompletionQueue::id`](super::CompletionQueue::id).
        id: u64,
    },
    /// Something happened to a port.
    Port {
        /// Counted from 1.
        number: u8,
        /// What.
        change: PortChange,
    },
    /// The device has failed or was removed: nothing on it works any more.
    DeviceFatal,
    /// An event that concerns nothing that this crate uses; its number in `ibv_event_type`.
    Other(u32),
}

/// What happened to a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueChange {
    /// It has failed, without a completion to tell.
    Fatal,
    /// A request of the peer was wrong; the pair has failed.
    RequestError,
    /// A request of the peer touched what it may not; the pair has failed.
    AccessError,
    /// The peer's first packet has come.
    Established,
    /// Its send queue is empty.
    Drained,
    /// It has migrated, or could not.
    Migrated,
}

/// What happened to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortChange {
    /// It can be used (again).
    Active,
    /// Its link is down.
    Down,
    /// Its table of GIDs has changed: an index may stand for another GID, or none.
    Gids,
    /// It has another LID.
    Lid,
    /// Keys of partitions, or the subnet manager, have changed, or clients have to register again.
    Subnet,
}

impl AsyncEvent {
    /// # Safety
    ///
    /// An event that libibverbs has filled, and that was not acknowledged: what it names is there.
    pub(super) unsafe fn read(event: &sys::ibv_async_event) -> Self {
        // SAFETY: the caller's promise; the type of the event says which member is set.
        let queue = |change| unsafe {
            Self::QueuePair {
                number: (*event.element.qp).qp_num,
                change,
            }
        };
        // SAFETY: as above.
        let port = |change| unsafe {
            Self::Port {
                number: event.element.port_num as u8,
                change,
            }
        };
        match event.event_type {
            sys::IBV_EVENT_QP_FATAL => queue(QueueChange::Fatal),
            sys::IBV_EVENT_QP_REQ_ERR => queue(QueueChange::RequestError),
            sys::IBV_EVENT_QP_ACCESS_ERR => queue(QueueChange::AccessError),
            sys::IBV_EVENT_COMM_EST => queue(QueueChange::Established),
            sys::IBV_EVENT_SQ_DRAINED => queue(QueueChange::Drained),
            sys::IBV_EVENT_PATH_MIG | sys::IBV_EVENT_PATH_MIG_ERR => queue(QueueChange::Migrated),
            // SAFETY: as above; the context is the id that the queue was made with.
            sys::IBV_EVENT_CQ_ERR => unsafe {
                Self::CompletionQueue {
                    id: (*event.element.cq).cq_context.addr() as u64,
                }
            },
            sys::IBV_EVENT_PORT_ACTIVE => port(PortChange::Active),
            sys::IBV_EVENT_PORT_ERR => port(PortChange::Down),
            sys::IBV_EVENT_GID_CHANGE => port(PortChange::Gids),
            sys::IBV_EVENT_LID_CHANGE => port(PortChange::Lid),
            sys::IBV_EVENT_PKEY_CHANGE
            | sys::IBV_EVENT_SM_CHANGE
            | sys::IBV_EVENT_CLIENT_REREGISTER => port(PortChange::Subnet),
            sys::IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
            number => Self::Other(number),
        }
    }
}
