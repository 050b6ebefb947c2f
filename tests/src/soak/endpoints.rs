// SPDX-License-Identifier: MIT
//! An era of endpoints: a communicator, a service and channels between all ranks are made, used and
//! dropped, over one backend.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use fastrand::Rng;
use mscclpp_port::{IbConfig, QueueForm, SignalMode, Status};
use mscclpp_softnic as softnic;

use super::lanes::{Lane, Room, exchange};
use super::{ERA, Rank};
use crate::backend::{Backend, Setup};
use crate::fixture::{Fixture, Link, error_of, no_violations};
use crate::harness::{Context, TestResult};
use crate::kernels::{Call, Range, Steps};

/// The kinds of queues that there are.
const KINDS: [(QueueForm, SignalMode); 3] = [
    (QueueForm::Shared, SignalMode::Atomic),
    (QueueForm::Exclusive, SignalMode::Atomic),
    (QueueForm::Exclusive, SignalMode::InlineWrite),
];

pub(super) fn run(rank: &mut Rank, backend: &'static Backend, rng: &mut Rng) -> TestResult {
    let context = Context::of_job(rank.bootstrap.clone(), ERA.deadline());
    let (queue_form, signal_mode) = KINDS[rng.usize(0..KINDS.len())];
    let setup = Setup {
        nic: softnic::DeviceConfig {
            seed: rng.u64(..),
            ..softnic::DeviceConfig::default()
        },
        queue: IbConfig {
            queue_form,
            signal_mode,
            ..IbConfig::default()
        },
    };
    let fixture = Fixture::over(&context, backend, &setup, rank.bootstrap.clone())?;
    let room = Room::new(context.ranks())?;
    let (out, into) = (fixture.register(&room.out)?, fixture.register(&room.into)?);
    let links = fixture.link(&fixture.peers(), 0, &out, &into)?;
    rank.counts.did("connections made", links.len() as u64);
    let lanes: Vec<Lane> = (links.iter())
        .map(|link| Lane {
            peer: link.peer,
            index: 0,
            channel: link.base(),
            dst: link.dst,
            src: link.src,
        })
        .collect();
    let queues = backend.posts_to_queue();
    let accumulate = backend.accumulate && (!queues || signal_mode == SignalMode::Atomic);
    for number in 0..rng.u64(2..7) {
        let moment = rank.moment(number);
        let weather = Weather::draw(rng, context.ranks(), fixture.nic.is_some());
        weather.begin(rank, fixture.nic.as_ref());
        let counts = &mut rank.counts;
        let (bootstrap, deadline) = (&*rank.bootstrap, context.deadline());
        exchange(
            bootstrap,
            (&room, &lanes),
            moment,
            accumulate,
            (counts, deadline),
        )
        .with_context(|| format!("exchange {number} of the era, {weather:?}"))?;
        weather.end(rank, fixture.nic.as_ref())?;
        register(rank, &fixture, rng)?;
    }
    memories(rank, &fixture, &links, rng)?;
    if let Some(nic) = &fixture.nic {
        no_violations(nic)?;
    }
    let nic = fixture.nic.clone();
    // Nobody lets go of what a peer still flushes to.
    rank.meet()?;
    drop((lanes, links, out, into, fixture));
    nic.as_ref().map_or(Ok(()), gone)
}

/// What the network and the ranks are like during an exchange.
#[derive(Debug)]
pub(super) struct Weather {
    loss: Option<f64>,
    /// Who comes late, and by how much.
    slow: Option<(usize, Duration)>,
    /// Whose cable is out for a moment.
    out: Option<(usize, Duration)>,
}

impl Weather {
    pub(super) fn draw(rng: &mut Rng, ranks: usize, has_nic: bool) -> Self {
        let mut one_in = |n| rng.u32(0..n) == 0;
        let (loss, slow, out) = (one_in(4) && has_nic, one_in(6), one_in(20) && has_nic);
        let mut who = |most| (rng.usize(0..ranks), Duration::from_millis(rng.u64(1..most)));
        let (late, blind) = (who(200), who(40));
        Self {
            loss: loss.then(|| rng.f64() * 0.02),
            slow: slow.then_some(late),
            out: out.then_some(blind),
        }
    }

    pub(super) fn begin(&self, rank: &mut Rank, nic: Option<&softnic::Device>) {
        let own = rank.rank();
        let is_own = |who: usize| who == own;
        if let (Some(loss), Some(nic)) = (self.loss, nic) {
            nic.set_network(softnic::NetworkConfig {
                loss,
                delay: Duration::from_micros(100),
                single_packets: false,
            });
        }
        if let (Some((who, time)), Some(nic)) = (self.out, nic)
            && is_own(who)
        {
            nic.set_link_up(false);
            let nic = nic.clone();
            // By itself, while the exchange goes on.
            let up = move || {
                thread::sleep(time);
                nic.set_link_up(true);
            };
            rank.helpers.push(thread::spawn(up));
        }
        if let Some((_, time)) = self.slow.filter(|(who, _)| is_own(*who)) {
            thread::sleep(time);
        }
        // All ranks have drawn the same: the first one counts.
        if rank.rank() == 0 {
            let named = [
                (self.loss.is_some(), "packets lost"),
                (self.slow.is_some(), "slow rank"),
                (self.out.is_some(), "cable out"),
            ];
            for (_, name) in named.into_iter().filter(|(is, _)| *is) {
                rank.counts.fault(name);
            }
        }
    }

    pub(super) fn end(&self, rank: &mut Rank, nic: Option<&softnic::Device>) -> TestResult {
        if let Some(nic) = nic {
            nic.set_network(softnic::NetworkConfig::default());
        }
        let plugged = rank.helpers.drain(..).all(|helper| helper.join().is_ok());
        ensure!(plugged, "a thread that plugs a cable in has panicked");
        Ok(())
    }
}

/// Memory is registered, and let go again.
fn register(rank: &mut Rank, fixture: &Fixture<'_>, rng: &mut Rng) -> TestResult {
    let buffer = fixture.buffer(64 << 10)?;
    let mut kept = Vec::new();
    for _ in 0..rng.usize(1..9) {
        let start = 8 * rng.u64(0..4096);
        kept.push(fixture.register_range(&buffer, start..start + 8 * rng.u64(1..4096))?);
        if rng.bool() {
            kept.swap_remove(rng.usize(0..kept.len()));
        }
        rank.counts.did("register", 1);
    }
    Ok(())
}

/// Each rank hands a memory to the next one, which puts into it; sometimes it lets go of it first, and
/// then the put is refused.
fn memories(rank: &mut Rank, fixture: &Fixture<'_>, links: &[Link], rng: &mut Rng) -> TestResult {
    const BYTES: u64 = 4096;
    const TAG: u32 = 1;
    let (own, ranks) = (rank.rank(), links.len() + 1);
    let (next, previous) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
    let deadline = fixture.context.deadline();
    let withdrawn = rng.u32(0..4) == 0;
    let buffer = fixture.buffer(BYTES)?;
    let mut memory = Some(fixture.register(&buffer)?);
    if let Some(memory) = &memory {
        fixture.communicator.send_memory(memory, previous, TAG)?;
    }
    let remote = fixture
        .communicator
        .recv_memory(next, TAG)?
        .get_by(deadline)?;
    rank.counts.did("memories exchanged", 1);
    if withdrawn {
        memory = None;
    }
    rank.meet()?;
    let link = links
        .iter()
        .find(|link| link.peer == next)
        .context("a link to each")?;
    let source = fixture.buffer(BYTES)?;
    let moment = rank.moment(1 << 15);
    let payload = |from| {
        let words = (0..BYTES / 8).map(move |at| moment.era << 32 | (from as u64) << 16 | at);
        words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()
    };
    source.write(0, &payload(own))?;
    let range = Range {
        dst: fixture.service.add_memory(remote)?,
        dst_offset: 0,
        src: fixture.service.add_memory(fixture.register(&source)?)?,
        src_offset: 0,
        size: BYTES,
    };
    let calls = [(0, Call::Put(range)), (0, Call::Flush)];
    let kernel = Steps::launch(&[link.base()], &calls)?;
    let done = kernel
        .finish(deadline)?
        .pop()
        .context("a flush")?
        .status()?;
    if withdrawn {
        // An end whose peer was refused something fails too, and may do so first.
        let ended = matches!(done, Status::QueueError | Status::PeerDown);
        ensure!(ended, "a put to memory that is gone ends with {done:?}");
        error_of(&link.connection)?;
        if own == 0 {
            rank.counts.fault("put to withdrawn memory");
        }
    } else {
        ensure!(
            done == Status::Ok,
            "a put to exchanged memory ends with {done:?}"
        );
    }
    rank.counts.did("put", 1);
    rank.counts.did("flush", 1);
    rank.meet()?;
    let mut found = vec![0; BYTES as usize];
    buffer.read(0, &mut found)?;
    let expected = if withdrawn {
        vec![0; BYTES as usize]
    } else {
        payload(previous)
    };
    ensure!(
        found == expected,
        "what rank {previous} put into exchanged memory is not there, or more"
    );
    drop(memory);
    Ok(())
}

/// Fails if a NIC in software still has something.
pub(super) fn gone(nic: &softnic::Device) -> TestResult {
    let begun = Instant::now();
    loop {
        let live = nic.counters().live;
        if live == softnic::LiveObjects::default() {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(5),
            "the NIC keeps {live:?}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}
