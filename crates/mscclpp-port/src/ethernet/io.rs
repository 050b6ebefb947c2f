// SPDX-License-Identifier: MIT
//! The I/O thread of a connection: executes what arrives, and sends what the posting threads could
//! not.

use std::net::{Shutdown, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::Deadline;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::arrival::Wait;
use crate::error::{BARRIER, Error};
use crate::ethernet::Shared;
use crate::ethernet::patience::Patience;
use crate::ethernet::receiver::{Inbound, Received, Receiver};
use crate::ethernet::sender::Pumped;
use crate::ethernet::socket::Socket;
use crate::gpu::Staging;
use crate::refusal::Refused;

/// Longest time between two looks at copies that are under way.
const GPU_LOOK: Duration = Duration::from_micros(20);
/// Longest time to park; news of work or of the socket end it sooner.
const LONGEST_PARK: Duration = Duration::from_secs(1);

/// Runs until the connection is over.
pub(super) fn run(shared: &Shared, arrival: Wait<TcpStream>, landing: Option<Staging>) {
    let done = DoneOnDrop(shared);
    if landing.is_some()
        && let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000))
    {
        tracing::debug!(%error, "an I/O thread keeps its default timer slack");
    }
    if let Some(socket) = connect(shared, arrival) {
        Io::new(shared, socket, landing).run();
    }
    drop(done);
}

/// Waits for the stream.
fn connect(shared: &Shared, arrival: Wait<TcpStream>) -> Option<&Socket> {
    let given_up = || shared.given_up.load(SeqCst) || shared.status.is_failed();
    let socket = arrival(&given_up).and_then(|stream| {
        Socket::new(stream, shared.deadlines.stall)
            .map_err(|source| Error::io("set a connection's socket up", source))
    });
    match socket {
        Ok(socket) => {
            let socket = shared.socket.get_or_init(|| socket);
            shared.event.ring_if_armed();
            Some(socket)
        }
        Err(_) if given_up() => None,
        Err(error) => {
            shared.fail(error);
            None
        }
    }
}

/// Tells the owner that the thread is through, also if it panics.
struct DoneOnDrop<'a>(&'a Shared);

impl Drop for DoneOnDrop<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(Error::PeerDown {
                rank: self.0.rank,
                cause: "this end's I/O thread has panicked".into(),
            });
        }
        self.0.shut_down();
        self.0.sender.abandon();
        self.0.set_done();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Frames are executed.
    Open,
    /// The peer broke the rules: its bytes are thrown away until it goes, so that it can read the
    /// refusal (closing over unread bytes would reset the connection under it).
    Discarding,
    /// The goodbye is sent; the peer has a moment to see it.
    Leaving,
}

/// What a look at the socket found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrived {
    Nothing,
    /// Something, and more may be there.
    Some,
    /// Something, and that was all.
    All,
}

struct Io<'a> {
    shared: &'a Shared,
    socket: &'a Socket,
    receiver: Receiver,
    state: State,
    patience: Patience,
    stall: Stall,
    /// When the end of this side must be over.
    leave_by: Option<Deadline>,
    steps: u32,
}

struct Over;

impl<'a> Io<'a> {
    fn new(shared: &'a Shared, socket: &'a Socket, landing: Option<Staging>) -> Self {
        Self {
            shared,
            socket,
            receiver: Receiver::new(shared.table.clone(), landing, shared.deadlines.gpu_copy)
                .traced(shared.sender.trace().cloned()),
            state: State::Open,
            patience: Patience::new(),
            stall: Stall::new(),
            leave_by: None,
            steps: 0,
        }
    }

    fn run(&mut self) {
        while self.step().is_ok() {}
    }

    fn step(&mut self) -> Result<(), Over> {
        self.steps = self.steps.wrapping_add(1);
        // A peer that sends all the time must not keep this thread from the rest.
        if self.steps.is_multiple_of(256) || self.closing() {
            self.look_around()?;
        }
        let arrived = match self.state {
            State::Open => self.receive()?,
            State::Discarding | State::Leaving => self.discard()?,
        };
        let sender = &self.shared.sender;
        if let Some(cause) = self.shared.broken.get() {
            if arrived == Arrived::Nothing {
                if !self.closing() {
                    self.shared.peer_down(cause);
                }
                return Err(Over);
            }
        } else if sender.is_stuck() {
            let at_most = match arrived {
                Arrived::Some => Duration::ZERO,
                Arrived::All | Arrived::Nothing => self.tick(),
            };
            if self.park(at_most)? {
                self.pump()?;
            }
        } else {
            if sender.has_answer() || sender.is_staging() {
                self.pump()?;
            }
            if arrived != Arrived::Nothing {
                self.patience.restore();
            }
            if arrived != Arrived::Some && !self.patience.yielded() {
                self.park(self.tick())?;
            }
        }
        Ok(())
    }

    /// Executes what is there.
    fn receive(&mut self) -> Result<Arrived, Over> {
        let shared = self.shared;
        if shared.status.is_failed() && !self.closing() {
            // A peer that was taken for dead and comes back writes nothing here.
            return self.look_around().map(|()| Arrived::Nothing);
        }
        let mut handler = Handler {
            shared,
            over: false,
        };
        let received = match self.receiver.settle(&mut handler) {
            Ok(()) => self.receiver.receive(self.socket, &mut handler),
            Err(refused) => Ok(Err(refused)),
        };
        match received {
            Ok(Ok(Received::Bytes { .. })) if handler.over => Err(Over),
            Ok(Ok(Received::Bytes { drained: true })) => Ok(Arrived::All),
            Ok(Ok(Received::Bytes { drained: false })) => Ok(Arrived::Some),
            Ok(Ok(Received::Nothing)) => Ok(Arrived::Nothing),
            Ok(Ok(Received::End)) if self.closing() => Err(Over),
            Ok(Ok(Received::End)) => {
                let cause = if self.receiver.mid_frame() {
                    "its end of the connection closed inside a frame"
                } else {
                    "its end of the connection closed without a goodbye: it died, or its connection \
                     failed: look at that rank's own error"
                };
                shared.peer_down(cause);
                Err(Over)
            }
            Ok(Err(refused)) => {
                shared.sender.refuse(refused);
                let rank = shared.rank;
                tracing::warn!(?rank, %refused, "refused an operation of the peer");
                shared.status.fail(Error::RefusedPeer { rank, refused });
                shared.event.ring_if_armed();
                self.state = State::Discarding;
                Ok(Arrived::Some)
            }
            Err(_) if self.closing() => Err(Over),
            Err(error) => {
                shared.peer_down(format!("receiving failed: {error}"));
                Err(Over)
            }
        }
    }

    fn discard(&mut self) -> Result<Arrived, Over> {
        match self.receiver.discard(self.socket) {
            Ok(Received::Bytes { .. }) => Ok(Arrived::Some),
            Ok(Received::Nothing) => Ok(Arrived::Nothing),
            // The connection was over before: nothing new to tell.
            Ok(Received::End) | Err(_) => Err(Over),
        }
    }

    fn pump(&mut self) -> Result<(), Over> {
        let sender = &self.shared.sender;
        // Before the pump: who posts after it has looked at the queue must not rely on us.
        sender.set_stuck(false);
        match sender.pump(self.socket) {
            Ok(Pumped::Done) => {}
            Ok(Pumped::Stuck) => sender.set_stuck(true),
            // Looked at again in the next step.
            Ok(Pumped::Staging) => {}
            Err(error) => {
                self.shared.pump_failed(error);
                return if self.shared.status.is_failed() {
                    Err(Over)
                } else {
                    Ok(())
                };
            }
        }
        self.shared.event.ring_if_armed();
        Ok(())
    }

    /// Parks until something arrives, the socket has room (if waited for), somebody rings, or the
    /// time is up. Whether the socket has room.
    fn park(&mut self, at_most: Duration) -> Result<bool, Over> {
        let shared = self.shared;
        shared.wake.arm();
        let on_gpu = self.receiver.is_landing() || shared.sender.is_staging();
        let at_most = if on_gpu {
            at_most.min(GPU_LOOK)
        } else {
            at_most
        };
        let mut interest = PollFlags::IN;
        if shared.sender.is_stuck() {
            interest |= PollFlags::OUT;
        }
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), interest),
            PollFd::from_borrowed_fd(shared.wake.as_fd(), PollFlags::IN),
        ];
        let timeout = Timespec {
            tv_sec: at_most.as_secs().cast_signed(),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                shared.peer_down(format!("waiting on its connection failed: {errno}"));
                return Err(Over);
            }
        }
        let ready = fds[0].revents();
        shared.wake.clear();
        self.look_around()?;
        Ok(ready.contains(PollFlags::OUT))
    }

    /// What is not an arrival: the owner closes, somebody failed the connection, the peer stalls.
    fn look_around(&mut self) -> Result<(), Over> {
        let shared = self.shared;
        let now = Instant::now();
        if self.state == State::Open && !self.closing() && shared.status.is_failed() {
            shared.sender.close();
            return Err(Over);
        }
        if self.state == State::Open && self.stall.seen(shared, now) {
            shared.fail(Error::Stalled {
                rank: shared.rank,
                after: shared.deadlines.stall,
            });
            return Err(Over);
        }
        // The nack had its time to get out; a peer that goes on sending, or reads nothing, is not
        // waited for.
        if self.state == State::Discarding && self.is_to_leave() {
            return Err(Over);
        }
        if self.closing() {
            if self.state == State::Discarding || shared.status.is_failed() {
                return Err(Over);
            }
            if self.is_to_leave() {
                let rank = shared.rank;
                tracing::warn!(?rank, "closed a connection whose peer does not read");
                return Err(Over);
            }
            self.leave()?;
        }
        Ok(())
    }

    /// Whether it has lingered for as long as it may.
    fn is_to_leave(&mut self) -> bool {
        let linger = self.shared.deadlines.linger;
        (self.leave_by)
            .get_or_insert_with(|| Deadline::after(linger))
            .expired()
    }

    /// Sends what is queued, then the goodbye; then waits for the peer to see it.
    fn leave(&mut self) -> Result<(), Over> {
        let sender = &self.shared.sender;
        if self.state == State::Open && !sender.is_stuck() {
            if sender.has_posts() || sender.has_answer() {
                self.pump()?;
            }
            if !sender.is_stuck() && !sender.is_staging() {
                self.socket.shutdown(Shutdown::Write);
                self.state = State::Leaving;
            }
        }
        Ok(())
    }

    fn closing(&self) -> bool {
        self.shared.closing.load(SeqCst)
    }

    /// How long to park before looking around.
    fn tick(&self) -> Duration {
        let longest = if self.closing() {
            self.shared.deadlines.linger / 10
        } else {
            LONGEST_PARK
        };
        longest.min(self.shared.deadlines.stall / 8)
    }
}

/// Sees that the peer takes and acknowledges nothing although there is something to.
struct Stall {
    mark: u64,
    since: Option<Instant>,
}

impl Stall {
    fn new() -> Self {
        Self {
            mark: 0,
            since: None,
        }
    }

    fn seen(&mut self, shared: &Shared, now: Instant) -> bool {
        let mark = shared.sender.progress_mark();
        if !shared.sender.busy() {
            self.since = None;
        } else if self.since.is_none() || mark != self.mark {
            self.since = Some(now);
        }
        self.mark = mark;
        self.since
            .is_some_and(|since| now - since > shared.deadlines.stall)
    }
}

/// What the peer's frames do to this end.
struct Handler<'a> {
    shared: &'a Shared,
    over: bool,
}

impl Inbound for Handler<'_> {
    fn executed(&mut self, ticket: u64) {
        self.shared.sender.acknowledge(ticket);
    }

    fn acknowledged(&mut self, ticket: u64) -> bool {
        let valid = self.shared.sender.acknowledged(ticket);
        self.shared.event.ring_if_armed();
        valid
    }

    fn refused(&mut self, refused: Refused) {
        let rank = self.shared.rank;
        self.shared.fail(Error::Refused { rank, refused });
        self.over = true;
    }

    fn goodbye(&mut self) {
        let Shared { status, rank, .. } = self.shared;
        tracing::debug!(?rank, "the peer closed the connection");
        status.fail(Error::PeerDown {
            rank: *rank,
            cause: format!("the peer closed the connection: {BARRIER}"),
        });
        self.shared.sender.close();
        self.shared.event.ring_if_armed();
        self.over = true;
    }
}
