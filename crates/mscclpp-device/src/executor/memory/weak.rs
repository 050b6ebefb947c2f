// SPDX-License-Identifier: MIT
//! A memory in which stores arrive late and out of order.
//!
//! A store waits with its thread, then with its block, then with its GPU, and
//! then reaches memory, where hosts, NICs and other GPUs see it. Threads see
//! what waits with themselves, their block and their GPU. From each place
//! stores move on one by one, in an order drawn from the seed; only stores to
//! the same bytes keep theirs. A fence or release moves what waits with its
//! thread (and, where the scope is wider, with its block and its GPU: what the
//! thread may have seen) up to where its scope sees it, at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::error::ThreadId;
use super::word::Word;
use super::{Order, Scope, observe};

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
/// Not modelled: loads are done when the thread comes to them, never early,
/// so that a missing acquire does not show.
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

#[derive(Clone, Copy)]
struct Store {
    word: Word,
    value: u64,
}

/// Where stores wait that have left their thread.
#[derive(Default)]
struct Places {
    /// By launch and block.
    blocks: BTreeMap<(u64, u32), Vec<Store>>,
    gpu: Vec<Store>,
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
        while let Some(store) = take_any(&mut places.gpu, &mut random) {
            self.write(store);
        }
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

    fn write(&self, store: Store) {
        store.word.store(store.value);
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

/// One thread on a [`Weak`] memory.
pub(crate) struct WeakThread {
    gpu: Weak,
    block: (u64, u32),
    own: RefCell<Own>,
}

struct Own {
    random: Random,
    /// How seldom this thread moves stores on: once in so many steps for each place.
    pace: usize,
    stores: Vec<Store>,
}

impl WeakThread {
    pub(crate) fn new(gpu: Weak, launch: u64, id: ThreadId) -> Self {
        let place = u64::from(id.block) << 32 | u64::from(id.thread);
        let mut random = Random::new(gpu.shared.seed ^ Random::new(launch << 48 ^ place).next());
        let pace = [4, 16, 64][random.below(3)];
        Self {
            gpu,
            block: (launch, id.block),
            own: RefCell::new(Own {
                random,
                pace,
                stores: Vec::new(),
            }),
        }
    }

    pub(crate) fn store(&self, word: Word, value: u64, order: Order, scope: Scope) {
        if order.releases() {
            self.fence(scope);
        }
        self.own.borrow_mut().stores.push(Store { word, value });
        self.step();
    }

    pub(crate) fn load(&self, word: Word) -> u64 {
        let value = {
            let places = self.gpu.lock();
            let own = self.own.borrow();
            let block = places
                .blocks
                .get(&self.block)
                .map_or(&[][..], Vec::as_slice);
            let waiting = places.gpu.iter().chain(block).chain(&own.stores);
            waiting.fold(word.load(), |seen, store| {
                word.overlay(seen, store.word, store.value)
            })
        };
        self.step();
        value
    }

    /// Atomics are done in memory, after what this thread sees waiting there.
    pub(crate) fn atomic(
        &self,
        word: Word,
        order: Order,
        scope: Scope,
        operation: impl FnOnce(Word) -> u64,
    ) -> u64 {
        if order.releases() {
            self.fence(scope);
        }
        let found = {
            let mut places = self.gpu.lock();
            let mut own = self.own.borrow_mut();
            let Places { blocks, gpu } = &mut *places;
            let block = blocks.entry(self.block).or_default();
            for place in [gpu, block, &mut own.stores] {
                for store in place.extract_if(.., |store| store.word.overlaps(word)) {
                    self.gpu.write(store);
                }
            }
            let found = operation(word);
            self.gpu.tell(word, word.load(), false);
            found
        };
        self.step();
        found
    }

    pub(crate) fn store_mmio(&self, word: Word, value: u64) {
        {
            let _places = self.gpu.lock();
            word.store(value);
            self.gpu.tell(word, value, true);
        }
        self.step();
    }

    pub(crate) fn fence(&self, scope: Scope) {
        let mut places = self.gpu.lock();
        let mut own = self.own.borrow_mut();
        let Own { random, stores, .. } = &mut *own;
        let Places { blocks, gpu } = &mut *places;
        let block = blocks.entry(self.block).or_default();
        block.append(stores);
        if scope >= Scope::Device {
            gpu.append(block);
        }
        if scope == Scope::System {
            while let Some(store) = take_any(gpu, random) {
                self.gpu.write(store);
            }
        }
    }

    /// Lets time pass: waiting loops must see what others wrote in the end.
    pub(crate) fn relax(&self) {
        for _ in 0..4 {
            self.step();
        }
    }

    pub(crate) fn exit(&self) {
        self.fence(Scope::Block);
    }

    /// Moves at most one store on, from where chance or a full place says.
    fn step(&self) {
        let mut places = self.gpu.lock();
        let mut own = self.own.borrow_mut();
        let Own {
            random,
            pace,
            stores,
        } = &mut *own;
        let Places { blocks, gpu } = &mut *places;
        let draw = random.below(*pace);
        if draw == 0 || stores.len() > CAPACITY {
            if let Some(store) = take_any(stores, random) {
                blocks.entry(self.block).or_default().push(store);
            }
        } else if draw == 1 {
            let mut waiting: Vec<_> = blocks.values_mut().filter(|b| !b.is_empty()).collect();
            if !waiting.is_empty() {
                let chosen = random.below(waiting.len());
                gpu.extend(take_any(waiting[chosen], random));
            }
        } else if (draw == 2 || gpu.len() > CAPACITY)
            && let Some(store) = take_any(gpu, random)
        {
            self.gpu.write(store);
        }
    }
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
