// SPDX-License-Identifier: MIT
//! Ranks that are processes: they join, set up queues to some peers on a NIC in software, exchange one
//! put and signal with each, and leave.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use mscclpp_bootstrap::{Bootstrap, Deadline, TcpBootstrap, TcpOptions};
use mscclpp_port::{Buffer, Device, GpuNetIoService, Hca};
use serde::{Deserialize, Serialize};

use super::figures::process;
use super::{Figures, PATIENCE, Row, Span, Took, peers};
use crate::harness::TestResult;
use crate::kernels::{Call, Range, Steps};

/// What belongs to joining is closed after this: rank 0 has then let everybody go.
const SETTLES: Duration = Duration::from_millis(300);

/// How often a process looks at what it has while ranks join.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a rank tells the others at the end.
#[derive(Serialize, Deserialize)]
struct Told {
    join: Took,
    setup: Took,
    exchange: Took,
    leave: Took,
    joined: Figures,
    set_up: Figures,
}

/// This process's rank; what all have found, on rank 0.
///
/// # Errors
/// When a step fails.
pub fn processes(degree: usize) -> anyhow::Result<Option<Row>> {
    let options = TcpOptions::new().timeout(PATIENCE);
    let (joining, joined) =
        at_most(|| Took::by(|| Ok(TcpBootstrap::from_launcher_with(options, PATIENCE)?)));
    let (join, bootstrap) = joined?;
    let bootstrap = Arc::new(bootstrap);
    let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
    ensure!(
        degree < world,
        "{world} ranks cannot have {degree} peers each"
    );
    thread::sleep(SETTLES);
    let joined = Figures::of_process(&bootstrap)?;

    let over: Arc<dyn Bootstrap> = bootstrap.clone();
    let service = GpuNetIoService::new(over, Hca::named("soft0"), Device::cpu())?;
    let peers = peers(rank, world, degree);
    let plan: Vec<(usize, u32)> = peers.iter().map(|peer| (*peer, 1)).collect();
    let (setup, ()) = Took::by(|| Ok(service.setup_by(&plan, 0, Deadline::after(PATIENCE))?))?;
    let (exchange, kept) = Took::by(|| exchange(&service, rank, world, &peers))?;
    let set_up = Figures::of_process(&bootstrap)?;
    // Nobody leaves while others still need it.
    bootstrap.barrier()?;
    let (leave, ()) = Took::by(move || {
        drop((kept, service));
        Ok(())
    })?;

    let told = Told {
        join,
        setup,
        exchange,
        leave,
        joined,
        set_up,
    };
    let all = bootstrap.all_gather(&serde_json::to_vec(&told)?)?;
    if rank != 0 {
        return Ok(None);
    }
    let all: Vec<Told> = (all.iter())
        .map(|bytes| serde_json::from_slice(bytes))
        .collect::<Result<_, _>>()?;
    let span = |of: fn(&Told) -> Figures| Span::of(&all.iter().map(of).collect::<Vec<_>>());
    let took = |of: fn(&Told) -> Took| Took::of_all(all.iter().map(of));
    Ok(Some(Row {
        ranks_are: "processes",
        world,
        degree,
        join: took(|told| told.join),
        setup: took(|told| told.setup),
        exchange: Some(took(|told| told.exchange)),
        leave: Some(took(|told| told.leave)),
        joined: span(|told| told.joined),
        set_up: span(|told| told.set_up),
        root_joining: Some(joining?),
        root_joined: all[0].joined,
        root_set_up: all[0].set_up,
    }))
}

/// Does something; the most descriptors that this process has meanwhile.
fn at_most<T>(what: impl FnOnce() -> T) -> (anyhow::Result<f64>, T) {
    thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let watch = scope.spawn(move || {
            let mut most = 0.0_f64;
            loop {
                most = most.max(process()?.0);
                if stopped.recv_timeout(LOOK_EVERY) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return Ok(most);
                }
            }
        });
        let done = what();
        drop(stop);
        let most = watch.join();
        let most = most.unwrap_or_else(|_| Err(anyhow::anyhow!("the watching thread panicked")));
        (most, done)
    })
}

/// Puts the number of this rank into the memory of each peer, and sees theirs come.
fn exchange(
    service: &GpuNetIoService,
    rank: usize,
    world: usize,
    peers: &[usize],
) -> anyhow::Result<impl Sized + use<>> {
    let deadline = Deadline::after(PATIENCE);
    let buffer = Buffer::new(Device::cpu(), 8 * (world as u64 + 1))?;
    let own = 8 * world as u64;
    buffer.store_u64(own, 1000 + rank as u64)?;
    let memory = service.register_memory(&buffer, 0..buffer.len())?;
    let mut halves = Vec::new();
    for peer in peers {
        let connection = service.connect(*peer, 0)?;
        let remote = service.exchange_memory(*peer, &memory, 0)?;
        halves.push((remote, service.build_semaphore(&connection, 0)?));
    }
    let mut channels = Vec::new();
    for (remote, semaphore) in halves {
        let (remote, semaphore) = (remote.get_by(deadline)?, semaphore.get_by(deadline)?);
        channels.push(service.port_channel(semaphore, &remote, &memory)?);
    }
    let mut calls = Vec::new();
    for (number, channel) in channels.iter().enumerate() {
        let range = Range {
            dst: channel.dst(),
            dst_offset: 8 * rank as u64,
            src: channel.src(),
            src_offset: own,
            size: 8,
        };
        calls.push((number, Call::PutWithSignal(range)));
    }
    let each = |call| (0..channels.len()).map(move |channel| (channel, call));
    calls.extend(each(Call::Flush).chain(each(Call::Wait)));
    let bases: Vec<_> = channels
        .iter()
        .map(|channel| channel.base().clone())
        .collect();
    Steps::run(&bases, &calls, deadline)?;
    peers.iter().try_for_each(|peer| came(&buffer, *peer))?;
    Ok((buffer, memory, channels))
}

fn came(buffer: &Buffer, peer: usize) -> TestResult {
    let found = buffer.load_u64(8 * peer as u64).context("a word a rank")?;
    ensure!(found == 1000 + peer as u64, "rank {peer} sent {found}");
    Ok(())
}
