// SPDX-License-Identifier: MIT
//! The sending half of a connection: a bounded queue of posts, and whoever has time to send them.
//!
//! A post is a header and, for a write, a range of registered memory, which goes to the socket
//! without a copy. Posting only queues. [`Sender::pump`] moves the queue into the socket without
//! waiting, several frames a call; one thread pumps at a time and the others leave their posts to
//! it. When the socket is full the connection's I/O thread takes over.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::counters::LinkCells;
use crate::ethernet::frame::{Frame, MAX_PAYLOAD};
use crate::ethernet::socket::Socket;
use crate::ethernet::turn::Turn;
use crate::ethernet::wire::{MAX_FRAMES, Outgoing, Payload, PumpError, Wire, send};
use crate::gpu::Staging;
use crate::memory::{Region, Target};
use crate::refusal::Refused;
use crate::sync::lock_plain as lock;
use crate::trace::LinkTrace;

/// What a trigger may need: a write, a signal and a flush.
pub(crate) const TRIGGER_POSTS: usize = 3;
/// Payload bytes taken from the queue at a time. Acknowledgements wait behind no more than this.
const BATCH_BYTES: u64 = MAX_PAYLOAD;
/// Sends of one pump, so that a pumping thread comes back whatever others post.
const ROUNDS: usize = 64;

/// One post of the queue.
pub(crate) enum Post {
    Write {
        target: Target,
        source: Arc<Region>,
        from: u64,
        len: u64,
    },
    Frame(Frame),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PostError {
    /// No room; nothing was queued.
    Full,
    /// The queue is closed by a failure or by the end of the connection.
    Closed,
}

/// How a pump ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// Nothing is left, or another thread is at it.
    Done,
    /// The socket is full, or the pump has done its share: the I/O thread must go on.
    Stuck,
    /// The next bytes are still being copied from a GPU: look again soon.
    Staging,
}

#[derive(Default)]
struct Queue {
    posts: VecDeque<Post>,
    /// Highest flush ticket of the peer to acknowledge. Later ones include earlier ones.
    ack: Option<u64>,
    nack: Option<Refused>,
    goodbye: bool,
    requested: u64,
    /// Posts that were queued, ever.
    posted: u64,
    /// No more posts.
    closed: bool,
}

pub(crate) struct Sender {
    queue: Mutex<Queue>,
    /// The frames being sent; held by the thread that pumps.
    wire: Turn<Wire>,
    /// The I/O thread has taken over, until the socket has room.
    stuck: AtomicBool,
    /// The next bytes are not there yet.
    staging: AtomicBool,
    /// Posts queued and not yet wholly in the socket.
    queued: AtomicUsize,
    limit: usize,
    /// An acknowledgement, refusal or goodbye is queued.
    answers: AtomicBool,
    requested: AtomicU64,
    flushed: AtomicU64,
    /// Bytes that the socket took, to see a stall.
    sent: AtomicU64,
    trace: Option<LinkTrace>,
    /// Written by who has the wire.
    pub(crate) counts: LinkCells,
}

impl Sender {
    /// `limit`: how many posts may wait, at least a trigger's. `staging`: for payload of GPUs, if
    /// there is likely to be some. `gpu_copy`: how long a copy of it may take that is waited for.
    pub(crate) fn new(limit: usize, staging: Option<Staging>, gpu_copy: Duration) -> Self {
        Self {
            queue: Mutex::default(),
            wire: Turn::new(Wire::new(staging, gpu_copy)),
            // Until there is a socket.
            stuck: AtomicBool::new(true),
            staging: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            limit: limit.max(TRIGGER_POSTS),
            answers: AtomicBool::new(false),
            requested: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            trace: None,
            counts: LinkCells::default(),
        }
    }

    /// The same, seen by a trace.
    pub(crate) fn traced(self, trace: Option<LinkTrace>) -> Self {
        Self { trace, ..self }
    }

    pub(crate) fn trace(&self) -> Option<&LinkTrace> {
        self.trace.as_ref()
    }

    /// For a trace: the connection, and the number of the last post.
    pub(crate) fn last_post(&self) -> Option<(u16, u64)> {
        let trace = self.trace.as_ref()?;
        Some((trace.connection(), lock(&self.queue).posted))
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queued.load(SeqCst) + TRIGGER_POSTS <= self.limit
    }

    pub(crate) fn post(&self, post: Post) -> Result<(), PostError> {
        let mut queue = lock(&self.queue);
        self.push(&mut queue, post)
    }

    /// Posts a flush and returns its ticket.
    pub(crate) fn post_flush(&self) -> Result<u64, PostError> {
        let mut queue = lock(&self.queue);
        let ticket = queue.requested + 1;
        self.push(&mut queue, Post::Frame(Frame::Flush { ticket }))?;
        queue.requested = ticket;
        self.requested.store(ticket, SeqCst);
        Ok(ticket)
    }

    fn push(&self, queue: &mut Queue, post: Post) -> Result<(), PostError> {
        if queue.closed {
            return Err(PostError::Closed);
        }
        if self.queued.load(SeqCst) >= self.limit {
            return Err(PostError::Full);
        }
        queue.posts.push_back(post);
        queue.posted += 1;
        self.queued.fetch_add(1, SeqCst);
        Ok(())
    }

    /// Has the peer's flush acknowledged, ahead of the posts that wait.
    pub(crate) fn acknowledge(&self, ticket: u64) {
        lock(&self.queue).ack = Some(ticket);
        self.answers.store(true, SeqCst);
    }

    /// Has the peer told of a refusal and closes the queue: its posts are dropped.
    pub(crate) fn refuse(&self, refused: Refused) {
        let mut queue = lock(&self.queue);
        queue.nack = Some(refused);
        self.close_queue(&mut queue);
        self.answers.store(true, SeqCst);
    }

    /// Takes no more posts and says goodbye after those that wait.
    pub(crate) fn finish(&self) {
        let mut queue = lock(&self.queue);
        queue.goodbye = !queue.closed;
        queue.closed = true;
        self.answers.store(true, SeqCst);
    }

    /// Takes no more posts and drops those that wait.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.ack = None;
        self.close_queue(&mut queue);
    }

    fn close_queue(&self, queue: &mut Queue) {
        queue.closed = true;
        self.queued.fetch_sub(queue.posts.len(), SeqCst);
        queue.posts.clear();
    }

    /// Records an acknowledgement; false if it was for nothing that was asked.
    pub(crate) fn acknowledged(&self, ticket: u64) -> bool {
        let valid = ticket > self.flushed() && ticket <= self.requested.load(SeqCst);
        if valid {
            self.flushed.store(ticket, SeqCst);
        }
        valid
    }

    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.load(SeqCst)
    }

    /// Whether a post waits, or a flush for its acknowledgement.
    pub(crate) fn busy(&self) -> bool {
        self.queued.load(SeqCst) > 0 || self.requested.load(SeqCst) > self.flushed()
    }

    pub(crate) fn has_posts(&self) -> bool {
        self.queued.load(SeqCst) > 0
    }

    /// Whether an answer to the peer waits.
    pub(crate) fn has_answer(&self) -> bool {
        self.answers.load(SeqCst)
    }

    /// Forgets the frames on their way: the connection is over.
    pub(crate) fn abandon(&self) {
        self.close();
        self.staging.store(false, SeqCst);
        self.wire.lock().frames.clear();
    }

    /// Whether the I/O thread has to send when the socket has room.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(SeqCst)
    }

    /// Whether the next bytes are being copied from a GPU.
    pub(crate) fn is_staging(&self) -> bool {
        self.staging.load(SeqCst)
    }

    /// Hands the sending over to the I/O thread.
    pub(crate) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, SeqCst);
    }

    /// Grows while the peer takes or acknowledges anything.
    pub(crate) fn progress_mark(&self) -> u64 {
        self.sent.load(SeqCst).wrapping_add(self.flushed())
    }

    /// Moves what is queued into the socket, as far as it goes without waiting.
    pub(crate) fn pump(&self, socket: &Socket) -> Result<Pumped, PumpError> {
        let pump = |wire: &mut Wire| {
            let pumped = self.drain(wire, socket);
            self.staging
                .store(matches!(pumped, Ok(Pumped::Staging)), SeqCst);
            pumped
        };
        let all = |pumped: &_| matches!(pumped, Ok(Pumped::Done));
        // Or another thread is at it.
        self.wire.take(pump, all).unwrap_or(Ok(Pumped::Done))
    }

    fn drain(&self, wire: &mut Wire, socket: &Socket) -> Result<Pumped, PumpError> {
        for _ in 0..ROUNDS {
            self.refill(wire)?;
            if wire.frames.is_empty() {
                return Ok(Pumped::Done);
            }
            match send(wire, socket) {
                Ok(None) => return Ok(Pumped::Staging),
                Ok(Some(sent)) => {
                    self.sent.fetch_add(sent as u64, SeqCst);
                    self.counts.doorbells.grow(1);
                    self.retire(wire, sent);
                }
                Err(PumpError::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.counts.retries.grow(1);
                    return Ok(Pumped::Stuck);
                }
                Err(PumpError::Socket(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Pumped::Stuck)
    }

    fn refill(&self, wire: &mut Wire) -> Result<(), PumpError> {
        let Some(trace) = &self.trace else {
            return self.fill(wire);
        };
        // Before the socket gets them: the peer sees them after that.
        let before = wire.frames.len();
        let filled = self.fill(wire);
        for _ in before..wire.frames.len() {
            trace.sent(wire.traced);
            wire.traced += 1;
        }
        filled
    }

    /// Takes frames from the queue until a batch is full. What answers the peer goes first.
    fn fill(&self, wire: &mut Wire) -> Result<(), PumpError> {
        let mut bytes: u64 = wire.frames.iter().map(Outgoing::payload_left).sum();
        if wire.frames.len() >= MAX_FRAMES || bytes >= BATCH_BYTES {
            return Ok(());
        }
        let mut queue = lock(&self.queue);
        self.answers.store(queue.goodbye, SeqCst);
        if let Some(ticket) = queue.ack.take() {
            wire.frames
                .push_back(Outgoing::control(Frame::FlushAck { ticket }));
        }
        if let Some(refused) = queue.nack.take() {
            wire.frames
                .push_back(Outgoing::control(Frame::Nack(refused)));
        }
        while wire.frames.len() < MAX_FRAMES && bytes < BATCH_BYTES {
            let number = queue.posted + 1 - queue.posts.len() as u64;
            match queue.posts.front_mut() {
                Some(Post::Write {
                    target,
                    source,
                    from,
                    len,
                }) => {
                    let mut step = (*len).min(MAX_PAYLOAD).min(BATCH_BYTES - bytes);
                    let mut staged = None;
                    if source.gpu().is_some() {
                        staged = wire.stage(source, *from, step)?;
                        let Some(piece) = staged else {
                            return Ok(());
                        };
                        step = piece.len() as u64;
                    }
                    let Target { key, offset } = *target;
                    let ends_post = step == *len;
                    if let Some(trace) = &self.trace {
                        trace.left(number);
                    }
                    wire.frames.push_back(Outgoing {
                        header: Frame::Write {
                            key,
                            offset,
                            len: step,
                        }
                        .encode(),
                        payload: Some(Payload {
                            source: Arc::clone(source),
                            from: *from,
                            len: step,
                            staged,
                        }),
                        sent: 0,
                        ends_post,
                    });
                    bytes += step;
                    target.offset += step;
                    *from += step;
                    *len -= step;
                    if ends_post {
                        queue.posts.pop_front();
                    }
                }
                Some(Post::Frame(frame)) => {
                    if let Some(trace) = &self.trace {
                        trace.left(number);
                    }
                    wire.frames.push_back(Outgoing {
                        ends_post: true,
                        ..Outgoing::control(*frame)
                    });
                    queue.posts.pop_front();
                }
                None => {
                    if std::mem::take(&mut queue.goodbye) {
                        self.answers.store(false, SeqCst);
                        wire.frames.push_back(Outgoing::control(Frame::Goodbye));
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Counts `sent` bytes off the front of the batch.
    fn retire(&self, wire: &mut Wire, mut sent: usize) {
        while let Some(first) = wire.frames.front_mut() {
            let left = first.left();
            if sent < left {
                first.sent += sent;
                return;
            }
            sent -= left;
            if first.ends_post {
                self.queued.fetch_sub(1, SeqCst);
            }
            wire.pop();
        }
    }
}
