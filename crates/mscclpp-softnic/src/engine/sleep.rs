// SPDX-License-Identifier: MIT
//! How the engine sleeps, and misses nothing that it is told meanwhile.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// What ends a nap.
pub(super) trait Bell {
    /// From now on a nap ends at once.
    fn ring(&self);
    /// Until now.
    fn silence(&self);
}

/// Shared by the engine and those who have news for it.
pub(super) struct Sleep<B> {
    bell: B,
    /// Counts what the engine has been told of: it does not sleep on news.
    news: AtomicU64,
    sleeping: AtomicBool,
}

impl<B: Bell> Sleep<B> {
    pub(super) fn new(bell: B) -> Self {
        Self {
            bell,
            news: AtomicU64::new(0),
            sleeping: AtomicBool::new(false),
        }
    }

    /// The news there has been; asked before a look at what they may be of.
    pub(super) fn news(&self) -> u64 {
        self.news.load(SeqCst)
    }

    /// Tells the engine that there is something to look at.
    pub(super) fn wake(&self) {
        self.news.fetch_add(1, SeqCst);
        if self.sleeping.swap(false, SeqCst) {
            self.bell.ring();
        }
    }

    /// Has the engine, which has looked, `nap` until the bell rings or for as long
    /// as it likes, unless there are other news than before that look.
    pub(super) fn nap(&self, news: u64, nap: impl FnOnce(&B)) {
        // Swaps alone, as in `wake`: of two the later one sees all that came before
        // the other. So this is awake, or has the bell rung.
        self.sleeping.swap(true, SeqCst);
        if self.news() == news {
            nap(&self.bell);
            self.bell.silence();
        }
        self.sleeping.swap(false, SeqCst);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// In the place of a descriptor, which is the system's.
    #[derive(Default)]
    struct Modelled {
        rung: Mutex<bool>,
        changed: Condvar,
    }

    impl Bell for Modelled {
        fn ring(&self) {
            *self.rung.lock().unwrap() = true;
            self.changed.notify_one();
        }

        fn silence(&self) {
            *self.rung.lock().unwrap() = false;
        }
    }

    impl Modelled {
        /// For ever if nobody rings: a model that hangs has failed.
        fn wait(&self) {
            let mut rung = self.rung.lock().unwrap();
            while !*rung {
                rung = self.changed.wait(rung).unwrap();
            }
        }
    }

    /// Nothing but the news says that there is work: an engine that sleeps through
    /// some, or looks before it can see it, hangs.
    fn all_work_is_found(posters: usize, each: usize, naps_end: bool) {
        let mut model = loom::model::Builder::new();
        if posters * each > 1 {
            model.preemption_bound = Some(3);
        }
        model.check(move || {
            let sleep = Arc::new(Sleep::new(Modelled::default()));
            let work = Arc::new(AtomicUsize::new(0));
            let posters: Vec<_> = (0..posters)
                .map(|_| {
                    let (sleep, work) = (sleep.clone(), work.clone());
                    thread::spawn(move || {
                        for _ in 0..each {
                            work.fetch_add(1, Relaxed);
                            sleep.wake();
                        }
                    })
                })
                .collect();
            // The first nap may end by itself, in the midst of everything.
            let mut early = naps_end;
            let all = posters.len() * each;
            loop {
                let news = sleep.news();
                if work.load(Relaxed) == all {
                    break;
                }
                sleep.nap(news, |bell| {
                    if !std::mem::take(&mut early) {
                        bell.wait();
                    }
                });
            }
            for poster in posters {
                poster.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_the_engine_does_not_sleep_on_news() {
        all_work_is_found(1, 1, false);
        all_work_is_found(1, 2, false);
        all_work_is_found(1, 2, true);
    }

    #[test]
    fn loom_the_engine_does_not_sleep_on_the_news_of_one_of_two() {
        all_work_is_found(2, 1, false);
        all_work_is_found(2, 1, true);
    }
}
