// SPDX-License-Identifier: MIT
//! What most tests stand on: a communicator, a proxy service, and channels to peers.

use std::ops::Range as Bytes;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use mscclpp_bootstrap::{Bootstrap, Deadline};
use mscclpp_port::{
    BasePortChannel, Buffer, Communicator, Connection, EndpointConfig, Error, MemoryId,
    MemoryOptions, PortChannel, ProxyService, RegisteredMemory, SemaphoreId,
};
use mscclpp_softnic as softnic;

use crate::backend::{Backend, Setup};
use crate::harness::Context;
use crate::kernels::Range;

/// A rank's own communicator and service. Fields drop in any order.
pub struct Fixture<'a> {
    /// The test.
    pub context: &'a Context,
    /// The row that the test runs on.
    pub backend: &'static Backend,
    /// Joined by all ranks of the test.
    pub communicator: Communicator,
    /// Its proxy runs unless kernels post themselves.
    pub service: ProxyService,
    /// What this rank's end of a connection is to be.
    pub endpoint: EndpointConfig,
    /// The NIC in software that carries out kernels' posts.
    pub nic: Option<softnic::Device>,
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
    /// Joins, and starts a proxy if the backend has one. A NIC in software is strict.
    pub fn new(context: &'a Context, backend: &'static Backend) -> anyhow::Result<Self> {
        Self::with(context, backend, &Setup::strict())
    }

    /// The same with what a GPU-initiated backend is to be like.
    pub fn with(
        context: &'a Context,
        backend: &'static Backend,
        setup: &Setup,
    ) -> anyhow::Result<Self> {
        context.stage("join a communicator");
        Self::over(context, backend, setup, context.bootstrap()?)
    }

    /// The same over a bootstrap that has been joined.
    pub fn over(
        context: &'a Context,
        backend: &'static Backend,
        setup: &Setup,
        bootstrap: Arc<dyn Bootstrap>,
    ) -> anyhow::Result<Self> {
        let endpoint = backend.endpoint(bootstrap.rank(), setup);
        let (communicator, nic) = backend.communicator(bootstrap, setup)?;
        let service = ProxyService::with_default_size()?;
        if !backend.posts_to_queue() {
            service.start_proxy()?;
        }
        Ok(Self {
            context,
            backend,
            communicator,
            service,
            endpoint,
            nic,
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
        self.register_range(buffer, 0..buffer.len())
    }

    /// A part of a buffer, registered for the backend's transport.
    pub fn register_range(
        &self,
        buffer: &Buffer,
        range: Bytes<u64>,
    ) -> anyhow::Result<RegisteredMemory> {
        let options = MemoryOptions {
            transports: self.endpoint.transport.into(),
            ..MemoryOptions::default()
        };
        let communicator = &self.communicator;
        Ok(communicator.register_memory_with(buffer, range, options)?)
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
        // The local half of everything first: no rank waits for another that waits for it.
        let mut pending = Vec::new();
        for &peer in peers {
            let connection = self.communicator.connect(self.endpoint, peer, tag)?;
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

    /// Waits until all ranks of the test are here: what the test stands on may go then. Fails if
    /// this rank's NIC in software saw a poster break a rule.
    pub fn meet(&self) -> anyhow::Result<()> {
        self.context.stage("meet");
        self.communicator.bootstrap().barrier()?;
        self.nic.as_ref().map_or(Ok(()), no_violations)
    }
}

/// Whether an error is the peer's word that its NIC refused a request. A host has that where its own NIC's
/// error, which says more, does not come in time.
pub fn has_refused(error: &Error, peer: usize) -> bool {
    let Error::PeerFailed { rank, reason } = error else {
        return false;
    };
    *rank == Some(peer) && reason == "it refused a request"
}

/// Fails if a NIC in software saw a poster break a rule.
pub fn no_violations(nic: &softnic::Device) -> anyhow::Result<()> {
    let violations = nic.take_violations();
    let first: Vec<String> = (violations.iter().take(3))
        .map(ToString::to_string)
        .collect();
    ensure!(
        violations.is_empty(),
        "the NIC saw {} violations: {}",
        violations.len(),
        first.join("; ")
    );
    Ok(())
}

/// The sticky error of a connection. Its host may learn a moment later than its kernels.
pub fn error_of(connection: &Connection) -> anyhow::Result<Error> {
    /// Far above what it takes.
    const LATEST: Duration = Duration::from_secs(5);
    let deadline = Deadline::after(LATEST);
    loop {
        if let Some(error) = connection.status() {
            return Ok(error);
        }
        ensure!(!deadline.expired(), "no error on the host");
        thread::sleep(Duration::from_millis(1));
    }
}
