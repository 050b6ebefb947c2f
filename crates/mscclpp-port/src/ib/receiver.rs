// SPDX-License-Identifier: MIT
//! Signals to an HCA without atomics: writes of nothing whose immediate data is the key that the peer
//! knows a token by. The host raises the token.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::memory::{Registration, RegistrationTable};
use crate::refusal::{Operation, Refusal, Refused};
use crate::transport::TransportKind;
use crate::verbs::{CompletionQueue, WorkCompletion};

/// Completions polled at once.
const POLL: usize = 64;

pub(super) struct Receiver {
    completions: Arc<CompletionQueue>,
    table: Arc<RegistrationTable>,
    /// The HCA, by whose keys tokens are known.
    transport: TransportKind,
    rank: Option<usize>,
    known: HashMap<u32, Weak<Registration>>,
}

impl Receiver {
    pub(super) fn new(
        completions: Arc<CompletionQueue>,
        table: Arc<RegistrationTable>,
        transport: TransportKind,
        rank: Option<usize>,
    ) -> Self {
        Self {
            completions,
            table,
            transport,
            rank,
            known: HashMap::new(),
        }
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
