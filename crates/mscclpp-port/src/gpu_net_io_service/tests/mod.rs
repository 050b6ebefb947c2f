// SPDX-License-Identifier: MIT
//! Setups of several ranks, which are threads, over the project's own bootstrap and NICs in software.

mod deaths;
mod demand;
mod exchange;
mod faults;
mod faulty;
mod leaks;
mod mail;
mod points;
mod usage;
mod world;
