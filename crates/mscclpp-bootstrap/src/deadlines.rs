// SPDX-License-Identifier: MIT
//! How long things may take: one configuration for all layers.

use std::time::Duration;

use crate::environment::Fault;

/// Declares [`Deadlines`], so that field, variable and default are said once.
macro_rules! deadlines {
    ($(
        $(#[$doc:meta])*
        $field:ident: $seconds:literal s, $variable:literal;
    )*) => {
        /// How long things may take, for all layers of a job. The default is what the environment says,
        /// in seconds (fractions allowed, from a millisecond to 1e9); what cannot be used is logged as a
        /// warning, and the value below holds.
        ///
        /// | field | variable | default |
        /// |---|---|---|
        $(#[doc = concat!(
            "| [`", stringify!($field), "`](Self::", stringify!($field), ") | `", $variable, "` | ",
            $seconds, " s |"
        )])*
        ///
        /// Which wait each of them limits, and what limits the others, is in `docs/deadlines.md`. Calls
        /// that take a [`Deadline`](crate::Deadline) of their own, or a time, go by that instead. A
        /// kernel's `wait` without a budget has none: it ends by a signal, the queue's error, the peer's
        /// death or the host's abort.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Deadlines {
            $($(#[$doc])* pub $field: Duration,)*
        }

        impl Deadlines {
            /// What some variables say, given by name, or the defaults.
            #[must_use]
            pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
                Self {
                    $($field: seconds(&variable, $variable, $seconds),)*
                }
            }

            /// Each variable that is set and cannot be used.
            pub(crate) fn faults(variable: impl Fn(&str) -> Option<String>) -> Vec<Fault> {
                let fault = |name: &'static str| {
                    Some(Fault {
                        variable: name.into(),
                        why: time(&variable, name).err()?,
                        fix: format!("{name}=SECONDS, for example 30 or 0.5"),
                    })
                };
                [$($variable),*].into_iter().filter_map(fault).collect()
            }

            /// All of them, each with its name, its variable and its value.
            #[cfg(test)]
            fn list(&self) -> Vec<(&'static str, &'static str, Duration)> {
                vec![$((stringify!($field), $variable, self.$field),)*]
            }
        }
    };
}

deadlines! {
    /// A step that ranks take together: a collective, a setup, an exchange of two; mapping a peer's
    /// memory.
    step: 30 s, "MSCCLPP_BOOTSTRAP_TIMEOUT";
    /// Without a sign of life for so long, a rank counts as dead. The same on all ranks.
    silence: 5 s, "MSCCLPP_SILENCE_TIMEOUT";
    /// A peer that takes and acknowledges nothing for so long, although there is something to,
    /// loses its connection.
    stall: 30 s, "MSCCLPP_CONNECTION_TIMEOUT";
    /// The first request of a new send queue, and the greeting of two HCAs.
    self_test: 5 s, "MSCCLPP_SELF_TEST_TIMEOUT";
    /// Stopping or dropping a proxy: what was pushed is executed.
    proxy_stop: 5 s, "MSCCLPP_PROXY_STOP_TIMEOUT";
    /// Dropping a bootstrap: its peers take over the last messages and hear the goodbye.
    goodbye: 2 s, "MSCCLPP_GOODBYE_TIMEOUT";
    /// Dropping a connection: what was posted is executed, and the peer is told.
    linger: 1 s, "MSCCLPP_LINGER_TIMEOUT";
    /// Dropping a connection, after that: its threads end. One that does not is left behind, with all
    /// that it uses.
    teardown: 2 s, "MSCCLPP_TEARDOWN_TIMEOUT";
    /// Whoever connects to a port: its proof, and its first frame.
    proof: 5 s, "MSCCLPP_PROOF_TIMEOUT";
    /// A copy from or to a GPU's memory that the host waits for.
    gpu_copy: 10 s, "MSCCLPP_GPU_COPY_TIMEOUT";
    /// A process that asks for a GPU's memory takes the answer.
    ipc_answer: 2 s, "MSCCLPP_IPC_ANSWER_TIMEOUT";
}

fn seconds(variable: &impl Fn(&str) -> Option<String>, name: &str, default: u64) -> Duration {
    let default = Duration::from_secs(default);
    time(variable, name)
        .unwrap_or_else(|why| {
            tracing::warn!("{why}");
            None
        })
        .unwrap_or(default)
}

/// The time that a variable says, `None` where it is not set.
fn time(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
) -> Result<Option<Duration>, String> {
    let Some(text) = variable(name) else {
        return Ok(None);
    };
    match parse_seconds(&text) {
        None => Err(format!(
            "{name}={text} is no positive number of seconds: ignored"
        )),
        time => Ok(time),
    }
}

impl Default for Deadlines {
    /// What the environment says now.
    fn default() -> Self {
        // What is no text is no number either, and is shown as well as it can be.
        Self::read(|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))
    }
}

/// More than any wait; what is much longer cannot be added to the clock.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

fn parse_seconds(text: &str) -> Option<Duration> {
    let time = Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()?;
    (Duration::from_millis(1)..=LONGEST)
        .contains(&time)
        .then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of a documented table, by their cells.
    fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
        (text.lines())
            .filter(|line| line.starts_with("| `"))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
    }

    #[test]
    fn the_documented_names_and_defaults_are_those_of_the_code() {
        let text = include_str!("../../../docs/deadlines.md");
        let (_, text) = text.split_once("## The configuration").unwrap();
        let (text, _) = text.split_once("## ").unwrap();
        let documented: Vec<String> = rows(text).map(|row| row[..3].join(" ")).collect();
        let defaults = Deadlines::read(|_| None).list();
        let coded = (defaults.iter()).map(|(name, variable, default)| {
            format!("`{name}` `{variable}` {} s", default.as_secs())
        });
        assert_eq!(documented, coded.collect::<Vec<_>>());
    }

    #[test]
    fn every_wait_names_a_limit_that_there_is() {
        let text = include_str!("../../../docs/deadlines.md");
        let (_, text) = text.split_once("## What limits which wait").unwrap();
        let (text, _) = text.split_once("## ").unwrap();
        let names: Vec<_> = Deadlines::read(|_| None).list();
        let mut used = Vec::new();
        let table = text.lines().filter(|line| line.starts_with("| "));
        for line in table.skip(1) {
            let limit = line.trim_matches('|').split('|').nth(1).unwrap();
            for name in limit.split('`').skip(1).step_by(2) {
                let known = names.iter().any(|(field, ..)| *field == name);
                let constant = name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
                assert!(known || constant, "{name}: {line}");
                used.push(name);
            }
        }
        for (name, ..) in names {
            assert!(used.contains(&name), "no wait is limited by {name}");
        }
    }

    #[test]
    fn what_is_not_a_time_has_its_default() {
        let defaults = Deadlines::read(|_| None);
        for bad in [
            "", "0", "-1", "soon", "inf", "nan", "1e30", "1e18", "0.0001",
        ] {
            assert_eq!(Deadlines::read(|_| Some(bad.into())), defaults, "{bad}");
        }
    }

    /// Whatever is written there, times can be added to the clock and are no busy wait.
    #[test]
    fn fuzz_seconds() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let time = mscclpp_fuzz::in_proportion(bytes, || parse_seconds(&text));
            if let Some(time) = time {
                assert!(time >= Duration::from_millis(1));
                assert!(
                    std::time::Instant::now().checked_add(time).is_some(),
                    "{time:?}"
                );
            }
        });
    }

    #[test]
    fn each_variable_sets_its_own_value() {
        let defaults = Deadlines::read(|_| None).list();
        let mut names: Vec<&str> = defaults.iter().map(|(_, name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), defaults.len(), "a name stands for two values");
        for name in names {
            let with = Deadlines::read(|n| (n == name).then(|| " 0.25 ".into()));
            for (old, new) in defaults.iter().zip(with.list()) {
                let quarter = Duration::from_millis(250);
                assert_eq!(new.2, if old.1 == name { quarter } else { old.2 }, "{name}");
            }
        }
    }
}
