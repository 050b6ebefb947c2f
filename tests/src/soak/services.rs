// SPDX-License-Identifier: MIT
//! Eras of services: queues that all ranks set up together, or refuse to together; and one service
//! that lasts as long as the run, whose edges are made again, with queues on demand beside them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use fastrand::Rng;
use mscclpp_bootstrap::{Bootstrap, Deadline};
use mscclpp_port::{
    Connection, Device, Error, GpuNetIoService, Hca, PortChannel, RegisteredMemory,
};
use mscclpp_softnic as softnic;
use softnic::{ControlOperation, FaultKind, FaultPlan, FaultRule, State};

use super::endpoints::{Weather, gone};
use super::lanes::{Lane, MOST, Room, exchange};
use super::{ERA, Rank};
use crate::fixture::no_violations;
use crate::harness::TestResult;

/// What a NIC may refuse in a setup.
const REFUSED: [ControlOperation; 8] = [
    ControlOperation::AllocateDomain,
    ControlOperation::Register,
    ControlOperation::AllocateDoorbellPage,
    ControlOperation::CreateCompletionQueue,
    ControlOperation::CreateQueuePair,
    ControlOperation::Transition(State::Init),
    ControlOperation::Transition(State::ReadyToReceive),
    ControlOperation::Transition(State::ReadyToSend),
];
/// Of the setups of services that come and go.
const SETUP: u32 = 2;

/// A service, and the NIC under it.
struct Service {
    service: GpuNetIoService,
    nic: softnic::Device,
}

impl Service {
    fn new(rank: &Rank, config: softnic::DeviceConfig) -> anyhow::Result<Self> {
        let nic = softnic::Device::open("soft0", config)?;
        let bootstrap: Arc<dyn Bootstrap> = rank.bootstrap.clone();
        let service = GpuNetIoService::new(bootstrap, Hca::from(nic.clone()), Device::cpu())?;
        Ok(Self { service, nic })
    }

    /// Queue after queue of the setup.
    fn queues(&self, ranks: usize) -> anyhow::Result<Vec<(usize, u64, Connection)>> {
        let mut queues = Vec::new();
        for peer in 0..ranks {
            for index in 0..self.service.queues(peer) {
                queues.push((peer, index.into(), self.service.connect(peer, index)?));
            }
        }
        Ok(queues)
    }

    /// Channels over some queues: memory and semaphores are exchanged with tags from `tag` on.
    fn lanes(
        &self,
        (room, queues): (&Room, Vec<(usize, u64, Connection)>),
        tag: u32,
        deadline: Deadline,
    ) -> anyhow::Result<Lanes> {
        let service = &self.service;
        let out = service.register_memory(&room.out, 0..room.out.len())?;
        let into = service.register_memory(&room.into, 0..room.into.len())?;
        let mut halves = Vec::new();
        for (peer, index, connection) in queues {
            let tag = tag + index as u32;
            let remote = service.exchange_memory(peer, &into, tag)?;
            let semaphore = service.build_semaphore(&connection, tag)?;
            halves.push((peer, index, remote, semaphore));
        }
        let mut lanes = Lanes {
            lanes: Vec::new(),
            _channels: Vec::new(),
            _into: into,
        };
        for (peer, index, remote, semaphore) in halves {
            let (remote, semaphore) = (remote.get_by(deadline)?, semaphore.get_by(deadline)?);
            let channel = service.port_channel(semaphore, &remote, &out)?;
            lanes.lanes.push(Lane {
                peer,
                index,
                channel: channel.base().clone(),
                dst: channel.dst(),
                src: channel.src(),
            });
            lanes._channels.push(channel);
        }
        Ok(lanes)
    }
}

/// Channels, and what their puts need.
struct Lanes {
    lanes: Vec<Lane>,
    _channels: Vec<PortChannel>,
    _into: RegisteredMemory,
}

/// How many queues a rank has to each: one at least to its neighbours.
fn plan(rng: &mut Rng, own: usize, ranks: usize) -> Vec<i32> {
    let mut mine = vec![0; ranks];
    for lower in 0..ranks {
        for higher in lower + 1..ranks {
            // Drawn for all, so that both ends draw the same.
            let least = i32::from(higher == lower + 1);
            let count = rng.i32(least..=MOST as i32);
            if lower == own {
                mine[higher] = count;
            } else if higher == own {
                mine[lower] = count;
            }
        }
    }
    mine
}

/// A setup that goes well, or fails on all ranks alike; what it made is used and dropped.
pub(super) fn come_and_go(rank: &mut Rank, rng: &mut Rng) -> TestResult {
    let (own, ranks) = (rank.rank(), rank.ranks());
    let mut counts = plan(rng, own, ranks);
    let config = softnic::DeviceConfig {
        seed: rng.u64(..),
        ..softnic::DeviceConfig::default()
    };
    let Service { service, nic } = Service::new(rank, config)?;
    let victim = rng.usize(0..ranks);
    let (refused, skip) = (REFUSED[rng.usize(0..REFUSED.len())], rng.u32(0..2));
    let late = Duration::from_millis(rng.u64(1..200));
    let peer = (victim + 1) % ranks;
    let fault = match rng.u32(0..10) {
        0..=2 => "refused setup",
        3 | 4 => "corrupted plan",
        5 => "slow rank",
        _ => "",
    };
    if own == victim {
        match fault {
            "refused setup" => nic.set_faults(FaultPlan::default().and(FaultRule {
                operation: refused,
                // There is one domain, and one of each other a queue.
                skip: if refused == ControlOperation::AllocateDomain {
                    0
                } else {
                    skip.min(queues(&counts) - 1)
                },
                count: 1,
                kind: FaultKind::Refuse,
            })),
            "corrupted plan" => {
                counts[peer] = [counts[peer] + 1, -1, 65, i32::MAX, i32::MIN][rng.usize(0..5)];
            }
            "slow rank" => thread::sleep(late),
            _ => {}
        }
    }
    if own == 0 && !fault.is_empty() {
        rank.counts.fault(fault);
    }
    rank.counts.did("setup", 1);
    let result = service.setup_by(&counts, SETUP, ERA.deadline());
    let fails = matches!(fault, "refused setup" | "corrupted plan");
    let said = match &result {
        Err(Error::Setup(error)) if fails => error.to_string(),
        Ok(()) if !fails => String::new(),
        other => bail!("a setup with {fault:?} ({refused}, rank {victim}) ends with {other:?}"),
    };
    let all = rank.bootstrap.all_gather(said.as_bytes())?;
    let same = all.iter().all(|other| *other == said.as_bytes());
    ensure!(
        same,
        "the ranks do not say the same of a setup: {:?}",
        all.iter()
            .map(|s| String::from_utf8_lossy(s))
            .collect::<Vec<_>>()
    );
    if fails {
        gone(&nic)?;
        return Ok(());
    }
    let made = Service { service, nic };
    let deadline = ERA.deadline();
    let room = Room::new(ranks)?;
    let queues = made.queues(ranks)?;
    rank.counts.did("connections made", queues.len() as u64);
    let lanes = made.lanes((&room, queues), 0, deadline)?;
    for number in 0..rng.u64(1..4) {
        traffic(rank, (&made.nic, &room, &lanes), number, rng, deadline)?;
    }
    no_violations(&made.nic)?;
    rank.meet()?;
    let Service { service, nic } = made;
    drop((lanes, room, service));
    gone(&nic)
}

fn queues(counts: &[i32]) -> u32 {
    counts.iter().map(|count| count.unsigned_abs()).sum()
}

fn traffic(
    rank: &mut Rank,
    (nic, room, lanes): (&softnic::Device, &Room, &Lanes),
    number: u64,
    rng: &mut Rng,
    deadline: Deadline,
) -> TestResult {
    let weather = Weather::draw(rng, rank.ranks(), true);
    weather.begin(rank, Some(nic));
    let moment = rank.moment(number);
    let (bootstrap, counts) = (&*rank.bootstrap, &mut rank.counts);
    exchange(
        bootstrap,
        (room, &lanes.lanes),
        moment,
        true,
        (counts, deadline),
    )
    .with_context(|| format!("exchange {number} of the era, {weather:?}"))?;
    weather.end(rank, Some(nic))
}

/// The service that lasts.
pub(super) struct Lasting {
    made: Service,
    room: Room,
    /// No tag is used twice.
    tag: u32,
}

impl Lasting {
    /// One queue between any two ranks.
    pub(super) fn new(rank: &Rank) -> anyhow::Result<Self> {
        let made = Service::new(rank, softnic::DeviceConfig::default())?;
        made.service.setup_full_mesh(1, 1)?;
        Ok(Self {
            made,
            room: Room::new(rank.ranks())?,
            tag: 1000,
        })
    }

    /// What its NIC has.
    pub(super) fn objects(&self) -> u64 {
        self.made.nic.counters().live.total()
    }

    /// What its NIC has and this rank has not let go of: for a leak that is planted.
    pub(super) fn register(&self) -> anyhow::Result<RegisteredMemory> {
        Ok(self.made.service.register_memory(&self.room.out, 0..8)?)
    }

    /// An era of it.
    pub(super) fn run(&mut self, rank: &mut Rank, rng: &mut Rng) -> TestResult {
        let (own, ranks) = (rank.rank(), rank.ranks());
        let deadline = ERA.deadline();
        let tag = self.tag;
        self.tag += 16;
        // Two and two; who is left over looks on.
        let mut order: Vec<usize> = (0..ranks).collect();
        rng.shuffle(&mut order);
        let peer = order.chunks_exact(2).find_map(|pair| match pair {
            [a, b] if *a == own => Some(*b),
            [a, b] if *b == own => Some(*a),
            _ => None,
        });
        let what = rng.u32(0..10);
        let count = rng.u32(1..=MOST as u32);
        let service = &self.made.service;
        let queues = match (what, peer) {
            (0..=3, Some(peer)) => {
                rank.counts.did("on demand", 1);
                let made = service.connect_on_demand(peer, count, tag, deadline)?;
                rank.counts.did("connections made", made.len() as u64);
                (0..)
                    .zip(made)
                    .map(|(index, made)| (peer, index, made))
                    .collect()
            }
            (0..=3, None) => Vec::new(),
            (4, Some(peer)) => {
                self.refused(rank, peer, tag, deadline)?;
                self.made.queues(ranks)?
            }
            (5..=7, Some(peer)) => {
                rank.counts.did("rebuild", 1);
                let old = service.connect(peer, 0)?;
                service.rebuild(peer, tag, deadline)?;
                ensure!(
                    old.status().is_some(),
                    "the queue that was replaced still works"
                );
                rank.counts.did("connections made", 1);
                self.made.queues(ranks)?
            }
            _ => self.made.queues(ranks)?,
        };
        let lanes = self.made.lanes((&self.room, queues), tag + 1, deadline)?;
        for number in 0..rng.u64(1..3) {
            traffic(
                rank,
                (&self.made.nic, &self.room, &lanes),
                number,
                rng,
                deadline,
            )?;
        }
        rank.meet()
    }

    /// The lower rank asks, and the higher one refuses.
    fn refused(&self, rank: &mut Rank, peer: usize, tag: u32, deadline: Deadline) -> TestResult {
        const REASON: &str = "not today";
        let service = &self.made.service;
        if rank.rank() > peer {
            return Ok(service.refuse_on_demand(peer, tag, REASON, deadline)?);
        }
        rank.counts.fault("refused on demand");
        match service.connect_on_demand(peer, 1, tag, deadline) {
            Err(Error::PeerGaveUp { rank, reason, .. }) if rank == peer && reason == REASON => {
                Ok(())
            }
            other => bail!("a call that was refused ends with {other:?}"),
        }
    }
}
