// SPDX-License-Identifier: MIT
//! How the two ends of a connection bring their queues up together, each on a thread of its own that
//! ends when it is done: the control stream, a wire between the two HCAs where they need one, the
//! queue pair's states, and one request from the device side. Neither end goes on to the next step
//! that needs the other's queue before the other has said that it is there.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mscclpp_bootstrap::link::{Acceptor, LinkId, LinkKey, UnixAddress};
use mscclpp_bootstrap::{Deadline, JobKey};
use mscclpp_device::abi::QueueDeviceHandle;
use mscclpp_device::self_test::{self, SelfTestError};

use super::end::{OWN_ERROR_WITHIN, QueueEnd};
use super::provider::WireStream;
use super::turns::Turns;
use crate::arrival::Arrival;
use crate::control::{Arrived, Control, Message, Route};
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::random::random_bytes;

/// What a control stream is made for.
pub(crate) const CONTROL: &str = "mscclpp-port queue control";
/// What a stream between two HCAs is made for.
const WIRE: &str = "mscclpp-port HCA wire";
/// How long to wait for a message before looking whether the connection is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the hand-shake of one end needs.
pub(crate) struct Handshake {
    /// Where this context and the peer's accept connections.
    pub(crate) acceptor: Arc<Acceptor>,
    pub(crate) peer: SocketAddr,
    /// The peer's socket, if it is on this host.
    pub(crate) socket: Option<UnixAddress>,
    pub(crate) job_key: Option<JobKey>,
    pub(crate) deadline: Deadline,
}

impl Handshake {
    /// Brings the connection up, or says why it cannot be.
    pub(super) fn run(&self, end: &QueueEnd, route: Route) -> Result<()> {
        let result = self.bring_up(end, route);
        end.control.set_cancel(None);
        result?;
        end.control.set_ready();
        Ok(())
    }

    fn bring_up(&self, end: &QueueEnd, route: Route) -> Result<()> {
        end.control.attach(route)?;
        self.wire(end)?;
        end.control.check()?;
        end.queue().connect(&end.path)?;
        self.meet(end, Message::Connected)?;
        test(end, end.control.deadlines.self_test)?;
        self.meet(end, Message::Tested)
    }

    fn stream<S>(&self, end: &QueueEnd, arrival: Arrival<S>) -> Result<S> {
        let Arrival { wait, cancel } = arrival;
        end.control.set_cancel(Some(cancel));
        // By the control stream the other end says when it gives up.
        let last = OnceCell::new();
        let left = || {
            end.control
                .last_word()
                .is_some_and(|error| last.set(error).is_ok())
        };
        let stream = wait(&|| end.control.given_up() || last.get().is_some() || left());
        end.control.set_cancel(None);
        // Both tell more than the stream that did not come.
        match last.into_inner().or_else(|| end.control.status.error()) {
            Some(error) => Err(error),
            None => stream,
        }
    }

    /// Makes sure that the two HCAs reach each other. The end whose HCA has the smaller address
    /// decides and dials; so the many connections of a pair make one wire.
    pub(crate) fn wire(&self, end: &QueueEnd) -> Result<()> {
        let (own, peer) = (end.queue().address().hca, end.path.peer.hca);
        let Some(control) = end.control.control().filter(|_| own != peer) else {
            return Ok(());
        };
        let rank = end.ends.rank;
        if own < peer {
            let given_up = || end.control.given_up() || self.deadline.expired();
            let Some(_turn) = Turns::of_process().take((own, peer), given_up) else {
                end.control.check()?;
                return Err(self.timeout(end, "waiting for other connections of the same HCAs"));
            };
            if end.hca.reaches(peer) {
                return send(end, control, &Message::Wired);
            }
            let (id, secret) = (random_bytes()?, random_bytes::<32>()?);
            let same_host = self.socket.is_some();
            let order = Message::Wire {
                id,
                secret,
                same_host,
            };
            send(end, control, &order)?;
            let (id, key) = (LinkId::from_bytes(id), self.key(&secret));
            let stream = match self.socket {
                Some(socket) => WireStream::Unix(self.stream(
                    end,
                    Arrival::dialling_unix(id, key, (rank, socket), self.deadline),
                )?),
                None => WireStream::Tcp(self.stream(
                    end,
                    Arrival::dialling(id, key, (rank, self.peer), self.deadline),
                )?),
            };
            return self.link(end, stream);
        }
        match self.next(end, control)? {
            Message::Wire {
                id,
                secret,
                same_host,
            } => {
                let acceptor = Arc::clone(&self.acceptor);
                let (id, key) = (LinkId::from_bytes(id), self.key(&secret));
                let stream = if same_host {
                    let arrival = Arrival::accepting_unix(acceptor, id, key, rank, self.deadline)?;
                    WireStream::Unix(self.stream(end, arrival)?)
                } else {
                    let names = (rank, self.peer);
                    let arrival = Arrival::accepting(acceptor, id, key, names, self.deadline);
                    WireStream::Tcp(self.stream(end, arrival)?)
                };
                self.link(end, stream)
            }
            Message::Wired => {
                // Another connection's hand-shake may be about to plug this end in.
                while !end.hca.reaches(peer) {
                    end.control.check()?;
                    if let Some(last) = end.control.last_word() {
                        return Err(last);
                    }
                    if self.deadline.expired() {
                        return Err(self.timeout(end, "waiting for the wire between two HCAs"));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            }
            _ => Err(out_of_step(end)),
        }
    }

    /// Links the two HCAs. When it is the other end that cannot, its own error tells more than the
    /// stream that it leaves.
    fn link(&self, end: &QueueEnd, stream: WireStream) -> Result<()> {
        let timeout = end
            .control
            .deadlines
            .self_test
            .min(self.deadline.remaining());
        let (status, breaker) = (Arc::clone(&end.control.status), stream.breaker());
        end.control.set_cancel(Some(Box::new(move || {
            // Another connection may need the wire, unless the peer is gone.
            if let (true, Ok(breaker)) = (status.is_failed(), &breaker)
                && let Err(error) = breaker()
            {
                tracing::debug!(%error, "a wire of a dead peer could not be broken off");
            }
        })));
        let wired = end.hca.wire(end.path.peer.hca, stream, timeout);
        end.control.set_cancel(None);
        wired.map_err(|error| {
            let error = match error {
                Error::PeerDown { cause, .. } => end.control.peer_down(cause),
                error => return error,
            };
            let deadline = self.deadline.at_most(OWN_ERROR_WITHIN);
            loop {
                let Some(control) = end.control.control() else {
                    return error;
                };
                if let Some(last) = end.control.last_word() {
                    return last;
                }
                if deadline.expired() {
                    return error;
                }
                control.park(deadline.remaining());
            }
        })
    }

    /// The key of a wire: of the job, and of what the peer said over its proven stream.
    fn key(&self, secret: &[u8]) -> LinkKey {
        LinkKey::derive(self.job_key.as_ref(), WIRE, secret)
    }

    /// Says that this end has come so far, and waits until the other has, too.
    fn meet(&self, end: &QueueEnd, step: Message) -> Result<()> {
        let Some(control) = end.control.control() else {
            return Ok(());
        };
        send(end, control, &step)?;
        if self.next(end, control)? == step {
            Ok(())
        } else {
            Err(out_of_step(end))
        }
    }

    /// The next message of the other end, if it is not its last.
    fn next(&self, end: &QueueEnd, control: &Control) -> Result<Message> {
        loop {
            end.control.check()?;
            match control.receive() {
                Arrived::Message(
                    message @ (Message::Wired
                    | Message::Wire { .. }
                    | Message::Connected
                    | Message::Tested),
                ) => return Ok(message),
                arrived => {
                    if let Some(error) = end.control.meaning(arrived) {
                        return Err(error);
                    }
                }
            }
            if self.deadline.expired() {
                return Err(self.timeout(end, "waiting for the other end of a queue"));
            }
            control.park(self.deadline.remaining().min(LOOK_EVERY));
        }
    }

    fn timeout(&self, end: &QueueEnd, operation: &str) -> Error {
        Error::Timeout {
            operation: operation.into(),
            rank: end.ends.rank,
            waited: self.deadline.budget(),
        }
    }
}

/// One request from the device side: adapters whose queues come up and execute nothing are known.
pub(crate) fn test(end: &QueueEnd, timeout: Duration) -> Result<()> {
    // A peer that left does not answer, and nobody waits for a queue that is not wanted any more.
    let over = || end.control.given_up() || end.control.last_word().is_some();
    let device = end.ends.device;
    // SAFETY: `end` keeps the queue until the call has returned. It runs a thread of its own that
    // ends within seconds of the timeout; no kernel has the handle yet.
    let result = unsafe { run_test(device, end.device_handle(), timeout, over) }?;
    let rank = end.ends.rank;
    let number = end.queue().address().number;
    result.map_err(|error| match (error, end.queue().fault()) {
        _ if let Some(ended) = end
            .control
            .last_word()
            .or_else(|| end.control.status.error()) =>
        {
            ended
        }
        (SelfTestError::NotExecuting { timeout, .. }, None) => Error::QueueNotExecuting {
            rank,
            queue: number,
            waited: timeout,
        },
        (_, Some(fault)) => end.error_of(fault),
        (error, None) => Error::hca(end.hca.name(), "test a new queue", error),
    })
}

/// Runs it where the device's kernels run.
///
/// # Safety
/// As [`self_test::run`].
unsafe fn run_test(
    device: Device,
    queue: QueueDeviceHandle,
    timeout: Duration,
    over: impl Fn() -> bool,
) -> Result<Result<(), SelfTestError>> {
    if device.kind() == DeviceKind::Cpu {
        // SAFETY: the caller's promise.
        return Ok(unsafe { self_test::run(queue, timeout, over) });
    }
    #[cfg(feature = "cuda")]
    {
        let gpu = crate::gpu::open(device)?;
        // SAFETY: the caller's promise; the queue was made for this GPU.
        Ok(unsafe { self_test::run_on_gpu(&gpu, queue, timeout, over) })
    }
    #[cfg(not(feature = "cuda"))]
    device.check_available().map(Ok)
}

fn send(end: &QueueEnd, control: &Control, message: &Message) -> Result<()> {
    (control.send(message)).map_err(|error| {
        // Its last word tells more than the broken stream.
        match end.control.last_word() {
            Some(last) => last,
            None => end
                .control
                .peer_down(format!("its connection broke: {error}")),
        }
    })
}

fn out_of_step(end: &QueueEnd) -> Error {
    end.control
        .peer_down("it broke the protocol of the control stream")
}
