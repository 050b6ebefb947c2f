// SPDX-License-Identifier: MIT
//! Options of the sockets that ranks use.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::BootstrapError;

/// Connections that wait for `accept`. A whole job may arrive at once; the system
/// cuts this down to what it allows.
const BACKLOG: i32 = 16384;

/// An idle connection is probed after this time without traffic,
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);
/// then this often,
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
/// and is broken after this many probes without an answer.
const KEEPALIVE_PROBES: u32 = 5;
/// Sent bytes that nobody acknowledges break a connection after this time. Longer
/// than the probes, because a stopped process (a debugger) stops reading too.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// A listener in non-blocking mode, and where it listens.
pub(crate) fn listen(at: SocketAddr) -> Result<(TcpListener, SocketAddr), BootstrapError> {
    let bind = || {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        // Lets a port be used again at once after its connections were closed;
        // it does not let two listeners share one.
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from(socket);
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bind().map_err(|source: io::Error| BootstrapError::Io {
        operation: format!("listening at {at}"),
        hint: match source.kind() {
            io::ErrorKind::AddrInUse => {
                "another process listens there: choose another port, unless it is a second rank 0"
                    .into()
            }
            io::ErrorKind::AddrNotAvailable => {
                "it is no address of this machine; is rank 0 started on the right one?".into()
            }
            _ => String::new(),
        },
        source,
    })
}

/// A listener in non-blocking mode at a Unix socket of this name.
pub(crate) fn listen_unix(name: &str) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(name)?)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// A connection to the Unix socket of this name, in blocking mode.
pub(crate) fn connect_unix(name: &str, timeout: Duration) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // While the listener's queue is full, connecting blocks like a write.
    socket.set_write_timeout(Some(timeout))?;
    match socket.connect(&SockAddr::unix(name)?) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::ErrorKind::TimedOut.into())
        }
        done => done.map(|()| socket.into()),
    }
}

/// Prepares a connection between two ranks: small messages go out at once, and a
/// peer that vanishes without a word is noticed after about ten seconds.
pub(crate) fn prepare(stream: &tokio::net::TcpStream) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_EVERY)
            .with_retries(KEEPALIVE_PROBES),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(())
}
