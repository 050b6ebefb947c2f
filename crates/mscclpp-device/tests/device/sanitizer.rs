// SPDX-License-Identifier: MIT
//! In a sanitized build (`cargo xtask test-cpu --sanitize`) kernels are checked too.

use std::process::Command;

use mscclpp_device::executor::LaunchDims;

use crate::support::{DEADLINE, Kernels, sanitizer};

const CHILD: &str = "MSCCLPP_TEST_WRITE_PAST_THE_MEMORY";

#[derive(Clone, Copy)]
#[repr(C)]
struct Doorbell {
    payload: u64,
    doorbell: u64,
    fence: u64,
}

fn write_past_the_memory() {
    let payload = vec![0_u64; 3].into_boxed_slice();
    let register = vec![0_u64; 1].into_boxed_slice();
    let args = Doorbell {
        payload: payload.as_ptr_range().end.expose_provenance() as u64,
        doorbell: register.as_ptr().expose_provenance() as u64,
        fence: 0,
    };
    let one = LaunchDims { grid: 1, block: 1 };
    let kernel = Kernels::of("channel").direct("doorbell");
    kernel.run(one, args, DEADLINE).unwrap();
}

#[test]
fn a_kernel_that_writes_past_its_memory_is_reported() {
    // In the process that this test starts, which ends in the kernel.
    if std::env::var_os(CHILD).is_some() {
        return write_past_the_memory();
    }
    if sanitizer().as_deref() != Some("address") {
        println!(
            "SKIP sanitizer::a_kernel_that_writes_past_its_memory_is_reported: this build has no \
             AddressSanitizer; cargo xtask test-cpu --sanitize makes one"
        );
        return;
    }
    let this = "sanitizer::a_kernel_that_writes_past_its_memory_is_reported";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", this, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        text.contains("AddressSanitizer: heap-buffer-overflow") && text.contains("doorbell"),
        "{text}"
    );
}
