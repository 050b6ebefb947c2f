// SPDX-License-Identifier: MIT
//! What every backend needs of the machine, and its limits.

use super::{Check, Seen};

/// Of less, large buffers cannot be registered.
const ENOUGH_LOCKED: u64 = 1 << 30;
/// The bit of `CAP_IPC_LOCK`, whose owners have no such limit.
const IPC_LOCK: u32 = 14;

pub(super) const COMPILER: &str = "c++ compiler";
pub(super) const NETWORK: &str = "network";
pub(super) const SOFTNIC: &str = "softnic";

pub(super) fn checks(seen: &Seen<'_>) -> Vec<Check> {
    let softnic = "soft0: a NIC in software, in every build";
    vec![
        network(seen),
        compiler(seen),
        memlock(seen),
        Check::ok(SOFTNIC, softnic),
    ]
}

fn network(seen: &Seen<'_>) -> Check {
    const UP: i64 = 1;
    const LOOPBACK: i64 = 1 << 3;
    let mut up = Vec::new();
    let mut only_here = true;
    for name in seen.root.names("/sys/class/net") {
        let flags = seen.root.number(&format!("/sys/class/net/{name}/flags"));
        let flags = flags.unwrap_or(0);
        if flags & UP != 0 {
            only_here &= flags & LOOPBACK != 0;
            up.push(name);
        }
    }
    if up.is_empty() {
        return Check::missing(NETWORK, "no network interface is up", "ip link set lo up");
    }
    let range = if only_here {
        " (ranks of this machine only)"
    } else {
        ""
    };
    Check::ok(NETWORK, format!("{}{range}", up.join(", ")))
}

fn compiler(seen: &Seen<'_>) -> Check {
    match &seen.live.compiler {
        Ok(found) => Check::ok(COMPILER, found),
        Err(why) => Check::missing(
            COMPILER,
            why,
            "apt install g++, or set CXX to a compiler of C++17",
        ),
    }
}

fn memlock(seen: &Seen<'_>) -> Check {
    const NAME: &str = "memlock";
    let limit = seen.root.text("/proc/self/limits").and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Max locked memory"))?;
        Some(line.split_whitespace().next()?.to_owned())
    });
    let capabilities = seen.root.text("/proc/self/status").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    let may_lock = capabilities.is_some_and(|bits| bits >> IPC_LOCK & 1 == 1);
    let (found, enough) = match limit.as_deref() {
        None => ("the limit cannot be read".to_owned(), false),
        Some("unlimited") => ("unlimited".to_owned(), true),
        Some(text) => {
            let bytes = text.parse().unwrap_or(0_u64);
            (format!("{bytes} bytes"), bytes >= ENOUGH_LOCKED)
        }
    };
    if may_lock && !enough {
        return Check::ok(NAME, format!("{found}, and CAP_IPC_LOCK, which lifts it"));
    }
    if enough {
        return Check::ok(NAME, found);
    }
    if !seen.has_hca() {
        return Check::not_needed(NAME, format!("{found}; there is no HCA"));
    }
    Check::missing(
        NAME,
        found,
        "a line `* - memlock unlimited` in /etc/security/limits.d/rdma.conf and a new login; \
         LimitMEMLOCK=infinity in a unit of systemd; docker run --ulimit memlock=-1",
    )
}
