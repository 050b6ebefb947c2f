// SPDX-License-Identifier: MIT
//! The same bytes without channels: by plain TCP, blocking sockets between the same two processes, or
//! between GPUs by plain copies.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
#[cfg(feature = "cuda")]
use mscclpp_port::TransportKind;

#[cfg(feature = "cuda")]
use super::peer_copy::PeerCopy;
#[cfg(feature = "cuda")]
use crate::backend::Executor;
use crate::fixture::Fixture;
use crate::harness::Context;

/// What moves the same bytes as a backend.
pub(super) enum Reference {
    /// For backends that have nothing faster at hand.
    Tcp(Tcp),
    /// For backends that can copy from GPU to GPU.
    #[cfg(feature = "cuda")]
    PeerCopy(PeerCopy),
}

impl Reference {
    /// What is held against a backend, with room for messages of `bytes`. Both ranks call it.
    pub(super) fn of(fixture: &Fixture<'_>, bytes: u64) -> anyhow::Result<Self> {
        #[cfg(feature = "cuda")]
        if fixture.backend.executor == Executor::Cuda
            && fixture.endpoint.transport != TransportKind::Ethernet
        {
            let gpus = [0, 1].map(fixture.backend.device);
            return Ok(Self::PeerCopy(PeerCopy::new(fixture.context, gpus, bytes)?));
        }
        let ip = fixture.communicator.bootstrap().local_ip();
        Ok(Self::Tcp(Tcp::new(fixture.context, ip, bytes)?))
    }

    /// As the report names it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "plain TCP",
            #[cfg(feature = "cuda")]
            Self::PeerCopy(_) => PeerCopy::NAME,
        }
    }

    /// `bytes` from rank 0 to rank 1 and back, so often, each way when the other is done.
    pub(super) fn echo(&mut self, bytes: u64, iterations: u64) -> anyhow::Result<Duration> {
        match self {
            Self::Tcp(tcp) => tcp.echo(bytes, iterations),
            #[cfg(feature = "cuda")]
            Self::PeerCopy(copy) => copy.echo(bytes, iterations),
        }
    }

    /// `bytes` from rank 0 to rank 1, so often.
    pub(super) fn stream(&mut self, bytes: u64, iterations: u64) -> anyhow::Result<Duration> {
        match self {
            Self::Tcp(tcp) => tcp.stream(bytes, iterations),
            #[cfg(feature = "cuda")]
            Self::PeerCopy(copy) => copy.stream(bytes, iterations),
        }
    }

    /// `bytes` each way, so often, at the same time.
    pub(super) fn duplex(&mut self, bytes: u64, iterations: u64) -> anyhow::Result<Duration> {
        match self {
            Self::Tcp(tcp) => tcp.duplex(bytes, iterations),
            #[cfg(feature = "cuda")]
            Self::PeerCopy(copy) => copy.duplex(bytes, iterations),
        }
    }
}

/// No reference takes longer between two bytes.
const STALL: Duration = Duration::from_secs(60);

/// A connection between ranks 0 and 1.
pub(super) struct Tcp {
    rank: usize,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Tcp {
    /// Connects ranks 0 and 1, which both call it, with room for messages of `bytes`.
    fn new(context: &Context, ip: Option<IpAddr>, bytes: u64) -> anyhow::Result<Self> {
        let stream = if context.rank() == 0 {
            let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let listener = TcpListener::bind((ip, 0))?;
            context.exchange(Some(listener.local_addr()?))?;
            listener.accept()?.0
        } else {
            let address = context.exchange(None)?[0].context("rank 0 listens")?;
            TcpStream::connect::<std::net::SocketAddr>(address)?
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL))?;
        stream.set_write_timeout(Some(STALL))?;
        Ok(Self {
            rank: context.rank(),
            stream,
            buffer: vec![1; bytes as usize],
        })
    }

    /// Rank 0 sends `bytes` and gets them back, so often.
    fn echo(&mut self, bytes: u64, iterations: u64) -> anyhow::Result<Duration> {
        let buffer = &mut self.buffer[..bytes as usize];
        let start = Instant::now();
        for _ in 0..iterations {
            if self.rank == 0 {
                self.stream.write_all(buffer)?;
                self.stream.read_exact(buffer)?;
            } else {
                self.stream.read_exact(buffer)?;
                self.stream.write_all(buffer)?;
            }
        }
        Ok(start.elapsed())
    }

    /// Rank 0 sends `bytes` so often; the time ends when rank 1 says that it has all.
    fn stream(&mut self, bytes: u64, iterations: u64) -> anyhow::Result<Duration> {
        let buffer = &mut self.buffer[..bytes as usize];
        let start = Instant::now();
        for _ in 0..iterations {
            if self.rank == 0 {
                self.stream.write_all(buffer)?;
            } else {
                self.stream.read_exact(buffer)?;
            }
        }
        if self.rank == 0 {
            self.stream.read_exact(&mut [0])?;
        } else {
            self.stream.write_all(&[1])?;
        }
        Ok(start.elapsed())
    }

    /// Both ranks send `bytes` so often at the same time, each with a thread of its own.
    fn duplex(&mut self, bytes: u64, iterations: u64) -> anyhow::Result<Duration> {
        let mut writer = self.stream.try_clone()?;
        let out = vec![1; bytes as usize];
        let buffer = &mut self.buffer[..bytes as usize];
        let start = Instant::now();
        thread::scope(|scope| {
            let sending =
                scope.spawn(move || (0..iterations).try_for_each(|_| writer.write_all(&out)));
            for _ in 0..iterations {
                self.stream.read_exact(buffer)?;
            }
            sending
                .join()
                .map_err(|_| anyhow::anyhow!("the sending thread panicked"))??;
            anyhow::Ok(())
        })?;
        Ok(start.elapsed())
    }
}
