// SPDX-License-Identifier: MIT
//! Libraries, drivers and device files of RDMA.

use super::hca::generation;
use super::{Check, Seen};
use crate::machine::RdmaDevice;

pub(super) const DRIVER: &str = "rdma driver";
pub(super) const IBVERBS: &str = "libibverbs";

pub(super) fn checks(seen: &Seen<'_>) -> Vec<Check> {
    vec![ibverbs(seen), mlx5(seen), driver(seen)]
}

fn ibverbs(seen: &Seen<'_>) -> Check {
    match &seen.live.ibverbs {
        Ok(file) => Check::ok(IBVERBS, file),
        Err(why) if !seen.has_hca() => {
            Check::not_needed(IBVERBS, format!("there is no HCA ({why})"))
        }
        Err(why) => Check::missing(
            IBVERBS,
            why,
            "apt install libibverbs1 ibverbs-providers, or set MSCCLPP_IBV_SO to its path",
        ),
    }
}

fn mlx5(seen: &Seen<'_>) -> Check {
    const NAME: &str = "libmlx5";
    match &seen.live.mlx5 {
        Ok(file) => Check::ok(NAME, file),
        Err(why) if seen.adapters.is_empty() => {
            Check::not_needed(NAME, format!("there is no HCA of mlx5 ({why})"))
        }
        Err(why) => Check::missing(NAME, why, "apt install ibverbs-providers"),
    }
}

fn driver(seen: &Seen<'_>) -> Check {
    let driven = |address| {
        let mut functions = seen
            .devices
            .iter()
            .filter_map(|device| device.function.as_ref());
        functions.any(|function| function.address == address)
    };
    let without: Vec<String> = (seen.adapters.iter())
        .filter(|adapter| !driven(adapter.address))
        .map(|adapter| format!("{} at {}", generation(adapter.device), adapter.address))
        .collect();
    let names: Vec<&str> = (seen.devices.iter().map(|device| device.name.as_str())).collect();
    match (names.is_empty(), without.is_empty()) {
        (true, true) => Check::not_needed(DRIVER, "there is no HCA"),
        (true, false) => Check::missing(
            DRIVER,
            format!("no RDMA device for {}", without.join(", ")),
            "modprobe mlx5_ib (on Ubuntu's cloud kernels: apt install linux-modules-extra-$(uname \
             -r)); for a container, on its host",
        ),
        (false, true) => Check::ok(DRIVER, names.join(", ")),
        // Given to somebody else, as a host does with functions that are not its container's.
        (false, false) => {
            let (names, without) = (names.join(", "), without.join(", "));
            Check::ok(
                DRIVER,
                format!("{names}; no RDMA device here for {without}"),
            )
        }
    }
}

pub(super) fn device_file(uverbs: &str) -> String {
    format!("/dev/infiniband/{uverbs}")
}

/// Whether this process can open a device.
pub(super) fn access(seen: &Seen<'_>, device: &RdmaDevice) -> Check {
    let name = format!("hca {} device file", device.name);
    let Some(uverbs) = &device.uverbs else {
        return Check::missing(name, "it has none", "modprobe ib_uverbs");
    };
    let file = device_file(uverbs);
    if !seen.root.exists(&file) {
        let found = format!("{file} is not there");
        return Check::missing(name, found, "docker run --device /dev/infiniband");
    }
    if seen.live.denied.contains(&file) {
        return Check::missing(
            name,
            format!("this user may not open {file}"),
            format!("chmod 0666 {file}, which is what the kernel makes it with"),
        );
    }
    Check::ok(name, file)
}
