// SPDX-License-Identifier: MIT
//! Sticky status of a connection: one word that kernels read, one typed error for the host.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use mscclpp_device::abi::StatusWord;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::visible::Visible;

/// The first error of a connection: set once, never cleared.
///
/// The word is a [`StatusWord`], zero until the error; its `detail` is the dead rank plus one for
/// [`mscclpp_device::abi::Status::PeerDown`], else 0. The typed error is stored before the word, so whoever saw the word
/// finds the error. All methods may be called from any thread.
pub(crate) struct StickyStatus {
    word: Visible<AtomicU64>,
    error: Mutex<Option<Error>>,
    /// Kept alive for as long as the status is: whoever would tell it of a peer's death.
    guardian: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// Told of the error.
    witness: OnceLock<Witness>,
}

type Witness = Box<dyn Fn(Error) + Send + Sync>;

impl StickyStatus {
    /// A status without error.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            word: Visible::new()?,
            error: Mutex::new(None),
            guardian: OnceLock::new(),
            witness: OnceLock::new(),
        }))
    }

    /// As [`new`](Self::new), with one who is told of the error, by the thread that records it.
    pub(crate) fn witnessed(witness: impl Fn(Error) + Send + Sync + 'static) -> Result<Arc<Self>> {
        let status = Self::new()?;
        // It is new: nobody else has set one.
        let _ = status.witness.set(Box::new(witness));
        Ok(status)
    }

    /// Records `error` if it is the first. Returns whether it was.
    pub(crate) fn fail(&self, error: Error) -> bool {
        let mut slot = lock(&self.error);
        if slot.is_some() {
            return false;
        }
        let detail = match &error {
            Error::PeerDown {
                rank: Some(rank), ..
            } => u32::try_from(rank + 1).unwrap_or(0),
            _ => 0,
        };
        let word = StatusWord::new(error.status(), detail);
        let told = self.witness.get().map(|witness| (witness, error.clone()));
        *slot = Some(error);
        // Release: a thread that reads the word finds the error and all that led to it.
        self.word.store(word.to_bits(), Ordering::Release);
        drop(slot);
        if let Some((witness, error)) = told {
            witness(error);
        }
        true
    }

    /// Adds to the cause of a peer's death what was learnt of it later.
    #[cfg(feature = "ib")]
    pub(crate) fn learn(&self, more: &Error) {
        if let Some(Error::PeerDown { cause, .. }) = &mut *lock(&self.error) {
            *cause = format!("{cause}; {more}");
        }
    }

    /// Whether an error was recorded. One load: cheap enough for every operation.
    pub(crate) fn is_failed(&self) -> bool {
        self.word.load(Ordering::Acquire) != 0
    }

    /// The first error, if there was one.
    pub(crate) fn error(&self) -> Option<Error> {
        if self.is_failed() {
            lock(&self.error).clone()
        } else {
            None
        }
    }

    /// Fails with the first error, if there was one.
    pub(crate) fn check(&self) -> Result<()> {
        self.error().map_or(Ok(()), Err)
    }

    /// The word as kernels see it.
    #[cfg(test)]
    pub(crate) fn word(&self) -> StatusWord {
        StatusWord::from_bits(self.word.load(Ordering::Acquire))
    }

    /// Address of the word for device handles. Valid while the status lives.
    pub(crate) fn address(&self) -> u64 {
        std::ptr::from_ref(&*self.word).expose_provenance() as u64
    }

    /// Lets kernels of a device see the word.
    pub(crate) fn show_to(&self, device: Device) -> Result<()> {
        self.word.show_to(device)
    }

    /// Keeps `guardian` alive as long as the status. Only the first is kept.
    pub(crate) fn keep(&self, guardian: Arc<dyn Any + Send + Sync>) {
        let _ = self.guardian.set(guardian);
    }
}

impl std::fmt::Debug for StickyStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StickyStatus").field(&self.error()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use mscclpp_device::abi::Status;

    use super::*;

    fn down(rank: usize) -> Error {
        Error::PeerDown {
            rank: Some(rank),
            cause: "test".into(),
        }
    }

    #[test]
    fn the_first_error_stays() {
        let status = StickyStatus::new().unwrap();
        assert!(status.check().is_ok());
        assert!(status.fail(down(6)));
        assert!(!status.fail(Error::FifoSize { size: 3, max: 1 }));
        assert_eq!(status.word(), StatusWord::new(Status::PeerDown, 7));
        assert!(matches!(
            status.error(),
            Some(Error::PeerDown { rank: Some(6), .. })
        ));
    }

    #[cfg(feature = "ib")]
    #[test]
    fn what_is_learnt_later_belongs_to_a_peers_death_only() {
        let status = StickyStatus::new().unwrap();
        status.learn(&down(1));
        assert!(status.error().is_none());
        status.fail(down(6));
        status.learn(&Error::ProxyRunning);
        let text = status.error().unwrap().to_string();
        assert!(text.ends_with("test; the proxy runs already"), "{text}");
        let other = StickyStatus::new().unwrap();
        other.fail(Error::ProxyRunning);
        other.learn(&down(1));
        assert!(matches!(other.error(), Some(Error::ProxyRunning)));
    }

    #[test]
    fn the_word_lies_at_its_address() {
        let status = StickyStatus::new().unwrap();
        assert_eq!(status.address() % 8, 0);
        assert_eq!(
            status.address(),
            std::ptr::from_ref(&*status.word).addr() as u64
        );
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Two failures race a reader: the reader that saw the word finds an error, and it is the one
    /// that both writers agree was first.
    #[test]
    fn loom_status_is_sticky_and_comes_with_its_error() {
        loom::model(|| {
            let status = StickyStatus::new().unwrap();
            let writers: Vec<_> = [3, 5]
                .into_iter()
                .map(|rank| {
                    let status = Arc::clone(&status);
                    loom::thread::spawn(move || {
                        status.fail(Error::PeerDown {
                            rank: Some(rank),
                            cause: String::new(),
                        })
                    })
                })
                .collect();
            let seen = status.error();
            let word = status.word();
            if seen.is_some() {
                assert_ne!(word.code, 0, "the word went back");
            }
            let firsts: Vec<bool> = writers.into_iter().map(|w| w.join().unwrap()).collect();
            assert_eq!(firsts.iter().filter(|first| **first).count(), 1);
            let winner = if firsts[0] { 3 } else { 5 };
            for error in seen.into_iter().chain(status.error()) {
                assert!(
                    matches!(error, Error::PeerDown { rank: Some(rank), .. } if rank == winner)
                );
            }
        });
    }
}
