// SPDX-License-Identifier: MIT
//! Jobs of their own that a test starts on this machine: the test binary again, a process a rank,
//! each playing a part named on its command line.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use mscclpp_bootstrap::Deadline;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::provider::Provider;

/// Variables of launchers. A child must see those of its own job only.
const LAUNCHER_PREFIXES: [&str; 6] = ["OMPI_", "PMI", "SLURM_", "MPI_", "HYDRA_", "MSCCLPP_"];
const LAUNCHER_NAMES: [&str; 5] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// A running job. Dropping it kills what is left of it.
pub struct Job {
    part: String,
    secret: String,
    /// By rank; none is not started yet.
    members: Vec<Option<Member>>,
    directory: TempDir,
    place: Place,
}

/// Where the ranks of a job run, and what they see there. By default on this machine, with a file
/// for the address of rank 0.
#[derive(Clone, Default)]
pub struct Place {
    /// Where the ranks meet.
    pub root: Option<String>,
    /// A command, a rank, that runs the rank's command line in its place.
    pub prefix: Vec<Vec<String>>,
    /// Whether each rank counts as a machine of its own.
    pub apart: bool,
    /// More variables of the environment, for all ranks.
    pub variables: Vec<(&'static str, String)>,
}

struct Member {
    process: Child,
    lines: Receiver<(Instant, String)>,
    errors: PathBuf,
}

impl Job {
    /// Starts `ranks` processes that play `part`, and does not wait for them.
    pub fn start(part: &str, ranks: usize) -> anyhow::Result<Self> {
        Self::start_without(part, ranks, ranks)
    }

    /// The same, but for one rank, which [`Job::start_rank`] starts later.
    pub fn start_without(part: &str, ranks: usize, missing: usize) -> anyhow::Result<Self> {
        let mut job = Self::at(Place::default(), part, ranks)?;
        for rank in (0..ranks).filter(|rank| *rank != missing) {
            job.start_rank(rank)?;
        }
        Ok(job)
    }

    /// A job of which no rank is started yet.
    pub fn at(place: Place, part: &str, ranks: usize) -> anyhow::Result<Self> {
        Ok(Self {
            part: part.to_owned(),
            secret: secret()?,
            members: (0..ranks).map(|_| None).collect(),
            directory: TempDir::new()?,
            place,
        })
    }

    /// Starts a rank that was left out.
    pub fn start_rank(&mut self, rank: usize) -> anyhow::Result<()> {
        let member = self
            .spawn(rank)
            .with_context(|| format!("cannot start rank {rank}"))?;
        self.members[rank] = Some(member);
        Ok(())
    }

    /// The file in which rank 0 publishes its address.
    pub fn root_file(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// The next line that a rank prints, and when it came.
    pub fn line(&self, rank: usize, deadline: Deadline) -> anyhow::Result<(Instant, String)> {
        let member = self.members[rank]
            .as_ref()
            .context("the rank is not started")?;
        member
            .lines
            .recv_timeout(deadline.remaining())
            .map_err(|_| {
                anyhow::anyhow!(
                    "rank {rank} of the job says nothing more; stderr: {}",
                    self.stderr(rank)
                )
            })
    }

    /// What a rank has written to stderr. With `RUST_LOG` that is its log.
    pub fn stderr(&self, rank: usize) -> String {
        let file = self.members[rank].as_ref().map(|member| &member.errors);
        let text = file.and_then(|file| fs::read_to_string(file).ok());
        text.unwrap_or_default().trim().to_owned()
    }

    /// The next line of a rank, without `prefix`, which it must have.
    pub fn expect(&self, rank: usize, prefix: &str, deadline: Deadline) -> anyhow::Result<String> {
        let (_, line) = self.line(rank, deadline)?;
        match line.strip_prefix(prefix) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => bail!(
                "rank {rank} of the job prints `{line}` in place of `{prefix}`; stderr: {}",
                self.stderr(rank)
            ),
        }
    }

    /// Lets a rank that waits in a receive from [`watch_parent`] go on.
    pub fn tell(&mut self, rank: usize) -> anyhow::Result<()> {
        let stdin = self
            .member(rank)?
            .process
            .stdin
            .as_mut()
            .context("stdin is piped")?;
        stdin.write_all(b"\n")?;
        Ok(stdin.flush()?)
    }

    /// Ends a rank by SIGKILL and returns when it was sent.
    pub fn kill(&mut self, rank: usize) -> anyhow::Result<Instant> {
        let now = Instant::now();
        self.member(rank)?.process.kill()?;
        Ok(now)
    }

    /// The process of a rank.
    pub fn process(&mut self, rank: usize) -> anyhow::Result<Pid> {
        Ok(Pid::from_child(&self.member(rank)?.process))
    }

    /// Sends a signal to a rank.
    pub fn signal(&mut self, rank: usize, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(self.process(rank)?, signal)?)
    }

    /// Waits until a rank ends by itself, and well.
    pub fn end_well(&mut self, rank: usize, deadline: Deadline) -> anyhow::Result<()> {
        let member = self.member(rank)?;
        loop {
            if let Some(status) = member.process.try_wait()? {
                let errors = fs::read_to_string(&member.errors).unwrap_or_default();
                let errors = errors.trim();
                ensure!(
                    status.success(),
                    "rank {rank} of the job: {status}; stderr: {errors}"
                );
                return Ok(());
            }
            ensure!(!deadline.expired(), "rank {rank} of the job does not end");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until all ranks ended by themselves, and well.
    pub fn finish(mut self, deadline: Deadline) -> anyhow::Result<()> {
        (0..self.members.len()).try_for_each(|rank| self.end_well(rank, deadline))
    }

    fn member(&mut self, rank: usize) -> anyhow::Result<&mut Member> {
        self.members[rank]
            .as_mut()
            .context("the rank is not started")
    }

    fn spawn(&self, rank: usize) -> anyhow::Result<Member> {
        let ranks = self.members.len();
        let errors = self.directory.path().join(format!("stderr.{rank}"));
        // Of the benchmark's options it is none.
        let provider = Some(Provider::chosen()).filter(|chosen| *chosen != Provider::default());
        let provider = provider.map(|chosen| format!("--provider={}", chosen.name()));
        let program = std::env::current_exe()?;
        let mut command = match self.place.prefix.get(rank).map(Vec::as_slice) {
            Some([first, rest @ ..]) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            _ => Command::new(program),
        };
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let launcher = LAUNCHER_PREFIXES
                .iter()
                .any(|prefix| text.starts_with(prefix))
                || LAUNCHER_NAMES.contains(&text.as_ref());
            if launcher {
                command.env_remove(&name);
            }
        }
        let file = || format!("file:{}", self.root_file().display());
        let (local, on_machine) = match self.place.apart {
            true => (0, 1),
            false => (rank, ranks),
        };
        if self.place.apart {
            command.env("MSCCLPP_HOSTID", format!("machine of rank {rank}"));
        }
        command
            .args(["--child", &self.part])
            .args(provider)
            .env("MSCCLPP_RANK", rank.to_string())
            .env("MSCCLPP_WORLD_SIZE", ranks.to_string())
            .env("MSCCLPP_LOCAL_RANK", local.to_string())
            .env("MSCCLPP_LOCAL_SIZE", on_machine.to_string())
            .env("MSCCLPP_ROOT", self.place.root.clone().unwrap_or_else(file))
            .env("MSCCLPP_SECRET", &self.secret)
            .envs(self.place.variables.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors)?);
        let mut process = command.spawn()?;
        let stdout = process.stdout.take().context("stdout is piped")?;
        let (sender, lines) = mpsc::channel();
        thread::Builder::new()
            .name(format!("job stdout {rank}"))
            .spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if sender.send((Instant::now(), line)).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Member {
            process,
            lines,
            errors,
        })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for (rank, member) in self.members.iter_mut().enumerate() {
            let Some(member) = member else { continue };
            // An error means that it has ended, which is what is wanted.
            let _ = member.process.kill();
            if let Err(error) = member.process.wait() {
                tracing::warn!(rank, %error, "a process of a job cannot be reaped");
            }
        }
    }
}

/// 256 random bits as text.
fn secret() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Ends this process when its parent does, and at the latest after `limit`: a child never outlives
/// its test. Words of the parent come out of the returned channel.
pub fn watch_parent(limit: Duration) -> Receiver<()> {
    let (sender, words) = mpsc::channel();
    thread::spawn(move || {
        for _ in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(());
        }
        std::process::exit(4);
    });
    thread::spawn(move || {
        thread::sleep(limit);
        eprintln!("still running after {limit:?}");
        std::process::exit(3);
    });
    words
}

/// Reads the address that rank 0 published, once it is there.
pub fn published(root_file: &Path, deadline: Deadline) -> anyhow::Result<String> {
    loop {
        match fs::read_to_string(root_file) {
            // The address is the last line.
            Ok(text) => return Ok(text.lines().last().unwrap_or_default().to_owned()),
            Err(error) if deadline.expired() => {
                return Err(error).context("rank 0 of the job does not publish its address");
            }
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}
