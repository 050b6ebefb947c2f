// SPDX-License-Identifier: MIT
//! The bytes that device code stores: work requests, record, doorbell. No NIC
//! runs here.

use std::mem::offset_of;

use mlx5_queue::{
    BLOCK_BYTES, DataSegment, DataSegments, Doorbell, DoorbellRecord, Flags, MemoryKey, Operation,
    Payload, QueueIndex, QueueNumber, RemoteAddress, WorkRequest,
};
use mscclpp_device::abi::{
    AbiHeader, BasePortChannelDeviceHandle, PortChannelDeviceHandle, QueueChannel,
    QueueDeviceHandle, QueueForm, QueueMemory, QueueState, SignalMode, Status,
};
use mscclpp_softnic::HostBuffer;

use crate::support::end::baton_at;
use crate::support::{
    Cells, Kernels, Op, Outcome, Rig, Runner, Setup, TestChannel, all_ok, ensure, equal, keep,
    script,
};

const NUMBER: u32 = 0x12_3456;
const INDEX: u64 = 0xabcd;
const REMOTE: u64 = 0x1122_3344_5566_7788;
const REMOTE_KEY: u32 = 0x00b1_b25a;
const LOCAL: u64 = 0xa1a2_a3a4_a5a6_a7a8;
const LOCAL_KEY: u32 = 0x00c1_c25a;
const BLOCKS: u32 = 16;
const STALE: u8 = 0xee;

/// A queue on paper: rings that nobody reads.
struct Paper {
    ring: HostBuffer,
    record: Cells,
    doorbell: Cells,
    handle: PortChannelDeviceHandle,
}

impl Paper {
    fn new(form: QueueForm, signal_mode: SignalMode, signal_every: bool, index: u64) -> Self {
        let (ring, completions) = (HostBuffer::new(1024), HostBuffer::new(1024));
        ring.write(0, &[STALE; 1024]);
        for entry in 0..16 {
            completions.write(entry * 64 + 63, &[0xf1]);
        }
        let state = HostBuffer::new(size_of::<QueueState>());
        let (record, doorbell) = (Cells::new(1), Cells::new(1));
        for word in [
            offset_of!(QueueState, reserved),
            offset_of!(QueueState, limit),
            offset_of!(QueueState, completed),
        ] {
            state.write_u64(word, index);
        }
        let ready = HostBuffer::new(4 * BLOCKS as usize);
        let slot = index as usize % BLOCKS as usize;
        ready.write(slot * 4, &baton_at(index).to_ne_bytes());
        for buffer in [&ring, &completions, &state, &ready] {
            keep(buffer.clone());
        }
        let memory = |address, key: u32, access| QueueMemory {
            address,
            size: 1 << 40,
            key: key.to_be(),
            access,
        };
        let outbound = Cells::new(1);
        outbound.set(0, 0x8b8a_8988_8786_8483);
        let queue = QueueDeviceHandle {
            abi: AbiHeader::of::<QueueDeviceHandle>(),
            send_ring: ring.address(),
            record: record.address(),
            doorbell: doorbell.address(),
            completions: completions.address(),
            state: state.address(),
            ready: match form {
                QueueForm::Exclusive => 0,
                QueueForm::Shared => ready.address(),
            },
            scratch: LOCAL,
            scratch_key: LOCAL_KEY.to_be(),
            number: NUMBER,
            blocks: BLOCKS,
            completion_entries: 16,
            form: form as u32,
            signal_mode: signal_mode as u32,
            record_in_host_memory: 1,
            signal_every: signal_every.into(),
            max_message: 0x40,
        };
        let channel = QueueChannel {
            queue,
            memories: 0,
            token: memory(REMOTE, REMOTE_KEY, QueueMemory::REMOTE),
            outbound: outbound.address(),
        };
        let proxy = TestChannel::new(1);
        let base = BasePortChannelDeviceHandle::on_queue(
            0,
            proxy.semaphore.handle(),
            proxy.fifo.handle(),
            channel,
        );
        let handle = PortChannelDeviceHandle::on_queue(
            base,
            (0, memory(REMOTE, REMOTE_KEY, QueueMemory::REMOTE)),
            (0, memory(LOCAL, LOCAL_KEY, QueueMemory::LOCAL)),
        );
        Self {
            ring,
            record,
            doorbell,
            handle,
        }
    }

    fn post(&self, kernels: &Kernels, ops: &[Op]) -> Outcome {
        // A rig only lends its way to run kernels.
        let rig = Rig::new(Setup::default());
        let results = Runner::direct(&rig, kernels).run_with(self.handle, 1, &[ops.to_vec()])?;
        all_ok(&results.concat())
    }

    fn block(&self, index: u64) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        let slot = index as usize % BLOCKS as usize;
        self.ring.read(slot * BLOCK_BYTES, &mut bytes);
        bytes
    }

    /// The request at `index` is the one that the encoder writes, and nothing behind it is written.
    fn holds(&self, index: u64, flags: Flags, operation: Operation<'_>) -> Outcome {
        let request = WorkRequest {
            queue: QueueNumber::new(NUMBER).map_err(|error| error.to_string())?,
            index: index as u16,
            flags,
            operation,
        };
        let mut expected = [STALE; BLOCK_BYTES];
        request
            .encode(&mut expected)
            .map_err(|error| error.to_string())?;
        equal(&format!("block {index:#x}"), self.block(index), expected)
    }

    /// Record and doorbell say that everything before `end` is posted.
    fn announces(&self, end: u64) -> Outcome {
        let index = QueueIndex::new(end);
        let record = (self.record.get(0) as u32).to_ne_bytes();
        equal("record", record, DoorbellRecord::send_word(index))?;
        let number = QueueNumber::new(NUMBER).map_err(|error| error.to_string())?;
        let doorbell = Doorbell::decode(self.doorbell.get(0).to_ne_bytes());
        equal("queue of the doorbell", doorbell.queue, number)?;
        equal("index of the doorbell", doorbell.low16(), index.low16())
    }
}

fn remote(offset: u64) -> RemoteAddress {
    RemoteAddress {
        address: REMOTE + offset,
        key: MemoryKey::new(REMOTE_KEY),
    }
}

fn local(offset: u64, length: u32) -> DataSegment {
    DataSegment::new(LOCAL + offset, MemoryKey::new(LOCAL_KEY), length).unwrap()
}

fn add(offset: u64, add: u64) -> Operation<'static> {
    Operation::FetchAdd {
        remote: remote(offset),
        add,
        result: local(0, 8),
    }
}

/// Bytes of GPUNetIO's own functions (gpunetio 3.0.0 and 4.0.0), bytes 8 to 10 and 12 to 15 of the
/// first segment masked; `..` is not written.
const GOLDEN: [(&str, &str); 4] = [
    ("nop", "00abcd00 12345601 00000008 00000000"),
    (
        "write",
        "00abce08 12345603 00000008 00000000 11223344 55667788 00b1b25a 00000000
         00000040 00c1c25a a1a2a3a4 a5a6a7a8",
    ),
    (
        "read",
        "00abcf10 12345603 00000008 00000000 11223344 55667788 00b1b25a 00000000
         00000040 00c1c25a a1a2a3a4 a5a6a7a8",
    ),
    (
        "fetch-and-add",
        "00abd012 12345604 00000008 00000000 11223344 55667788 00b1b25a 00000000
         01020304 05060708 01020304 05060708 00000008 00c1c25a a1a2a3a4 a5a6a7a8",
    ),
];

pub(crate) fn golden(kernels: &Kernels) -> Outcome {
    for form in [QueueForm::Exclusive, QueueForm::Shared] {
        let paper = Paper::new(form, SignalMode::Atomic, true, INDEX);
        let ops = [
            Op::bound(script::PUT, 0, 0, 0),
            Op::bound(script::PUT, 0, 0, 0x40),
            Op::bound(script::GET, 0, 0, 0x40),
            // Its address has to be a multiple of 8.
            Op::accumulate(0, 0x0102_0304_0506_0708),
        ];
        paper.post(kernels, &ops)?;
        for (i, (name, hex)) in GOLDEN.into_iter().enumerate() {
            let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
            let bytes: Vec<u8> = digits
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
                .collect();
            let found = paper.block(INDEX + i as u64);
            for (at, byte) in found.iter().enumerate() {
                let masked = (8..11).contains(&at) || (12..16).contains(&at);
                let expected = bytes.get(at).unwrap_or(&STALE);
                ensure(masked || byte == expected, || {
                    format!("{name}, byte {at}: {byte:02x}, not {expected:02x}")
                })?;
            }
        }
        paper.announces(INDEX + 4)?;
        // GPUNetIO's doorbell has bits 16 to 23 of the position in its first byte; nobody reads it.
        let bell = paper.doorbell.get(0).to_ne_bytes();
        equal(
            "doorbell",
            &bell[1..],
            &[0xab, 0xd1, 0, 0x12, 0x34, 0x56, 0],
        )?;
    }
    Ok(())
}

#[test]
fn requests_record_and_doorbell_are_the_golden_bytes() {
    golden(&Kernels::of("queue")).unwrap();
}

/// Every operation in both forms, with the flags of its place in its post.
pub(crate) fn as_the_encoder_writes(kernels: &Kernels) -> Outcome {
    for (form, every) in [
        (QueueForm::Exclusive, false),
        (QueueForm::Exclusive, true),
        (QueueForm::Shared, true),
    ] {
        let paper = Paper::new(form, SignalMode::Atomic, every, 0xffff_fffa);
        let ops = [
            // Four pieces and a signal: the ring holds two such posts in no piece.
            Op::bound(script::PUT_SIGNAL, 0x18, 0x21, 3 * 0x40 + 7),
            Op::of(script::SIGNAL),
            Op::bound(script::GET, 0x100, 1, 0x41),
            Op::accumulate(8, -1),
            Op::bound(script::PUT_SIGNAL, 2, 3, 0x3f),
        ];
        paper.post(kernels, &ops)?;
        let other = if every {
            Flags::SIGNALLED
        } else {
            Flags::UNSIGNALLED
        };
        let mut index = 0xffff_fffa;
        let mut next = || {
            index += 1;
            index - 1
        };
        for piece in 0..4 {
            let length = if piece == 3 { 7 } else { 0x40 };
            let list = [local(0x21 + piece * 0x40, length).encode()];
            let write = Operation::Write {
                remote: remote(0x18 + piece * 0x40),
                payload: Payload::Gather(DataSegments::new(&list)),
                immediate: None,
            };
            paper.holds(next(), other, write)?;
        }
        paper.holds(next(), Flags::SIGNALLED, add(0, 1))?;
        paper.holds(next(), Flags::SIGNALLED, add(0, 1))?;
        for (from, length, flags) in [(0, 0x40, other), (0x40, 1, Flags::SIGNALLED)] {
            let list = [local(1 + from, length).encode()];
            let read = Operation::Read {
                remote: remote(0x100 + from),
                scatter: DataSegments::new(&list),
            };
            paper.holds(next(), flags, read)?;
        }
        paper.holds(next(), Flags::SIGNALLED, add(8, u64::MAX))?;
        let list = [local(3, 0x3f).encode()];
        let write = Operation::Write {
            remote: remote(2),
            payload: Payload::Gather(DataSegments::new(&list)),
            immediate: None,
        };
        paper.holds(next(), other, write)?;
        paper.holds(next(), Flags::SIGNALLED, add(0, 1))?;
        paper.announces(0xffff_fffa + 11)?;
        // The next slot is untouched.
        equal("after them", paper.block(0xffff_fffa + 11), [STALE; 64])?;
    }
    // A signal as a write of the next count.
    let paper = Paper::new(QueueForm::Exclusive, SignalMode::InlineWrite, false, 0xfffe);
    paper.post(kernels, &[Op::of(script::SIGNAL), Op::of(script::SIGNAL)])?;
    for (index, count) in [
        (0xfffe, 0x8b8a_8988_8786_8484u64),
        (0xffff, 0x8b8a_8988_8786_8485),
    ] {
        let write = Operation::Write {
            remote: remote(0),
            payload: Payload::Inline(&count.to_le_bytes()),
            immediate: None,
        };
        paper.holds(index, Flags::SIGNALLED, write)?;
    }
    paper.announces(0x1_0000)
}

#[test]
fn requests_are_those_of_the_encoder_across_2_to_the_32() {
    as_the_encoder_writes(&Kernels::of("queue")).unwrap();
}

/// Calls that name what is not there or does not fit post nothing.
pub(crate) fn bounds(kernels: &Kernels) -> Outcome {
    for form in [QueueForm::Exclusive, QueueForm::Shared] {
        let rig = Rig::new(Setup {
            form,
            ..Setup::default()
        });
        let runner = Runner::direct(&rig, kernels);
        let size = rig.setup.memory as u64;
        use crate::support::nic::{PART, PART_FROM, SOURCE, TARGET};
        use mscclpp_device::abi::MAX_MEMORIES;
        use script::{ACCUMULATE, GET, PUT, PUT_SIGNAL, PUT_SIGNAL_FLUSH};
        let part = size - PART_FROM as u64;
        let mut wrong = Vec::new();
        for kind in [PUT, PUT_SIGNAL, PUT_SIGNAL_FLUSH, GET] {
            wrong.extend([
                Op::bound(kind, size, 0, 1),
                Op::bound(kind, 0, size, 1),
                Op::bound(kind, size - 7, 0, 8),
                Op::bound(kind, 0, size - 7, 8),
                Op::bound(kind, u64::MAX - 3, 0, 8),
                Op::bound(kind, 0, u64::MAX - 3, 8),
                Op::bound(kind, 8, 8, u64::MAX - 3),
                Op::bound(kind, size + 1, 0, 0),
                Op::same(kind, 1, size),
                Op::ids(kind, (TARGET, 0), (SOURCE, 0), size + 1),
                // The other way round, and memories of the other kind.
                Op::ids(kind, (SOURCE, 0), (TARGET, 0), 8),
                Op::ids(kind, (TARGET, 0), (TARGET, 0), 8),
                Op::ids(kind, (SOURCE, 0), (SOURCE, 0), 8),
                // A registration's part has its own end.
                Op::ids(kind, (PART, part - 7), (SOURCE, 0), 8),
            ]);
            for absent in [0, TARGET + 1, MAX_MEMORIES, u32::MAX] {
                wrong.push(Op::ids(kind, (absent, 0), (SOURCE, 0), 8));
                wrong.push(Op::ids(kind, (TARGET, 0), (absent, 0), 8));
                wrong.push(Op::ids(kind, (absent, 0), (SOURCE, 0), 0));
            }
        }
        for offset in [1, 4, 7, size, size - 7, u64::MAX, u64::MAX - 7] {
            wrong.push(Op::accumulate(offset, 1));
        }
        wrong.push(Op::ids(ACCUMULATE, (TARGET + 1, 0), (0, 0), 0));
        wrong.push(Op::ids(ACCUMULATE, (SOURCE, 0), (0, 0), 0));
        let results = runner.run(&wrong)?;
        for (op, result) in wrong.iter().zip(results) {
            let expected = Status::InvalidArgument as u64;
            equal(&format!("{op:?}"), result, expected)?;
        }
        equal("requests", rig.ends[0].reserved(), 0)?;
        equal("doorbells", rig.devices[0].counters().doorbells, 0)?;
        // The last bytes are still inside.
        all_ok(&runner.run(&[
            Op::same(PUT_SIGNAL_FLUSH, size - 8, 8),
            Op::same(PUT, size, 0),
            Op::ids(PUT, (PART, part - 8), (SOURCE, 0), 8),
            Op::accumulate(size - 8, 0),
            Op::of(script::FLUSH),
        ])?)?;
        rig.no_violations()?;
    }
    Ok(())
}

#[test]
fn what_is_out_of_bounds_is_refused_and_nothing_is_posted() {
    bounds(&Kernels::of("queue")).unwrap();
}
