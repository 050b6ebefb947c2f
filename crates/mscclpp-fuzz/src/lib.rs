// SPDX-License-Identifier: MIT
//! What the fuzz targets of the other crates share. A dependency of tests alone: a program that
//! contains it counts its allocations.
//!
//! A target is a test whose name begins with `fuzz_` and that hands a decoder its bytes by
//! [`bolero::check`](https://docs.rs/bolero). As a test it runs some thousand inputs; under
//! `cargo xtask fuzz`, as many as there is time for, guided by coverage.

#![forbid(unsafe_code)]

/// Bytes that a decoder may take for itself, whatever it reads: texts of errors among them.
const FIXED: u64 = 16 << 10;
/// Bytes that it may hold for each byte of input. An entry of a list takes a byte at least, and is
/// up to 200 when decoded; lists grow by doubling.
const FACTOR: u64 = 512;

/// Runs `decode`, which reads `input`, and checks that the memory that it held at any time is in
/// proportion to the input: a length that the input claims is not believed.
///
/// # Panics
/// When it held more than 16 KiB and 512 bytes for each byte of `input`.
pub fn in_proportion<T>(input: &[u8], decode: impl FnOnce() -> T) -> T {
    at_most(FIXED + FACTOR * input.len() as u64, decode)
}

/// As [`in_proportion`], for decoders that are meant to take so many bytes.
///
/// # Panics
/// When it held more than `bytes`.
pub fn at_most<T>(bytes: u64, decode: impl FnOnce() -> T) -> T {
    let mut decoded = None;
    let counted = allocation_counter::measure(|| decoded = Some(decode()));
    let held = counted.bytes_max;
    assert!(held <= bytes, "{held} bytes are held, and {bytes} may be");
    decoded.expect("it has returned")
}

// Under the name by which others know it.
#[cfg(test)]
extern crate self as mscclpp_fuzz;

// Here, because building the whole of xtask would take longer than the fuzzing.
#[cfg(test)]
#[path = "../../../xtask/src/check/third_party.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is a module of xtask")]
mod third_party;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_proportion_passes() {
        let copy = in_proportion(&[1; 100], || vec![1_u8; 100]);
        assert_eq!(copy.len(), 100);
        at_most(1 << 20, || drop(vec![0_u8; 1 << 20]));
    }

    #[test]
    #[should_panic = "bytes are held"]
    fn what_a_short_input_claims_is_noticed() {
        in_proportion(&[0xff; 4], || drop(Vec::<u8>::with_capacity(1 << 20)));
    }
}
