// SPDX-License-Identifier: MIT
//! Writes over connections, with and without semaphores.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use mscclpp_port::{
    Buffer, Communicator, Connection, Host2HostSemaphore, RegisteredMemory, Status,
};
use tempfile::TempDir;

use super::file_bootstrap::FileBootstrap;
use crate::backend::Backend;
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let mut add = |test: &str, body: fn(&Context, &'static Backend) -> TestResult| {
        registry
            .add_on(
                backend,
                format!("CommunicatorTest.{test}{}", backend.suffix),
                body,
            )
            .ranks(2, usize::MAX);
    };
    add("BasicWrite", basic_write);
    add("WriteWithDeviceSemaphores", device);
    add("WriteWithHostSemaphores", host);
    add("WriteToSelf", to_self);
    add("OverUserBootstrap", over_user);
}

/// Buffers with a slice a rank; every rank writes its own slice to all others.
struct Slices {
    buffers: Vec<Buffer>,
    local: Vec<RegisteredMemory>,
    /// By buffer, then by peer in the order of [`Slices::connections`].
    remote: Vec<Vec<RegisteredMemory>>,
    connections: Vec<(usize, Connection)>,
    slice: u64,
    rank: usize,
}

const BUFFERS: usize = 10;
const BUFFER_BYTES: u64 = 1 << 20;
const TAG: u32 = 0;

impl Slices {
    fn new(communicator: &Communicator, backend: &Backend) -> anyhow::Result<Self> {
        let bootstrap = communicator.bootstrap();
        let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
        let peers: Vec<usize> = (0..world).filter(|peer| *peer != rank).collect();
        let mut pending = Vec::new();
        for &peer in &peers {
            pending.push((
                peer,
                communicator.connect(backend.endpoint(rank), peer, TAG)?,
            ));
        }
        let mut slices = Self {
            buffers: Vec::new(),
            local: Vec::new(),
            remote: Vec::new(),
            connections: Vec::new(),
            slice: BUFFER_BYTES / world as u64 / 8 * 8,
            rank,
        };
        let mut coming = Vec::new();
        for _ in 0..BUFFERS {
            let buffer = Buffer::new((backend.device)(rank), BUFFER_BYTES)?;
            let memory = communicator.register_memory(&buffer, 0..BUFFER_BYTES)?;
            let mut from = Vec::new();
            for &peer in &peers {
                communicator.send_memory(&memory, peer, TAG)?;
                from.push(communicator.recv_memory(peer, TAG)?);
            }
            slices.buffers.push(buffer);
            slices.local.push(memory);
            coming.push(from);
        }
        for (peer, connection) in pending {
            slices.connections.push((peer, connection.get()?));
        }
        for from in coming {
            let memories: Result<_, _> = from.iter().map(|memory| memory.get()).collect();
            slices.remote.push(memories?);
        }
        Ok(slices)
    }

    fn value(rank: usize, buffer: usize, index: usize) -> u64 {
        (rank as u64 + 1) << 40 | (buffer as u64) << 32 | index as u64
    }

    fn expected(&self, rank: usize, buffer: usize) -> Vec<u8> {
        (0..self.slice as usize / 8)
            .flat_map(|i| Self::value(rank, buffer, i).to_le_bytes())
            .collect()
    }

    /// Fills the own slices, and writes them to the peer with this index.
    fn write(&self, peer: usize) -> anyhow::Result<()> {
        let offset = self.rank as u64 * self.slice;
        for (b, buffer) in self.buffers.iter().enumerate() {
            buffer.write(offset, &self.expected(self.rank, b))?;
            let (_, connection) = &self.connections[peer];
            connection.write(
                &self.remote[b][peer],
                offset,
                &self.local[b],
                offset,
                self.slice,
            )?;
        }
        Ok(())
    }

    /// The first slice that does not hold what its rank writes.
    fn difference(&self) -> anyhow::Result<Option<String>> {
        for (b, buffer) in self.buffers.iter().enumerate() {
            for rank in 0..=self.connections.len() {
                let mut found = vec![0; self.slice as usize];
                buffer.read(rank as u64 * self.slice, &mut found)?;
                let expected = self.expected(rank, b);
                if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
                    return Ok(Some(format!("buffer {b}, slice of rank {rank}, byte {at}")));
                }
            }
        }
        Ok(None)
    }
}

fn basic_write(context: &Context, backend: &'static Backend) -> TestResult {
    write_and_poll(context, &context.communicator()?, backend)
}

fn write_and_poll(context: &Context, communicator: &Communicator, backend: &Backend) -> TestResult {
    let slices = Slices::new(communicator, backend)?;
    for peer in 0..slices.connections.len() {
        slices.write(peer)?;
    }
    context.stage("flush");
    for (_, connection) in &slices.connections {
        connection.flush(context.deadline())?;
    }
    context.stage("poll until all slices are there");
    while let Some(difference) = slices.difference()? {
        ensure!(!context.deadline().expired(), "still missing: {difference}");
        thread::sleep(Duration::from_millis(1));
    }
    context.stage("meet");
    Ok(communicator.bootstrap().barrier()?)
}

/// The peer's kernel waits for the signal behind the writes; nothing polls the data.
fn device(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let slices = Slices::new(&fixture.communicator, backend)?;
    let mut channels = Vec::new();
    for (_, connection) in &slices.connections {
        let id = fixture
            .service
            .build_and_add_semaphore(&fixture.communicator, connection)?;
        channels.push(fixture.service.base_port_channel(id)?);
    }
    let waits: Vec<_> = (0..channels.len())
        .map(|channel| (channel, Call::Wait))
        .collect();
    let kernel = Steps::launch(&channels, &waits)?;
    for (peer, channel) in channels.iter().enumerate() {
        slices.write(peer)?;
        channel.semaphore().signal()?;
    }
    context.stage("kernel waits for a signal of each peer");
    for (done, (peer, _)) in kernel
        .finish(context.deadline())?
        .iter()
        .zip(&slices.connections)
    {
        ensure!(
            done.status()? == Status::Ok,
            "waiting for rank {peer}: {:?}",
            done.status()
        );
    }
    ensure!(
        slices.difference()?.is_none(),
        "signalled before it was there: {:?}",
        slices.difference()
    );
    fixture.meet()
}

fn host(context: &Context, backend: &'static Backend) -> TestResult {
    let communicator = context.communicator()?;
    let slices = Slices::new(&communicator, backend)?;
    let mut pending = Vec::new();
    for (peer, connection) in &slices.connections {
        pending.push(communicator.build_semaphore(connection, *peer, TAG)?);
    }
    let mut semaphores = Vec::new();
    for semaphore in pending {
        semaphores.push(Host2HostSemaphore::new(semaphore.get()?)?);
    }
    for (peer, semaphore) in semaphores.iter().enumerate() {
        slices.write(peer)?;
        semaphore.signal()?;
    }
    context.stage("wait for a signal of each peer");
    for semaphore in &semaphores {
        semaphore.wait(context.deadline())?;
    }
    ensure!(
        slices.difference()?.is_none(),
        "signalled before it was there: {:?}",
        slices.difference()
    );
    Ok(communicator.bootstrap().barrier()?)
}

/// A rank is its own peer: memory, connection and writes.
fn to_self(context: &Context, backend: &'static Backend) -> TestResult {
    let communicator = context.communicator()?;
    let me = context.rank();
    let connection = communicator.connect(backend.endpoint(me), me, TAG)?.get()?;
    let buffer = Buffer::new((backend.device)(me), 128)?;
    let memory = communicator.register_memory(&buffer, 0..128)?;
    communicator.send_memory(&memory, me, TAG)?;
    let remote = communicator.recv_memory(me, TAG)?.get()?;
    ensure!(remote.size() == 128, "size {}", remote.size());
    buffer.write(0, &[7; 64])?;
    connection.write(&remote, 64, &memory, 0, 64)?;
    connection.flush(context.deadline())?;
    let mut half = [0; 64];
    buffer.read(64, &mut half)?;
    ensure!(half == [7; 64], "found {half:?}");
    Ok(communicator.bootstrap().barrier()?)
}

fn over_user(context: &Context, backend: &'static Backend) -> TestResult {
    let directory = TempDir::new()?;
    let path = context
        .exchange(directory.path().to_owned())?
        .swap_remove(0);
    let bootstrap = FileBootstrap::new(path, context.rank(), context.ranks());
    let communicator = Communicator::new(Arc::new(bootstrap))?;
    write_and_poll(context, &communicator, backend)?;
    // The directory is rank 0's: it goes when all are done with it.
    context.meet()
}
