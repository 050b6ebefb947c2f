// SPDX-License-Identifier: MIT
//! One end of a connection: a queue pair of a NIC in software, and its memory.

use std::mem::offset_of;

use mlx5_queue::{Completion, MemoryKey};
use mscclpp_device::abi::{
    AbiHeader, BasePortChannelDeviceHandle, Host2DeviceSemaphoreDeviceHandle, MAX_MEMORIES,
    PortChannelDeviceHandle, QueueChannel, QueueDeviceHandle, QueueForm, QueueMemory, QueueState,
    SignalMode,
};
use mscclpp_softnic::{
    AccessFlags, EngineMode, HostBuffer, InitAttributes, ProtectionDomain, QueueAddress, QueuePair,
    QueuePairConfig, ReceiveAttributes, Registration, Transition, WriteOrdering,
};

use super::nic::{SOURCE, Setup, TARGET};
use super::{Cells, TestFifo, keep};

/// One end: a queue pair, its memory, and the channel that kernels get.
pub(crate) struct End {
    pub(crate) pair: QueuePair,
    pub(crate) ring: HostBuffer,
    pub(crate) record: HostBuffer,
    pub(crate) completions: HostBuffer,
    pub(crate) state: HostBuffer,
    pub(crate) ready: HostBuffer,
    /// The word where results of atomics land, and a page around it.
    pub(crate) scratch: HostBuffer,
    /// The peer's puts come from here.
    pub(crate) source: HostBuffer,
    /// The peer's puts land here.
    pub(crate) target: HostBuffer,
    /// The peer's signals land here.
    pub(crate) token: HostBuffer,
    memories: HostBuffer,
    /// The register of kernels whose stores a model hands to the NIC.
    pub(super) register: Cells,
    outbound: Cells,
    pub(crate) consumed: Cells,
    pub(crate) status: Cells,
    pub(crate) fifo: TestFifo,
    scratch_key: MemoryKey,
    pub(super) source_key: MemoryKey,
    pub(super) target_key: MemoryKey,
    token_key: MemoryKey,
    _registrations: Vec<Registration>,
}

/// A ready word that says: all before `index` is announced.
pub(crate) fn baton_at(index: u64) -> u32 {
    (index as u32) << 1
}

/// A ready word that says: the request at `index` is in its slot.
pub(crate) fn ready_at(index: u64) -> u32 {
    baton_at(index) | 1
}

/// Where the scratch word is in its page.
pub(crate) const SCRATCH: usize = 1024;

impl End {
    /// Keeps its memory for ever, for a kernel that does not end.
    pub(super) fn keep_memory(&self) {
        keep([
            self.ring.clone(),
            self.record.clone(),
            self.completions.clone(),
            self.state.clone(),
            self.ready.clone(),
            self.scratch.clone(),
            self.source.clone(),
            self.target.clone(),
            self.token.clone(),
            self.memories.clone(),
        ]);
    }

    pub(super) fn new(domain: &ProtectionDomain, setup: &Setup) -> Self {
        let device = domain.device();
        let buffer = HostBuffer::new;
        let entries = setup.blocks * setup.entries_per_block;
        let (ring, record) = (buffer(setup.blocks as usize * 64), buffer(8));
        let completions = buffer(entries as usize * 64);
        for entry in 0..entries as usize {
            completions.write(entry * 64 + 63, &[Completion::UNWRITTEN]);
        }
        let queue = device
            .create_completion_queue(completions.range(), entries)
            .unwrap();
        let page = device.allocate_doorbell_page().unwrap();
        let pair = domain
            .create_queue_pair(QueuePairConfig {
                send_ring: ring.range(),
                send_blocks: setup.blocks,
                record: record.range(),
                send_completions: &queue,
                receive: None,
                page: &page,
                trigger: None,
            })
            .unwrap();
        let register = |memory: &HostBuffer, ordering| {
            let (range, all) = (memory.range(), AccessFlags::ALL);
            domain.register(range, all, ordering).unwrap()
        };
        let (source, target) = (buffer(setup.memory), buffer(setup.memory));
        let (token, scratch) = (buffer(8), buffer(8));
        let registrations = vec![
            register(&scratch, WriteOrdering::Relaxed),
            register(&source, WriteOrdering::Relaxed),
            register(&target, WriteOrdering::Relaxed),
            register(&token, WriteOrdering::Strict),
        ];
        let state = buffer(size_of::<QueueState>());
        for word in [
            offset_of!(QueueState, reserved),
            offset_of!(QueueState, limit),
            offset_of!(QueueState, completed),
            offset_of!(QueueState, consumed),
        ] {
            state.write_u64(word, setup.start);
        }
        // Whoever posts first is to announce.
        let ready = buffer(setup.blocks as usize * 4);
        let slot = setup.start as usize % setup.blocks as usize;
        ready.write(slot * 4, &baton_at(setup.start).to_ne_bytes());
        Self {
            pair,
            ring,
            record,
            completions,
            state,
            ready,
            scratch,
            source,
            target,
            token,
            memories: buffer(MAX_MEMORIES as usize * size_of::<QueueMemory>()),
            register: Cells::new(1),
            outbound: Cells::new(1),
            consumed: Cells::new(1),
            status: Cells::new(1),
            fifo: TestFifo::new(1),
            scratch_key: registrations[0].key(),
            source_key: registrations[1].key(),
            target_key: registrations[2].key(),
            token_key: registrations[3].key(),
            _registrations: registrations,
        }
    }

    pub(super) fn connect(&self, peer: QueueAddress, setup: &Setup) {
        for step in [
            Transition::Init(InitAttributes::ALL),
            Transition::ReadyToReceive(ReceiveAttributes::new(peer)),
            Transition::ReadyToSend(setup.send),
        ] {
            self.pair.modify(step).unwrap();
        }
    }

    fn state(&self, offset: usize) -> u64 {
        self.state.read_u64(offset)
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.state(offset_of!(QueueState, reserved))
    }

    pub(crate) fn completed(&self) -> u64 {
        self.state(offset_of!(QueueState, completed))
    }

    /// The sticky error's bits, and the request that failed.
    pub(crate) fn error(&self) -> (u64, u64) {
        (
            self.state(offset_of!(QueueState, error)),
            self.state(offset_of!(QueueState, error_index)),
        )
    }

    pub(crate) fn set_in_use(&self, threads: u64) {
        self.state
            .write_u64(offset_of!(QueueState, in_use), threads);
    }

    pub(crate) fn in_use(&self) -> u64 {
        self.state(offset_of!(QueueState, in_use))
    }

    /// Signals received.
    pub(crate) fn signals(&self) -> u64 {
        self.token.read_u64(0)
    }

    /// Puts a memory into the table of ids.
    pub(crate) fn set_memory(&self, id: u32, memory: QueueMemory) {
        let at = id as usize * size_of::<QueueMemory>();
        let last = u64::from(memory.key) | u64::from(memory.access) << 32;
        for (i, word) in [memory.address, memory.size, last].into_iter().enumerate() {
            self.memories.write_u64(at + 8 * i, word);
        }
    }

    /// The channel to `peer`.
    pub(super) fn channel(&self, peer: &Self, setup: &Setup) -> PortChannelDeviceHandle {
        let own = self;
        let doorbell = match setup.nic.engine {
            EngineMode::Inline => own.register.address(),
            _ => own.pair.page().register().address(),
        };
        let queue = QueueDeviceHandle {
            abi: AbiHeader::of::<QueueDeviceHandle>(),
            send_ring: own.ring.address(),
            record: own.record.address() + 4,
            doorbell,
            completions: own.completions.address(),
            state: own.state.address(),
            ready: match setup.form {
                QueueForm::Exclusive => 0,
                QueueForm::Shared => own.ready.address(),
            },
            scratch: own.scratch.address() + SCRATCH as u64,
            scratch_key: wire(own.scratch_key),
            number: own.pair.number().get(),
            blocks: setup.blocks,
            completion_entries: setup.blocks * setup.entries_per_block,
            form: setup.form as u32,
            signal_mode: setup.signal_mode as u32,
            record_in_host_memory: setup.record_in_host_memory.into(),
            signal_every: setup.signal_every.into(),
            max_message: setup.max_message,
        };
        let channel = QueueChannel {
            queue,
            memories: own.memories.address(),
            token: named(&peer.token, 0, peer.token_key, QueueMemory::REMOTE),
            outbound: match setup.signal_mode {
                SignalMode::Atomic => 0,
                SignalMode::InlineWrite => own.outbound.address(),
            },
        };
        let semaphore = Host2DeviceSemaphoreDeviceHandle {
            abi: AbiHeader::of::<Host2DeviceSemaphoreDeviceHandle>(),
            inbound_token: own.token.address(),
            expected_inbound_token: own.consumed.address(),
            status: own.status.address(),
        };
        let base = BasePortChannelDeviceHandle::on_queue(7, semaphore, own.fifo.handle(), channel);
        let target = named(&peer.target, 0, peer.target_key, QueueMemory::REMOTE);
        let source = named(&own.source, 0, own.source_key, QueueMemory::LOCAL);
        PortChannelDeviceHandle::on_queue(base, (TARGET, target), (SOURCE, source))
    }
}

fn wire(key: MemoryKey) -> u32 {
    key.get().to_be()
}

/// Part of a buffer, as requests name it.
pub(super) fn named(buffer: &HostBuffer, from: usize, key: MemoryKey, access: u32) -> QueueMemory {
    QueueMemory {
        address: buffer.address() + from as u64,
        size: (buffer.len() - from) as u64,
        key: wire(key),
        access,
    }
}
