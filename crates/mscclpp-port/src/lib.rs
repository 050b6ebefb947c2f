// SPDX-License-Identifier: MIT
//! GPU-to-GPU one-sided channels: memory, semaphores, FIFO, proxy, port channels.

pub mod device;
pub mod error;
pub mod memory;
pub mod status;
mod sync;
pub(crate) mod transport;

pub use device::{Device, DeviceKind};
pub use error::{Error, ErrorCode, Result};
