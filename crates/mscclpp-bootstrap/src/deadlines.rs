// SPDX-License-Identifier: MIT
//! How long things may take: one configuration for all layers.

use std::time::Duration;

/// How long things may take, for all layers of a job. The default is what the environment says, in
/// seconds (fractions allowed, from a millisecond to 1e9); what cannot be used is logged as a warning,
/// and the value below holds.
///
/// | field | variable | default |
/// |---|---|---|
/// | [`step`](Self::step) | `MSCCLPP_BOOTSTRAP_TIMEOUT` | 30 s |
/// | [`silence`](Self::silence) | `MSCCLPP_SILENCE_TIMEOUT` | 5 s |
/// | [`stall`](Self::stall) | `MSCCLPP_CONNECTION_TIMEOUT` | 30 s |
/// | [`self_test`](Self::self_test) | `MSCCLPP_SELF_TEST_TIMEOUT` | 5 s |
/// | [`proxy_stop`](Self::proxy_stop) | `MSCCLPP_PROXY_STOP_TIMEOUT` | 5 s |
///
/// Calls that take a [`Deadline`](crate::Deadline) of their own, or a time, go by that instead. A
/// kernel's `wait` without a budget has none: it ends by a signal, the queue's error, the peer's death
/// or the host's abort.
///
/// Not for configuration: dropping a connection waits a second for the peer to take over what was
/// posted, and two more for its threads; dropping a bootstrap, two seconds for its goodbyes; stopping
/// a proxy, half a second more than it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlines {
    /// A step that ranks take together: a collective, a setup, an exchange of two.
    pub step: Duration,
    /// Without a sign of life for so long, a rank counts as dead. The same on all ranks.
    pub silence: Duration,
    /// A peer that takes and acknowledges nothing for so long, although there is something to,
    /// loses its connection.
    pub stall: Duration,
    /// The first request of a new send queue, and the greeting of two HCAs.
    pub self_test: Duration,
    /// Stopping or dropping a proxy: what was pushed is executed.
    pub proxy_stop: Duration,
}

impl Deadlines {
    /// What some variables say, given by name, or the defaults.
    #[must_use]
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let seconds = |name: &str, default: u64| {
            let default = Duration::from_secs(default);
            let Some(text) = variable(name) else {
                return default;
            };
            parse_seconds(&text).unwrap_or_else(|| {
                tracing::warn!("{name}={text} is no positive number of seconds: ignored");
                default
            })
        };
        Self {
            step: seconds("MSCCLPP_BOOTSTRAP_TIMEOUT", 30),
            silence: seconds("MSCCLPP_SILENCE_TIMEOUT", 5),
            stall: seconds("MSCCLPP_CONNECTION_TIMEOUT", 30),
            self_test: seconds("MSCCLPP_SELF_TEST_TIMEOUT", 5),
            proxy_stop: seconds("MSCCLPP_PROXY_STOP_TIMEOUT", 5),
        }
    }
}

impl Default for Deadlines {
    /// What the environment says now.
    fn default() -> Self {
        Self::read(|name| std::env::var(name).ok())
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

    #[test]
    fn what_is_not_set_or_not_a_time_has_its_default() {
        let defaults = Deadlines::read(|_| None);
        let seconds = |duration: Duration| duration.as_secs();
        let Deadlines {
            step,
            silence,
            stall,
            self_test,
            proxy_stop,
        } = defaults;
        let all = [step, silence, stall, self_test, proxy_stop].map(seconds);
        assert_eq!(all, [30, 5, 30, 5, 5]);
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
        let quarter = Duration::from_millis(250);
        let with =
            |name: &'static str| Deadlines::read(move |n| (n == name).then(|| " 0.25 ".into()));
        let defaults = || Deadlines::read(|_| None);
        let cases = [
            (
                "MSCCLPP_BOOTSTRAP_TIMEOUT",
                Deadlines {
                    step: quarter,
                    ..defaults()
                },
            ),
            (
                "MSCCLPP_SILENCE_TIMEOUT",
                Deadlines {
                    silence: quarter,
                    ..defaults()
                },
            ),
            (
                "MSCCLPP_CONNECTION_TIMEOUT",
                Deadlines {
                    stall: quarter,
                    ..defaults()
                },
            ),
            (
                "MSCCLPP_SELF_TEST_TIMEOUT",
                Deadlines {
                    self_test: quarter,
                    ..defaults()
                },
            ),
            (
                "MSCCLPP_PROXY_STOP_TIMEOUT",
                Deadlines {
                    proxy_stop: quarter,
                    ..defaults()
                },
            ),
        ];
        for (name, expected) in cases {
            assert_eq!(with(name), expected, "{name}");
        }
    }
}
