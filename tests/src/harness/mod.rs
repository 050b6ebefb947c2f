// SPDX-License-Identifier: MIT
//! Runs tests on all ranks in step.
//!
//! Every rank walks the same list. Before a body runs nothing is agreed; after it, the outcomes of
//! all ranks become one [`Verdict`]: a test passes when it passes everywhere, and is skipped when
//! everybody skips it. A body that panics fails. A body that is still running at its deadline
//! ends the run after the report, because a thread cannot be ended from outside.

mod context;
mod control;
mod filter;
mod halting;
mod job;
mod options;
mod process;
mod report;
mod runner;
mod test;

pub use context::{Context, Measurement, Stage};
pub use control::Control;
pub use filter::{Filter, selected};
pub use halting::Halting;
pub use job::{Job, Place, published, watch_parent};
pub use options::{Options, Profile};
pub use process::{cpu_time, is_guest, threads};
pub use report::Report;
pub use runner::run;
pub use test::{Body, Outcome, Registry, Skip, Stuck, Test, TestResult, Verdict};
