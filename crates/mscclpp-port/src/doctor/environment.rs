// SPDX-License-Identifier: MIT
//! The environment's variables, each looked at by those who read it.

use std::collections::BTreeSet;
use std::ffi::OsString;

use mscclpp_bootstrap::environment::{self, Fault};

use super::{Check, Seen};
use crate::env::Env;

const NAME: &str = "environment";
pub(super) const PREFIX: &str = "MSCCLPP_";

/// Every variable of this project, as `docs/tuning.md` has them.
pub(super) const KNOWN: &str = "
    MSCCLPP_ROOT MSCCLPP_SECRET MSCCLPP_SECRET_FILE MSCCLPP_RANK MSCCLPP_WORLD_SIZE
    MSCCLPP_LOCAL_RANK MSCCLPP_LOCAL_SIZE MSCCLPP_SOCKET_IFNAME MSCCLPP_SOCKET_FAMILY
    MSCCLPP_COMM_ID MSCCLPP_HOSTID MSCCLPP_BOOTSTRAP_TIMEOUT MSCCLPP_SILENCE_TIMEOUT
    MSCCLPP_CONNECTION_TIMEOUT MSCCLPP_SELF_TEST_TIMEOUT MSCCLPP_PROXY_STOP_TIMEOUT
    MSCCLPP_GOODBYE_TIMEOUT MSCCLPP_LINGER_TIMEOUT MSCCLPP_TEARDOWN_TIMEOUT MSCCLPP_PROOF_TIMEOUT
    MSCCLPP_GPU_COPY_TIMEOUT MSCCLPP_IPC_ANSWER_TIMEOUT MSCCLPP_HCA_DEVICES MSCCLPP_IBV_MODE
    MSCCLPP_IB_GID_INDEX MSCCLPP_IB_SL MSCCLPP_IB_TC MSCCLPP_IB_TIMEOUT MSCCLPP_IB_RETRY_CNT
    MSCCLPP_IBV_SO MSCCLPP_NVRTC_SO MSCCLPP_CACHE_DIR MSCCLPP_GPU_ARCHS
    MSCCLPP_GPUNETIO_QPS_PER_PEER MSCCLPP_WEAK_SEEDS MSCCLPP_REWRITE_REPORTS MSCCLPP_CI_REQUIRE
    MSCCLPP_RXE_CACHE";

/// What programs of the project tell each other, and what is kept for those who come from MSCCL++'s
/// tests.
const INTERNAL: &str = "MSCCLPP_SANITIZED MSCCLPP_EP_GPUNETIO_QPS_PER_PEER";
const OF_TESTS: &str = "MSCCLPP_TEST_";

/// Those of MSCCL++ that mean nothing here, as the page of `env` has them, and what others begin with.
pub(super) const ELSEWHERE: &str = "
    MSCCLPP_DEBUG MSCCLPP_DEBUG_SUBSYS MSCCLPP_DEBUG_FILE MSCCLPP_LOG_LEVEL MSCCLPP_LOG_SUBSYS
    MSCCLPP_LOG_FILE MSCCLPP_NPKIT_DUMP_DIR MSCCLPP_CUDAIPC_USE_DEFAULT_STREAM
    MSCCLPP_FORCE_DISABLE_NVLS MSCCLPP_FORCE_DISABLE_GDR";
const OF_NCCL: &str = "MSCCLPP_NCCL_";

/// How many letters a misspelt name may have wrong.
const MISSPELT: usize = 4;

pub(super) fn check(seen: &Seen<'_>) -> Check {
    let set = &seen.live.environment;
    if set.is_empty() {
        return Check::ok(NAME, "no variable MSCCLPP_* is set");
    }
    let variable = |name: &str| set.get(name).cloned();
    let mut faults: Vec<Fault> = set.keys().filter_map(|name| unknown(name)).collect();
    faults.extend(environment::faults(variable));
    faults.extend(Env::faults(|name| Some(text(&variable(name)?))));
    faults.extend(devices(seen));
    faults.extend(libraries(seen));
    faults.extend(architectures(seen));
    // In the order of the names.
    faults.sort_by(|a, b| a.variable.cmp(&b.variable));
    if faults.is_empty() {
        let names: Vec<&str> = set.keys().map(String::as_str).collect();
        return Check::ok(NAME, names.join(", "));
    }
    let wrong: BTreeSet<&str> = faults.iter().map(|fault| fault.variable.as_str()).collect();
    let others: Vec<&str> = (set.keys().map(String::as_str))
        .filter(|name| !wrong.contains(name))
        .collect();
    let mut found: Vec<String> = faults.iter().map(|fault| line(&fault.why)).collect();
    if !others.is_empty() {
        found.push(format!("can be used: {}", others.join(", ")));
    }
    let fixes: Vec<String> = faults.iter().map(|fault| line(&fault.fix)).collect();
    Check::missing(NAME, found.join("; "), fixes.join("; "))
}

fn text(value: &OsString) -> String {
    value.to_string_lossy().into_owned()
}

/// In one line, whatever was written into a variable.
fn line(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

fn unknown(name: &str) -> Option<Fault> {
    let is_in = |list: &str| list.split_whitespace().any(|known| known == name);
    if is_in(KNOWN) || is_in(INTERNAL) || name.starts_with(OF_TESTS) {
        return None;
    }
    let unset = format!("unset {name}");
    if is_in(ELSEWHERE) || name.starts_with(OF_NCCL) {
        let why = format!("{name} is one of MSCCL++'s and means nothing here");
        return Some(Fault::new(name, why, unset));
    }
    let nearest = KNOWN
        .split_whitespace()
        .map(|known| (distance(name, known), known))
        .min()
        .filter(|(distance, _)| *distance <= MISSPELT);
    let fix = match nearest {
        Some((_, known)) => format!("{known} instead of {name}"),
        None => format!("{unset}; docs/tuning.md lists those that there are"),
    };
    Some(Fault::new(name, format!("nothing reads {name}"), fix))
}

/// How many letters have to be put in, left out or replaced.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = before + usize::from(x != y);
            before = row[j + 1];
            row[j + 1] = replaced.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// HCAs that are named and are not there.
fn devices(seen: &Seen<'_>) -> Option<Fault> {
    const NAME: &str = "MSCCLPP_HCA_DEVICES";
    let value = text(seen.live.environment.get(NAME)?);
    let there: Vec<&str> = (seen.devices.iter().map(|device| device.name.as_str())).collect();
    let is_there = |name: &str| mscclpp_softnic::Device::is_name(name) || there.contains(&name);
    let absent: Vec<&str> = (value.split(',').map(str::trim))
        // An empty name keeps the place of one that nobody uses.
        .filter(|name| !name.is_empty() && !is_there(name))
        .collect();
    if absent.is_empty() {
        return None;
    }
    let why = format!("{NAME}={value}: there is no {}", absent.join(", "));
    let names = [there, vec!["soft0"]].concat().join(", ");
    Some(Fault::new(NAME, why, format!("{NAME} of {names}")))
}

/// Libraries that are named and cannot be used.
fn libraries(seen: &Seen<'_>) -> Vec<Fault> {
    let libraries = [
        ("MSCCLPP_IBV_SO", &seen.live.ibverbs),
        ("MSCCLPP_NVRTC_SO", &seen.live.nvrtc),
    ];
    let fault = |(name, loaded): (&str, &Result<String, String>)| {
        let path = text(seen.live.environment.get(name)?);
        let why = loaded.as_ref().err().filter(|_| !path.is_empty())?;
        let why = format!("{name}={path}: {why}");
        Some(Fault::new(name, why, format!("{name}=PATH, or unset it")))
    };
    libraries.into_iter().filter_map(fault).collect()
}

#[cfg(feature = "cuda")]
fn architectures(seen: &Seen<'_>) -> Option<Fault> {
    use mscclpp_device::nvrtc::{ARCHS_VARIABLE, Arch, NvrtcError};
    let value = text(seen.live.environment.get(ARCHS_VARIABLE)?);
    let error = match Arch::list(&value).err()? {
        // Its own words have the variable, too.
        NvrtcError::Arch { text } => format!("{text:?} is no GPU architecture"),
        error => error.to_string(),
    };
    let why = format!("{ARCHS_VARIABLE}={value}: {error}");
    let fix = format!("{ARCHS_VARIABLE}=80,90,100,120");
    Some(Fault::new(ARCHS_VARIABLE, why, fix))
}

/// A build without kernels on GPUs does not read them.
#[cfg(not(feature = "cuda"))]
fn architectures(_: &Seen<'_>) -> Option<Fault> {
    None
}
