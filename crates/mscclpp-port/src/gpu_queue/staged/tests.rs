// SPDX-License-Identifier: MIT
//! The memory over a stream that a test makes: late, and failing when told to.

mod device;

use std::sync::Arc;

use mscclpp_softnic::HostMemory;

use super::*;
use crate::device::Device;

/// What a stream has been asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Copy { to: u64, from: u64, len: u64 },
    Word { at: u64, value: u64 },
    Mark(u64),
}

/// A stream of copies of host memory. It does something only when it is looked at: a few operations
/// of those that were asked for, in their order, or all.
#[derive(Default)]
struct Late {
    waiting: VecDeque<Op>,
    log: Vec<Op>,
    marked: u64,
    reached: u64,
    /// How many operations a look brings; none: all.
    at_a_time: Option<u64>,
    seed: u64,
    refuses: bool,
    failed: bool,
}

/// The stream, as the memory and the test share it.
#[derive(Clone, Default)]
struct Stream(Arc<Mutex<Late>>);

impl Stream {
    fn late(&self) -> std::sync::MutexGuard<'_, Late> {
        lock(&self.0)
    }

    fn ask(&self, op: Op) -> Result<()> {
        let mut late = self.late();
        if late.refuses {
            return Err(Error::InvalidUsage {
                operation: "copy",
                detail: "the test says so".into(),
            });
        }
        late.log.push(op);
        late.waiting.push_back(op);
        Ok(())
    }
}

/// # Safety
/// The ranges of `op` are valid.
unsafe fn perform(op: Op) {
    let host = HostMemory::shared();
    let access = match op {
        Op::Copy { to, from, len } => Access::Copy {
            from,
            to,
            length: len,
        },
        Op::Word { at, value } => Access::Publish {
            address: at,
            bytes: Bytes::from_slice(&value.to_ne_bytes()),
        },
        Op::Mark(_) => return,
    };
    // SAFETY: the caller's promise.
    let done = unsafe { host.submit(AccessId::new(0), access) };
    assert!(matches!(done, Submitted::Done(Ok(_))));
}

impl Copies for Stream {
    unsafe fn copy(&mut self, to: u64, from: u64, len: u64) -> Result<()> {
        self.ask(Op::Copy { to, from, len })
    }

    unsafe fn write_u64(&mut self, at: u64, value: u64) -> Result<()> {
        self.ask(Op::Word { at, value })
    }

    fn mark(&mut self) -> Result<u64> {
        let mark = self.late().marked + 1;
        self.ask(Op::Mark(mark))?;
        self.late().marked = mark;
        Ok(mark)
    }

    fn reached(&self) -> u64 {
        let mut late = self.late();
        late.seed = late.seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        let now = late
            .at_a_time
            .map_or(u64::MAX, |most| (late.seed >> 33) % (most + 1));
        for _ in 0..now {
            let Some(op) = late.waiting.pop_front_if(|_| true) else {
                break;
            };
            if let Op::Mark(mark) = op {
                late.reached = mark;
            }
            // SAFETY: who asked keeps the ranges until the mark behind it is reached.
            unsafe { perform(op) };
        }
        late.reached
    }

    fn check(&self) -> Result<()> {
        if self.late().failed {
            return Err(Error::InvalidUsage {
                operation: "copy",
                detail: "the stream has failed".into(),
            });
        }
        Ok(())
    }
}

const BYTES: u64 = 4 << 20;

struct Rig {
    stream: Stream,
    memory: StagedMemory<Stream>,
    buffer: Buffer,
    next: u64,
}

impl Rig {
    fn new(staging: u64) -> Self {
        let stream = Stream::default();
        let staging = Buffer::new(Device::cpu(), staging).unwrap();
        Self {
            memory: StagedMemory::new(stream.clone(), staging),
            stream,
            buffer: Buffer::new(Device::cpu(), BYTES).unwrap(),
            next: 0,
        }
    }

    fn at(&self, offset: u64) -> u64 {
        self.buffer.address() + offset
    }

    /// Asks for an access inside of the buffer.
    fn submit(&mut self, access: Access) -> Submitted {
        self.next += 1;
        // SAFETY: as the function says; the buffer lives as long as the memory.
        unsafe { self.memory.submit(AccessId::new(self.next), access) }
    }

    fn read(&mut self, offset: u64, len: usize) {
        let access = Access::Read {
            address: self.at(offset),
            bytes: Bytes::from_elem(0, len),
        };
        assert!(matches!(self.submit(access), Submitted::Pending));
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let access = Access::Write {
            address: self.at(offset),
            bytes: Bytes::from_slice(bytes),
        };
        assert!(matches!(self.submit(access), Submitted::Pending));
    }

    /// The next that is done, soon.
    fn done(&self) -> (AccessId, AccessResult) {
        for _ in 0..1_000_000 {
            if let Some(done) = self.memory.complete() {
                return done;
            }
        }
        panic!("nothing completes");
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(offset, &mut bytes).unwrap();
        bytes
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

#[test]
fn what_is_asked_for_is_done_in_order_and_whole() {
    // Longer than a piece, at odd places, and more than fits the pinned memory at once.
    let lengths = [1, 7, 8, 64, 4096, 512 << 10, (512 << 10) + 9, 1_300_001];
    let mut rig = Rig::new(2 << 20);
    rig.stream.late().at_a_time = Some(3);
    for (round, len) in lengths.into_iter().cycle().take(40).enumerate() {
        let offset = (round as u64 * 13) % 40;
        rig.write(offset, &pattern(round, len));
        rig.read(offset, len);
        for _ in 0..2 {
            let (id, result) = rig.done();
            let bytes = result.unwrap();
            if id == AccessId::new(rig.next) {
                assert_eq!(
                    bytes.as_slice(),
                    pattern(round, len),
                    "{round}: {len} bytes"
                );
            }
        }
    }
    assert!(rig.memory.complete().is_none());
}

#[test]
fn many_accesses_share_one_mark() {
    let mut rig = Rig::new(2 << 20);
    for i in 0..100 {
        rig.write(i * 64, &[i as u8; 64]);
    }
    for i in 1..=100 {
        assert_eq!(rig.done().0, AccessId::new(i));
    }
    let marks = |op: &&Op| matches!(op, Op::Mark(_));
    assert_eq!(rig.stream.late().log.iter().filter(marks).count(), 1);
    assert_eq!(rig.bytes(99 * 64, 64), [99; 64]);
}

#[test]
fn accesses_wait_for_pinned_memory_and_for_each_other() {
    let mut rig = Rig::new(1 << 20);
    rig.stream.late().at_a_time = Some(0);
    let big = pattern(3, 700_000);
    for _ in 0..5 {
        rig.write(0, &big);
    }
    rig.write(0, &[9; 8]);
    assert!(rig.memory.complete().is_none());
    rig.stream.late().at_a_time = None;
    for i in 1..=6 {
        let (id, result) = rig.done();
        assert_eq!(id, AccessId::new(i));
        result.unwrap();
    }
    assert_eq!(rig.bytes(0, 9), [&[9; 8], &big[8..9]].concat());
}

#[test]
fn the_last_word_of_what_is_published_is_behind_the_rest() {
    let mut rig = Rig::new(1 << 20);
    let bytes = pattern(1, 64);
    let access = Access::Publish {
        address: rig.at(128),
        bytes: Bytes::from_slice(&bytes),
    };
    rig.submit(access);
    rig.done().1.unwrap();
    let word = u64::from_ne_bytes(bytes[56..].try_into().unwrap());
    let log = rig.stream.late().log.clone();
    let [Op::Copy { to, len: 56, .. }, last, Op::Mark(1)] = log[..] else {
        panic!("{log:?}")
    };
    let at = rig.at(128 + 56);
    assert_eq!((to, last), (rig.at(128), Op::Word { at, value: word }));
    assert_eq!(rig.bytes(128, 64), bytes);
    // A word alone is one write, and nothing is nothing.
    let alone = Access::Publish {
        address: rig.at(0),
        bytes: Bytes::from_slice(&[1; 8]),
    };
    rig.submit(alone);
    rig.done().1.unwrap();
    let words = |op: &&Op| matches!(op, Op::Word { .. });
    assert_eq!(rig.stream.late().log.iter().filter(words).count(), 2);
    let nothing = Access::Copy {
        from: rig.at(0),
        to: rig.at(8),
        length: 0,
    };
    assert!(matches!(rig.submit(nothing), Submitted::Done(Ok(_))));
}

#[test]
fn copies_within_go_past_the_pinned_memory() {
    let mut rig = Rig::new(1 << 20);
    rig.buffer.write(0, &pattern(5, 2_000_000)).unwrap();
    let (from, to) = (rig.at(0), rig.at(2_000_000));
    rig.submit(Access::Copy {
        from,
        to,
        length: 2_000_000,
    });
    rig.done().1.unwrap();
    assert_eq!(rig.bytes(2_000_000, 2_000_000), pattern(5, 2_000_000));
    let len = 2_000_000;
    assert_eq!(rig.stream.late().log[0], Op::Copy { to, from, len });
}

#[test]
fn a_stream_that_fails_ends_every_access() {
    for refuses in [true, false] {
        let mut rig = Rig::new(1 << 20);
        rig.stream.late().at_a_time = Some(0);
        let mut early = None;
        let begun = Instant::now();
        rig.read(0, 64);
        rig.write(0, &vec![1; 700_000]);
        rig.write(0, &[2; 700_000]);
        if refuses {
            // The next copy; what waits for its end does not get it.
            rig.stream.late().refuses = true;
        } else {
            rig.stream.late().failed = true;
            early = rig.memory.complete();
            let asked = early.is_some();
            assert!(
                !asked || begun.elapsed() >= CHECK_AFTER,
                "it is asked at once"
            );
            std::thread::sleep(CHECK_AFTER);
        }
        for i in 1..=3 {
            let (id, result) = early.take().unwrap_or_else(|| rig.done());
            assert_eq!(id, AccessId::new(i));
            assert!(result.is_err());
        }
        let late = Access::Write {
            address: rig.at(0),
            bytes: Bytes::from_slice(&[1]),
        };
        assert!(matches!(rig.submit(late), Submitted::Done(Err(_))));
    }
}
