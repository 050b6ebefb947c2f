// SPDX-License-Identifier: MIT
//! The Rust side of a C++ program: `program/main.cpp` has `main` and a kernel, and gets its channel
//! from the functions here. The host side of channels is in Rust alone.
//!
//!     cargo xtask launch -n 2 -- target/debug/cpp-program
#![no_main]

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use mscclpp_bootstrap::{Bootstrap, TcpBootstrap};
use mscclpp_device::LaunchDims;
use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_device::executor::{Entry, HostKernel};
use mscclpp_port::{
    Buffer, Communicator, Device, EndpointConfig, PortChannel, ProxyService, TransportKind,
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// This rank, its peer and the channel between them, as `program/peer.h` tells the program.
pub struct Peer {
    channel: PortChannel,
    // Its proxy runs as long as it lives.
    _service: ProxyService,
    buffer: Buffer,
    communicator: Communicator,
}

fn open(bytes: u64) -> anyhow::Result<Peer> {
    let bootstrap = TcpBootstrap::from_launcher(TIMEOUT)?;
    ensure!(bootstrap.world_size() == 2, "start it on 2 ranks");
    let peer = 1 - bootstrap.rank();
    let communicator = Communicator::new(Arc::new(bootstrap))?;
    let buffer = Buffer::new(Device::cpu(), bytes)?;
    let local = communicator.register_memory(&buffer, 0..bytes)?;
    communicator.send_memory(&local, peer, 0)?;
    let remote = communicator.recv_memory(peer, 0)?.get()?;
    let endpoint = EndpointConfig::new(TransportKind::Ethernet);
    let connection = communicator.connect(endpoint, peer, 0)?.get()?;
    let service = ProxyService::with_default_size()?;
    let semaphore = service.build_and_add_semaphore(&communicator, &connection)?;
    let (dst, src) = (service.add_memory(remote)?, service.add_memory(local)?);
    let channel = service.port_channel(semaphore, dst, src)?;
    service.start_proxy()?;
    Ok(Peer {
        channel,
        _service: service,
        buffer,
        communicator,
    })
}

/// The value, or nothing after its error was printed.
fn told<T>(result: anyhow::Result<T>) -> Option<T> {
    result
        .inspect_err(|error| eprintln!("Error: {error:#}"))
        .ok()
}

/// See `program/peer.h`, as for all functions here.
#[unsafe(no_mangle)]
pub extern "C" fn peer_open(bytes: u64) -> Option<Box<Peer>> {
    told(open(bytes)).map(Box::new)
}

/// Its rank.
#[unsafe(no_mangle)]
pub extern "C" fn peer_rank(peer: &Peer) -> u32 {
    peer.communicator.bootstrap().rank() as u32
}

/// Its memory.
#[unsafe(no_mangle)]
pub extern "C" fn peer_memory(peer: &Peer) -> *mut u8 {
    peer.buffer.as_ptr()
}

/// Its channel.
#[unsafe(no_mangle)]
pub extern "C" fn peer_channel(peer: &Peer, channel: &mut PortChannelDeviceHandle) {
    *channel = peer.channel.device_handle();
}

/// Runs a kernel.
///
/// # Safety
/// `kernel` is made by MSCCLPP_KERNEL, with a struct of one pointer; what it points to, and what that
/// leads to, lives until the kernel has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_run(
    _peer: &Peer,
    kernel: Entry,
    argument: *const c_void,
    threads: u32,
) -> i32 {
    // SAFETY: the caller's promise.
    let kernel = unsafe { HostKernel::new("kernel of the C++ program", kernel) };
    let block = LaunchDims {
        grid: 1,
        block: threads,
    };
    let ran = kernel.run(block, argument.expose_provenance() as u64, TIMEOUT);
    told(ran.map_err(Into::into)).map_or(1, |()| 0)
}

/// Waits for the peer, and ends the connection.
#[unsafe(no_mangle)]
pub extern "C" fn peer_close(peer: Box<Peer>) -> i32 {
    // Nobody leaves while others still need it.
    let met = peer.communicator.bootstrap().barrier();
    told(met.map_err(Into::into)).map_or(1, |()| 0)
}
