// SPDX-License-Identifier: MIT
//! Runs the jobs of one moment, one after the other, at one port.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use mscclpp_bootstrap::Deadline;
use rustix::process::Signal;

use super::RANKS;
use super::fault::{Fault, SILENCE, close_sockets, stop};
use super::left::Left;
use super::moment::{Moment, What};
use super::network::Network;
use super::play::{CLEAN, ENDED, JOIN_TIME, NAMED, PART, WAITING};
use crate::harness::{Context, Job, Place, Skip};

/// How long ranks may take to come to the moment.
const COMES: Duration = Duration::from_secs(30);
/// How long a rank that has said how it ended may take to let go of all and to leave.
const LEAVES: Duration = Duration::from_secs(10);
/// How much longer than that a teardown may take whose peer is not there any more.
const TEARDOWN: Duration = Duration::from_secs(6);
/// Where nobody can check in, because rank 0 is not there yet, ranks look for it after this.
const LOOKS_FOR_IT: Duration = Duration::from_millis(400);
/// What rank 0 of a join logs of each other rank, and the filter by which it does.
const CHECKED_IN: &str = "checked in with rank 0";
const LOGS_IT: (&str, &str) = ("RUST_LOG", "mscclpp_bootstrap=debug");

/// A link that is cut for a part of the silence, such that TCP sends again only when that is over: after
/// 0.2, 0.6, 1.4, 3 and 6.2 s.
const BRIEFLY: (Duration, Duration) = (Duration::from_millis(3200), Duration::from_secs(5));

/// The jobs of one moment.
pub(super) struct Jobs<'a> {
    context: &'a Context,
    number: usize,
    what: What,
    port: u16,
    /// Made when it is first needed.
    network: Option<Network>,
}

impl<'a> Jobs<'a> {
    pub(super) fn new(
        context: &'a Context,
        number: usize,
        moment: &Moment,
    ) -> anyhow::Result<Self> {
        // Free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        Ok(Self {
            context,
            number,
            what: moment.what,
            port,
            network: None,
        })
    }

    /// One case; how long it took from the fault until the last survivor told of it.
    pub(super) fn run(&mut self, fault: Fault, victim: usize) -> anyhow::Result<Duration> {
        let files = Left::of_machine();
        if fault == Fault::Cut {
            self.make_network()?;
        }
        let place = match (&self.network, fault) {
            (Some(network), Fault::Cut) => network.place(),
            _ => self.place(),
        };
        let took = self.case(place, fault, victim);
        if let (Some(network), Fault::Cut) = (&self.network, fault) {
            // It was not cut if the job did not come so far.
            let healed = network.heal(victim);
            if took.is_ok() {
                healed?;
            }
        }
        let left = files.since(Left::of_machine);
        ensure!(
            left.is_empty() || took.is_err(),
            "on the machine is left: {left}"
        );
        took
    }

    fn make_network(&mut self) -> anyhow::Result<()> {
        if self.network.is_none() {
            let network = Network::new();
            let reason = |error: &anyhow::Error| Skip(format!("no network to cut: {error:#}"));
            self.network = Some(network.map_err(|error| reason(&error))?);
        }
        Ok(())
    }

    /// A rank is cut off for less than a silence. Nobody is dead; and when it dies later, that is told.
    pub(super) fn brief_cut(&mut self, victim: usize) -> anyhow::Result<()> {
        self.make_network()?;
        let network = self.network.as_ref().context("no network")?;
        let (cut, silence) = BRIEFLY;
        let part = format!("{PART}:{}:{victim}", self.number);
        let mut job = self.job_with(network.place(), &part, silence)?;
        for rank in 0..RANKS {
            job.start_rank(rank)?;
        }
        let comes = Deadline::after(COMES);
        for rank in 0..RANKS {
            job.expect(rank, WAITING, comes)?;
        }
        network.cut(victim)?;
        thread::sleep(cut);
        network.heal(victim)?;
        let quiet = Deadline::after(silence);
        for rank in 0..RANKS {
            if let Ok((_, line)) = job.line(rank, quiet) {
                bail!("rank {rank} says: {line}");
            }
        }
        job.kill(victim)?;
        let told = Deadline::after(Fault::Kill.seen_within() + LEAVES);
        for rank in (0..RANKS).filter(|rank| *rank != victim) {
            job.expect(rank, NAMED, told)?;
        }
        Ok(())
    }

    /// A rank that is cut off takes itself out, and accuses none of its neighbours.
    pub(super) fn cut_off(&mut self, victim: usize) -> anyhow::Result<()> {
        self.make_network()?;
        let network = self.network.as_ref().context("no network")?;
        let mut job = self.job(network.place(), &format!("{PART}:{}:{victim}", self.number))?;
        for rank in 0..RANKS {
            job.start_rank(rank)?;
        }
        let comes = Deadline::after(COMES);
        for rank in 0..RANKS {
            job.expect(rank, WAITING, comes)?;
        }
        network.cut(victim)?;
        let limit = Deadline::after(2 * Fault::Cut.seen_within() + LEAVES);
        let said = (0..RANKS).map(|rank| Ok(job.line(rank, limit)?.1));
        let said: anyhow::Result<Vec<String>> = said.collect();
        network.heal(victim)?;
        for (rank, line) in said?.into_iter().enumerate() {
            let right = match rank == victim {
                true => line.contains("it seems to be cut off itself"),
                false => line.starts_with(NAMED),
            };
            ensure!(right, "rank {rank} says: {line}");
        }
        Ok(())
    }

    /// A job in which nothing happens.
    pub(super) fn undisturbed(&mut self) -> anyhow::Result<()> {
        let number = self.number;
        let mut job = self.job(self.place(), &format!("{PART}:{number}:{RANKS}"))?;
        let deadline = self.context.deadline();
        for rank in 0..RANKS {
            job.start_rank(rank)?;
        }
        for rank in 0..RANKS {
            job.expect(rank, ENDED, deadline)?;
            job.expect(rank, CLEAN, deadline)?;
            job.end_well(rank, deadline)?;
        }
        Ok(())
    }

    fn place(&self) -> Place {
        Place {
            root: Some(format!("127.0.0.1:{}", self.port)),
            ..Place::default()
        }
    }

    fn job(&self, place: Place, part: &str) -> anyhow::Result<Job> {
        self.job_with(place, part, SILENCE)
    }

    fn job_with(&self, mut place: Place, part: &str, silence: Duration) -> anyhow::Result<Job> {
        place.variables = vec![
            ("MSCCLPP_SILENCE_TIMEOUT", silence.as_secs_f64().to_string()),
            // What ends before these are through was ended by the fault.
            ("MSCCLPP_BOOTSTRAP_TIMEOUT", "30".into()),
            ("MSCCLPP_CONNECTION_TIMEOUT", "30".into()),
        ];
        if self.what == What::Join {
            let (name, filter) = LOGS_IT;
            place.variables.push((name, filter.into()));
        }
        Job::at(place, part, RANKS)
    }

    fn case(&self, place: Place, fault: Fault, victim: usize) -> anyhow::Result<Duration> {
        let number = self.number;
        let mut job = self.job(place, &format!("{PART}:{number}:{victim}"))?;
        let late = (self.what == What::Join).then(|| match (victim + 1) % RANKS {
            // Nobody has a connection before rank 0 is there.
            0 if fault == Fault::Close => 1,
            next => next,
        });
        for rank in (0..RANKS).filter(|rank| Some(*rank) != late) {
            job.start_rank(rank)?;
        }
        let comes = Deadline::after(COMES);
        for rank in (0..RANKS).filter(|rank| Some(*rank) != late) {
            job.expect(rank, WAITING, comes)?;
        }
        match late {
            Some(0) => thread::sleep(LOOKS_FOR_IT),
            // Rank 0 can only name, and tell, whom it knows.
            Some(_) => checked_in(&job, RANKS - 2, comes)?,
            None => {}
        }

        let begun = Instant::now();
        match fault {
            Fault::Kill => drop(job.kill(victim)?),
            Fault::Stop => stop(job.process(victim)?)?,
            Fault::Close => close_sockets(job.process(victim)?)?,
            Fault::Cut => (self.network.as_ref().context("no network")?).cut(victim)?,
        }
        if let Some(late) = late {
            job.start_rank(late)?;
            job.expect(late, WAITING, comes)?;
        }
        let survivors = (0..RANKS).filter(|rank| *rank != victim);
        if self.what == What::Teardown {
            for rank in survivors.clone() {
                job.tell(rank)?;
            }
        }
        let limit = match self.what {
            // Without rank 0 there is nobody who knows.
            What::Join if victim == 0 || late == Some(0) => JOIN_TIME + fault.seen_within(),
            What::Teardown => TEARDOWN,
            _ => fault.seen_within(),
        };
        let mut last = begun;
        for rank in survivors.clone() {
            let (when, line) = job.line(rank, Deadline::after(2 * limit + LEAVES))?;
            let right = match self.what {
                What::Teardown => line.starts_with(ENDED) || line.starts_with(NAMED),
                _ => line.starts_with(NAMED),
            };
            ensure!(right, "rank {rank} says: {line}");
            let took = when.duration_since(begun);
            ensure!(
                took <= limit,
                "rank {rank} took {took:?}: {line}; stderr: {}",
                job.stderr(rank)
            );
            last = last.max(when);
        }
        let leaves = Deadline::after(LEAVES);
        for rank in survivors {
            job.expect(rank, CLEAN, leaves)?;
            job.end_well(rank, leaves)?;
        }
        if fault != Fault::Kill {
            self.comes_back(&mut job, fault, victim)
                .with_context(|| format!("rank {victim}, the victim, after the others' end"))?;
        }
        Ok(last.duration_since(begun))
    }

    /// The victim goes on, and finds that it is alone.
    fn comes_back(&self, job: &mut Job, fault: Fault, victim: usize) -> anyhow::Result<()> {
        if fault == Fault::Stop {
            job.signal(victim, Signal::CONT)?;
        }
        // It may have ended already, or not wait for a word.
        let _ = job.tell(victim);
        let limit = Deadline::after(8 * SILENCE + JOIN_TIME + TEARDOWN);
        let (_, line) = job.line(victim, limit)?;
        ensure!(!line.starts_with(ENDED), "it was not disturbed: {line}");
        job.expect(victim, CLEAN, limit)?;
        job.end_well(victim, limit)
    }
}

/// Waits until rank 0 knows of so many others that join.
fn checked_in(job: &Job, others: usize, deadline: Deadline) -> anyhow::Result<()> {
    loop {
        let log = job.stderr(0);
        if log.matches(CHECKED_IN).count() >= others {
            return Ok(());
        }
        ensure!(!deadline.expired(), "not all check in; rank 0's log: {log}");
        thread::sleep(Duration::from_millis(2));
    }
}
