// SPDX-License-Identifier: MIT
//! Without the feature `gpunetio`, a program has nothing of the library: no symbol, no path of a
//! header, no string.
//!
//! Looked at is the suite, which has all crates inside. The benchmark is not: built for GPUs it
//! has the source of a kernel inside that measures the library's device functions, and that is
//! compiled by who names a checkout on its command line.

use std::fs;

/// What every function, macro, file and message of the library has, and what this project calls
/// the functions under it.
const WORDS: [&str; 5] = ["doca_", "DOCA_", "libdoca", "gnx_", "mlx5_ifc"];

fn found(bytes: &[u8]) -> Vec<&'static str> {
    let holds = |word: &&str| bytes.windows(word.len()).any(|at| at == word.as_bytes());
    WORDS.into_iter().filter(holds).collect()
}

#[test]
fn the_suite_has_nothing_of_it() {
    let program = fs::read(env!("CARGO_BIN_EXE_conformance")).unwrap();
    assert_eq!(found(&program), [""; 0]);
    // What would be found if it were there.
    for word in WORDS {
        assert!(found(format!("\0{word}x\0").as_bytes()).contains(&word));
    }
    // And that this is a program with names in it.
    let name = b"mscclpp_softnic";
    assert!(program.windows(name.len()).any(|at| at == name));
}
