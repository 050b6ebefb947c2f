// SPDX-License-Identifier: MIT
//! `stress.cpp`.

use mscclpp_device::abi::PortChannelDeviceHandle;
use mscclpp_port::{Buffer, PortChannel};

use super::{Kept, Launched, Report, address, block, device_of, fits, kernel};

kernel!(COUNT = conformance_count(CountArgs) in "stress.cpp");
kernel!(OWN_FLUSH = conformance_own_flush(OwnFlushArgs) in "stress.cpp");
kernel!(GENERATIONS = conformance_generations(GenerationsArgs) in "stress.cpp");

#[derive(Clone, Copy)]
#[repr(C)]
struct CountArgs {
    channel: PortChannelDeviceHandle,
    report: u64,
    count: u64,
    sends: u32,
    reserved: u32,
}

/// Each thread sends its word with a signal, again and again, or waits for as many signals.
#[derive(Clone)]
pub struct Count {
    /// Its memories hold 8 bytes a thread.
    pub channel: PortChannel,
    /// Of a thread.
    pub count: u64,
    /// Sends, or waits.
    pub sends: bool,
}

impl Count {
    /// Starts the kernel in one block.
    pub fn launch(&self, threads: u32) -> anyhow::Result<Launched> {
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let args = CountArgs {
            channel: self.channel.device_handle(),
            report: report.address(),
            count: self.count,
            sends: self.sends.into(),
            reserved: 0,
        };
        let kept = Kept::new([&self.channel], self.clone());
        Launched::start(&COUNT, device, block(threads), args, kept.report(&report))
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct OwnFlushArgs {
    channel: PortChannelDeviceHandle,
    words: u64,
    report: u64,
    iterations: u64,
}

/// Each thread sends a word of its own to place after place, and changes it right after its own
/// flush.
#[derive(Clone)]
pub struct OwnFlush {
    /// From `words` to 8 bytes a thread and iteration.
    pub channel: PortChannel,
    /// 8 bytes a thread.
    pub words: Buffer,
    /// Sends of a thread.
    pub iterations: u64,
}

impl OwnFlush {
    /// What the peer's memory holds at the end.
    pub fn expected(&self, threads: u32) -> Vec<u8> {
        (0..u64::from(threads) * self.iterations)
            .flat_map(|place| (place + 1).to_le_bytes())
            .collect()
    }

    /// Starts the kernel in one block.
    pub fn launch(&self, threads: u32) -> anyhow::Result<Launched> {
        fits(&self.words, 8 * u64::from(threads))?;
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let args = OwnFlushArgs {
            channel: self.channel.device_handle(),
            words: address(&self.words),
            report: report.address(),
            iterations: self.iterations,
        };
        let kept = Kept::new([&self.channel], self.clone());
        Launched::start(
            &OWN_FLUSH,
            device,
            block(threads),
            args,
            kept.report(&report),
        )
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GenerationsArgs {
    channel: PortChannelDeviceHandle,
    outgoing: u64,
    incoming: u64,
    report: u64,
    first: u64,
    rounds: u64,
    messages: u64,
    words: u64,
    rank: u32,
    planted: u32,
}

/// Two ranks exchange rounds of messages; each word of each message says which it belongs to.
#[derive(Clone)]
pub struct Generations {
    /// From `outgoing` here to `incoming` there.
    pub channel: PortChannel,
    /// Two halves of `messages` times `words` times 8 bytes.
    pub outgoing: Buffer,
    /// The same.
    pub incoming: Buffer,
    /// Number of the first round: launches on the same memory go on with it.
    pub first: u64,
    /// How often.
    pub rounds: u64,
    /// Messages of a round, under 256.
    pub messages: u64,
    /// 64-bit words of a message.
    pub words: u64,
    /// 0 or 1.
    pub rank: usize,
    /// Whether the last message of the last round is signalled and never sent, so that the peer's
    /// kernel has to report what the round before the last left there. Of one rank only.
    pub planted: bool,
}

impl Generations {
    /// Starts the kernel in one block.
    pub fn launch(&self, threads: u32) -> anyhow::Result<Launched> {
        let bytes = 16 * self.messages * self.words;
        fits(&self.outgoing, bytes)?;
        fits(&self.incoming, bytes)?;
        let device = device_of(&self.channel);
        let report = Report::new(device)?;
        let args = GenerationsArgs {
            channel: self.channel.device_handle(),
            outgoing: address(&self.outgoing),
            incoming: address(&self.incoming),
            report: report.address(),
            first: self.first,
            rounds: self.rounds,
            messages: self.messages,
            words: self.words,
            rank: self.rank as u32,
            planted: self.planted.into(),
        };
        let kept = Kept::new([&self.channel], self.clone());
        Launched::start(
            &GENERATIONS,
            device,
            block(threads),
            args,
            kept.report(&report),
        )
    }
}
