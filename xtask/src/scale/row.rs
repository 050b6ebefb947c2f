// SPDX-License-Identifier: MIT
//! What a world's rank 0 tells.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Processes,
    Threads,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Processes => "processes",
            Self::Threads => "threads",
        })
    }
}

/// Of a rank. Times are in seconds, memory in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) descriptors: f64,
    pub(super) threads: f64,
    pub(super) connections: f64,
    pub(super) sent: f64,
    pub(super) received: f64,
    pub(super) private: f64,
}

/// Of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) max: Figures,
    pub(super) mean: Figures,
}

/// One world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) ranks_are: Kind,
    pub(super) world: usize,
    pub(super) degree: usize,
    pub(super) join: f64,
    pub(super) setup: f64,
    pub(super) exchange: Option<f64>,
    pub(super) leave: Option<f64>,
    pub(super) joined: Span,
    pub(super) set_up: Span,
    pub(super) root_joining: Option<f64>,
    pub(super) root_joined: Figures,
    pub(super) root_set_up: Figures,
}

impl Row {
    /// A line while others are still to come.
    pub(super) fn progress(&self) -> String {
        format!(
            "{} {}, {} peers each: joined in {:.2} s, set up in {:.2} s; most of a rank: {:.0} \
             descriptors, then {:.0}",
            self.world,
            self.ranks_are,
            self.degree,
            self.join,
            self.setup,
            self.joined.max.descriptors,
            self.set_up.max.descriptors
        )
    }

    /// How many times the world doubles from one rank.
    pub(super) fn doublings(&self) -> f64 {
        (self.world as f64).log2()
    }

    /// What the setup said, of the rank that said the most, in bytes.
    pub(super) fn setup_sent(&self) -> f64 {
        (self.set_up.max.sent - self.joined.max.sent).max(0.0)
    }

    /// What it heard, likewise.
    pub(super) fn setup_received(&self) -> f64 {
        (self.set_up.max.received - self.joined.max.received).max(0.0)
    }
}
