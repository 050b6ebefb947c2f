// SPDX-License-Identifier: MIT
//! A registration of more than 4 GiB.

use std::fs;

use anyhow::ensure;
use mscclpp_port::{Buffer, IbMode};

use crate::backend::Backend;
use crate::fixture::Fixture;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, Range, Steps};

const GIB: u64 = 1 << 30;
const SIZE: u64 = 5 * GIB;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    registry
        .add_on(
            backend,
            format!(
                "PortChannelOneToOneTest.LargeRegistration{}",
                backend.suffix
            ),
            large,
        )
        .ranks(2, 2)
        .seconds(120);
}

/// Offsets above 4 GiB as they are: written by the host, or by a kernel that posts itself. Then by
/// kernels through a sub-range with an id of its own, which triggers need with their 32 bits for an
/// offset. Only touched pages take memory.
fn large(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = Buffer::new((backend.device)(context.rank()), SIZE);
    context.skip_unless(
        buffer
            .as_ref()
            .err()
            .map(|error| format!("no room: {error}")),
    )?;
    let buffer = buffer?;
    context.skip_unless(no_room_to_pin(context, backend))?;
    let memory = fixture.register(&buffer)?;
    ensure!(memory.size() == SIZE, "registered {} bytes", memory.size());
    let link = fixture.pair(0, &memory, &memory)?;
    ensure!(
        link.remote.size() == SIZE,
        "the peer registered {} bytes",
        link.remote.size()
    );
    let me = context.rank() as u8;
    let text = |place: u8, rank: u8| [b"above 4 GiB, place ".as_slice(), &[place, rank]].concat();
    let deadline = context.deadline();
    // Each rank sends from an even gap and receives in an odd one.
    let place = |rank: u8, number: u64| 4 * GIB + 4096 * (2 * number + u64::from(rank)) + 77;
    let len = text(0, me).len() as u64;

    context.stage("write at offsets as they are");
    let at = place(me, 0);
    buffer.write(at, &text(0, me))?;
    // Across the border of 4 GiB, in one piece.
    let border = 4 * GIB - 3 - 4096 * u64::from(me);
    buffer.write(border, &text(1, me))?;
    if backend.posts_to_queue() {
        let put = |at| (0, Call::Put(Range::same(link.dst, link.src, at, len)));
        let calls = [put(at), put(border), (0, Call::Flush)];
        Steps::run(&[link.base()], &calls, deadline)?;
    } else {
        for at in [at, border] {
            link.connection.write(&link.remote, at, &memory, at, len)?;
        }
        link.connection.flush(deadline)?;
    }

    context.stage("put through a sub-range");
    let upper = 4 * GIB..SIZE;
    let dst = link
        .remote
        .sub_range(upper.start, upper.end - upper.start)?;
    let src = memory.sub_range(upper.start, upper.end - upper.start)?;
    let (dst, src) = (
        fixture.service.add_memory(dst)?,
        fixture.service.add_memory(src)?,
    );
    let at = place(me, 1);
    buffer.write(at, &text(2, me))?;
    let last = SIZE - len - 4096 * u64::from(me);
    buffer.write(last, &text(3, me))?;
    let put = |at: u64| Call::PutWithSignal(Range::same(dst, src, at - 4 * GIB, len));
    let calls = [
        (0, put(at)),
        (0, put(last)),
        (0, Call::Wait),
        (0, Call::Wait),
        (0, Call::Flush),
    ];
    Steps::run(&[link.base()], &calls, deadline)?;
    fixture.meet()?;

    let other = 1 - me;
    for (what, at, expected) in [
        ("written as it is", place(other, 0), text(0, other)),
        (
            "written across 4 GiB",
            4 * GIB - 3 - 4096 * u64::from(other),
            text(1, other),
        ),
        ("put through a sub-range", place(other, 1), text(2, other)),
        (
            "put at the end of it",
            SIZE - len - 4096 * u64::from(other),
            text(3, other),
        ),
    ] {
        let mut found = vec![0; expected.len()];
        buffer.read(at, &mut found)?;
        ensure!(found == expected, "{what}: found {found:?}");
        // Nothing of it at the offset's low 32 bits.
        buffer.read(at & u64::from(u32::MAX), &mut found)?;
        let masked = at > u64::from(u32::MAX) && found.iter().any(|byte| *byte != 0);
        ensure!(
            !masked,
            "{what}: also written at the offset without its upper bits"
        );
    }
    fixture.meet()
}

/// An HCA pins all that it reaches, touched or not.
fn no_room_to_pin(context: &Context, backend: &Backend) -> Option<String> {
    if !matches!(backend.mode, IbMode::Host | IbMode::HostNoAtomic) {
        return None;
    }
    let needed = context.ranks() as u64 * (SIZE + GIB);
    let facts = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = (facts.lines())
        .find_map(|line| {
            line.strip_prefix("MemAvailable:")?
                .trim()
                .strip_suffix(" kB")
        })
        .and_then(|kib| kib.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10);
    (available < needed).then(|| {
        let (needed, available) = (needed / GIB, available / GIB);
        format!("it is pinned, which takes {needed} GiB of memory; there are {available}")
    })
}
