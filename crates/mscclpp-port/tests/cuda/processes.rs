// SPDX-License-Identifier: MIT
//! Two processes of one host: this binary starts itself.

use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use mscclpp_bootstrap::{Bootstrap, TcpBootstrap, UniqueId};
use mscclpp_port::{Buffer, Communicator, EndpointConfig, Error, MemoryOptions, TransportKind};

use crate::Test;
use crate::common::pattern;
use crate::lent;
use crate::support::{PATIENCE, end, gpu_of, ping_pong, soon};

pub(crate) const TESTS: &[Test] = &[
    ("processes_reach_each_others_memory", 1, memory),
    ("kernels_of_two_processes_ping_pong", 2, kernels),
    ("another_host_is_refused", 1, another_host),
];

/// The job of a child process, and how it joins.
const JOB: &str = "MSCCLPP_TEST_JOB";
const ID: &str = "MSCCLPP_TEST_ID";

const BYTES: u64 = 8 << 20;

pub(crate) fn is_child() -> bool {
    std::env::var_os(JOB).is_some()
}

/// Rank 1.
pub(crate) fn child() -> ExitCode {
    let id: UniqueId = std::env::var(ID).unwrap().parse().unwrap();
    let bootstrap = TcpBootstrap::new(1, 2).unwrap();
    bootstrap.initialize(&id, PATIENCE).unwrap();
    let bootstrap: Arc<dyn Bootstrap> = Arc::new(bootstrap);
    match std::env::var(JOB).unwrap().as_str() {
        "memory" => exchange(bootstrap),
        "kernels" => play(bootstrap),
        "other host" => refused(bootstrap),
        lent::JOB => lent::play(bootstrap),
        "stay" => {
            let _end = end(bootstrap, TransportKind::CudaIpc, gpu_of(1), 4096).unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        job => panic!("no job {job}"),
    }
    ExitCode::SUCCESS
}

/// A child process that is killed when dropped.
pub(crate) struct Peer(Child);

impl Peer {
    /// Rank 1 with a job, and the bootstrap of rank 0.
    pub(crate) fn start(job: &str, environment: &[(&str, &str)]) -> (Self, Arc<dyn Bootstrap>) {
        let bootstrap = TcpBootstrap::new(0, 2).unwrap();
        let id = bootstrap.create_unique_id().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .env(JOB, job)
            .env(ID, &*id.to_text())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let peer = Self(child);
        bootstrap.initialize(&id, PATIENCE).unwrap();
        (peer, Arc::new(bootstrap))
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
    }

    pub(crate) fn succeeds(mut self) {
        assert!(self.0.wait().unwrap().success(), "the other process failed");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn memory() {
    let (peer, bootstrap) = Peer::start("memory", &[]);
    exchange(bootstrap);
    peer.succeeds();
}

/// Each rank writes what the other then finds, also in a part that starts in the midst of it.
fn exchange(bootstrap: Arc<dyn Bootstrap>) {
    let rank = bootstrap.rank();
    let end = end(
        Arc::clone(&bootstrap),
        TransportKind::CudaIpc,
        gpu_of(rank),
        2 * BYTES,
    )
    .unwrap();
    // Allocated by somebody else: a part of another buffer.
    let whole = Buffer::new(gpu_of(rank), 1 << 20).unwrap();
    // SAFETY: the buffer outlives all that is done with it.
    let part = unsafe { Buffer::of_gpu_memory(gpu_of(rank), whole.address() + 4096, 8192) };
    let options = MemoryOptions {
        transports: TransportKind::CudaIpc.into(),
        ..MemoryOptions::default()
    };
    let part = part.unwrap();
    let mine = (end.communicator)
        .register_memory_with(&part, 100..8100, options)
        .unwrap();
    end.communicator.send_memory(&mine, 1 - rank, 7).unwrap();
    let theirs = end.communicator.recv_memory(1 - rank, 7).unwrap();
    let theirs = theirs.get_by(soon()).unwrap();

    let (own, other) = [5, 6].map(|seed| pattern(seed, BYTES as usize)).into();
    let (own, other) = if rank == 0 {
        (own, other)
    } else {
        (other, own)
    };
    end.buffer.write(0, &own).unwrap();
    let source = (end.communicator)
        .register_memory_with(&end.buffer, 0..BYTES, options)
        .unwrap();
    (end.connection)
        .write(&end.remote, BYTES, &source, 0, BYTES)
        .unwrap();
    end.connection.write(&theirs, 8, &source, 16, 4000).unwrap();
    end.connection.flush(soon()).unwrap();
    bootstrap.barrier().unwrap();
    let mut found = vec![0; BYTES as usize];
    end.buffer.read(BYTES, &mut found).unwrap();
    assert!(found == other, "what the peer wrote");
    let mut found = vec![0; 4000];
    whole.read(4096 + 100 + 8, &mut found).unwrap();
    assert!(found == other[16..4016], "what the peer wrote to a part");
    bootstrap.barrier().unwrap();
}

fn kernels() {
    let (peer, bootstrap) = Peer::start("kernels", &[]);
    play(bootstrap);
    peer.succeeds();
}

fn play(bootstrap: Arc<dyn Bootstrap>) {
    let rank = bootstrap.rank();
    for (words, iterations) in [(1, 5000), (512, 1000)] {
        let end = end(
            Arc::clone(&bootstrap),
            TransportKind::CudaIpc,
            gpu_of(rank),
            words * 16,
        )
        .unwrap();
        bootstrap.barrier().unwrap();
        let report = ping_pong(&end, words, iterations, true).end();
        let why = end.connection.status();
        assert_eq!(report.word(0), u64::MAX, "rank {rank} failed: {why:?}");
        assert_eq!(report.word(1), 0, "words that were not the round's");
        if rank == 0 {
            let each = report.word(2) as f64 / iterations as f64 / 1000.0;
            println!(
                "IPC, two processes: {} bytes there and back with flush: {each:.1} us",
                words * 8
            );
        }
        bootstrap.barrier().unwrap();
    }
}

fn another_host() {
    let (peer, bootstrap) = Peer::start("other host", &[("MSCCLPP_HOSTID", "elsewhere")]);
    refused(bootstrap);
    peer.succeeds();
}

fn refused(bootstrap: Arc<dyn Bootstrap>) {
    let (rank, peer) = (bootstrap.rank(), 1 - bootstrap.rank());
    let communicator = Communicator::new(Arc::clone(&bootstrap)).unwrap();
    let ipc = TransportKind::CudaIpc;
    let buffer = Buffer::new(gpu_of(rank), 4096).unwrap();
    let options = MemoryOptions {
        transports: ipc.into(),
        ..MemoryOptions::default()
    };
    let local = communicator.register_memory_with(&buffer, 0..4096, options);
    communicator.send_memory(&local.unwrap(), peer, 0).unwrap();
    let config = EndpointConfig {
        device: gpu_of(rank),
        ..EndpointConfig::new(ipc)
    };
    let connecting = communicator.connect(config, peer, 1).unwrap();
    let memory = communicator.recv_memory(peer, 0).unwrap().get_by(soon());
    let connection = connecting.get_by(soon());
    for error in [
        memory.map(drop).unwrap_err(),
        connection.map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("another host"), "{error}");
    }
    bootstrap.barrier().unwrap();
}
