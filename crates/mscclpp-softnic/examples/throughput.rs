// SPDX-License-Identifier: MIT
//! How fast the NIC is on this machine: 8-byte writes a second on one core,
//! and 1 MiB writes against `memcpy`.
//!
//! Where the poster's thread runs the NIC, rates are of the processor time that
//! it got (Linux counts it), so that a busy machine gives the same figures as
//! an idle one; with an engine thread they are of elapsed time.
//!
//! `cargo run --release -p mscclpp-softnic --example throughput [-- --json]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use mlx5_queue::{
    BLOCK_BYTES, Completion, DataSegment, DataSegments, Doorbell, DoorbellRecord, Flags, Operation,
    Payload, QueueIndex, RemoteAddress, RingSize, WorkRequest,
};
use mscclpp_softnic::{
    AccessFlags, Device, DeviceConfig, EngineMode, HostBuffer, InitAttributes, QueuePair,
    QueuePairConfig, ReceiveAttributes, Registration, SendAttributes, Transition, WriteOrdering,
};

const BLOCKS: u32 = 1024;
const LARGE: usize = 1 << 20;
const TIME: Duration = Duration::from_secs(1);
/// Writes and `memcpy` take turns, so that both meet the same machine.
const TURNS: u32 = 5;

type Failure = Box<dyn std::error::Error>;

/// Elapsed time, or this thread's processor time.
#[derive(Clone, Copy)]
enum Clock {
    Elapsed,
    Processor,
}

impl Clock {
    fn now(self, since: Instant) -> Duration {
        let used = match self {
            Self::Elapsed => None,
            Self::Processor => std::fs::read_to_string("/proc/thread-self/schedstat").ok(),
        };
        let nanos = used.and_then(|line| line.split(' ').next()?.parse().ok());
        nanos.map_or(since.elapsed(), Duration::from_nanos)
    }
}

struct Sender {
    pair: QueuePair,
    ring: HostBuffer,
    record: HostBuffer,
    completions: HostBuffer,
    size: RingSize,
    head: QueueIndex,
    polled: QueueIndex,
    finished: QueueIndex,
    source: Registration,
    target: Registration,
}

impl Sender {
    fn new(engine: EngineMode) -> Result<Self, Failure> {
        let device = Device::open(
            "soft0",
            DeviceConfig {
                engine,
                ..DeviceConfig::default()
            },
        )?;
        let domain = device.allocate_domain()?;
        let page = device.allocate_doorbell_page()?;
        let bytes = BLOCKS as usize * BLOCK_BYTES;
        let mut made = Vec::new();
        for _ in 0..2 {
            let (ring, record) = (HostBuffer::new(bytes), HostBuffer::new(8));
            let completions = HostBuffer::new(bytes);
            for slot in 0..BLOCKS as usize {
                completions.write(slot * BLOCK_BYTES + 63, &[Completion::UNWRITTEN]);
            }
            let queue = device.create_completion_queue(completions.range(), BLOCKS)?;
            let pair = domain.create_queue_pair(QueuePairConfig {
                send_ring: ring.range(),
                send_blocks: BLOCKS,
                record: record.range(),
                send_completions: &queue,
                receive: None,
                page: &page,
                trigger: None,
            })?;
            made.push((pair, ring, record, completions));
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let remote = ReceiveAttributes::new(made[to].0.address());
            made[from].0.modify(Transition::Init(InitAttributes::ALL))?;
            made[from].0.modify(Transition::ReadyToReceive(remote))?;
            made[from]
                .0
                .modify(Transition::ReadyToSend(SendAttributes::default()))?;
        }
        let register = || {
            let buffer = HostBuffer::new(LARGE);
            domain.register(buffer.range(), AccessFlags::ALL, WriteOrdering::Relaxed)
        };
        let (source, target) = (register()?, register()?);
        let (pair, ring, record, completions) = made.swap_remove(0);
        // The second end lives as long as the process: it is only a target.
        std::mem::forget(made);
        let zero = QueueIndex::ZERO;
        Ok(Self {
            pair,
            ring,
            record,
            completions,
            size: RingSize::new(BLOCKS)?,
            head: zero,
            polled: zero,
            finished: zero,
            source,
            target,
        })
    }

    /// Writes one request for `length` bytes into its slot.
    fn write(&mut self, length: usize, flags: Flags) -> Result<(), Failure> {
        let (source, target) = (&self.source, &self.target);
        let piece = DataSegment::new(source.range().address(), source.key(), length as u32)?;
        let list = [piece.encode()];
        let remote = RemoteAddress {
            address: target.range().address(),
            key: target.key(),
        };
        let payload = Payload::Gather(DataSegments::new(&list));
        let operation = Operation::Write {
            remote,
            payload,
            immediate: None,
        };
        let index = self.head.low16();
        let request = WorkRequest {
            queue: self.pair.number(),
            index,
            flags,
            operation,
        };
        let mut slot = [0; BLOCK_BYTES];
        let written = request.encode(&mut slot)?;
        let at = self.head.slot(self.size) as usize * BLOCK_BYTES;
        self.ring.write(at, &slot[..written]);
        self.head = self.head.advance(1);
        Ok(())
    }

    fn publish(&self) {
        self.record.write(
            DoorbellRecord::SEND_OFFSET,
            &DoorbellRecord::send_word(self.head),
        );
        self.pair
            .page()
            .ring(Doorbell::new(self.pair.number(), self.head));
    }

    /// Takes the completions that are there.
    fn poll(&mut self) -> Result<(), Failure> {
        let mut bytes = [0; 64];
        loop {
            let at = self.polled.slot(self.size) as usize * 64;
            self.completions.read(at, &mut bytes);
            let Some(seen) = Completion::poll(&bytes, self.polled, self.size)? else {
                return Ok(());
            };
            if let Some(failure) = seen.failure() {
                return Err(failure.syndrome.to_string().into());
            }
            self.polled = self.polled.advance(1);
            self.finished = self.head.at_or_before(seen.wqe_counter).advance(1);
        }
    }

    /// Requests a second, in batches of `batch` of which every `signal`th is
    /// signalled.
    fn measure(
        &mut self,
        clock: Clock,
        time: Duration,
        length: usize,
        batch: u64,
        signal: u64,
    ) -> Result<f64, Failure> {
        let (start, first) = (Instant::now(), self.finished);
        let before = clock.now(start);
        while start.elapsed() < time {
            while self.head.distance_from(self.finished) + batch > u64::from(BLOCKS) {
                self.poll()?;
                if self.head.distance_from(self.finished) + batch > u64::from(BLOCKS) {
                    std::thread::yield_now();
                }
            }
            for i in 1..=batch {
                let signalled = i.is_multiple_of(signal) || i == batch;
                let flags = if signalled {
                    Flags::SIGNALLED
                } else {
                    Flags::UNSIGNALLED
                };
                self.write(length, flags)?;
            }
            self.publish();
            self.poll()?;
        }
        let time = clock.now(start) - before;
        Ok(self.finished.distance_from(first) as f64 / time.as_secs_f64())
    }
}

fn memcpy_rate(clock: Clock, time: Duration) -> f64 {
    let (source, mut target) = (vec![1u8; LARGE], vec![0u8; LARGE]);
    let (start, mut count) = (Instant::now(), 0);
    let before = clock.now(start);
    while start.elapsed() < time {
        target.copy_from_slice(black_box(&source));
        black_box(&mut target);
        count += 1;
    }
    f64::from(count) / (clock.now(start) - before).as_secs_f64()
}

/// One line of the table.
struct Row {
    engine: &'static str,
    length: usize,
    batch: u64,
    signal: u64,
    /// Requests a second.
    rate: f64,
    /// Copies of the same length a second.
    memcpy: Option<f64>,
}

impl Row {
    fn bytes(&self) -> f64 {
        self.rate * self.length as f64
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "engine": self.engine,
            "bytes": self.length,
            "requests_a_doorbell": self.batch,
            "signalled_every": self.signal,
            "requests_per_second": self.rate,
            "bytes_per_second": self.bytes(),
            "memcpy_bytes_per_second": self.memcpy.map(|copies| copies * self.length as f64),
            "of_memcpy": self.memcpy.map(|copies| self.rate / copies),
        })
    }

    fn print(&self) {
        let of_memcpy = self.memcpy.map_or("-".to_owned(), |copies| {
            format!("{:.0} %", 100.0 * self.rate / copies)
        });
        println!(
            "{:<13} {:>8} {:>11} {:>10} {:>9.3} {:>7.2} {of_memcpy:>7}",
            self.engine,
            self.length,
            self.batch,
            format!("1 in {}", self.signal),
            self.rate / 1e6,
            self.bytes() / 1e9,
        );
    }
}

fn main() -> Result<(), Failure> {
    let json = std::env::args()
        .skip(1)
        .any(|argument| argument == "--json");
    let mut rows = Vec::new();
    if !json {
        println!(
            "{:<13} {:>8} {:>11} {:>10} {:>9} {:>7} {:>7}",
            "NIC runs", "bytes", "a doorbell", "signalled", "M req/s", "GB/s", "memcpy"
        );
    }
    let mut done = |row: Row| {
        if !json {
            row.print();
        }
        rows.push(row.to_json());
    };
    for (mode, clock, engine) in [
        (EngineMode::Inline, Clock::Processor, "at doorbells"),
        (EngineMode::Thread, Clock::Elapsed, "on a thread"),
    ] {
        let mut sender = Sender::new(mode)?;
        for (batch, signal) in [(1, 1), (16, 1), (16, 16), (64, 1), (256, 256)] {
            let length = 8;
            let rate = sender.measure(clock, TIME, length, batch, signal)?;
            done(Row {
                engine,
                length,
                batch,
                signal,
                rate,
                memcpy: None,
            });
        }
        let (mut writes, mut copies) = (0.0, 0.0);
        let (batch, signal) = (4, 1);
        for _ in 0..TURNS {
            copies += memcpy_rate(clock, TIME / TURNS) / f64::from(TURNS);
            writes += sender.measure(clock, TIME / TURNS, LARGE, batch, signal)? / f64::from(TURNS);
        }
        done(Row {
            engine,
            length: LARGE,
            batch,
            signal,
            rate: writes,
            memcpy: Some(copies),
        });
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    }
    Ok(())
}
