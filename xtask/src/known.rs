// SPDX-License-Identifier: MIT
//! Names that the suite and the benchmark know: what they would refuse, once a rank and after a build, is
//! refused at once. A test of their package holds these lists against its own.

/// Suites of the benchmark.
pub const SUITES: [&str; 13] = [
    "sweep",
    "ping-pong",
    "packet-ping-pong",
    "split",
    "one-way",
    "post",
    "bidirectional",
    "one-qp",
    "two-qp",
    "four-qp",
    "ib",
    "fifo",
    "join",
];

/// Backends whose kernels run on CPU threads.
pub const BACKENDS: [&str; 4] = [
    "proxy-ethernet",
    "proxy-ib-host",
    "proxy-ib-host-no-atomic",
    "gpu-initiated",
];

/// Backends whose kernels run on GPUs.
pub const GPU_BACKENDS: [&str; 4] = [
    "proxy-ethernet",
    "proxy-ipc",
    "gpu-initiated",
    "gpu-initiated-host-queue",
];

/// A part of a name of [`BACKENDS`].
pub(crate) fn backend(text: &str) -> Result<String, String> {
    part_of(&BACKENDS, text)
}

/// A part of a name of [`GPU_BACKENDS`].
pub(crate) fn gpu_backend(text: &str) -> Result<String, String> {
    part_of(&GPU_BACKENDS, text)
}

fn part_of(names: &[&str], text: &str) -> Result<String, String> {
    match names.iter().any(|name| name.contains(text)) {
        true => Ok(text.to_owned()),
        false => Err(format!("it is in none of the names: {}", names.join(", "))),
    }
}
