// SPDX-License-Identifier: MIT
//! Ranks that are threads of one process, for worlds that are larger than a machine's processes: they
//! join over loopback, and do of a setup what its ranks do together: agree on the plan, pass the gate
//! of each phase, and tell each peer of a queue. There is no NIC.

use std::sync::{Arc, Barrier};
use std::thread;

use anyhow::{Context as _, ensure};
use mscclpp_bootstrap::{
    Bootstrap as _, Deadline, Gate, Plan, Tag, TcpBootstrap, TcpOptions, UniqueId,
};

use super::figures::process;
use super::{Figures, PATIENCE, Row, Span, Took, peers};

/// The phases after the plan, as `GpuNetIoService` has them.
const PHASES: [&str; 11] = [
    "capability",
    "port",
    "allocate",
    "exchange",
    "exchange",
    "wire",
    "INIT",
    "RTR",
    "RTS",
    "self-test",
    "publish",
];
/// Bytes of what a rank tells a peer of one queue.
const RECORD: usize = 200;
/// Of the records.
const TELL: u32 = 1;
/// A thread that waits needs little.
const STACK: usize = 256 << 10;

/// What a rank has found.
struct Found {
    join: Took,
    setup: Took,
    joined: Figures,
    set_up: Figures,
}

/// So many ranks; what all have found.
///
/// # Errors
/// When a step fails.
pub fn threads(world: usize, degree: usize) -> anyhow::Result<Row> {
    ensure!(
        degree < world,
        "{world} ranks cannot have {degree} peers each"
    );
    let before = process()?;
    let options = TcpOptions::new().timeout(PATIENCE);
    let root = TcpBootstrap::with_options(0, world, options.clone())?;
    let id = root.create_unique_id_at(std::net::Ipv4Addr::LOCALHOST.into())?;
    let here = Arc::new(Barrier::new(world));
    let mut ranks = Vec::new();
    let mut root = Some(root);
    for rank in 0..world {
        let bootstrap = match root.take() {
            Some(root) => root,
            None => TcpBootstrap::with_options(rank, world, options.clone())?,
        };
        let (id, here) = (id.clone(), Arc::clone(&here));
        let builder = thread::Builder::new().stack_size(STACK);
        ranks.push(builder.spawn(move || play(bootstrap, &id, degree, before, &here))?);
    }
    let mut all = Vec::new();
    for (rank, thread) in ranks.into_iter().enumerate() {
        let found = thread
            .join()
            .map_err(|_| anyhow::anyhow!("rank {rank} panicked"))?;
        all.push(found.with_context(|| format!("rank {rank}"))?);
    }
    let span = |of: fn(&Found) -> Figures| Span::of(&all.iter().map(of).collect::<Vec<_>>());
    Ok(Row {
        ranks_are: "threads",
        world,
        degree,
        join: Took::of_all(all.iter().map(|found| found.join)),
        setup: Took::of_all(all.iter().map(|found| found.setup)),
        exchange: None,
        leave: None,
        joined: span(|found| found.joined),
        set_up: span(|found| found.set_up),
        root_joining: None,
        root_joined: all[0].joined,
        root_set_up: all[0].set_up,
    })
}

fn play(
    bootstrap: TcpBootstrap,
    id: &UniqueId,
    degree: usize,
    before: (f64, f64),
    here: &Barrier,
) -> anyhow::Result<Found> {
    // A rank that fails must not leave the others at the barrier: all come there, well or not.
    let join = Took::by(|| Ok(bootstrap.initialize(id, PATIENCE)?));
    let joined = look(&bootstrap, before, here);
    let setup = Took::by(|| setup(&bootstrap, degree));
    let set_up = look(&bootstrap, before, here);
    let (join, ()) = join?;
    let (setup, ()) = setup?;
    Ok(Found {
        join,
        setup,
        joined: joined?,
        set_up: set_up?,
    })
}

/// While nobody does anything.
fn look(bootstrap: &TcpBootstrap, before: (f64, f64), here: &Barrier) -> anyhow::Result<Figures> {
    let world = bootstrap.world_size() as f64;
    here.wait();
    let figures = Figures::of_connections(bootstrap);
    let now = process();
    here.wait();
    let (descriptors, threads) = now?;
    // Each look of a rank has the directory open, for a moment; they are few beside the rest.
    Ok(Figures {
        descriptors: (descriptors - before.0) / world,
        threads: (threads - before.1) / world,
        ..figures
    })
}

/// What the ranks do together in a setup.
fn setup(bootstrap: &TcpBootstrap, degree: usize) -> anyhow::Result<()> {
    let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
    let deadline = Deadline::after(PATIENCE);
    let peers = peers(rank, world, degree);
    let counts: Vec<(usize, u32)> = peers.iter().map(|peer| (*peer, 1)).collect();
    let mut gate = Gate::new(bootstrap, 0, deadline)?;
    Plan::agree(Plan::sparse(rank, world, &counts), &mut gate)?;
    for (number, phase) in PHASES.into_iter().enumerate() {
        match number {
            3 => {
                for peer in &peers {
                    bootstrap.send(*peer, Tag::user(TELL), &[0; RECORD], deadline)?;
                }
            }
            4 => {
                for peer in &peers {
                    bootstrap.recv(*peer, Tag::user(TELL), deadline)?;
                }
            }
            _ => {}
        }
        gate.pass(phase, Ok(()))?;
    }
    gate.finish();
    Ok(())
}
