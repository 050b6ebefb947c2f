// SPDX-License-Identifier: MIT
//! `cargo xtask examples`: builds and runs the packages under `examples/`, as far as this machine can,
//! and builds packages that use the project's crates in other ways.

pub(crate) mod cli;
pub mod consumers;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Message, MetadataCommand};
use serde::{Deserialize, Serialize};

use crate::launch::{Launch, LaunchError, Rendezvous, forget_outer_job, write_line};
use crate::mpi::Mpi;
use crate::supervise::{Ending, Interrupt, Line, Stream};
use crate::tally::Tally;
use crate::verdict::{Verdict, Verdicts};
use crate::workspace::{Workspace, describe, run, run_merged};

/// Where they are.
pub const MANIFEST: &str = "examples/Cargo.toml";

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Examples {
    /// Only those whose line holds this.
    pub filter: Option<String>,
    /// For each run of an example.
    pub timeout: Duration,
}

/// How an example is run, as its manifest says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Metadata {
    ranks: usize,
    /// The arguments of each run.
    #[serde(default = "one_without_arguments")]
    runs: Vec<Vec<String>>,
    /// Of those on a machine with a GPU for each rank.
    #[serde(default)]
    gpu_runs: Vec<Vec<String>>,
}

fn one_without_arguments() -> Vec<Vec<String>> {
    vec![Vec::new()]
}

/// A package under `examples/`.
#[derive(Clone, Debug)]
struct Example {
    /// Its directory's name.
    name: String,
    /// Its package's.
    package: String,
    metadata: Metadata,
}

/// One run of an example with a GPU for each rank.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct GpuRun {
    /// Its package, and the program's name.
    pub package: String,
    /// How many there are, and GPUs that it needs.
    pub ranks: usize,
    /// Of the program.
    pub args: Vec<String>,
}

impl GpuRun {
    /// As a user would say it.
    #[must_use]
    pub fn name(&self) -> String {
        let words: String = self.args.iter().map(|arg| format!(" {arg}")).collect();
        format!("{}{words}", self.package)
    }
}

/// Those of all examples.
///
/// # Errors
///
/// When cargo cannot list the examples.
pub fn gpu_runs(workspace: &Workspace) -> Result<Vec<GpuRun>> {
    let mut runs = Vec::new();
    for Example {
        package, metadata, ..
    } in list(workspace)?
    {
        runs.extend(metadata.gpu_runs.into_iter().map(|args| GpuRun {
            package: package.clone(),
            ranks: metadata.ranks,
            args,
        }));
    }
    Ok(runs)
}

/// One run of an example, or a look at its help.
struct Run<'a> {
    name: String,
    example: &'a Example,
    what: What<'a>,
}

enum What<'a> {
    Help,
    Launcher(&'a [String]),
    Mpirun,
}

/// Builds and runs them; the last line printed is the returned tally.
///
/// # Errors
///
/// When the filter matches nothing, or the user interrupts. What fails is counted in the tally.
pub fn examples(options: &Examples, interrupt: &Interrupt) -> Result<Tally> {
    let workspace = Workspace::load()?;
    let mut verdicts = Verdicts::new(options.filter.clone());
    let all = list(&workspace)?;
    let runs: Vec<Run<'_>> = (all.iter().flat_map(runs_of))
        .filter(|run| verdicts.wants(&run.name))
        .collect();
    if !runs.is_empty() {
        let started = Instant::now();
        match build(&workspace, interrupt) {
            Ok(programs) => {
                println!("built in {} s", started.elapsed().as_secs());
                for run in &runs {
                    let program = programs.get(&run.example.package);
                    let verdict = match program {
                        Some(program) => run.verdict(program, options.timeout, interrupt)?,
                        None => Verdict::Failed("cargo made no program of it".into()),
                    };
                    verdicts.tell(&run.name, verdict);
                }
            }
            Err(error) => {
                verdicts.tell("examples", Verdict::Failed(format!("{error:#}")));
            }
        }
    }
    consumers::build(&workspace, &mut verdicts, interrupt)?;
    verdicts.conclude()
}

/// The examples, by their numbers.
fn list(workspace: &Workspace) -> Result<Vec<Example>> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace.root.join(MANIFEST))
        .no_deps()
        .exec()
        .context("cargo metadata of examples/")?;
    let mut examples = Vec::new();
    for package in metadata.workspace_packages() {
        let directory = package
            .manifest_path
            .parent()
            .and_then(|path| path.file_name());
        let text = package.metadata.get("example").cloned().unwrap_or_default();
        let metadata = serde_json::from_value(text)
            .with_context(|| format!("{}: package.metadata.example", package.manifest_path))?;
        examples.push(Example {
            name: directory.unwrap_or_default().to_owned(),
            package: package.name.to_string(),
            metadata,
        });
    }
    examples.sort_by(|one, other| one.name.cmp(&other.name));
    if examples.is_empty() {
        bail!("there are no examples");
    }
    Ok(examples)
}

/// What is done with one: its help, its runs by the local launcher, and one by `mpirun`.
fn runs_of(example: &Example) -> Vec<Run<'_>> {
    let run = |words: &str, what| Run {
        name: format!("{}{words}", example.name),
        example,
        what,
    };
    let mut runs = vec![run(" --help", What::Help)];
    runs.extend(example.metadata.runs.iter().map(|args| {
        let words: String = args.iter().map(|arg| format!(" {arg}")).collect();
        run(&words, What::Launcher(args))
    }));
    runs.push(run(" by mpirun", What::Mpirun));
    runs
}

/// Builds all with all features, and tells where each package's program is.
fn build(workspace: &Workspace, interrupt: &Interrupt) -> Result<HashMap<String, PathBuf>> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--locked", "--bins", "--all-features"]);
    cargo.args(["--manifest-path", MANIFEST, "--target-dir"]);
    cargo.arg(&workspace.target);
    cargo.arg("--message-format=json-render-diagnostics");
    let mut programs = HashMap::new();
    let ending = run(cargo, None, interrupt, &mut |line| {
        if line.stream == Stream::Err {
            return write_line(Stream::Err, "", &line.bytes);
        }
        let message = serde_json::from_slice::<Message>(&line.bytes);
        if let Ok(Message::CompilerArtifact(artifact)) = message
            && let Some(program) = artifact.executable
        {
            programs.insert(artifact.target.name, program.into());
        }
        Ok(())
    })?;
    match ending {
        Ending::Finished => Ok(programs),
        ending => bail!("cargo build of {MANIFEST}: {}", describe(&ending)),
    }
}

impl Run<'_> {
    fn verdict(
        &self,
        program: &PathBuf,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<Verdict> {
        let ranks = self.example.metadata.ranks;
        let mut lines = Vec::new();
        let mut keep = |line: &Line| {
            let text = String::from_utf8_lossy(&line.bytes);
            lines.push((line.index, text.into_owned()));
            Ok(())
        };
        let problem = match self.what {
            What::Help => {
                let mut command = Command::new(program);
                forget_outer_job(command.arg("--help"));
                problem(run_merged(command, Some(timeout), interrupt, &mut keep)?)?
            }
            What::Launcher(args) => {
                let job = Launch::new(ranks, program).args(args).timeout(timeout);
                return launched(job, ranks, interrupt);
            }
            What::Mpirun => {
                let mpi = match Mpi::find(interrupt) {
                    Ok(mpi) => mpi,
                    Err(reason) => return Ok(Verdict::Skipped(reason)),
                };
                let rendezvous = Rendezvous::create().context("the job's directory")?;
                let environment = rendezvous.environment();
                let as_root = rustix::process::geteuid().is_root();
                let words: [OsString; 1] = [program.into()];
                let mut command = Command::new(&mpi.program);
                command.args(mpi.arguments(ranks, as_root, &environment, &words));
                forget_outer_job(&mut command);
                command.envs(environment);
                problem(run_merged(command, Some(timeout), interrupt, &mut keep)?)?
            }
        };
        Ok(judge(&self.what, ranks, &lines, problem))
    }
}

/// Runs the ranks of an example by the local launcher, and says how it went.
///
/// # Errors
///
/// When they cannot be started, or the user interrupts.
pub fn launched(job: Launch, ranks: usize, interrupt: &Interrupt) -> Result<Verdict> {
    let mut lines = Vec::new();
    let ending = job.run(interrupt, &mut |line| {
        let text = String::from_utf8_lossy(&line.bytes);
        lines.push((line.index, text.into_owned()));
        Ok(())
    });
    let problem = match ending {
        Ok(()) => None,
        Err(error @ (LaunchError::Rank { .. } | LaunchError::Deadline { .. })) => {
            Some(error.to_string())
        }
        Err(error) => return Err(error.into()),
    };
    Ok(judge(&What::Launcher(&[]), ranks, &lines, problem))
}

/// How a command failed, if it did.
fn problem(ending: Ending) -> Result<Option<String>> {
    match ending {
        Ending::Finished => Ok(None),
        Ending::Failed { .. } | Ending::Deadline { .. } => Ok(Some(describe(&ending))),
        Ending::Interrupted { .. } | Ending::Output(_) => bail!("{}", describe(&ending)),
    }
}

/// What a run's lines, each with its rank, and its end say.
fn judge(
    what: &What<'_>,
    ranks: usize,
    lines: &[(usize, String)],
    problem: Option<String>,
) -> Verdict {
    if let Some(problem) = problem {
        let said = lines
            .iter()
            .map(|(rank, line)| format!("\n  [{rank}] {line}"));
        return Verdict::Failed(problem + &said.collect::<String>());
    }
    let skip = (lines.iter()).find_map(|(_, line)| crate::test_output::Skip::parse(line));
    if let Some(skip) = skip {
        return Verdict::Skipped(skip.reason);
    }
    // A rank says what it did; under mpirun nobody knows whose lines they are.
    let silent = match what {
        What::Help | What::Mpirun => lines.is_empty(),
        What::Launcher(_) => (0..ranks).any(|rank| {
            !lines
                .iter()
                .any(|(of, line)| *of == rank && !line.is_empty())
        }),
    };
    if silent {
        return Verdict::Failed("it ended without a word of what it did".into());
    }
    let last = lines.iter().rev().find(|(rank, _)| *rank == 0);
    Verdict::Passed(match what {
        What::Help => String::new(),
        _ => last.map(|(_, line)| line.clone()).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lines: &[(usize, &str)], problem: Option<&str>) -> Verdict {
        let lines: Vec<_> = (lines.iter())
            .map(|(rank, line)| (*rank, (*line).to_owned()))
            .collect();
        judge(&What::Launcher(&[]), 2, &lines, problem.map(str::to_owned))
    }

    #[test]
    fn each_rank_has_to_say_what_it_did() {
        let passed = verdict(&[(0, "put"), (1, "found")], None);
        assert_eq!(passed, Verdict::Passed("put".into()));
        assert!(matches!(verdict(&[(0, "put")], None), Verdict::Failed(_)));
        assert!(matches!(verdict(&[], None), Verdict::Failed(_)));
    }

    #[test]
    fn a_failure_is_none_of_the_others() {
        let lines = [(0, "SKIP x: no GPU"), (1, "Error: the word is 3")];
        assert_eq!(
            verdict(&lines[..1], None),
            Verdict::Skipped("no GPU".into())
        );
        let Verdict::Failed(text) = verdict(&lines, Some("rank 1 failed")) else {
            panic!("a job that failed did not fail");
        };
        assert!(text.contains("rank 1 failed") && text.contains("[1] Error: the word is 3"));
    }

    #[test]
    fn there_are_seven_and_each_has_its_number() {
        let examples = list(&Workspace::load().unwrap()).unwrap();
        for (number, example) in (1..).zip(&examples) {
            assert!(
                example.name.starts_with(&format!("{number:02}-")),
                "{example:?}"
            );
            assert!(example.name.ends_with(&example.package), "{example:?}");
        }
        assert_eq!(examples.len(), 7);
    }

    /// Who copies one example has all of it; so these are copies, and must not drift apart.
    #[test]
    fn kernels_are_built_by_one_recipe() {
        let root = Workspace::load().unwrap().root.join("examples");
        let recipe = |example: &str| std::fs::read(root.join(example).join("build.rs")).unwrap();
        for example in ["03-sparse-ring", "04-all-gather", "05-expert-parallel"] {
            assert_eq!(recipe(example), recipe("02-ping-pong"), "{example}");
        }
    }
}
