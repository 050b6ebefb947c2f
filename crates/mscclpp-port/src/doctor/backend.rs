// SPDX-License-Identifier: MIT
//! One line for each backend: does it work here?

use super::{Check, CheckStatus, Seen, gpu, host, rdma};
use crate::machine::RdmaDevice;
use crate::nearest::usable;

pub(super) const PREFIX: &str = "backend ";
/// The one that a program gets which asks for nothing.
pub(super) const DEFAULT: &str = "backend proxy-ethernet";

pub(super) fn checks(seen: &Seen<'_>, checks: &[Check]) -> Vec<Check> {
    let lack = |name: &str| -> Option<Lack> {
        let check = checks.iter().find(|check| check.name == name)?;
        match check.status {
            CheckStatus::Ok => None,
            // There is no GPU, or no HCA; what else was seen does not matter here.
            CheckStatus::NotNeeded => Some(Lack::of_hardware(
                check.found.split(" (").next().unwrap_or_default(),
            )),
            _ => Some(Lack::told_by(name, format!("{name}: {}", check.found))),
        }
    };
    let all =
        |names: &[&str]| -> Vec<Lack> { names.iter().filter_map(|name| lack(name)).collect() };
    let on_gpus = || all(&[gpu::CUDA, gpu::NVRTC, gpu::DEVICE_FILES]);
    // Kernels run somewhere: on CPU threads, or else on GPUs.
    let kernels = || match lack(host::COMPILER) {
        Some(lack) if !on_gpus().is_empty() => vec![lack],
        _ => Vec::new(),
    };
    let with_kernels = |names: &[&str]| [all(names), kernels()].concat();

    let mut ib = with_kernels(&[host::NETWORK, rdma::IBVERBS]);
    ib.extend(no_port(seen));
    let with_gpus = match lack(gpu::HCA_ACCESS) {
        None => ", memory of GPUs included",
        Some(_) if seen.has_gpu() => ", host memory only: see gpu memory for hcas",
        Some(_) => "",
    };
    let over_ib = match ib.is_empty() {
        true => format!("over InfiniBand and RoCE{with_gpus}"),
        false => "over InfiniBand and RoCE".to_owned(),
    };
    // Nobody has tried the backend for ConnectX; what the machine would lack is told with it.
    let mut connectx = vec![Lack {
        fix: "build with the feature gpunetio, and set GPUNETIO_LIBRARY".into(),
        check: String::new(),
        why: "it takes the feature gpunetio and the library that GPUNETIO_LIBRARY names, and nobody has tried it yet".into(),
    }];
    connectx.extend(all(&[
        gpu::CUDA,
        gpu::HCA_ACCESS,
        gpu::PEER_MAPPING,
        rdma::IBVERBS,
    ]));
    connectx.extend(match seen.adapters.is_empty() {
        true => Some(Lack::of_hardware(gpu::NO_CONNECTX)),
        false => no_port(seen),
    });
    vec![
        line(
            "proxy-ethernet",
            "over TCP, the default",
            with_kernels(&[host::NETWORK]),
        ),
        line("proxy-ipc", "over CUDA IPC, between GPUs", on_gpus()),
        line("proxy-ib", &over_ib, ib),
        line(
            "gpu-initiated soft0",
            "kernels post to a NIC in software",
            with_kernels(&[host::NETWORK, host::SOFTNIC]),
        ),
        line(
            "gpu-initiated connectx",
            "kernels post to a ConnectX, by GPUNetIO",
            connectx,
        ),
    ]
}

/// Something that a backend needs.
#[derive(Clone)]
struct Lack {
    /// What to do, where the check alone does not say it.
    fix: String,
    /// Name of the check that tells it.
    check: String,
    why: String,
}

impl Lack {
    fn told_by(check: &str, why: impl Into<String>) -> Self {
        Self {
            fix: String::new(),
            check: check.into(),
            why: why.into(),
        }
    }

    /// Of a card: checks of its drivers say no more than that they are not needed.
    fn of_hardware(why: &str) -> Self {
        let (card, check) = match why {
            gpu::NO_GPU => ("a GPU", gpu::GPU),
            gpu::NO_CONNECTX => ("a ConnectX", rdma::DRIVER),
            _ => ("an HCA", rdma::DRIVER),
        };
        Self {
            fix: format!("{card}: see {check}"),
            check: String::new(),
            why: why.into(),
        }
    }
}

fn no_port(seen: &Seen<'_>) -> Option<Lack> {
    let works = |device: &RdmaDevice| {
        let may_open = rdma::access(seen, device).status == CheckStatus::Ok;
        may_open && (device.ports.iter()).any(|port| usable(port, seen.live.wish).is_ok())
    };
    if seen.devices.iter().any(works) {
        return None;
    }
    Some(match (seen.has_hca(), seen.devices.is_empty()) {
        (false, _) => Lack::of_hardware("there is no HCA"),
        (true, without_driver) => Lack::told_by(
            if without_driver { rdma::DRIVER } else { "hca" },
            "no HCA can be opened and has a port that can be used",
        ),
    })
}

fn line(name: &str, what: &str, lacks: Vec<Lack>) -> Check {
    let name = format!("{PREFIX}{name}");
    if lacks.is_empty() {
        return Check::ok(name, format!("works here ({what})"));
    }
    let (mut reasons, mut fixes, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let add = |list: &mut Vec<String>, text: String| {
        if !text.is_empty() && !list.contains(&text) {
            list.push(text);
        }
    };
    for lack in lacks {
        add(&mut reasons, lack.why);
        add(&mut fixes, lack.fix);
        add(&mut names, lack.check);
    }
    let found = format!(
        "does not work here ({what}), because {}",
        reasons.join("; ")
    );
    if !names.is_empty() {
        fixes.push(format!("see {}", names.join(", ")));
    }
    Check::missing(name, found, fixes.join("; "))
}
