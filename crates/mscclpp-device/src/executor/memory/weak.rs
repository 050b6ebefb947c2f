// SPDX-License-Identifier: MIT
//! A memory in which stores arrive late and out of order.
//!
//! A store waits with its thread, then with its block, then with its GPU, and
//! then reaches memory, where hosts, NICs and other GPUs see it. Threads see
//! what waits with themselves, their block and their GPU. From each place
//! stores move on one by one, in an order drawn from the seed; only stores to
//! the same bytes keep theirs. A fence or release moves up to where its scope
//! sees it, at once, what its thread stored and what the thread *knows* others
//! to have stored: because they released it and the thread acquired that, or
//! by a barrier of their block. What it merely may have seen stays.

mod clock;
mod thread;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::observe;
use super::word::Word;
use clock::{Clock, Release, Sequences, Writer};
pub(crate) use thread::WeakThread;

/// More stores than this do not wait in one place.
const CAPACITY: usize = 256;

/// A store, or an atomic's result, that has reached memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Address in this process.
    pub address: usize,
    /// 4 or 8.
    pub bytes: usize,
    /// What is there now.
    pub value: u64,
    /// Whether it is a device register. Such a store does not wait, and does
    /// not make others arrive.
    pub mmio: bool,
}

type Observer = dyn Fn(&Write) + Send + Sync;

/// A weakly ordered memory; one such model stands for one GPU, and launches on
/// the same model run on the same GPU.
///
/// Not modelled: loads are done when the thread comes to them, never early.
/// A missing acquire shows in what a later, wider release of the same thread
/// leaves behind, not in what the thread itself loads.
///
/// The same seed gives the same order for a launch of one thread. With several
/// threads each draws from its own sequence, and the system's scheduling adds
/// its own.
#[derive(Clone)]
pub struct Weak {
    shared: Arc<Shared>,
}

struct Shared {
    seed: u64,
    launches: AtomicU64,
    places: Mutex<Places>,
    observer: Option<Box<Observer>>,
    failure: Mutex<Option<String>>,
}

struct Store {
    word: Word,
    value: u64,
    writer: Writer,
    /// How many stores its writer had made before it.
    number: u64,
    /// What it tells to a thread that acquires it.
    release: Option<Arc<Release>>,
}

/// A block of threads: its launch and its number in it.
type Block = (u64, u32);

/// What the threads of a GPU share.
#[derive(Default)]
struct Places {
    /// Where stores wait that have left their thread.
    blocks: BTreeMap<Block, Vec<Store>>,
    gpu: Vec<Store>,
    /// What the values in memory tell.
    memory: Sequences,
    /// What is known to all behind the even and the odd barriers of a block.
    /// A thread is never two barriers ahead of another.
    barriers: BTreeMap<Block, [Clock; 2]>,
}

impl Weak {
    /// A GPU whose stores are drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, None)
    }

    /// The same, calling `observer` each time that memory has changed, on the
    /// thread that made it change. It sees memory as any other agent would at
    /// that moment, and must not wait for a kernel.
    pub fn observed(seed: u64, observer: impl Fn(&Write) + Send + Sync + 'static) -> Self {
        Self::with(seed, Some(Box::new(observer)))
    }

    fn with(seed: u64, observer: Option<Box<Observer>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                seed,
                launches: AtomicU64::new(0),
                places: Mutex::new(Places::default()),
                observer,
                failure: Mutex::new(None),
            }),
        }
    }

    pub(crate) fn begin(&self) -> u64 {
        self.shared.launches.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn end(&self, launch: u64) {
        let mut random = Random::new(self.shared.seed ^ launch);
        let mut places = self.lock();
        let ended: Vec<_> = places
            .blocks
            .keys()
            .copied()
            .filter(|(of, _)| *of == launch)
            .collect();
        for key in ended {
            let mut stores = places.blocks.remove(&key).unwrap_or_default();
            places.gpu.append(&mut stores);
        }
        let Places { gpu, memory, .. } = &mut *places;
        while let Some(store) = take_any(gpu, &mut random) {
            self.write(memory, store);
        }
        // All of it has arrived: nothing is left to be known of this launch.
        memory.forget(launch);
        places.barriers.retain(|(of, _), _| *of != launch);
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.shared
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.shared
            .places
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, memory: &mut Sequences, store: Store) {
        store.word.store(store.value);
        memory.begin(store.word, store.release);
        self.tell(store.word, store.value, false);
    }

    fn tell(&self, word: Word, value: u64, mmio: bool) {
        if let Some(observer) = &self.shared.observer {
            let write = Write {
                address: word.address(),
                bytes: word.bytes(),
                value,
                mmio,
            };
            observe(&self.shared.failure, || observer(&write));
        }
    }
}

impl fmt::Debug for Weak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weak")
            .field("seed", &self.shared.seed)
            .finish_non_exhaustive()
    }
}

/// Takes, in their order, the stores that `known` covers and earlier ones to the same bytes.
fn take_known(stores: &mut Vec<Store>, known: &Clock) -> Vec<Store> {
    let mut goes = vec![false; stores.len()];
    for i in (0..stores.len()).rev() {
        let covered = known.covers(stores[i].writer, stores[i].number);
        goes[i] = covered
            || (i + 1..stores.len()).any(|j| goes[j] && stores[j].word.overlaps(stores[i].word));
    }
    let mut goes = goes.into_iter();
    stores
        .extract_if(.., |_| goes.next().unwrap_or_default())
        .collect()
}

/// Takes a store that may go first: no earlier one is to the same bytes.
fn take_any(stores: &mut Vec<Store>, random: &mut Random) -> Option<Store> {
    if stores.is_empty() {
        return None;
    }
    let mut chosen = random.below(stores.len());
    while let Some(earlier) = (0..chosen).rfind(|&i| stores[i].word.overlaps(stores[chosen].word)) {
        chosen = earlier;
    }
    Some(stores.remove(chosen))
}

/// SplitMix64: small, and the same on every machine and version.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

#[cfg(test)]
mod tests;
