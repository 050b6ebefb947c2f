// SPDX-License-Identifier: MIT
//! The suite as one program, whose ranks are threads.

use std::process::{Command, Output};

fn suite(args: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_conformance"))
        .arg("--threads=2")
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn two_threads_are_two_ranks() {
    let (output, text) = suite(&["--filter=DirectConstruction"]);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("PASS PortChannelOneToOneTest.DirectConstructionEthernet"));
    assert!(text.contains("PASS PortChannelOneToOneTest.DirectConstructionIbGpuNetIoMode"));
    assert!(text.contains(" passed, 0 failed, "), "{text}");
}

/// Rows of GPUs run, or say what is missing; nothing else is run in their place.
#[test]
fn without_a_gpu_its_rows_are_skipped_with_the_reason() {
    let (output, text) = suite(&["--executor=cuda", "--filter=DirectConstruction"]);
    assert!(output.status.success(), "{text}");
    let names: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("DirectConstruction"))
        .collect();
    assert!(names.len() >= 3, "{text}");
    for line in names {
        let reason = line
            .strip_prefix("SKIP ")
            .and_then(|line| line.split_once(": "));
        let told = reason
            .is_some_and(|(_, reason)| reason.contains("CUDA") || reason.contains("feature cuda"));
        assert!(told || line.starts_with("PASS "), "{line}");
    }
}
