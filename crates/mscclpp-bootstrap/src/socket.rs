// SPDX-License-Identifier: MIT
//! Options of the sockets that ranks use.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

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
    bind().map_err(|source: std::io::Error| BootstrapError::Io {
        operation: format!("listening at {at}"),
        hint: match source.kind() {
            std::io::ErrorKind::AddrInUse => {
                "another process listens there; choose another port".into()
            }
            std::io::ErrorKind::AddrNotAvailable => {
                "it is no address of this machine; is rank 0 started on the right one?".into()
            }
            _ => String::new(),
        },
        source,
    })
}

/// Prepares a connection between two ranks: small messages go out at once, and a
/// peer that vanishes without a word is noticed after about ten seconds.
pub(crate) fn prepare(stream: &tokio::net::TcpStream) -> std::io::Result<()> {
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
