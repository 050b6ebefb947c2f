// SPDX-License-Identifier: MIT
//! Many posts through small rings: room, counts, wraps, budgets.

use std::mem::offset_of;
use std::time::Duration;

use mlx5_queue::Opcode;
use mscclpp_device::abi::{PortChannelDeviceHandle, QueueState};
use mscclpp_device::executor::memory::Access;
use mscclpp_device::executor::{LaunchDims, Model};
use mscclpp_softnic::HostBuffer;

use crate::support::script::{self, FLUSH, PUT_SIGNAL, SIGNAL};
use crate::support::{
    Cells, Kernels, Op, Outcome, Rig, Runner, Setup, all_ok, ensure, equal, within,
};

/// Twin of the kernel's arguments.
#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    channel: PortChannelDeviceHandle,
    kind: u64,
    rounds: u64,
    bytes: u64,
    source: u64,
    slots: u64,
    flush_every: u64,
    together: u64,
    done: u64,
    status: u64,
}

/// Posts of several threads, each `rounds` times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) kind: u32,
    pub(crate) rounds: u64,
    pub(crate) bytes: u64,
    /// Whether each piece is stored before it is put.
    pub(crate) store: bool,
    /// Pieces of each poster, taken in turn.
    pub(crate) slots: u64,
    pub(crate) flush_every: u64,
    pub(crate) blocks: u32,
    /// Whether the threads of a block store a piece together, which the first
    /// posts.
    pub(crate) together: bool,
    pub(crate) limit: Duration,
}

impl Stream {
    /// One block, no payload of its own, one flush at the end.
    pub(crate) fn new(kind: u32, rounds: u64) -> Self {
        Self {
            kind,
            rounds,
            bytes: 8,
            store: false,
            slots: 1,
            flush_every: u64::MAX,
            blocks: 1,
            together: false,
            limit: within(100),
        }
    }

    /// What each word of the piece of a round holds.
    pub(crate) fn payload(piece: u64, round: u64) -> u64 {
        (piece << 32) + round + 1
    }

    /// Runs it on end 0 with `threads` in each block. All posters must do all rounds.
    pub(crate) fn run(
        &self,
        rig: &Rig,
        kernels: &Kernels,
        threads: u32,
        model: Option<Model>,
    ) -> Outcome {
        let by_block = if self.together { 1 } else { threads };
        let posters = (self.blocks * by_block) as usize;
        let (done, status) = (Cells::new(posters), Cells::new(posters));
        let source = rig.ends[0].source.address();
        let args = Args {
            channel: rig.channel(0),
            kind: self.kind.into(),
            rounds: self.rounds,
            bytes: self.bytes,
            source: if self.store { source } else { 0 },
            slots: self.slots,
            flush_every: self.flush_every,
            together: self.together.into(),
            done: done.address(),
            status: status.address(),
        };
        let kernel = match model {
            None => kernels.direct("queue_stream"),
            Some(_) => kernels.modelled("queue_stream"),
        };
        let dims = LaunchDims {
            grid: self.blocks,
            block: threads,
        };
        let ran = rig.run(kernel, dims, args, model, self.limit);
        let ended = ran
            .and_then(|()| equal("statuses", status.all(), vec![0; posters]))
            .and_then(|()| equal("rounds", done.all(), vec![self.rounds; posters]));
        ended.map_err(|fault| {
            let own = &rig.ends[0];
            let at = (own.reserved(), own.completed());
            let seen = rig.violations();
            format!("{fault}; at {at:?}, error {:x?}, {seen:?}", own.error())
        })
    }
}

/// Posts `count` signals and as many puts; all must be counted, each once.
fn counted(kernels: &Kernels, setup: Setup, threads: u32, rounds: u64, limit: u64) -> Outcome {
    let what = format!("{:?}, start {}", setup.form, setup.start);
    let (rig, start) = (Rig::new(setup.clone()), setup.start);
    let stream = Stream {
        limit: Duration::from_secs(limit),
        ..Stream::new(PUT_SIGNAL, rounds)
    };
    stream
        .run(&rig, kernels, threads, None)
        .map_err(|fault| format!("{what}: {fault}"))?;
    let [own, peer] = &rig.ends;
    let count = rounds * u64::from(threads);
    equal("signals", peer.signals(), count)?;
    equal("reserved", own.reserved(), start + 2 * count)?;
    equal("completed", own.completed(), start + 2 * count)?;
    let counters = rig.devices[0].counters();
    equal("writes", counters.requests_of(Opcode::Write), count)?;
    equal("sums", counters.requests_of(Opcode::FetchAdd), count)?;
    // The last request of each piece completes, and a piece is half of the ring at most.
    let each = setup.signal_every || setup.blocks == 2;
    let completions = if each { 2 * count } else { count };
    equal("completions", counters.completions, completions)?;
    equal("error", own.error().0, 0)?;
    rig.no_violations()
}

/// 200000 posts through 64 blocks.
pub(crate) fn many_posts(kernels: &Kernels) -> Outcome {
    counted(kernels, Setup::exclusive(), 1, 100_000, 100)?;
    counted(kernels, Setup::default(), 4, 25_000, 100)
}

#[test]
fn two_hundred_thousand_posts_go_through_sixty_four_blocks() {
    many_posts(&Kernels::of("queue")).unwrap();
}

/// A few laps; short, so that one that stands still is found soon.
pub(crate) fn laps(kernels: &Kernels) -> Outcome {
    for (blocks, start, rounds) in [(2, 0, 60), (8, 1 << 16, 300), (64, 7 << 32, 500)] {
        let few = |setup| Setup {
            blocks,
            start,
            ..setup
        };
        counted(kernels, few(Setup::exclusive()), 1, rounds, 10)?;
        counted(kernels, few(Setup::default()), 2, rounds / 2, 10)?;
    }
    Ok(())
}

#[test]
fn a_few_laps_are_counted_in_rings_of_any_size() {
    laps(&Kernels::of("queue")).unwrap();
}

/// An owner who knows of room does not look at the count of what is complete: once in a lap it does.
pub(crate) fn looks_at_completions(kernels: &Kernels) -> Outcome {
    const BLOCKS: u64 = 16;
    let rig = Rig::new(
        Setup {
            blocks: BLOCKS as u32,
            ..Setup::exclusive()
        }
        .modelled(),
    );
    let own = &rig.ends[0];
    let completed = own.state.address() as usize + offset_of!(QueueState, completed);
    for lap in 0..3 {
        for posts in [1, BLOCKS - 1] {
            let trace = rig.trace();
            Runner::on(&rig, kernels, &trace).run(&vec![Op::of(SIGNAL); posts as usize])?;
            let looked = trace.events().iter().any(|event| {
                matches!(event.access, Access::Load { address, .. } if address == completed)
            });
            let first = posts == 1;
            equal(&format!("lap {lap}, {posts} posts: looked"), looked, first)?;
        }
        all_ok(&Runner::direct(&rig, kernels).run(&[Op::of(FLUSH)])?)?;
    }
    rig.no_violations()
}

#[test]
fn an_owner_looks_at_completions_once_a_lap() {
    looks_at_completions(&Kernels::of("queue")).unwrap();
}

/// Positions run across 2^32, 2^16, where the NIC's 16 bits begin again, and 2^31, where the
/// ready words do.
pub(crate) fn wraps(kernels: &Kernels) -> Outcome {
    for start in [0, (1 << 31) - (1 << 16), (1 << 32) - (1 << 16)] {
        let from = |setup| Setup { start, ..setup };
        counted(kernels, from(Setup::exclusive()), 1, 34_000, 60)?;
        counted(kernels, from(Setup::default()), 2, 17_000, 60)?;
    }
    Ok(())
}

#[test]
fn positions_run_across_2_to_the_16_and_2_to_the_32() {
    wraps(&Kernels::of("queue")).unwrap();
}

/// The same for a queue as deep as there is: half of all positions are under way at once.
#[test]
fn the_deepest_queue_runs_across_2_to_the_32() {
    let deep = Setup {
        blocks: 1 << 15,
        start: (1 << 32) - (1 << 16),
        ..Setup::default()
    };
    counted(&Kernels::of("queue"), deep, 2, 40_000, 100).unwrap();
}

fn ramp(buffer: &HostBuffer, length: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..length).map(|i| (i % 251 + i / 251) as u8).collect();
    buffer.write(0, &bytes);
    bytes
}

/// Transfers of more pieces than the queue has room for.
pub(crate) fn split(kernels: &Kernels) -> Outcome {
    for (setup, weak) in [
        (Setup::default(), false),
        (Setup::exclusive(), false),
        (Setup::default().modelled(), true),
        (Setup::exclusive().modelled(), true),
    ] {
        let rig = Rig::new(Setup {
            blocks: 8,
            max_message: 64,
            ..setup
        });
        let [own, peer] = &rig.ends;
        const SIZE: usize = 64 * 100 + 5;
        let sent = ramp(&own.source, SIZE);
        let runner = match weak {
            false => Runner::direct(&rig, kernels),
            true => Runner::on(&rig, kernels, rig.weak(1, || {})),
        };
        let size = SIZE as u64;
        all_ok(&runner.run(&[
            Op::bound(PUT_SIGNAL, 7, 0, size),
            Op::of(FLUSH),
            Op::bound(script::GET, 7, 20_000, size),
            Op::of(FLUSH),
        ])?)?;
        let mut seen = vec![0; SIZE];
        peer.target.read(7, &mut seen);
        ensure(seen == sent, || "the target differs".to_owned())?;
        own.source.read(20_000, &mut seen);
        ensure(seen == sent, || "what was read differs".to_owned())?;
        equal("signals", peer.signals(), 1)?;
        equal("requests", own.reserved(), 101 + 1 + 101)?;
        rig.no_violations()?;
    }
    Ok(())
}

#[test]
fn larger_transfers_than_the_queue_holds_go_in_pieces() {
    split(&Kernels::of("queue")).unwrap();
}
