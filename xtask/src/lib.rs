// SPDX-License-Identifier: MIT
//! The project's tasks, behind `cargo xtask`, and the local launcher.
//!
//! The launcher ([`launch`]) starts one process per rank on this machine and
//! gives each what a rank needs to find the others. It is a library module so
//! that tests can start ranks the way users do:
//!
//! ```no_run
//! use std::time::Duration;
//! use xtask::launch::Launch;
//! use xtask::supervise::Interrupt;
//!
//! let job = Launch::new(4, "target/release/my-program")
//!     .args(["--size", "4096"])
//!     .timeout(Duration::from_secs(60));
//! job.run(&Interrupt::none(), &mut xtask::launch::print_line)?;
//! # Ok::<(), xtask::launch::LaunchError>(())
//! ```
//!
//! Linux only, like everything the launcher starts.

pub mod bench;
pub mod bindings;
pub mod check;
pub mod cli;
pub mod closed_pipe;
pub mod dist;
pub mod docs;
pub mod doctor;
pub mod examples;
pub mod fetch;
pub mod fuzz;
pub mod gpu;
pub mod known;
pub mod launch;
pub mod loom;
pub mod mpi;
mod paths;
pub mod plot;
pub mod process;
pub mod rank_output;
pub mod repeat;
pub mod report;
pub mod rxe;
pub mod sanitize;
pub mod scale;
pub mod soak;
pub mod supervise;
pub mod tally;
pub mod test_cpu;
pub mod test_mp;
pub mod test_output;
pub mod thread_sanitizer;
pub mod trace;
pub mod verdict;
pub mod weak;
pub mod workspace;
