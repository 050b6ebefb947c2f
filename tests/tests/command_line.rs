// SPDX-License-Identifier: MIT
//! What `xtask` knows of the programs of this package is so, and they end quietly when nobody reads.

use std::io;
use std::process::{Command, Stdio};

use mscclpp_conformance::backend::Executor;
use mscclpp_conformance::bench::SUITES;
use xtask::known;

#[test]
fn xtask_knows_the_names_of_suites_and_backends() {
    assert_eq!(SUITES.map(|suite| suite.name), known::SUITES);
    for (executor, known) in [
        (Executor::Host, known::BACKENDS),
        (Executor::Cuda, known::GPU_BACKENDS),
    ] {
        let names: Vec<_> = executor
            .backends()
            .map(|(_, backend)| backend.name)
            .collect();
        assert_eq!(names, known);
    }
}

#[test]
fn programs_that_nobody_reads_end_without_a_word() {
    let list = Command::new(env!("CARGO_BIN_EXE_conformance"));
    let doctor = Command::new(env!("CARGO_BIN_EXE_doctor"));
    for (mut command, argument) in [(list, "--list"), (doctor, "--json")] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        command.arg(argument).stdin(Stdio::null()).stdout(writer);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(141), "{command:?}: {said}");
        assert!(!said.contains("panicked"), "{command:?}: {said}");
    }
}
