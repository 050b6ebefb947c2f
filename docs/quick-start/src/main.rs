// SPDX-License-Identifier: MIT
//! Rank 0 puts eight bytes into the memory of rank 1.

use std::error::Error;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use mscclpp_bootstrap::{Bootstrap, TcpBootstrap};
use mscclpp_device::abi::{PortChannelDeviceHandle, Status};
use mscclpp_device::executor::{HostKernel, LaunchDims};
use mscclpp_port::{Buffer, Communicator, Device, EndpointConfig, ProxyService, TransportKind};

unsafe extern "C" {
    fn send_word(context: *const c_void);
    fn receive_word(context: *const c_void);
}

/// Twin of the C++ struct.
#[derive(Clone, Copy)]
#[repr(C)]
struct WordArgs {
    channel: PortChannelDeviceHandle,
    status: u64,
}

fn main() {
    if let Err(error) = one_word() {
        // Not by `Debug`, which has fewer words.
        eprintln!("Error: {error}");
        std::process::exit(1);
    }
}

fn one_word() -> Result<(), Box<dyn Error + Send + Sync>> {
    // Who this process is, and where the other one: the launcher says so.
    let bootstrap = TcpBootstrap::from_launcher(Duration::from_secs(30))?;
    if bootstrap.world_size() != 2 {
        return Err("start it on 2 ranks".into());
    }
    let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let communicator = Communicator::new(Arc::new(bootstrap))?;

    let buffer = Buffer::new(Device::cpu(), 4096)?;
    if rank == 0 {
        buffer.store_u64(0, 42)?;
    }

    // Each call sends this rank's half at once; `get` waits for the peer's.
    let local = communicator.register_memory(&buffer, 0..4096)?;
    communicator.send_memory(&local, peer, 0)?;
    let remote = communicator.recv_memory(peer, 0)?;
    let endpoint = EndpointConfig::new(TransportKind::Ethernet);
    let connection = communicator.connect(endpoint, peer, 0)?;
    let (remote, connection) = (remote.get()?, connection.get()?);

    // The proxy carries out what the kernel asks for.
    let service = ProxyService::with_default_size()?;
    let semaphore = service.build_and_add_semaphore(&communicator, &connection)?;
    let (dst, src) = (service.add_memory(remote)?, service.add_memory(local)?);
    let channel = service.port_channel(semaphore, dst, src)?;
    service.start_proxy()?;

    let status = Buffer::new(Device::cpu(), 8)?;
    let args = WordArgs {
        channel: channel.device_handle(),
        status: status.address(),
    };
    // SAFETY: made by MSCCLPP_KERNEL with WordArgs; channel and buffers outlive the kernel.
    let kernel = unsafe {
        match rank {
            0 => HostKernel::new("send_word", send_word),
            _ => HostKernel::new("receive_word", receive_word),
        }
    };
    let one_thread = LaunchDims { grid: 1, block: 1 };
    if let Err(error) = kernel.run(one_thread, args, Duration::from_secs(20)) {
        // The kernel may still run: the process ends, and frees nothing that it uses.
        eprintln!("Error: {error}");
        std::process::exit(1);
    }

    let ended = Status::try_from(status.load_u64(0)? as u32)?;
    if ended != Status::Ok {
        // A call that was refused has no error at the connection.
        let why = connection.status().map(|error| format!("; {error}"));
        return Err(format!("the call failed: {ended}{}", why.unwrap_or_default()).into());
    }
    println!("rank {rank}: the word is {}", buffer.load_u64(0)?);
    // Nobody leaves while others still need it.
    communicator.bootstrap().barrier()?;
    Ok(())
}
