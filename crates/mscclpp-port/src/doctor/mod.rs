// SPDX-License-Identifier: MIT
//! What this machine has of what channels need, and what to do about the rest: all of it checked at
//! once, behind `cargo xtask doctor`.
//!
//! [`examine`] reads sysfs and /proc, loads the libraries that channels would load (by the same
//! search), and asks libibverbs and the CUDA driver what only they know. It changes nothing, opens
//! no GPU and needs no privilege; what only root can see is reported as unknown elsewhere. It takes
//! up to some seconds, most of it in drivers that wake up.
//!
//! ```no_run
//! let report = mscclpp_port::doctor::examine(Vec::new());
//! print!("{report}");
//! assert!(report.default_works());
//! ```
//!
//! # The checks
//!
//! | name | `ok` if | needed for |
//! |---|---|---|
//! | `environment` | each variable `MSCCLPP_*` that is set is known, and its value can be used and is no short secret | whatever reads it |
//! | `network` | a network interface is up | all, for ranks to meet |
//! | `c++ compiler` | `$CXX`, `c++`, `g++` or `clang++` starts | kernels on CPU threads |
//! | `gpu` | an NVIDIA GPU is on PCI | kernels on GPUs |
//! | `nvidia driver` | its kernel module is loaded | GPUs |
//! | `cuda driver` | `libcuda` loads and is new enough | GPUs |
//! | `nvrtc` | found as kernels find it | kernels on GPUs |
//! | `nvidia device files` | there, and this user may open them | GPUs |
//! | `gpu memory for hcas` | by dma-buf or `nvidia_peermem` | RDMA from and to GPUs |
//! | `peer mapping` | `PeerMappingOverride=1` was given to the driver, so that GPUs map doorbells (UAR) | kernels that ring a ConnectX |
//! | `libibverbs`, `libmlx5` | found as channels find them | RDMA |
//! | `rdma driver` | each adapter on PCI has an RDMA device | RDMA |
//! | `memlock` | unlimited, at least 1 GiB, or `CAP_IPC_LOCK` | RDMA with large buffers |
//! | `hca N` | it is there | RDMA |
//! | `hca N device file` | `/dev/infiniband/uverbs*` is there, and this user may open it | RDMA |
//! | `hca N port P` | active; with rate, and MTU now and at best | RDMA |
//! | `hca N port P gid` | there is one that packets can be routed to; the one that a connection would choose, and why not the others | RDMA |
//! | `hca N atomics` | 64-bit, by libibverbs | signals without the peer's host |
//! | `hca N relaxed ordering` | its PCIe function may reorder writes | bandwidth |
//! | `gpu A to hcas` | some port can be used; how far each is, and which [`Hca::nearest`] picks | RDMA from and to GPUs |
//! | `softnic` | always; its name is `soft0` | channels without a NIC |
//! | `backend B` | everything that it needs is there | |
//!
//! [`Hca::nearest`]: crate::Hca::nearest

mod backend;
mod compiler;
mod environment;
mod gpu;
mod hca;
mod host;
mod live;
mod rdma;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::{Function, GpuFunction, RdmaDevice, Root};
use crate::nearest::Survey;
use live::Live;

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CheckStatus {
    /// It is there and can be used.
    Ok,
    /// It is not there, or cannot be used; the fix says what to do.
    Missing,
    /// Nothing on this machine would use it.
    #[serde(rename = "not needed")]
    NotNeeded,
    /// It cannot be seen from here; the fix says from where.
    Unknown,
}

impl fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::NotNeeded => "not needed",
            Self::Unknown => "unknown",
        })
    }
}

/// One line of a [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// What came of it.
    pub status: CheckStatus,
    /// What was found.
    pub found: String,
    /// A command or a setting that changes it; empty where there is nothing to do.
    pub fix: String,
}

impl Check {
    fn new(
        name: impl Into<String>,
        status: CheckStatus,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            status,
            found: found.into(),
            fix: fix.into(),
        }
    }

    fn ok(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(name, CheckStatus::Ok, found, "")
    }

    fn missing(name: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(name, CheckStatus::Missing, found, fix)
    }

    fn not_needed(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(name, CheckStatus::NotNeeded, found, "")
    }
}

/// What [`examine`] has found. As JSON (`serde`) it is `{"checks":[{"name","status","found","fix"}]}`;
/// printed, a line or two for each check, and the backends at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Report {
    /// Every check; the last are one for each backend, `backend proxy-ethernet` and so on.
    pub checks: Vec<Check>,
}

/// Examines this machine. `further` are checks of the caller's, shown among the others.
#[must_use]
pub fn examine(further: Vec<Check>) -> Report {
    let root = Root::system();
    let live = Live::ask(&root);
    Report::new(&root, &live, further)
}

/// What the checks look at.
struct Seen<'a> {
    root: &'a Root,
    live: &'a Live,
    devices: Vec<RdmaDevice>,
    /// RDMA adapters of the one maker whose are known by their numbers.
    adapters: Vec<Function>,
    survey: Survey,
}

impl Seen<'_> {
    fn gpus(&self) -> &[GpuFunction] {
        self.survey.gpus()
    }

    fn has_gpu(&self) -> bool {
        let by_driver = self
            .live
            .cuda
            .as_ref()
            .is_ok_and(|cuda| !cuda.gpus.is_empty());
        by_driver || !self.gpus().is_empty()
    }

    fn has_hca(&self) -> bool {
        !self.devices.is_empty() || !self.adapters.is_empty()
    }
}

impl Report {
    fn new(root: &Root, live: &Live, further: Vec<Check>) -> Self {
        let seen = Seen {
            root,
            live,
            devices: RdmaDevice::all(root),
            adapters: hca::adapters(root),
            survey: Survey::new(root, live.wish, &live.named),
        };
        let mut checks = vec![environment::check(&seen)];
        checks.extend(host::checks(&seen));
        checks.extend(gpu::checks(&seen));
        checks.extend(rdma::checks(&seen));
        for device in &seen.devices {
            checks.extend(hca::checks(&seen, device));
        }
        checks.extend(gpu::distances(&seen));
        checks.extend(further);
        checks.extend(backend::checks(&seen, &checks));
        Self { checks }
    }

    /// Whether the default backend works here: the proxy over TCP, with kernels on CPU threads or on
    /// GPUs.
    #[must_use]
    pub fn default_works(&self) -> bool {
        let default = |check: &&Check| check.name == backend::DEFAULT;
        (self.checks.iter().find(default)).is_some_and(|check| check.status == CheckStatus::Ok)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_backend = |check: &&Check| check.name.starts_with(backend::PREFIX);
        let checks = || self.checks.iter();
        let width = checks().map(|check| check.name.len()).max().unwrap_or(0);
        for check in checks().filter(|check| !is_backend(check)) {
            let Check {
                name,
                status,
                found,
                fix,
            } = check;
            writeln!(f, "{status:<10}  {name:<width$}  {found}")?;
            if !fix.is_empty() {
                writeln!(f, "{:<10}  {:<width$}  fix: {fix}", "", "")?;
            }
        }
        writeln!(f)?;
        for check in checks().filter(is_backend) {
            writeln!(f, "{:<width$}  {}", check.name, check.found)?;
        }
        Ok(())
    }
}
