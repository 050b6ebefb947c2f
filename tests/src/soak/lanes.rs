// SPDX-License-Identifier: MIT
//! Data over channels, each word of which says whose it is.

use anyhow::{Context as _, ensure};
use mscclpp_bootstrap::{Bootstrap, Deadline};
use mscclpp_port::{BasePortChannel, Buffer, Device, MemoryId};

use super::count::Counts;
use super::draw::{Script, Step, draw};
use crate::harness::TestResult;
use crate::kernels::{Call, Range, Steps};

/// Most lanes between two ranks.
pub(super) const MOST: u64 = 3;
/// Bytes for what one lane carries at a time.
const SLOT: u64 = 32 << 10;

/// One channel to a peer.
pub(super) struct Lane {
    pub(super) peer: usize,
    /// Among those to the peer.
    pub(super) index: u64,
    pub(super) channel: BasePortChannel,
    /// The peer's memory.
    pub(super) dst: MemoryId,
    /// This rank's.
    pub(super) src: MemoryId,
}

/// What a rank's puts come from, and what those of its peers go to: a slot a lane, and behind all
/// slots a word a lane for accumulates.
pub(super) struct Room {
    pub(super) out: Buffer,
    pub(super) into: Buffer,
    ranks: u64,
}

impl Room {
    pub(super) fn new(ranks: usize) -> anyhow::Result<Self> {
        let ranks = ranks as u64;
        let bytes = ranks * MOST * (SLOT + 8);
        Ok(Self {
            out: Buffer::new(Device::cpu(), bytes)?,
            into: Buffer::new(Device::cpu(), bytes)?,
            ranks,
        })
    }

    fn slot(&self, rank: usize, index: u64) -> u64 {
        (rank as u64 * MOST + index) * SLOT
    }

    fn word(&self, rank: usize, index: u64) -> u64 {
        self.ranks * MOST * SLOT + (rank as u64 * MOST + index) * 8
    }
}

/// Which data these are: of a run, an era in it, and an exchange in that.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) seed: u64,
    pub(super) era: u64,
    pub(super) exchange: u64,
}

impl Moment {
    /// What is sent over a lane.
    fn script(self, from: usize, to: usize, index: u64, accumulate: bool) -> Script {
        let purpose = [self.era, self.exchange, from as u64, to as u64, index];
        Script::draw(draw(self.seed, &purpose), SLOT, accumulate)
    }

    /// The bytes of it: two words in turn, whose it is and which it is.
    fn payload(self, from: usize, to: usize, index: u64, bytes: u64) -> Vec<u8> {
        let lane = (from as u64) << 16 | (to as u64) << 8 | index;
        let whose = self.era << 40 | (self.exchange & 0xffff) << 24 | lane;
        let words = (0..bytes / 8).map(|at| if at % 2 == 0 { whose } else { at ^ self.seed });
        words.flat_map(u64::to_le_bytes).collect()
    }
}

/// Sends over all lanes what both ends have drawn, and checks what has come. All ranks call it.
pub(super) fn exchange(
    bootstrap: &dyn Bootstrap,
    (room, lanes): (&Room, &[Lane]),
    moment: Moment,
    accumulate: bool,
    (counts, deadline): (&mut Counts, Deadline),
) -> TestResult {
    let rank = bootstrap.rank();
    let script = |from, to, lane: &Lane| moment.script(from, to, lane.index, accumulate);
    let mut calls = Vec::new();
    for (number, lane) in lanes.iter().enumerate() {
        let script = script(rank, lane.peer, lane);
        let payload = moment.payload(rank, lane.peer, lane.index, script.bytes);
        room.out.write(room.slot(lane.peer, lane.index), &payload)?;
        let range = |at, size| Range {
            dst: lane.dst,
            dst_offset: room.slot(rank, lane.index) + at,
            src: lane.src,
            src_offset: room.slot(lane.peer, lane.index) + at,
            size,
        };
        for step in &script.steps {
            counts.did(step.name(), 1);
            let call = match *step {
                Step::Put(at, size) => Call::Put(range(at, size)),
                Step::PutWithSignal(at, size) => Call::PutWithSignal(range(at, size)),
                Step::PutWithSignalAndFlush(at, size) => {
                    Call::PutWithSignalAndFlush(range(at, size))
                }
                Step::Signal => Call::Signal,
                Step::Flush => Call::Flush,
                Step::Accumulate(operand) => {
                    Call::Accumulate(lane.dst, room.word(rank, lane.index), operand)
                }
            };
            calls.push((number, call));
        }
    }
    for number in 0..lanes.len() {
        counts.did("flush", 1);
        calls.push((number, Call::Flush));
    }
    for (number, lane) in lanes.iter().enumerate() {
        let signals = script(lane.peer, rank, lane).signals;
        counts.did("wait", signals as u64);
        calls.extend([(number, Call::Wait)].repeat(signals));
    }
    if !lanes.is_empty() {
        let channels: Vec<_> = lanes.iter().map(|lane| lane.channel.clone()).collect();
        Steps::run(&channels, &calls, deadline)?;
    }
    for lane in lanes {
        let script = script(lane.peer, rank, lane);
        check(room, moment, (lane.peer, rank, lane.index), &script)
            .with_context(|| format!("from rank {} by lane {}", lane.peer, lane.index))?;
        counts.did("bytes checked", script.bytes);
    }
    // Nobody writes the next exchange's data before all have looked at these.
    Ok(bootstrap.barrier()?)
}

fn check(
    room: &Room,
    moment: Moment,
    (from, to, index): (usize, usize, u64),
    script: &Script,
) -> TestResult {
    let mut found = vec![0; script.bytes as usize];
    room.into.read(room.slot(from, index), &mut found)?;
    let expected = moment.payload(from, to, index, script.bytes);
    if let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at]) {
        let word = |bytes: &[u8]| {
            let start = at / 8 * 8;
            u64::from_le_bytes(bytes[start..start + 8].try_into().expect("8 bytes"))
        };
        let (found, expected) = (word(&found), word(&expected));
        anyhow::bail!("at byte {at} is {found:#x} instead of {expected:#x}");
    }
    let word = room.word(from, index);
    let sum = room.into.load_u64(word)?;
    ensure!(
        sum == script.sum,
        "the sum is {sum:#x} instead of {:#x}",
        script.sum
    );
    room.into.store_u64(word, 0)?;
    Ok(())
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Put(..) => "put",
            Self::PutWithSignal(..) => "putWithSignal",
            Self::PutWithSignalAndFlush(..) => "putWithSignalAndFlush",
            Self::Signal => "signal",
            Self::Flush => "flush",
            Self::Accumulate(_) => "accumulate",
        }
    }
}
