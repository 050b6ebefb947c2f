// SPDX-License-Identifier: MIT
//! Writes over connections, with and without semaphores.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use mscclpp_port::{
    BasePortChannel, Buffer, Connection, EndpointConfig, Host2HostSemaphore, MemoryId,
    RegisteredMemory, Status, TransportKind,
};
use tempfile::TempDir;

use super::file_bootstrap::FileBootstrap;
use crate::backend::{Backend, Executor, Setup};
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Range, Steps};

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
    if !backend.posts_to_queue() {
        add("WriteWithHostSemaphores", host);
    }
    add("WriteToSelf", to_self);
    add("OverUserBootstrap", over_user);
}

/// A connection, and who writes over it: the host, or a kernel where only kernels can.
struct Pipe {
    peer: usize,
    connection: Connection,
    channel: Option<BasePortChannel>,
}

impl Pipe {
    /// The channel is made where kernels post; the peer does the same.
    fn new(fixture: &Fixture<'_>, peer: usize, connection: Connection) -> anyhow::Result<Self> {
        let channel = if fixture.backend.posts_to_queue() {
            let service = &fixture.service;
            let id = service.build_and_add_semaphore(&fixture.communicator, &connection)?;
            Some(service.base_port_channel(id)?)
        } else {
            None
        };
        Ok(Self {
            peer,
            connection,
            channel,
        })
    }

    fn write(&self, context: &Context, from: &Memory, to: &Memory, range: Bytes) -> TestResult {
        let Bytes {
            dst_offset,
            src_offset,
            size,
        } = range;
        let Some(channel) = &self.channel else {
            let (to, from) = (&to.memory, &from.memory);
            return Ok((self.connection).write(to, dst_offset, from, src_offset, size)?);
        };
        let put = Call::Put(Range {
            dst: to.id,
            dst_offset,
            src: from.id,
            src_offset,
            size,
        });
        let channels = std::slice::from_ref(channel);
        Steps::run(channels, &[(0, put)], context.deadline())
    }

    fn flush(&self, context: &Context) -> TestResult {
        match &self.channel {
            None => Ok(self.connection.flush(context.deadline())?),
            Some(channel) => {
                let channels = std::slice::from_ref(channel);
                Steps::run(channels, &[(0, Call::Flush)], context.deadline())
            }
        }
    }
}

struct Bytes {
    dst_offset: u64,
    src_offset: u64,
    size: u64,
}

/// A memory, and its id in the service.
struct Memory {
    memory: RegisteredMemory,
    id: MemoryId,
}

impl Memory {
    fn new(fixture: &Fixture<'_>, memory: RegisteredMemory) -> anyhow::Result<Self> {
        let id = fixture.service.add_memory(memory.clone())?;
        Ok(Self { memory, id })
    }
}

/// Buffers with a slice a rank; every rank writes its own slice to all others.
struct Slices {
    buffers: Vec<Buffer>,
    local: Vec<Memory>,
    /// By buffer, then by peer in the order of [`Slices::pipes`].
    remote: Vec<Vec<Memory>>,
    pipes: Vec<Pipe>,
    slice: u64,
    rank: usize,
}

const BUFFERS: usize = 10;
const BUFFER_BYTES: u64 = 1 << 20;
const TAG: u32 = 0;

impl Slices {
    fn new(fixture: &Fixture<'_>) -> anyhow::Result<Self> {
        let communicator = &fixture.communicator;
        let bootstrap = communicator.bootstrap();
        let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
        let peers = fixture.peers();
        let mut pending = Vec::new();
        for &peer in &peers {
            pending.push((peer, communicator.connect(fixture.endpoint, peer, TAG)?));
        }
        let mut slices = Self {
            buffers: Vec::new(),
            local: Vec::new(),
            remote: Vec::new(),
            pipes: Vec::new(),
            slice: BUFFER_BYTES / world as u64 / 8 * 8,
            rank,
        };
        let mut coming = Vec::new();
        for _ in 0..BUFFERS {
            let buffer = fixture.buffer(BUFFER_BYTES)?;
            let memory = fixture.register(&buffer)?;
            let mut from = Vec::new();
            for &peer in &peers {
                communicator.send_memory(&memory, peer, TAG)?;
                from.push(communicator.recv_memory(peer, TAG)?);
            }
            slices.buffers.push(buffer);
            slices.local.push(Memory::new(fixture, memory)?);
            coming.push(from);
        }
        for (peer, connection) in pending {
            slices
                .pipes
                .push(Pipe::new(fixture, peer, connection.get()?)?);
        }
        for from in coming {
            let memories: anyhow::Result<_> = (from.iter())
                .map(|memory| Memory::new(fixture, memory.get()?))
                .collect();
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
    fn write(&self, context: &Context, peer: usize) -> anyhow::Result<()> {
        let offset = self.rank as u64 * self.slice;
        for (b, buffer) in self.buffers.iter().enumerate() {
            buffer.write(offset, &self.expected(self.rank, b))?;
            let range = Bytes {
                dst_offset: offset,
                src_offset: offset,
                size: self.slice,
            };
            self.pipes[peer].write(context, &self.local[b], &self.remote[b][peer], range)?;
        }
        Ok(())
    }

    /// The first slice that does not hold what its rank writes.
    fn difference(&self) -> anyhow::Result<Option<String>> {
        for (b, buffer) in self.buffers.iter().enumerate() {
            for rank in 0..=self.pipes.len() {
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
    write_and_poll(&Fixture::new(context, backend)?)
}

fn write_and_poll(fixture: &Fixture<'_>) -> TestResult {
    let context = fixture.context;
    let slices = Slices::new(fixture)?;
    for peer in 0..slices.pipes.len() {
        slices.write(context, peer)?;
    }
    context.stage("flush");
    for pipe in &slices.pipes {
        pipe.flush(context)?;
    }
    context.stage("poll until all slices are there");
    while let Some(difference) = slices.difference()? {
        ensure!(!context.deadline().expired(), "still missing: {difference}");
        thread::sleep(Duration::from_millis(1));
    }
    fixture.meet()
}

/// The peer's kernel waits for the signal behind the writes; nothing polls the data.
fn device(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let slices = Slices::new(&fixture)?;
    let mut channels = Vec::new();
    for pipe in &slices.pipes {
        channels.push(match &pipe.channel {
            Some(channel) => channel.clone(),
            None => {
                let service = &fixture.service;
                let connection = &pipe.connection;
                let id = service.build_and_add_semaphore(&fixture.communicator, connection)?;
                service.base_port_channel(id)?
            }
        });
    }
    let waits: Vec<_> = (0..channels.len())
        .map(|channel| (channel, Call::Wait))
        .collect();
    let kernel = Steps::launch(&channels, &waits)?;
    for (peer, channel) in channels.iter().enumerate() {
        slices.write(context, peer)?;
        if backend.posts_to_queue() {
            Steps::run(&channels, &[(peer, Call::Signal)], context.deadline())?;
        } else {
            channel.semaphore().signal()?;
        }
    }
    context.stage("kernel waits for a signal of each peer");
    for (done, pipe) in kernel.finish(context.deadline())?.iter().zip(&slices.pipes) {
        ensure!(
            done.status()? == Status::Ok,
            "waiting for rank {}: {:?}",
            pipe.peer,
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
    let fixture = Fixture::new(context, backend)?;
    let communicator = &fixture.communicator;
    let slices = Slices::new(&fixture)?;
    // The host waits on memory of its own: where the device is a GPU, over connections of its own,
    // behind what was flushed.
    let apart = match backend.executor {
        Executor::Host => None,
        Executor::Cuda => Some(EndpointConfig::new(TransportKind::Ethernet)),
    };
    let mut connections = Vec::new();
    for pipe in &slices.pipes {
        connections.push(match apart {
            None => None,
            Some(endpoint) => Some(communicator.connect(endpoint, pipe.peer, TAG + 1)?),
        });
    }
    let mut pending = Vec::new();
    for (pipe, connection) in slices.pipes.iter().zip(connections) {
        let connection = match connection {
            None => pipe.connection.clone(),
            Some(connection) => connection.get()?,
        };
        pending.push(communicator.build_semaphore(&connection, pipe.peer, TAG)?);
    }
    let mut semaphores = Vec::new();
    for semaphore in pending {
        semaphores.push(Host2HostSemaphore::new(semaphore.get()?)?);
    }
    for (peer, semaphore) in semaphores.iter().enumerate() {
        slices.write(context, peer)?;
        if apart.is_some() {
            slices.pipes[peer].flush(context)?;
        }
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
    fixture.meet()
}

/// A rank is its own peer: memory, connection and writes.
fn to_self(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let communicator = &fixture.communicator;
    let me = context.rank();
    let connection = communicator.connect(fixture.endpoint, me, TAG)?.get()?;
    let buffer = fixture.buffer(128)?;
    let memory = fixture.register(&buffer)?;
    communicator.send_memory(&memory, me, TAG)?;
    let remote = communicator.recv_memory(me, TAG)?.get()?;
    ensure!(remote.size() == 128, "size {}", remote.size());
    buffer.write(0, &[7; 64])?;
    let pipe = Pipe::new(&fixture, me, connection)?;
    let (from, to) = (
        Memory::new(&fixture, memory)?,
        Memory::new(&fixture, remote)?,
    );
    let range = Bytes {
        dst_offset: 64,
        src_offset: 0,
        size: 64,
    };
    pipe.write(context, &from, &to, range)?;
    pipe.flush(context)?;
    let mut half = [0; 64];
    buffer.read(64, &mut half)?;
    ensure!(half == [7; 64], "found {half:?}");
    fixture.meet()
}

fn over_user(context: &Context, backend: &'static Backend) -> TestResult {
    let directory = TempDir::new()?;
    let path = context
        .exchange(directory.path().to_owned())?
        .swap_remove(0);
    let bootstrap = FileBootstrap::new(path, context.rank(), context.ranks());
    let setup = Setup::default();
    write_and_poll(&Fixture::over(
        context,
        backend,
        &setup,
        Arc::new(bootstrap),
    )?)?;
    // The directory is rank 0's: it goes when all are done with it.
    context.meet()
}
