// SPDX-License-Identifier: MIT
//! The two kinds of streams that links are made of.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream as StdTcp};
use std::os::unix::net::UnixStream as StdUnix;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::BootstrapError;
use crate::secret::random;

/// Where an [`Acceptor`](super::Acceptor) takes connections of processes on its
/// own host: the name of a Unix socket in Linux' abstract namespace. Random, and
/// gone with the acceptor; nothing is left in a file system. Seen by processes of
/// the same network namespace only: not across hosts, nor between containers that
/// have networks of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UnixAddress([u8; 16]);

impl UnixAddress {
    pub(super) fn random() -> Result<Self, BootstrapError> {
        random().map(Self)
    }

    /// The address with the given bytes, as [`UnixAddress::to_bytes`] gave them
    /// elsewhere.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, for the other end.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// As the socket is called: a name that begins with a zero is in no file
    /// system.
    pub(super) fn name(self) -> String {
        format!("\0{self}")
    }
}

impl fmt::Display for UnixAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mscclpp-link-")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for UnixAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnixAddress({self})")
    }
}

/// Where somebody listens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Unix(UnixAddress),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(address) => write!(f, "the Unix socket @{address}"),
        }
    }
}

impl Place {
    /// Why nobody could be reached there.
    pub(super) fn hint(self, error: &io::Error) -> String {
        match self {
            Self::Unix(_) if error.kind() == io::ErrorKind::ConnectionRefused => format!(
                "connecting: {error}; is it a process of this host, in the same network namespace?"
            ),
            _ => format!("connecting: {error}"),
        }
    }
}

/// Where a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    Tcp(SocketAddr),
    SameHost,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::SameHost => f.write_str("a process of this host"),
        }
    }
}

impl Origin {
    /// The address that it came from; processes of this host have none.
    pub(super) fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::SameHost => None,
        }
    }
}

/// Accepts streams, in a task.
pub(crate) trait Listener: Send + 'static {
    type Stream: Wire;

    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Origin)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<(TcpStream, Origin)> {
        let (stream, from) = self.accept().await?;
        Ok((stream, Origin::Tcp(from)))
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<(UnixStream, Origin)> {
        let (stream, _) = self.accept().await?;
        Ok((stream, Origin::SameHost))
    }
}

/// A stream in a task.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The same stream outside of tasks.
    type Blocking: Blocking;

    fn send_at_once(&self) -> io::Result<()>;

    fn into_blocking(self) -> io::Result<Self::Blocking>;
}

impl Wire for TcpStream {
    type Blocking = StdTcp;

    fn send_at_once(&self) -> io::Result<()> {
        self.set_nodelay(true)
    }

    fn into_blocking(self) -> io::Result<StdTcp> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

impl Wire for UnixStream {
    type Blocking = StdUnix;

    fn send_at_once(&self) -> io::Result<()> {
        Ok(())
    }

    fn into_blocking(self) -> io::Result<StdUnix> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

/// A stream outside of tasks.
pub(crate) trait Blocking: Read + Write + Send + Sized + 'static {
    fn send_at_once(&self) -> io::Result<()>;

    fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()>;
}

impl Blocking for StdTcp {
    fn send_at_once(&self) -> io::Result<()> {
        self.set_nodelay(true)
    }

    fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }
}

impl Blocking for StdUnix {
    fn send_at_once(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }
}
