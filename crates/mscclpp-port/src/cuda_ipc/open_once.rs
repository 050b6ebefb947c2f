// SPDX-License-Identifier: MIT
//! What a process may have open once only, for several that use it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use crate::sync::lock_plain as lock;

/// The driver's own name of memory, in halves.
pub(super) type Name = [[u8; 32]; 2];

/// What is open, by its name. Opening and closing exclude each other: who finds nothing open under a
/// name may open it.
pub(super) struct OpenOnce<T: 'static>(Mutex<BTreeMap<Name, Arc<T>>>);

impl<T> OpenOnce<T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// What is open under the name, or what `open` opens.
    pub(super) fn open<E>(
        &'static self,
        name: &Name,
        open: impl FnOnce() -> Result<T, E>,
    ) -> Result<Opened<T>, E> {
        let mut table = lock(&self.0);
        let value = match table.get(name) {
            Some(value) => Arc::clone(value),
            None => {
                let value = Arc::new(open()?);
                table.insert(*name, Arc::clone(&value));
                value
            }
        };
        Ok(Opened {
            table: self,
            name: *name,
            value: Some(value),
        })
    }
}

/// One user's part of it. The last one closes it.
pub(crate) struct Opened<T: 'static> {
    table: &'static OpenOnce<T>,
    name: Name,
    /// Until the drop.
    value: Option<Arc<T>>,
}

impl<T> Deref for Opened<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_deref().expect("taken by drop alone")
    }
}

impl<T> Drop for Opened<T> {
    fn drop(&mut self) {
        let mut table = lock(&self.table.0);
        self.value = None;
        if (table.get(&self.name)).is_some_and(|value| Arc::strong_count(value) == 1) {
            table.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;
    use std::time::Duration;

    use super::*;

    static OPEN: AtomicUsize = AtomicUsize::new(0);

    /// Of which one may be there at a time. Closing it takes a while.
    struct Single;

    impl Single {
        fn open() -> Result<Self, String> {
            match OPEN.fetch_add(1, SeqCst) {
                0 => Ok(Self),
                _ => Err("it is open already".into()),
            }
        }
    }

    impl Drop for Single {
        fn drop(&mut self) {
            thread::sleep(Duration::from_micros(200));
            OPEN.fetch_sub(1, SeqCst);
        }
    }

    #[test]
    fn who_opens_while_the_last_user_closes_gets_it() {
        static TABLE: OpenOnce<Single> = OpenOnce::new();
        let name = [[1; 32]; 2];
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let first = TABLE.open(&name, Single::open).unwrap();
                        let second = TABLE.open(&name, Single::open).unwrap();
                        drop(first);
                        drop(second);
                    }
                });
            }
        });
        assert_eq!(OPEN.load(SeqCst), 0);
        assert!(lock(&TABLE.0).is_empty());
    }
}
