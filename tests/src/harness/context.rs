// SPDX-License-Identifier: MIT
//! What a test's body sees.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, Deadline, TcpBootstrap, UniqueId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::control::Control;
use super::options::Profile;
use super::test::Skip;

/// A figure that a test reports beside its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What was measured.
    pub label: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: String,
}

/// The step that a test is in, told when it hangs.
#[derive(Clone)]
pub struct Stage(Arc<Mutex<(String, Instant)>>);

impl Default for Stage {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(("start".to_owned(), Instant::now()))))
    }
}

impl Stage {
    fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (text, Instant::now());
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        write!(
            f,
            "`{}` since {:.1} s",
            stage.0,
            stage.1.elapsed().as_secs_f64()
        )
    }
}

/// One test on one rank, while its body runs.
pub struct Context {
    pub(super) control: Control,
    pub(super) number: u32,
    pub(super) ranks: usize,
    pub(super) deadline: Deadline,
    pub(super) profile: Profile,
    pub(super) threads: bool,
    pub(super) stress: Option<Duration>,
    pub(super) stage: Stage,
    pub(super) measurements: Mutex<Vec<Measurement>>,
}

impl Context {
    /// A context outside of the runner, for a process of a [`Job`](super::Job).
    pub fn of_job(bootstrap: Arc<dyn Bootstrap>, deadline: Deadline) -> Self {
        Self {
            number: 0,
            ranks: bootstrap.world_size(),
            control: Control::new(bootstrap),
            deadline,
            profile: Profile::Quick,
            threads: false,
            stress: None,
            stage: Stage::default(),
            measurements: Mutex::default(),
        }
    }

    /// The same with fewer ranks, and so much to do.
    pub fn with(self, ranks: usize, profile: Profile) -> Self {
        Self {
            ranks,
            profile,
            ..self
        }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.control.rank()
    }

    /// Ranks that take part in the test: 0 to this, exclusive.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// How much to do.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// How long a test that looks for rare faults goes on.
    pub fn stress(&self) -> Duration {
        let usual = || Duration::from_secs(self.profile.pick(2, 10));
        self.stress.unwrap_or_else(usual)
    }

    /// Whether the ranks are threads of one process.
    pub fn ranks_are_threads(&self) -> bool {
        self.threads
    }

    /// When the body should be done: shortly before the harness gives the rank up.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Names the step that follows, for the report of a test that hangs.
    pub fn stage(&self, text: impl Into<String>) {
        self.stage.set(text.into());
    }

    /// Keeps a figure, printed with the verdict. Of ranks that measure the same, the first one's is.
    pub fn measure(&self, label: impl Into<String>, value: f64, unit: &str) {
        let measurement = Measurement {
            label: label.into(),
            value,
            unit: unit.to_owned(),
        };
        self.measurements
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(measurement);
    }

    /// Everyone's value, in rank order. All ranks of the test call it, in the same order.
    pub fn exchange<T: Serialize + DeserializeOwned>(&self, mine: T) -> anyhow::Result<Vec<T>> {
        self.control
            .exchange(self.number, self.ranks, mine, self.deadline)
    }

    /// Waits until all ranks of the test are here.
    pub fn meet(&self) -> anyhow::Result<()> {
        self.exchange(()).map(drop)
    }

    /// Skips the test on all ranks if one of them has an obstacle. All ranks of the test call it.
    pub fn skip_unless(&self, obstacle: Option<String>) -> anyhow::Result<()> {
        let obstacles = self.exchange(obstacle)?;
        let first = obstacles
            .into_iter()
            .enumerate()
            .find_map(|(rank, o)| Some((rank, o?)));
        match first {
            Some((rank, obstacle)) => Err(Skip(format!("{obstacle} (rank {rank})")).into()),
            None => Ok(()),
        }
    }

    /// Rank 0's new id, handed to all ranks; rank 0 also gets the bootstrap that holds its
    /// listener, and the others a new one.
    pub fn new_id(&self) -> anyhow::Result<(TcpBootstrap, UniqueId)> {
        let bootstrap = TcpBootstrap::new(self.rank(), self.ranks)?;
        let mine = match self.rank() {
            0 => bootstrap.create_unique_id()?.to_bytes().to_vec(),
            _ => Vec::new(),
        };
        let id = self.exchange(mine)?.swap_remove(0);
        Ok((bootstrap, UniqueId::from_bytes(&id)?))
    }

    /// A bootstrap of its own, joined by all ranks of the test.
    pub fn bootstrap(&self) -> anyhow::Result<Arc<TcpBootstrap>> {
        let (bootstrap, id) = self.new_id()?;
        bootstrap.initialize(&id, Duration::from_secs(30))?;
        Ok(Arc::new(bootstrap))
    }
}
