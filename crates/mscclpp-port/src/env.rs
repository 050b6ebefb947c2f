// SPDX-License-Identifier: MIT
//! Environment variables. Those of HCAs (`MSCCLPP_HCA_DEVICES`, `MSCCLPP_IBV_*`, `MSCCLPP_IB_*`) are
//! read once when first needed and logged at level INFO; what cannot be used is logged as a warning, and
//! the default holds; with a GID index or a libibverbs that cannot be used, what needs it fails. What is
//! no UTF-8 text cannot be used.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `MSCCLPP_CONNECTION_TIMEOUT` and others | | how long things may take: see [`Deadlines`] and `docs/deadlines.md` |
//! | `MSCCLPP_HCA_DEVICES` | | the HCAs that `IB0`, `IB1`, ... stand for: names with commas between, for example `mlx5_0,mlx5_3` or `soft0,soft1`; without, the RDMA devices that libibverbs lists |
//! | `MSCCLPP_IBV_SO` | | path of libibverbs, which must be loadable then; without, `libibverbs.so.1`, then `libibverbs.so` |
//! | `MSCCLPP_IBV_MODE` | `host` | what [`IbMode::Default`] stands for: `host` or `host-no-atomic` |
//! | `MSCCLPP_IB_GID_INDEX` | | index in a port's table of GIDs; without, a routable RoCE v2 entry is chosen, and 0 by a [`GpuNetIoService`](crate::GpuNetIoService) |
//! | `MSCCLPP_IB_SL` | 0 | service level: see [`IbConfig::service_level`](crate::IbConfig::service_level) |
//! | `MSCCLPP_IB_TC` | 0 | traffic class: see [`IbConfig::traffic_class`](crate::IbConfig::traffic_class) |
//! | `MSCCLPP_IB_TIMEOUT` | 18 | time for an acknowledgement: see [`IbConfig::timeout`](crate::IbConfig::timeout) |
//! | `MSCCLPP_IB_RETRY_CNT` | 7 | how often requests are sent again: see [`IbConfig::retry_count`](crate::IbConfig::retry_count) |
//! | `MSCCLPP_SOCKET_IFNAME` | | which network interfaces to use: prefixes, `=exact`, `^excluded` |
//! | `MSCCLPP_SOCKET_FAMILY` | | `AF_INET` or `AF_INET6` only |
//! | `MSCCLPP_HOSTID` | | stands for the machine's identity where ranks are counted by machine |
//!
//! The last three belong to `mscclpp-bootstrap`, as do those by which a launcher tells a process its
//! rank. Logging goes through the `tracing` crate; the program decides where it ends up.
//!
//! Variables of MSCCL++ that mean nothing here, because what they are for is not here or is done
//! otherwise: `MSCCLPP_DEBUG`, `MSCCLPP_DEBUG_SUBSYS`, `MSCCLPP_DEBUG_FILE`, `MSCCLPP_LOG_LEVEL`,
//! `MSCCLPP_LOG_SUBSYS` and `MSCCLPP_LOG_FILE` (see above), `MSCCLPP_NPKIT_DUMP_DIR`, `MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM`, `MSCCLPP_FORCE_DISABLE_NVLS`,
//! `MSCCLPP_FORCE_DISABLE_GDR` (tokens in a GPU's memory are written by copies, not through GDRCopy),
//! and those that start with `MSCCLPP_NCCL_`.

#[cfg(feature = "ib")]
use std::cell::RefCell;
use std::sync::OnceLock;

use mscclpp_bootstrap::Deadlines;
use mscclpp_bootstrap::environment::Fault;

use crate::gpu_queue::IbMode;

/// What the environment says to this crate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Env {
    /// `MSCCLPP_CONNECTION_TIMEOUT` and others
    pub deadlines: Deadlines,
    /// `MSCCLPP_HCA_DEVICES`
    pub hca_devices: Vec<String>,
    /// `MSCCLPP_IBV_MODE`
    pub ib_mode: IbMode,
    /// `MSCCLPP_IB_GID_INDEX`
    pub gid_index: Option<u32>,
    /// `MSCCLPP_IB_SL`
    pub ib_service_level: Option<u8>,
    /// `MSCCLPP_IB_TC`
    pub ib_traffic_class: Option<u8>,
    /// `MSCCLPP_IB_TIMEOUT`
    pub ib_timeout: Option<u8>,
    /// `MSCCLPP_IB_RETRY_CNT`
    pub ib_retry_count: Option<u8>,
}

/// The environment as it was at the first call.
pub fn env() -> &'static Env {
    static ENV: OnceLock<Env> = OnceLock::new();
    // What is no text is no number or mode either, and names no HCA: its bytes that are none are shown
    // as U+FFFD.
    let text = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    ENV.get_or_init(|| Env::read(text))
}

impl Env {
    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let deadlines = Deadlines::read(&variable);
        Self::take(deadlines, variable, |fault| {
            tracing::warn!("{}", fault.why);
        })
    }

    /// What cannot be used of the variables that are read here; those of [`Deadlines`] are looked at
    /// by [`mscclpp_bootstrap::environment`].
    #[cfg(feature = "ib")]
    pub(crate) fn faults(variable: impl Fn(&str) -> Option<String>) -> Vec<Fault> {
        let faults = RefCell::new(Vec::new());
        let deadlines = Deadlines::read(|_| None);
        let env = Self::take(deadlines, &variable, |fault| {
            faults.borrow_mut().push(fault);
        });
        let mut faults = faults.into_inner();
        if env.gid_index == Some(u32::MAX) {
            let name = "MSCCLPP_IB_GID_INDEX";
            let text = variable(name).unwrap_or_default();
            let why = format!("{name}={text} is no index: no port has such a GID");
            faults.push(fault(name, why, "NUMBER, from 0"));
        }
        faults
    }

    fn take(
        deadlines: Deadlines,
        variable: impl Fn(&str) -> Option<String>,
        refuse: impl Fn(Fault),
    ) -> Self {
        let names = |name: &str| {
            let Some(text) = variable(name).filter(|text| !text.trim().is_empty()) else {
                return Vec::new();
            };
            tracing::info!("{name}={text}");
            text.split(',').map(|part| part.trim().into()).collect()
        };
        let field = |name: &str, least: u8, most: u8| {
            let text = variable(name)?;
            let value = text.trim().parse().ok();
            let value = value.filter(|value| (least..=most).contains(value));
            match value {
                Some(_) => tracing::info!("{name}={text}"),
                None => {
                    let range = format!("{least} to {most}");
                    let why = format!("{name}={text} is not {range}: ignored");
                    refuse(fault(name, why, &format!("NUMBER, {range}")));
                }
            }
            value
        };
        Self {
            deadlines,
            hca_devices: names("MSCCLPP_HCA_DEVICES"),
            ib_mode: match variable("MSCCLPP_IBV_MODE").as_deref().map(str::trim) {
                None | Some("") => IbMode::Host,
                Some(text @ "host") => {
                    tracing::info!("MSCCLPP_IBV_MODE={text}");
                    IbMode::Host
                }
                Some(text @ "host-no-atomic") => {
                    tracing::info!("MSCCLPP_IBV_MODE={text}");
                    IbMode::HostNoAtomic
                }
                Some(text) => {
                    let name = "MSCCLPP_IBV_MODE";
                    let why = format!("{name}={text} is neither host nor host-no-atomic: ignored");
                    refuse(fault(name, why, "host or host-no-atomic"));
                    IbMode::Host
                }
            },
            gid_index: variable("MSCCLPP_IB_GID_INDEX").map(|text| {
                tracing::info!("MSCCLPP_IB_GID_INDEX={text}");
                // No HCA has such a GID: whoever uses it is told, instead of using another one.
                text.trim().parse().unwrap_or(u32::MAX)
            }),
            ib_service_level: field("MSCCLPP_IB_SL", 0, 15),
            ib_traffic_class: field("MSCCLPP_IB_TC", 0, 255),
            ib_timeout: field("MSCCLPP_IB_TIMEOUT", 1, 31),
            ib_retry_count: field("MSCCLPP_IB_RETRY_CNT", 0, 7),
        }
    }
}

fn fault(name: &str, why: String, value: &str) -> Fault {
    Fault::new(name, why, format!("{name}={value}"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Each line of the input is the value of one variable; what is used of it is in range.
    #[test]
    fn fuzz_environment() {
        let names = [
            "MSCCLPP_HCA_DEVICES",
            "MSCCLPP_IBV_MODE",
            "MSCCLPP_IB_GID_INDEX",
            "MSCCLPP_IB_SL",
            "MSCCLPP_IB_TC",
            "MSCCLPP_IB_TIMEOUT",
            "MSCCLPP_IB_RETRY_CNT",
            "MSCCLPP_BOOTSTRAP_TIMEOUT",
        ];
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let lines: Vec<&str> = text.split('\n').collect();
            let variable = |name: &str| {
                let at = names.iter().position(|n| *n == name)?;
                lines.get(at).map(|line| (*line).to_owned())
            };
            let env = mscclpp_fuzz::in_proportion(bytes, || Env::read(variable));
            assert!(env.ib_service_level.is_none_or(|level| level < 16));
            let timeout = env.ib_timeout;
            assert!(timeout.is_none_or(|exponent| (1..32).contains(&exponent)));
            assert!(env.ib_retry_count.is_none_or(|count| count < 8));
        });
    }

    #[test]
    #[ignore = "run by the next test, with variables that are no text"]
    fn child_with_no_text() {
        let env = env();
        assert_eq!(env.gid_index, Some(u32::MAX));
        // The name of no HCA, so that whoever uses it is told.
        assert_eq!(env.hca_devices, ["soft0", "soft\u{fffd}"]);
        assert_eq!((env.ib_service_level, env.ib_mode), (None, IbMode::Host));
    }

    #[test]
    fn what_is_no_text_is_as_bad_as_any_other_bad_value() {
        let variables = [
            ("MSCCLPP_IB_GID_INDEX", &b"3\xff"[..]),
            ("MSCCLPP_HCA_DEVICES", b"soft0,soft\xff"),
            ("MSCCLPP_IB_SL", b"3\xff"),
            ("MSCCLPP_IBV_MODE", b"host-no-atomic\xff"),
        ];
        crate::testing::run_alone("env::tests::child_with_no_text", &variables);
    }

    #[test]
    fn each_variable_sets_its_own_value() {
        let env = Env::read(|name| (name == "MSCCLPP_PROXY_STOP_TIMEOUT").then(|| " 0.25 ".into()));
        assert_eq!(env.deadlines.proxy_stop.as_millis(), 250);
        let gid = |text: &'static str| {
            Env::read(|name| (name == "MSCCLPP_IB_GID_INDEX").then(|| text.into())).gid_index
        };
        assert_eq!(gid(" 3"), Some(3));
        assert_eq!((gid("-1"), gid("x")), (Some(u32::MAX), Some(u32::MAX)));
        let mode = |text: &'static str| {
            Env::read(|name| (name == "MSCCLPP_IBV_MODE").then(|| text.into())).ib_mode
        };
        assert_eq!(mode("host-no-atomic"), IbMode::HostNoAtomic);
        for other in ["host", "", "HOST-NO-ATOMIC", "gpu"] {
            assert_eq!(mode(other), IbMode::Host, "{other}");
        }
        type Get = fn(&Env) -> Option<u8>;
        let fields: [(&str, u8, u8, Get); 4] = [
            ("MSCCLPP_IB_SL", 0, 15, |env| env.ib_service_level),
            ("MSCCLPP_IB_TC", 0, 255, |env| env.ib_traffic_class),
            ("MSCCLPP_IB_TIMEOUT", 1, 31, |env| env.ib_timeout),
            ("MSCCLPP_IB_RETRY_CNT", 0, 7, |env| env.ib_retry_count),
        ];
        for (variable, least, most, get) in fields {
            let read = |text: &str| get(&Env::read(|name| (name == variable).then(|| text.into())));
            for value in [least, most] {
                assert_eq!(read(&value.to_string()), Some(value), "{variable}");
            }
            let beyond = (u32::from(most) + 1).to_string();
            for bad in ["", "x", "-1", &beyond] {
                assert_eq!(read(bad), None, "{variable}={bad}");
            }
        }
        // That would be a wait without end.
        let timeout = |name: &str| (name == "MSCCLPP_IB_TIMEOUT").then(|| "0".into());
        assert_eq!(Env::read(timeout).ib_timeout, None);
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
