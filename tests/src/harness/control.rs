// SPDX-License-Identifier: MIT
//! What the harness itself says between ranks, beside the communicators under test.

use std::sync::Arc;

use anyhow::Context as _;
use mscclpp_bootstrap::{Bootstrap, Deadline, Tag};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::context::Measurement;
use super::test::{Outcome, Verdict};

/// What a rank tells of a test, or all of them together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Told<T> {
    pub(super) what: T,
    pub(super) measurements: Vec<Measurement>,
}

/// Conversations of one test, kept apart by their tags. What a failed test leaves unread can so
/// never be taken for a message of a later one.
#[derive(Clone, Copy, Debug)]
enum Topic {
    /// What the body of the test exchanges.
    Body,
    /// Outcomes to rank 0, the verdict back.
    Verdict,
}

/// The ranks of a run, joined once and for all tests.
#[derive(Clone)]
pub struct Control {
    bootstrap: Arc<dyn Bootstrap>,
}

impl Control {
    /// Talks over a joined bootstrap, which nothing else uses.
    pub fn new(bootstrap: Arc<dyn Bootstrap>) -> Self {
        Self { bootstrap }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.bootstrap.rank()
    }

    /// Ranks of the run.
    pub fn ranks(&self) -> usize {
        self.bootstrap.world_size()
    }

    /// Everyone's value, in rank order, among ranks below `ranks`; all of them call it.
    pub fn exchange<T: Serialize + DeserializeOwned>(
        &self,
        test: u32,
        ranks: usize,
        mine: T,
        deadline: Deadline,
    ) -> anyhow::Result<Vec<T>> {
        let tag = tag(test, Topic::Body);
        if self.rank() != 0 {
            self.bootstrap
                .send(0, tag, &serde_json::to_vec(&mine)?, deadline)?;
            let all = self.bootstrap.recv(0, tag, deadline)?;
            return Ok(serde_json::from_slice(&all)?);
        }
        let mut all = vec![mine];
        for peer in 1..ranks {
            let bytes = self.bootstrap.recv(peer, tag, deadline)?;
            all.push(serde_json::from_slice(&bytes)?);
        }
        let bytes = serde_json::to_vec(&all)?;
        for peer in 1..ranks {
            self.bootstrap.send(peer, tag, &bytes, deadline)?;
        }
        Ok(all)
    }

    /// Joins the outcomes of all ranks into a verdict that all return. An error means that this
    /// rank can not go on: rank 0 is gone.
    pub(super) fn agree(
        &self,
        test: u32,
        mine: Told<Outcome>,
        deadline: Deadline,
    ) -> anyhow::Result<Told<Verdict>> {
        let tag = tag(test, Topic::Verdict);
        if self.rank() != 0 {
            self.bootstrap
                .send(0, tag, &serde_json::to_vec(&mine)?, deadline)
                .context("rank 0 does not take the outcome of the test")?;
            let verdict = self
                .bootstrap
                .recv(0, tag, deadline)
                .context("rank 0 does not give the verdict of the test")?;
            return Ok(serde_json::from_slice(&verdict)?);
        }
        let Told {
            what,
            mut measurements,
        } = mine;
        let mut outcomes = vec![what];
        for peer in 1..self.ranks() {
            match self.bootstrap.recv(peer, tag, deadline) {
                Ok(bytes) => {
                    let told: Told<Outcome> = serde_json::from_slice(&bytes)?;
                    outcomes.push(told.what);
                    for theirs in told.measurements {
                        if measurements.iter().all(|ours| ours.label != theirs.label) {
                            measurements.push(theirs);
                        }
                    }
                }
                Err(error) => outcomes.push(Outcome::Lost(format!("no outcome: {error}"))),
            }
        }
        let verdict = Told {
            what: Verdict::of(&outcomes),
            measurements,
        };
        let bytes = serde_json::to_vec(&verdict)?;
        for peer in 1..self.ranks() {
            if let Err(error) = self.bootstrap.send(peer, tag, &bytes, deadline) {
                tracing::warn!(peer, %error, "the verdict does not reach a rank");
            }
        }
        Ok(verdict)
    }
}

fn tag(test: u32, topic: Topic) -> Tag {
    Tag::user(test * 2 + topic as u32)
}
