// SPDX-License-Identifier: MIT
//! The multi-process conformance suite and the benchmark: a process per rank.
