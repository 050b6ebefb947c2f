// SPDX-License-Identifier: MIT
//! What does not fit is refused before anything is posted.

use anyhow::{Context as _, ensure};
use mscclpp_port::{MemoryId, Status};

use super::requests;
use crate::backend::Backend;
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Posts, Range, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    let name = format!(
        "PortChannelErrorTest.GpuNetIoNothingIsPostedOutOfBounds{}",
        backend.suffix
    );
    registry.add_on(backend, name, nothing_posted).ranks(2, 2);
}

fn nothing_posted(context: &Context, backend: &'static Backend) -> TestResult {
    const SIZE: u64 = 256;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(SIZE + 8)?;
    // Starts at 4 bytes, so that offset 4 is aligned and offset 0 is not.
    let memory = fixture.register_range(&buffer, 4..SIZE + 4)?;
    let link = fixture.pair(0, &memory, &memory)?;
    let posts = || Posts::of(&link.base()).context("a queue");
    fixture.meet()?;
    let before = (requests(&fixture)?, posts()?);
    let sound = link.first(8);
    let range = |dst_offset, src_offset, size| Range {
        dst_offset,
        src_offset,
        size,
        ..sound
    };
    let ids = |dst: u32, src: u32| Range {
        dst: dst.into(),
        src: src.into(),
        ..sound
    };
    let (dst, src) = (u32::from(link.dst), u32::from(link.src));
    let ranges = [
        range(SIZE - 7, 0, 8),
        range(0, SIZE - 7, 8),
        range(SIZE + 1, 0, 0),
        range(0, 0, SIZE + 1),
        range(u64::MAX, 0, 2),
        range(0, u64::MAX, 2),
        range(u64::MAX - 6, u64::MAX - 6, 8),
        range(1 << 63, 0, 1 << 63),
        range(1, 1, u64::MAX),
        ids(100, src),
        ids(dst, 100),
        ids(511, src),
        ids(512, src),
        ids(dst, u32::MAX),
        ids(src, src),
        ids(dst, dst),
    ];
    let mut calls = Vec::new();
    for range in ranges {
        calls.push((0, Call::Put(range)));
        calls.push((0, Call::PutWithSignal(range)));
        calls.push((0, Call::PutWithSignalAndFlush(range)));
    }
    for (memory, offset) in [
        (link.dst, 0),
        (link.dst, SIZE - 4),
        (link.dst, SIZE + 4),
        (link.dst, u64::MAX - 3),
        (link.src, 4),
        (MemoryId::from(100), 4),
        (MemoryId::from(512), 4),
    ] {
        calls.push((0, Call::Accumulate(memory, offset, 1)));
    }
    let done = Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
    for (done, (_, call)) in done.iter().zip(&calls) {
        let status = done.status()?;
        ensure!(
            status == Status::InvalidArgument,
            "{call:?} returns {status:?}"
        );
    }
    ensure!(
        before == (requests(&fixture)?, posts()?),
        "something was posted: {:?} became {:?}",
        before.1,
        posts()?
    );
    fixture.meet()?;
    // What just fits is posted.
    let calls = [
        (0, Call::Put(range(SIZE - 8, SIZE - 8, 8))),
        (0, Call::Put(range(SIZE, SIZE, 0))),
        (0, Call::Put(range(0, 0, SIZE))),
        (0, Call::Accumulate(link.dst, 4, 0)),
        (0, Call::Accumulate(link.dst, SIZE - 12, 0)),
        (0, Call::PutWithSignalAndFlush(sound)),
        (0, Call::Wait),
    ];
    Steps::run(&[link.base()], &calls, context.deadline())?;
    fixture.meet()
}
