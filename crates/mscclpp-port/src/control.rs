// SPDX-License-Identifier: MIT
//! The stream between the two ends of a connection whose data goes past their hosts, from queue to
//! queue or from GPU to GPU: by it they come up together, and each learns at once when the other
//! fails, leaves or dies.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{SockRef, TcpKeepalive};

use crate::arrival::Arrival;
use crate::sync::lock_plain as lock;

/// Where the control stream comes from.
pub(crate) enum Route {
    /// The connection leads to itself.
    Itself,
    /// Both ends are in this context.
    Context(UnixStream),
    /// The other end is in another context.
    Network(Arrival),
}

/// Kind and length.
const HEADER: usize = 3;
/// Longest body.
const MAX_BODY: usize = 1024;

/// What one end tells the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The two HCAs reach each other already.
    Wired,
    /// Expect a stream between the two HCAs under this id, proven with this secret.
    Wire {
        id: [u8; 16],
        secret: [u8; 32],
        /// Over a socket of the host that both are on, not over the network.
        same_host: bool,
    },
    /// The queue is connected (RTS).
    Connected,
    /// The queue has executed a request.
    Tested,
    /// The connection has failed, for this reason.
    Failed(String),
    /// The connection has failed because a request of the other end was refused here.
    Refused,
    /// The connection was dropped.
    Goodbye,
}

impl Message {
    /// Whether it ends the connection.
    fn is_last(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Refused | Self::Goodbye)
    }

    fn encode(&self) -> Vec<u8> {
        let (kind, body): (u8, Vec<u8>) = match self {
            Self::Wired => (1, Vec::new()),
            Self::Wire {
                id,
                secret,
                same_host,
            } => (2, [&id[..], secret, &[u8::from(*same_host)]].concat()),
            Self::Connected => (3, Vec::new()),
            Self::Tested => (4, Vec::new()),
            Self::Failed(reason) => {
                let end = reason.floor_char_boundary(MAX_BODY);
                (5, reason.as_bytes()[..end].to_vec())
            }
            Self::Refused => (6, Vec::new()),
            Self::Goodbye => (7, Vec::new()),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// The first message in `bytes` and its length, once it is whole.
    fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let Some(&[kind, low, high]) = bytes.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let len = usize::from(u16::from_le_bytes([low, high]));
        if len > MAX_BODY {
            return Err("it sent a message that is too long");
        }
        let Some(body) = bytes.get(HEADER..HEADER + len) else {
            return Ok(None);
        };
        let message = match (kind, len) {
            (1, 0) => Self::Wired,
            (2, 49) if body[48] < 2 => {
                let (mut id, mut secret) = ([0; 16], [0; 32]);
                id.copy_from_slice(&body[..16]);
                secret.copy_from_slice(&body[16..48]);
                let same_host = body[48] == 1;
                Self::Wire {
                    id,
                    secret,
                    same_host,
                }
            }
            (3, 0) => Self::Connected,
            (4, 0) => Self::Tested,
            (5, _) => match str::from_utf8(body) {
                Ok(reason) => Self::Failed(reason.into()),
                Err(_) => return Err("it sent a reason that is no text"),
            },
            (6, 0) => Self::Refused,
            (7, 0) => Self::Goodbye,
            _ => return Err("it sent what is no message"),
        };
        Ok(Some((message, HEADER + len)))
    }
}

/// What has come, as far as it has.
pub(crate) enum Arrived {
    Message(Message),
    Nothing,
    /// The stream has ended, and how.
    End(String),
}

/// One end of the stream. May be used from any thread; only one at a time should receive.
pub(crate) struct Control {
    stream: OwnedFd,
    incoming: Mutex<Vec<u8>>,
}

impl Control {
    pub(crate) fn new(stream: impl Into<OwnedFd>) -> Self {
        Self {
            stream: stream.into(),
            incoming: Mutex::default(),
        }
    }

    /// Sends without waiting: the few messages of a connection fit any socket's buffer.
    pub(crate) fn send(&self, message: &Message) -> io::Result<()> {
        let bytes = message.encode();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&self.stream, &bytes, flags) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The next message, without waiting.
    pub(crate) fn receive(&self) -> Arrived {
        let mut incoming = lock(&self.incoming);
        loop {
            match Message::decode(&incoming) {
                Ok(Some((message, used))) => {
                    incoming.drain(..used);
                    return Arrived::Message(message);
                }
                Ok(None) => {}
                Err(what) => return Arrived::End(what.into()),
            }
            if let Err(arrived) = self.read(&mut incoming) {
                return arrived;
            }
        }
    }

    /// What ends the connection, if that has come, behind whatever steps of the hand-shake. Takes
    /// nothing, and waits for nothing.
    pub(crate) fn last(&self) -> Option<Arrived> {
        let mut incoming = lock(&self.incoming);
        let read = loop {
            // The few messages of a connection take less.
            if incoming.len() > 16 * MAX_BODY {
                break Arrived::End("it sends without end".into());
            }
            if let Err(arrived) = self.read(&mut incoming) {
                break arrived;
            }
        };
        let mut rest = &incoming[..];
        loop {
            match Message::decode(rest) {
                Ok(Some((message, _))) if message.is_last() => {
                    return Some(Arrived::Message(message));
                }
                Ok(Some((_, used))) => rest = &rest[used..],
                Ok(None) => return Some(read).filter(|read| !matches!(read, Arrived::Nothing)),
                Err(what) => return Some(Arrived::End(what.into())),
            }
        }
    }

    /// Reads some of what has come; an error is that nothing has, or the end.
    fn read(&self, incoming: &mut Vec<u8>) -> Result<(), Arrived> {
        let mut buffer = [0; 256];
        loop {
            match recv(&self.stream, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Arrived::End("its end of the connection is gone".into())),
                Ok((count, _)) => {
                    incoming.extend_from_slice(&buffer[..count]);
                    return Ok(());
                }
                Err(Errno::AGAIN) => return Err(Arrived::Nothing),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Arrived::End(format!("its connection broke: {errno}"))),
            }
        }
    }

    /// Sleeps until something has come, `at_most` so long.
    pub(crate) fn park(&self, at_most: Duration) {
        let time = Timespec {
            tv_sec: at_most.as_secs().cast_signed(),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        if poll(&mut fds, Some(&time)).is_err() {
            std::thread::sleep(at_most.min(Duration::from_millis(1)));
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The shortest time between two probes that Linux takes.
const SHORTEST_PROBE: Duration = Duration::from_secs(1);
/// The longest times that Linux takes for probes, and for what is not acknowledged.
const LONGEST_PROBE: Duration = Duration::from_secs(32767);
const LONGEST_UNACKNOWLEDGED: Duration = Duration::from_millis(i32::MAX as u64);

/// Also where nothing is sent for long, the system asks whether the peer's machine is there, and
/// breaks the connection when it has not been for about so long.
pub(crate) fn watch_for_silence(stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    let interval = (dead_after / 4).clamp(SHORTEST_PROBE, LONGEST_PROBE);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(interval)
            .with_interval(interval)
            .with_retries(3),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(dead_after.min(LONGEST_UNACKNOWLEDGED)))?;
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![
            Just(Message::Wired),
            any::<([u8; 16], [u8; 32], bool)>().prop_map(|(id, secret, same_host)| {
                Message::Wire {
                    id,
                    secret,
                    same_host,
                }
            }),
            Just(Message::Connected),
            Just(Message::Tested),
            ".{0,200}".prop_map(Message::Failed),
            Just(Message::Refused),
            Just(Message::Goodbye),
        ]
    }

    proptest! {
        #[test]
        fn a_message_survives_the_wire(message in message(), more in any::<u8>()) {
            let mut bytes = message.encode();
            for cut in 0..bytes.len() {
                prop_assert_eq!(Message::decode(&bytes[..cut]), Ok(None));
            }
            let len = bytes.len();
            bytes.push(more);
            prop_assert_eq!(Message::decode(&bytes), Ok(Some((message, len))));
        }
    }

    #[test]
    fn fuzz_queue_control_message() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(Some((message, used))) =
                mscclpp_fuzz::in_proportion(bytes, || Message::decode(bytes))
            {
                assert_eq!(message.encode(), bytes[..used]);
            }
        });
    }

    /// Systems have limits of their own: 32767 s for probes, 2^31 ms for what is not acknowledged.
    #[test]
    fn any_stall_timeout_can_be_asked_for() {
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for seconds in [0, 1, 40_000, 1_000_000, 10_000_000, u64::MAX] {
            let watched = watch_for_silence(&stream, Duration::from_secs(seconds));
            assert!(watched.is_ok(), "{seconds} s: {watched:?}");
        }
    }

    #[test]
    fn messages_arrive_in_order_and_then_the_end() {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) = (Control::new(a), Control::new(b));
        assert!(matches!(b.receive(), Arrived::Nothing));
        assert!(b.last().is_none());
        let long = Message::Failed("ä".repeat(2000));
        a.send(&Message::Connected).unwrap();
        assert!(b.last().is_none());
        a.send(&long).unwrap();
        drop(a);
        // Seen behind what has not been taken yet, and left there.
        for _ in 0..2 {
            let last = b.last();
            assert!(matches!(last, Some(Arrived::Message(Message::Failed(_)))));
        }
        assert!(matches!(b.receive(), Arrived::Message(Message::Connected)));
        let Arrived::Message(Message::Failed(reason)) = b.receive() else {
            panic!("a reason");
        };
        assert_eq!(reason, "ä".repeat(MAX_BODY / 2));
        assert!(matches!(b.receive(), Arrived::End(_)));
        assert!(b.send(&Message::Goodbye).is_err());
    }
}
