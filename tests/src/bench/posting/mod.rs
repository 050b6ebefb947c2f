// SPDX-License-Identifier: MIT
//! What a post costs the GPU's thread that makes it, and when a NIC would hear of it.
//!
//! Alone, without ranks and peers: queues, doorbells and a FIFO are made by hand, where a channel has
//! them (rings, record and state in the GPU's memory, the doorbell and the FIFO's ring in host
//! memory). Nobody executes the requests; the rings are so large that no post waits for room. All
//! figures of a run are taken in turns, GPUNetIO's too if its headers are given: their ratios mean
//! something, even where the machine's speed changes.

#[cfg(feature = "cuda")]
mod gpunetio;
#[cfg(feature = "cuda")]
mod measure;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod report;
#[cfg(feature = "cuda")]
mod responder;
#[cfg(feature = "cuda")]
mod rush;

use std::path::Path;

/// Measures on the first GPU, and prints a table. `gpunetio` is a checkout of GPUNetIO.
///
/// # Errors
/// Where there is no GPU, or something does not work on it.
#[cfg(feature = "cuda")]
pub fn posting(quick: bool, gpunetio: Option<&Path>, json: Option<&Path>) -> anyhow::Result<()> {
    let report = measure::run(quick, gpunetio)?;
    println!("\n{report}");
    json.map_or(Ok(()), |path| report.write_json(path))
}

/// Says that this build has no part that uses GPUs.
///
/// # Errors
/// Always.
#[cfg(not(feature = "cuda"))]
pub fn posting(_: bool, _: Option<&Path>, _: Option<&Path>) -> anyhow::Result<()> {
    anyhow::bail!("this benchmark was built without GPUs: build it with --features cuda")
}
