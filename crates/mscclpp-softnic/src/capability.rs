// SPDX-License-Identifier: MIT
use std::fmt;

use mlx5_queue::RingSize;

/// Largest packet payload on a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256 = 1,
    /// 512 bytes.
    Bytes512 = 2,
    /// 1024 bytes.
    Bytes1024 = 3,
    /// 2048 bytes.
    Bytes2048 = 4,
    /// 4096 bytes.
    #[default]
    Bytes4096 = 5,
}

impl Mtu {
    /// Payload bytes of a packet.
    pub const fn bytes(self) -> u64 {
        128 << self as u8
    }

    /// The code that verbs and mlx5 commands use, 1 to 5.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The MTU with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Bytes256,
            2 => Self::Bytes512,
            3 => Self::Bytes1024,
            4 => Self::Bytes2048,
            5 => Self::Bytes4096,
            _ => return None,
        })
    }
}

/// What a device can do. The defaults are a ConnectX's as far as this project
/// uses it; a test takes away what it wants to see missed.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// 64-bit RDMA atomics.
    pub atomics: bool,
    /// The port's MTU: no queue pair may have a larger one.
    pub mtu: Mtu,
    /// Blocks of a send queue, at most [`RingSize::MAX_SEND_BLOCKS`].
    pub max_send_blocks: u32,
    /// Entries of a receive queue.
    pub max_receive_entries: u32,
    /// Entries of a completion queue.
    pub max_completions: u32,
    /// Bytes of one message (a ConnectX takes 2^30 here: GPUNetIO sets
    /// `log_msg_max` to 30 and splits above it).
    pub max_message: u64,
    /// Reads and atomics of a queue pair that may be under way at once, as
    /// requester and as responder.
    pub max_outstanding_reads: u8,
    /// Segments of a receive request.
    pub max_receive_segments: u32,
    /// Objects of each kind.
    pub max_objects: u32,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            atomics: true,
            mtu: Mtu::Bytes4096,
            max_send_blocks: RingSize::MAX_SEND_BLOCKS,
            max_receive_entries: RingSize::MAX_SEND_BLOCKS,
            max_completions: 1 << 22,
            max_message: 1 << 30,
            max_outstanding_reads: 16,
            max_receive_segments: 32,
            max_objects: 1 << 16,
        }
    }
}

/// Where a device is found: the 16 bytes that a GID has on a fabric. Random,
/// so that no two devices share one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub [u8; 16]);

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
