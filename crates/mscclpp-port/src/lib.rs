// SPDX-License-Identifier: MIT
//! GPU-to-GPU one-sided channels: memory, semaphores, FIFO, proxy, port channels.

pub mod device;
pub mod error;
mod fifo;
mod flush;
pub mod memory;
mod proxy;
mod status;
mod sync;
pub(crate) mod transport;

pub use device::{Device, DeviceKind};
pub use error::{Error, ErrorCode, Result};
pub use fifo::{DEFAULT_FIFO_SIZE, Fifo};
pub use proxy::{Proxy, ProxyHandler, ProxyHandlerResult, ProxyProgress};
pub use status::{Status, StatusWord};
