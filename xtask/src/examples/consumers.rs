// SPDX-License-Identifier: MIT
//! Packages outside of the workspace that pick crates of the project, with each set of features.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::supervise::Interrupt;
use crate::verdict::{Verdict, Verdicts};
use crate::workspace::{Workspace, run_quietly};

/// A package and what it picks.
struct Consumer {
    name: &'static str,
    /// One of the project's crates.
    picks: &'static str,
    features: &'static [&'static str],
    main: &'static str,
    build: Option<&'static str>,
}

/// Uses what is there with every feature, and finds what is not there without one.
const PORT: &str = r#"
use mscclpp_port::{Buffer, Device, ProxyService};

fn main() -> mscclpp_port::Result<()> {
    Buffer::new(Device::cpu(), 8)?.store_u64(0, 1)?;
    let _ = ProxyService::with_default_size()?;
    let _ = Device::gpu(0).check_available();
    Ok(())
}
"#;

/// Compiles a kernel with the headers of its direct dependency.
const HEADERS: &str = r##"
use std::path::Path;
use std::process::Command;

fn main() {
    let include = std::env::var("DEP_MSCCLPP_DEVICE_INCLUDE").expect("mscclpp-device tells it");
    let kernel = Path::new(&std::env::var_os("OUT_DIR").unwrap()).join("kernel.cpp");
    let text = "#include <mscclpp/kernel.hpp>\n#include <mscclpp/port_channel.hpp>\n\
        struct Args { mscclpp::DeviceHandle<mscclpp::PortChannel> channel; };\n\
        MSCCLPP_KERNEL(k, Args) { auto channel = args.channel; channel.putWithSignal(0, 8); }\n";
    std::fs::write(&kernel, text).unwrap();
    let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or("g++".into()));
    compiler.args(["-std=c++17", "-fsyntax-only", "-I", &include]).arg(&kernel);
    assert!(compiler.status().expect("a C++ compiler").success());
}
"##;

/// Cargo passes the header path to direct dependents only, as the documentation says, and nothing of
/// GPUNetIO to anybody.
const NO_HEADERS: &str = r#"
fn main() {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let told = name.starts_with("DEP_") && (name.contains("MSCCLPP") || name.contains("GPUNETIO"));
        assert!(!told, "{name} is set");
    }
}
"#;

const EMPTY: &str = "fn main() {}\n";

const EXECUTOR: &str = r#"
use mscclpp_device::executor::{HostKernel, LaunchDims};
fn main() {
    let _ = (HostKernel::name, LaunchDims { grid: 1, block: 1 });
}
"#;

const NVRTC: &str = r#"
fn main() {
    let _ = mscclpp_device::nvrtc::Nvrtc::load();
}
"#;

const CUDA: &str = r#"
fn main() {
    let _ = (mscclpp_device::cuda::gpu_count(), mscclpp_device::nvrtc::Nvrtc::load());
}
"#;

const fn port(name: &'static str, features: &'static [&'static str]) -> Consumer {
    Consumer {
        name,
        picks: "mscclpp-port",
        features,
        main: PORT,
        build: None,
    }
}

const fn device(
    name: &'static str,
    features: &'static [&'static str],
    main: &'static str,
) -> Consumer {
    Consumer {
        name,
        picks: "mscclpp-device",
        features,
        main,
        build: None,
    }
}

const CONSUMERS: [Consumer; 10] = [
    Consumer {
        build: Some(NO_HEADERS),
        ..port("mscclpp-port", &[])
    },
    port("mscclpp-port, ib", &["ib"]),
    port("mscclpp-port, cuda", &["cuda"]),
    port("mscclpp-port, cuda and ib", &["cuda", "ib"]),
    port("mscclpp-port, gpunetio", &["gpunetio", "cuda", "ib"]),
    port("mscclpp-port, as it comes", &["default"]),
    Consumer {
        build: Some(HEADERS),
        ..device("mscclpp-device, its headers", &[], EMPTY)
    },
    device(
        "mscclpp-device, host-executor",
        &["host-executor"],
        EXECUTOR,
    ),
    device("mscclpp-device, nvrtc", &["nvrtc"], NVRTC),
    device("mscclpp-device, cuda", &["cuda"], CUDA),
];

/// Builds each of them, as far as `cargo check` does.
///
/// # Errors
///
/// When the user interrupts.
pub fn build(workspace: &Workspace, verdicts: &mut Verdicts, interrupt: &Interrupt) -> Result<()> {
    for consumer in &CONSUMERS {
        let name = format!("consumer of {}", consumer.name);
        if !verdicts.wants(&name) {
            continue;
        }
        let directory = tempfile::tempdir().context("a temporary directory")?;
        let dependency = (consumer.picks, &*crate_of(workspace, consumer.picks)?);
        consumer.write(directory.path(), dependency, &[])?;
        let checked = check(workspace, directory.path(), interrupt);
        if let Some(signal) = interrupt.signal() {
            bail!("stopped by signal {signal}");
        }
        verdicts.tell(&name, Verdict::from(checked));
    }
    Ok(())
}

/// Builds consumers of crates that were packed and unpacked again: the one with the headers, and the
/// one of channels with all features. `packages` are all unpacked crates by their names.
///
/// # Errors
///
/// When one cannot be built.
pub fn build_unpacked(
    workspace: &Workspace,
    packages: &[(String, PathBuf)],
    interrupt: &Interrupt,
) -> Result<()> {
    let wanted = ["mscclpp-device, its headers", "mscclpp-port, cuda and ib"];
    for consumer in CONSUMERS
        .iter()
        .filter(|consumer| wanted.contains(&consumer.name))
    {
        let found = packages.iter().find(|(name, _)| name == consumer.picks);
        let (_, place) = found.with_context(|| format!("{} was not packed", consumer.picks))?;
        let directory = tempfile::tempdir().context("a temporary directory")?;
        consumer.write(directory.path(), (consumer.picks, place), packages)?;
        check(workspace, directory.path(), interrupt).context(consumer.name)?;
    }
    Ok(())
}

fn crate_of(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let mut packages = workspace.packages.iter();
    let package = packages.find(|package| package.name == name);
    Ok(package
        .with_context(|| format!("there is no {name}"))?
        .directory
        .clone())
}

impl Consumer {
    /// Writes the package. What is in `patches` takes the place of crates of the same name.
    fn write(
        &self,
        directory: &Path,
        (name, path): (&str, &Path),
        patches: &[(String, PathBuf)],
    ) -> Result<()> {
        let mut manifest = format!(
            "[package]\nname = \"consumer\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
             [dependencies.{name}]\npath = {path:?}\ndefault-features = false\nfeatures = {:?}\n",
            self.features
        );
        for (name, path) in patches {
            manifest += &format!("\n[patch.crates-io.{name}]\npath = {path:?}\n");
        }
        fs::write(directory.join("Cargo.toml"), manifest)?;
        if let Some(build) = self.build {
            fs::write(directory.join("build.rs"), build)?;
        }
        fs::create_dir_all(directory.join("src"))?;
        fs::write(directory.join("src/main.rs"), self.main)?;
        Ok(())
    }
}

/// `cargo check` of a package elsewhere, with the versions of other crates that the workspace has.
fn check(workspace: &Workspace, directory: &Path, interrupt: &Interrupt) -> Result<()> {
    let lock = directory.join("Cargo.lock");
    fs::copy(workspace.root.join("Cargo.lock"), &lock).context("Cargo.lock")?;
    let mut cargo = workspace.cargo();
    // Everything is there: it was needed to build this program.
    cargo.args([
        "check",
        "--quiet",
        "--offline",
        "--color",
        "never",
        "--manifest-path",
    ]);
    cargo.arg(directory.join("Cargo.toml"));
    cargo.arg("--target-dir").arg(&workspace.target);
    run_quietly(cargo, interrupt)
}
