// SPDX-License-Identifier: MIT
//! Random programs on random devices, against a model that knows only what the
//! contract promises: requests of a queue pair happen in order, each once, and
//! fail as the table says.

mod support;

use std::time::Duration;

use mlx5_queue::*;
use mscclpp_softnic::*;
use support::slow_memory::SlowMemory;
use support::*;

/// Bytes of a lane: each queue pair works in its own part of both buffers.
const LANE: usize = 16384;
const LANES: usize = 3;
const BLOCKS: u32 = 256;

/// What a queue pair is expected to do.
struct Lane {
    poster: Poster,
    _peer: Poster,
    base: usize,
    /// What the target's and the source's part hold when everything posted is
    /// done.
    target: Vec<u8>,
    source: Vec<u8>,
    /// Requests that have to complete: index, end, opcode, syndrome.
    expected: std::collections::VecDeque<(u16, QueueIndex, Option<Syndrome>)>,
    covered: QueueIndex,
    dead: bool,
}

struct Program {
    rng: fastrand::Rng,
    rig: Rig,
    /// Writes may overtake each other.
    scattered: bool,
    lossy: bool,
}

impl Program {
    fn new(seed: u64) -> (Self, Vec<Lane>, String) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let scattered = rng.bool();
        let loss = if rng.bool() { 0.0 } else { rng.f64() * 0.1 };
        let config = DeviceConfig {
            seed,
            engine: EngineMode::Manual,
            trigger: [
                TriggerMode::Doorbell,
                TriggerMode::Record,
                TriggerMode::Either,
            ][rng.usize(..3)],
            landing: match scattered {
                true => Landing::Scattered {
                    linger: Duration::from_micros(rng.u64(1..100)),
                },
                false => Landing::AtOnce,
            },
            acknowledge: Acknowledge::Landed,
            checks: Checks {
                fetch_twice: rng.bool(),
                clear_slots: rng.bool(),
                audit_interval: Duration::from_millis(50),
            },
            network: NetworkConfig {
                loss,
                delay: Duration::from_micros(rng.u64(..50)),
                single_packets: rng.bool(),
            },
            ..DeviceConfig::default()
        };
        let description = format!("seed {seed}: {config:?}");
        let mtu = Mtu::from_code(rng.u8(1..=5)).unwrap();
        let setup = Setup {
            blocks: BLOCKS,
            mtu: (mtu, mtu),
            reads: (rng.u8(1..=16), 16),
            send: SendAttributes {
                timeout: Duration::from_millis(1),
                retry_count: 100,
                ..SendAttributes::default()
            },
            ..Setup::default()
        };
        let memory = SlowMemory::with(seed, rng.bool());
        let slow = rng.bool();
        let reach = |buffer: &HostBuffer| match slow {
            true => memory.range(buffer),
            false => buffer.range(),
        };
        let rig = Rig::within(config, &setup, &reach);
        let lanes = (0..LANES)
            .map(|lane| {
                let poster = Poster::within(&rig.domain, &setup, &reach);
                let peer = Poster::within(&rig.domain, &setup, &reach);
                poster.connect(peer.pair.address(), &setup, mtu);
                peer.connect(poster.pair.address(), &setup, mtu);
                Lane {
                    poster,
                    _peer: peer,
                    base: lane * LANE,
                    target: vec![0; LANE],
                    source: vec![0; LANE],
                    expected: Default::default(),
                    covered: QueueIndex::ZERO,
                    dead: false,
                }
            })
            .collect();
        (
            Self {
                rng,
                rig,
                scattered: scattered || slow,
                lossy: loss > 0.0,
            },
            lanes,
            description,
        )
    }

    fn range(&mut self) -> (usize, usize) {
        let length = if self.rng.bool() {
            self.rng.usize(1..64)
        } else {
            self.rng.usize(1..6000)
        };
        (self.rng.usize(..LANE - length), length)
    }

    fn piece(&self, lane: &Lane, offset: usize, length: usize) -> DataSegment {
        self.rig.local(lane.base + offset, length as u32)
    }

    /// Posts one request and does it in the model.
    fn post(&mut self, lane: &mut Lane, flags: Flags) {
        let kind = self.rng.u8(..100);
        let index = lane.poster.head;
        let mut expected = None;
        match kind {
            // Bad ones are rare: they end the lane. On a network that loses
            // packets the refusal may be lost, and no one repeats it: as on
            // hardware, the requester then only learns that no one answers.
            0 if !self.lossy => {
                let bad = RemoteAddress {
                    key: MemoryKey::new(1),
                    ..self.rig.remote(0)
                };
                let list = [self.piece(lane, 0, 8).encode()];
                lane.poster.write(flags, write(bad, &list));
                expected = Some(Syndrome::REMOTE_ACCESS);
            }
            0..40 => {
                // One to three pieces of random bytes, side by side.
                let (to, length) = self.range();
                let count = self.rng.usize(1..4).min(length);
                let mut list = Vec::new();
                let mut done = 0;
                for piece in 0..count {
                    let rest = length - done;
                    let left = count - piece - 1;
                    let take = if left == 0 {
                        rest
                    } else {
                        self.rng.usize(1..=rest - left)
                    };
                    let from = self.rng.usize(..LANE - take);
                    let bytes = lane.source[from..from + take].to_vec();
                    lane.target[to + done..to + done + take].copy_from_slice(&bytes);
                    list.push(self.piece(lane, from, take).encode());
                    done += take;
                }
                let remote = self.rig.remote(lane.base + to);
                lane.poster.write(flags, write(remote, &list));
            }
            40..60 => {
                let length = self.rng.usize(1..200);
                let to = self.rng.usize(..LANE - length);
                let data: Vec<u8> = (0..length).map(|_| self.rng.u8(..)).collect();
                lane.target[to..to + length].copy_from_slice(&data);
                let remote = self.rig.remote(lane.base + to);
                let payload = Payload::Inline(&data);
                lane.poster.write(
                    flags,
                    Operation::Write {
                        remote,
                        payload,
                        immediate: None,
                    },
                );
            }
            60..75 => {
                let (from, length) = self.range();
                let to = self.rng.usize(..LANE - length);
                let bytes = lane.target[from..from + length].to_vec();
                lane.source[to..to + length].copy_from_slice(&bytes);
                let list = [self.piece(lane, to, length).encode()];
                let remote = self.rig.remote(lane.base + from);
                let scatter = DataSegments::new(&list);
                lane.poster
                    .write(flags, Operation::Read { remote, scatter });
            }
            75..95 => {
                let (word, result) = (self.rng.usize(..LANE / 8) * 8, self.rng.usize(..LANE - 8));
                let old = u64::from_ne_bytes(lane.target[word..word + 8].try_into().unwrap());
                let remote = self.rig.remote(lane.base + word);
                let place = self.piece(lane, result, 8);
                let (operation, new) = if self.rng.bool() {
                    let add = self.rng.u64(..);
                    (
                        Operation::FetchAdd {
                            remote,
                            add,
                            result: place,
                        },
                        old.wrapping_add(add),
                    )
                } else {
                    let compare = if self.rng.bool() {
                        old
                    } else {
                        self.rng.u64(..)
                    };
                    let swap = self.rng.u64(..);
                    let new = if compare == old { swap } else { old };
                    (
                        Operation::CompareSwap {
                            remote,
                            compare,
                            swap,
                            result: place,
                        },
                        new,
                    )
                };
                lane.target[word..word + 8].copy_from_slice(&new.to_ne_bytes());
                lane.source[result..result + 8].copy_from_slice(&old.to_ne_bytes());
                lane.poster.write(flags, operation);
            }
            _ => {
                lane.poster.write(flags, Operation::Nop);
            }
        }
        let signalled = flags.completion.reports_success();
        if lane.dead {
            let flushed = Some(Syndrome::FLUSHED);
            lane.expected
                .push_back((index.low16(), lane.poster.head, flushed));
        } else if signalled || expected.is_some() {
            lane.expected
                .push_back((index.low16(), lane.poster.head, expected));
        }
        lane.dead |= expected.is_some();
    }

    /// Fills the lane with new bytes, which no request under way reads.
    fn refill(&mut self, lane: &mut Lane) {
        self.rng.fill(&mut lane.source);
        self.rig.source.write(lane.base, &lane.source);
    }

    fn poll(&mut self, lane: &mut Lane) {
        while let Some(completion) = lane.poster.poll() {
            let (index, end, syndrome) = lane.expected.pop_front().expect("a completion");
            assert_eq!(completion.wqe_counter, index);
            assert_eq!(
                completion.failure().map(|failure| failure.syndrome),
                syndrome
            );
            lane.covered = end;
        }
    }

    /// Runs until every expected completion has come.
    fn drain(&mut self, lanes: &mut [Lane]) {
        for _ in 0..200_000 {
            for lane in &mut *lanes {
                self.poll(lane);
            }
            if lanes.iter().all(|lane| lane.expected.is_empty()) {
                return;
            }
            let next = self.rig.device.idle_for().unwrap_or_default();
            self.rig.device.run_at(self.rig.device.now().after(next));
        }
        panic!("not drained: {:?}", self.rig.device.counters());
    }

    fn check(&self, lane: &Lane) {
        if lane.dead {
            // How much of what came before the failure was posted with it is
            // known to the model, but not what a flush cut short.
            assert_eq!(lane.poster.pair.status().state, State::Error);
            return;
        }
        let mut seen = vec![0; LANE];
        self.rig.target.read(lane.base, &mut seen);
        assert!(seen == lane.target, "target differs");
        self.rig.source.read(lane.base, &mut seen);
        assert!(seen == lane.source, "source differs");
    }

    /// A burst of requests on each lane, in random order.
    fn burst(&mut self, lanes: &mut [Lane]) {
        for _ in 0..self.rng.usize(1..60) {
            let lane = &mut lanes[self.rng.usize(..LANES)];
            // A request has at most four segments of a kind: 5 blocks.
            if lane.poster.head.distance_from(lane.covered) > u64::from(BLOCKS) - 10 {
                continue;
            }
            // Where writes may overtake each other, and results may be late,
            // the model's order is only what fences and answers make it.
            let fence = if self.scattered {
                FenceMode::StrongOrdering
            } else {
                FenceMode::None
            };
            let signalled = self.scattered || self.rng.u8(..4) == 0;
            let mut flags = if signalled {
                Flags::SIGNALLED
            } else {
                Flags::UNSIGNALLED
            };
            flags.fence = fence;
            // What a request reads of the source must not be on its way yet.
            if !self.scattered {
                flags.fence = FenceMode::SmallAndFence;
            }
            self.post(lane, flags);
            if self.rng.u8(..3) == 0 {
                lane.poster.ring();
            }
            if self.rng.u8(..3) == 0 {
                lane.poster.publish();
                self.rig.device.run_at(self.rig.device.now());
            }
        }
        for lane in &mut *lanes {
            if !lane.dead {
                lane.poster.write(Flags::SIGNALLED, Operation::Nop);
                let head = lane.poster.head;
                let index = QueueIndex::new(head.get() - 1).low16();
                lane.expected.push_back((index, head, None));
            }
            lane.poster.publish();
        }
    }
}

fn run(seed: u64) {
    let (mut program, mut lanes, description) = Program::new(seed);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..12 {
            for lane in lanes.iter_mut().filter(|lane| !lane.dead) {
                program.refill(lane);
            }
            program.burst(&mut lanes);
            program.drain(&mut lanes);
            lanes.iter().for_each(|lane| program.check(lane));
            assert_eq!(program.rig.device.take_violations(), []);
        }
    }));
    if let Err(cause) = result {
        eprintln!("{description}");
        std::panic::resume_unwind(cause);
    }
    let device = program.rig.device.clone();
    drop((program, lanes));
    assert_eq!(device.counters().live.total(), 0);
}

#[test]
fn random_programs_do_what_the_model_does() {
    let seeds = std::env::var("SOFTNIC_STRESS_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(150) {
        run(seed);
    }
}
