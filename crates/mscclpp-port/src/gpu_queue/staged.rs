// SPDX-License-Identifier: MIT
//! Memory that a NIC in software reaches by copies on a stream: a GPU's.
//!
//! Each access becomes copies through pinned memory, on one stream, in the order in which they were
//! asked for; none waits for another. A mark behind what was started since the last look tells when
//! all of it is done: many accesses share one. A copy is started after its access was asked for, so
//! it is never older than what had announced the bytes.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use mscclpp_softnic::{Access, AccessId, AccessResult, Bytes, MemoryFault, NicMemory, Submitted};

use super::lock;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::ring::{Ring, Span};
use crate::shared;

/// What is copied at a time: several pieces are under way.
const PIECE: u64 = 512 << 10;
const WORD: u64 = 8;
/// How long to wait for a mark before asking whether the stream has failed.
const CHECK_AFTER: Duration = Duration::from_millis(100);

/// A stream of copies.
pub(super) trait Copies: Send + 'static {
    /// Starts a copy of `len` bytes, behind all that was started before.
    ///
    /// # Safety
    /// Both ranges are valid until the copy is done.
    unsafe fn copy(&mut self, to: u64, from: u64, len: u64) -> Result<()>;

    /// Starts to store a word, aligned; what was started before is visible to whoever sees it.
    ///
    /// # Safety
    /// The word is valid until that is done.
    unsafe fn write_u64(&mut self, at: u64, value: u64) -> Result<()>;

    /// A mark behind all that was started. Marks grow.
    fn mark(&mut self) -> Result<u64>;

    /// The last mark that was reached: what was started before it is done, and visible to all.
    fn reached(&self) -> u64;

    /// Fails if the stream has failed: then no mark is reached any more.
    fn check(&self) -> Result<()>;
}

/// The memory behind a stream.
pub(super) struct StagedMemory<C>(Mutex<State<C>>);

struct State<C> {
    /// Before the pinned memory: dropping it waits for the copies.
    copies: C,
    staging: Staging,
    /// Accesses that are not done, the oldest first. Their steps end in this order.
    accesses: VecDeque<Asked>,
    /// Of these, so many have been started as a whole.
    started: usize,
    steps: VecDeque<Step>,
    /// The last steps, so many, have no mark behind them yet.
    unmarked: usize,
    done: VecDeque<(AccessId, AccessResult)>,
    failure: Option<MemoryFault>,
    /// When something ended last, or the stream was asked how it is.
    heard: Instant,
}

struct Asked {
    id: AccessId,
    access: Access,
    /// Bytes whose steps have been started.
    begun: u64,
}

/// One copy.
struct Step {
    /// What is behind it, once that is known.
    mark: u64,
    staged: Option<Span>,
    /// Where in the access its bytes are.
    offset: u64,
    /// The access is done with it.
    last: bool,
}

/// Pinned memory, of which pieces are handed out and given back in turn.
struct Staging {
    memory: Buffer,
    ring: Ring,
}

impl Staging {
    fn address(&self, piece: Span) -> u64 {
        self.memory.address() + self.ring.offset(piece)
    }

    fn at(&self, piece: Span) -> *mut u8 {
        // Inside of the memory, so that it fits an address.
        (self.memory.as_ptr()).wrapping_add(self.ring.offset(piece) as usize)
    }
}

impl<C: Copies> StagedMemory<C> {
    /// Memory that `copies` reach; `staging` is host memory that they reach, too.
    pub(super) fn new(copies: C, staging: Buffer) -> Self {
        Self(Mutex::new(State {
            copies,
            staging: Staging {
                ring: Ring::new(staging.len()),
                memory: staging,
            },
            accesses: VecDeque::new(),
            started: 0,
            steps: VecDeque::new(),
            unmarked: 0,
            done: VecDeque::new(),
            failure: None,
            heard: Instant::now(),
        }))
    }
}

impl<C: Copies> NicMemory for StagedMemory<C> {
    /// It is one stream, and after a failure nothing is started any more.
    fn in_order(&self) -> bool {
        true
    }

    unsafe fn submit(&self, id: AccessId, access: Access) -> Submitted {
        let mut state = lock(&self.0);
        if length(&access) == Some(0) {
            return Submitted::Done(Ok(Bytes::new()));
        }
        if let Some(failure) = &state.failure {
            return Submitted::Done(Err(failure.clone()));
        }
        if state.accesses.is_empty() {
            state.heard = Instant::now();
        }
        state.accesses.push_back(Asked {
            id,
            access,
            begun: 0,
        });
        // SAFETY: the caller keeps what the access names until it is reported done, which is when
        // the last of its steps has ended.
        unsafe { state.start() };
        Submitted::Pending
    }

    fn complete(&self) -> Option<(AccessId, AccessResult)> {
        let mut state = lock(&self.0);
        if state.done.is_empty() && !state.accesses.is_empty() {
            state.mark();
            state.take_ended();
            // There may be room now.
            // SAFETY: as in `submit`.
            unsafe { state.start() };
            state.mark();
            state.check();
        }
        state.done.pop_front()
    }
}

/// Bytes of an access; `None` for a kind that is not known here.
fn length(access: &Access) -> Option<u64> {
    match access {
        Access::Read { bytes, .. }
        | Access::Write { bytes, .. }
        | Access::Publish { bytes, .. } => Some(bytes.len() as u64),
        Access::Copy { length, .. } => Some(*length),
        _ => None,
    }
}

/// How many bytes at the end of an access are stored by the stream itself, behind all that was
/// started before and with a fence, and not by a copy: who polls such a word finds what was written
/// before it. Signals are words, some of them added to, others written.
fn last_word(access: &Access, address: u64, bytes: &[u8]) -> u64 {
    let is_word = bytes.len() as u64 == WORD && address.is_multiple_of(WORD);
    match access {
        Access::Publish { .. } => WORD,
        Access::Write { .. } if is_word => WORD,
        _ => 0,
    }
}

impl<C: Copies> State<C> {
    /// Starts what there is room for.
    ///
    /// # Safety
    /// What the accesses name is valid until they are reported.
    unsafe fn start(&mut self) {
        while self.failure.is_none() && self.started < self.accesses.len() {
            // SAFETY: the caller's promise.
            match unsafe { self.step() } {
                Ok(None) => return,
                Ok(Some(step)) => {
                    self.started += usize::from(step.last);
                    self.unmarked += 1;
                    self.steps.push_back(step);
                }
                Err(error) => self.fail(error.to_string()),
            }
        }
    }

    /// Starts the next step of the first access that has some left; none if there is no room.
    ///
    /// # Safety
    /// As [`start`](Self::start).
    unsafe fn step(&mut self) -> Result<Option<Step>> {
        let asked = &mut self.accesses[self.started];
        let offset = asked.begun;
        let step = |staged, last| Step {
            mark: u64::MAX,
            staged,
            offset,
            last,
        };
        let (address, bytes, into) = match &asked.access {
            Access::Read { address, bytes } => (*address, bytes, false),
            Access::Write { address, bytes } | Access::Publish { address, bytes } => {
                let last = last_word(&asked.access, *address, bytes);
                if offset + last == bytes.len() as u64
                    && let Some(word) = bytes[offset as usize..].first_chunk()
                {
                    let value = u64::from_ne_bytes(*word);
                    // SAFETY: the caller's promise.
                    unsafe { self.copies.write_u64(*address + offset, value) }?;
                    return Ok(Some(step(None, true)));
                }
                (*address, bytes, true)
            }
            Access::Copy { from, to, length } => {
                // SAFETY: the caller's promise.
                unsafe { self.copies.copy(*to, *from, *length) }?;
                return Ok(Some(step(None, true)));
            }
            other => {
                return Err(Error::InvalidUsage {
                    operation: "reach a GPU's memory",
                    detail: format!("{other:?} is not known"),
                });
            }
        };
        let total = bytes.len() as u64;
        let word = last_word(&asked.access, address, bytes);
        let rest = total - word - offset;
        let taken = self.staging.ring.take(address + offset, rest, PIECE);
        let Some(staged) = taken else {
            return Ok(None);
        };
        let len = staged.len();
        let (here, there) = (self.staging.address(staged), address + offset);
        if into {
            let from = &bytes[offset as usize..(offset + len) as usize];
            // SAFETY: the piece has so many bytes, and is this step's alone.
            unsafe { shared::store(self.staging.at(staged), from) };
            // SAFETY: the caller's promise, and the piece, which is kept until the step has ended.
            unsafe { self.copies.copy(there, here, len) }?;
        } else {
            // SAFETY: as above.
            unsafe { self.copies.copy(here, there, len) }?;
        }
        asked.begun += len;
        Ok(Some(step(Some(staged), asked.begun == total)))
    }

    /// Puts a mark behind what was started since the last.
    fn mark(&mut self) {
        if self.unmarked == 0 {
            return;
        }
        match self.copies.mark() {
            Ok(mark) => {
                for step in self.steps.iter_mut().rev().take(self.unmarked) {
                    step.mark = mark;
                }
                self.unmarked = 0;
            }
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// Takes the steps that have ended.
    fn take_ended(&mut self) {
        let reached = self.copies.reached();
        while let Some(step) = self.steps.pop_front_if(|step| step.mark <= reached) {
            self.heard = Instant::now();
            if let Some(staged) = step.staged {
                if let Some(Asked {
                    access: Access::Read { bytes, .. },
                    ..
                }) = self.accesses.front_mut()
                {
                    let to = &mut bytes[step.offset as usize..][..staged.len() as usize];
                    // SAFETY: the piece has so many bytes, and the copy to it is done.
                    unsafe { shared::load(to, self.staging.at(staged)) };
                }
                self.staging.ring.give_back(staged.end());
            }
            if step.last
                && let Some(Asked { id, access, .. }) = self.accesses.pop_front()
            {
                self.started -= 1;
                let bytes = match access {
                    Access::Read { bytes, .. } => bytes,
                    _ => Bytes::new(),
                };
                self.done.push_back((id, Ok(bytes)));
            }
        }
    }

    /// Looks now and then whether the stream has failed.
    fn check(&mut self) {
        if self.accesses.is_empty() || self.heard.elapsed() < CHECK_AFTER {
            return;
        }
        self.heard = Instant::now();
        if let Err(error) = self.copies.check() {
            self.fail(error.to_string());
        }
    }

    /// Ends all accesses, these and later ones.
    fn fail(&mut self, reason: String) {
        tracing::warn!(
            reason,
            "a NIC in software cannot reach a GPU's memory any more"
        );
        let fault = MemoryFault(reason);
        self.failure = Some(fault.clone());
        let ended = self.accesses.drain(..);
        self.done
            .extend(ended.map(|asked| (asked.id, Err(fault.clone()))));
        self.steps.clear();
        (self.started, self.unmarked) = (0, 0);
    }
}

impl<C> fmt::Debug for StagedMemory<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StagedMemory")
    }
}

#[cfg(test)]
mod tests;
