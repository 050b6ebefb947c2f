// SPDX-License-Identifier: MIT

use std::sync::atomic::AtomicU64;

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
            assert_eq!(thread.load(bench.word(0)), value, "seed {seed}");
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
            thread.fence(scope);
            bench.relaxed(thread, 1, 1);
        })
    };
    assert!(fence(Scope::Device) > 0);
    assert_eq!(fence(Scope::System), 0);

    let add = |order| {
        overtakes(move |bench, thread| {
            thread.atomic(bench.word(1), order, Scope::System, |word| {
                word.fetch_add(1)
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
        writer.own.borrow_mut().stores.push(Store {
            word: bench.word(0),
            value: 7,
        });
        writer.fence(scope);
        assert_eq!(bench.memory[0].load(Ordering::SeqCst), 0);
        assert_eq!(far.load(bench.word(0)), to_gpu, "{scope:?}");
        assert_eq!(near.load(bench.word(0)), to_block, "{scope:?}");
    }
}

#[test]
fn a_wider_fence_carries_what_its_thread_saw_of_others() {
    for seed in 0..SEEDS {
        let (bench, order) = Bench::observed(seed);
        let (writer, leader) = (bench.thread(0, 0), bench.thread(0, 1));
        bench.relaxed(&writer, 0, 7);
        writer.fence(Scope::Block); // as a block barrier does
        leader.store(bench.word(1), 1, Order::Release, Scope::System);
        leader.exit();
        bench.gpu.end(0);
        assert_eq!(*order.lock().unwrap(), [(0, 7), (1, 1)], "seed {seed}");
    }
}

#[test]
fn an_atomic_comes_after_what_its_thread_stored_there() {
    for seed in 0..SEEDS {
        let bench = Bench::new(seed);
        let thread = bench.thread(0, 0);
        bench.relaxed(&thread, 0, 40);
        let found = thread.atomic(bench.word(0), Order::Relaxed, Scope::Device, |word| {
            word.fetch_add(2)
        });
        assert_eq!((found, thread.load(bench.word(0))), (40, 42), "seed {seed}");
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
