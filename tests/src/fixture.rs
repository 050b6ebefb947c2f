// SPDX-License-Identifier: MIT
//! What most tests stand on: a communicator, a proxy service, and channels to peers.

use anyhow::Context as _;
use mscclpp_port::{
    BasePortChannel, Buffer, Communicator, Connection, MemoryId, PortChannel, ProxyService,
    RegisteredMemory, SemaphoreId,
};

use crate::backend::Backend;
use crate::harness::Context;
use crate::kernels::Range;

/// A rank's own communicator and running proxy service. Fields drop in any order.
pub struct Fixture<'a> {
    /// The test.
    pub context: &'a Context,
    /// The row that the test runs on.
    pub backend: &'static Backend,
    /// Joined by all ranks of the test.
    pub communicator: Communicator,
    /// Started.
    pub service: ProxyService,
}

/// This rank's end of a channel to one peer, and all that belongs to it.
#[derive(Clone)]
pub struct Link {
    /// The other rank.
    pub peer: usize,
    /// Under the channel.
    pub connection: Connection,
    /// In the service's table.
    pub semaphore: SemaphoreId,
    /// The peer's memory that puts go to.
    pub remote: RegisteredMemory,
    /// Its id in the service.
    pub dst: MemoryId,
    /// Id of this rank's memory that puts come from.
    pub src: MemoryId,
    /// The channel with both memories.
    pub channel: PortChannel,
}

impl Link {
    /// The first bytes of both memories.
    pub fn first(&self, size: u64) -> Range {
        Range::same(self.dst, self.src, 0, size)
    }

    /// The channel without its memories.
    pub fn base(&self) -> BasePortChannel {
        self.channel.base().clone()
    }
}

impl<'a> Fixture<'a> {
    /// Joins, and starts a proxy. Skips where the backend cannot run.
    pub fn new(context: &'a Context, backend: &'static Backend) -> anyhow::Result<Self> {
        context.skip_unless((backend.obstacle)())?;
        Self::over(context, backend, context.communicator()?)
    }

    /// The same over a communicator that is there.
    pub fn over(
        context: &'a Context,
        backend: &'static Backend,
        communicator: Communicator,
    ) -> anyhow::Result<Self> {
        let service = ProxyService::with_default_size()?;
        service.start_proxy()?;
        Ok(Self {
            context,
            backend,
            communicator,
            service,
        })
    }

    /// Zeroed memory of this rank's device.
    pub fn buffer(&self, bytes: u64) -> anyhow::Result<Buffer> {
        Ok(Buffer::new(
            (self.backend.device)(self.context.rank()),
            bytes,
        )?)
    }

    /// The whole of a buffer, registered.
    pub fn register(&self, buffer: &Buffer) -> anyhow::Result<RegisteredMemory> {
        Ok(self.communicator.register_memory(buffer, 0..buffer.len())?)
    }

    /// Every rank of the test but this one.
    pub fn peers(&self) -> Vec<usize> {
        (0..self.context.ranks())
            .filter(|rank| *rank != self.context.rank())
            .collect()
    }

    /// Links to some peers, whose own lists name this rank: puts go from `out` here into `into`
    /// there. Both sides use the same tag.
    pub fn link(
        &self,
        peers: &[usize],
        tag: u32,
        out: &RegisteredMemory,
        into: &RegisteredMemory,
    ) -> anyhow::Result<Vec<Link>> {
        self.context
            .stage(format!("link to {peers:?} with tag {tag}"));
        let endpoint = self.backend.endpoint(self.context.rank());
        // The local half of everything first: no rank waits for another that waits for it.
        let mut pending = Vec::new();
        for &peer in peers {
            let connection = self.communicator.connect(endpoint, peer, tag)?;
            self.communicator.send_memory(into, peer, tag)?;
            pending.push((peer, connection, self.communicator.recv_memory(peer, tag)?));
        }
        let src = self.service.add_memory(out.clone())?;
        // The service keeps what the peers' puts go to: without it they would be refused.
        self.service.add_memory(into.clone())?;
        let mut waiting = Vec::new();
        for (peer, connection, memory) in pending {
            let connection = connection
                .get()
                .with_context(|| format!("connect to {peer}"))?;
            let remote = memory.get().with_context(|| format!("memory of {peer}"))?;
            let semaphore = self.communicator.build_semaphore(&connection, peer, tag)?;
            waiting.push((peer, connection, remote, semaphore));
        }
        let mut links = Vec::new();
        for (peer, connection, remote, semaphore) in waiting {
            let semaphore = semaphore
                .get()
                .with_context(|| format!("semaphore of {peer}"))?;
            let semaphore = self.service.add_semaphore(semaphore)?;
            let dst = self.service.add_memory(remote.clone())?;
            let channel = self.service.port_channel(semaphore, dst, src)?;
            links.push(Link {
                peer,
                connection,
                semaphore,
                remote,
                dst,
                src,
                channel,
            });
        }
        Ok(links)
    }

    /// One link between ranks 0 and 1, which both call it.
    pub fn pair(
        &self,
        tag: u32,
        out: &RegisteredMemory,
        into: &RegisteredMemory,
    ) -> anyhow::Result<Link> {
        let peer = 1 - self.context.rank();
        Ok(self.link(&[peer], tag, out, into)?.swap_remove(0))
    }

    /// As [`Fixture::pair`], with one buffer for both directions.
    pub fn pair_in_place(&self, tag: u32, buffer: &Buffer) -> anyhow::Result<Link> {
        let memory = self.register(buffer)?;
        self.pair(tag, &memory, &memory)
    }

    /// Waits until all ranks of the test are here: what the test stands on may go then.
    pub fn meet(&self) -> anyhow::Result<()> {
        self.context.stage("meet");
        Ok(self.communicator.bootstrap().barrier()?)
    }
}
