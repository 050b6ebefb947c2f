// SPDX-License-Identifier: MIT
//! `cargo xtask fetch` against a mirror on this machine.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use xtask::check::third_party::Source;
use xtask::fetch::checkout::{ALLOW_UNPINNED, Found, Pin, SOURCE_DIR, cached, locate};
use xtask::fetch::obtain;
use xtask::supervise::Interrupt;

/// A repository to fetch from, a cache to fetch into, and an environment.
struct World {
    directory: TempDir,
    source: Source,
    variables: Vec<(&'static str, OsString)>,
}

const TEXT: &str = "First line\nSPDX-License-Identifier: BSD-3-Clause\n";

fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut git = Command::new("git");
    git.current_dir(directory).args([
        "-c",
        "user.name=nobody",
        "-c",
        "user.email=nobody@localhost",
    ]);
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    let output = git.args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {error}");
    text.trim().to_owned()
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mirror = directory.path().join("mirror");
        fs::create_dir_all(mirror.join("src")).unwrap();
        fs::write(mirror.join("LICENSE.txt"), TEXT).unwrap();
        fs::write(mirror.join("src/a.cpp"), "int a;\n").unwrap();
        fs::write(mirror.join(".gitignore"), "*.log\n").unwrap();
        git(&mirror, &["init", "--quiet"]);
        git(&mirror, &["add", "."]);
        git(&mirror, &["commit", "--quiet", "-m", "pinned"]);
        let commit = git(&mirror, &["rev-parse", "HEAD"]);
        // The pinned commit is not the newest.
        fs::write(mirror.join("src/a.cpp"), "int b;\n").unwrap();
        git(&mirror, &["commit", "--quiet", "-a", "-m", "later"]);
        let cache = directory.path().join("cache");
        Self {
            source: Source {
                name: "gpunetio".into(),
                url: format!("file://{}", mirror.display()),
                version: "4.0.1".into(),
                commit,
                license: "BSD-3-Clause".into(),
            },
            variables: vec![("XDG_CACHE_HOME", cache.into())],
            directory,
        }
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        let mut set = self.variables.iter().rev();
        set.find(|(set, _)| *set == name)
            .map(|(_, value)| value.clone())
    }

    fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.variables.push((name, value.into()));
    }

    fn pin(&self) -> Pin {
        Pin {
            commit: self.source.commit.clone(),
            license: self.source.license.clone(),
        }
    }

    fn mirror(&self) -> PathBuf {
        self.directory.path().join("mirror")
    }

    /// Where the checkout is to be.
    fn place(&self) -> PathBuf {
        cached(&self.pin(), &|name| self.variable(name)).unwrap()
    }

    fn obtain(&self) -> Result<Found, String> {
        let variable = |name: &str| self.variable(name);
        obtain(&self.source, &variable, &Interrupt::none()).map_err(|error| format!("{error:#}"))
    }

    /// As the build script does.
    fn locate(&self) -> Result<Found, String> {
        locate(&self.pin(), &|name| self.variable(name))
    }

    /// A clone of the user's own, of the pinned commit.
    fn clone(&self) -> PathBuf {
        let own = self.directory.path().join("own");
        git(
            self.directory.path(),
            &["clone", "--quiet", "mirror", "own"],
        );
        git(&own, &["checkout", "--quiet", &self.source.commit]);
        own
    }

    /// Nothing but the lock is in the cache.
    fn nothing_is_left(&self) -> bool {
        let cache = self.directory.path().join("cache/mscclpp");
        let names = fs::read_dir(cache).into_iter().flatten().flatten();
        names
            .map(|entry| entry.file_name())
            .all(|name| name == "lock")
    }
}

#[test]
fn the_pinned_commit_comes_once_and_is_found_without_the_mirror() {
    let world = World::new();
    let error = world.locate().unwrap_err();
    assert!(error.contains("cargo xtask fetch"), "{error}");
    let found = world.obtain().unwrap();
    assert!(found.unpinned.is_none());
    assert_eq!(found.directory, world.place());
    let text = fs::read_to_string(found.directory.join("src/a.cpp")).unwrap();
    assert_eq!(text, "int a;\n");
    fs::remove_dir_all(world.mirror()).unwrap();
    assert_eq!(world.obtain().unwrap().directory, world.place());
    assert_eq!(world.locate().unwrap().directory, world.place());
}

#[test]
fn what_cannot_be_fetched_leaves_nothing_behind() {
    let mut world = World::new();
    fs::rename(world.mirror(), world.directory.path().join("gone")).unwrap();
    let error = world.obtain().unwrap_err();
    assert!(
        error.contains("with no network, set GPUNETIO_SOURCE_DIR"),
        "{error}"
    );
    assert!(world.nothing_is_left());
    fs::rename(world.directory.path().join("gone"), world.mirror()).unwrap();
    let right = world.source.clone();
    world.source.commit = "0123456789012345678901234567890123456789".into();
    let error = world.obtain().unwrap_err();
    assert!(error.contains("cannot fetch 0123456789"), "{error}");
    world.source = right.clone();
    world.source.license = "MIT".into();
    let error = world.obtain().unwrap_err();
    assert!(error.contains("SPDX-License-Identifier: MIT"), "{error}");
    assert!(world.nothing_is_left());
    world.source = right;
    world.obtain().unwrap();
}

#[test]
fn a_fetch_that_was_interrupted_leaves_nothing_and_one_that_was_killed_is_cleared() {
    let world = World::new();
    let interrupt = Interrupt::none();
    interrupt.raise(2);
    let variable = |name: &str| world.variable(name);
    let error = format!(
        "{:#}",
        obtain(&world.source, &variable, &interrupt).unwrap_err()
    );
    assert!(error.contains("stopped by signal 2"), "{error}");
    assert!(world.nothing_is_left());
    let half = world.place().with_file_name("gpunetio-other.partial");
    fs::create_dir_all(half.join(".git")).unwrap();
    world.obtain().unwrap();
    assert!(!half.exists());
}

#[test]
fn two_at_a_time_both_find_it() {
    let world = World::new();
    let fetch = || {
        let variable = |name: &str| world.variable(name);
        obtain(&world.source, &variable, &Interrupt::none()).map(|found| found.directory)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(fetch);
        assert_eq!(fetch().unwrap(), world.place());
        assert_eq!(other.join().unwrap().unwrap(), world.place());
    });
}

/// Changes a checkout; the file that shows it.
type Tamper = (&'static str, fn(&Path));

/// Each way to change a checkout without git noticing, and plainly.
#[test]
fn a_checkout_that_was_tampered_with_is_refused() {
    let tampers: [Tamper; 7] = [
        ("src/a.cpp", |at| {
            fs::write(at.join("src/a.cpp"), "int c;\n").unwrap()
        }),
        ("src/a.cpp", |at| {
            git(at, &["update-index", "--assume-unchanged", "src/a.cpp"]);
            fs::write(at.join("src/a.cpp"), "int c;\n").unwrap();
        }),
        ("src/a.cpp", |at| {
            // The commit that the checkout pretends to be at, with other content.
            fs::write(at.join("src/a.cpp"), "int c;\n").unwrap();
            git(at, &["commit", "--quiet", "-a", "-m", "other"]);
            let other = git(at, &["rev-parse", "HEAD"]);
            let pinned = git(at, &["rev-parse", "HEAD^"]);
            git(at, &["checkout", "--quiet", &pinned]);
            git(at, &["replace", &pinned, &other]);
            fs::write(at.join("src/a.cpp"), "int c;\n").unwrap();
        }),
        ("src/a.cpp", |at| {
            fs::remove_file(at.join("src/a.cpp")).unwrap()
        }),
        ("src/new.cpp", |at| {
            fs::write(at.join("src/new.cpp"), "").unwrap()
        }),
        // Ignored by git, and by nobody else.
        ("src/new.log", |at| {
            fs::write(at.join("src/new.log"), "").unwrap()
        }),
        ("src/a.cpp", |at| {
            fs::write(at.join("../other.cpp"), "int a;\n").unwrap();
            fs::rename(at.join("src"), at.join("../elsewhere")).unwrap();
            std::os::unix::fs::symlink("../elsewhere", at.join("src")).unwrap();
        }),
    ];
    for (name, tamper) in tampers {
        let world = World::new();
        world.obtain().unwrap();
        tamper(&world.place());
        for error in [world.obtain().unwrap_err(), world.locate().unwrap_err()] {
            assert!(error.contains(name), "{name}: {error}");
            assert!(error.contains("cargo xtask fetch"), "{error}");
        }
    }
}

#[test]
fn an_object_that_is_not_what_its_name_says_is_found() {
    let world = World::new();
    let place = world.obtain().unwrap().directory;
    let tree = git(&place, &["rev-parse", "HEAD^{tree}"]);
    // Out of the pack, so that it can be replaced.
    let pack = fs::read_dir(place.join(".git/objects/pack")).unwrap();
    let pack = pack.flatten().map(|entry| entry.path());
    let pack = pack
        .into_iter()
        .find(|path| path.extension().is_some_and(|e| e == "pack"));
    if let Some(pack) = pack {
        let aside = world.directory.path().join("aside.pack");
        fs::rename(&pack, &aside).unwrap();
        let script = format!("git unpack-objects -q < {}", aside.display());
        let done = Command::new("sh")
            .arg("-c")
            .arg(script)
            .current_dir(&place)
            .status();
        assert!(done.unwrap().success());
        fs::remove_file(pack.with_extension("idx")).unwrap();
    }
    assert!(world.locate().is_ok());
    let later = git(&world.mirror(), &["rev-parse", "HEAD^{tree}"]);
    let object = |at: &Path, hash: &str| at.join(".git/objects").join(&hash[..2]).join(&hash[2..]);
    fs::remove_file(object(&place, &tree)).unwrap();
    fs::copy(object(&world.mirror(), &later), object(&place, &tree)).unwrap();
    let error = world.locate().unwrap_err();
    assert!(error.contains("fsck"), "{error}");
}

#[test]
fn a_checkout_of_the_users_own_is_used_as_it_is_if_it_is_the_pinned_one() {
    let mut world = World::new();
    let own = world.clone();
    world.set(SOURCE_DIR, &own);
    let found = world.obtain().unwrap();
    assert_eq!(found.directory, own);
    assert!(found.unpinned.is_none());
    // Nothing was fetched.
    assert!(!world.place().exists());
}

/// What an error says, and what makes it, to a checkout and with its mirror.
type Change = (&'static str, fn(&Path, &Path));

#[test]
fn another_state_is_an_error_that_a_variable_makes_a_warning() {
    let changes: [Change; 3] = [
        ("is checked out, not", |own, mirror| {
            let newest = git(mirror, &["rev-parse", "HEAD"]);
            git(own, &["checkout", "--quiet", &newest]);
        }),
        ("it differs from its commit: src/a.cpp", |own, _| {
            fs::write(own.join("src/a.cpp"), "int c;\n").unwrap();
        }),
        // As an archive holds it. It may lie in another repository, whose state says nothing.
        ("is not the top of a git repository", |own, _| {
            fs::remove_dir_all(own.join(".git")).unwrap();
        }),
    ];
    for (text, change) in changes {
        let mut world = World::new();
        let own = world.clone();
        change(&own, &world.mirror());
        world.set(SOURCE_DIR, &own);
        for error in [world.obtain().unwrap_err(), world.locate().unwrap_err()] {
            assert!(
                error.contains(text) && error.contains(ALLOW_UNPINNED),
                "{error}"
            );
        }
        world.set(ALLOW_UNPINNED, "1");
        for found in [world.obtain().unwrap(), world.locate().unwrap()] {
            assert!(found.unpinned.unwrap().to_string().contains(text));
        }
        world.set(ALLOW_UNPINNED, "yes");
        assert!(world.locate().unwrap_err().contains("may be 1"));
    }
}

#[test]
fn a_directory_that_is_not_there_is_an_error_in_any_case() {
    let mut world = World::new();
    world.set(ALLOW_UNPINNED, "1");
    world.set(SOURCE_DIR, world.directory.path().join("nothing"));
    assert!(world.locate().unwrap_err().contains("cannot be read"));
    world.set(SOURCE_DIR, "relative");
    assert!(world.locate().unwrap_err().contains("absolute"));
    // Left empty, it is not set.
    world.set(SOURCE_DIR, "");
    world.obtain().unwrap();
    world.set("XDG_CACHE_HOME", "relative");
    assert!(world.locate().unwrap_err().contains("HOME"));
}

#[test]
fn without_git_it_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("fetch")
        .env("PATH", format!("{}", directory.path().display()))
        .env("XDG_CACHE_HOME", directory.path())
        .env_remove(SOURCE_DIR)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("is git installed?"), "{error}");
    let names = fs::read_dir(directory.path().join("mscclpp"))
        .unwrap()
        .flatten();
    let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["lock"]);
}
