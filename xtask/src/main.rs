// SPDX-License-Identifier: MIT
//! The project's tasks: `cargo xtask --help`.
fn main() {}
