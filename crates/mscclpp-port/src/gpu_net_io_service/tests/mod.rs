// SPDX-License-Identifier: MIT
//! Setups of several ranks, which are threads, over the project's own bootstrap and NICs in software.

mod deaths;
mod demand;
mod exchange;
mod faults;
mod faulty;
mod flood;
mod leaks;
mod mail;
mod points;
#[cfg(feature = "gpunetio-soft")]
mod seam;
mod usage;
mod world;
