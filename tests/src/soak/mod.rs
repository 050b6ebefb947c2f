// SPDX-License-Identifier: MIT
//! Hours of everything at once: operations on all backends of this machine, under faults, with data
//! that are checked. What the ranks hold must not grow.
//!
//! A run consists of *eras*. In each, all ranks make something, use it and drop it; between two of them
//! each takes a look at what it holds. Which era comes next, what is done in it and which faults there
//! are follows from the run's seed.

mod count;
mod draw;
mod endpoints;
mod helpers;
mod judge;
mod lanes;
mod options;
mod report;
mod sample;
mod services;

use std::fs::File;
use std::mem;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use mscclpp_bootstrap::{Bootstrap, Deadline, TcpBootstrap};

use self::count::Counts;
use self::draw::draw;
pub use self::helpers::play;
use self::lanes::Moment;
use self::options::Leak;
pub use self::options::Options;
use self::sample::Sample;
use self::services::Lasting;
use crate::backend::{Backend, Executor};
use crate::harness::{Context, TestResult};

/// How long ranks may take to find each other.
const MEET: Duration = Duration::from_secs(60);
/// How often a run tells how it goes.
const TELLS_EVERY: Duration = Duration::from_secs(10);

/// How long an era may take, on a machine that does other things too.
struct Era(Duration);

const ERA: Era = Era(Duration::from_secs(90));

impl Era {
    fn deadline(&self) -> Deadline {
        Deadline::after(self.0)
    }
}

/// A rank of the run.
struct Rank {
    bootstrap: Arc<TcpBootstrap>,
    seed: u64,
    era: u64,
    counts: Counts,
    /// Backends that all ranks can run.
    backends: Vec<&'static Backend>,
    /// Threads of the present exchange.
    helpers: Vec<JoinHandle<()>>,
}

impl Rank {
    fn rank(&self) -> usize {
        self.bootstrap.rank()
    }

    fn ranks(&self) -> usize {
        self.bootstrap.world_size()
    }

    fn moment(&self, exchange: u64) -> Moment {
        Moment {
            seed: self.seed,
            era: self.era,
            exchange,
        }
    }

    fn has(&self, backend: &Backend) -> bool {
        self.backends.iter().any(|has| std::ptr::eq(*has, backend))
    }

    fn meet(&self) -> TestResult {
        Ok(self.bootstrap.barrier()?)
    }

    /// The same, where one of them may need longer than the bootstrap's steps.
    fn meet_for(&self, most: Duration) -> TestResult {
        const TAG: u32 = 77;
        let deadline = Deadline::after(most);
        if self.rank() > 0 {
            self.bootstrap.recv(0, TAG.into(), deadline)?;
        } else {
            for peer in 1..self.ranks() {
                self.bootstrap.send(peer, TAG.into(), b"", deadline)?;
            }
        }
        self.meet()
    }

    /// Whether rank 0 wants another era.
    fn goes_on(&self, until: Instant) -> anyhow::Result<bool> {
        let mine = [u8::from(Instant::now() < until)];
        Ok(self.bootstrap.broadcast(&mine, 0)? == [1])
    }

    /// The next era; its name.
    fn era(&mut self, lasting: &mut Lasting) -> anyhow::Result<String> {
        let mut rng = draw(self.seed, &[self.era]);
        // Jobs beside this one take seconds.
        if self.era % 40 == 20 {
            helpers::run(self, &mut rng).context("helper jobs")?;
            return Ok("helper jobs".into());
        }
        let (name, done) = match rng.u32(0..10) {
            0..=4 => {
                let backend = self.backends[rng.usize(0..self.backends.len())];
                (backend.name, endpoints::run(self, backend, &mut rng))
            }
            5..=7 => ("service", services::come_and_go(self, &mut rng)),
            _ => ("lasting service", lasting.run(self, &mut rng)),
        };
        done.with_context(|| name.to_owned())?;
        self.counts.did(&format!("era: {name}"), 1);
        Ok(name.into())
    }
}

/// Runs one rank; whether nothing grew.
///
/// # Errors
/// When anything goes another way than it should: the era and the seed, to see it again.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    let bootstrap = Arc::new(TcpBootstrap::from_launcher(MEET)?);
    ensure!(
        bootstrap.world_size() >= 2,
        "a soak needs 2 ranks or more: `cargo xtask soak` starts them"
    );
    let mut rank = Rank {
        backends: backends(&bootstrap)?,
        bootstrap,
        seed: options.seed,
        era: 0,
        counts: Counts::default(),
        helpers: Vec::new(),
    };
    let time = Duration::from_secs(options.seconds);
    let every = (time / 600).clamp(Duration::from_millis(250), Duration::from_secs(3));
    let mut lasting = Lasting::new(&rank)?;
    let (begun, mut told) = (Instant::now(), Instant::now());
    let until = begun + time;
    // Room for all: the look must not grow what it looks at.
    let room = time.as_secs_f64() / every.as_secs_f64() + 16.0;
    let mut samples: Vec<Sample> = Vec::with_capacity(room as usize);
    while rank.goes_on(until)? {
        let era = rank.era;
        (rank.era(&mut lasting)).with_context(|| format!("era {era}, seed {}", options.seed))?;
        rank.era += 1;
        if let Some(leak) = options.plant_leak.filter(|_| rank.rank() == 1) {
            plant(leak, &lasting)?;
        }
        let last = samples.last();
        if last.is_none_or(|last| begun.elapsed().as_secs_f64() - last.at >= every.as_secs_f64()) {
            samples.push(Sample::take(begun, lasting.objects(), last)?);
        }
        if rank.rank() == 0 && told.elapsed() >= TELLS_EVERY {
            told = Instant::now();
            report::progress(begun, era, &rank.counts, samples.last());
        }
    }
    rank.meet()?;
    drop(lasting);
    report::finish(&rank, samples, options)
}

/// The backends whose channels this machine can have.
fn backends(bootstrap: &Arc<TcpBootstrap>) -> anyhow::Result<Vec<&'static Backend>> {
    let context = Context::of_job(bootstrap.clone(), ERA.deadline());
    let mut all = Vec::new();
    for (_, backend) in Executor::Host.backends() {
        let obstacle = (backend.obstacle)(&context).unwrap_or_default();
        let told = bootstrap.all_gather(obstacle.as_bytes())?;
        match told.iter().find(|obstacle| !obstacle.is_empty()) {
            None => all.push(backend),
            Some(obstacle) if bootstrap.rank() == 0 => {
                println!(
                    "SKIP {}: {}",
                    backend.name,
                    String::from_utf8_lossy(obstacle)
                );
            }
            Some(_) => {}
        }
    }
    ensure!(!all.is_empty(), "no backend can run here");
    Ok(all)
}

/// Keeps something for ever.
fn plant(leak: Leak, lasting: &Lasting) -> TestResult {
    match leak {
        Leak::Memory => mem::forget(vec![1_u8; 64 << 10]),
        Leak::Descriptors => mem::forget(File::open("/dev/null")?),
        Leak::Threads => drop(thread::spawn(thread::park)),
        Leak::Objects => mem::forget(lasting.register()?),
    }
    Ok(())
}
