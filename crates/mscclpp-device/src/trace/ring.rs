// SPDX-License-Identifier: MIT
//! Records in memory that many threads write and one reads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

use super::{Kind, LAP, Phase, Record};

/// Words before the records: the count of records ever written, and one that keeps records aligned.
#[cfg(feature = "cuda")]
pub(crate) const HEAD: usize = 2;

/// What device code needs of a ring; twin of `mscclpp::trace::Ring`. Plain data, keeps nothing alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RingHandle {
    pub(crate) words: u64,
    pub(crate) mask: u64,
}

/// A 16-byte aligned pair of words.
#[derive(Default)]
#[repr(C, align(16))]
struct Pair(AtomicU64, AtomicU64);

/// A ring of records in host memory, for CPU threads. All methods may be called from any thread; writing
/// neither waits nor allocates, and takes one atomic addition and two stores.
pub struct Ring {
    /// The head, then the slots.
    pairs: Box<[Pair]>,
}

/// What a ring held at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The newest records, in the order in which they took their slots.
    pub records: Vec<Record>,
    /// Older records, which newer ones have replaced, and those that were being written.
    pub dropped: u64,
}

impl Ring {
    /// An empty ring for so many records, rounded up to a power of two, from 2 to 2^24; 16 bytes each.
    #[must_use]
    pub fn new(records: usize) -> Arc<Self> {
        let slots = slots(records);
        Arc::new(Self {
            pairs: (0..=slots).map(|_| Pair::default()).collect(),
        })
    }

    /// What device code on CPU threads needs to write to it.
    #[must_use]
    pub fn handle(&self) -> RingHandle {
        RingHandle {
            words: self.pairs.as_ptr().expose_provenance() as u64,
            mask: self.mask(),
        }
    }

    fn mask(&self) -> u64 {
        self.pairs.len() as u64 - 2
    }

    /// Writes a moment, at [`now`].
    pub fn point(&self, kind: Kind, track: u32, object: u64, sequence: u64) {
        self.record(kind, Phase::Point, track, object, sequence);
    }

    /// Writes a record, at [`now`].
    pub fn record(&self, kind: Kind, phase: Phase, track: u32, object: u64, sequence: u64) {
        self.write(Record::new(now(), kind, phase, track, object, sequence));
    }

    /// Writes a record that has its time.
    pub fn write(&self, record: Record) {
        let index = self.pairs[0].0.fetch_add(1, Relaxed);
        let Pair(time, what) = &self.pairs[1 + (index & self.mask()) as usize];
        // The lap's bit says that the time is there.
        time.store(record.time, Relaxed);
        what.store(record.what & !LAP | lap(index, self.mask()), Release);
    }

    /// What it holds. Best when nobody writes: a record that is being written meanwhile, and one that is
    /// replaced, count as dropped.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let written = self.pairs[0].0.load(Acquire);
        let words = |index: u64| {
            let Pair(time, what) = &self.pairs[1 + (index & self.mask()) as usize];
            let what = what.load(Acquire);
            Record {
                time: time.load(Acquire),
                what,
            }
        };
        let seen = take(written, self.mask(), words);
        // Slots that were taken again while this looked.
        let again = self.pairs[0].0.load(Relaxed) - written;
        let kept = (written.min(self.mask() + 1)).saturating_sub(again);
        let skip = seen.len().saturating_sub(kept as usize);
        let records: Vec<Record> = seen.into_iter().skip(skip).flatten().collect();
        let dropped = written - records.len() as u64;
        Snapshot { records, dropped }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("written", &self.pairs[0].0.load(Relaxed))
            .field("slots", &(self.mask() + 1))
            .finish()
    }
}

/// The most slots of a ring: 256 MiB. Device code counts on a power of two that was allocated.
const MOST: usize = 1 << 24;

/// How many slots a ring for so many records has.
pub(crate) fn slots(records: usize) -> usize {
    records.clamp(2, MOST).next_power_of_two()
}

/// The lap's bit of the record at an index: set in the first lap, so that zeroed memory is empty.
fn lap(index: u64, mask: u64) -> u64 {
    if index & (mask + 1) == 0 { LAP } else { 0 }
}

/// The newest records of a ring into which `written` were written; `None` for a slot whose record is not
/// there yet.
fn take(written: u64, mask: u64, words: impl Fn(u64) -> Record) -> Vec<Option<Record>> {
    (written.saturating_sub(mask + 1)..written)
        .map(|index| Some(words(index)).filter(|found| found.what & LAP == lap(index, mask)))
        .collect()
}

impl Snapshot {
    /// Takes a ring apart that was copied from elsewhere, as words.
    #[cfg(feature = "cuda")]
    pub(crate) fn of_words(words: &[u64]) -> Self {
        let written = words[0];
        let mask = ((words.len() - HEAD) / 2 - 1) as u64;
        let at = |index: u64| {
            let slot = HEAD + 2 * (index & mask) as usize;
            Record {
                time: words[slot],
                what: words[slot + 1],
            }
        };
        let records: Vec<Record> = take(written, mask, at).into_iter().flatten().collect();
        let dropped = written - records.len() as u64;
        Self { records, dropped }
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of host rings and of kernels on CPU threads.
#[must_use]
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let since = Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32);
    since.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_asked_for_the_slots_are_a_power_of_two_that_memory_holds() {
        for (records, expected) in [
            (0, 2),
            (1, 2),
            (2, 2),
            (3, 4),
            (1 << 24, 1 << 24),
            ((1 << 24) + 1, 1 << 24),
            (usize::MAX, 1 << 24),
        ] {
            assert_eq!(slots(records), expected, "{records}");
        }
    }

    #[test]
    fn a_full_ring_keeps_the_newest_and_counts_the_rest() {
        for (count, kept) in [(0, 0), (3, 3), (8, 8), (9, 8), (17, 8), (1000, 8)] {
            let ring = Ring::new(7);
            for n in 0..count {
                ring.point(Kind::Sent, 1, 2, n);
            }
            let seen = ring.snapshot();
            let numbers: Vec<u64> = (seen.records.iter())
                .map(|record| record.sequence().into())
                .collect();
            assert_eq!(numbers, (count - kept..count).collect::<Vec<_>>());
            assert_eq!(seen.dropped, count - kept);
            assert!(seen.records.is_sorted_by_key(|record| record.time));
        }
    }

    #[test]
    fn a_record_that_is_being_written_is_dropped() {
        let ring = Ring::new(4);
        (0..6).for_each(|n| ring.point(Kind::Sent, 0, 0, n));
        // A slot is taken and has the lap before's record still.
        ring.pairs[0].0.fetch_add(1, Relaxed);
        let seen = ring.snapshot();
        let numbers: Vec<u16> = seen.records.iter().map(|r| r.sequence()).collect();
        assert_eq!((numbers, seen.dropped), (vec![3, 4, 5], 4));
    }

    #[test]
    fn records_say_what_they_were_made_of() {
        for kind in Kind::ALL {
            for phase in [Phase::Point, Phase::Begin, Phase::End] {
                let record = Record::new(5, *kind, phase, 2_097_151, 0x1_ffff, 0x1_0007);
                assert_eq!(record.kind(), Some(*kind));
                assert_eq!(record.phase(), Some(phase));
                assert_eq!(record.track(), 2_097_151);
                assert_eq!((record.object(), record.sequence()), (0xffff, 7));
            }
        }
        assert_eq!(Kind::of(255), None);
    }

    #[test]
    fn threads_write_at_once() {
        let ring = Ring::new(4096);
        std::thread::scope(|scope| {
            for track in 0..4 {
                let ring = &ring;
                scope.spawn(move || {
                    (0..1000).for_each(|n| ring.point(Kind::Sent, track, 0, n));
                });
            }
        });
        let seen = ring.snapshot();
        assert_eq!((seen.records.len(), seen.dropped), (4000, 0));
        for track in 0..4 {
            let own = seen.records.iter().filter(|record| record.track() == track);
            let numbers: Vec<u16> = own.map(|record| record.sequence()).collect();
            assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
        }
    }
}
