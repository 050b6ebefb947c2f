// SPDX-License-Identifier: MIT
//! Builds with a sanitizer, Rust and kernels alike.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::thread_sanitizer;
use crate::workspace::Workspace;

/// Set for tests of a sanitized build, to its kind. Those that compile kernels
/// themselves compile them with the sanitizer then.
const MARK: &str = "MSCCLPP_SANITIZED";

/// Packages without unsafe code or kernels: AddressSanitizer has nothing to find there.
const NO_UNSAFE_CODE: [&str; 4] = ["xtask", "mscclpp-bootstrap", "mlx5-queue", "gpunetio-sys"];

/// Packages in which threads share plain memory.
const RACING: [&str; 3] = ["mscclpp-device", "mscclpp-port", "mscclpp-softnic"];

/// What a build is checked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sanitizer {
    /// AddressSanitizer and LeakSanitizer.
    Address,
    /// ThreadSanitizer.
    Thread,
}

impl Sanitizer {
    /// Its name, for headings.
    pub fn title(self) -> &'static str {
        match self {
            Self::Address => "AddressSanitizer and LeakSanitizer",
            Self::Thread => "ThreadSanitizer",
        }
    }

    /// Packages that are not tested with it.
    pub fn left_out(self, workspace: &Workspace) -> Vec<&str> {
        let names = workspace
            .packages
            .iter()
            .map(|package| package.name.as_str());
        match self {
            Self::Address => names.filter(|name| NO_UNSAFE_CODE.contains(name)).collect(),
            Self::Thread => names.filter(|name| !RACING.contains(name)).collect(),
        }
    }

    /// Tests in which there is nothing for it to find: spoilt headers, what
    /// compilers say of headers, and what linkers leave in a program. For
    /// ThreadSanitizer also other processes, and retries that are to win
    /// against a clock, in a build that is many times slower.
    pub fn skipped_tests(self) -> Vec<&'static str> {
        let mut names = vec![
            "mutants::",
            "compile_with_",
            "compiles_with_",
            "the_suite_has_nothing_of_it",
        ];
        if self == Self::Thread {
            names.extend(["two_processes_", "a_lossy_link_is_still_reliable"]);
        }
        names
    }

    /// What compilers call it.
    fn kind(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }

    /// Looks whether clang++, by which tests compile kernels in such a build, has what it takes.
    ///
    /// # Errors
    ///
    /// When it has not.
    pub fn check_compiler(self) -> Result<()> {
        let output = Command::new("clang++")
            .arg(format!("-fsanitize={}", self.kind()))
            .args([
                "-shared",
                "-fPIC",
                "-x",
                "c++",
                "/dev/null",
                "-o",
                "/dev/null",
            ])
            .output()
            .context("tests of a sanitized build compile kernels by clang++: install clang")?;
        ensure!(
            output.status.success(),
            "clang++ lacks the runtime of {} (Debian's package libclang-rt-dev):\n{}",
            self.title(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Makes `cargo` build and test with it, in a target directory of its own.
    ///
    /// # Errors
    ///
    /// When rustc does not tell its host, or what has to be linked cannot be made.
    pub fn apply(self, workspace: &Workspace, cargo: &mut Command) -> Result<()> {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let host = host()?;
        let variable = format!("CXXFLAGS_{}", host.replace('-', "_"));
        let kind = self.kind();
        let directory = workspace.target.join(match self {
            Self::Address => "sanitized",
            Self::Thread => "sanitized-thread",
        });
        // Exported, for kernels that tests load as shared objects.
        let mut flags = format!("-Zsanitizer={kind} -Clink-arg=-rdynamic");
        if self == Self::Thread {
            // The standard library, which is built without.
            flags += " -Cunsafe-allow-abi-mismatch=sanitizer";
            // System calls through the C library, where the sanitizer sees them: it has to be told
            // that pages are new, and that who reads a descriptor comes after who wrote to it.
            flags += " --cfg rustix_use_libc";
            let file = thread_sanitizer::link_arguments(Path::new(&rustc), &host, &directory)?;
            flags += &format!(" -Clink-arg=@{}", file.display());
            cargo.env(
                "TSAN_OPTIONS",
                format!(
                    "suppressions={}",
                    thread_sanitizer::suppressions(&directory)?.display()
                ),
            );
        }
        cargo
            // The runtime is part of the stable toolchain, its flag is not.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", flags)
            .env(
                variable,
                format!("-fsanitize={kind} -fno-omit-frame-pointer"),
            )
            // Named, so that build scripts and procedural macros are built without.
            .env("CARGO_BUILD_TARGET", host)
            .env("CARGO_TARGET_DIR", directory)
            .env(MARK, kind);
        Ok(())
    }
}

/// The machine that rustc builds for by itself.
///
/// # Errors
///
/// When rustc does not tell.
pub fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--version", "--verbose"])
        .output()
        .context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(host) => Ok(host.to_owned()),
        None => bail!("rustc --version --verbose names no host"),
    }
}
