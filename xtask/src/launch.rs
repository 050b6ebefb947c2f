// SPDX-License-Identifier: MIT
//! The local launcher: one process per rank on this machine.
//!
//! Each rank gets `MSCCLPP_RANK`, `MSCCLPP_WORLD_SIZE`, `MSCCLPP_LOCAL_RANK`,
//! `MSCCLPP_LOCAL_SIZE`, `MSCCLPP_ROOT` (a file through which rank 0 publishes
//! its address) and `MSCCLPP_SECRET_FILE` (a fresh secret that only this user
//! can read). Both files are removed at the end. All ranks are on this machine,
//! so they use its loopback interface, unless `MSCCLPP_SOCKET_IFNAME` is set.
//!
//! When a rank fails, the others have a grace period to end by themselves and
//! say why; then they get SIGTERM, then SIGKILL. The same happens at the
//! timeout and on Ctrl-C. Ranks are killed when the launcher dies.

use std::ffi::{OsStr, OsString};
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use tempfile::TempDir;

use crate::closed_pipe;
use crate::supervise::{
    Ending, Interrupt, Limits, Line, Member, OnLine, Stream, exit_code, supervise,
};

/// Bytes of randomness in a job's secret.
const SECRET_BYTES: usize = 32;

/// Which network interfaces ranks use, and the value for loopback alone.
const INTERFACE: &str = "MSCCLPP_SOCKET_IFNAME";
const LOOPBACK: &str = "=lo";

/// Variables of the launcher, which must not leak from an outer job into an
/// inner one.
const OWN_VARIABLES: [&str; 7] = [
    "MSCCLPP_RANK",
    "MSCCLPP_WORLD_SIZE",
    "MSCCLPP_LOCAL_RANK",
    "MSCCLPP_LOCAL_SIZE",
    "MSCCLPP_ROOT",
    "MSCCLPP_SECRET",
    "MSCCLPP_SECRET_FILE",
];

/// Why a job did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A job has at least one rank.
    #[error("a job needs at least one rank")]
    NoRanks,
    /// The directory for the secret and the root's address.
    #[error("cannot make the job's temporary directory or its secret")]
    Rendezvous(#[source] io::Error),
    /// A rank's program could not be started; those already started are gone.
    #[error("rank {rank}: cannot start {}", program.display())]
    Spawn {
        /// The rank.
        rank: usize,
        /// What was to be run.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A rank failed.
    #[error("rank {rank} failed first ({status}){}", stopped_note(stopped))]
    Rank {
        /// The rank that failed first.
        rank: usize,
        /// How it ended.
        status: ExitStatus,
        /// Ranks that did not end by themselves in the grace period.
        stopped: Vec<usize>,
    },
    /// The time was up.
    #[error("the timeout of {} s is over; still running: rank {}", after.as_secs_f64(), list(running))]
    Deadline {
        /// The limit.
        after: Duration,
        /// Ranks that had to be stopped.
        running: Vec<usize>,
    },
    /// Ctrl-C, SIGTERM or SIGHUP.
    #[error("stopped by signal {signal}")]
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// The ranks' output could not be passed on.
    #[error("cannot pass on the output")]
    Output(#[source] io::Error),
}

impl LaunchError {
    /// The exit status for a program that ends because of this: that of the
    /// rank that failed first, 124 for the timeout, 128 and the signal.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Rank { status, .. } => exit_code(*status),
            Self::Deadline { .. } => 124,
            Self::Interrupted { signal } => u8::try_from(128 + signal).unwrap_or(1),
            _ => 1,
        }
    }
}

fn list(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    names.join(", ")
}

fn stopped_note(stopped: &[usize]) -> String {
    if stopped.is_empty() {
        String::new()
    } else {
        format!("; did not end by themselves: rank {}", list(stopped))
    }
}

/// What a job's ranks share to find each other; removed when dropped.
#[derive(Debug)]
pub struct Rendezvous {
    directory: TempDir,
}

impl Rendezvous {
    /// Makes a directory that only this user can enter, with a fresh secret.
    ///
    /// # Errors
    ///
    /// When the directory or the secret cannot be made.
    pub fn create() -> io::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("mscclpp-launch-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir()?;
        let rendezvous = Self { directory };
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let text: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(rendezvous.secret_file())?
            .write_all(text.as_bytes())?;
        Ok(rendezvous)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The file with the secret, mode 0600.
    pub fn secret_file(&self) -> PathBuf {
        self.path().join("secret")
    }

    /// The file in which rank 0 publishes its address.
    pub fn root_file(&self) -> PathBuf {
        self.path().join("root")
    }

    /// What every rank needs in its environment, the same for all.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut root = OsString::from("file:");
        root.push(self.root_file());
        let mut environment = vec![
            ("MSCCLPP_ROOT", root),
            ("MSCCLPP_SECRET_FILE", self.secret_file().into_os_string()),
        ];
        if std::env::var_os(INTERFACE).is_none() {
            environment.push((INTERFACE, LOOPBACK.into()));
        }
        environment
    }
}

/// Removes what an outer job's launcher may have left in the environment.
pub fn forget_outer_job(command: &mut Command) {
    for name in OWN_VARIABLES {
        command.env_remove(name);
    }
}

/// A job: a program to be run once per rank.
#[derive(Clone, Debug)]
pub struct Launch {
    ranks: usize,
    program: OsString,
    args: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    limits: Limits,
}

impl Launch {
    /// `ranks` times `program`, without arguments or a timeout.
    pub fn new(ranks: usize, program: impl Into<OsString>) -> Self {
        Self {
            ranks,
            program: program.into(),
            args: Vec::new(),
            environment: Vec::new(),
            limits: Limits::default(),
        }
    }

    /// Adds arguments, the same for all ranks.
    #[must_use]
    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of the environment, the same for all ranks.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Stops the job when it runs for longer than this.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.limits.timeout = timeout.into();
        self
    }

    /// How long the others may go on after the first failure.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.limits.grace = grace;
        self
    }

    /// Runs the job to its end, whatever that is. Each line of output goes to
    /// `on_line` on the calling thread; [`Line::index`] is the rank.
    ///
    /// # Errors
    ///
    /// [`LaunchError`], unless each rank ended with success.
    pub fn run(&self, interrupt: &Interrupt, on_line: OnLine<'_>) -> Result<(), LaunchError> {
        if self.ranks == 0 {
            return Err(LaunchError::NoRanks);
        }
        let rendezvous = Rendezvous::create().map_err(LaunchError::Rendezvous)?;
        let members = (0..self.ranks)
            .map(|rank| Member::new(self.command(rank, &rendezvous)))
            .collect();
        let ending = supervise(members, &self.limits, interrupt, on_line).map_err(|error| {
            LaunchError::Spawn {
                rank: error.index,
                program: PathBuf::from(&self.program),
                source: error.source,
            }
        })?;
        match ending {
            Ending::Finished => Ok(()),
            Ending::Failed {
                index,
                status,
                stopped,
            } => Err(LaunchError::Rank {
                rank: index,
                status,
                stopped,
            }),
            Ending::Deadline { running } => Err(LaunchError::Deadline {
                after: self.limits.timeout.unwrap_or_default(),
                running,
            }),
            Ending::Interrupted { signal } => Err(LaunchError::Interrupted { signal }),
            Ending::Output(error) => Err(LaunchError::Output(error)),
        }
    }

    fn command(&self, rank: usize, rendezvous: &Rendezvous) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        forget_outer_job(&mut command);
        let number = |value: usize| OsString::from(value.to_string());
        command
            .env("MSCCLPP_RANK", number(rank))
            .env("MSCCLPP_WORLD_SIZE", number(self.ranks))
            .env("MSCCLPP_LOCAL_RANK", number(rank))
            .env("MSCCLPP_LOCAL_SIZE", number(self.ranks))
            .envs(rendezvous.environment());
        command
    }
}

/// Writes a line where it belongs, with `prefix` before it.
///
/// # Errors
///
/// When nobody reads any more.
pub fn write_line(stream: Stream, prefix: &str, bytes: &[u8]) -> io::Result<()> {
    let mut text = Vec::with_capacity(prefix.len() + bytes.len() + 1);
    text.extend_from_slice(prefix.as_bytes());
    text.extend_from_slice(bytes);
    text.push(b'\n');
    let written = match stream {
        Stream::Out => {
            let mut out = io::stdout().lock();
            out.write_all(&text).and_then(|()| out.flush())
        }
        Stream::Err => io::stderr().lock().write_all(&text),
    };
    written.inspect_err(closed_pipe::note)
}

/// Prints a rank's line as `[rank] line`, to the stream it came from.
///
/// # Errors
///
/// When nobody reads any more.
pub fn print_line(line: &Line) -> io::Result<()> {
    write_line(line.stream, &format!("[{}] ", line.index), &line.bytes)
}

/// As [`print_line`], but rank 0 speaks for the job and has no prefix.
///
/// # Errors
///
/// When nobody reads any more.
pub fn print_line_but_zero(line: &Line) -> io::Result<()> {
    if line.index == 0 {
        write_line(line.stream, "", &line.bytes)
    } else {
        print_line(line)
    }
}

/// The path of `program` on the search path, as a shell would find it.
pub fn find_program(program: impl AsRef<OsStr>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program.as_ref()))
        .find(|candidate| {
            rustix::fs::access(candidate, rustix::fs::Access::EXEC_OK).is_ok()
                && candidate.is_file()
        })
}
