// SPDX-License-Identifier: MIT
//! A send queue of one side: its memory, and the NIC's part in it, which is to complete requests.

use mlx5_queue::{
    BLOCK_BYTES, COMPLETION_BYTES, Completion, DoorbellRecord, Entry, Failure, QueueIndex,
    QueueNumber, RingSize, Syndrome,
};
use mscclpp_device::abi::{
    AbiHeader, QueueChannel, QueueDeviceHandle, QueueForm, QueueMemory, QueueState, SignalMode,
};

use super::calls::{Call, MOST, Operation};
use super::machine::{Args, Kernel, Machine, Memory, Outcome, Place, Step};

/// Bytes of the library's queue pair.
const PAIR_BYTES: usize = 296;
pub(crate) const NUMBER: u32 = 0x12_3456;
/// What slots hold before anything is written to them.
const STALE: u8 = 0xa5;

/// Who posts to a queue: modes of the library. Shared queues here are for both of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Sharing {
    Exclusive = 0,
    Block = 1,
    Gpu = 2,
}

impl Sharing {
    pub(crate) const ALL: [Self; 3] = [Self::Exclusive, Self::Block, Self::Gpu];

    fn form(self) -> QueueForm {
        match self {
            Self::Exclusive => QueueForm::Exclusive,
            Self::Block | Self::Gpu => QueueForm::Shared,
        }
    }
}

/// What the NIC sees.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) ring: Vec<u8>,
    pub(crate) record: [u8; DoorbellRecord::BYTES],
    pub(crate) doorbell: [u8; 8],
}

/// What a call has found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// As in posts.cpp: done, pending, failed, refused. One, or that of each request looked at.
    pub(crate) what: Vec<u64>,
    /// The end of what is posted.
    pub(crate) end: u64,
    /// The request that failed.
    pub(crate) failed: u64,
    pub(crate) steps: Option<Vec<Step>>,
}

pub(crate) struct Queue {
    kernel: Kernel,
    channel: QueueChannel,
    ring: Box<dyn Memory>,
    record: Box<dyn Memory>,
    doorbell: Box<dyn Memory>,
    completions: Box<dyn Memory>,
    outcome: Box<dyn Memory>,
    outbound: Box<dyn Memory>,
    pair: Place,
    _own: [Place; 2],
    sharing: Sharing,
    /// Where the next call begins, if it is the first.
    begins: Option<u64>,
    size: RingSize,
}

impl Queue {
    /// A queue of `blocks` requests that `kernel` posts to.
    pub(crate) fn new(machine: &dyn Machine, kernel: Kernel, blocks: u32) -> Outcome<Self> {
        let entries = blocks as usize * COMPLETION_BYTES;
        let (ring, completions) = (
            machine.shared(blocks as usize * BLOCK_BYTES)?,
            machine.shared(entries)?,
        );
        let record = machine.shared(DoorbellRecord::BYTES)?;
        let doorbell = machine.shared(8)?;
        let (outcome, outbound) = (
            machine.shared(8 * (2 + blocks as usize))?,
            machine.shared(8)?,
        );
        let state = machine.own(size_of::<QueueState>())?;
        let ready = machine.own(blocks as usize * 4)?;
        let queue = QueueDeviceHandle {
            abi: AbiHeader::of::<QueueDeviceHandle>(),
            send_ring: ring.address(),
            record: record.address() + DoorbellRecord::SEND_OFFSET as u64,
            doorbell: doorbell.address(),
            completions: completions.address(),
            state: state.address,
            ready: ready.address,
            // Only named by requests.
            scratch: 0x00b1_b2b3_b4b5_b6b8,
            scratch_key: 0x00d1_d25a_u32.to_be(),
            number: NUMBER,
            blocks,
            completion_entries: blocks,
            form: 0,
            signal_mode: 0,
            record_in_host_memory: 1,
            signal_every: 1,
            max_message: MOST,
        };
        let token = QueueMemory {
            address: 0x3132_3334_3536_3738,
            size: 8,
            key: 0x00e1_e25a_u32.to_be(),
            access: QueueMemory::REMOTE,
        };
        Ok(Self {
            kernel,
            channel: QueueChannel {
                queue,
                memories: 0,
                token,
                outbound: outbound.address(),
            },
            ring,
            record,
            doorbell,
            completions,
            outcome,
            outbound,
            pair: machine.own(PAIR_BYTES)?,
            _own: [state, ready],
            sharing: Sharing::Exclusive,
            begins: None,
            size: RingSize::new(blocks).map_err(|error| error.to_string())?,
        })
    }

    /// As it is where `start` requests have been posted and are complete.
    pub(crate) fn begin(&mut self, sharing: Sharing, start: u64) {
        self.sharing = sharing;
        self.begins = Some(start);
        self.channel.queue.form = sharing.form() as u32;
        self.channel.queue.signal_every = 1;
        self.ring.write(0, &vec![STALE; self.ring.len()]);
        for (memory, value) in [(&self.record, STALE), (&self.doorbell, STALE)] {
            memory.write(0, &vec![value; memory.len()]);
        }
        let blocks = u64::from(self.size.entries());
        for slot in 0..blocks {
            // The last lap's, if there was one.
            let done = (start + blocks - 1 - slot) / blocks * blocks + slot;
            match done.checked_sub(blocks) {
                Some(index) => self.complete(index, None),
                None => {
                    let mut unwritten = [0; COMPLETION_BYTES];
                    unwritten[63] = Completion::UNWRITTEN;
                    let at = slot as usize * COMPLETION_BYTES;
                    self.completions.write(at, &unwritten);
                }
            }
        }
    }

    /// Requests fail to ask for completions, but the last of a call.
    pub(crate) fn signal_last_only(&mut self) {
        self.channel.queue.signal_every = 0;
    }

    /// Makes a call.
    pub(crate) fn call(&mut self, machine: &dyn Machine, call: &Call) -> Outcome<Found> {
        let written = call.operation.writes_signal();
        let mode = [SignalMode::Atomic, SignalMode::InlineWrite][usize::from(written)];
        self.channel.queue.signal_mode = mode as u32;
        // So that the next count is the call's value.
        self.outbound
            .write(0, &call.value.wrapping_sub(1).to_ne_bytes());
        self.outcome.write(0, &vec![0; self.outcome.len()]);
        let begins = self.begins.take();
        let args = Args {
            channel: self.channel,
            pair: self.pair.address,
            outcome: self.outcome.address(),
            start: begins.unwrap_or(0),
            call: *call,
            sharing: self.sharing as u32,
            fresh: begins.is_some().into(),
        };
        let steps = machine.run(self.kernel, args)?;
        let count = match call.operation {
            Operation::Poll => call.size as usize,
            _ => 1,
        };
        Ok(Found {
            what: (2..2 + count).map(|at| self.outcome.word(at)).collect(),
            end: self.outcome.word(0),
            failed: self.outcome.word(1),
            steps,
        })
    }

    /// What the NIC writes when it has executed a request, or why it has not.
    pub(crate) fn complete(&self, index: u64, failure: Option<Syndrome>) {
        let index = QueueIndex::new(index);
        let opcode = self.opcode(index);
        let entry = match failure {
            None => Entry::Requester {
                opcode,
                bytes: 0,
                timestamp: 0,
            },
            Some(syndrome) => Entry::RequesterError {
                opcode,
                failure: Failure::new(syndrome),
            },
        };
        let completion = Completion {
            queue: QueueNumber::new(NUMBER).expect("24 bits"),
            wqe_counter: index.low16(),
            owner: index.owner(self.size),
            entry,
        };
        let at = index.slot(self.size) as usize * COMPLETION_BYTES;
        self.completions.write(at, &completion.encode());
    }

    fn opcode(&self, index: QueueIndex) -> u8 {
        let mut opcode = [0];
        let at = index.slot(self.size) as usize * BLOCK_BYTES + 3;
        self.ring.read(at, &mut opcode);
        opcode[0]
    }

    /// Changes a bit, as if the device code had written it.
    pub(crate) fn spoil(&self, at: Spoil) {
        let (memory, at) = match at {
            Spoil::Ring(at) => (&self.ring, at),
            Spoil::Record(at) => (&self.record, at),
            Spoil::Doorbell(at) => (&self.doorbell, at),
            Spoil::Owner(index) => {
                let slot = QueueIndex::new(index).slot(self.size) as usize;
                (&self.completions, slot * COMPLETION_BYTES + 63)
            }
        };
        let mut byte = [0];
        memory.read(at, &mut byte);
        memory.write(at, &[byte[0] ^ 1]);
    }

    pub(crate) fn image(&self) -> Image {
        let array = |memory: &dyn Memory| {
            let mut bytes = [0; 8];
            memory.read(0, &mut bytes);
            bytes
        };
        Image {
            ring: self.ring.bytes(),
            record: array(&*self.record),
            doorbell: array(&*self.doorbell),
        }
    }

    pub(crate) fn size(&self) -> RingSize {
        self.size
    }
}

/// What is spoilt: a byte of something, or the owner of a request's completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spoil {
    Ring(usize),
    Record(usize),
    Doorbell(usize),
    Owner(u64),
}
