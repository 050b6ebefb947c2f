// SPDX-License-Identifier: MIT
//! Which machine this is.

use sha2::{Digest, Sha256};

/// A number that is the same for all processes of one booted machine and, with
/// overwhelming probability, different for any two machines: a hash of the host
/// name and the kernel's boot id. `MSCCLPP_HOSTID`, when set, stands in for both.
#[must_use]
pub fn id() -> u64 {
    match std::env::var_os("MSCCLPP_HOSTID") {
        // Any bytes tell machines apart.
        Some(given) if !given.is_empty() => digest(&[b"given", given.as_encoded_bytes()]),
        _ => {
            let uname = rustix::system::uname();
            let name = uname.nodename().to_string_lossy();
            // Absent outside Linux and in some containers; the name must do then.
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
            let boot = boot.as_deref().unwrap_or("").trim();
            digest(&[b"host", name.as_bytes(), boot.as_bytes()])
        }
    }
}

fn digest(parts: &[&[u8]]) -> u64 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let bytes: [u8; 32] = hash.finalize().into();
    u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_stable() {
        assert_eq!(id(), id());
    }

    #[test]
    fn names_that_concatenate_alike_differ() {
        assert_ne!(digest(&[b"ab", b"c"]), digest(&[b"a", b"bc"]));
    }
}
