// SPDX-License-Identifier: MIT
//! What a kernel is given to reach a FIFO, a semaphore and a channel.

use std::mem::offset_of;

use thiserror::Error;

use super::{QueueChannel, QueueMemory, VERSION};

/// The first 8 bytes of each handle: which layout it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AbiHeader {
    /// [`VERSION`] of the maker.
    pub version: u32,
    /// Size of the whole handle in bytes.
    pub size: u32,
}

/// A handle that was made for another layout than this crate's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{handle} has layout version {version} and {size} bytes, this build has version {VERSION} and \
     {expected} bytes: build kernels and host against the same mscclpp-device"
)]
pub struct AbiError {
    /// Type of the handle.
    pub handle: &'static str,
    /// Version found in it.
    pub version: u32,
    /// Size found in it, in bytes.
    pub size: u32,
    /// Size that this build has, in bytes.
    pub expected: u32,
}

impl AbiHeader {
    /// The header of a handle of type `T`.
    pub const fn of<T>() -> Self {
        Self {
            version: VERSION,
            size: size_of::<T>() as u32,
        }
    }

    pub(super) fn check<T>(self, handle: &'static str) -> Result<(), AbiError> {
        if self == Self::of::<T>() {
            return Ok(());
        }
        Err(AbiError {
            handle,
            version: self.version,
            size: self.size,
            expected: size_of::<T>() as u32,
        })
    }
}

/// The device side of a FIFO; twin of `mscclpp::FifoDeviceHandle`
/// (`fifo_device.hpp`). Any number of device threads may push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FifoDeviceHandle {
    /// Version and size.
    pub abi: AbiHeader,
    /// Address of the ring of [`ProxyTrigger`](super::ProxyTrigger)s, host
    /// memory, zeroed at first.
    pub triggers: u64,
    /// Address of the next position to hand out (u64, device memory).
    pub head: u64,
    /// Address of the count of executed triggers (u64, host memory).
    pub tail: u64,
    /// Address of a recent copy of the tail (u64, device memory).
    pub tail_cache: u64,
    /// Slots in the ring, a power of two.
    pub size: i32,
    /// Zero.
    pub reserved: u32,
    /// `size - 1`.
    pub size_mask: u64,
    /// Binary logarithm of `size`.
    pub size_shift: u64,
    /// Address of the FIFO's [`StatusWord`](super::StatusWord): set when its
    /// proxy has stopped or died.
    pub status: u64,
}

impl FifoDeviceHandle {
    /// What stands for the FIFO of a channel that has none. Kernels that post to a queue read nothing
    /// of it but that no status word belongs to it.
    pub const fn none() -> Self {
        Self {
            abi: AbiHeader::of::<Self>(),
            triggers: 0,
            head: 0,
            tail: 0,
            tail_cache: 0,
            size: 0,
            reserved: 0,
            size_mask: 0,
            size_shift: 0,
            status: 0,
        }
    }
}

/// The device side of a semaphore that the peer raises; twin of
/// `mscclpp::Host2DeviceSemaphoreDeviceHandle` (`semaphore_device.hpp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Host2DeviceSemaphoreDeviceHandle {
    /// Version and size.
    pub abi: AbiHeader,
    /// Address of the count of signals received (u64, written by the peer).
    pub inbound_token: u64,
    /// Address of the count of signals consumed (u64, device memory).
    pub expected_inbound_token: u64,
    /// Address of the connection's [`StatusWord`](super::StatusWord), or 0 for
    /// none.
    pub status: u64,
}

/// Who carries out a channel's calls; twin of `mscclpp::Backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Backend {
    /// The host's proxy thread: calls push triggers.
    Proxy = 0,
    /// The caller: calls post work requests to a send queue.
    Queue = 1,
}

/// A channel whose calls name memory ids; twin of
/// `mscclpp::BasePortChannelDeviceHandle` (`port_channel_device.hpp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BasePortChannelDeviceHandle {
    /// Version, and the size of the handle that this is or is part of.
    pub abi: AbiHeader,
    /// Id of the semaphore in the proxy's table.
    pub semaphore_id: u32,
    /// A [`Backend`] as a number.
    pub backend: u32,
    /// The semaphore. Its status word is the connection's.
    pub semaphore: Host2DeviceSemaphoreDeviceHandle,
    /// The FIFO of the proxy.
    pub fifo: FifoDeviceHandle,
    /// Address of one past the highest FIFO position with a finished flush on
    /// this connection (u64, host memory).
    pub flush_done_pos: u64,
    /// The send queue and what is named on it; zero for a channel of the proxy.
    pub queue: QueueChannel,
}

/// A channel bound to its two memories; twin of
/// `mscclpp::PortChannelDeviceHandle` (`port_channel_device.hpp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PortChannelDeviceHandle {
    /// The channel without its memories.
    pub base: BasePortChannelDeviceHandle,
    /// Id of the destination memory.
    pub dst: u32,
    /// Id of the source memory.
    pub src: u32,
    /// The destination memory; zero for a channel of the proxy.
    pub dst_memory: QueueMemory,
    /// The source memory; zero for a channel of the proxy.
    pub src_memory: QueueMemory,
}

impl FifoDeviceHandle {
    /// Refuses a handle of another layout.
    pub fn check(&self) -> Result<(), AbiError> {
        self.abi.check::<Self>("FifoDeviceHandle")
    }
}

impl Host2DeviceSemaphoreDeviceHandle {
    /// Refuses a handle of another layout.
    pub fn check(&self) -> Result<(), AbiError> {
        self.abi.check::<Self>("Host2DeviceSemaphoreDeviceHandle")
    }
}

impl BasePortChannelDeviceHandle {
    /// A channel of the proxy.
    pub const fn new(
        semaphore_id: u32,
        semaphore: Host2DeviceSemaphoreDeviceHandle,
        fifo: FifoDeviceHandle,
        flush_done_pos: u64,
    ) -> Self {
        Self {
            abi: AbiHeader::of::<Self>(),
            semaphore_id,
            backend: Backend::Proxy as u32,
            semaphore,
            fifo,
            flush_done_pos,
            queue: QueueChannel::NONE,
        }
    }

    /// A channel on a send queue. Of the FIFO only the status word is used: it
    /// says that the service has stopped.
    pub const fn on_queue(
        semaphore_id: u32,
        semaphore: Host2DeviceSemaphoreDeviceHandle,
        fifo: FifoDeviceHandle,
        queue: QueueChannel,
    ) -> Self {
        Self {
            backend: Backend::Queue as u32,
            queue,
            ..Self::new(semaphore_id, semaphore, fifo, 0)
        }
    }

    /// Refuses a handle of another layout, or with a part of another layout.
    pub fn check(&self) -> Result<(), AbiError> {
        self.abi.check::<Self>("BasePortChannelDeviceHandle")?;
        self.check_parts()
    }

    fn check_parts(&self) -> Result<(), AbiError> {
        self.semaphore.check()?;
        self.fifo.check()?;
        if self.backend == Backend::Queue as u32 {
            self.queue.queue.check()?;
        }
        Ok(())
    }
}

impl PortChannelDeviceHandle {
    /// The channel `base` of the proxy, bound to memory ids `dst` and `src`.
    pub const fn new(base: BasePortChannelDeviceHandle, dst: u32, src: u32) -> Self {
        Self::on_queue(base, (dst, QueueMemory::NONE), (src, QueueMemory::NONE))
    }

    /// The channel `base` on a send queue, bound to the memories with these
    /// ids.
    pub const fn on_queue(
        mut base: BasePortChannelDeviceHandle,
        (dst, dst_memory): (u32, QueueMemory),
        (src, src_memory): (u32, QueueMemory),
    ) -> Self {
        base.abi = AbiHeader::of::<Self>();
        Self {
            base,
            dst,
            src,
            dst_memory,
            src_memory,
        }
    }

    /// Refuses a handle of another layout, or with a part of another layout.
    pub fn check(&self) -> Result<(), AbiError> {
        self.base.abi.check::<Self>("PortChannelDeviceHandle")?;
        self.base.check_parts()
    }
}

// The same numbers stand as static_asserts in the headers.
const _: () = {
    assert!(size_of::<AbiHeader>() == 8);

    assert!(size_of::<FifoDeviceHandle>() == 72);
    assert!(offset_of!(FifoDeviceHandle, triggers) == 8);
    assert!(offset_of!(FifoDeviceHandle, head) == 16);
    assert!(offset_of!(FifoDeviceHandle, tail) == 24);
    assert!(offset_of!(FifoDeviceHandle, tail_cache) == 32);
    assert!(offset_of!(FifoDeviceHandle, size) == 40);
    assert!(offset_of!(FifoDeviceHandle, size_mask) == 48);
    assert!(offset_of!(FifoDeviceHandle, size_shift) == 56);
    assert!(offset_of!(FifoDeviceHandle, status) == 64);

    assert!(size_of::<Host2DeviceSemaphoreDeviceHandle>() == 32);
    assert!(offset_of!(Host2DeviceSemaphoreDeviceHandle, inbound_token) == 8);
    assert!(offset_of!(Host2DeviceSemaphoreDeviceHandle, expected_inbound_token) == 16);
    assert!(offset_of!(Host2DeviceSemaphoreDeviceHandle, status) == 24);

    assert!(size_of::<BasePortChannelDeviceHandle>() == 272);
    assert!(offset_of!(BasePortChannelDeviceHandle, semaphore_id) == 8);
    assert!(offset_of!(BasePortChannelDeviceHandle, backend) == 12);
    assert!(offset_of!(BasePortChannelDeviceHandle, semaphore) == 16);
    assert!(offset_of!(BasePortChannelDeviceHandle, fifo) == 48);
    assert!(offset_of!(BasePortChannelDeviceHandle, flush_done_pos) == 120);
    assert!(offset_of!(BasePortChannelDeviceHandle, queue) == 128);

    assert!(size_of::<PortChannelDeviceHandle>() == 328);
    assert!(offset_of!(PortChannelDeviceHandle, dst) == 272);
    assert!(offset_of!(PortChannelDeviceHandle, src) == 276);
    assert!(offset_of!(PortChannelDeviceHandle, dst_memory) == 280);
    assert!(offset_of!(PortChannelDeviceHandle, src_memory) == 304);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn channel() -> PortChannelDeviceHandle {
        let semaphore = Host2DeviceSemaphoreDeviceHandle {
            abi: AbiHeader::of::<Host2DeviceSemaphoreDeviceHandle>(),
            inbound_token: 0,
            expected_inbound_token: 0,
            status: 0,
        };
        let fifo = FifoDeviceHandle {
            abi: AbiHeader::of::<FifoDeviceHandle>(),
            triggers: 0,
            head: 0,
            tail: 0,
            tail_cache: 0,
            size: 1,
            reserved: 0,
            size_mask: 0,
            size_shift: 0,
            status: 0,
        };
        let base = BasePortChannelDeviceHandle::new(7, semaphore, fifo, 0);
        PortChannelDeviceHandle::new(base, 1, 2)
    }

    #[test]
    fn a_handle_of_this_build_is_accepted() {
        let bound = channel();
        assert_eq!(bound.check(), Ok(()));
        // The part of a bound channel is no channel by itself: its size says so.
        assert!(bound.base.check().is_err());
    }

    #[test]
    fn a_handle_of_another_version_or_size_is_refused_by_name() {
        let mut old = channel();
        old.base.abi.version += 1;
        assert_eq!(old.check().unwrap_err().handle, "PortChannelDeviceHandle");

        let mut foreign = channel();
        foreign.base.fifo.abi.size -= 8;
        let error = foreign.check().unwrap_err();
        assert_eq!((error.handle, error.size), ("FifoDeviceHandle", 64));
    }
}
