// SPDX-License-Identifier: MIT
//! Where things are, and running cargo on them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cargo_metadata::{Message, MetadataCommand};

use crate::gpu::machine::output;
use crate::launch::write_line;
use crate::supervise::{Ending, Interrupt, Limits, Member, OnLine, Stream, supervise};

/// The package of the conformance suite and the benchmark.
pub const SUITE: &str = "mscclpp-conformance";

/// Features that are off by default and on for tests and checks, wherever a
/// member has them. None of them needs anything installed.
const TEST_FEATURES: [&str; 3] = ["cuda", "host-executor", "nvrtc"];

/// A member of the workspace.
#[derive(Clone, Debug)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The directory of its manifest.
    pub directory: PathBuf,
    /// Its features.
    pub features: Vec<String>,
    /// Its test programs.
    pub tests: Vec<String>,
    /// Whether it is for users elsewhere, and not for this repository alone.
    pub published: bool,
}

impl Package {
    /// Whether it has a test program of this name.
    pub fn has_test(&self, name: &str) -> bool {
        self.tests.iter().any(|test| test == name)
    }
}

/// The workspace that the current directory belongs to.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// The directory of the workspace's manifest.
    pub root: PathBuf,
    /// Where builds go.
    pub target: PathBuf,
    /// Its members.
    pub packages: Vec<Package>,
}

impl Workspace {
    /// The commit that it is at, marked if something is not committed.
    pub fn commit(&self) -> String {
        let root = self.root.to_string_lossy();
        let git = |args: &[&str]| output("git", &[&["-C", &root], args].concat());
        let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
            return "unknown".into();
        };
        match git(&["status", "--porcelain"]) {
            Some(changes) if changes.is_empty() => commit,
            _ => format!("{commit} and changes"),
        }
    }

    /// Asks cargo.
    ///
    /// # Errors
    ///
    /// When the current directory is in no workspace.
    pub fn load() -> Result<Self> {
        let metadata = MetadataCommand::new()
            .no_deps()
            .exec()
            .context("cargo metadata: is this a directory of the project?")?;
        let packages = metadata
            .workspace_packages()
            .into_iter()
            .filter_map(|package| {
                Some(Package {
                    name: package.name.to_string(),
                    directory: package.manifest_path.parent()?.into(),
                    features: package.features.keys().cloned().collect(),
                    tests: (package.targets.iter().filter(|target| target.is_test()))
                        .map(|target| target.name.clone())
                        .collect(),
                    published: package.publish.is_none(),
                })
            })
            .collect();
        Ok(Self {
            root: metadata.workspace_root.into(),
            target: metadata.target_directory.into(),
            packages,
        })
    }

    /// The cargo that runs this, at the workspace's root.
    pub fn cargo(&self) -> Command {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// The features of a member that tests want.
    pub fn test_features_of(&self, package: &Package) -> Vec<String> {
        let wanted = |feature: &&String| TEST_FEATURES.contains(&feature.as_str());
        package.features.iter().filter(wanted).cloned().collect()
    }

    /// Arguments for cargo that turn on the features that tests want, of all members but some.
    pub fn test_features(&self, but: &[&str]) -> Vec<String> {
        let names: Vec<String> = self
            .packages
            .iter()
            .filter(|package| !but.contains(&package.name.as_str()))
            .flat_map(|package| {
                let features = self.test_features_of(package).into_iter();
                features.map(|feature| format!("{}/{feature}", package.name))
            })
            .collect();
        if names.is_empty() {
            return Vec::new();
        }
        vec!["--features".to_owned(), names.join(",")]
    }

    /// Runs `cargo` with arguments that build one executable, and returns its path.
    ///
    /// # Errors
    ///
    /// When the build fails, makes no executable, or is interrupted.
    pub fn build(cargo: Command, args: &[&str], interrupt: &Interrupt) -> Result<PathBuf> {
        let mut command = cargo;
        let (before, after) = match args.iter().position(|arg| *arg == "--") {
            Some(at) => args.split_at(at),
            None => (args, &[][..]),
        };
        command
            .args(before)
            .arg("--message-format=json-render-diagnostics")
            .args(after);
        let mut executable = None;
        let ending = run(command, None, interrupt, &mut |line| {
            if line.stream == Stream::Err {
                return write_line(Stream::Err, "", &line.bytes);
            }
            let message = serde_json::from_slice::<Message>(&line.bytes);
            if let Ok(Message::CompilerArtifact(artifact)) = message
                && let Some(path) = artifact.executable
            {
                executable = Some(PathBuf::from(path));
            }
            Ok(())
        })?;
        let words = args.join(" ");
        match ending {
            Ending::Finished => {
                executable.ok_or_else(|| anyhow!("cargo {words} made no executable"))
            }
            ending => bail!("cargo {words}: {}", describe(&ending)),
        }
    }
}

/// Runs one command that looks after its own children.
///
/// # Errors
///
/// When it cannot be started.
pub fn run(
    command: Command,
    timeout: Option<Duration>,
    interrupt: &Interrupt,
    on_line: OnLine<'_>,
) -> Result<Ending> {
    run_member(Member::new(command).parent(), timeout, interrupt, on_line)
}

/// As [`run`], with both outputs as one, in order.
///
/// # Errors
///
/// When it cannot be started.
pub fn run_merged(
    command: Command,
    timeout: Option<Duration>,
    interrupt: &Interrupt,
    on_line: OnLine<'_>,
) -> Result<Ending> {
    let member = Member::new(command).parent().merged();
    run_member(member, timeout, interrupt, on_line)
}

/// Runs a command; what it says is in the error, if it fails.
///
/// # Errors
///
/// When it cannot be started, fails, or is interrupted.
pub fn run_quietly(command: Command, interrupt: &Interrupt) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut said = String::new();
    let ending = run_merged(command, None, interrupt, &mut |line| {
        said += &format!("\n  {}", String::from_utf8_lossy(&line.bytes));
        Ok(())
    })?;
    match ending {
        Ending::Finished => Ok(()),
        ending => bail!("{program}: {}{said}", describe(&ending)),
    }
}

fn run_member(
    member: Member,
    timeout: Option<Duration>,
    interrupt: &Interrupt,
    on_line: OnLine<'_>,
) -> Result<Ending> {
    let limits = Limits {
        timeout,
        ..Limits::default()
    };
    let name = member.program().to_string_lossy().into_owned();
    supervise(vec![member], &limits, interrupt, on_line)
        .map_err(|error| anyhow!(error.source).context(format!("cannot start {name}")))
}

/// How a single command ended, in words.
pub fn describe(ending: &Ending) -> String {
    match ending {
        Ending::Finished => "finished".to_owned(),
        Ending::Failed { status, .. } => status.to_string(),
        Ending::Deadline { .. } => "stopped, the time is up".to_owned(),
        Ending::Interrupted { signal } => format!("stopped by signal {signal}"),
        Ending::Output(error) => format!("nobody reads its output: {error}"),
    }
}
