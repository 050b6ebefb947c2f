// SPDX-License-Identifier: MIT
//! The part of a rank in a job of the matrix.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag, TcpBootstrap};
use mscclpp_port::{Error, GpuNetIoConfig, GpuNetIoService, Status};
use mscclpp_softnic as softnic;

use super::RANKS;
use super::left::Left;
use super::moment::{Half, Moment, Operation, What, moments};
use crate::backend::{BACKENDS, Backend, Setup};
use crate::fixture::{Fixture, Link, error_of};
use crate::harness::{Context, Halting, TestResult, watch_parent};
use crate::kernels::{Call, Steps};
use crate::provider::Provider;

/// The name of the part. Behind it are the number of the moment and the victim; without a victim,
/// [`RANKS`].
pub(in crate::cases) const PART: &str = "kill";
/// What a rank says: it has come to the moment,
pub(super) const WAITING: &str = "WAITING";
/// it has ended with an error that names the victim,
pub(super) const NAMED: &str = "NAMED";
/// with another error,
const OTHER: &str = "OTHER";
/// without an error,
pub(super) const ENDED: &str = "ENDED";
/// and has kept nothing.
pub(super) const CLEAN: &str = "CLEAN";

/// How long a rank may live.
const CHILD: Duration = Duration::from_secs(120);
/// How long joining may take.
const JOINS: Duration = Duration::from_secs(30);
/// The same where it is to fail.
pub(super) const JOIN_TIME: Duration = Duration::from_secs(3);
/// A call that needs a rank that is known to be dead ends within this.
const AT_ONCE: Duration = Duration::from_millis(500);
/// How often a kernel makes a call before the host looks.
const CALLS: usize = 64;
const BYTES: u64 = 4096;

/// Plays the part of this process's rank.
pub(in crate::cases) fn play(number: usize, victim: usize) -> TestResult {
    let moment = moments()
        .into_iter()
        .nth(number)
        .context("no such moment")?;
    let words = watch_parent(CHILD);
    if let Some(row) = moment.row {
        // This rank's and its peers' GPUs, which it may map.
        for rank in 0..RANKS {
            crate::kernels::prepare((BACKENDS[row].device)(rank))?;
        }
    }
    let before = Left::of_process();
    let words = Arc::new(Mutex::new(words));
    let part = Part { victim, words };
    match part.run(&moment) {
        Ok(()) => println!("{ENDED}"),
        Err(error) if names(&error, victim) => println!("{NAMED} {}", line(&error)),
        Err(error) => println!("{OTHER} {}", line(&error)),
    }
    let left = before.since(Left::of_process);
    match left.is_empty() {
        true => println!("{CLEAN}"),
        false => println!("LEFT {left}"),
    }
    Ok(())
}

/// An error on one line.
fn line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}

/// Whether an error says that this rank is the reason.
fn names(error: &anyhow::Error, victim: usize) -> bool {
    error.chain().any(|cause| {
        if let Some(error) = cause.downcast_ref::<Error>() {
            return match error {
                Error::PeerDown { rank, .. }
                | Error::PeerFailed { rank, .. }
                | Error::QueueFailed { rank, .. }
                // A victim that lives lets go of its memory, which may be seen first.
                | Error::Refused { rank, .. }
                | Error::RequestFailed { rank, .. } => *rank == Some(victim),
                Error::Setup(error) => error.lost_rank() == Some(victim),
                Error::Bootstrap { source, .. } => source.gone_rank() == Some(victim),
                _ => false,
            };
        }
        match cause.downcast_ref::<BootstrapError>() {
            // Nobody is there yet whose silence could be noticed.
            Some(BootstrapError::Timeout { waiting_for, .. }) => waiting_for.contains(&victim),
            Some(BootstrapError::LinkTimeout { .. }) => victim == 0,
            Some(BootstrapError::JoinFailed { by, cause, .. }) => {
                *by == victim || cause.contains(&format!("rank {victim}"))
            }
            Some(error) => error.gone_rank() == Some(victim),
            None => false,
        }
    })
}

/// A rank and what happens.
struct Part {
    victim: usize,
    words: Words,
}

type Words = Arc<Mutex<Receiver<()>>>;

/// The moment has come: waits for the word to go on.
fn halt(words: &Words) {
    println!("{WAITING}");
    let words = words.lock().unwrap_or_else(PoisonError::into_inner);
    // Without a word the test has ended, and with it this process.
    let _ = words.recv();
}

impl Part {
    fn run(&self, moment: &Moment) -> TestResult {
        let backend = moment.row.map(|row| &BACKENDS[row]);
        let backend = || backend.context("the moment needs a backend");
        let time = if moment.what == What::Join && self.victim < RANKS {
            println!("{WAITING}");
            JOIN_TIME
        } else {
            JOINS
        };
        let bootstrap = Arc::new(TcpBootstrap::from_launcher(time)?);
        let context = Context::of_job(bootstrap.clone(), Deadline::after(CHILD));
        let done = match moment.what {
            What::Join => Ok(()),
            What::Receive => self.receive(&bootstrap),
            What::Phase(phase) => self.setup(&bootstrap, backend()?, phase),
            What::OnDemand => self.one_edge(&bootstrap, backend()?, false),
            What::Rebuild => self.one_edge(&bootstrap, backend()?, true),
            What::Exchange(half) => self.exchange(&context, &bootstrap, backend()?, half),
            What::Call(operation) => self.call(&context, &bootstrap, backend()?, operation),
            What::Teardown => self.teardown(&context, &bootstrap, backend()?),
        };
        if self.victim == RANKS {
            // Nobody leaves while another needs it.
            done?;
            return Ok(bootstrap.barrier()?);
        }
        if self.is_victim(bootstrap.rank()) {
            // It is alone, also where what it was doing needed nobody any more.
            return done.and_then(|()| Ok(bootstrap.barrier()?));
        }
        // In calls they have met already, while they had their channels.
        if !matches!(moment.what, What::Join | What::Call(_)) {
            self.others_meet(&bootstrap)?;
        }
        done
    }

    fn is_victim(&self, rank: usize) -> bool {
        rank == self.victim
    }

    /// The moment has come. The victim goes on when it is told to.
    fn moment(&self, rank: usize) {
        if self.is_victim(rank) {
            halt(&self.words);
        } else if self.victim < RANKS {
            println!("{WAITING}");
        }
    }

    /// Who waits for whom: all for the victim, and that for another.
    fn waits_for(&self, rank: usize) -> usize {
        match self.victim {
            victim if victim == rank => (rank + 1) % RANKS,
            RANKS => (rank + 1) % RANKS,
            victim => victim,
        }
    }

    /// With whom this rank exchanges: all with the victim; without one, all with all.
    fn partners(&self, rank: usize) -> Vec<usize> {
        let with = |peer: &usize| {
            *peer != rank && (self.victim == RANKS || self.victim == rank || self.victim == *peer)
        };
        (0..RANKS).filter(with).collect()
    }

    fn receive(&self, bootstrap: &TcpBootstrap) -> TestResult {
        bootstrap.barrier()?;
        if self.victim == RANKS {
            return Ok(());
        }
        println!("{WAITING}");
        let rank = bootstrap.rank();
        // One of them waits for all.
        if rank == (self.victim + RANKS - 1) % RANKS {
            return Ok(bootstrap.barrier()?);
        }
        let deadline = Deadline::after(CHILD);
        (bootstrap.recv(self.waits_for(rank), Tag::user(7), deadline)).map(drop)?;
        bail!("a message came that nobody has sent")
    }

    fn service(
        &self,
        bootstrap: Arc<dyn Bootstrap>,
        backend: &Backend,
    ) -> anyhow::Result<(GpuNetIoService, softnic::Device)> {
        let setup = Setup::default();
        let nic = softnic::Device::open("soft0", setup.nic)?;
        let device = (backend.device)(bootstrap.rank());
        let config = GpuNetIoConfig {
            queue: (backend.queue)(setup.queue),
            ..GpuNetIoConfig::default()
        };
        let hca = Provider::chosen().hca(nic.clone());
        let service = GpuNetIoService::with_config(bootstrap, hca, device, config)?;
        Ok((service, nic))
    }

    fn setup(
        &self,
        bootstrap: &Arc<TcpBootstrap>,
        backend: &Backend,
        phase: &'static str,
    ) -> TestResult {
        let rank = bootstrap.rank();
        let over: Arc<dyn Bootstrap> = if self.is_victim(rank) {
            let words = Arc::clone(&self.words);
            Arc::new(Halting::new(bootstrap.clone(), phase, move || halt(&words)))
        } else {
            bootstrap.clone()
        };
        let (service, nic) = self.service(over, backend)?;
        bootstrap.barrier()?;
        if !self.is_victim(rank) && self.victim < RANKS {
            println!("{WAITING}");
        }
        let done = service.setup_full_mesh(1, 0);
        let result = done.map_err(anyhow::Error::from).and_then(|()| {
            if self.victim == RANKS {
                return Ok(());
            }
            // The last gate was open already: then it is the connections that fail.
            let connection = service.connect(self.waits_for(rank), 0)?;
            Err(error_of(&connection)?.into())
        });
        drop(service);
        gone(&nic)?;
        result
    }

    fn one_edge(
        &self,
        bootstrap: &Arc<TcpBootstrap>,
        backend: &Backend,
        again: bool,
    ) -> TestResult {
        let rank = bootstrap.rank();
        let (service, nic) = self.service(bootstrap.clone(), backend)?;
        if again {
            service.setup_full_mesh(1, 0)?;
        }
        bootstrap.barrier()?;
        let deadline = Deadline::after(JOINS);
        self.moment(rank);
        let mut made = Vec::new();
        let result = (self.partners(rank).into_iter()).try_for_each(|peer| {
            // Between two ranks each call has a tag of its own.
            let tag = 10 + (rank + peer) as u32;
            if again {
                return service.rebuild(peer, tag, deadline);
            }
            made.extend(service.connect_on_demand(peer, 1, tag, deadline)?);
            Ok(())
        });
        if self.victim == RANKS {
            // Nobody drops a queue that another is still making.
            bootstrap.barrier()?;
        }
        drop(made);
        drop(service);
        gone(&nic)?;
        Ok(result?)
    }

    fn exchange(
        &self,
        context: &Context,
        bootstrap: &Arc<TcpBootstrap>,
        backend: &'static Backend,
        half: Half,
    ) -> TestResult {
        let fixture = Fixture::over(context, backend, &Setup::default(), bootstrap.clone())?;
        bootstrap.barrier()?;
        let result = self.exchange_over(&fixture, bootstrap, half);
        let_go(fixture)?;
        result
    }

    fn exchange_over(&self, fixture: &Fixture, bootstrap: &TcpBootstrap, half: Half) -> TestResult {
        let rank = bootstrap.rank();
        let memory = fixture.register(&fixture.buffer(BYTES)?)?;
        let communicator = &fixture.communicator;
        let partners = self.partners(rank);
        let at = |this: Half| {
            if this == half {
                self.moment(rank);
            }
        };
        at(Half::Endpoint);
        let pending: Vec<_> = (partners.iter())
            .map(|peer| communicator.connect(fixture.endpoint, *peer, 0))
            .collect::<Result<_, _>>()?;
        let connections: Vec<_> = (pending.iter())
            .map(|pending| pending.get())
            .collect::<Result<_, _>>()?;
        at(Half::Memory);
        for peer in &partners {
            communicator.send_memory(&memory, *peer, 0)?;
        }
        for peer in &partners {
            communicator.recv_memory(*peer, 0)?.get()?;
        }
        at(Half::Semaphore);
        let pending: Vec<_> = (partners.iter().zip(&connections))
            .map(|(peer, connection)| communicator.build_semaphore(connection, *peer, 0))
            .collect::<Result<_, _>>()?;
        let semaphores: Vec<_> = (pending.iter())
            .map(|pending| pending.get())
            .collect::<Result<_, _>>()?;
        if self.victim == RANKS {
            // Nobody lets go of memory, or of a token, that another is still mapping.
            bootstrap.barrier()?;
        }
        drop(semaphores);
        Ok(())
    }

    fn call(
        &self,
        context: &Context,
        bootstrap: &Arc<TcpBootstrap>,
        backend: &'static Backend,
        operation: Operation,
    ) -> TestResult {
        let fixture = Fixture::over(context, backend, &Setup::default(), bootstrap.clone())?;
        let result = self.call_over(context, &fixture, bootstrap, operation);
        let_go(fixture)?;
        result
    }

    fn call_over(
        &self,
        context: &Context,
        fixture: &Fixture,
        bootstrap: &TcpBootstrap,
        operation: Operation,
    ) -> TestResult {
        let rank = bootstrap.rank();
        let memory = fixture.register(&fixture.buffer(BYTES)?)?;
        let links = fixture.link(&fixture.peers(), 0, &memory, &memory)?;
        let link = link_to(&links, self.waits_for(rank))?;
        let once = match operation {
            Operation::Wait => vec![(0, Call::Wait)],
            Operation::Put => vec![(0, Call::Put(link.first(BYTES)))],
            Operation::Signal => vec![(0, Call::Signal)],
            Operation::Flush => vec![(0, Call::Put(link.first(8))), (0, Call::Flush)],
            Operation::PutWithSignal => vec![(0, Call::PutWithSignal(link.first(BYTES)))],
            Operation::PutWithSignalAndFlush => {
                vec![(0, Call::PutWithSignalAndFlush(link.first(BYTES)))]
            }
            Operation::Accumulate => vec![(0, Call::Accumulate(link.dst, 0, 1))],
            Operation::Get => vec![(0, Call::Get(link.first(BYTES)))],
        };
        let mut calls = once.repeat(CALLS);
        if operation != Operation::Wait {
            // A proxy's errors show in flushes only.
            calls.push((0, Call::Flush));
        }
        bootstrap.barrier()?;
        if self.victim == RANKS {
            return self.others_go_on(context, bootstrap, &links);
        }
        println!("{WAITING}");
        let failed = loop {
            let kernel = Steps::launch(&[link.base()], &calls)?;
            let done = kernel.finish(context.deadline())?;
            let statuses: Vec<Status> = (done.into_iter())
                .map(|done| done.status())
                .collect::<Result<_, _>>()?;
            if let Some(failed) = statuses.into_iter().find(|status| *status != Status::Ok) {
                break failed;
            }
        };
        // A request to a dead rank may fail before the death is known.
        let right = matches!(failed, Status::PeerDown | Status::QueueError);
        ensure!(right, "a call returns {failed:?}");
        let error = error_of(&link.connection)?;
        self.fails_at_once(context, link)?;
        if !self.is_victim(rank) {
            self.others_go_on(context, bootstrap, &links)?;
        }
        Err(error.into())
    }

    /// Later calls on the dead rank's channel do not wait.
    fn fails_at_once(&self, context: &Context, link: &Link) -> TestResult {
        let begun = Instant::now();
        let calls = [(0, Call::Signal), (0, Call::Flush)];
        let kernel = Steps::launch(&[link.base()], &calls)?;
        let last = kernel.finish(context.deadline())?.pop();
        let status = last.context("two calls")?.status()?;
        let took = begun.elapsed();
        ensure!(
            status != Status::Ok && took < AT_ONCE,
            "a later flush returns {status:?} after {took:?}"
        );
        Ok(())
    }

    /// The survivors' channels among each other work, and so does their bootstrap.
    fn others_go_on(
        &self,
        context: &Context,
        bootstrap: &TcpBootstrap,
        links: &[Link],
    ) -> TestResult {
        let links: Vec<&Link> = (links.iter())
            .filter(|link| link.peer != self.victim)
            .collect();
        let channels: Vec<_> = links.iter().map(|link| link.base()).collect();
        let each = |call| (0..channels.len()).map(move |channel| (channel, call));
        let calls: Vec<_> = (each(Call::Signal))
            .chain(each(Call::Flush))
            .chain(each(Call::Wait))
            .collect();
        let done = Steps::launch(&channels, &calls)?.finish(context.deadline())?;
        ensure!(
            done.iter().all(|done| done.is_ok()),
            "channels between survivors do not work: {done:?}"
        );
        self.others_meet(bootstrap)
    }

    /// The survivors' bootstrap works without the victim.
    fn others_meet(&self, bootstrap: &TcpBootstrap) -> TestResult {
        let survivors: Vec<usize> = (0..RANKS).filter(|rank| *rank != self.victim).collect();
        let met = bootstrap.group_barrier(&survivors);
        // As text: that the victim is gone is no reason for them, and may not count as one.
        met.map_err(|error| anyhow!("the others do not go on: {error}"))
    }

    fn teardown(
        &self,
        context: &Context,
        bootstrap: &Arc<TcpBootstrap>,
        backend: &'static Backend,
    ) -> TestResult {
        let rank = bootstrap.rank();
        let fixture = Fixture::over(context, backend, &Setup::default(), bootstrap.clone())?;
        let memory = fixture.register(&fixture.buffer(BYTES)?)?;
        let links = fixture.link(&fixture.peers(), 0, &memory, &memory)?;
        bootstrap.barrier()?;
        if self.victim < RANKS {
            halt(&self.words);
        }
        // With something on its way.
        let link = link_to(&links, self.waits_for(rank))?;
        let calls = [(0, Call::Put(link.first(BYTES)))].repeat(CALLS);
        Steps::launch(&[link.base()], &calls)?.finish(context.deadline())?;
        if self.victim == RANKS {
            bootstrap.barrier()?;
        }
        drop((links, memory));
        let_go(fixture)
    }
}

fn link_to(links: &[Link], peer: usize) -> anyhow::Result<&Link> {
    (links.iter().find(|link| link.peer == peer)).context("a link to each peer")
}

/// Drops the last of what a rank has on its backend.
fn let_go(fixture: Fixture) -> TestResult {
    let nic = fixture.nic.clone();
    drop(fixture);
    nic.as_ref().map_or(Ok(()), gone)
}

/// Fails if a NIC in software still has something.
fn gone(nic: &softnic::Device) -> TestResult {
    let begun = Instant::now();
    loop {
        let live = nic.counters().live;
        if live == softnic::LiveObjects::default() {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(3),
            "the NIC keeps {live:?}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}
