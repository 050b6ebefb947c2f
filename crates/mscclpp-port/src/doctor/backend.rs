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
        let why = match check.status {
            CheckStatus::Ok => return None,
            // There is no GPU, or no HCA; what else was seen does not matter here.
            CheckStatus::NotNeeded => check.found.split(" (").next().unwrap_or_default().into(),
            _ => format!("{name}: {}", check.found),
        };
        let check = name.to_owned();
        Some(Lack { check, why })
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
        true => Some(Lack {
            check: String::new(),
            why: "there is no ConnectX".into(),
        }),
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
    /// Name of the check that tells it.
    check: String,
    why: String,
}

fn no_port(seen: &Seen<'_>) -> Option<Lack> {
    let works = |device: &RdmaDevice| {
        let may_open = rdma::access(seen, device).status == CheckStatus::Ok;
        may_open && (device.ports.iter()).any(|port| usable(port, seen.live.wish).is_ok())
    };
    if seen.devices.iter().any(works) {
        return None;
    }
    let why = match seen.has_hca() {
        true => "no HCA can be opened and has a port that can be used",
        false => "there is no HCA",
    };
    Some(Lack {
        check: if seen.has_hca() {
            "hca".into()
        } else {
            String::new()
        },
        why: why.into(),
    })
}

fn line(name: &str, what: &str, lacks: Vec<Lack>) -> Check {
    let name = format!("{PREFIX}{name}");
    if lacks.is_empty() {
        return Check::ok(name, format!("works here ({what})"));
    }
    let (mut reasons, mut names) = (Vec::new(), Vec::new());
    for lack in lacks {
        if !reasons.contains(&lack.why) {
            reasons.push(lack.why);
        }
        if !lack.check.is_empty() {
            names.push(lack.check);
        }
    }
    let found = format!(
        "does not work here ({what}), because {}",
        reasons.join("; ")
    );
    let fix = match names.is_empty() {
        true => String::new(),
        false => format!("see {}", names.join(", ")),
    };
    Check::missing(name, found, fix)
}
