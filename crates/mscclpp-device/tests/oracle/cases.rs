// SPDX-License-Identifier: MIT
//! Which calls are compared, on which queues.

use mlx5_queue::{BLOCK_BYTES, QueueIndex, Syndrome};

use super::calls::{Call, Operation, calls, requests};
use super::compare::{Compared, Difference, Mask, Ring, Side, compare, cover};
use super::machine::{Kernel, Machine, Outcome};
use super::queue::{Queue, Sharing, Spoil};
use super::report::Report;

/// A queue of each side, on which the same calls are made.
pub(crate) struct Pair<'a> {
    machine: &'a dyn Machine,
    ours: Queue,
    theirs: Queue,
    masks: Vec<Mask>,
    /// The end of what was posted.
    end: u64,
}

impl<'a> Pair<'a> {
    pub(crate) fn new(machine: &'a dyn Machine, blocks: u32) -> Outcome<Self> {
        Ok(Self {
            machine,
            ours: Queue::new(machine, Kernel::Ours, blocks)?,
            theirs: Queue::new(machine, Kernel::Theirs, blocks)?,
            masks: Vec::new(),
            end: 0,
        })
    }

    pub(crate) fn begin(&mut self, sharing: Sharing, start: u64) {
        self.masks = vec![[false; BLOCK_BYTES]; self.ours.size().entries() as usize];
        self.end = start;
        self.ours.begin(sharing, start);
        self.theirs.begin(sharing, start);
    }

    /// Makes a call on both, and compares what it left.
    pub(crate) fn call(&mut self, call: &Call) -> Outcome<Result<Compared, Vec<Difference>>> {
        self.spoilt(call, &[])
    }

    /// The same with something changed on this side behind the call.
    pub(crate) fn spoilt(
        &mut self,
        call: &Call,
        spoilt: &[Spoil],
    ) -> Outcome<Result<Compared, Vec<Difference>>> {
        let first = self.end;
        let here = self.ours.call(self.machine, call)?;
        let there = self.theirs.call(self.machine, call)?;
        for &at in spoilt {
            self.ours.spoil(at);
        }
        self.end += requests(call);
        let (ours, theirs) = (self.ours.image(), self.theirs.image());
        for index in first..self.end {
            let slot = QueueIndex::new(index).slot(self.ours.size()) as usize;
            let block = &ours.ring[slot * BLOCK_BYTES..][..BLOCK_BYTES];
            cover(&mut self.masks[slot], block);
        }
        let ring = Ring {
            size: self.ours.size(),
            masks: &self.masks,
            first,
        };
        let side = |image, found| Side { image, found };
        Ok(compare(
            call,
            &ring,
            &side(&ours, &here),
            &side(&theirs, &there),
        ))
    }

    /// The NIC completes a request of both.
    pub(crate) fn complete(&self, index: u64, failure: Option<Syndrome>) {
        self.ours.complete(index, failure);
        self.theirs.complete(index, failure);
    }

    pub(crate) fn ours(&mut self) -> &mut Queue {
        &mut self.ours
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    fn blocks(&self) -> u64 {
        self.ours.size().entries().into()
    }

    fn takes(&self, call: &Call, sharing: Sharing) -> bool {
        (sharing == Sharing::Exclusive || !call.operation.writes_signal())
            && requests(call) <= self.blocks()
    }
}

/// Sizes of rings.
const SMALL: u32 = 8;
const LARGE: u32 = 64;
const LARGEST: u32 = 32768;

/// Where queues begin: at the start, at the end of the ring, and where 16, 24 and 32 bits end.
fn starts(blocks: u64) -> [u64; 6] {
    [
        0,
        2 * blocks - 3,
        (1 << 16) - 1,
        (1 << 24) - 2,
        (1 << 32) - 1,
        (5 << 40) + (1 << 16) - 3,
    ]
}

/// Each call by itself: every operation and size, mode of sharing, ring and start.
pub(crate) fn alone(machine: &dyn Machine, report: &mut Report) -> Outcome<()> {
    for blocks in [SMALL, LARGE] {
        let mut pair = Pair::new(machine, blocks)?;
        for sharing in Sharing::ALL {
            for start in starts(blocks.into()) {
                for (number, call) in (0u64..).zip(calls()) {
                    if pair.takes(&call, sharing) {
                        let call = call.varied(number * 31 + start);
                        pair.begin(sharing, start);
                        let place =
                            format!("{blocks} blocks, {sharing:?}, from {start}, {call:x?}");
                        report.add(&call, &place, &pair.call(&call)?);
                    }
                }
            }
        }
    }
    let mut pair = Pair::new(machine, LARGEST)?;
    for sharing in Sharing::ALL {
        for start in [LARGEST - 1, 2 * LARGEST - 2].map(u64::from) {
            pair.begin(sharing, start);
            for call in calls().iter().filter(|call| call.size % 8 == 5) {
                if pair.takes(call, sharing) {
                    let place = format!("{LARGEST} blocks, {sharing:?}, from {start}");
                    report.add(call, &place, &pair.call(call)?);
                }
            }
        }
    }
    Ok(())
}

/// Calls on a queue that goes on for some laps: slots hold what was there before, room comes by
/// completions, and looks at completions find the same, up to a request that fails.
pub(crate) fn streams(machine: &dyn Machine, report: &mut Report) -> Outcome<()> {
    for blocks in [SMALL, LARGE] {
        let mut pair = Pair::new(machine, blocks)?;
        let (ring, laps) = (u64::from(blocks), 3);
        for sharing in Sharing::ALL {
            for (seed, start) in (0..).zip([0, (1 << 16) - ring - 3, (1 << 32) - 5]) {
                let mut stream = Stream {
                    place: format!("stream, {blocks} blocks, {sharing:?}, from {start}"),
                    random: seed * 3 + sharing as u64 + ring,
                    complete: start,
                    sharing,
                    calls: calls(),
                };
                pair.begin(sharing, start);
                while pair.end() < start + laps * ring {
                    stream.posts(&mut pair, report)?;
                    stream.looks(&mut pair, report)?;
                }
                stream.fails(&mut pair, report)?;
            }
        }
    }
    Ok(())
}

struct Stream {
    place: String,
    random: u64,
    /// Requests that the NIC has completed.
    complete: u64,
    sharing: Sharing,
    calls: Vec<Call>,
}

impl Stream {
    fn draw(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn check(&self, pair: &mut Pair<'_>, report: &mut Report, call: &Call) -> Outcome<()> {
        let place = format!("{} at {}, {call:x?}", self.place, pair.end());
        report.add(call, &place, &pair.call(call)?);
        Ok(())
    }

    /// Until the next one finds no room.
    fn posts(&mut self, pair: &mut Pair<'_>, report: &mut Report) -> Outcome<()> {
        loop {
            let drawn = self.draw(self.calls.len() as u64) as usize;
            let call = self.calls[drawn].varied(self.random);
            if !pair.takes(&call, self.sharing) {
                continue;
            }
            if pair.end() + requests(&call) > self.complete + pair.blocks() {
                return Ok(());
            }
            self.check(pair, report, &call)?;
        }
    }

    /// Completions come for some, or for all where there would be no room for any call else.
    fn looks(&mut self, pair: &mut Pair<'_>, report: &mut Report) -> Outcome<()> {
        let (from, end) = (self.complete, pair.end());
        let more = self.draw(end - from) + 1;
        for index in from..from + more {
            pair.complete(index, None);
        }
        self.complete += more;
        self.check(pair, report, &Call::look(from, end - from))?;
        self.check(pair, report, &Call::wait(self.complete - 1))
    }

    /// One fails, those behind it are flushed.
    fn fails(&mut self, pair: &mut Pair<'_>, report: &mut Report) -> Outcome<()> {
        for index in self.complete..pair.end() {
            pair.complete(index, None);
        }
        self.complete = pair.end();
        for _ in 0..5 {
            self.check(pair, report, &Call::of(Operation::Signal, 0))?;
        }
        let (from, end) = (self.complete, pair.end());
        let failing = from + 1 + self.draw(end - from - 1);
        for index in from..end {
            let failure = match index {
                _ if index < failing => None,
                _ if index == failing => Some(Syndrome::REMOTE_ACCESS),
                _ => Some(Syndrome::FLUSHED),
            };
            pair.complete(index, failure);
        }
        self.check(pair, report, &Call::look(from, end - from))?;
        for index in from..end {
            self.check(pair, report, &Call::wait(index))?;
        }
        let found = pair.ours.call(pair.machine, &Call::look(end - 1, 1))?;
        if found.failed == failing {
            Ok(())
        } else {
            Err(format!(
                "{}: request {} failed, not {failing}",
                self.place, found.failed
            ))
        }
    }
}
