// SPDX-License-Identifier: MIT
//! A poster for tests: what device code does, on the host.
#![allow(dead_code)]

pub(crate) mod shared_memory;
pub(crate) mod slow_memory;

use std::time::{Duration, Instant};

use mlx5_queue::*;
use mscclpp_softnic::*;

/// A send queue and its completions, as a poster sees them.
pub(crate) struct Poster {
    pub(crate) pair: QueuePair,
    pub(crate) ring: HostBuffer,
    pub(crate) record: HostBuffer,
    pub(crate) entries: HostBuffer,
    pub(crate) receives: HostBuffer,
    pub(crate) receive_entries: HostBuffer,
    pub(crate) size: RingSize,
    pub(crate) head: QueueIndex,
    pub(crate) polled: QueueIndex,
    pub(crate) receive_polled: QueueIndex,
    pub(crate) received: QueueIndex,
}

pub(crate) const RECEIVE_ENTRIES: u32 = 8;

/// How a poster is made.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) blocks: u32,
    pub(crate) trigger: Option<TriggerMode>,
    pub(crate) rights: InitAttributes,
    pub(crate) mtu: (Mtu, Mtu),
    pub(crate) reads: (u8, u8),
    pub(crate) send: SendAttributes,
    pub(crate) receive_queue: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            blocks: 64,
            trigger: None,
            rights: InitAttributes::ALL,
            mtu: (Mtu::Bytes4096, Mtu::Bytes4096),
            reads: (16, 16),
            send: SendAttributes::default(),
            receive_queue: false,
        }
    }
}

impl Poster {
    /// A queue pair in state Reset, in host memory.
    pub(crate) fn new(domain: &ProtectionDomain, setup: &Setup) -> Self {
        Self::within(domain, setup, &HostBuffer::range)
    }

    /// A queue pair in state Reset, in the memory that `reach` makes of a
    /// buffer.
    pub(crate) fn within(
        domain: &ProtectionDomain,
        setup: &Setup,
        reach: &dyn Fn(&HostBuffer) -> MemoryRange,
    ) -> Self {
        let device = domain.device();
        let size = RingSize::new(setup.blocks).unwrap();
        let bytes = setup.blocks as usize * 64;
        let (ring, record, entries) = (
            HostBuffer::new(bytes),
            HostBuffer::new(8),
            HostBuffer::new(bytes),
        );
        let (receives, receive_entries) = (
            HostBuffer::new(RECEIVE_ENTRIES as usize * 32),
            HostBuffer::new(4096),
        );
        for buffer in [&entries, &receive_entries] {
            for slot in 0..buffer.len() / 64 {
                buffer.write(slot * 64 + 63, &[Completion::UNWRITTEN]);
            }
        }
        let completions = device
            .create_completion_queue(reach(&entries), setup.blocks)
            .unwrap();
        let receive_completions = device
            .create_completion_queue(reach(&receive_entries), RECEIVE_ENTRIES)
            .unwrap();
        let page = device.allocate_doorbell_page().unwrap();
        let receive = setup.receive_queue.then(|| ReceiveQueueConfig {
            ring: reach(&receives),
            entries: RECEIVE_ENTRIES,
            segments: 2,
            completions: &receive_completions,
        });
        let pair = domain
            .create_queue_pair(QueuePairConfig {
                send_ring: reach(&ring),
                send_blocks: setup.blocks,
                record: reach(&record),
                send_completions: &completions,
                receive,
                page: &page,
                trigger: setup.trigger,
            })
            .unwrap();
        let zero = QueueIndex::ZERO;
        Self {
            pair,
            ring,
            record,
            entries,
            receives,
            receive_entries,
            size,
            head: zero,
            polled: zero,
            receive_polled: zero,
            received: zero,
        }
    }

    pub(crate) fn connect(&self, remote: QueueAddress, setup: &Setup, mtu: Mtu) {
        self.pair.modify(Transition::Init(setup.rights)).unwrap();
        let receive = ReceiveAttributes {
            mtu,
            max_outstanding_reads: setup.reads.1,
            ..ReceiveAttributes::new(remote)
        };
        self.pair
            .modify(Transition::ReadyToReceive(receive))
            .unwrap();
        let send = SendAttributes {
            max_outstanding_reads: setup.reads.0,
            ..setup.send
        };
        self.pair.modify(Transition::ReadyToSend(send)).unwrap();
    }

    /// Writes a request into its slot, for index `head`, and moves on.
    pub(crate) fn write(&mut self, flags: Flags, operation: Operation<'_>) -> QueueIndex {
        let index = self.head;
        let request = WorkRequest {
            queue: self.pair.number(),
            index: index.low16(),
            flags,
            operation,
        };
        let mut bytes = [0; MAX_BLOCKS * BLOCK_BYTES];
        let written = request.encode(&mut bytes).unwrap();
        for (i, segment) in bytes[..written].chunks(BLOCK_BYTES).enumerate() {
            let slot = index.advance(i as u64).slot(self.size) as usize;
            self.ring.write(slot * BLOCK_BYTES, segment);
        }
        self.head = index.advance(request.blocks().unwrap());
        index
    }

    pub(crate) fn store_record(&self) {
        let word = DoorbellRecord::send_word(self.head);
        self.record.write(DoorbellRecord::SEND_OFFSET, &word);
    }

    pub(crate) fn ring(&self) {
        self.pair
            .page()
            .ring(Doorbell::new(self.pair.number(), self.head));
    }

    /// Record, then doorbell.
    pub(crate) fn publish(&self) {
        self.store_record();
        self.ring();
    }

    /// One signalled request, published.
    pub(crate) fn post(&mut self, operation: Operation<'_>) -> QueueIndex {
        let index = self.write(Flags::SIGNALLED, operation);
        self.publish();
        index
    }

    /// The next completion, if it is there.
    pub(crate) fn poll(&mut self) -> Option<Completion> {
        let slot = self.polled.slot(self.size) as usize;
        let mut bytes = [0; 64];
        self.entries.read(slot * 64, &mut bytes);
        // Read again: the byte that says so may be newer than the rest of the
        // copy.
        Completion::poll(&bytes, self.polled, self.size).unwrap()?;
        self.entries.read(slot * 64, &mut bytes);
        self.polled = self.polled.advance(1);
        Some(Completion::decode(&bytes).unwrap())
    }

    pub(crate) fn poll_receive(&mut self) -> Option<Completion> {
        let ring = RingSize::new(RECEIVE_ENTRIES).unwrap();
        let slot = self.receive_polled.slot(ring) as usize;
        let mut bytes = [0; 64];
        self.receive_entries.read(slot * 64, &mut bytes);
        let completion = Completion::poll(&bytes, self.receive_polled, ring).unwrap()?;
        self.receive_polled = self.receive_polled.advance(1);
        Some(completion)
    }

    /// The next completion, within 10 s.
    pub(crate) fn wait(&mut self) -> Completion {
        wait_for("a completion", || self.poll())
    }

    /// The syndrome of the next completion; panics if it is a success.
    pub(crate) fn wait_failure(&mut self) -> Syndrome {
        let completion = self.wait();
        completion
            .failure()
            .unwrap_or_else(|| panic!("success: {completion:?}"))
            .syndrome
    }

    /// Posts a receive request of the given pieces.
    pub(crate) fn post_receive(&mut self, pieces: &[DataSegment]) {
        let ring = RingSize::new(RECEIVE_ENTRIES).unwrap();
        let at = self.received.slot(ring) as usize * 32;
        let end = [0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for i in 0..2 {
            let bytes = pieces.get(i).map_or(end, |piece| piece.encode());
            self.receives.write(at + i * 16, &bytes);
        }
        self.received = self.received.advance(1);
        self.record
            .write(0, &DoorbellRecord::send_word(self.received));
    }
}

/// A device with memory and two connected queue pairs.
pub(crate) struct Rig {
    pub(crate) device: Device,
    pub(crate) domain: ProtectionDomain,
    pub(crate) source: HostBuffer,
    pub(crate) target: HostBuffer,
    pub(crate) source_key: MemoryKey,
    pub(crate) target_key: MemoryKey,
    pub(crate) registrations: Vec<Registration>,
    pub(crate) a: Poster,
    pub(crate) b: Poster,
}

pub(crate) const LENGTH: usize = 1 << 20;

impl Rig {
    pub(crate) fn new(config: DeviceConfig, setup: &Setup) -> Self {
        Self::within(config, setup, &HostBuffer::range)
    }

    /// The same, with everything in the memory that `reach` makes of a buffer.
    pub(crate) fn within(
        config: DeviceConfig,
        setup: &Setup,
        reach: &dyn Fn(&HostBuffer) -> MemoryRange,
    ) -> Self {
        let device = Device::open("soft0", config).unwrap();
        let domain = device.allocate_domain().unwrap();
        let (source, target) = (HostBuffer::new(LENGTH), HostBuffer::new(LENGTH));
        let registrations: Vec<Registration> = [&source, &target]
            .map(|buffer| {
                let range = reach(buffer);
                domain
                    .register(range, AccessFlags::ALL, WriteOrdering::Relaxed)
                    .unwrap()
            })
            .into();
        let a = Poster::within(&domain, setup, reach);
        let b = Poster::within(&domain, setup, reach);
        a.connect(b.pair.address(), setup, setup.mtu.0);
        b.connect(a.pair.address(), setup, setup.mtu.1);
        let (source_key, target_key) = (registrations[0].key(), registrations[1].key());
        Self {
            device,
            domain,
            source,
            target,
            source_key,
            target_key,
            registrations,
            a,
            b,
        }
    }

    /// A NIC that runs at its doorbells.
    pub(crate) fn inline() -> Self {
        Self::new(inline(), &Setup::default())
    }

    pub(crate) fn local(&self, offset: usize, length: u32) -> DataSegment {
        let address = self.source.address() + offset as u64;
        DataSegment::new(address, self.source_key, length).unwrap()
    }

    pub(crate) fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress {
            address: self.target.address() + offset as u64,
            key: self.target_key,
        }
    }

    /// Posts a write of `length` bytes, offset to offset.
    pub(crate) fn post_write(&mut self, from: usize, to: usize, length: u32) -> QueueIndex {
        let list = [self.local(from, length).encode()];
        let remote = self.remote(to);
        self.a.post(write(remote, &list))
    }

    pub(crate) fn fetch_add(&self, to: usize, add: u64, result: usize) -> Operation<'static> {
        Operation::FetchAdd {
            remote: self.remote(to),
            add,
            result: self.local(result, 8),
        }
    }
}

pub(crate) fn inline() -> DeviceConfig {
    DeviceConfig {
        engine: EngineMode::Inline,
        ..DeviceConfig::default()
    }
}

pub(crate) fn manual() -> DeviceConfig {
    DeviceConfig {
        engine: EngineMode::Manual,
        ..DeviceConfig::default()
    }
}

pub(crate) fn write(remote: RemoteAddress, list: &[[u8; 16]]) -> Operation<'_> {
    let payload = Payload::Gather(DataSegments::new(list));
    Operation::Write {
        remote,
        payload,
        immediate: None,
    }
}

pub(crate) fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "no {what} in 10 s");
        std::thread::yield_now();
    }
}

/// Processor time of the engines of devices of this name, in hundredths of a
/// second.
pub(crate) fn engine_ticks(name: &str) -> u64 {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok())
        .filter(|stat| stat.contains(&format!("({name}-engine)")))
        .map(|stat| {
            let fields: Vec<&str> = stat
                .rsplit_once(") ")
                .unwrap()
                .1
                .split_whitespace()
                .collect();
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        })
        .sum()
}
