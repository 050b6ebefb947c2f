// SPDX-License-Identifier: MIT
//! GPU-to-GPU one-sided channels: memory, semaphores, FIFO, proxy, port channels.

mod buffer;
mod communicator;
mod connection;
mod context;
mod device;
mod endpoint;
mod error;
mod ethernet;
mod fifo;
mod flush;
mod idle;
mod loopback;
mod memory;
mod message;
mod port_channel;
mod proxy;
mod proxy_service;
mod refusal;
mod semaphore;
mod shared;
mod status;
mod sync;
mod table;
#[cfg(all(test, not(loom)))]
mod testing;
mod transport;

pub use buffer::Buffer;
pub use communicator::{Communicator, Pending};
pub use connection::Connection;
pub use context::{Context, ContextConfig};
pub use device::{Device, DeviceKind};
pub use endpoint::{Endpoint, EndpointConfig};
pub use error::{Error, ErrorCode, Result};
pub use fifo::{DEFAULT_FIFO_SIZE, Fifo};
pub use memory::{Access, RegisteredMemory};
pub use mscclpp_device::abi::{Status, StatusWord};
pub use port_channel::{BasePortChannel, PortChannel};
pub use proxy::{Proxy, ProxyHandler, ProxyHandlerResult, ProxyProgress};
pub use proxy_service::{MemoryId, ProxyService, SemaphoreId};
pub use refusal::{Operation, Refusal, Refused};
pub use semaphore::{Host2DeviceSemaphore, Host2HostSemaphore, Semaphore};
pub use transport::{TransportFlags, TransportKind};
