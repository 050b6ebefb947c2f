// SPDX-License-Identifier: MIT
//! Tests of the device headers, run by the executor.
//!
//! The kernels in `kernels/` are compiled with g++ when a test asks for them.
//! A check takes the compiled kernels and says what is wrong with them; the
//! tests of a module run it on the headers as they are, and `mutants` on copies
//! of the headers with one line spoilt, where it must find fault.

mod channel;
mod doorbell;
mod executor;
mod fifo;
mod grid;
mod mutants;
mod packet;
mod queue;
mod races;
mod sanitizer;
mod semaphore;
mod support;
mod trigger;
