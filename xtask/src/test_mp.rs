// SPDX-License-Identifier: MIT
//! `cargo xtask test-mp`: the conformance suite, a process per rank.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::launch::{
    Launch, LaunchError, Rendezvous, forget_outer_job, print_line_but_zero, write_line,
};
use crate::mpi::Mpi;
use crate::rank_output::{LastLine, Notes};
use crate::repeat::{Repeat, repeat};
use crate::sanitize::Sanitizer;
use crate::supervise::{Ending, Interrupt};
use crate::tally::Tally;
use crate::workspace::{SUITE, Workspace, describe, run};

/// What starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Launcher {
    /// `mpirun` when it is there, else the local launcher.
    Auto,
    /// `mpirun` of Open MPI or of a Hydra MPI.
    Mpirun,
    /// The launcher of `cargo xtask launch`.
    Local,
}

/// How much each test does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Sizes and counts for CPU threads on two cores.
    Quick,
    /// Larger sizes and counts.
    Full,
}

impl Profile {
    /// As the suite calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct TestMp {
    /// How many ranks.
    pub ranks: usize,
    /// Only tests whose `Suite.Test` holds this.
    pub filter: Option<String>,
    /// Only tests of backends whose name holds this.
    pub backend: Option<String>,
    /// Whose queues kernels post to: `doca:soft0` needs GPUNetIO.
    pub provider: Option<String>,
    /// Only tests that more than so many ranks can take part in.
    pub ranks_above: usize,
    /// Leave out the tests that measure.
    pub exclude_perf_tests: bool,
    /// What starts the ranks.
    pub launcher: Launcher,
    /// How much each test does.
    pub profile: Profile,
    /// What to build with.
    pub sanitize: Option<Sanitizer>,
    /// The suite, if it is not to be built.
    pub program: Option<PathBuf>,
    /// Run it often, by the local launcher.
    pub repeat: Option<Repeat>,
    /// For the whole run, after the build; for each, if there are several.
    pub timeout: Duration,
}

impl TestMp {
    /// What the suite is told.
    pub fn suite_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["--profile".into(), self.profile.name().into()];
        if let Some(filter) = &self.filter {
            // One word: a filter may begin with a dash.
            args.push(format!("--filter={filter}").into());
        }
        if let Some(backend) = &self.backend {
            args.push(format!("--backend={backend}").into());
        }
        if let Some(provider) = &self.provider {
            args.push(format!("--provider={provider}").into());
        }
        if self.ranks_above > 0 {
            args.push(format!("--ranks-above={}", self.ranks_above).into());
        }
        if self.exclude_perf_tests {
            args.push("--exclude-perf-tests".into());
        }
        args
    }
}

/// The tally that the suite reported, with a failure added when the job failed
/// in a way that the suite did not count.
pub(crate) fn conclude(reported: Option<Tally>, problem: Option<String>) -> Tally {
    let mut tally = reported.unwrap_or_default();
    let problem = match (problem, reported) {
        (None, None) => Some("the suite ended without its last line".to_owned()),
        (None, Some(sum)) if sum == Tally::default() => Some("no test was run".to_owned()),
        (problem, _) => problem,
    };
    if let Some(problem) = problem {
        tally.failed = tally.failed.max(1);
        eprintln!("error: {problem}");
    }
    tally
}

/// Builds and runs the suite; the last line printed is the returned tally.
///
/// # Errors
///
/// When the suite cannot be built or started, or the user interrupts. Tests
/// and ranks that fail are counted in the tally.
pub fn test_mp(options: &TestMp, interrupt: &Interrupt) -> Result<Tally> {
    if options.ranks == 0 {
        bail!(LaunchError::NoRanks);
    }
    let mpi = match (options.repeat, options.launcher) {
        (Some(_), Launcher::Mpirun) => bail!("--repeat starts ranks by the local launcher"),
        (Some(_), _) => None,
        (None, launcher) => choose(launcher, interrupt)?,
    };
    let suite = match &options.program {
        Some(program) => program.clone(),
        None => {
            let provider = options.provider.as_deref().unwrap_or_default();
            let gpunetio = provider.starts_with("doca:");
            if gpunetio && std::env::var_os("GPUNETIO_LIBRARY").is_none_or(|path| path.is_empty()) {
                bail!(
                    "--provider {provider} needs GPUNetIO, and GPUNETIO_LIBRARY, which is to name a \
                     shared object of it, is not set"
                );
            }
            build_suite(options.sanitize, gpunetio, interrupt)?
        }
    };
    if let Some(often) = options.repeat {
        let logs = Workspace::load()?.target;
        return repeat(&suite, options, often, &logs, interrupt);
    }
    let ranks = options.ranks;
    let (reported, problem) = match mpi {
        Some(mpi) => {
            println!("== {ranks} ranks by {}", mpi.program.display());
            under_mpirun(&mpi, &suite, options, interrupt)?
        }
        None => {
            println!("== {ranks} ranks by the local launcher");
            by_local_launcher(&suite, options, interrupt)?
        }
    };
    let tally = conclude(reported, problem);
    println!("{tally}");
    Ok(tally)
}

/// Builds the suite, with GPUNetIO if asked, and returns where it is.
///
/// # Errors
///
/// When it cannot be built.
pub fn build_suite(
    sanitizer: Option<Sanitizer>,
    gpunetio: bool,
    interrupt: &Interrupt,
) -> Result<PathBuf> {
    let workspace = Workspace::load()?;
    let mut cargo = workspace.cargo();
    let mut build = vec!["build", "--package", SUITE, "--bin", "conformance"];
    if gpunetio {
        build.extend(["--features", "gpunetio"]);
    }
    if let Some(sanitizer) = sanitizer {
        sanitizer.apply(&workspace, &mut cargo)?;
    } else {
        build.push("--release");
    }
    Workspace::build(cargo, &build, interrupt)
}

fn choose(launcher: Launcher, interrupt: &Interrupt) -> Result<Option<Mpi>> {
    match launcher {
        Launcher::Local => Ok(None),
        Launcher::Mpirun => match Mpi::find(interrupt) {
            Ok(mpi) => Ok(Some(mpi)),
            Err(why) => bail!("{why}; install Open MPI or MPICH, or use --launcher local"),
        },
        Launcher::Auto => Ok(Mpi::find(interrupt)
            .inspect_err(|why| println!("== no mpirun: {why}"))
            .ok()),
    }
}

/// What the suite reported, and what went wrong with the job.
type Outcome = (Option<Tally>, Option<String>);

fn by_local_launcher(suite: &Path, options: &TestMp, interrupt: &Interrupt) -> Result<Outcome> {
    let mut last = LastLine::default();
    let result = Launch::new(options.ranks, suite)
        .args(options.suite_args())
        .timeout(options.timeout)
        .run(interrupt, &mut |line| {
            if line.index == 0 && last.keep(line) {
                return Ok(());
            }
            print_line_but_zero(line)
        });
    match result {
        Ok(()) => Ok((last.0, None)),
        Err(error @ (LaunchError::Rank { .. } | LaunchError::Deadline { .. })) => {
            Ok((last.0, Some(error.to_string())))
        }
        Err(error) => Err(error.into()),
    }
}

fn under_mpirun(
    mpi: &Mpi,
    suite: &Path,
    options: &TestMp,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let rendezvous = Rendezvous::create().context("the job's temporary directory")?;
    let this = std::env::current_exe().context("where this program is")?;
    let mut rank: Vec<OsString> = vec![this.into(), "rank-output".into()];
    rank.push("--notes".into());
    rank.push(rendezvous.path().into());
    rank.push("--".into());
    rank.push(suite.into());
    rank.extend(options.suite_args());
    let environment = rendezvous.environment();
    let as_root = rustix::process::geteuid().is_root();
    let mut command = Command::new(&mpi.program);
    command.args(mpi.arguments(options.ranks, as_root, &environment, &rank));
    forget_outer_job(&mut command);
    command.envs(environment);
    let ending = run(command, Some(options.timeout), interrupt, &mut |line| {
        write_line(line.stream, "", &line.bytes)
    })?;
    let notes = Notes::new(rendezvous.path());
    let ranks = notes.problem(options.ranks);
    let problem = match &ending {
        Ending::Finished => ranks,
        Ending::Failed { .. } | Ending::Deadline { .. } => {
            let mpirun = format!("mpirun: {}", describe(&ending));
            Some(
                [Some(mpirun), ranks]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join("; "),
            )
        }
        Ending::Interrupted { .. } | Ending::Output(_) => bail!("{}", describe(&ending)),
    };
    Ok((notes.tally(), problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::{Line, Stream};

    #[test]
    fn only_the_output_is_asked_for_the_last_line() {
        let text = "3 passed, 0 failed, 1 skipped";
        let mut last = LastLine::default();
        for (stream, bytes, kept) in [
            (Stream::Out, "PASS A.B", false),
            (Stream::Out, text, true),
            (Stream::Err, "8 passed, 0 failed, 0 skipped", false),
        ] {
            let line = Line {
                index: 0,
                stream,
                bytes: bytes.into(),
            };
            assert_eq!(last.keep(&line), kept, "{bytes}");
        }
        assert_eq!(conclude(last.0, None).to_string(), text);
    }

    #[test]
    fn a_job_that_fails_is_never_reported_without_a_failure() {
        let failed = |text: &str, problem: Option<&str>| {
            conclude(Tally::parse(text), problem.map(str::to_owned)).failed
        };
        let problem = Some("rank 1 failed");
        assert_eq!(failed("3 passed, 0 failed, 0 skipped", problem), 1);
        assert_eq!(failed("3 passed, 2 failed, 0 skipped", problem), 2);
        assert_eq!(failed("0 passed, 0 failed, 0 skipped", None), 1);
        assert_eq!(failed("", None), 1);
        assert_eq!(failed("0 passed, 0 failed, 1 skipped", None), 0);
    }

    #[test]
    fn the_suite_gets_what_was_asked_for() {
        let options = TestMp {
            ranks: 2,
            filter: Some("-Perf,Kill".into()),
            backend: Some("proxy".into()),
            provider: Some("soft".into()),
            ranks_above: 2,
            exclude_perf_tests: true,
            launcher: Launcher::Local,
            profile: Profile::Full,
            sanitize: None,
            program: None,
            repeat: None,
            timeout: Duration::from_secs(1),
        };
        let args = options.suite_args();
        assert_eq!(
            args,
            [
                "--profile",
                "full",
                "--filter=-Perf,Kill",
                "--backend=proxy",
                "--provider=soft",
                "--ranks-above=2",
                "--exclude-perf-tests"
            ]
        );
    }
}
