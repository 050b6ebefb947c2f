// SPDX-License-Identifier: MIT
//! What a kernel is given to post work requests to a send queue.

use std::mem::offset_of;

use super::{AbiError, AbiHeader};

/// Who may post to a queue; chosen when the queue is made. Twin of
/// `mscclpp::QueueForm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QueueForm {
    /// One thread at a time. Another may take over behind a barrier or a
    /// launch. A post has no atomics.
    Exclusive = 0,
    /// Any threads of the grid, at the same time.
    #[default]
    Shared = 1,
}

/// How a signal reaches the peer's token. Twin of `mscclpp::SignalMode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SignalMode {
    /// A fetch-and-add by the peer's NIC.
    #[default]
    Atomic = 0,
    /// A write of the next count, carried in the request: for NICs without
    /// atomics. The queue is exclusive, and the token has no other writer.
    InlineWrite = 1,
}

/// Why a queue's error word was set: its `cause` byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QueueFailureCause {
    /// A completion said so; the other bytes are its.
    Completion = 0,
    /// Two threads posted at once to an exclusive queue. Only found by kernels
    /// compiled with `MSCCLPP_DEBUG`.
    NotExclusive = 1,
}

/// A send queue with its completion queue; twin of
/// `mscclpp::QueueDeviceHandle` (`queue_device.hpp`). Rings, record and
/// register are mlx5's (the `mlx5-queue` crate has their layouts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct QueueDeviceHandle {
    /// Version and size.
    pub abi: AbiHeader,
    /// Address of the send ring, `blocks` blocks of 64 bytes.
    pub send_ring: u64,
    /// Address of the *send* word of the doorbell record (4 bytes, big-endian).
    pub record: u64,
    /// Address of the doorbell register (8 bytes).
    pub doorbell: u64,
    /// Address of the completion ring, `completion_entries` entries of 64
    /// bytes.
    pub completions: u64,
    /// Address of the queue's [`QueueState`], device memory.
    pub state: u64,
    /// Shared form: address of `blocks` words of 4 bytes, device memory, zeroed
    /// at first, as the state is: that says that whoever posts request 0 is the
    /// first to tell the NIC. Exclusive form: 0.
    pub ready: u64,
    /// Address of a registered word of 8 bytes where results of atomics land.
    pub scratch: u64,
    /// Its key, big-endian.
    pub scratch_key: u32,
    /// Number of the queue pair, 24 bits.
    pub number: u32,
    /// Blocks in the send ring: a power of two, 2 to 32768.
    pub blocks: u32,
    /// Entries in the completion ring: a power of two, at least `blocks`,
    /// because errors complete unsignalled requests too.
    pub completion_entries: u32,
    /// A [`QueueForm`] as a number.
    pub form: u32,
    /// A [`SignalMode`] as a number.
    pub signal_mode: u32,
    /// 1 if the record is in host memory, which takes a wider fence; else 0.
    pub record_in_host_memory: u32,
    /// 1 if every request asks for a completion, 0 if the last of a post does.
    pub signal_every: u32,
    /// Bytes of the largest request; larger transfers are split.
    pub max_message: u64,
}

/// The part of a queue that moves, in device memory, so that it survives
/// launches; twin of `mscclpp::QueueState`. All zero at first. Indices count
/// requests in 64 bits; the NIC has their low 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct QueueState {
    /// Requests handed out.
    pub reserved: u64,
    /// Exclusive form: requests for which the owner knows that there is room.
    pub limit: u64,
    /// Requests known to be complete: all before this one.
    pub completed: u64,
    /// Sticky error, a [`StatusWord`](super::StatusWord): `QueueError`, and
    /// beside it syndrome, vendor syndrome, opcode and cause
    /// ([`QueueFailureCause`]), a byte each from the lowest.
    pub error: u64,
    /// The request that failed.
    pub error_index: u64,
    /// Exclusive form: threads that are posting.
    pub in_use: u64,
    /// Completion entries consumed.
    pub consumed: u64,
}

/// Memory that requests can name; twin of `mscclpp::QueueMemory`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct QueueMemory {
    /// Address of its first byte, where its owner's NIC sees it.
    pub address: u64,
    /// Bytes; 0 for no memory.
    pub size: u64,
    /// Key, big-endian.
    pub key: u32,
    /// [`LOCAL`](Self::LOCAL), [`REMOTE`](Self::REMOTE).
    pub access: u32,
}

/// What a channel on a send queue names; twin of `mscclpp::QueueChannel`
/// (`queue_channel_device.hpp`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct QueueChannel {
    /// The queue.
    pub queue: QueueDeviceHandle,
    /// Address of [`MAX_MEMORIES`](super::MAX_MEMORIES) [`QueueMemory`]s, by
    /// memory id; what is not there is zero. An entry may be filled while
    /// kernels run, its last word last.
    pub memories: u64,
    /// The peer's token.
    pub token: QueueMemory,
    /// [`SignalMode::InlineWrite`]: address of the count of signals sent (u64,
    /// device memory); else 0.
    pub outbound: u64,
}

impl QueueDeviceHandle {
    /// Refuses a handle of another layout.
    pub fn check(&self) -> Result<(), AbiError> {
        self.abi.check::<Self>("QueueDeviceHandle")
    }
}

impl QueueMemory {
    /// Own memory: source of a put, destination of a get.
    pub const LOCAL: u32 = 1;
    /// The peer's memory: destination of a put, source of a get.
    pub const REMOTE: u32 = 2;
    /// No memory.
    pub const NONE: Self = Self {
        address: 0,
        size: 0,
        key: 0,
        access: 0,
    };
}

impl QueueChannel {
    /// What a channel of the proxy has.
    pub const NONE: Self = Self {
        queue: QueueDeviceHandle {
            abi: AbiHeader {
                version: 0,
                size: 0,
            },
            send_ring: 0,
            record: 0,
            doorbell: 0,
            completions: 0,
            state: 0,
            ready: 0,
            scratch: 0,
            scratch_key: 0,
            number: 0,
            blocks: 0,
            completion_entries: 0,
            form: 0,
            signal_mode: 0,
            record_in_host_memory: 0,
            signal_every: 0,
            max_message: 0,
        },
        memories: 0,
        token: QueueMemory::NONE,
        outbound: 0,
    };
}

// The same numbers stand as static_asserts in the headers.
const _: () = {
    assert!(size_of::<QueueDeviceHandle>() == 104);
    assert!(offset_of!(QueueDeviceHandle, send_ring) == 8);
    assert!(offset_of!(QueueDeviceHandle, record) == 16);
    assert!(offset_of!(QueueDeviceHandle, doorbell) == 24);
    assert!(offset_of!(QueueDeviceHandle, completions) == 32);
    assert!(offset_of!(QueueDeviceHandle, state) == 40);
    assert!(offset_of!(QueueDeviceHandle, ready) == 48);
    assert!(offset_of!(QueueDeviceHandle, scratch) == 56);
    assert!(offset_of!(QueueDeviceHandle, scratch_key) == 64);
    assert!(offset_of!(QueueDeviceHandle, number) == 68);
    assert!(offset_of!(QueueDeviceHandle, blocks) == 72);
    assert!(offset_of!(QueueDeviceHandle, completion_entries) == 76);
    assert!(offset_of!(QueueDeviceHandle, form) == 80);
    assert!(offset_of!(QueueDeviceHandle, signal_mode) == 84);
    assert!(offset_of!(QueueDeviceHandle, record_in_host_memory) == 88);
    assert!(offset_of!(QueueDeviceHandle, signal_every) == 92);
    assert!(offset_of!(QueueDeviceHandle, max_message) == 96);

    assert!(size_of::<QueueState>() == 64 && align_of::<QueueState>() == 64);
    assert!(offset_of!(QueueState, reserved) == 0);
    assert!(offset_of!(QueueState, limit) == 8);
    assert!(offset_of!(QueueState, completed) == 16);
    assert!(offset_of!(QueueState, error) == 24);
    assert!(offset_of!(QueueState, error_index) == 32);
    assert!(offset_of!(QueueState, in_use) == 40);
    assert!(offset_of!(QueueState, consumed) == 48);

    assert!(size_of::<QueueMemory>() == 24);
    assert!(offset_of!(QueueMemory, size) == 8);
    assert!(offset_of!(QueueMemory, key) == 16);
    assert!(offset_of!(QueueMemory, access) == 20);

    assert!(size_of::<QueueChannel>() == 144);
    assert!(offset_of!(QueueChannel, memories) == 104);
    assert!(offset_of!(QueueChannel, token) == 112);
    assert!(offset_of!(QueueChannel, outbound) == 136);
};
