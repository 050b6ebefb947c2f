// SPDX-License-Identifier: MIT
//! What a GPU thread sees: the device headers, their mirrors in Rust, run-time
//! compilation for GPUs, and an executor that runs the same headers on CPU
//! threads.
//!
//! The headers are in `include/mscclpp/` and keep MSCCL++'s names and
//! signatures, except that calls which returned nothing return a
//! `mscclpp::Status`. One source compiles with nvcc, with NVRTC (no other
//! header needed) and as C++17 for CPU threads.
//!
//! | header | what it has |
//! |---|---|
//! | `port_channel.hpp` | `DeviceHandle<PortChannel>`; includes the next three |
//! | `port_channel_device.hpp` | `put`, `signal`, `putWithSignal`, `putWithSignalAndFlush`, `flush`, `accumulate`, `poll`, `wait`, with memory ids or bound to two memories |
//! | `queue_channel_device.hpp`, `queue_device.hpp`, `queue_state_device.hpp`, `work_request_device.hpp` | the same calls as work requests on an mlx5 send queue, that the calling thread posts itself |
//! | `semaphore_device.hpp` | the semaphore that a peer raises |
//! | `fifo_device.hpp`, `trigger.hpp` | the queue to the proxy and its 16-byte triggers |
//! | `packet_device.hpp`, `copy_device.hpp` | `LLPacket`, `LL8Packet`, `copyToPackets`, `copyFromPackets` |
//! | `concurrency_device.hpp` | `DeviceSyncer`, `DeviceSemaphore` |
//! | `atomic_device.hpp`, `memory_device.hpp` | loads, stores, atomics and fences with order and scope; the store to a device register |
//! | `status.hpp` | `Status`, `StatusWord` |
//! | `trace_device.hpp` | what calls leave in a trace, where it is compiled in: module `trace` |
//! | `kernel.hpp` | `MSCCLPP_KERNEL`, for kernels that run on both |
//!
//! # What calls promise
//!
//! - **Order.** Operations of one connection are executed in the order in which
//!   they were pushed. A push releases at system scope what the calling thread
//!   wrote before, and what others wrote before a barrier that they shared with
//!   it. A signal is visible to the peer after all earlier writes of its
//!   connection. There is no order between connections.
//! - **`wait` and `poll`** acquire at system scope: behind a success, what the
//!   peer put before its signal is visible. Each success consumes one signal;
//!   any number of threads may wait, and signals are never lost or merged. What
//!   ends without success consumes none.
//! - **`flush`** returns `Ok` when everything pushed before on the connection is
//!   complete: sources may be written again, and the peer's side has taken it.
//!   It says nothing of what the peer's kernel has done.
//! - **Ends.** A call that waits ends by success, by its budget of looks
//!   (`maxSpinCount`, unlimited unless given) with `Timeout`, or by the sticky
//!   error of its connection or of the proxy's FIFO, which it looks at every
//!   10 µs at most. After an error was seen it looks once more: what arrived
//!   wins. It never returns `Ok` early, in any build. One call does not end by
//!   the FIFO's error, which says that the service has stopped: a post to a
//!   shared queue that has taken its slots and waits for room (below).
//! - **Arguments** that do not fit a trigger (32-bit offsets and sizes, 9-bit
//!   memory ids, 10-bit semaphore ids), or on a queue are outside of the memory
//!   that they name, give `InvalidArgument`, and nothing is posted. Nothing is
//!   cut off.
//! - **A taken slot is always filled**, because nothing behind a gap would ever be
//!   executed. A push or post with a budget takes a slot only if there is room, and
//!   so does the owner of an exclusive queue. Others take their slots first, and
//!   then wait until there is room or the whole FIFO or queue has ended.
//! - **Packets** carry data and flag in one 8-byte store: no fence, no signal.
//!
//! # Channels on a send queue
//!
//! One field of a channel's handle says who carries out its calls
//! ([`abi::Backend`]): the host's proxy, or the calling thread itself, which
//! writes mlx5 work requests and rings the NIC's doorbell. The calls are the
//! same; `get`, a read of the peer's memory, exists on a queue only. What is
//! different there:
//!
//! - The host chooses the form of the queue: *exclusive*, to which one thread at
//!   a time posts, without atomics, the next taking over behind a barrier or a
//!   launch; or *shared*, for all threads of the grid. Kernels compiled with
//!   `MSCCLPP_DEBUG` notice two threads in an exclusive queue. `wait`, `poll` and
//!   waiting in `flush` are for any thread in both.
//! - Slots of a shared queue are taken by one atomic addition. A post without a
//!   budget that then waits for room ends by room, by the queue's error or by
//!   that of its connection. It outlasts the stop of its service: it returns once
//!   the NIC has made room, or the connection has ended.
//! - On a shared queue one thread at a time tells the NIC of requests, its own and
//!   those that others have made ready behind them; the others return at once.
//! - Offsets and sizes have 64 bits and are checked before anything is posted.
//!   Transfers above the queue's largest message are split.
//! - Everything that changes is in device memory ([`abi::QueueState`]), so that
//!   a queue goes on over launches.
//! - A failed work request makes the queue fail: its state keeps syndrome and
//!   position, later posts fail at once, and every wait on the channel ends with
//!   `QueueError`. What was complete before stays so.
//! - Inside a post: the requests; a release at system scope that covers them and
//!   the payload; the doorbell; the doorbell record; a release of that; the
//!   doorbell again. On a shared queue that release is of the thread that tells
//!   the NIC; it acquires what the others released to the GPU.
//!
//! Handles are plain data, may be copied to any number of threads and keep
//! nothing alive. They carry version and size; `check` on the Rust side
//! ([`abi::PortChannelDeviceHandle::check`]) and `compatible` on the C++ side
//! refuse another layout.
//!
//! # Kernels for CPU threads
//!
//! A crate that depends on this one with the feature `host-executor` compiles
//! its kernels in its build script, with `cc` as build dependency:
//!
//! ```ignore
//! // build.rs
//! fn main() {
//!     let include = std::env::var_os("DEP_MSCCLPP_DEVICE_INCLUDE").unwrap();
//!     println!("cargo::rerun-if-changed=kernels.cpp");
//!     println!("cargo::rerun-if-changed={}", include.display());
//!     cc::Build::new()
//!         .cpp(true)
//!         .std("c++17")
//!         .opt_level(2)
//!         .flag("-fno-exceptions")
//!         .cpp_link_stdlib(None)
//!         .include(include)
//!         .file("kernels.cpp")
//!         .compile("kernels");
//! }
//! ```
//!
//! (flags `-std=c++17 -O2`; kernels need nothing of the C++ run-time library).
//! To run kernels on a memory model too, compile the file a second time with
//! `MSCCLPP_MODELLED_MEMORY` defined and under another library name. The package
//! in `example/` does all this, is tested, and measures.
//!
//! `kernels.cpp`:
//!
//! ```cpp
//! #include <mscclpp/kernel.hpp>
//! #include <mscclpp/port_channel.hpp>
//!
//! struct NotifyArgs {
//!   mscclpp::DeviceHandle<mscclpp::PortChannel> channel;
//!   uint64_t* status;
//! };
//!
//! MSCCLPP_KERNEL(notify, NotifyArgs) {
//!   if (threadIdx.x == 0) *args.status = uint64_t(args.channel.putWithSignalAndFlush(0, 4096));
//! }
//! ```
//!
//! and the Rust side:
//!
#![cfg_attr(feature = "host-executor", doc = "```no_run")]
#![cfg_attr(not(feature = "host-executor"), doc = "```ignore")]
//! use std::ffi::c_void;
//! use std::time::Duration;
//!
//! use mscclpp_device::abi::PortChannelDeviceHandle;
//! use mscclpp_device::executor::{ExecutorError, HostKernel, LaunchDims};
//!
//! unsafe extern "C" {
//!     fn notify(context: *const c_void);
//! }
//!
//! /// Twin of the C++ struct.
//! #[derive(Clone, Copy)]
//! #[repr(C)]
//! struct NotifyArgs {
//!     channel: PortChannelDeviceHandle,
//!     status: u64,
//! }
//!
//! fn run(channel: PortChannelDeviceHandle, status: u64) -> Result<(), ExecutorError> {
//!     // SAFETY: made by MSCCLPP_KERNEL(notify, NotifyArgs). The caller keeps the channel's memory
//!     // and the status word until the kernel has ended.
//!     let kernel = unsafe { HostKernel::new("notify", notify) };
//!     let dims = LaunchDims { grid: 1, block: 32 };
//!     kernel.launch(dims, NotifyArgs { channel, status })?.join(Duration::from_secs(10))
//! }
//! ```
//!
//! # Kernels for GPUs
//!
//! The same `kernels.cpp` compiles with nvcc, with the include directory, or at
//! run time with the feature `nvrtc` and module `nvrtc`, which has the headers
//! built in.
//!
//! # Features
//!
//! - `host-executor`: modules `executor`, `self_test` and `trace`. Needs a C++17
//!   compiler.
//! - `nvrtc`: module `nvrtc`. Needs nothing to build; NVRTC is loaded at run
//!   time.
//! - `cuda`: modules `cuda` and `trace`, and `nvrtc`. Needs nothing to build; the driver is
//!   loaded at run time.
//!
//! # Tests
//!
//! `cargo test -p mscclpp-device` needs g++. With clang++ and NVRTC
//! (`MSCCLPP_NVRTC_SO` may hold its path) it tests those too, and says so where
//! it cannot. `MSCCLPP_GPU_ARCHS` is the comma list of architectures to compile
//! for, 80, 90, 100 and 120 unless set. What only a GPU can show, the PTX at
//! work, no test here shows.

pub mod abi;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "host-executor")]
pub mod executor;
pub mod headers;
#[cfg(any(feature = "cuda", feature = "host-executor"))]
mod launch_dims;
#[cfg(feature = "nvrtc")]
pub mod nvrtc;
#[cfg(feature = "host-executor")]
pub mod self_test;
#[cfg(any(feature = "cuda", feature = "host-executor"))]
pub mod trace;

#[cfg(any(feature = "cuda", feature = "host-executor"))]
pub use launch_dims::{LaunchDims, MAX_BLOCK};
