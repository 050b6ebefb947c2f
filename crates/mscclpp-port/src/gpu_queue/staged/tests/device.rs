// SPDX-License-Identifier: MIT
//! A NIC all of whose queues, and the bytes that they name, are reached so.

use std::time::Duration;

use mlx5_queue::{
    Completion, DataSegment, DataSegments, Doorbell, DoorbellRecord, Flags, Operation, Payload,
    QueueIndex, RemoteAddress, RingSize, WorkRequest,
};
use mscclpp_softnic as nic;

use super::*;

const BLOCKS: u32 = 64;
const RING: u64 = BLOCKS as u64 * 64;
const DATA: u64 = 64 << 10;

/// A queue pair whose memory is one buffer: send ring, completions, record.
struct Side {
    pair: nic::QueuePair,
    buffer: Buffer,
    page: nic::DoorbellPage,
    head: QueueIndex,
}

const RECORD: u64 = 2 * RING;

fn range(memory: &Arc<StagedMemory<Stream>>, buffer: &Buffer) -> nic::MemoryRange {
    let (address, owner) = (buffer.address(), Arc::new(buffer.clone()));
    let memory = Arc::clone(memory) as Arc<dyn NicMemory>;
    // SAFETY: the owner keeps the buffer, which the test's stream reaches.
    unsafe { nic::MemoryRange::new(memory, address, buffer.len(), owner) }
}

impl Side {
    fn new(domain: &nic::ProtectionDomain, memory: &Arc<StagedMemory<Stream>>) -> Self {
        let buffer = Buffer::new(Device::cpu(), 2 * RING + 64).unwrap();
        for entry in 0..u64::from(BLOCKS) {
            let last = RING + entry * 64 + 63;
            buffer.write(last, &[Completion::UNWRITTEN]).unwrap();
        }
        let all = range(memory, &buffer);
        let part = |offset, len| all.slice(offset, len).unwrap();
        let device = domain.device();
        let page = device.allocate_doorbell_page().unwrap();
        let completions = device
            .create_completion_queue(part(RING, RING), BLOCKS)
            .unwrap();
        let pair = domain
            .create_queue_pair(nic::QueuePairConfig {
                send_ring: part(0, RING),
                send_blocks: BLOCKS,
                record: part(RECORD, DoorbellRecord::BYTES as u64),
                send_completions: &completions,
                receive: None,
                page: &page,
                trigger: None,
            })
            .unwrap();
        Self {
            pair,
            buffer,
            page,
            head: QueueIndex::ZERO,
        }
    }

    fn connect(&self, peer: &Self) {
        let remote = peer.pair.address();
        let steps = [
            nic::Transition::Init(nic::InitAttributes::ALL),
            nic::Transition::ReadyToReceive(nic::ReceiveAttributes::new(remote)),
            nic::Transition::ReadyToSend(nic::SendAttributes::default()),
        ];
        for step in steps {
            self.pair.modify(step).unwrap();
        }
    }

    /// Posts a request, as kernels do: it, the doorbell, the record, the doorbell.
    fn post(&mut self, operation: Operation<'_>) -> QueueIndex {
        let index = self.head;
        let request = WorkRequest {
            queue: self.pair.number(),
            index: index.low16(),
            flags: Flags::SIGNALLED,
            operation,
        };
        let mut slot = [0; 64];
        let len = request.encode(&mut slot).unwrap();
        let size = RingSize::new(BLOCKS).unwrap();
        let at = u64::from(index.slot(size)) * 64;
        self.buffer.write(at, &slot[..len]).unwrap();
        self.head = index.advance(1);
        let doorbell = Doorbell::new(self.pair.number(), self.head);
        self.page.ring(doorbell);
        let word = DoorbellRecord::send_word(self.head);
        let record = RECORD + DoorbellRecord::SEND_OFFSET as u64;
        self.buffer.write(record, &word).unwrap();
        self.page.ring(doorbell);
        index
    }

    /// Waits until a request is complete.
    fn wait(&self, index: QueueIndex) {
        let until = Instant::now() + Duration::from_secs(20);
        let size = RingSize::new(BLOCKS).unwrap();
        let at = RING + u64::from(index.slot(size)) * 64;
        loop {
            let mut entry = [0; 64];
            // The last word comes last, and is looked at first.
            self.buffer.load_u64(at + 56).unwrap();
            self.buffer.read(at, &mut entry).unwrap();
            if let Some(completion) = Completion::poll(&entry, index, size).unwrap() {
                assert_eq!(completion.failure(), None);
                return;
            }
            assert!(
                Instant::now() < until,
                "request {index:?} does not complete"
            );
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_nic_works_on_memory_that_answers_late() {
    let stream = Stream::default();
    stream.late().at_a_time = Some(2);
    let staging = Buffer::new(Device::cpu(), 1 << 20).unwrap();
    let memory = Arc::new(StagedMemory::new(stream, staging));
    let mut config = nic::DeviceConfig::default();
    // Longer than this thread is kept waiting between a record and its doorbell.
    config.checks.audit_interval = Duration::from_secs(2);
    let audits = config.checks.audit_interval;
    let device = nic::Device::open("soft0", config).unwrap();
    let domain = device.allocate_domain().unwrap();
    let mut here = Side::new(&domain, &memory);
    let there = Side::new(&domain, &memory);
    here.connect(&there);
    there.connect(&here);
    let [source, target] = [DATA; 2].map(|len| Buffer::new(Device::cpu(), len + 16).unwrap());
    let register = |buffer: &Buffer| {
        let flags = nic::AccessFlags::ALL;
        let strict = nic::WriteOrdering::Strict;
        let range = range(&memory, buffer);
        domain.register(range, flags, strict).unwrap()
    };
    let (from, to) = (register(&source), register(&target));
    for round in 0..300u64 {
        let len = 1 + (round * 977) % DATA;
        let sent = pattern(round as usize, len as usize);
        source.write(0, &sent).unwrap();
        let remote = |offset| RemoteAddress {
            address: target.address() + offset,
            key: to.key(),
        };
        let segment = DataSegment::new(source.address(), from.key(), len as u32).unwrap();
        here.post(Operation::Write {
            remote: remote(0),
            payload: Payload::Gather(DataSegments::new(&[segment.encode()])),
            immediate: None,
        });
        let result = DataSegment::new(source.address() + DATA, from.key(), 8).unwrap();
        let signal = here.post(Operation::FetchAdd {
            remote: remote(DATA),
            add: 1,
            result,
        });
        // Who sees the signal sees the payload.
        let until = Instant::now() + Duration::from_secs(20);
        while target.load_u64(DATA).unwrap() != round + 1 {
            assert!(Instant::now() < until, "no signal {round}");
            std::thread::yield_now();
        }
        let mut arrived = vec![0; len as usize];
        target.read(0, &mut arrived).unwrap();
        assert_eq!(arrived, sent, "round {round}");
        here.wait(signal);
        assert_eq!(source.load_u64(DATA).unwrap(), round);
    }
    // Two of them.
    std::thread::sleep(3 * audits);
    assert_eq!(device.take_violations(), []);
}
