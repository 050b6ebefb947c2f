// SPDX-License-Identifier: MIT
//! Who knows of whose stores: vector clocks, and how they travel.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::super::Scope;
use super::super::word::Word;
use super::Block;

/// A thread, of all launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Writer {
    pub(super) launch: u64,
    pub(super) place: u64,
}

/// How many stores of each writer are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(BTreeMap<Writer, u64>);

impl Clock {
    /// One more store of `writer`, who is the clock's owner; its number.
    pub(super) fn count(&mut self, writer: Writer) -> u64 {
        let count = self.0.entry(writer).or_default();
        *count += 1;
        *count - 1
    }

    pub(super) fn covers(&self, writer: Writer, number: u64) -> bool {
        self.0.get(&writer).is_some_and(|count| number < *count)
    }

    pub(super) fn join(&mut self, other: &Self) {
        for (writer, count) in &other.0 {
            let known = self.0.entry(*writer).or_default();
            *known = (*known).max(*count);
        }
    }
}

/// What a released value tells to those who acquire it.
#[derive(Clone, Debug)]
pub(super) struct Release {
    /// The block of who released it.
    pub(super) block: Block,
    pub(super) scope: Scope,
    pub(super) clock: Clock,
}

/// Whether two ordered accesses of one value, each by its thread's block and its scope, order
/// anything: each thread is in the other's scope.
pub(super) fn synchronises(one: (Block, Scope), other: (Block, Scope)) -> bool {
    one.0 == other.0 || one.1.min(other.1) >= Scope::Device
}

/// The release sequences whose last value is in memory, by address.
#[derive(Default)]
pub(super) struct Sequences(BTreeMap<usize, (Word, Arc<Release>)>);

impl Sequences {
    /// What the value at `word` tells.
    pub(super) fn of(&self, word: Word) -> Option<&Arc<Release>> {
        self.0.get(&word.address()).map(|(_, release)| release)
    }

    /// A store arrived: it ends what was there.
    pub(super) fn begin(&mut self, word: Word, release: Option<Arc<Release>>) {
        let end = word.address() + word.bytes();
        // One that begins before it may be 8 bytes long.
        for start in (word.address().saturating_sub(4)..end).step_by(4) {
            if let Entry::Occupied(entry) = self.0.entry(start)
                && entry.get().0.overlaps(word)
            {
                entry.remove();
            }
        }
        if let Some(release) = release {
            self.0.insert(word.address(), (word, release));
        }
    }

    /// An atomic was done: what was there goes on, with what it adds itself.
    pub(super) fn go_on(&mut self, word: Word, release: Option<Arc<Release>>) {
        let Some(mut release) = release else {
            return;
        };
        if let Some(before) = self.of(word) {
            let added = Arc::make_mut(&mut release);
            if synchronises((before.block, before.scope), (added.block, added.scope)) {
                added.clock.join(&before.clock);
            }
        }
        self.0.insert(word.address(), (word, release));
    }

    /// Stores of `launch` wait no more.
    pub(super) fn forget(&mut self, launch: u64) {
        for (_, release) in self.0.values_mut() {
            Arc::make_mut(release)
                .clock
                .0
                .retain(|writer, _| writer.launch != launch);
        }
        self.0.retain(|_, (_, release)| !release.clock.0.is_empty());
    }
}
