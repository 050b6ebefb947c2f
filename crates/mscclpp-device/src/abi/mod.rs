// SPDX-License-Identifier: MIT
//! Layouts that the host shares with device code.
//!
//! Every type here has a C++ twin of the same name in `include/mscclpp/`. Both
//! sides assert the same sizes and offsets at compile time; the numbers are
//! little-endian and the same on the CPU executor and on CUDA.
//!
//! Pointers are plain `u64` addresses, valid where the kernel runs. A handle is
//! plain data: it keeps nothing alive, may be copied into kernel arguments or
//! constant memory as bytes, and has no padding that is not named.

mod handle;
mod queue;
mod status;
mod trigger;

pub use handle::{
    AbiError, AbiHeader, Backend, BasePortChannelDeviceHandle, FifoDeviceHandle,
    Host2DeviceSemaphoreDeviceHandle, PortChannelDeviceHandle,
};
pub use queue::{
    QueueChannel, QueueDeviceHandle, QueueFailureCause, QueueForm, QueueMemory, QueueState,
    SignalMode,
};
pub use status::{Status, StatusWord, UnknownStatus};
pub use trigger::{
    ACCUMULATE, FLUSH, MAX_MEMORIES, MAX_SEMAPHORES, PUT, PUT_WITH_SIGNAL,
    PUT_WITH_SIGNAL_AND_FLUSH, ProxyTrigger, SIGNAL, Transfer, Trigger, TriggerError, TriggerField,
};

/// Version of all layouts in this module, written into each handle's
/// [`AbiHeader`]. It changes with any size, offset or meaning.
pub const VERSION: u32 = 3;
