// SPDX-License-Identifier: MIT
//! The posts of a connection over CUDA IPC.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Deadline, Deadlines};
use mscclpp_device::cuda;

use super::end::IpcEnd;
use crate::context::ContextId;
use crate::control::Route;
use crate::control_end::ControlEnd;
use crate::counters::{LinkCells, LinkCounts};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::flush::FlushWord;
use crate::gpu::Lane;
use crate::memory::{Mapped, RegisteredMemory};
use crate::status::StickyStatus;
use crate::sync::lock_plain as lock;
use crate::transport::{Progress, Transport, TransportKind};
use crate::watcher::{Watched, Watcher};

/// Posts that may be under way when the endpoint does not say. A stream takes about a thousand
/// operations before starting one waits.
const DEFAULT_QUEUE: usize = 256;
/// Posts between two marks, so that room is seen to come free.
const MARK_EVERY: usize = 32;
/// What a trigger may need: a write, a signal and a flush.
const TRIGGER_POSTS: usize = 3;
/// How often to ask whether copies that do not end have failed.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Whether there can be endpoints. The device is looked at elsewhere.
pub(crate) fn check() -> Result<()> {
    cuda::driver().map_err(|_| Error::Unsupported {
        operation: "create an endpoint",
        transport: TransportKind::CudaIpc,
        missing: "there is no CUDA driver here, or one that is too old: install NVIDIA's",
    })
}

/// What was started on the stream, and how far it is.
pub(super) struct Posts {
    lane: Lane,
    limit: usize,
    /// Posts ever, and those that no mark covers.
    posted: u64,
    unmarked: usize,
    /// Marks that were not reached yet, each with the posts and the flush ticket that it covers.
    marks: VecDeque<Mark>,
    done: u64,
    requested: u64,
    flushed: u64,
    /// How many signals have gone to each word, by key and offset.
    signals: HashMap<(u64, u64), u64>,
    /// When the stream was last asked whether it has failed.
    asked: Instant,
    /// When a mark was last reached, or nothing was under way; and how long that may be ago.
    moved: Instant,
    stall: Duration,
    rank: Option<usize>,
    counts: Arc<LinkCells>,
}

struct Mark {
    place: Place,
    /// Operations of the lane before it.
    started: u64,
    posted: u64,
    ticket: u64,
}

/// What shows that a mark is reached.
enum Place {
    /// A mark of the lane.
    Lane(u64),
    /// The word that a flush tells kernels by.
    Word(Arc<FlushWord>, u64),
}

impl Posts {
    /// The first use of a GPU may take a moment.
    pub(super) fn new(
        device: Device,
        limit: Option<usize>,
        rank: Option<usize>,
        deadlines: &Deadlines,
    ) -> Result<Self> {
        Ok(Self {
            lane: Lane::new(device, deadlines.gpu_copy)?,
            limit: limit.unwrap_or(DEFAULT_QUEUE).max(TRIGGER_POSTS),
            posted: 0,
            unmarked: 0,
            marks: VecDeque::new(),
            done: 0,
            requested: 0,
            flushed: 0,
            signals: HashMap::new(),
            asked: Instant::now(),
            moved: Instant::now(),
            stall: deadlines.stall,
            rank,
            counts: Arc::default(),
        })
    }

    /// What it counts; to be read without the lock that these posts are under.
    pub(super) fn counts(&self) -> &Arc<LinkCells> {
        &self.counts
    }

    fn under_way(&self) -> usize {
        (self.posted - self.done) as usize
    }

    /// Whether there is room for so many posts; looks how far the stream is if there seems to be none.
    fn has_room(&mut self, posts: usize) -> Result<bool> {
        let has = |own: &Self| own.under_way() + posts <= own.limit;
        if !has(self) {
            self.look()?;
        }
        Ok(has(self))
    }

    /// Fails if there is no room for a post.
    fn room(&mut self) -> Result<()> {
        if self.has_room(1)? {
            return Ok(());
        }
        Err(Error::QueueFull {
            rank: self.rank,
            limit: self.limit,
        })
    }

    /// A post was started.
    fn count(&mut self) -> Result<()> {
        self.posted += 1;
        self.unmarked += 1;
        self.counts.doorbells.set(self.lane.started());
        if self.unmarked >= MARK_EVERY.min(self.limit / 2) {
            self.mark()?;
        }
        Ok(())
    }

    /// A mark of the lane covers all that was posted.
    fn mark(&mut self) -> Result<()> {
        let mark = self.lane.mark()?;
        self.cover(Place::Lane(mark));
        Ok(())
    }

    fn cover(&mut self, place: Place) {
        self.unmarked = 0;
        self.marks.push_back(Mark {
            place,
            started: self.lane.started(),
            posted: self.posted,
            ticket: self.requested,
        });
    }

    /// Looks how far the stream is.
    fn look(&mut self) -> Result<()> {
        let reached = self.lane.reached();
        let is_reached = |mark: &mut Mark| match &mark.place {
            Place::Lane(mark) => *mark <= reached,
            Place::Word(word, value) => word.done() >= *value,
        };
        while let Some(mark) = self.marks.pop_front_if(is_reached) {
            (self.done, self.flushed) = (mark.posted, mark.ticket);
            self.counts.completions.set(self.done);
            self.lane.release(mark.started);
            self.moved = Instant::now();
        }
        if self.marks.is_empty() {
            self.moved = Instant::now();
            if self.unmarked > 0 {
                self.mark()?;
            }
            self.asked = Instant::now();
        } else if self.asked.elapsed() > LOOK_EVERY {
            self.asked = Instant::now();
            self.lane.check()?;
            let after = self.moved.elapsed();
            if after > self.stall {
                let rank = self.rank;
                return Err(Error::Stalled { rank, after });
            }
        }
        Ok(())
    }

    /// Waits until what was posted is done.
    fn settle(&mut self, linger: Duration) -> Result<()> {
        self.lane.settle(linger)
    }
}

/// One end. Dropping it waits for what was posted, for [`Deadlines::linger`] at most, and says
/// goodbye.
pub(crate) struct IpcTransport {
    device: Device,
    end: Arc<IpcEnd>,
    watcher: Arc<Watcher>,
    handshake: Option<JoinHandle<()>>,
}

impl IpcTransport {
    /// An end on a device, whose control stream comes by `route`.
    pub(crate) fn start(
        (device, queue): (Device, Option<usize>),
        (peer, rank): (ContextId, Option<usize>),
        status: Arc<StickyStatus>,
        (route, deadlines): (Route, Deadlines),
        watcher: Arc<Watcher>,
    ) -> Result<Box<dyn Transport>> {
        let posts = Posts::new(device, queue, rank, &deadlines)?;
        let control = ControlEnd::new(status, rank, deadlines);
        let end = Arc::new(IpcEnd::new(posts, peer, control));
        let (theirs, watched) = (Arc::clone(&end), Arc::clone(&watcher));
        let name = match rank {
            Some(rank) => format!("mscclpp-ipc-{rank}"),
            None => "mscclpp-ipc".into(),
        };
        let attach = move || {
            let control = &theirs.control;
            let result = (control.attach(route)).and_then(|()| {
                control.set_ready();
                watched.add(Arc::clone(&theirs) as _)
            });
            match result {
                Err(error) if !control.given_up() => theirs.fail(error),
                // If it has been given up, why is known.
                _ => {}
            }
        };
        let span = tracing::Span::current();
        let handshake = thread::Builder::new()
            .name(name)
            .spawn(move || span.in_scope(attach))
            .map_err(|error| Error::io("start the hand-shake of a connection", error))?;
        Ok(Box::new(Self {
            device,
            end,
            watcher,
            handshake: Some(handshake),
        }))
    }

    /// Posts, if there is room.
    fn post(&self, post: impl FnOnce(&mut Posts) -> Result<()>) -> Result<()> {
        self.end.with_posts(|posts| {
            posts.room()?;
            post(posts)
        })
    }

    fn flush(&self, told: Option<(&Arc<FlushWord>, u64)>) -> Result<u64> {
        let mut ticket = 0;
        self.post(|posts| {
            if let Some((word, value)) = told {
                posts.lane.keep(Arc::clone(word) as _);
                // SAFETY: the word is shown to the device, and kept.
                unsafe { posts.lane.write_u64(word.address(), value) }?;
            }
            posts.requested += 1;
            ticket = posts.requested;
            posts.count()?;
            match told {
                Some((word, value)) => posts.cover(Place::Word(Arc::clone(word), value)),
                None => posts.mark()?,
            }
            Ok(())
        })?;
        Ok(ticket)
    }
}

impl Transport for IpcTransport {
    fn write(
        &self,
        dst: &RegisteredMemory,
        dst_off: u64,
        src: &RegisteredMemory,
        src_off: u64,
        len: u64,
    ) -> Result<()> {
        self.end.control.status.check()?;
        let (_, to) = dst.mapped("write, destination", self.end.peer, dst_off, len)?;
        let (source, from) = src.source("write, source", src_off, len)?;
        if !source.is_reached_by_gpus() {
            return Err(Error::InvalidUsage {
                operation: "write, source",
                detail: "it is host memory that GPUs do not reach: take Buffer::pinned or a \
                         buffer of a GPU"
                    .into(),
            });
        }
        if len == 0 {
            return Ok(());
        }
        let from = source.base().addr().get() as u64 + from;
        self.post(|posts| {
            posts.lane.keep(to.keep);
            posts.lane.keep(source);
            // SAFETY: both ranges were checked, and their owners are kept.
            unsafe { posts.lane.copy(to.address, from, len) }?;
            posts.count()
        })
    }

    fn signal(&self, token: &RegisteredMemory, off: u64) -> Result<()> {
        self.end.control.status.check()?;
        let (key, to) = token.mapped("signal", self.end.peer, off, 8)?;
        let Mapped {
            address,
            for_signals,
            keep,
        } = to;
        if !for_signals {
            return Err(Error::Unsupported {
                operation: "signal a word that is no semaphore's token",
                transport: TransportKind::CudaIpc,
                missing: "copies can write the next count of a word that only signals write, and \
                          add to none",
            });
        }
        if !address.is_multiple_of(8) {
            return Err(Error::Misaligned {
                what: "signal",
                offset: off,
            });
        }
        self.post(|posts| {
            let count = posts.signals.entry((key, off)).or_insert(0);
            *count += 1;
            let count = *count;
            posts.lane.keep(keep);
            // SAFETY: the word was checked, and its owner is kept.
            unsafe { posts.lane.write_u64(address, count) }?;
            posts.count()
        })
    }

    fn accumulate(&self, _dst: &RegisteredMemory, _off: u64, _operand: i64) -> Result<()> {
        self.end.control.status.check()?;
        Err(Error::Unsupported {
            operation: "accumulate",
            transport: TransportKind::CudaIpc,
            missing: "a GPU's copy engines cannot add; use Ethernet or an HCA",
        })
    }

    fn request_flush(&self) -> Result<u64> {
        self.flush(None)
    }

    fn flush_telling(&self, word: &Arc<FlushWord>, value: u64) -> Option<Result<u64>> {
        let shown = word.show_to(self.device);
        Some(shown.and_then(|()| self.flush(Some((word, value)))))
    }

    fn kick(&self) {}

    fn has_room(&self) -> bool {
        let has = (self.end).with_posts(|posts| posts.has_room(TRIGGER_POSTS));
        // A dead connection has room: what is posted gets its error.
        has.unwrap_or(true)
    }

    fn progress(&self) -> Result<Progress> {
        self.end.with_posts(|posts| {
            posts.look()?;
            Ok(Progress {
                flushed: posts.flushed,
                busy: posts.posted > posts.done,
            })
        })
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_connected(&self) -> bool {
        self.end.control.is_ready()
    }

    fn counts(&self) -> LinkCounts {
        let counts = &self.end.counts;
        LinkCounts {
            doorbells: Some(counts.doorbells.get()),
            completions: Some(counts.completions.get()),
            ..LinkCounts::default()
        }
    }

    fn abort(&self) {
        self.end.control.tell();
    }
}

impl Drop for IpcTransport {
    fn drop(&mut self) {
        let control = &self.end.control;
        let rank = control.rank;
        let linger = Deadline::after(control.deadlines.linger);
        if !control.status.is_failed()
            && let Err(error) = lock(&self.end.posts).settle(linger.remaining())
        {
            tracing::warn!(?rank, %error, "a connection is dropped before its posts are done");
        }
        control.linger(linger);
        let watched: Arc<dyn Watched> = Arc::clone(&self.end) as _;
        control.leave(&self.watcher, &watched, self.handshake.take(), || {});
    }
}
