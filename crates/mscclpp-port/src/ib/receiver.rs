// SPDX-License-Identifier: MIT
//! Signals to an HCA without atomics: writes of nothing whose immediate data is the key that the peer
//! knows a token by. The host raises the token.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Error, Result};
use crate::event::Event;
use crate::memory::{Registration, RegistrationTable};
use crate::refusal::{Operation, Refusal, Refused};
use crate::transport::TransportKind;
use crate::verbs::{CompletionChannel, CompletionQueue, WorkCompletion};

/// Completions polled at once.
const POLL: usize = 64;
/// An event that got lost, as no HCA may, delays a signal for no longer.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

pub(super) struct Receiver {
    completions: Arc<CompletionQueue>,
    bell: Arc<Bell>,
    table: Arc<RegistrationTable>,
    /// The HCA, by whose keys tokens are known.
    transport: TransportKind,
    rank: Option<usize>,
    known: HashMap<u32, Weak<Registration>>,
}

/// What wakes the thread that receives.
pub(super) struct Bell {
    completions: Arc<CompletionChannel>,
    /// The connection has ended.
    end: Event,
}

impl Bell {
    /// Sleeps until something may have come, or the connection has ended.
    pub(super) fn wait(&self) {
        let time = Timespec {
            tv_sec: LONGEST_SLEEP.as_secs().cast_signed(),
            tv_nsec: LONGEST_SLEEP.subsec_nanos().into(),
        };
        let mut fds = [
            PollFd::new(&*self.completions, PollFlags::IN),
            PollFd::new(&self.end, PollFlags::IN),
        ];
        if let Err(errno) = poll(&mut fds, Some(&time)) {
            tracing::debug!(%errno, "cannot poll a completion channel");
            thread::sleep(Duration::from_millis(1));
        }
        self.completions.clear();
    }

    /// Wakes it for good.
    pub(super) fn ring(&self) {
        self.end.ring();
    }
}

impl Receiver {
    pub(super) fn new(
        (completions, channel): (Arc<CompletionQueue>, Arc<CompletionChannel>),
        table: Arc<RegistrationTable>,
        transport: TransportKind,
        rank: Option<usize>,
    ) -> Result<Self> {
        let end = Event::new().map_err(|error| Error::io("make an eventfd", error))?;
        Ok(Self {
            completions,
            bell: Arc::new(Bell {
                completions: channel,
                end,
            }),
            table,
            transport,
            rank,
            known: HashMap::new(),
        })
    }

    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Has the bell ring for the next signal. What has come before is found by one more look.
    pub(super) fn arm(&self) -> Result<()> {
        (self.completions.request_event()).map_err(|error| error.into_error(self.transport))
    }

    /// Forwards what has come, up to a batch. Returns how many receives it used up, and whether the
    /// queue has ended.
    pub(super) fn drain(&mut self) -> Result<(usize, bool)> {
        let mut completions = [WorkCompletion::default(); POLL];
        let count = (self.completions.poll(&mut completions))
            .map_err(|error| error.into_error(self.transport))?;
        for completion in &completions[..count] {
            // The queue is in error; why is told elsewhere.
            if !completion.status.is_success() {
                return Ok((0, true));
            }
            let Some(token) = completion.immediate else {
                return Err(self.refused(0, Refusal::UnknownKey));
            };
            self.forward(token)?;
        }
        Ok((count, false))
    }

    fn forward(&mut self, token: u32) -> Result<()> {
        let known = self.known.get(&token).and_then(Weak::upgrade);
        let registration = match known {
            Some(registration) => registration,
            None => {
                let found = self.table.of_hca_key(self.transport, token);
                let found = found.ok_or_else(|| self.refused(token, Refusal::UnknownKey))?;
                self.known.insert(token, Arc::downgrade(&found));
                found
            }
        };
        (registration.signal()).map_err(|reason| self.refused(token, reason))
    }

    fn refused(&self, token: u32, reason: Refusal) -> Error {
        Error::RefusedPeer {
            rank: self.rank,
            refused: Refused {
                operation: Operation::Signal,
                key: token.into(),
                offset: 0,
                len: 8,
                reason,
            },
        }
    }
}
