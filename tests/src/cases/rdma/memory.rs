// SPDX-License-Identifier: MIT
//! What the peer's memory looks like behind atomics and signals.

use std::thread;
use std::time::Instant;

use anyhow::ensure;
use mscclpp_port::Buffer;

use super::name;
use crate::backend::Backend;
use crate::fixture::{Fixture, Link};
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Range, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    registry
        .add_on(backend, name("MemoryConsistency", backend), consistency)
        .ranks(2, 2)
        .seconds(180);
    if backend.accumulate {
        registry
            .add_on(backend, name("SimpleAtomicAdd", backend), atomic_add)
            .perf()
            .ranks(2, 2);
    }
}

/// 64-bit words, of which the first is written behind the others.
const WORDS: u64 = 65_537;
const BYTES: u64 = 8 * WORDS;

/// Rank 1 writes all words but the first by one request, and then adds to the first one. Whoever sees
/// that sees the others: rank 0 looks at them from the last to the first. Where there are no atomics,
/// rank 1 signals instead.
fn consistency(context: &Context, backend: &'static Backend) -> TestResult {
    let iterations = context.profile().pick(150, 10_000);
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(BYTES)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    fixture.meet()?;
    for iteration in 1..=iterations {
        context.stage(format!("iteration {iteration}"));
        if context.rank() == 1 {
            send(context, backend, &link, &buffer, iteration)?;
            continue;
        }
        if backend.accumulate {
            while buffer.load_u64(0)? != iteration {
                ensure!(!context.deadline().expired(), "the first word stays old");
                thread::yield_now();
            }
        } else {
            Steps::run(&[link.base()], &[(0, Call::Wait)], context.deadline())?;
        }
        check(&buffer, iteration)?;
        Steps::run(&[link.base()], &[(0, Call::Signal)], context.deadline())?;
    }
    fixture.meet()
}

/// Rank 1's part of an iteration.
fn send(
    context: &Context,
    backend: &Backend,
    link: &Link,
    buffer: &Buffer,
    iteration: u64,
) -> TestResult {
    let words: Vec<u8> = (1..WORDS).flat_map(|_| iteration.to_le_bytes()).collect();
    buffer.write(8, &words)?;
    let put = Call::Put(Range::same(link.dst, link.src, 8, BYTES - 8));
    let tell = match backend.accumulate {
        true => Call::Accumulate(link.dst, 0, 1),
        false => Call::Signal,
    };
    let mut calls = vec![(0, put), (0, tell), (0, Call::Wait)];
    if iteration.is_multiple_of(16) {
        calls.push((0, Call::Flush));
    }
    Steps::run(&[link.base()], &calls, context.deadline())
}

/// All words but the first are of the iteration.
fn check(buffer: &Buffer, iteration: u64) -> TestResult {
    /// It divides what is looked at.
    const CHUNK: u64 = 4096;
    let mut chunk = [0; CHUNK as usize];
    for number in (0..(BYTES - 8) / CHUNK).rev() {
        let start = 8 + number * CHUNK;
        buffer.read(start, &mut chunk)?;
        for (word, bytes) in chunk.chunks_exact(8).enumerate().rev() {
            let word = start / 8 + word as u64;
            ensure!(
                bytes == iteration.to_le_bytes(),
                "word {word} is {bytes:?} in iteration {iteration}"
            );
        }
    }
    Ok(())
}

/// Adds in a row, without anything else.
fn atomic_add(context: &Context, backend: &'static Backend) -> TestResult {
    let count = context.profile().pick(1000, 100_000);
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(8)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    fixture.meet()?;
    if context.rank() == 1 {
        let mut calls = vec![(0, Call::Accumulate(link.dst, 0, 3)); count as usize];
        calls.push((0, Call::Flush));
        let start = Instant::now();
        Steps::run(&[link.base()], &calls, context.deadline())?;
        let each = start.elapsed().as_secs_f64() * 1e6 / count as f64;
        context.measure("add, in a row", each, "us");
    }
    fixture.meet()?;
    if context.rank() == 0 {
        let sum = buffer.load_u64(0)?;
        ensure!(sum == 3 * count, "{sum} after {count} times 3");
    }
    fixture.meet()
}
