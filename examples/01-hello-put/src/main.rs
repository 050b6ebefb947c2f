// SPDX-License-Identifier: MIT
//! Rank 0 puts a greeting into the memory of rank 1. No kernel, no GPU: the smallest job there is.
//!
//!     cargo xtask launch -n 2 -- target/debug/hello-put

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use mscclpp_bootstrap::{Bootstrap, Deadline, TcpBootstrap};
use mscclpp_port::{
    Buffer, Communicator, Device, EndpointConfig, Host2HostSemaphore, TransportKind,
};

const GREETING: &[u8] = b"hello, rank 1";
const TIMEOUT: Duration = Duration::from_secs(20);

fn main() {
    if let Err(error) = one_rank() {
        // Not by `Debug`, which may add a backtrace.
        eprintln!("Error: {error:#}");
        std::process::exit(1);
    }
}

fn one_rank() -> anyhow::Result<()> {
    if std::env::args().len() > 1 {
        println!(
            "Rank 0 puts a greeting into the memory of rank 1. Takes no options; start 2 ranks."
        );
        return Ok(());
    }
    // The launcher has told each process who it is, and where to meet.
    let bootstrap = TcpBootstrap::from_launcher(TIMEOUT)?;
    ensure!(bootstrap.world_size() == 2, "start it on 2 ranks");
    let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let communicator = Communicator::new(Arc::new(bootstrap))?;

    // Memory that the peer may reach. Each rank sends its half at once; `get` waits for the peer's.
    let buffer = Buffer::new(Device::cpu(), 4096)?;
    let local = communicator.register_memory(&buffer, 0..buffer.len())?;
    communicator.send_memory(&local, peer, 0)?;
    let remote = communicator.recv_memory(peer, 0)?.get()?;
    let endpoint = EndpointConfig::new(TransportKind::Ethernet);
    let connection = communicator.connect(endpoint, peer, 0)?.get()?;
    let semaphore = communicator.build_semaphore(&connection, peer, 0)?.get()?;
    let semaphore = Host2HostSemaphore::new(semaphore)?;

    let bytes = GREETING.len() as u64;
    if rank == 0 {
        buffer.write(0, GREETING)?;
        connection.write(&remote, 0, &local, 0, bytes)?;
        semaphore.signal()?;
        connection.flush(Deadline::after(TIMEOUT))?;
        println!("put {bytes} bytes");
    } else {
        // What was put before the signal is here when the signal is.
        semaphore.wait(Deadline::after(TIMEOUT))?;
        let mut found = [0; GREETING.len()];
        buffer.read(0, &mut found)?;
        ensure!(found == GREETING, "found {found:?}");
        println!("found {:?}", String::from_utf8_lossy(&found));
    }
    // Nobody leaves while others still need it.
    communicator.bootstrap().barrier()?;
    Ok(())
}
