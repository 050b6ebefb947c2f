// SPDX-License-Identifier: MIT
//! The two ways to an acceptor, so that what holds of links is tested on both.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use mscclpp_bootstrap::link::{self, Acceptor, LinkId, LinkKey};
use mscclpp_bootstrap::{BootstrapError, Deadline};

use crate::body::{LOCALHOST, secs};

/// Ends an expectation: waits for its connection.
pub(crate) type Accept<S> = Box<dyn FnOnce(Deadline) -> Result<S, BootstrapError> + Send>;

/// Each test on both ways.
#[macro_export]
macro_rules! on_both_ways {
    ($($name:ident)*) => {
        mod tcp {
            $(
                #[test]
                fn $name() {
                    super::$name::<$crate::ways::Tcp>();
                }
            )*
        }
        #[cfg(target_os = "linux")]
        mod unix {
            $(
                #[test]
                fn $name() {
                    super::$name::<$crate::ways::Unix>();
                }
            )*
        }
    };
}

/// How peers come.
pub(crate) trait Way: 'static {
    type Address: Copy + PartialEq + Send + 'static;
    type Stream: Read + Write + Send + 'static;
    type Listener: Send + 'static;

    /// Whether the error of an address where nobody listens says that it has to be of this host.
    const NAMES_THE_HOST: bool;

    fn address(acceptor: &Acceptor) -> Self::Address;
    fn expect(acceptor: &Acceptor, id: LinkId, key: LinkKey) -> Accept<Self::Stream>;
    fn connect(
        to: Self::Address,
        id: LinkId,
        key: &LinkKey,
        deadline: Deadline,
    ) -> Result<Self::Stream, BootstrapError>;

    /// A connection without a proof.
    fn dial(to: Self::Address) -> io::Result<Self::Stream>;
    /// Somebody else's listener, at an address of its own.
    fn foreign() -> (Self::Listener, Self::Address);
    fn accept(listener: &Self::Listener) -> Self::Stream;
    fn set_read_timeout(stream: &Self::Stream, timeout: Duration) -> io::Result<()>;
    fn timeouts(stream: &Self::Stream) -> [Option<Duration>; 2];
}

pub(crate) struct Tcp;

impl Way for Tcp {
    type Address = SocketAddr;
    type Stream = TcpStream;
    type Listener = TcpListener;

    const NAMES_THE_HOST: bool = false;

    fn address(acceptor: &Acceptor) -> SocketAddr {
        acceptor.local_addr()
    }

    fn expect(acceptor: &Acceptor, id: LinkId, key: LinkKey) -> Accept<TcpStream> {
        let expected = acceptor.expect(id, key);
        Box::new(|deadline| expected.accept(deadline))
    }

    fn connect(
        to: SocketAddr,
        id: LinkId,
        key: &LinkKey,
        deadline: Deadline,
    ) -> Result<TcpStream, BootstrapError> {
        link::connect(to, id, key, deadline)
    }

    fn dial(to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect_timeout(&to, secs(2))
    }

    fn foreign() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn accept(listener: &TcpListener) -> TcpStream {
        listener.accept().unwrap().0
    }

    fn set_read_timeout(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
        stream.set_read_timeout(Some(timeout))
    }

    fn timeouts(stream: &TcpStream) -> [Option<Duration>; 2] {
        [
            stream.read_timeout().unwrap(),
            stream.write_timeout().unwrap(),
        ]
    }
}

#[cfg(target_os = "linux")]
pub(crate) use unix::Unix;

#[cfg(target_os = "linux")]
mod unix {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use mscclpp_bootstrap::link::UnixAddress;

    use super::*;

    pub(crate) struct Unix;

    fn named(address: UnixAddress) -> SocketAddr {
        SocketAddr::from_abstract_name(address.to_string()).unwrap()
    }

    impl Way for Unix {
        type Address = UnixAddress;
        type Stream = UnixStream;
        type Listener = UnixListener;

        const NAMES_THE_HOST: bool = true;

        fn address(acceptor: &Acceptor) -> UnixAddress {
            acceptor.unix_address().unwrap()
        }

        fn expect(acceptor: &Acceptor, id: LinkId, key: LinkKey) -> Accept<UnixStream> {
            let expected = acceptor.expect_unix(id, key).unwrap();
            Box::new(|deadline| expected.accept(deadline))
        }

        fn connect(
            to: UnixAddress,
            id: LinkId,
            key: &LinkKey,
            deadline: Deadline,
        ) -> Result<UnixStream, BootstrapError> {
            link::connect_unix(to, id, key, deadline)
        }

        fn dial(to: UnixAddress) -> io::Result<UnixStream> {
            UnixStream::connect_addr(&named(to))
        }

        fn foreign() -> (UnixListener, UnixAddress) {
            let address = UnixAddress::from_bytes(LinkId::random().unwrap().to_bytes());
            (UnixListener::bind_addr(&named(address)).unwrap(), address)
        }

        fn accept(listener: &UnixListener) -> UnixStream {
            listener.accept().unwrap().0
        }

        fn set_read_timeout(stream: &UnixStream, timeout: Duration) -> io::Result<()> {
            stream.set_read_timeout(Some(timeout))
        }

        fn timeouts(stream: &UnixStream) -> [Option<Duration>; 2] {
            [
                stream.read_timeout().unwrap(),
                stream.write_timeout().unwrap(),
            ]
        }
    }
}

/// What one stranger does; the connection is held until it is dropped.
pub(crate) fn stranger<W: Way>(kind: usize, to: W::Address) -> Option<W::Stream> {
    let mut stream = W::dial(to).ok()?;
    let hello: Vec<u8> = b"MSCCLPPH\x01\0\0\0"
        .iter()
        .copied()
        .chain([0; 60])
        .collect();
    // A stranger that is dropped sees errors; that is what this is about.
    let _ = match kind % 6 {
        0 => Ok(()),
        1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
        2 => stream.write_all(&hello[..30]),
        3 => stream.write_all(&hello),
        4 => stream.write_all(&[0xff; 4096]),
        _ => {
            // A hello and a proof made of nothing.
            let mut answer = [0; 44];
            stream
                .write_all(&hello)
                .and_then(|()| W::set_read_timeout(&stream, secs(1)))
                .and_then(|()| stream.read_exact(&mut answer))
                .and_then(|()| stream.write_all(&[1; 32]))
        }
    };
    Some(stream)
}
