// SPDX-License-Identifier: MIT
//! The command line of the suite.

use clap::{Parser, ValueEnum};

use crate::backend::Executor;
use crate::provider::Provider;

/// How much a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Sizes and counts for CPU threads on two cores: a few minutes in all.
    Quick,
    /// Larger sizes and counts.
    Full,
}

impl Profile {
    /// One of two values.
    pub fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// The multi-process conformance suite: one process per rank, started by a launcher.
#[derive(Clone, Debug, Parser)]
#[command(name = "conformance", version)]
pub struct Options {
    /// Run the tests whose `Suite.Test` contains this text, or one of a comma list; with a leading `-`,
    /// those that contain none of it
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub filter: String,

    /// Run only tests of backends whose name contains this text, such as proxy-ib
    #[arg(long, value_name = "TEXT")]
    pub backend: Option<String>,

    /// Run only tests that more than so many ranks can take part in
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true)]
    pub ranks_above: usize,

    /// Leave out the tests that measure
    #[arg(long, conflicts_with = "only_perf_tests")]
    pub exclude_perf_tests: bool,

    /// Run only the tests that measure
    #[arg(long)]
    pub only_perf_tests: bool,

    /// Sizes and counts
    #[arg(long, value_enum, default_value = "quick")]
    pub profile: Profile,

    /// How long a test that looks for stale data goes on [default: 2, or 10 with the full profile]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub stress: Option<u64>,

    /// What runs kernels
    #[arg(long, value_enum, default_value = "host")]
    pub executor: Executor,

    /// Whose queues kernels post to, of backends where they do
    #[arg(long, value_enum, default_value = "soft")]
    pub provider: Provider,

    /// Run so many ranks as threads of this process, without a launcher
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,

    /// Print the names of the selected tests and end
    #[arg(long)]
    pub list: bool,

    /// Play a part in a job that a test started; not for use by hand
    #[arg(long, hide = true)]
    pub child: Option<String>,
}

impl Options {
    /// What selects tests, as it was typed.
    pub(super) fn selection(&self) -> String {
        let mut given = Vec::new();
        given.extend((!self.filter.is_empty()).then(|| format!("--filter={}", self.filter)));
        given.extend((self.backend.iter()).map(|text| format!("--backend={text}")));
        given.extend((self.ranks_above > 0).then(|| format!("--ranks-above={}", self.ranks_above)));
        given.extend((self.exclude_perf_tests).then(|| "--exclude-perf-tests".into()));
        given.extend((self.only_perf_tests).then(|| "--only-perf-tests".into()));
        given.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_selects_is_said_as_it_was_typed() {
        let selection = |words: &str| {
            let words = ["conformance"].into_iter().chain(words.split_whitespace());
            Options::parse_from(words).selection()
        };
        assert_eq!(selection("--filter Kill"), "--filter=Kill");
        assert_eq!(
            selection("--backend=proxy-ib --ranks-above 2 --only-perf-tests"),
            "--backend=proxy-ib --ranks-above=2 --only-perf-tests"
        );
    }

    #[test]
    fn a_filter_may_start_with_a_dash() {
        let options = Options::try_parse_from(["conformance", "--filter", "-Perf,Kill"]).unwrap();
        assert_eq!(options.filter, "-Perf,Kill");
        let options = Options::try_parse_from(["conformance", "--filter=-Perf"]).unwrap();
        assert_eq!(options.filter, "-Perf");
    }

    #[test]
    fn leaving_out_and_keeping_only_perf_tests_conflict() {
        let both = ["conformance", "--exclude-perf-tests", "--only-perf-tests"];
        assert!(Options::try_parse_from(both).is_err());
    }
}
