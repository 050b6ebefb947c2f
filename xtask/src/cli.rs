// SPDX-License-Identifier: MIT
//! The command line.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::bench::{BenchArgs, bench};
use crate::bindings;
use crate::dist::cli::DistArgs;
use crate::doctor::DoctorArgs;
use crate::examples::cli::ExamplesArgs;
use crate::fuzz::{Fuzz, fuzz};
use crate::gpu::cli::{GpuPackArgs, GpuRunArgs};
use crate::known::backend;
use crate::launch::{Launch, LaunchError, print_line};
use crate::rank_output::{Notes, rank_output};
use crate::repeat::Repeat;
use crate::report::cli::ReportArgs;
use crate::rxe::cli::{RxeRunArgs, TestRxeArgs};
use crate::sanitize::Sanitizer;
use crate::scale::ScaleArgs;
use crate::soak::SoakArgs;
use crate::supervise::Interrupt;
use crate::tally::Tally;
use crate::test_cpu::{TestCpu, test_cpu};
use crate::test_mp::{Launcher, Profile, TestMp, test_mp};
use crate::trace::TraceArgs;
use crate::{check, closed_pipe, docs, fetch, plot};

/// The project's tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    TestCpu(TestCpuArgs),
    TestMp(TestMpArgs),
    Fuzz(FuzzArgs),
    Bindings(BindingsArgs),
    Doctor(DoctorArgs),
    TestRxe(TestRxeArgs),
    Bench(BenchArgs),
    Plot(PlotArgs),
    Report(ReportArgs),
    Trace(TraceArgs),
    Scale(ScaleArgs),
    Soak(SoakArgs),
    GpuPack(GpuPackArgs),
    GpuRun(GpuRunArgs),
    RxeRun(RxeRunArgs),
    Examples(ExamplesArgs),
    Dist(DistArgs),
    /// Fetch NVIDIA's GPUNetIO, for the feature `gpunetio`
    ///
    /// The commit that third_party.lock names, into the user's cache directory. Does nothing if it is
    /// there, unchanged. With GPUNETIO_SOURCE_DIR set, checks that checkout instead; if it is another
    /// commit or changed, GPUNETIO_ALLOW_UNPINNED=1 makes of the error a warning.
    Fetch,
    /// Check format, lints, documentation, licence headers, file sizes and third_party.lock
    Check,
    DocCommands(DocCommandsArgs),
    Launch(LaunchArgs),
    /// Run a rank under mpirun, mark its output and note how it ended
    #[command(hide = true)]
    RankOutput {
        /// The job's directory
        #[arg(long)]
        notes: PathBuf,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// Run every test that needs no second process
///
/// Unit, property, fuzz, compile and documentation tests of all crates, then the loom models. What
/// cannot run on this machine (a compiler that is not installed, say) is skipped with its reason.
/// The last line is `N passed, N failed, N skipped`.
#[derive(Debug, Args)]
struct TestCpuArgs {
    /// Run only tests whose name contains this text; none is an error
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    filter: Option<String>,
    /// Test only this package; may be given several times
    #[arg(long = "package", short, value_name = "NAME", conflicts_with = "seeds")]
    packages: Vec<String>,
    /// Build with AddressSanitizer and LeakSanitizer, or with ThreadSanitizer; leaves out
    /// documentation tests, loom models, mutants, what only compiles kernels, and the crates in which
    /// there is nothing for it to find
    #[arg(long, value_enum, value_name = "KIND", num_args = 0..=1, require_equals = true,
          default_missing_value = "address")]
    sanitize: Option<Sanitizer>,
    /// Run only the device code's tests on weak memory, with so many seeds each; prints how many
    /// schedules that were
    #[arg(long, value_name = "N", conflicts_with = "sanitize",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: Option<u64>,
    /// Stop after this many seconds, builds included
    #[arg(long, value_name = "SECONDS", default_value = "1800", value_parser = seconds)]
    timeout: Duration,
}

/// Run the conformance suite, one process per rank, on this machine
///
/// The last line is `N passed, N failed, N skipped`. Output of ranks other than 0 is marked with
/// `[rank]`. When a rank dies, the others end by themselves or are stopped.
#[derive(Debug, Args)]
struct TestMpArgs {
    /// How many ranks
    #[arg(short, default_value = "2", value_name = "N", value_parser = ranks)]
    n: usize,
    /// Run only tests whose `Suite.Test` contains this text, or one of several with commas between; with a
    /// dash before the first (-Kill,Blocked) those that contain none
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    filter: Option<String>,
    /// Run only tests of backends whose name contains this text, such as proxy-ethernet
    #[arg(long, value_name = "TEXT", value_parser = backend)]
    backend: Option<String>,
    /// Whose queues kernels post to, of backends where they do: soft, or doca:soft0 for NVIDIA's
    /// GPUNetIO on a NIC in software, of which GPUNETIO_LIBRARY names a shared object
    #[arg(long, value_name = "NAME", value_parser = ["soft", "doca:soft0"])]
    provider: Option<String>,
    /// Run only tests that more than so many ranks can take part in
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true)]
    ranks_above: usize,
    /// Leave out the tests that measure
    #[arg(long)]
    exclude_perf_tests: bool,
    /// What starts the ranks
    #[arg(long, value_enum, default_value = "auto")]
    launcher: Launcher,
    /// How much each test does
    #[arg(long, value_enum, default_value = "quick")]
    profile: Profile,
    /// Build with AddressSanitizer and LeakSanitizer, not optimised
    #[arg(long)]
    sanitize: bool,
    /// Run this suite, which is built already
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "sanitize")]
    program: Option<PathBuf>,
    /// Run the suite N times by the local launcher, print a line a run and `N runs, F failed`, and
    /// keep what failed runs printed below the target directory
    #[arg(long, value_name = "N", value_parser = ranks)]
    repeat: Option<usize>,
    /// How many of these runs at a time
    #[arg(long, value_name = "J", default_value = "1", value_parser = ranks, requires = "repeat")]
    jobs: usize,
    /// Keep this many cores busy meanwhile
    #[arg(long, value_name = "CORES", default_value = "0", requires = "repeat")]
    busy: u8,
    /// Stop after this many seconds, the build not included; with --repeat, each run
    #[arg(long, value_name = "SECONDS", default_value = "1800", value_parser = seconds)]
    timeout: Duration,
}

/// Give every decoder bytes that nobody sends, guided by coverage
///
/// Prints progress, a table, and what was found. The corpus of each target is kept in the target
/// directory (fuzz/targets), and the next run begins with it. The last line is `N passed, N failed,
/// N skipped`.
#[derive(Debug, Args)]
struct FuzzArgs {
    /// For how long each target runs
    #[arg(long, value_name = "N", default_value = "60", value_parser = seconds)]
    seconds: Duration,
    /// Only targets whose name contains this text
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// How many run at a time [default: as many as there are CPUs]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Name the targets and end
    #[arg(long)]
    list: bool,
}

/// Hold the declarations of mscclpp-ib-sys against the headers of the system's rdma-core
///
/// Size, alignment and fields of every structure, every constant, and sizes of every function's
/// arguments, as bindgen and rdma-sys have them. Needs libclang and the headers; without them it is
/// skipped, and says what to install.
#[derive(Debug, Args)]
struct BindingsArgs {
    /// Compare; nothing is ever generated
    #[arg(long, required = true)]
    check: bool,
    /// Stop after this many seconds, the build included
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    timeout: Duration,
}

/// Draw a report of `bench` as SVG files
#[derive(Debug, Args)]
struct PlotArgs {
    /// The report
    #[arg(value_name = "FILE")]
    report: PathBuf,
    /// The directory for the files
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

/// Run the commands of README.md and docs/ that are marked for it
///
/// Each has to succeed and to print the lines that the page shows. The last line is
/// `N passed, N failed, N skipped`.
#[derive(Debug, Args)]
struct DocCommandsArgs {
    /// Stop after this many seconds, builds included
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    timeout: Duration,
}

/// Start N processes of a program on this machine, as ranks of one job
///
/// Each rank finds in its environment MSCCLPP_RANK, MSCCLPP_WORLD_SIZE, MSCCLPP_LOCAL_RANK,
/// MSCCLPP_LOCAL_SIZE, MSCCLPP_ROOT (a file through which rank 0 publishes its address) and
/// MSCCLPP_SECRET_FILE (a fresh secret, readable by this user only, removed at the end). The ranks
/// use the loopback interface, unless MSCCLPP_SOCKET_IFNAME is set.
///
/// Output is passed on line by line with `[rank]` before it; standard input is empty. When a rank
/// fails, the others may go on for the grace period, then they get SIGTERM and, 2 seconds later,
/// SIGKILL; so at the timeout and on Ctrl-C. The exit status is that of the rank that failed first
/// (128 and the number for a signal), 124 at the timeout, 0 if all ranks ended well.
#[derive(Debug, Args)]
struct LaunchArgs {
    /// How many ranks
    #[arg(short, value_name = "N", value_parser = ranks)]
    n: usize,
    /// Stop after this many seconds [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Seconds that the other ranks have when one fails
    #[arg(long, value_name = "SECONDS", default_value = "8", value_parser = seconds)]
    grace: Duration,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// At most a million seconds, so that no sum of times overflows.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: u64 = text.parse().map_err(|_| "not a number of seconds")?;
    if !(1..=1_000_000).contains(&number) {
        return Err("between 1 and 1000000 seconds".into());
    }
    Ok(Duration::from_secs(number))
}

pub(crate) fn ranks(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|_| "not a number of ranks")?;
    if !(1..=1024).contains(&number) {
        return Err("between 1 and 1024 ranks".into());
    }
    Ok(number)
}

impl Cli {
    /// Does what was asked for.
    pub fn run(self, interrupt: &Interrupt) -> ExitCode {
        let result = match self.command {
            Task::TestCpu(args) => return tests(args.run(interrupt)),
            Task::TestMp(args) => return tests(args.run(interrupt)),
            Task::Fuzz(args) => return tests(args.run(interrupt)),
            Task::Bindings(args) => return tests(bindings::check(args.timeout, interrupt)),
            Task::TestRxe(args) => return tests(args.run(interrupt)),
            Task::Doctor(args) => match args.run(interrupt) {
                Ok(code) => return code,
                Err(error) => Err(error),
            },
            Task::Examples(args) => return tests(args.run(interrupt)),
            Task::Dist(args) if args.check => return tests(args.check(interrupt)),
            Task::Dist(args) => args.run(interrupt),
            Task::Bench(args) => bench(&args, interrupt),
            Task::Report(args) => args.run(),
            Task::Trace(args) => args.run(interrupt),
            Task::Plot(args) => plot::plot(&args.report, &args.output),
            Task::Scale(args) => args.run(interrupt),
            Task::Soak(args) => args.run(interrupt),
            Task::GpuPack(args) => args.run(interrupt),
            Task::GpuRun(args) => args.run(interrupt),
            Task::RxeRun(args) => match args.run(interrupt) {
                Ok(code) => return code,
                Err(error) => Err(error),
            },
            Task::Fetch => fetch::fetch(interrupt),
            Task::Check => check::check(interrupt),
            Task::DocCommands(args) => return tests(docs::run::run(args.timeout, interrupt)),
            Task::Launch(args) => args.run(interrupt),
            Task::RankOutput { notes, command } => {
                match rank_output(&command, &Notes::new(notes), interrupt) {
                    Ok(code) => return code,
                    Err(error) => Err(error),
                }
            }
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&error);
                let code = error.downcast_ref().map_or(1, LaunchError::exit_code);
                code.into()
            }
        }
    }
}

/// Says why a command failed, unless it is that nobody reads what it says.
fn complain(error: &anyhow::Error) {
    if !closed_pipe::noted() {
        eprintln!("error: {error:#}");
    }
}

/// The end of a test command: its last line is the tally, whatever happened.
fn tests(result: Result<Tally>) -> ExitCode {
    match result {
        Ok(tally) if tally.failed == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            complain(&error);
            let tally = Tally {
                failed: 1,
                ..Tally::default()
            };
            println!("{tally}");
            ExitCode::FAILURE
        }
    }
}

impl TestCpuArgs {
    fn run(self, interrupt: &Interrupt) -> Result<Tally> {
        let options = TestCpu {
            filter: self.filter,
            packages: self.packages,
            sanitize: self.sanitize,
            seeds: self.seeds,
            timeout: self.timeout,
        };
        test_cpu(&options, interrupt)
    }
}

impl TestMpArgs {
    fn run(self, interrupt: &Interrupt) -> Result<Tally> {
        let options = TestMp {
            ranks: self.n,
            filter: self.filter,
            backend: self.backend,
            provider: self.provider,
            ranks_above: self.ranks_above,
            exclude_perf_tests: self.exclude_perf_tests,
            launcher: self.launcher,
            profile: self.profile,
            sanitize: self.sanitize.then_some(Sanitizer::Address),
            program: self.program,
            repeat: self.repeat.map(|runs| Repeat {
                runs,
                jobs: self.jobs,
                busy: self.busy.into(),
            }),
            timeout: self.timeout,
        };
        test_mp(&options, interrupt)
    }
}

impl FuzzArgs {
    fn run(self, interrupt: &Interrupt) -> Result<Tally> {
        let options = Fuzz {
            time: self.seconds,
            target: self.target,
            jobs: self.jobs,
            list: self.list,
        };
        fuzz(&options, interrupt)
    }
}

impl LaunchArgs {
    fn run(self, interrupt: &Interrupt) -> Result<()> {
        let mut words = self.command.into_iter();
        // clap asks for at least one word.
        let program = words.next().unwrap_or_default();
        Launch::new(self.n, program)
            .args(words)
            .timeout(self.timeout)
            .grace(self.grace)
            .run(interrupt, &mut print_line)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_users_are_told_to_type_is_understood() {
        for words in [
            "test-cpu",
            "test-cpu --filter fifo",
            "test-cpu --sanitize",
            "test-cpu --sanitize=thread --filter fifo",
            "test-cpu --seeds 1000 --filter weak",
            "test-mp -n 4 --filter -Perf --exclude-perf-tests --launcher local --profile full",
            "test-mp --launcher mpirun --timeout 60",
            "test-mp --repeat 200 --jobs 8 --busy 2 --filter -Kill",
            "test-rxe",
            "test-rxe -n 2 --filter Atomic --timeout 60",
            "fuzz --seconds 5 --target decode --jobs 2",
            "fuzz --list",
            "bench --quick --suite ping-pong --json out.json -n 2",
            "bindings --check",
            "doctor",
            "doctor --json",
            "bench --html out.html --compare old.json --fail-above 10",
            "plot out.json -o plots",
            "report out.json -o out.html --compare old.json --fail-above 7.5",
            "soak --minutes 30 --ranks 4 --seed 7 --json out.json",
            "soak --seconds 20",
            "scale --processes 64 --ranks 0 --degrees 1,4 --json out.json --plots plots",
            "gpu-pack -o packed",
            "gpu-run --out results --only suite --filter -Perf --stress 60 --timeout 300",
            "rxe-run --network two --timeout 60 -- ibv_devinfo -v",
            "fetch",
            "examples --filter ring --timeout 60",
            "dist --prefix out --gpunetio",
            "dist --check",
            "check",
            "doc-commands --timeout 60",
            "launch -n 2 --timeout 5 --grace 1 -- /bin/true --flag",
        ] {
            let words = ["xtask"].into_iter().chain(words.split(' '));
            Cli::try_parse_from(words).unwrap();
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            "launch -n 2",
            "launch -- /bin/true",
            "launch -n 0 -- /bin/true",
            "test-mp -n -1",
            "test-mp --timeout 0",
            "test-cpu --sanitize=memory",
            "test-cpu --sanitize --seeds 5",
            "test-cpu --seeds 0",
            "test-mp --jobs 2",
            "test-mp --repeat 0",
            "test-mp --timeout 99999999999999999999",
            "fuzz --seconds 0",
            "fuzz --jobs 0",
            "bench --json",
            "bench --suite nope",
            "bench --backend nope",
            "bench -n 1",
            "test-mp --backend nope",
            "bench --fail-above 10",
            "report",
            "report out.json --compare old.json --fail-above -1",
            "bindings",
            "dist",
            "dist --check --prefix out",
            "rxe-run",
            "rxe-run ibv_devinfo",
            "gpu-run",
            "gpu-run --out results --only everything",
            "gpu-run --out results --suite nope",
            "gpu-run --out results --backend proxy-ib-host",
            "trace",
            "trace --keep a.json",
        ] {
            let words = ["xtask"].into_iter().chain(words.split(' '));
            assert!(Cli::try_parse_from(words).is_err());
        }
    }
}
