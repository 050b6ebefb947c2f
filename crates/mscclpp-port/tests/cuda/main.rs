// SPDX-License-Identifier: MIT
//! What only a GPU can show, and that its kernels compile. Without a driver the rest is ignored, with
//! the reason printed.

#[path = "../common/mod.rs"]
mod common;
mod data;
mod death;
mod kernels;
mod lent;
#[path = "../../src/testing/local.rs"]
mod local;
mod processes;
mod queue;
mod support;
mod trace;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp_device::cuda;

/// A test, its name, and how many GPUs it needs.
type Test = (&'static str, u32, fn());

const TESTS: &[&[Test]] = &[
    data::TESTS,
    kernels::TESTS,
    processes::TESTS,
    death::TESTS,
    queue::TESTS,
    lent::TESTS,
    trace::TESTS,
];

fn main() -> ExitCode {
    if processes::is_child() {
        return processes::child();
    }
    let arguments = Arguments::from_args();
    let gpus = cuda::gpu_count();
    let trials = TESTS.iter().copied().flatten().map(|&(name, needs, test)| {
        let missing = match &gpus {
            _ if needs == 0 => None,
            Ok(count) if *count >= needs => None,
            Ok(count) => Some(format!("needs {needs} GPUs, there are {count}")),
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = &missing {
            println!("SKIP cuda::{name}: {reason}");
        }
        let run = move || {
            std::panic::catch_unwind(test).map_err(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Failed::from(text.unwrap_or("a panic without text").to_owned())
            })
        };
        Trial::test(name, run).with_ignored_flag(missing.is_some())
    });
    let trials = trials.collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
