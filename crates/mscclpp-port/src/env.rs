// SPDX-License-Identifier: MIT
//! Environment variables, read once when first needed. What is set is logged at level INFO; what
//! cannot be used is logged as a warning, and the default holds.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `MSCCLPP_CONNECTION_TIMEOUT` | 30 | seconds that a peer may take and acknowledge nothing before its connection fails |
//! | `MSCCLPP_PROXY_STOP_TIMEOUT` | 5 | seconds that stopping or dropping a [`ProxyService`](crate::ProxyService) waits for what is under way |
//! | `MSCCLPP_HCA_DEVICES` | | the HCAs that `IB0`, `IB1`, ... stand for: names with commas between, for example `soft0,soft1` |
//! | `MSCCLPP_IB_GID_INDEX` | 0 | which GID of its HCA a [`GpuNetIoService`](crate::GpuNetIoService) uses |
//! | `MSCCLPP_BOOTSTRAP_TIMEOUT` | 30 | seconds for each step with other ranks: collectives, and [`Pending::get`](crate::Pending::get) |
//! | `MSCCLPP_SOCKET_IFNAME` | | which network interfaces to use: prefixes, `=exact`, `^excluded` |
//! | `MSCCLPP_SOCKET_FAMILY` | | `AF_INET` or `AF_INET6` only |
//! | `MSCCLPP_HOSTID` | | stands for the machine's identity where ranks are counted by machine |
//!
//! The last four belong to `mscclpp-bootstrap`, as do those by which a launcher tells a process its
//! rank. Logging goes through the `tracing` crate; the program decides where it ends up.

use std::sync::OnceLock;
use std::time::Duration;

/// What the environment says to this crate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Env {
    /// `MSCCLPP_CONNECTION_TIMEOUT`
    pub connection_timeout: Duration,
    /// `MSCCLPP_PROXY_STOP_TIMEOUT`
    pub proxy_stop_timeout: Duration,
    /// `MSCCLPP_HCA_DEVICES`
    pub hca_devices: Vec<String>,
    /// `MSCCLPP_IB_GID_INDEX`
    pub gid_index: u32,
}

/// The environment as it was at the first call.
pub fn env() -> &'static Env {
    static ENV: OnceLock<Env> = OnceLock::new();
    ENV.get_or_init(|| Env::read(|name| std::env::var(name).ok()))
}

impl Env {
    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let seconds = |name: &str, default: u64| {
            let default = Duration::from_secs(default);
            let Some(text) = variable(name) else {
                return default;
            };
            match parse_seconds(&text) {
                Some(time) => {
                    tracing::info!("{name}={text}");
                    time
                }
                None => {
                    tracing::warn!("{name}={text} is no positive number of seconds: ignored");
                    default
                }
            }
        };
        let names = |name: &str| {
            let Some(text) = variable(name).filter(|text| !text.trim().is_empty()) else {
                return Vec::new();
            };
            tracing::info!("{name}={text}");
            text.split(',').map(|part| part.trim().into()).collect()
        };
        Self {
            connection_timeout: seconds("MSCCLPP_CONNECTION_TIMEOUT", 30),
            proxy_stop_timeout: seconds("MSCCLPP_PROXY_STOP_TIMEOUT", 5),
            hca_devices: names("MSCCLPP_HCA_DEVICES"),
            gid_index: variable("MSCCLPP_IB_GID_INDEX").map_or(0, |text| {
                tracing::info!("MSCCLPP_IB_GID_INDEX={text}");
                // No HCA has such a GID: whoever uses it is told, instead of using another one.
                text.trim().parse().unwrap_or(u32::MAX)
            }),
        }
    }
}

fn parse_seconds(text: &str) -> Option<Duration> {
    let time = Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()?;
    (time >= Duration::from_millis(1)).then_some(time)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_or_not_a_time_has_its_default() {
        let defaults = Env::read(|_| None);
        assert_eq!(defaults.connection_timeout, Duration::from_secs(30));
        assert_eq!(defaults.proxy_stop_timeout, Duration::from_secs(5));
        for bad in ["", "0", "-1", "soon", "inf", "nan", "1e30", "0.0001"] {
            let read = Env::read(|name| name.ends_with("TIMEOUT").then(|| bad.into()));
            assert_eq!(read, defaults, "{bad}");
        }
    }

    #[test]
    fn each_variable_sets_its_own_value() {
        let env = Env::read(|name| (name == "MSCCLPP_PROXY_STOP_TIMEOUT").then(|| " 0.25 ".into()));
        assert_eq!(env.proxy_stop_timeout, Duration::from_millis(250));
        assert_eq!(env.connection_timeout, Duration::from_secs(30));
        let gid = |text: &'static str| {
            Env::read(|name| (name == "MSCCLPP_IB_GID_INDEX").then(|| text.into())).gid_index
        };
        assert_eq!((gid(" 3"), gid("-1"), gid("x")), (3, u32::MAX, u32::MAX));
        let devices = |text: &'static str| {
            Env::read(|name| (name == "MSCCLPP_HCA_DEVICES").then(|| text.into())).hca_devices
        };
        assert_eq!(
            devices(" soft0,soft1 , mlx5_0"),
            ["soft0", "soft1", "mlx5_0"]
        );
        assert!(devices(" ").is_empty());
        // An empty name keeps its place, so that the others keep theirs.
        assert_eq!(devices("soft0,,soft2"), ["soft0", "", "soft2"]);
    }
}
