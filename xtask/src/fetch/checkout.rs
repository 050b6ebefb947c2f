// SPDX-License-Identifier: MIT
//! Where a checkout of GPUNetIO is, and whether it is the pinned state, unchanged.
//!
//! Nothing but the standard library and git.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names a checkout of the user's own, instead of the fetched one.
pub const SOURCE_DIR: &str = "GPUNETIO_SOURCE_DIR";
/// `1` lets that checkout be another state than the pinned one.
pub const ALLOW_UNPINNED: &str = "GPUNETIO_ALLOW_UNPINNED";

/// The state that is wanted, as `third_party.lock` says.
#[derive(Clone, Debug)]
pub struct Pin {
    /// The full hash of the commit.
    pub commit: String,
    /// Its SPDX licence identifier.
    pub license: String,
}

/// Why a directory is not the wanted state.
#[derive(Debug)]
pub enum Fault {
    /// It, or something in it, is not there or cannot be read.
    Unreadable {
        /// What.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// It is no repository of its own, so that nothing can be said of its state.
    NoRepository {
        /// The directory.
        directory: PathBuf,
    },
    /// git cannot be started.
    NoGit {
        /// Why.
        cause: io::Error,
    },
    /// git refuses.
    Git {
        /// To do what.
        command: String,
        /// What it says.
        message: String,
    },
    /// Another commit is checked out.
    OtherCommit {
        /// Which.
        found: String,
        /// Which one it has to be.
        wanted: String,
    },
    /// Files differ from those of the commit, or only one of the two has them.
    Changed {
        /// Their names, relative to the directory.
        files: Vec<String>,
    },
    /// No licence file names the licence.
    License {
        /// Its SPDX identifier.
        wanted: String,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, cause } => {
                write!(f, "{} cannot be read: {cause}", path.display())
            }
            Self::NoRepository { directory } => write!(
                f,
                "{} is not the top of a git repository, so its state cannot be verified",
                directory.display()
            ),
            Self::NoGit { cause } => write!(f, "git cannot be started ({cause}): install git"),
            Self::Git { command, message } => write!(f, "git {command}: {message}"),
            Self::OtherCommit { found, wanted } => {
                write!(f, "commit {found} is checked out, not {wanted}")
            }
            Self::Changed { files } => {
                let shown = files.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                let more = files.len().saturating_sub(5);
                write!(f, "it differs from its commit: {shown}")?;
                if more > 0 {
                    write!(f, " and {more} more")?;
                }
                Ok(())
            }
            Self::License { wanted } => write!(
                f,
                "no LICENSE file at its top has the line SPDX-License-Identifier: {wanted}"
            ),
        }
    }
}

impl std::error::Error for Fault {}

/// A checkout to compile.
#[derive(Debug)]
pub struct Found {
    /// Its directory.
    pub directory: PathBuf,
    /// Why it is not the pinned state; `None` if it is.
    pub unpinned: Option<Fault>,
}

/// Finds the checkout: the user's own where one is named, else the fetched one.
///
/// `variable` reads the environment.
///
/// # Errors
///
/// A sentence for the user, who has to do something.
pub fn locate(pin: &Pin, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Found, String> {
    let allowed = match variable(ALLOW_UNPINNED) {
        None => false,
        Some(value) if value == "1" => true,
        Some(value) if value.is_empty() || value == "0" => false,
        Some(value) => {
            let value = value.to_string_lossy();
            return Err(format!(
                "{ALLOW_UNPINNED} is {value:?}; it may be 1, or not set"
            ));
        }
    };
    if let Some(directory) = variable(SOURCE_DIR).filter(|value| !value.is_empty()) {
        let directory = PathBuf::from(directory);
        if !directory.is_absolute() {
            let shown = directory.display();
            return Err(format!(
                "{SOURCE_DIR} is {shown}; it has to be an absolute path"
            ));
        }
        return match verify(&directory, pin) {
            Ok(()) => Ok(Found {
                directory,
                unpinned: None,
            }),
            Err(fault @ Fault::Unreadable { .. }) => Err(format!("{SOURCE_DIR}: {fault}")),
            Err(fault) if allowed => Ok(Found {
                directory,
                unpinned: Some(fault),
            }),
            Err(fault) => Err(format!(
                "{SOURCE_DIR} is {}, which is not the pinned GPUNetIO: {fault}; \
                 {ALLOW_UNPINNED}=1 builds it all the same",
                directory.display()
            )),
        };
    }
    let directory = cached(pin, variable)?;
    if !directory.exists() {
        return Err(format!(
            "there is no checkout of GPUNetIO: run `cargo xtask fetch`, or set {SOURCE_DIR} to one"
        ));
    }
    match verify(&directory, pin) {
        Ok(()) => Ok(Found {
            directory,
            unpinned: None,
        }),
        Err(fault) => Err(format!(
            "the fetched GPUNetIO was changed since: {fault}; remove {} and run `cargo xtask fetch`",
            directory.display()
        )),
    }
}

/// Where `cargo xtask fetch` puts the pinned state.
///
/// # Errors
///
/// When the environment names no place for it.
pub fn cached(pin: &Pin, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    let absolute = |name| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let cache = cache.ok_or("neither XDG_CACHE_HOME nor HOME is an absolute path")?;
    Ok(cache
        .join("mscclpp")
        .join(format!("gpunetio-{}", pin.commit)))
}

/// Checks that `directory` holds the files of the pinned commit and no others.
///
/// The bytes of every file are hashed: git's own notes of what is changed or to be ignored are
/// not asked.
///
/// # Errors
///
/// What is wrong with it.
pub fn verify(directory: &Path, pin: &Pin) -> Result<(), Fault> {
    let found = files(directory)?;
    if !directory.join(".git").exists() {
        return Err(Fault::NoRepository {
            directory: directory.into(),
        });
    }
    let head = git(directory, &["rev-parse", "--verify", "HEAD^{commit}"])?;
    let head = String::from_utf8_lossy(&head).trim().to_owned();
    if head != pin.commit {
        return Err(Fault::OtherCommit {
            found: head,
            wanted: pin.commit.clone(),
        });
    }
    // The objects are what their names say.
    git(directory, &["fsck", "--no-dangling", "--no-progress"])?;
    let mut changed = BTreeSet::new();
    let mut tracked = BTreeSet::new();
    let mut regular = Vec::new();
    let tree = git(directory, &["ls-tree", "-r", "-z", "--full-tree", "HEAD"])?;
    for entry in tree
        .split(|byte| *byte == 0)
        .filter(|entry| !entry.is_empty())
    {
        let entry = String::from_utf8_lossy(entry);
        let Some((facts, path)) = entry.split_once('\t') else {
            changed.insert(entry.into_owned());
            continue;
        };
        tracked.insert(path.to_owned());
        let mut facts = facts.split(' ');
        match (facts.next(), facts.next(), facts.next()) {
            (Some("100644" | "100755"), Some("blob"), Some(hash)) => {
                regular.push((path.to_owned(), hash.to_owned()));
            }
            // Links and other repositories inside: there are none, and none is followed.
            _ => drop(changed.insert(path.to_owned())),
        }
    }
    changed.extend(tracked.symmetric_difference(&found).cloned());
    regular.retain(|(path, _)| found.contains(path));
    for some in regular.chunks(200) {
        let mut arguments = vec!["hash-object", "--no-filters", "--"];
        arguments.extend(some.iter().map(|(path, _)| path.as_str()));
        let hashes = git(directory, &arguments)?;
        let hashes = String::from_utf8_lossy(&hashes);
        let mut hashes = hashes.lines();
        for (path, wanted) in some {
            if hashes.next() != Some(wanted.as_str()) {
                changed.insert(path.clone());
            }
        }
    }
    if !changed.is_empty() {
        return Err(Fault::Changed {
            files: changed.into_iter().collect(),
        });
    }
    licensed(directory, &found, pin)
}

fn licensed(directory: &Path, files: &BTreeSet<String>, pin: &Pin) -> Result<(), Fault> {
    let line = format!("SPDX-License-Identifier: {}", pin.license);
    for name in files.iter().filter(|name| name.starts_with("LICENSE")) {
        let path = directory.join(name);
        let text = fs::read_to_string(&path).map_err(|cause| Fault::Unreadable { path, cause })?;
        if text.lines().any(|found| found.trim() == line) {
            return Ok(());
        }
    }
    Err(Fault::License {
        wanted: pin.license.clone(),
    })
}

/// Everything under `top` that is no directory, relative to it, but for git's own. A link counts
/// as itself. A name that is not UTF-8 is changed into one that no commit has.
fn files(top: &Path) -> Result<BTreeSet<String>, Fault> {
    let mut found = BTreeSet::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        let unreadable = |cause| Fault::Unreadable {
            path: directory.clone(),
            cause,
        };
        for entry in fs::read_dir(&directory).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let path = entry.path();
            if directory == top && entry.file_name() == ".git" {
                continue;
            }
            if entry.file_type().map_err(unreadable)?.is_dir() {
                open.push(path);
            } else if let Ok(relative) = path.strip_prefix(top) {
                found.insert(relative.to_string_lossy().into_owned());
            }
        }
    }
    Ok(found)
}

/// What git prints, of the repository at `directory` and no other.
fn git(directory: &Path, arguments: &[&str]) -> Result<Vec<u8>, Fault> {
    let mut command = command(directory);
    let output = command.args(arguments).output();
    let output = output.map_err(|cause| Fault::NoGit { cause })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(Fault::Git {
        command: arguments.first().copied().unwrap_or_default().to_owned(),
        message: message
            .lines()
            .map(str::trim)
            .collect::<Vec<_>>()
            .join("; "),
    })
}

/// Set while git runs a hook, and by users: they point git at other files than those here.
const OTHER_REPOSITORY: [&str; 12] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DEFAULT_HASH",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// git on the repository at `directory`, whatever the environment and the user's settings say:
/// no hook or monitor of the checkout is run, no object is replaced by another.
pub fn command(directory: &Path) -> Command {
    let mut git = Command::new("git");
    for name in OTHER_REPOSITORY {
        git.env_remove(name);
    }
    git.env("LC_ALL", "C").current_dir(directory);
    git.arg("--no-replace-objects");
    git.arg("--git-dir").arg(directory.join(".git"));
    git.arg("--work-tree").arg(directory);
    for setting in [
        "core.fsmonitor=false",
        "core.hooksPath=/dev/null",
        "core.autocrlf=false",
    ] {
        git.args([OsStr::new("-c"), OsStr::new(setting)]);
    }
    git
}
