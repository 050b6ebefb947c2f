// SPDX-License-Identifier: MIT
//! Queues and a FIFO made by hand, each part where a channel has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use mscclpp_device::abi::{
    AbiHeader, BasePortChannelDeviceHandle, FifoDeviceHandle, Host2DeviceSemaphoreDeviceHandle,
    PortChannelDeviceHandle, QueueChannel, QueueDeviceHandle, QueueForm, QueueMemory, QueueState,
    SignalMode,
};
use mscclpp_device::cuda::{DeviceMemory, Gpu, PinnedMemory, Stream};

use super::responder::Seen;

/// How long a copy or a kernel may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Words of a line.
const LINE_WORDS: usize = 8;
/// Slots of the FIFO: more than are pushed in one measurement.
pub(super) const SLOTS: u32 = 1024;
/// Where in host memory the answer is, the FIFO's tail, and its slots; doorbells follow.
const ANSWER: usize = 0;
const TAIL: usize = LINE_WORDS;
const RING: usize = 2 * LINE_WORDS;
const DOORBELLS: usize = RING + 2 * SLOTS as usize;
/// Number of the first queue.
pub(super) const FIRST_NUMBER: u32 = 0x100;
/// Bytes of a queue of GPUNetIO, and more.
pub(super) const THEIR_QUEUE: u64 = 304;
/// What is moved by each put, and by each signal.
const WORD: u64 = 8;

/// Host memory that GPUs reach, as words.
pub(super) struct HostWords(PinnedMemory);

impl HostWords {
    fn new(gpu: &Gpu, words: usize) -> anyhow::Result<Self> {
        Ok(Self(PinnedMemory::new(gpu, words as u64 * 8)?))
    }

    /// One of them.
    ///
    /// # Panics
    /// If there are not so many.
    pub(super) fn word(&self, number: usize) -> &AtomicU64 {
        assert!((number as u64) < self.0.len() / 8, "word {number}");
        // SAFETY: inside of the memory, aligned, alive as long as self; the host reaches it by
        // atomics alone.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().cast::<u64>().add(number)) }
    }

    /// The address of a word.
    pub(super) fn at(&self, number: usize) -> u64 {
        self.0.address() + number as u64 * 8
    }
}

/// Where in the GPU's memory things are. What changes comes first, so that it is cleared by one call.
#[derive(Clone, Copy)]
struct Places {
    count: u32,
    blocks: u32,
}

impl Places {
    const STATES: u64 = 0;

    fn records(self) -> u64 {
        Self::STATES + u64::from(self.count) * size_of::<QueueState>() as u64
    }
    fn theirs(self) -> u64 {
        self.records() + u64::from(self.count) * RECORD_STEP
    }
    fn fifo(self) -> u64 {
        (self.theirs() + u64::from(self.count) * THEIR_QUEUE).next_multiple_of(128)
    }
    fn ready(self) -> u64 {
        self.fifo() + 256
    }
    fn named(self) -> u64 {
        self.ready() + u64::from(self.count) * u64::from(self.blocks) * 4
    }
    fn completions(self) -> u64 {
        (self.named() + 4 * WORD).next_multiple_of(4096)
    }
    fn rings(self) -> u64 {
        self.completions() + self.ring_bytes()
    }
    fn end(self) -> u64 {
        self.rings() + u64::from(self.count) * self.ring_bytes()
    }

    fn ring_bytes(self) -> u64 {
        u64::from(self.blocks) * 64
    }
}

/// Some queues of one size, a FIFO, and what their requests name.
pub(super) struct Queues {
    memory: DeviceMemory,
    places: Places,
    pub(super) host: Arc<HostWords>,
}

impl Queues {
    pub(super) fn new(gpu: &Gpu, count: u32, blocks: u32) -> anyhow::Result<Self> {
        let places = Places { count, blocks };
        let queues = Self {
            memory: DeviceMemory::new(gpu, places.end())?,
            places,
            host: Arc::new(HostWords::new(gpu, Self::host_words(count))?),
        };
        // Entries that no NIC has written say so; zeroes would be completions.
        let stream = Stream::new(gpu)?;
        let (entries, bytes) = (queues.at(places.completions()), places.ring_bytes());
        // SAFETY: inside of the memory, and no kernel runs on it.
        unsafe { stream.fill(entries, 0xff, bytes) }?;
        stream.wait(PATIENCE)?;
        Ok(queues)
    }

    fn host_words(count: u32) -> usize {
        DOORBELLS + count as usize * LINE_WORDS
    }

    fn at(&self, offset: u64) -> u64 {
        self.memory.address() + offset
    }

    /// As if nothing had been posted.
    pub(super) fn reset(&self, stream: &Stream) -> anyhow::Result<()> {
        // SAFETY: inside of the memory, and no kernel runs on it.
        unsafe { stream.fill(self.memory.address(), 0, self.places.named()) }?;
        stream.wait(PATIENCE)?;
        for number in 0..Self::host_words(self.places.count) {
            self.host.word(number).store(0, Ordering::Release);
        }
        Ok(())
    }

    /// The word that a CPU thread answers in.
    pub(super) fn answer(&self) -> usize {
        ANSWER
    }

    /// Where posts to the first queue are seen.
    pub(super) fn doorbell(&self) -> Seen {
        Seen::Doorbell { word: DOORBELLS }
    }

    /// Where pushes are seen.
    pub(super) fn slots(&self) -> Seen {
        Seen::Slots { first: RING }
    }

    /// A channel of the proxy.
    pub(super) fn proxy(&self) -> PortChannelDeviceHandle {
        let fifo = FifoDeviceHandle {
            triggers: self.host.at(RING),
            head: self.at(self.places.fifo()),
            tail: self.host.at(TAIL),
            tail_cache: self.at(self.places.fifo() + 128),
            size: SLOTS as i32,
            size_mask: u64::from(SLOTS) - 1,
            size_shift: u64::from(SLOTS.ilog2()),
            ..FifoDeviceHandle::none()
        };
        PortChannelDeviceHandle::new(
            BasePortChannelDeviceHandle::new(0, semaphore(), fifo, 0),
            0,
            1,
        )
    }

    /// A channel on a queue.
    pub(super) fn channel(&self, number: u32, form: QueueForm) -> PortChannelDeviceHandle {
        let step = u64::from(number);
        let named = |place: u64, access| QueueMemory {
            address: self.at(self.places.named() + place * WORD),
            size: WORD,
            key: (number << 8 | place as u32).to_be(),
            access,
        };
        let shared = form == QueueForm::Shared;
        let ready = self.at(self.places.ready() + step * u64::from(self.places.blocks) * 4);
        let queue = QueueDeviceHandle {
            abi: AbiHeader::of::<QueueDeviceHandle>(),
            send_ring: self.at(self.places.rings() + step * self.places.ring_bytes()),
            record: self.at(self.places.records() + step * RECORD_STEP),
            doorbell: self.host.at(DOORBELLS + number as usize * LINE_WORDS),
            completions: self.at(self.places.completions()),
            state: self.at(Places::STATES + step * size_of::<QueueState>() as u64),
            ready: if shared { ready } else { 0 },
            scratch: self.at(self.places.named() + 3 * WORD),
            scratch_key: 3u32.to_be(),
            number: FIRST_NUMBER + number,
            blocks: self.places.blocks,
            completion_entries: self.places.blocks,
            form: form as u32,
            signal_mode: SignalMode::Atomic as u32,
            record_in_host_memory: 0,
            signal_every: shared.into(),
            max_message: 1 << 30,
        };
        let base = BasePortChannelDeviceHandle::on_queue(
            0,
            semaphore(),
            FifoDeviceHandle::none(),
            QueueChannel {
                queue,
                memories: 0,
                token: named(2, QueueMemory::REMOTE),
                outbound: 0,
            },
        );
        PortChannelDeviceHandle::on_queue(
            base,
            (0, named(0, QueueMemory::REMOTE)),
            (1, named(1, QueueMemory::LOCAL)),
        )
    }

    /// What GPUNetIO's queues on the same memory are made of.
    pub(super) fn theirs_made_of(&self) -> QpArgs {
        QpArgs {
            qps: self.at(self.places.theirs()),
            ring: self.at(self.places.rings()),
            ring_step: self.places.ring_bytes(),
            record: self.at(self.places.records()),
            record_step: RECORD_STEP,
            doorbell: self.host.at(DOORBELLS),
            doorbell_step: LINE_WORDS as u64 * 8,
            completions: self.at(self.places.completions()),
            number: FIRST_NUMBER,
            blocks: self.places.blocks,
            count: self.places.count,
            reserved: 0,
        }
    }

    /// What their requests name.
    pub(super) fn names(&self) -> Names {
        let at = |place: u64| self.at(self.places.named() + place * WORD);
        Names {
            remote: at(0),
            local: at(1),
            signal: at(2),
            scratch: at(3),
            keys: [0, 1, 2, 3].map(u32::to_be),
        }
    }
}

/// Words that kernels write, in the GPU's memory.
pub(super) struct Results {
    memory: DeviceMemory,
    copy: HostWords,
}

impl Results {
    pub(super) fn new(gpu: &Gpu, words: u64) -> anyhow::Result<Self> {
        Ok(Self {
            memory: DeviceMemory::new(gpu, words * 8)?,
            copy: HostWords::new(gpu, words as usize)?,
        })
    }

    /// The address of a word.
    pub(super) fn at(&self, number: u64) -> u64 {
        self.memory.address() + number * 8
    }

    pub(super) fn clear(&self, stream: &Stream) -> anyhow::Result<()> {
        // SAFETY: the memory's own range, and no kernel runs on it.
        unsafe { stream.fill(self.at(0), 0, self.memory.len()) }?;
        Ok(stream.wait(PATIENCE)?)
    }

    /// The first words.
    pub(super) fn read(&self, stream: &Stream, words: u64) -> anyhow::Result<Vec<u64>> {
        ensure!(
            words * 8 <= self.memory.len(),
            "no room for {words} results"
        );
        // SAFETY: both hold so many bytes, and are kept until the copy is done or for ever.
        unsafe { stream.copy(self.copy.at(0), self.at(0), words * 8) }?;
        stream.wait(PATIENCE)?;
        let load = |number| self.copy.word(number).load(Ordering::Acquire);
        Ok((0..words as usize).map(load).collect())
    }
}

/// Handles in an array, where kernels read them.
pub(super) struct Channels(PinnedMemory);

impl Channels {
    const SIZE: u64 = size_of::<PortChannelDeviceHandle>() as u64;

    pub(super) fn new(gpu: &Gpu, count: u32) -> anyhow::Result<Self> {
        Ok(Self(PinnedMemory::new(gpu, u64::from(count) * Self::SIZE)?))
    }

    pub(super) fn address(&self) -> u64 {
        self.0.address()
    }

    /// Puts handles in, for the next kernel.
    ///
    /// # Panics
    /// If there are more than there is room for.
    pub(super) fn set(&self, handles: impl Iterator<Item = PortChannelDeviceHandle>) {
        for (number, handle) in handles.enumerate() {
            assert!((number as u64 + 1) * Self::SIZE <= self.0.len());
            let first = self.0.as_ptr().cast::<PortChannelDeviceHandle>();
            // SAFETY: inside of the memory, which starts at a page; no kernel reads it now, and no
            // reference to it exists.
            unsafe { first.add(number).write(handle) };
        }
    }
}

/// Records share no line.
const RECORD_STEP: u64 = 128;

/// Twin of `QpArgs` in `gpunetio.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct QpArgs {
    pub(super) qps: u64,
    ring: u64,
    ring_step: u64,
    record: u64,
    record_step: u64,
    doorbell: u64,
    doorbell_step: u64,
    completions: u64,
    number: u32,
    blocks: u32,
    pub(super) count: u32,
    reserved: u32,
}

/// Twin of `Names` in `gpunetio.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Names {
    remote: u64,
    local: u64,
    signal: u64,
    scratch: u64,
    /// In the same order, big-endian.
    keys: [u32; 4],
}

/// Of channels that nobody waits on.
fn semaphore() -> Host2DeviceSemaphoreDeviceHandle {
    Host2DeviceSemaphoreDeviceHandle {
        abi: AbiHeader::of::<Host2DeviceSemaphoreDeviceHandle>(),
        inbound_token: 0,
        expected_inbound_token: 0,
        status: 0,
    }
}
