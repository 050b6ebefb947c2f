// SPDX-License-Identifier: MIT
//! What a test is, and what may come of it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::context::Context;
use crate::backend::Backend;

/// What the body of a test returns on each rank. [`Skip`] is an error like another, told apart by
/// its type.
pub type TestResult = anyhow::Result<()>;

/// The body of a test: it runs on every rank that takes part, at the same time.
pub type Body = Box<dyn Fn(&Context) -> TestResult + Send + Sync>;

/// A registered test.
pub struct Test {
    /// `Suite.Test`.
    pub name: String,
    /// Fewest ranks it can run on; a smaller run skips it.
    pub min_ranks: usize,
    /// Most ranks that take part; those above wait for the verdict.
    pub max_ranks: usize,
    /// Whether it measures.
    pub perf: bool,
    /// The backend that it is a test of, if it is one's.
    pub backend: Option<&'static Backend>,
    /// Time from its start after which a rank gives it up.
    pub deadline: Duration,
    /// What it does.
    pub body: Body,
}

/// Every test of the suite, in the order in which they run.
#[derive(Default)]
pub struct Registry {
    tests: Vec<Test>,
    backend: Option<&'static Backend>,
}

impl Registry {
    /// Adds what `register` adds as tests of a backend: skipped where the backend cannot run.
    pub fn of(
        &mut self,
        backend: &'static Backend,
        register: impl FnOnce(&mut Self, &'static Backend),
    ) {
        self.backend = Some(backend);
        register(self, backend);
        self.backend = None;
    }

    /// Adds a test for any number of ranks, with 60 seconds to run. The returned entry takes what
    /// differs.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        body: impl Fn(&Context) -> TestResult + Send + Sync + 'static,
    ) -> &mut Test {
        let name = name.into();
        debug_assert!(
            self.tests.iter().all(|test| test.name != name),
            "{name} twice"
        );
        self.tests.push(Test {
            name,
            min_ranks: 1,
            max_ranks: usize::MAX,
            perf: false,
            backend: self.backend,
            deadline: Duration::from_secs(60),
            body: match self.backend {
                None => Box::new(body),
                Some(backend) => Box::new(move |context| {
                    context.skip_unless((backend.obstacle)(context))?;
                    body(context)
                }),
            },
        });
        self.tests.last_mut().expect("just pushed")
    }

    /// The same, for a test that runs on a backend.
    pub fn add_on(
        &mut self,
        backend: &'static Backend,
        name: impl Into<String>,
        body: impl Fn(&Context, &'static Backend) -> TestResult + Send + Sync + 'static,
    ) -> &mut Test {
        self.add(name, move |context| body(context, backend))
    }

    /// The tests, in order.
    pub fn into_tests(self) -> Vec<Test> {
        self.tests
    }
}

impl Test {
    /// Runs on at least `min` ranks, with ranks below `max` taking part.
    pub fn ranks(&mut self, min: usize, max: usize) -> &mut Self {
        (self.min_ranks, self.max_ranks) = (min, max);
        self
    }

    /// Marks it as one that measures.
    pub fn perf(&mut self) -> &mut Self {
        self.perf = true;
        self
    }

    /// Gives it another deadline, in seconds.
    pub fn seconds(&mut self, seconds: u64) -> &mut Self {
        self.deadline = Duration::from_secs(seconds);
        self
    }
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Test")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The reason why a test cannot run here. Made by [`Context::skip_unless`] on all ranks together.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Skip(pub String);

/// A kernel that does not end, and cannot be ended. The process must be.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Stuck(pub String);

/// What came of a test on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Done and right.
    Pass,
    /// This rank has no part in the test.
    Idle,
    /// Cannot run here, for this reason.
    Skip(String),
    /// Wrong, and the rank can go on.
    Fail(String),
    /// Still running after its deadline: a thread of it cannot be ended, so the process must be.
    Hung(String),
    /// The rank did not report.
    Lost(String),
}

/// What all ranks agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// All ranks that took part passed.
    Pass,
    /// All ranks that took part skipped, for this reason.
    Skip(String),
    /// At least one rank failed: `(rank, what)`.
    Fail {
        /// Every rank that did not pass, with its words.
        ranks: Vec<(usize, String)>,
        /// Whether the run can go on after it.
        go_on: bool,
    },
}

impl Verdict {
    /// Joins the outcomes of all ranks, in rank order.
    pub fn of(outcomes: &[Outcome]) -> Self {
        let mut go_on = true;
        let mut ranks = Vec::new();
        let mut skips = Vec::new();
        let mut passed = false;
        for (rank, outcome) in outcomes.iter().enumerate() {
            match outcome {
                Outcome::Pass => passed = true,
                Outcome::Idle => {}
                Outcome::Skip(reason) => skips.push((rank, reason)),
                Outcome::Fail(text) => ranks.push((rank, text.clone())),
                Outcome::Hung(text) | Outcome::Lost(text) => {
                    go_on = false;
                    ranks.push((rank, text.clone()));
                }
            }
        }
        match skips.first() {
            Some((_, reason)) if ranks.is_empty() && !passed => Self::Skip((*reason).clone()),
            None if ranks.is_empty() => Self::Pass,
            _ => {
                let alone = skips.iter().map(|(rank, reason)| {
                    (*rank, format!("skipped, and others did not: {reason}"))
                });
                ranks.extend(alone);
                ranks.sort();
                Self::Fail { ranks, go_on }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(text: &str) -> Outcome {
        Outcome::Fail(text.to_owned())
    }

    fn skip(text: &str) -> Outcome {
        Outcome::Skip(text.to_owned())
    }

    #[test]
    fn all_pass_or_idle_is_a_pass() {
        assert_eq!(
            Verdict::of(&[Outcome::Pass, Outcome::Pass, Outcome::Idle]),
            Verdict::Pass
        );
    }

    #[test]
    fn one_failing_rank_fails_the_test_and_the_run_goes_on() {
        let verdict = Verdict::of(&[Outcome::Pass, fail("bad sum"), Outcome::Idle]);
        let ranks = vec![(1, "bad sum".to_owned())];
        assert_eq!(verdict, Verdict::Fail { ranks, go_on: true });
    }

    #[test]
    fn a_skip_counts_only_when_every_rank_that_took_part_skips() {
        let all = Verdict::of(&[skip("no NIC"), skip("no NIC"), Outcome::Idle]);
        assert_eq!(all, Verdict::Skip("no NIC".to_owned()));
        let one = Verdict::of(&[Outcome::Pass, skip("no NIC")]);
        assert!(matches!(one, Verdict::Fail { ref ranks, go_on: true } if ranks[0].0 == 1));
    }

    #[test]
    fn a_hung_or_lost_rank_ends_the_run() {
        for end in [
            Outcome::Hung("kernel".into()),
            Outcome::Lost("killed".into()),
        ] {
            let verdict = Verdict::of(&[skip("x"), end, fail("y")]);
            let Verdict::Fail { ranks, go_on } = verdict else {
                panic!("{verdict:?}")
            };
            assert!(!go_on);
            assert_eq!(
                ranks.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(),
                [0, 1, 2]
            );
        }
    }
}
