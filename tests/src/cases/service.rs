// SPDX-License-Identifier: MIT
//! Queues that all ranks set up together.

use std::sync::Arc;
use std::thread;

use anyhow::ensure;
use mscclpp_bootstrap::gate::Reason;
use mscclpp_bootstrap::plan::PlanFault;
use mscclpp_bootstrap::{Bootstrap, Recording};
use mscclpp_port::{
    Buffer, Connection, Device, Error, GpuNetIoConfig, GpuNetIoService, QueueCounts,
};
use mscclpp_softnic as softnic;

use crate::backend::{Backend, Setup};
use crate::fixture::no_violations;
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::PingPong;
use crate::provider::Provider;

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    if !backend.posts_to_queue() {
        return;
    }
    // Upstream's names on what is like upstream.
    let suffix = backend.suffix.trim_start_matches("IbGpuNetIoMode");
    let mut add = |test: &str, body: fn(&Context, &'static Backend) -> TestResult| {
        let name = format!("PortChannelSparseTest.GpuNetIo{test}{suffix}");
        registry.add_on(backend, name, body).ranks(4, 4);
    };
    add("SparseConnections", sparse);
    add("TwoServicesAtOnce", two_at_once);
    add("FullMesh", full_mesh);
    add("PlansThatDoNotFit", mismatch);
    add("OnDemand", on_demand);
}

/// Edges with 3, 1 and 2 queues; rank 2 has none.
const SPARSE: [[i32; 4]; 4] = [[0, 3, 0, 1], [3, 0, 0, 2], [0; 4], [1, 2, 0, 0]];
const ELEMENTS: u64 = 1000;
const ITERATIONS: u64 = 20;

/// A rank's service, and the NIC under it.
struct Rank {
    service: GpuNetIoService,
    nic: softnic::Device,
    device: Device,
}

impl Rank {
    fn new(bootstrap: Arc<dyn Bootstrap>, backend: &Backend) -> anyhow::Result<Self> {
        let setup = Setup::strict();
        let nic = softnic::Device::open("soft0", setup.nic)?;
        let hca = Provider::chosen().hca(nic.clone());
        let device = (backend.device)(bootstrap.rank());
        let config = GpuNetIoConfig {
            queue: (backend.queue)(setup.queue),
            ..GpuNetIoConfig::default()
        };
        let service = GpuNetIoService::with_config(bootstrap, hca, device, config)?;
        Ok(Self {
            service,
            nic,
            device,
        })
    }

    /// A ping-pong over every queue of the setup, all at once.
    fn ping_pongs(&self, context: &Context, tags: u32) -> TestResult {
        let mut queues = Vec::new();
        for peer in 0..context.ranks() {
            for index in 0..self.service.queues(peer) {
                queues.push((peer, tags + index, self.service.connect(peer, index)?));
            }
        }
        self.ping_pongs_over(context, queues)
    }

    /// The same over some queues, each with its peer and a tag.
    fn ping_pongs_over(
        &self,
        context: &Context,
        queues: Vec<(usize, u32, Connection)>,
    ) -> TestResult {
        let bytes = 4 * ELEMENTS;
        let mut ends = Vec::new();
        for (peer, tag, connection) in queues {
            let buffer = Buffer::new(self.device, bytes)?;
            let memory = self.service.register_memory(&buffer, 0..bytes)?;
            let remote = self.service.exchange_memory(peer, &memory, tag)?;
            let semaphore = self.service.build_semaphore(&connection, tag)?;
            ends.push((peer, buffer, memory, remote, semaphore));
        }
        let (mut players, mut memories) = (Vec::new(), Vec::new());
        for (peer, buffer, memory, remote, semaphore) in ends {
            let (remote, semaphore) = (remote.get()?, semaphore.get()?);
            players.push(PingPong {
                channel: self.service.port_channel(semaphore, &remote, &memory)?,
                buffer,
                elements: ELEMENTS,
                iterations: ITERATIONS,
                polls: None,
                rank: usize::from(context.rank() > peer),
                flush: true,
                check: true,
                answers_last: false,
            });
            memories.push(memory);
        }
        // One kernel: a GPU's queues of work are few, and kernels that share one take turns.
        if let Some(kernel) = PingPong::launch_all(players, 2)? {
            kernel.finish(context.deadline())?;
        }
        Ok(())
    }

    fn ends_well(&self) -> TestResult {
        no_violations(&self.nic)
    }
}

fn sparse(context: &Context, backend: &'static Backend) -> TestResult {
    let counts = SPARSE[context.rank()];
    let bootstrap = Arc::new(Recording::new(context.bootstrap()?));
    let rank = Rank::new(Arc::clone(&bootstrap) as Arc<dyn Bootstrap>, backend)?;
    context.stage("setup");
    rank.service.setup(&counts, 3)?;
    let queues: i32 = counts.iter().sum();
    let live = rank.nic.counters().live;
    ensure!(
        live.queue_pairs == queues as u64 && live.completion_queues == queues as u64,
        "{queues} queues were asked for, and there are {live:?}"
    );
    // What is no gate's goes to requested peers alone.
    for (peer, tag, traffic) in bootstrap.by_stream() {
        ensure!(
            counts[peer] > 0 || tag.to_string().starts_with("setup"),
            "rank {peer} was told something that it did not ask for: {tag}, {traffic:?}"
        );
    }
    let beyond = rank.service.connect((context.rank() + 1) % 4, 3);
    ensure!(
        matches!(beyond, Err(Error::NoQueue { index: 3, .. })),
        "a queue that there is not: {beyond:?}"
    );
    context.stage("ping-pongs over all queues");
    rank.ping_pongs(context, 0)?;
    bootstrap.barrier()?;
    rank.ends_well()?;
    bootstrap.barrier()?;
    Ok(())
}

/// Two services, with plans and tags of their own, come up and are used at the same time.
fn two_at_once(context: &Context, backend: &'static Backend) -> TestResult {
    let bootstrap = context.bootstrap()?;
    let plans = [
        QueueCounts::PerRank(&SPARSE[context.rank()]),
        QueueCounts::Uniform(2),
    ];
    thread::scope(|scope| {
        let runs: Vec<_> = (1u32..)
            .zip(plans)
            .map(|(tag, plan)| {
                let bootstrap = Arc::clone(&bootstrap) as Arc<dyn Bootstrap>;
                scope.spawn(move || {
                    let rank = Rank::new(bootstrap, backend)?;
                    rank.service.setup(plan, tag)?;
                    rank.ping_pongs(context, 100 * tag)?;
                    anyhow::Ok(rank)
                })
            })
            .collect();
        let ranks = runs.into_iter().map(|run| match run.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        let ranks: Vec<_> = ranks.collect::<anyhow::Result<_>>()?;
        bootstrap.barrier()?;
        ranks.iter().try_for_each(Rank::ends_well)?;
        bootstrap.barrier()?;
        Ok(())
    })
}

fn full_mesh(context: &Context, backend: &'static Backend) -> TestResult {
    let bootstrap = context.bootstrap()?;
    let rank = Rank::new(Arc::clone(&bootstrap) as Arc<dyn Bootstrap>, backend)?;
    rank.service.setup_full_mesh(2, 0)?;
    rank.ping_pongs(context, 0)?;
    bootstrap.barrier()?;
    rank.ends_well()?;
    bootstrap.barrier()?;
    Ok(())
}

/// Ranks 1 and 3 disagree: all ranks hear of it, with both numbers, and nobody has made a queue.
fn mismatch(context: &Context, backend: &'static Backend) -> TestResult {
    let bootstrap = context.bootstrap()?;
    for (tag, count, bad) in [(0, 5, None), (1, 65, Some(65)), (2, -1, Some(-1))] {
        let rank = Rank::new(Arc::clone(&bootstrap) as Arc<dyn Bootstrap>, backend)?;
        let mut counts = SPARSE[context.rank()];
        if context.rank() == 3 {
            counts[1] = count;
        }
        let Err(Error::Setup(error)) = rank.service.setup(&counts, tag) else {
            anyhow::bail!("a plan that does not fit was accepted");
        };
        let expected = match bad {
            None => PlanFault::Mismatch {
                lower: 1,
                higher: 3,
                lower_count: 2,
                higher_count: 5,
            },
            Some(count) => PlanFault::Count { peer: 1, count },
        };
        ensure!(
            error.reason == Reason::Plan(expected),
            "the error is {error}"
        );
        ensure!(
            rank.nic.counters().live == softnic::LiveObjects::default(),
            "something was made for a plan that does not fit"
        );
        let again = rank.service.setup(&counts, tag);
        ensure!(
            matches!(again, Err(Error::SetUpAgain { .. })),
            "a second setup gives {again:?}"
        );
    }
    // The same bootstrap and tag serve the next service.
    let rank = Rank::new(Arc::clone(&bootstrap) as Arc<dyn Bootstrap>, backend)?;
    rank.service.setup(&SPARSE[context.rank()], 0)?;
    rank.ping_pongs(context, 0)?;
    bootstrap.barrier()?;
    Ok(())
}

/// Ranks 0 and 3 make queues while the others wait for nothing but the end; then 0 and 1 rebuild
/// theirs.
fn on_demand(context: &Context, backend: &'static Backend) -> TestResult {
    let bootstrap = context.bootstrap()?;
    let rank = Rank::new(Arc::clone(&bootstrap) as Arc<dyn Bootstrap>, backend)?;
    let deadline = context.deadline();
    let on_demand = |peer| -> anyhow::Result<Vec<Connection>> {
        let made = rank.service.connect_on_demand(peer, 2, 8, deadline)?;
        let queues = (10..)
            .zip(&made)
            .map(|(tag, made)| (peer, tag, made.clone()));
        rank.ping_pongs_over(context, queues.collect())?;
        Ok(made)
    };
    let made = match context.rank() {
        0 => on_demand(3)?,
        3 => on_demand(0)?,
        _ => Vec::new(),
    };
    rank.service.setup(&SPARSE[context.rank()], 0)?;
    // Not before: the peer may still have been waiting for its last flush.
    drop(made);
    if context.rank() < 2 {
        let peer = 1 - context.rank();
        let old = rank.service.connect(peer, 0)?;
        rank.service.rebuild(peer, 9, deadline)?;
        ensure!(old.status().is_some(), "the old queue still works");
    }
    rank.ping_pongs(context, 20)?;
    bootstrap.barrier()?;
    rank.ends_well()?;
    bootstrap.barrier()?;
    Ok(())
}
