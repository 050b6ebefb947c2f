// SPDX-License-Identifier: MIT

use std::sync::atomic::AtomicU64;

use super::super::super::error::ThreadId;
use super::super::{Order, Scope};
use super::*;

const SEEDS: u64 = 300;

/// Words and values in the order in which they reached memory.
type Arrivals = Arc<Mutex<Vec<(usize, u64)>>>;

/// Memory of four words and threads on it.
struct Bench {
    memory: Arc<[AtomicU64; 4]>,
    gpu: Weak,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let memory: Arc<[AtomicU64; 4]> = Arc::default();
        Self {
            gpu: Weak::new(seed),
            memory,
        }
    }

    /// A bench, and what reaches its memory.
    fn observed(seed: u64) -> (Self, Arrivals) {
        let memory: Arc<[AtomicU64; 4]> = Arc::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        let (base, log) = (memory.as_ptr().expose_provenance(), order.clone());
        let gpu = Weak::observed(seed, move |write| {
            log.lock()
                .unwrap()
                .push(((write.address - base) / 8, write.value));
        });
        (Self { memory, gpu }, order)
    }

    fn thread(&self, block: u32, thread: u32) -> WeakThread {
        WeakThread::new(self.gpu.clone(), 0, ThreadId { block, thread })
    }

    fn word(&self, index: usize) -> Word {
        let address = (&raw const self.memory[index]).expose_provenance();
        // SAFETY: the word lies in `memory`, which tests keep for as long as they use it.
        unsafe { Word::new(address, 8) }
    }

    fn relaxed(&self, thread: &WeakThread, index: usize, value: u64) {
        thread.store(self.word(index), value, Order::Relaxed, Scope::System);
    }
}

#[test]
fn a_thread_sees_its_own_stores_at_once() {
    for seed in 0..SEEDS {
        let bench = Bench::new(seed);
        let thread = bench.thread(0, 0);
        for value in 1..20 {
            bench.relaxed(&thread, 0, value);
            let seen = thread.load(bench.word(0), Order::Relaxed, Scope::System);
            assert_eq!(seen, value, "seed {seed}");
        }
    }
}

#[test]
fn stores_to_one_word_arrive_in_order_and_to_two_words_in_any() {
    let mut swapped = 0;
    for seed in 0..SEEDS {
        let (bench, order) = Bench::observed(seed);
        let thread = bench.thread(0, 0);
        for value in 1..=3 {
            bench.relaxed(&thread, 0, value);
            bench.relaxed(&thread, 1, value);
        }
        thread.exit();
        bench.gpu.end(0);
        let order = order.lock().unwrap();
        for index in 0..2 {
            let values: Vec<_> = order.iter().filter(|w| w.0 == index).map(|w| w.1).collect();
            assert_eq!(values, [1, 2, 3], "seed {seed}");
        }
        swapped += u64::from(order[0].0 == 1);
    }
    assert!((SEEDS / 10..SEEDS).contains(&swapped), "{swapped}");
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let run = |seed| {
        let (bench, order) = Bench::observed(seed);
        let thread = bench.thread(0, 0);
        for i in 0..40 {
            bench.relaxed(&thread, i % 4, i as u64);
        }
        thread.exit();
        bench.gpu.end(0);
        let order = order.lock().unwrap();
        order.clone()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// Data, then a flag: in how many runs is the flag in memory before the data?
fn overtakes(publish: impl Fn(&Bench, &WeakThread)) -> u64 {
    let runs = (0..SEEDS).map(|seed| {
        let (bench, order) = Bench::observed(seed);
        let thread = bench.thread(0, 0);
        bench.relaxed(&thread, 0, 7);
        publish(&bench, &thread);
        thread.exit();
        bench.gpu.end(0);
        let order = order.lock().unwrap();
        u64::from(order[0].0 == 1)
    });
    runs.sum()
}

#[test]
fn only_a_release_of_system_scope_orders_for_hosts() {
    let store =
        |order, scope| overtakes(move |bench, thread| thread.store(bench.word(1), 1, order, scope));
    assert!(store(Order::Relaxed, Scope::System) > 0);
    assert!(store(Order::Release, Scope::Block) > 0);
    assert!(store(Order::Release, Scope::Device) > 0);
    assert_eq!(store(Order::Release, Scope::System), 0);

    let fence = |scope| {
        overtakes(move |bench, thread| {
            thread.fence(Order::Release, scope);
            bench.relaxed(thread, 1, 1);
        })
    };
    assert!(fence(Scope::Device) > 0);
    assert_eq!(fence(Scope::System), 0);

    let add = |order| {
        overtakes(move |bench, thread| {
            thread.atomic(bench.word(1), order, Scope::System, |word| {
                (word.fetch_add(1), true)
            });
        })
    };
    assert!(add(Order::Relaxed) > 0);
    assert_eq!(add(Order::AcqRel), 0);

    let doorbell = overtakes(|bench, thread| thread.store_mmio(bench.word(1), 1));
    assert!(doorbell > 0);
}

#[test]
fn a_device_release_shows_to_the_gpu_and_a_block_release_to_the_block() {
    for (scope, to_block, to_gpu) in [(Scope::Block, 7, 0), (Scope::Device, 7, 7)] {
        // The first look is right whatever the seed; later ones may see more.
        let bench = Bench::new(3);
        let (writer, near, far) = (bench.thread(0, 0), bench.thread(0, 1), bench.thread(1, 0));
        bench.relaxed(&writer, 0, 7);
        assert_eq!(writer.own.borrow().stores.len(), 1);
        writer.fence(Order::Release, scope);
        assert_eq!(bench.memory[0].load(Ordering::SeqCst), 0);
        let look = |by: &WeakThread| by.load(bench.word(0), Order::Relaxed, Scope::Device);
        assert_eq!(look(&far), to_gpu, "{scope:?}");
        assert_eq!(look(&near), to_block, "{scope:?}");
    }
}

/// One thread stores a datum and hands over through the word `FLAG`; another takes over and
/// releases a third word to the system. In how many runs is that in memory before the datum?
fn left_behind(
    blocks: (u32, u32),
    hand_over: impl Fn(&Bench, &WeakThread),
    take_over: impl Fn(&Bench, &WeakThread),
) -> u64 {
    let runs = (0..SEEDS).map(|seed| {
        let (bench, order) = Bench::observed(seed);
        let (writer, leader) = (bench.thread(blocks.0, 0), bench.thread(blocks.1, 1));
        bench.relaxed(&writer, 0, 7);
        hand_over(&bench, &writer);
        let seen = || leader.load(bench.word(FLAG), Order::Relaxed, Scope::Device);
        while seen() == 0 {
            writer.relax();
        }
        take_over(&bench, &leader);
        leader.store(bench.word(1), 1, Order::Release, Scope::System);
        leader.exit();
        writer.exit();
        bench.gpu.end(0);
        let order: Vec<_> = order.lock().unwrap().iter().map(|w| w.0).collect();
        let at = |word| order.iter().position(|w| *w == word);
        u64::from(at(1) < at(0))
    });
    runs.sum()
}

const FLAG: usize = 2;

fn release(scope: Scope) -> impl Fn(&Bench, &WeakThread) {
    move |bench, thread| thread.store(bench.word(FLAG), 1, Order::Release, scope)
}

fn look(order: Order, scope: Scope) -> impl Fn(&Bench, &WeakThread) {
    move |bench, thread| assert_eq!(thread.load(bench.word(FLAG), order, scope), 1)
}

#[test]
fn a_wider_release_carries_what_its_thread_acquired_and_nothing_else() {
    let blocks = (0, 1);
    let relaxed = look(Order::Relaxed, Scope::Device);
    assert!(left_behind(blocks, release(Scope::Device), relaxed) > 0);
    let acquired = look(Order::Acquire, Scope::Device);
    assert_eq!(left_behind(blocks, release(Scope::Device), &acquired), 0);

    let unreleased = |bench: &Bench, thread: &WeakThread| bench.relaxed(thread, FLAG, 1);
    assert!(left_behind(blocks, unreleased, &acquired) > 0);
}

#[test]
fn fences_order_the_relaxed_accesses_around_them() {
    let fenced = |bench: &Bench, thread: &WeakThread| {
        thread.fence(Order::Release, Scope::Device);
        bench.relaxed(thread, FLAG, 1);
    };
    let acquired = look(Order::Acquire, Scope::Device);
    assert_eq!(left_behind((0, 1), fenced, acquired), 0);
    // The bench's own relaxed look is the one before the fence.
    let fence = |_: &Bench, thread: &WeakThread| thread.fence(Order::Acquire, Scope::Device);
    assert_eq!(left_behind((0, 1), release(Scope::Device), fence), 0);
    let fence = |_: &Bench, thread: &WeakThread| thread.fence(Order::SeqCst, Scope::Block);
    assert!(left_behind((0, 1), release(Scope::Device), fence) > 0);
}

#[test]
fn block_scope_orders_within_the_block_only() {
    for (blocks, orders) in [((0, 0), true), ((0, 1), false)] {
        for (from, to) in [(Scope::Block, Scope::Device), (Scope::Device, Scope::Block)] {
            let behind = left_behind(blocks, release(from), look(Order::Acquire, to));
            assert_eq!(behind == 0, orders, "{blocks:?} {from:?} {to:?}");
        }
    }
}

#[test]
fn atomics_keep_a_release_sequence_and_stores_end_it() {
    let add = |bench: &Bench, by: &WeakThread, order| {
        by.atomic(bench.word(FLAG), order, Scope::Device, |word| {
            (word.fetch_add(1), true)
        })
    };
    let acquire = |bench: &Bench, thread: &WeakThread| {
        assert_eq!(add(bench, thread, Order::Acquire), 2);
    };
    // A third thread adds in between, relaxed: what the first released is still acquired.
    let chained = |bench: &Bench, thread: &WeakThread| {
        add(bench, thread, Order::Release);
        add(bench, &bench.thread(2, 0), Order::Relaxed);
    };
    assert_eq!(left_behind((0, 1), chained, acquire), 0);
    // It stores instead: what is read was not released.
    let stored = |bench: &Bench, thread: &WeakThread| {
        add(bench, thread, Order::Release);
        let third = bench.thread(2, 0);
        bench.relaxed(&third, FLAG, 2);
        third.move_known(Scope::Device);
    };
    assert!(left_behind((0, 1), stored, acquire) > 0);

    // One that compares in vain acquires nothing.
    let in_vain = |bench: &Bench, thread: &WeakThread| {
        thread.atomic(bench.word(FLAG), Order::AcqRel, Scope::Device, |word| {
            (word.compare_exchange(9, 10), false)
        });
    };
    assert!(left_behind((0, 1), release(Scope::Device), in_vain) > 0);
}

#[test]
fn a_store_ends_the_release_of_its_own_bytes_only() {
    let half = |bench: &Bench, index, at| {
        // SAFETY: half of a word of the bench.
        unsafe { Word::new(bench.word(index).address() + at, 4) }
    };
    let halves = |bench: &Bench, thread: &WeakThread| {
        thread.store(half(bench, FLAG, 0), 1, Order::Release, Scope::Device);
        thread.move_known(Scope::Device);
        let third = bench.thread(2, 0);
        third.store(half(bench, FLAG, 4), 1, Order::Relaxed, Scope::Device);
        third.move_known(Scope::System);
    };
    let acquire = |bench: &Bench, thread: &WeakThread| {
        assert_eq!(
            thread.load(half(bench, FLAG, 0), Order::Acquire, Scope::Device),
            1
        );
    };
    assert_eq!(left_behind((0, 1), halves, acquire), 0);
}

#[test]
fn a_block_barrier_tells_each_thread_what_the_others_knew() {
    for seed in 0..SEEDS {
        let (bench, order) = Bench::observed(seed);
        let (writer, leader) = (bench.thread(0, 0), bench.thread(0, 1));
        for round in 0..3 {
            bench.relaxed(&writer, 0, round);
            for thread in [&writer, &leader] {
                thread.arrive();
            }
            for thread in [&leader, &writer] {
                thread.leave();
            }
            leader.store(bench.word(1), round, Order::Release, Scope::System);
        }
        leader.exit();
        bench.gpu.end(0);
        let expected = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)];
        let order = order.lock().unwrap();
        for pair in expected.chunks(2) {
            let at = |wanted| order.iter().position(|w| *w == wanted);
            assert!(at(pair[0]) < at(pair[1]), "seed {seed}: {order:?}");
        }
    }
}

#[test]
fn an_older_store_to_the_same_bytes_goes_before_a_known_one() {
    for seed in 0..SEEDS {
        let (bench, order) = Bench::observed(seed);
        let (other, own) = (bench.thread(1, 0), bench.thread(0, 0));
        bench.relaxed(&other, 0, 1);
        other.fence(Order::Release, Scope::Device);
        bench.relaxed(&own, 0, 2);
        own.fence(Order::Release, Scope::System);
        own.exit();
        bench.gpu.end(0);
        assert_eq!(*order.lock().unwrap(), [(0, 1), (0, 2)], "seed {seed}");
    }
}

#[test]
fn an_atomic_comes_after_what_its_thread_stored_there() {
    for seed in 0..SEEDS {
        let bench = Bench::new(seed);
        let thread = bench.thread(0, 0);
        bench.relaxed(&thread, 0, 40);
        let found = thread.atomic(bench.word(0), Order::Relaxed, Scope::Device, |word| {
            (word.fetch_add(2), true)
        });
        let seen = thread.load(bench.word(0), Order::Relaxed, Scope::Device);
        assert_eq!((found, seen), (40, 42), "seed {seed}");
    }
}

#[test]
fn waiting_lets_everything_arrive_in_the_end() {
    let bench = Bench::new(5);
    let (writer, waiter) = (bench.thread(0, 0), bench.thread(1, 0));
    bench.relaxed(&writer, 0, 7);
    for _ in 0..1000 {
        writer.relax();
        waiter.relax();
    }
    assert_eq!(bench.memory[0].load(Ordering::SeqCst), 7);
}
