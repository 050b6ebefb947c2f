// SPDX-License-Identifier: MIT
//! Connections that are made and dropped leave nothing behind.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use mscclpp_bootstrap::Deadline;

use super::guest::{needed, objects};
use super::name;
use crate::backend::Backend;
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult, threads};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    // One kind of queue pair shows what a thousand of them leave.
    let (test, count) = match backend.accumulate {
        true => ("ThousandConnections", 50),
        false => ("HundredConnections", 5),
    };
    registry
        .add(name(test, backend), move |context| {
            needed(context)?;
            rounds(context, backend, count)
        })
        .ranks(2, 2)
        .seconds(240);
}

/// What this process and the kernel hold.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    files: usize,
    threads: usize,
    verbs: Vec<String>,
}

impl Held {
    fn now() -> anyhow::Result<Self> {
        Ok(Self {
            files: fs::read_dir("/proc/self/fd")?.count(),
            threads: threads().len(),
            verbs: objects()?,
        })
    }
}

/// Connections, some at a time, with both ends ready before they go.
fn rounds(context: &Context, backend: &'static Backend, count: u32) -> TestResult {
    const AT_A_TIME: u32 = 20;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(64)?;
    let _memory = fixture.register(&buffer)?;
    let peer = 1 - context.rank();
    let round = |number: u32| -> TestResult {
        context.stage(format!("round {number}"));
        let connections = (0..AT_A_TIME)
            .map(|tag| (fixture.communicator).connect(fixture.endpoint, peer, tag))
            .collect::<Result<Vec<_>, _>>()?;
        let connections = (connections.iter())
            .map(|connection| connection.get_by(context.deadline()))
            .collect::<Result<Vec<_>, _>>()?;
        for connection in &connections {
            connection.wait_connected(context.deadline())?;
        }
        // None is let go of while the other end still connects.
        fixture.meet()
    };
    // The first ones make what is kept for others.
    round(0)?;
    thread::sleep(Duration::from_millis(500));
    fixture.meet()?;
    let before = Held::now()?;
    fixture.meet()?;
    let start = Instant::now();
    for number in 1..=count {
        round(number)?;
    }
    let each = start.elapsed().as_secs_f64() * 1e3 / f64::from(count * AT_A_TIME);
    context.measure("a connection, made and dropped", each, "ms");
    context.stage("nothing is left");
    let deadline = Deadline::after(Duration::from_secs(10));
    loop {
        let after = Held::now()?;
        if after == before {
            break;
        }
        ensure!(!deadline.expired(), "before: {before:?}, after: {after:?}");
        thread::sleep(Duration::from_millis(20));
    }
    fixture.meet()
}
