// SPDX-License-Identifier: MIT
//! What one thread does on a weakly ordered memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::super::error::ThreadId;
use super::super::word::Word;
use super::super::{Order, Scope};
use super::clock::{self, Clock, Release, Writer};
use super::{Block, CAPACITY, Places, Random, Store, Weak, take_any, take_known};

/// One thread on a [`Weak`] memory.
pub(crate) struct WeakThread {
    gpu: Weak,
    block: Block,
    writer: Writer,
    pub(super) own: RefCell<Own>,
}

pub(super) struct Own {
    random: Random,
    /// How seldom this thread moves stores on: once in so many steps for each place.
    pace: usize,
    pub(super) stores: Vec<Store>,
    /// Whose stores this thread knows, its own among them.
    known: Clock,
    /// Read without an acquire: known after an acquiring fence. By what decides whether that
    /// synchronises.
    seen: BTreeMap<(Block, Scope), Clock>,
    /// What the last releasing fence put into all later stores.
    fenced: Option<Arc<Release>>,
    barriers: usize,
}

impl Own {
    fn acquire(&mut self, release: &Release, order: Order, scope: Scope, block: Block) {
        if !order.acquires() {
            let key = (release.block, release.scope);
            self.seen.entry(key).or_default().join(&release.clock);
        } else if clock::synchronises((release.block, release.scope), (block, scope)) {
            self.known.join(&release.clock);
        }
    }
}

impl WeakThread {
    pub(crate) fn new(gpu: Weak, launch: u64, id: ThreadId) -> Self {
        let place = u64::from(id.block) << 32 | u64::from(id.thread);
        let mut random = Random::new(gpu.shared.seed ^ Random::new(launch << 48 ^ place).next());
        let pace = [4, 16, 64][random.below(3)];
        Self {
            gpu,
            block: (launch, id.block),
            writer: Writer { launch, place },
            own: RefCell::new(Own {
                random,
                pace,
                stores: Vec::new(),
                known: Clock::default(),
                seen: BTreeMap::new(),
                fenced: None,
                barriers: 0,
            }),
        }
    }

    /// What a store or atomic of this order and scope tells.
    fn release(&self, own: &Own, order: Order, scope: Scope) -> Option<Arc<Release>> {
        if !order.releases() {
            return own.fenced.clone();
        }
        let (block, clock) = (self.block, own.known.clone());
        Some(Arc::new(Release {
            block,
            scope,
            clock,
        }))
    }

    pub(crate) fn store(&self, word: Word, value: u64, order: Order, scope: Scope) {
        if order.releases() {
            self.move_known(scope);
        }
        {
            let mut own = self.own.borrow_mut();
            let release = self.release(&own, order, scope);
            let (writer, number) = (self.writer, own.known.count(self.writer));
            own.stores.push(Store {
                word,
                value,
                writer,
                number,
                release,
            });
        }
        self.step();
    }

    pub(crate) fn load(&self, word: Word, order: Order, scope: Scope) -> u64 {
        let value = {
            let places = self.gpu.lock();
            let mut own = self.own.borrow_mut();
            let block = places
                .blocks
                .get(&self.block)
                .map_or(&[][..], Vec::as_slice);
            let waiting = places.gpu.iter().chain(block).chain(&own.stores);
            let (value, release) = waiting.filter(|store| store.word.overlaps(word)).fold(
                (word.load(), places.memory.of(word)),
                |(seen, _), store| {
                    let value = word.overlay(seen, store.word, store.value);
                    (value, store.release.as_ref())
                },
            );
            if let Some(release) = release.cloned() {
                own.acquire(&release, order, scope, self.block);
            }
            value
        };
        self.step();
        value
    }

    /// Atomics are done in memory, after what this thread sees waiting there.
    /// `operation` returns what it found, and whether it wrote.
    pub(crate) fn atomic(
        &self,
        word: Word,
        order: Order,
        scope: Scope,
        operation: impl FnOnce(Word) -> (u64, bool),
    ) -> u64 {
        if order.releases() {
            self.move_known(scope);
        }
        let found = {
            let mut places = self.gpu.lock();
            let mut own = self.own.borrow_mut();
            let Places {
                blocks,
                gpu,
                memory,
                ..
            } = &mut *places;
            let block = blocks.entry(self.block).or_default();
            for place in [gpu, block, &mut own.stores] {
                for store in place.extract_if(.., |store| store.word.overlaps(word)) {
                    self.gpu.write(memory, store);
                }
            }
            let before = memory.of(word).cloned();
            let (found, wrote) = operation(word);
            // One that does not write is ordered as a relaxed load.
            let order = if wrote { order } else { Order::Relaxed };
            if let Some(before) = before {
                own.acquire(&before, order, scope, self.block);
            }
            if wrote {
                memory.go_on(word, self.release(&own, order, scope));
                self.gpu.tell(word, word.load(), false);
            }
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

    pub(crate) fn fence(&self, order: Order, scope: Scope) {
        if order.acquires() {
            let mut own = self.own.borrow_mut();
            for (from, clock) in std::mem::take(&mut own.seen) {
                if clock::synchronises(from, (self.block, scope)) {
                    own.known.join(&clock);
                }
            }
        }
        if order.releases() {
            self.move_known(scope);
            let mut own = self.own.borrow_mut();
            own.fenced = self.release(&own, order, scope);
        }
    }

    /// Arrives at the barrier of the block, with what it knows.
    pub(crate) fn arrive(&self) {
        self.move_known(Scope::Block);
        let mut places = self.gpu.lock();
        let own = self.own.borrow();
        places.barriers.entry(self.block).or_default()[own.barriers % 2].join(&own.known);
    }

    /// Leaves it, knowing what all knew.
    pub(crate) fn leave(&self) {
        let places = self.gpu.lock();
        let mut own = self.own.borrow_mut();
        if let Some(known) = places.barriers.get(&self.block) {
            let parity = own.barriers % 2;
            own.known.join(&known[parity]);
        }
        own.barriers += 1;
    }

    /// Moves what this thread stored and what it knows up to where `scope` sees it.
    pub(super) fn move_known(&self, scope: Scope) {
        let mut places = self.gpu.lock();
        let mut own = self.own.borrow_mut();
        let Own {
            random,
            stores,
            known,
            ..
        } = &mut *own;
        let Places {
            blocks,
            gpu,
            memory,
            ..
        } = &mut *places;
        let block = blocks.entry(self.block).or_default();
        block.append(stores);
        if scope >= Scope::Device {
            gpu.append(&mut take_known(block, known));
        }
        if scope == Scope::System {
            let mut leaving = take_known(gpu, known);
            while let Some(store) = take_any(&mut leaving, random) {
                self.gpu.write(memory, store);
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
        self.move_known(Scope::Block);
    }

    /// Moves at most one store on, from where chance or a full place says.
    fn step(&self) {
        let mut places = self.gpu.lock();
        let mut own = self.own.borrow_mut();
        let Own {
            random,
            pace,
            stores,
            ..
        } = &mut *own;
        let Places {
            blocks,
            gpu,
            memory,
            ..
        } = &mut *places;
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
            self.gpu.write(memory, store);
        }
    }
}
