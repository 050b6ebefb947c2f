// SPDX-License-Identifier: MIT
//! GPU-to-GPU one-sided channels, with the PortChannel API of MSCCL++: a kernel calls `put`,
//! `signal`, `wait` and `flush`. By default a host thread, the proxy, carries them out over a
//! transport; on a connection that was made for it ([`IbMode::GpuNetIo`]) the kernel does so itself,
//! on the send queue of an HCA. Transports are Ethernet, InfiniBand and RoCE (feature `ib`, on by
//! default), and between GPUs of one host CUDA IPC. Kernels post to the NICs in software of
//! `mscclpp-softnic`. They run on CPU threads or, with the feature `cuda`, on GPUs.
//!
//! # The way of one put
//!
//! ```text
//!  rank 0                                        │ rank 1
//!  kernel: channel.putWithSignal(offset, size)   │ kernel: channel.wait()
//!    │ 16-byte trigger, released to the host     │   ▲ token > expected
//!    ▼                                           │   │
//!  FIFO ─▶ proxy thread (ProxyService)           │ token, memory
//!    semaphore id ─▶ connection                  │   ▲ payload, then += 1
//!    memory ids ─▶ registered memories           │   │
//!    write, signal ─────────── Connection ───────┼─▶ receiver: checks key, range, alignment
//!  kernel: channel.flush() ◀── flushDonePos ◀────┼── acknowledges
//! ```
//!
//! 1. The kernel takes a position of the FIFO and fills its slot. It waits only when all slots are
//!    taken.
//! 2. The proxy polls the FIFO, looks the trigger's ids up in the tables of its [`ProxyService`]
//!    and posts a write and a signal to the [`Connection`]. When the connection has no room, it
//!    holds the trigger and goes on with what is under way on all connections.
//! 3. The peer checks each operation against its own registrations, moves the payload, and then
//!    raises the semaphore's token, which its kernel polls.
//! 4. For a flush the peer acknowledges; the proxy then stores the trigger's position plus one in
//!    the word that the flushing thread polls.
//!
//! Over CUDA IPC the proxy starts the copy, and nobody takes part at the peer: the stream of the
//! connection copies into the peer's memory, writes the next count to its token, and for a flush the
//! position to the word that the flushing thread polls.
//!
//! Over InfiniBand and RoCE the proxy posts an RDMA write and a fetch-and-add to a queue pair of the
//! HCA that `IB0` to `IB7` stand for, and nobody takes part at the peer; a flush ends by completions.
//! On an HCA without atomics the peer's host raises the token ([`IbMode::HostNoAtomic`]). libibverbs
//! is loaded when such an HCA is first asked for; without it, or without a device, the error says so
//! in a sentence. [`IbConfig`] and [`mod@env`] say what can be chosen: port, GID, service level, timeouts.
//!
//! # The way of one put on a queue
//!
//! ```text
//!  rank 0                                        │ rank 1
//!  kernel: channel.putWithSignal(offset, size)   │ kernel: channel.wait()
//!    │ bounds, then two work requests            │   ▲ token > expected
//!    ▼                                           │   │
//!  send queue, doorbell record, doorbell         │ token, memory
//!    │                                           │   ▲ payload, then += 1
//!    ▼                                           │   │
//!  HCA ──────────── RDMA write, fetch-and-add ───┼─▶ HCA: checks key, range, alignment
//!  kernel: channel.flush() ◀── completion ◀──────┼── acknowledges
//! ```
//!
//! [`EndpointConfig::gpu_initiated`] asks for it; everything else is the same calls. `IB0` to `IB7`
//! stand for the HCAs of [`ContextConfig::hca_devices`], and memory has to be registered for them
//! ([`MemoryOptions`]).
//!
//! 1. Making the endpoint makes a queue pair whose rings lie in device memory. Connecting brings both
//!    ends up together in the background: each learns that the other is there, and then that its
//!    queue has executed a request. Only then a channel is handed out.
//! 2. The kernel checks offset and size against the registration, writes an RDMA write and a
//!    fetch-and-add into the queue, and rings the HCA's doorbell. It waits only when the queue is
//!    full, until completions make room.
//! 3. The peer's HCA checks both against its registrations and executes them, in this order. No
//!    thread of either host has a part in it, so no proxy needs to run.
//! 4. For a flush the kernel polls the completions of its own requests.
//!
//! One thread a context watches such connections: it sees a queue that has failed, and a peer that
//! failed, left or died, and passes it on to kernels that wait.
//!
//! A [`GpuNetIoService`] makes such queues for all ranks of a job at once, as many to each peer as are
//! asked for, and all of them or none; its channels need no [`ProxyService`].
//!
//! # Order and completion
//!
//! - Operations of one connection execute in the order in which they were pushed or posted, whatever
//!   channels they came by. There is no order between connections.
//! - A kernel that has consumed a signal sees all that was put on the connection before it.
//! - A push publishes what its thread wrote before, and what that thread knows others to have
//!   written (behind a block barrier).
//! - A flush ends when everything before it has been executed at the peer. Source memory may then be
//!   written again. Later operations do not delay it, and each flushing thread waits for its own.
//!
//! - On a queue the order is the HCA's, which is weaker inside: bytes of one put may land in any
//!   order, and so may two puts; all have landed before a later signal. A flush says that the peer's
//!   HCA has taken everything, and a get that its bytes have arrived. When a connection is dropped,
//!   what was not flushed may be lost.
//!
//! - Over InfiniBand and RoCE the order is the HCA's too, whoever posts: see [`Connection`].
//!
//! - Over CUDA IPC a flush says that the bytes are in the peer's memory. The peer's end checks
//!   nothing: memory that it shares may be written by whoever got its record, also after the owner has
//!   ended the registration; it is not used for anything else while somebody has it.
//!
//! # GPUs
//!
//! The feature `cuda` needs nothing to build, and the driver is loaded when first asked for:
//! [`Device::check_available`] says what is missing. An endpoint's [`EndpointConfig::device`] is that of
//! its kernels: tokens and counts lie in its memory, and a [`ProxyService`] serves kernels of one
//! device. Rings, status words and flush positions stay in host memory, on pages of their own which are
//! pinned when the first channel of a GPU needs them.
//!
//! | | payload of a GPU | signal to a GPU | accumulate in a GPU's memory |
//! |---|---|---|---|
//! | CUDA IPC | one copy, by the sender's stream | written by the same stream | refused |
//! | InfiniBand, RoCE | read and written by the HCAs, through dma-buf or nvidia_peermem; not tried on hardware | added by the HCA, or written by a copy of the host without atomics | added by the HCA |
//! | send queues on a NIC in software | between processes of a host one copy, by the receiver's NIC, from a mapping of the sender's memory; else as over Ethernet | written by the stream of that copy | read and written by the receiver's NIC |
//! | Ethernet | copied to pinned memory and sent, received into pinned memory and copied | written by the stream of those copies | read and written by the receiver: atomic among the process's connections, not against kernels |
//!
//! Nothing waits for a kernel: copies run on streams of this crate, marks that they write to host
//! memory tell how far they are, and what they use is kept until then. Each call gives the caller's
//! current context back. A first use of a GPU (its context, streams, pinned memory) takes up to some
//! hundred milliseconds, which making endpoints and channels takes, not the proxy; except for an
//! endpoint of the CPU that meets a GPU's memory.
//!
//! The driver spreads a process's streams over few hardware queues, 8 unless
//! `CUDA_DEVICE_MAX_CONNECTIONS` says more (up to 32, before CUDA is first used). Work whose stream
//! shares one with a kernel that spins may wait for that kernel, for ever. The streams on which this
//! crate copies have the highest priority, which keeps them apart from kernels of other priorities:
//! start yours at the default one. More kernels than there are queues do not all run at once, even if
//! they are small: if they wait for each other, start fewer, with more blocks, and set the variable to
//! 32 where kernels of several streams wait. A process has, for each GPU, a stream for each connection
//! over CUDA IPC or Ethernet and for each NIC in software, and two for other copies.
//!
//! Memory that somebody else has allocated becomes a buffer by [`Buffer::of_gpu_memory`].
//!
//! # Failure
//!
//! Nothing waits for ever. A connection that fails keeps its first error: kernels that wait on it
//! return `QueueError` or `PeerDown`, [`Connection::status`] tells the host what happened, and later
//! calls fail at once. It fails when a trigger cannot be executed, when the peer refuses an
//! operation, takes nothing any more, or dies; the bootstrap tells the [`Communicator`] of dead
//! ranks, by name. A put, signal or accumulate returns before it is executed, so it learns of
//! neither: `flush` and `wait` do. A failed work request ends its queue: posts and waits of the kernel
//! return `QueueError` at once, and the host learns request and syndrome ([`Error::QueueFailed`]); the
//! other end fails, too. When a service is stopped or dropped, kernels that wait return
//! `Aborted`, but for posts that wait for room in a shared queue: they have taken their place in it
//! and return when there is room, or when the connection has ended.
//!
//! # Threads
//!
//! Every type here may be used from any thread. A started service runs one proxy thread, an Ethernet
//! connection one I/O thread, a connection without atomics of its HCA one that receives, a context with
//! connections over HCAs one watching thread, and a NIC in software its engine. All nap or sleep when
//! there is nothing to do. A connection over an HCA has a thread of its own while it is being made.
//!
//! # Ownership
//!
//! Objects hold what they stand on, so dropping in any order is safe, also while peers still post:
//! they get an error. Device handles are plain data and hold nothing: keep the [`PortChannel`] for
//! as long as a kernel uses its handle. A channel outlives its service in so far as its handle
//! stays valid and reports `Aborted`.
//!
//! # Sizes
//!
//! A registration may have any size, and [`Connection::write`] reaches all of it. Triggers have 32
//! bits for offsets and sizes: to reach beyond 4 GiB from a kernel, add a
//! [sub-range](RegisteredMemory::sub_range) to the service as a memory of its own. On a queue both have
//! 64 bits, and a put that is larger than the HCA's largest message becomes several requests.
//!
//! # Example
//!
//! Two ranks, here threads of one process, of which one puts eight bytes into the other's memory.
//! The kernels are C++; the executor of `mscclpp-device` runs them on CPU threads.
//!
//! ```
//! # use std::process::Command;
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use mscclpp_bootstrap::{Bootstrap, TcpBootstrap, UniqueId};
//! use mscclpp_device::abi::PortChannelDeviceHandle;
//! use mscclpp_device::executor::{Entry, HostKernel, LaunchDims};
//! use mscclpp_port::{
//!     Buffer, Communicator, Device, EndpointConfig, ProxyService, TransportKind,
//! };
//!
//! const KERNELS: &str = r#"
//!     #include <mscclpp/kernel.hpp>
//!     #include <mscclpp/port_channel_device.hpp>
//!
//!     struct Args { mscclpp::PortChannelDeviceHandle channel; };
//!
//!     MSCCLPP_KERNEL(sender, Args) {
//!       mscclpp::PortChannelDeviceHandle channel = args.channel;
//!       channel.putWithSignalAndFlush(/*offset*/ 0, /*bytes*/ 8);
//!     }
//!
//!     MSCCLPP_KERNEL(receiver, Args) {
//!       mscclpp::PortChannelDeviceHandle channel = args.channel;
//!       channel.wait();
//!     }
//! "#;
//!
//! #[derive(Clone, Copy)]
//! #[repr(C)]
//! struct Args {
//!     channel: PortChannelDeviceHandle,
//! }
//!
//! type AnyError = Box<dyn std::error::Error + Send + Sync>;
//!
//! fn rank(bootstrap: Arc<dyn Bootstrap>, kernel: HostKernel) -> Result<u64, AnyError> {
//!     let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
//!     let communicator = Communicator::new(bootstrap)?;
//!     let buffer = Buffer::new(Device::cpu(), 4096)?;
//!     if rank == 0 {
//!         buffer.store_u64(0, 42)?;
//!     }
//!
//!     // This rank's halves are sent at once; `get` waits for the peer's.
//!     let local = communicator.register_memory(&buffer, 0..4096)?;
//!     communicator.send_memory(&local, peer, 0)?;
//!     let remote = communicator.recv_memory(peer, 0)?;
//!     let config = EndpointConfig::new(TransportKind::Ethernet);
//!     let connection = communicator.connect(config, peer, 0)?;
//!     let (remote, connection) = (remote.get()?, connection.get()?);
//!
//!     let service = ProxyService::with_default_size()?;
//!     let semaphore = service.build_and_add_semaphore(&communicator, &connection)?;
//!     let dst = service.add_memory(remote)?;
//!     let src = service.add_memory(local)?;
//!     let channel = service.port_channel(semaphore, dst, src)?;
//!     service.start_proxy()?;
//!
//!     let args = Args { channel: channel.device_handle() };
//!     let one = LaunchDims { grid: 1, block: 1 };
//!     if let Err(error) = kernel.run(one, args, Duration::from_secs(20)) {
//!         // It may still run: the process ends, and frees nothing that it uses.
//!         eprintln!("{error}");
//!         std::process::exit(1);
//!     }
//!     service.stop_proxy()?;
//!     // Nobody leaves while others still need it.
//!     communicator.bootstrap().barrier()?;
//!     Ok(buffer.load_u64(0)?)
//! }
//!
//! # fn compile(name: &'static str) -> HostKernel {
//! #     let directory = tempfile::tempdir().unwrap();
//! #     let (source, object) = (directory.path().join("k.cpp"), directory.path().join("k.so"));
//! #     std::fs::write(&source, KERNELS).unwrap();
//! #     let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../mscclpp-device/include");
//! #     let mut compiler = Command::new("g++");
//! #     compiler.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-I", include, "-o"]);
//! #     assert!(compiler.arg(&object).arg(&source).status().unwrap().success());
//! #     // SAFETY: the object defines its kernels with MSCCLPP_KERNEL and `Args` as above, and is
//! #     // never unloaded.
//! #     unsafe {
//! #         let library = Box::leak(Box::new(libloading::Library::new(&object).unwrap()));
//! #         HostKernel::new(name, *library.get::<Entry>(name.as_bytes()).unwrap())
//! #     }
//! # }
//! # fn main() -> Result<(), AnyError> {
//! let timeout = Duration::from_secs(20);
//! let root = TcpBootstrap::new(0, 2)?;
//! let id: UniqueId = root.create_unique_id()?;
//! let copy = id.clone();
//! let other = std::thread::spawn(move || {
//!     let bootstrap = TcpBootstrap::new(1, 2)?;
//!     bootstrap.initialize(&copy, timeout)?;
//!     rank(Arc::new(bootstrap), compile("receiver"))
//! });
//! root.initialize(&id, timeout)?;
//! rank(Arc::new(root), compile("sender"))?;
//! assert_eq!(other.join().unwrap()?, 42);
//! # Ok(())
//! # }
//! ```
mod arrival;
mod async_errors;
mod buffer;
mod communicator;
mod connection;
mod context;
mod control;
mod control_end;
mod counters;
mod cuda_ipc;
mod device;
#[cfg(feature = "ib")]
pub mod doctor;
mod ending;
mod endpoint;
pub mod env;
mod error;
mod ethernet;
mod event;
mod fifo;
mod flush;
mod gpu;
mod gpu_net_io_service;
mod gpu_queue;
#[cfg(feature = "ib")]
mod ib;
mod idle;
mod loopback;
#[cfg(feature = "ib")]
mod machine;
mod memory;
mod message;
#[cfg(feature = "ib")]
mod nearest;
mod pages;
mod port_channel;
mod proxy;
mod proxy_service;
mod random;
mod refusal;
#[cfg(any(feature = "cuda", all(test, not(loom))))]
mod ring;
mod semaphore;
mod shared;
mod status;
mod sync;
mod table;
#[cfg(all(test, not(loom)))]
mod testing;
pub mod trace;
mod transport;
#[cfg(feature = "ib")]
pub mod verbs;
mod visible;
mod watcher;

pub use async_errors::{AsyncError, AsyncErrors};
pub use buffer::Buffer;
pub use communicator::{Communicator, Pending};
pub use connection::Connection;
pub use context::{Context, ContextConfig};
pub use counters::{
    Counters, HcaCounters, Pauses, Posts, ProxyCounters, QueueCounters, SemaphoreCounters, Snapshot,
};
pub use device::{Device, DeviceKind};
pub use endpoint::{Endpoint, EndpointConfig};
pub use error::{Error, ErrorCode, Result};
pub use fifo::{DEFAULT_FIFO_SIZE, Fifo};
pub use gpu_net_io_service::{GpuNetIoConfig, GpuNetIoService, QueueCounts};
pub use gpu_queue::{Hca, IbConfig, IbMode, QueuePlacement};
#[cfg(feature = "ib")]
pub use machine::{Distance, PciAddress, PciAddressError};
pub use memory::{Access, MemoryOptions, RegisteredMemory};
pub use mlx5_queue::Syndrome;
pub use mscclpp_device::abi::{QueueForm, SignalMode, Status, StatusWord};
#[cfg(feature = "ib")]
pub use nearest::{Nearest, UnusablePort};
pub use port_channel::{BasePortChannel, PortChannel};
pub use proxy::{Proxy, ProxyHandler, ProxyHandlerResult, ProxyProgress};
pub use proxy_service::{MemoryId, ProxyService, SemaphoreId};
pub use refusal::{Operation, Refusal, Refused};
pub use semaphore::{Host2DeviceSemaphore, Host2HostSemaphore, Semaphore};
pub use transport::{TransportFlags, TransportKind};
