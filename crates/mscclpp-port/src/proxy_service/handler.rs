// SPDX-License-Identifier: MIT
//! The proxy thread's part of a service: triggers become operations of connections.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_device::abi::{ProxyTrigger, Transfer, Trigger, TriggerError};
use mscclpp_device::trace::now;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::shared::{Entry, Lane, Tables};
use crate::connection::Ends;
use crate::counters::PostCells;
use crate::error::{Error, Result};
use crate::flush::PendingFlushes;
use crate::proxy::{ProxyHandler, ProxyHandlerResult, ProxyProgress};

/// Executes triggers, and remembers what is under way on each connection.
pub(super) struct Handler {
    tables: Arc<Tables>,
    /// By index of the lane; `None` until the first trigger.
    lanes: Vec<Option<LaneState>>,
    /// Lanes with something under way, or with a trigger that is held.
    active: Vec<usize>,
    /// Operations of the held trigger that are posted already.
    steps_done: usize,
    /// When the held trigger was last looked at, if there is one.
    held: Option<Instant>,
}

struct LaneState {
    lane: Arc<Lane>,
    flushes: PendingFlushes,
    active: bool,
}

/// Counts that the trigger of a lane waits for room.
fn hold(held: &mut Option<Instant>, lane: &Lane) -> ProxyHandlerResult {
    let now = Instant::now();
    match held.replace(now) {
        Some(before) => lane.posts.backpressure.lengthen(now - before),
        None => {
            lane.posts.backpressure.begin();
            let Ends { rank, peer, .. } = lane.connection.ends();
            tracing::trace!(rank, peer, "a connection has no room: its trigger waits");
        }
    }
    ProxyHandlerResult::Hold
}

/// Counts until when it did, if it had to.
#[inline]
fn go_on(held: &mut Option<Instant>, lane: &Lane) {
    if let Some(before) = held.take() {
        lane.posts.backpressure.lengthen(before.elapsed());
        let Ends { rank, peer, .. } = lane.connection.ends();
        tracing::trace!(rank, peer, "a trigger waits no more");
    }
}

/// Counts a trigger that was posted.
#[inline]
fn count(posts: &PostCells, trigger: &Trigger) {
    match trigger {
        Trigger::Put { transfer, .. } => {
            posts.puts.grow(1);
            posts.bytes.grow(transfer.size);
        }
        Trigger::Signal { .. } => posts.signals.grow(1),
        Trigger::PutWithSignal { transfer, .. } => {
            posts.puts_with_signal.grow(1);
            posts.bytes.grow(transfer.size);
        }
        Trigger::Flush { .. } => posts.flushes.grow(1),
        Trigger::Accumulate { .. } => posts.accumulates.grow(1),
        Trigger::PutWithSignalAndFlush { transfer, .. } => {
            posts.puts_with_signal.grow(1);
            posts.flushes.grow(1);
            posts.bytes.grow(transfer.size);
        }
    }
}

impl Handler {
    pub(super) fn new(tables: Arc<Tables>) -> Self {
        Self {
            tables,
            lanes: Vec::new(),
            active: Vec::new(),
            steps_done: 0,
            held: None,
        }
    }

    /// Asks one lane how far it is. Returns whether something was finished, and whether something
    /// is still under way.
    fn advance(state: &mut LaneState) -> (bool, bool) {
        match state.lane.connection.link().progress() {
            Ok(progress) => {
                let finished = state.flushes.finish(progress.flushed);
                state.lane.posts.flushes_done.grow(finished as u64);
                (finished > 0, progress.busy || state.flushes.len() > 0)
            }
            Err(error) => {
                // Its status releases who waits for the flushes.
                state.lane.connection.fail(error);
                (state.flushes.abandon() > 0, false)
            }
        }
    }

    fn trigger(&mut self, raw: ProxyTrigger, position: u64) -> ProxyHandlerResult {
        let trigger = raw.decode();
        let id = match &trigger {
            Ok(trigger) => trigger.semaphore(),
            Err(TriggerError::UnknownOpcode { semaphore, .. }) => *semaphore,
            Err(_) => {
                // Decoding has no other error: every field is as wide as its bits.
                return ProxyHandlerResult::Continue;
            }
        };
        let entry = match self.tables.semaphore(id) {
            Ok(entry) => entry,
            Err(error) => {
                self.tables.stray(error);
                return ProxyHandlerResult::Continue;
            }
        };
        let connection = &entry.lane.connection;
        if connection.sticky().is_failed() {
            go_on(&mut self.held, &entry.lane);
            self.steps_done = 0;
            return ProxyHandlerResult::Continue;
        }
        // Before it is known to have room: a trigger that is held waits for progress, also where nothing
        // else is under way.
        let state = lane_state(&mut self.lanes, &entry.lane);
        if !state.active {
            state.active = true;
            self.active.push(entry.lane.index);
        }
        if !connection.link().has_room() {
            return hold(&mut self.held, &entry.lane);
        }
        let result = match trigger {
            Ok(trigger) => {
                let done = &mut self.steps_done;
                execute(
                    &self.tables,
                    entry,
                    &mut state.flushes,
                    trigger,
                    position,
                    done,
                )
                .inspect(|posted| {
                    if matches!(posted, Posted::All) {
                        count(&entry.lane.posts, &trigger);
                    }
                })
                .map_err(|cause| cause.of_trigger(trigger, position, connection.peer()))
            }
            Err(cause) => Err(Error::BadTrigger {
                rank: connection.peer(),
                position,
                cause,
            }),
        };
        match result {
            Ok(Posted::All) => {}
            // Others that post on the connection took the room.
            Ok(Posted::NotAll) => return hold(&mut self.held, &entry.lane),
            Err(error) => entry.lane.connection.fail(error),
        }
        go_on(&mut self.held, &entry.lane);
        self.steps_done = 0;
        ProxyHandlerResult::Continue
    }
}

impl ProxyHandler for Handler {
    fn handle(&mut self, raw: ProxyTrigger, position: u64) -> ProxyHandlerResult {
        if self.tables.trace.get().is_none() {
            return self.trigger(raw, position);
        }
        let began = now();
        let result = self.trigger(raw, position);
        if let Some(trace) = self.tables.trace.get()
            && result != ProxyHandlerResult::Hold
        {
            trace.handled(began, position);
        }
        result
    }

    fn progress(&mut self) -> ProxyProgress {
        let mut total = ProxyProgress::default();
        let lanes = &mut self.lanes;
        self.active.retain(|index| {
            let Some(Some(state)) = lanes.get_mut(*index) else {
                return false;
            };
            let (moved, busy) = Self::advance(state);
            total.moved |= moved;
            total.busy |= busy;
            state.active = busy;
            busy
        });
        total
    }

    fn waits_for(&self) -> Vec<usize> {
        let states = (self.active.iter()).filter_map(|index| self.lanes.get(*index)?.as_ref());
        let mut ranks: Vec<usize> = states
            .filter_map(|state| state.lane.connection.peer())
            .collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    fn park(&mut self, nap: Duration) {
        if self.active.is_empty() {
            thread::sleep(nap);
            return;
        }
        let lanes: Vec<Arc<Lane>> = (self.active.iter())
            .filter_map(|index| Some(Arc::clone(&self.lanes.get(*index)?.as_ref()?.lane)))
            .collect();
        // Asking for the descriptor arms it; what happened before that is found by one more look.
        let mut fds: Vec<PollFd<'_>> = (lanes.iter())
            .filter_map(|lane| lane.connection.link().poll_fd())
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if self.progress().moved {
            return;
        }
        let time = Timespec {
            tv_sec: nap.as_secs() as i64,
            tv_nsec: nap.subsec_nanos().into(),
        };
        // An interrupted or failed poll is a short nap; a failing one must not become a busy loop.
        if let Err(errno) = poll(&mut fds, Some(&time)) {
            tracing::debug!(%errno, "cannot poll connections");
            thread::sleep(nap);
        }
    }
}

/// The state of a lane, made when its first trigger comes.
fn lane_state<'a>(lanes: &'a mut Vec<Option<LaneState>>, lane: &Arc<Lane>) -> &'a mut LaneState {
    if lanes.len() <= lane.index {
        lanes.resize_with(lane.index + 1, || None);
    }
    lanes[lane.index].get_or_insert_with(|| LaneState {
        lane: Arc::clone(lane),
        flushes: PendingFlushes::new(Arc::clone(&lane.flush)),
        active: false,
    })
}

/// Whether all of a trigger's operations have been posted.
enum Posted {
    All,
    NotAll,
}

/// One operation of a trigger.
enum Step {
    Write(Transfer),
    Signal,
    Flush,
    Accumulate(u32, u64, i64),
}

/// Posts what a trigger asks for (always write, signal, flush, in this order) but for the first
/// `done` operations, which were posted when the trigger was offered before.
fn execute(
    tables: &Tables,
    entry: &Entry,
    flushes: &mut PendingFlushes,
    trigger: Trigger,
    position: u64,
    done: &mut usize,
) -> Result<Posted> {
    let steps: &[Step] = match trigger {
        Trigger::Put { transfer, .. } => &[Step::Write(transfer)],
        Trigger::Signal { .. } => &[Step::Signal],
        Trigger::PutWithSignal { transfer, .. } => &[Step::Write(transfer), Step::Signal],
        Trigger::Flush { .. } => &[Step::Flush],
        Trigger::Accumulate {
            dst,
            dst_offset,
            operand,
            ..
        } => &[Step::Accumulate(dst, dst_offset, operand)],
        Trigger::PutWithSignalAndFlush { transfer, .. } => {
            &[Step::Write(transfer), Step::Signal, Step::Flush]
        }
    };
    let link = entry.lane.connection.link();
    for step in &steps[*done..] {
        let posted = match *step {
            Step::Write(at) => link.write(
                tables.memory(at.dst)?,
                at.dst_offset,
                tables.memory(at.src)?,
                at.src_offset,
                at.size,
            ),
            Step::Signal => link.signal(entry.semaphore.remote(), 0),
            Step::Flush => match link.flush_telling(&entry.lane.flush, position + 1) {
                Some(posted) => posted.map(|ticket| flushes.push_told(ticket)),
                None => link
                    .request_flush()
                    .map(|ticket| flushes.push(position, ticket)),
            },
            Step::Accumulate(dst, offset, operand) => {
                link.accumulate(tables.memory(dst)?, offset, operand)
            }
        };
        match posted {
            Ok(()) => {
                *done += 1;
                if let Some(trace) = tables.trace.get()
                    && let Some(post) = link.last_post()
                {
                    trace.posted(post);
                }
            }
            Err(Error::QueueFull { .. }) => return Ok(Posted::NotAll),
            Err(error) => return Err(error),
        }
    }
    Ok(Posted::All)
}
