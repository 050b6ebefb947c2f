// SPDX-License-Identifier: MIT
//! Which ranks are gone, and who has been told.

use std::collections::HashMap;
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
    observers: Vec<Observer>,
}

struct Observer {
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

    pub(crate) fn observe(&self, observer: Weak<dyn FailureObserver>) {
        self.lock().observers.push(Observer { observer, told: 0 });
        self.tell();
    }

    /// Tells every observer what it has not been told yet. May run on several
    /// threads at once; each failure is told once.
    pub(crate) fn tell(&self) {
        while let Some((observer, failure)) = self.next_to_tell() {
            observer.peer_failed(&failure);
        }
    }

    fn next_to_tell(&self) -> Option<(std::sync::Arc<dyn FailureObserver>, PeerFailure)> {
        let mut inner = self.lock();
        let Inner {
            reported,
            observers,
            ..
        } = &mut *inner;
        observers.retain(|entry| entry.observer.strong_count() > 0);
        for entry in observers {
            if let Some(failure) = reported.get(entry.told)
                && let Some(observer) = entry.observer.upgrade()
            {
                entry.told += 1;
                return Some((observer, failure.clone()));
            }
        }
        None
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

    #[test]
    fn each_observer_is_told_once_of_each_death_whenever_it_came() {
        let failures = Failures::default();
        let (early, late) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        failures.observe(observer(&early));
        assert!(failures.record(PeerFailure::new(3, FailureKind::Died, "x")));
        assert!(!failures.record(PeerFailure::new(3, FailureKind::Died, "y")));
        failures.tell();
        failures.tell();
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
        failures.tell();
        assert!(seen.0.lock().unwrap().is_empty());
        assert!(failures.first_death(None).is_none());
        assert!(failures.report_departure(1));
        assert!(!failures.report_departure(1));
        failures.tell();
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
        failures.tell();
        drop(asks);
        failures.record(PeerFailure::new(1, FailureKind::Died, ""));
        failures.tell();
        assert!(failures.lock().observers.is_empty());
    }
}
