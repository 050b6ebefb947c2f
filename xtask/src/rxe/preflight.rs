// SPDX-License-Identifier: MIT
//! What has to be installed on this machine for a guest.

use std::fs;
use std::path::{Path, PathBuf};

use crate::launch::find_program;

use super::RxeError;

/// How to install it on Debian.
pub const APT: &str = "apt-get update && apt-get install -y --no-install-recommends \
    qemu-system-x86 busybox-static ibverbs-providers ibverbs-utils perftest openmpi-bin \
    iproute2 xz-utils";

/// Programs of the host and of the guest, which are the same files.
const PROGRAMS: [&str; 9] = [
    "qemu-system-x86_64",
    "busybox",
    "ip",
    "rdma",
    "tc",
    "xz",
    "mpirun",
    "ibv_devinfo",
    "ib_write_lat",
];

/// The provider for Soft-RoCE, where libibverbs looks for it.
const PROVIDER: &str = "/etc/libibverbs.d/rxe.driver";

/// The path of a program, also of one that only root has on the search path.
pub fn program(name: &str) -> Option<PathBuf> {
    let system = || Some(Path::new("/usr/sbin").join(name)).filter(|path| path.is_file());
    find_program(name).or_else(system)
}

/// Checks that everything is there.
///
/// # Errors
///
/// [`RxeError::Missing`], which names all that is not.
pub fn check() -> Result<(), RxeError> {
    let mut missing: Vec<&str> = PROGRAMS
        .into_iter()
        .filter(|name| program(name).is_none())
        .collect();
    if !Path::new(PROVIDER).exists() {
        missing.push("libibverbs' provider for Soft-RoCE");
    }
    if !missing.is_empty() {
        let what = format!("not installed: {}", missing.join(", "));
        return Err(RxeError::Missing { what });
    }
    // The guest's first program runs where there are no libraries.
    let busybox = program("busybox").and_then(|path| fs::read(path).ok());
    if busybox.is_none_or(|program| is_dynamic(&program)) {
        let what = "busybox is not linked statically".to_owned();
        return Err(RxeError::Missing { what });
    }
    Ok(())
}

/// Whether a 64-bit ELF program names an interpreter, which loads its libraries.
fn is_dynamic(program: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(program.get(at..at.checked_add(bytes)?)?);
        usize::try_from(u64::from_le_bytes(value)).ok()
    };
    let headers = || -> Option<(usize, usize, usize)> {
        program.starts_with(b"\x7fELF\x02\x01").then_some(())?;
        Some((number(32, 8)?, number(54, 2)?, number(56, 2)?))
    };
    let Some((at, size, count)) = headers() else {
        return true;
    };
    (0..count).any(|index| number(at.saturating_add(index * size), 4) == Some(INTERPRETER as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_dynamic_program_and_text_is_no_static_one() {
        let this = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(is_dynamic(&this));
        assert!(is_dynamic(b"#!/bin/sh\n"));
        assert!(is_dynamic(&this[..40]));
        // The same without its program headers.
        let mut none = this;
        none[56..58].fill(0);
        assert!(!is_dynamic(&none));
    }
}
