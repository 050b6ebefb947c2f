// SPDX-License-Identifier: MIT
//! Which ranks are gone, and who has been told.

use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::failure::{FailureKind, FailureObserver, PeerFailure};

#[derive(Default)]
pub(crate) struct Failures {
    inner: Mutex<Inner>,
    /// How many are gone; so that nobody locks while all is well.
    count: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    gone: HashMap<usize, PeerFailure>,
    /// Those that observers are told of, in the order in which they are.
    reported: Vec<PeerFailure>,
    /// The observers that nobody is telling anything. Who tells one takes it out, so that one thread
    /// at a time tells it, and one that takes its time holds up no other.
    idle: Vec<Observer>,
}

/// One that wants to know.
pub(crate) struct Observer {
    observer: Weak<dyn FailureObserver>,
    /// How many of `reported` it has been told.
    told: usize,
}

impl Failures {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a rank is gone; false if that was known. Deaths are to be
    /// told to observers, departures only when somebody minds. News of a death
    /// corrects a departure that nobody was told of: it may be a mere conclusion.
    pub(crate) fn record(&self, failure: PeerFailure) -> bool {
        let mut inner = self.lock();
        if let Some(known) = inner.gone.get(&failure.rank) {
            let told = inner.reported.iter().any(|told| told.rank == failure.rank);
            if told || failure.kind == known.kind {
                return false;
            }
        }
        if failure.kind == FailureKind::Died {
            inner.reported.push(failure.clone());
        }
        inner.gone.insert(failure.rank, failure);
        self.count.store(inner.gone.len(), Ordering::Release);
        true
    }

    /// Somebody wants something from a rank that has left: now observers are to
    /// be told. False if they were already.
    pub(crate) fn report_departure(&self, rank: usize) -> bool {
        let mut inner = self.lock();
        let known = inner.reported.iter().any(|failure| failure.rank == rank);
        match inner.gone.get(&rank).cloned() {
            Some(failure) if !known => {
                inner.reported.push(failure);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn of(&self, rank: usize) -> Option<PeerFailure> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.lock().gone.get(&rank).cloned()
    }

    /// The first death among `members` (`None`: among all).
    pub(crate) fn first_death(&self, members: Option<&[usize]>) -> Option<PeerFailure> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let inner = self.lock();
        let concerns = |failure: &&PeerFailure| {
            failure.kind == FailureKind::Died
                && members.is_none_or(|members| members.contains(&failure.rank))
        };
        inner.reported.iter().find(concerns).cloned()
    }

    /// All deaths, in the order in which they became known.
    pub(crate) fn deaths(&self) -> Vec<PeerFailure> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut deaths = self.lock().reported.clone();
        deaths.retain(|failure| failure.kind == FailureKind::Died);
        deaths
    }

    /// Tells it at once of those that are gone.
    pub(crate) fn observe(&self, observer: Weak<dyn FailureObserver>) {
        // Here, too: a long job may make and drop many before a rank is gone.
        (self.lock().idle).retain(|entry| entry.observer.strong_count() > 0);
        self.tell(Observer { observer, told: 0 });
    }

    /// The observers that have something to hear and are not being told, each to be given to
    /// [`tell`](Self::tell) on a thread of its own.
    pub(crate) fn untold(&self) -> Vec<Observer> {
        let mut inner = self.lock();
        let count = inner.reported.len();
        inner.idle.retain(|entry| entry.observer.strong_count() > 0);
        (inner.idle.extract_if(.., |entry| entry.told < count)).collect()
    }

    /// Tells an observer all that it has not been told, what comes meanwhile included.
    pub(crate) fn tell(&self, mut entry: Observer) {
        loop {
            let mut inner = self.lock();
            let Some(failure) = inner.reported.get(entry.told).cloned() else {
                inner.idle.push(entry);
                return;
            };
            drop(inner);
            let Some(observer) = entry.observer.upgrade() else {
                return;
            };
            entry.told += 1;
            let rank = failure.rank;
            // What it left half done is its own. Who lets go of it last does so in here, too.
            let telling = AssertUnwindSafe(move || observer.peer_failed(&failure));
            if panic::catch_unwind(telling).is_err() {
                tracing::warn!(rank, "an observer panicked when told that a rank is gone");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Default)]
    struct Seen(Mutex<Vec<(usize, FailureKind)>>);

    impl FailureObserver for Seen {
        fn peer_failed(&self, failure: &PeerFailure) {
            self.0.lock().unwrap().push((failure.rank, failure.kind));
        }
    }

    fn observer(seen: &Arc<Seen>) -> Weak<dyn FailureObserver> {
        let weak: Weak<Seen> = Arc::downgrade(seen);
        weak
    }

    fn tell(failures: &Failures) {
        let untold = failures.untold();
        untold.into_iter().for_each(|entry| failures.tell(entry));
    }

    #[test]
    fn each_observer_is_told_once_of_each_death_whenever_it_came() {
        let failures = Failures::default();
        let (early, late) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        failures.observe(observer(&early));
        assert!(failures.record(PeerFailure::new(3, FailureKind::Died, "x")));
        assert!(!failures.record(PeerFailure::new(3, FailureKind::Died, "y")));
        tell(&failures);
        tell(&failures);
        failures.observe(observer(&late));
        for seen in [early, late] {
            assert_eq!(*seen.0.lock().unwrap(), [(3, FailureKind::Died)]);
        }
        assert_eq!(failures.of(3).unwrap().cause, "x");
    }

    #[test]
    fn a_departure_is_told_only_when_somebody_minds() {
        let failures = Failures::default();
        let seen = Arc::new(Seen::default());
        failures.observe(observer(&seen));
        failures.record(PeerFailure::new(1, FailureKind::Left, "bye"));
        tell(&failures);
        assert!(seen.0.lock().unwrap().is_empty());
        assert!(failures.first_death(None).is_none());
        assert!(failures.report_departure(1));
        assert!(!failures.report_departure(1));
        tell(&failures);
        assert_eq!(*seen.0.lock().unwrap(), [(1, FailureKind::Left)]);
    }

    #[test]
    fn a_death_corrects_a_departure_that_nobody_was_told_of() {
        let failures = Failures::default();
        let left = |rank| PeerFailure::new(rank, FailureKind::Left, "nobody listens");
        let died = |rank| PeerFailure::new(rank, FailureKind::Died, "x");
        assert!(failures.record(left(1)) && failures.record(died(1)));
        assert!(!failures.record(left(1)) && !failures.record(died(1)));
        assert_eq!(failures.of(1).unwrap().kind, FailureKind::Died);
        assert!(failures.record(left(2)) && failures.report_departure(2));
        assert!(!failures.record(died(2)));
    }

    #[test]
    fn a_group_is_concerned_by_its_own_members_only() {
        let failures = Failures::default();
        failures.record(PeerFailure::new(2, FailureKind::Died, "x"));
        assert!(failures.first_death(Some(&[0, 1])).is_none());
        assert_eq!(failures.first_death(Some(&[0, 2])).unwrap().rank, 2);
        assert_eq!(failures.first_death(None).unwrap().rank, 2);
    }

    #[test]
    fn an_observer_may_ask_back_and_be_dropped() {
        struct Asks(Arc<Failures>);
        impl FailureObserver for Asks {
            fn peer_failed(&self, failure: &PeerFailure) {
                assert!(self.0.of(failure.rank).is_some());
            }
        }
        let failures = Arc::new(Failures::default());
        let asks = Arc::new(Asks(Arc::clone(&failures)));
        let weak: Weak<Asks> = Arc::downgrade(&asks);
        failures.observe(weak);
        failures.record(PeerFailure::new(0, FailureKind::Died, ""));
        tell(&failures);
        drop(asks);
        failures.record(PeerFailure::new(1, FailureKind::Died, ""));
        tell(&failures);
        assert!(failures.lock().idle.is_empty());
    }
}
