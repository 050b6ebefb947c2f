// SPDX-License-Identifier: MIT
//! The headers compile: with g++ and clang++ without a warning, and with NVRTC
//! for each architecture of `MSCCLPP_GPU_ARCHS`.
//!
//! A compiler that is not there makes its tests ignored, with the reason above.

mod trace;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use mscclpp_device::headers;
use mscclpp_device::nvrtc::{Arch, Nvrtc, NvrtcError, Program, Target};

const SIGNATURES: &str = include_str!("signatures.cpp");

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for compiler in ["g++", "clang++"] {
        let missing = Command::new(compiler)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .err();
        if let Some(reason) = &missing {
            println!("skipping {compiler}: {reason}");
        }
        for (mode, define) in [
            ("direct", None),
            ("modelled", Some("-DMSCCLPP_MODELLED_MEMORY")),
        ] {
            let name = format!("signatures_hold_with_{compiler}_{mode}");
            trials.push(
                Trial::test(name, move || signatures(compiler, define))
                    .with_ignored_flag(missing.is_some()),
            );
            let name = format!("no_trace_unless_asked_for_with_{compiler}_{mode}");
            trials.push(
                Trial::test(name, move || trace::host(compiler, define))
                    .with_ignored_flag(missing.is_some()),
            );
        }
        let name = format!("each_header_stands_alone_with_{compiler}");
        trials.push(
            Trial::test(name, move || each_header(compiler)).with_ignored_flag(missing.is_some()),
        );
    }
    trials.push(Trial::test("headers_with_a_trace", trace::marked));
    trials.extend(nvrtc_trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn compile(compiler: &str, define: Option<&str>, source: &Path) -> Result<(), Failed> {
    let output = Command::new(compiler)
        .args([
            "-x",
            "c++",
            "-std=c++17",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
        ])
        .args(define)
        .arg("-I")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/include"))
        .arg(source)
        .output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned().into())
    }
}

fn signatures(compiler: &str, define: Option<&str>) -> Result<(), Failed> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compile/signatures.cpp");
    compile(compiler, define, source.as_ref())
}

/// Parts of another header, not to be included by themselves.
fn is_part(name: &str) -> bool {
    let parts = ["memory_cuda.hpp", "memory_host.hpp", "fence_sanitizer.hpp"];
    parts.iter().any(|part| name.ends_with(part))
}

fn each_header(compiler: &str) -> Result<(), Failed> {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let source: PathBuf = scratch.path().join("alone.cpp");
    for (name, _) in headers::ALL.iter().filter(|(name, _)| !is_part(name)) {
        // Twice: the guards work.
        std::fs::write(&source, format!("#include <{name}>\n#include <{name}>\n"))?;
        compile(compiler, None, &source)?;
    }
    Ok(())
}

fn nvrtc_trials() -> Vec<Trial> {
    let archs = match Arch::from_env() {
        Ok(archs) => archs,
        Err(error) => {
            let failed = move || Err(error.to_string().into());
            return vec![Trial::test("nvrtc_architectures", failed)];
        }
    };
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => Some(Arc::new(nvrtc)),
        Err(error) => {
            println!("skipping NVRTC: {error}");
            None
        }
    };
    let supported = match &nvrtc {
        Some(nvrtc) => nvrtc.archs().unwrap_or_default(),
        None => Vec::new(),
    };
    if let Some(nvrtc) = &nvrtc {
        println!("NVRTC {:?} for {supported:?}", nvrtc.version());
    }

    let mut trials = Vec::new();
    let mut add =
        |name: String, runs: bool, test: fn(&Nvrtc, Arch) -> Result<(), Failed>, arch: Arch| {
            let nvrtc = nvrtc.clone();
            let run = move || nvrtc.map_or(Ok(()), |nvrtc| test(&nvrtc, arch));
            trials.push(Trial::test(name, run).with_ignored_flag(!runs));
        };
    for arch in archs {
        let runs = supported.contains(&arch.number());
        if !runs && !supported.is_empty() {
            println!("skipping sm_{arch}: this NVRTC cannot compile for it");
        }
        add(
            format!("signatures_hold_with_nvrtc_sm_{arch}"),
            runs,
            nvrtc_signatures,
            arch.clone(),
        );
        add(
            format!("publication_is_one_store_in_ptx_sm_{arch}"),
            runs,
            nvrtc_publication,
            arch.clone(),
        );
        add(
            format!("a_post_is_in_order_in_ptx_sm_{arch}"),
            runs,
            nvrtc_post,
            arch,
        );
    }
    let last = supported.last().copied().unwrap_or(90);
    let runs = !supported.is_empty();
    add(
        "no_trace_unless_asked_for_with_nvrtc".into(),
        runs,
        trace::nvrtc,
        last.into(),
    );
    add(
        "nvrtc_errors_carry_the_log".into(),
        runs,
        nvrtc_errors,
        last.into(),
    );
    add(
        "nvrtc_knows_its_architectures".into(),
        runs,
        nvrtc_unsupported,
        11.into(),
    );
    trials
}

fn nvrtc_signatures(nvrtc: &Nvrtc, arch: Arch) -> Result<(), Failed> {
    // Those of the tests that need a GPU, too.
    let gpu_tests = include_str!("../cuda/kernels.cu");
    for (name, source, kernel) in [
        ("signatures.cu", SIGNATURES, "every_call"),
        ("kernels.cu", gpu_tests, "expect"),
    ] {
        let program = Program::new(name, source);
        let compiled = nvrtc.compile(&program, &Target::Cubin(arch.clone()))?;
        if !compiled.log.is_empty() {
            return Err(compiled.log.into());
        }
        // An ELF file with the kernel's name.
        let mut words = compiled.code.windows(kernel.len());
        let named = words.any(|bytes| bytes == kernel.as_bytes());
        if !compiled.code.starts_with(b"\x7fELF") || !named {
            return Err(format!("{name}: no cubin").into());
        }
    }
    Ok(())
}

const PUSH: &str = "
    #include <cstdint>
    #include <mscclpp/fifo_device.hpp>
    #include <mscclpp/kernel.hpp>
    #include \"args.hpp\"
    MSCCLPP_KERNEL(push_one, PushArgs) { args.fifo.push(args.trigger, BUDGET); }
";
const ARGS: &str =
    "struct PushArgs { mscclpp::FifoDeviceHandle fifo; mscclpp::ProxyTrigger trigger; };";

fn nvrtc_publication(nvrtc: &Nvrtc, arch: Arch) -> Result<(), Failed> {
    let program = Program::new("push.cu", PUSH)
        .header("args.hpp", ARGS)
        .option("-DBUDGET=-1");
    let compiled = nvrtc.compile(&program, &Target::Ptx(arch))?;
    let ptx = String::from_utf8(compiled.code)?;
    let kernel = ptx.split(".entry push_one").nth(1).ok_or("no kernel")?;
    for (instruction, count) in [
        // Both words at once, released to the system; no fence beside it; one atomic for the slot.
        ("st.release.sys.v2.u64", 1),
        ("atom.relaxed.gpu.add.u64", 1),
        ("fence", 0),
        ("membar", 0),
    ] {
        let found = kernel.matches(instruction).count();
        if found != count {
            return Err(format!("{found} of {instruction}, not {count}:\n{kernel}").into());
        }
    }
    Ok(())
}

const POST: &str = "
    #include <mscclpp/kernel.hpp>
    #include <mscclpp/port_channel.hpp>
    MSCCLPP_KERNEL(post_one, mscclpp::PortChannelDeviceHandle) {
      args.backend_ = mscclpp::Backend::Queue;
      args.queue_.queue.form = mscclpp::QueueForm::Exclusive;
      args.queue_.queue.signalMode = mscclpp::SignalMode::Atomic;
      args.queue_.queue.recordInHostMemory = IN_HOST_MEMORY;
      args.signal();
    }
";

/// A signal on an exclusive queue: four segments, release to the system, doorbell, record, release,
/// doorbell; and no instruction of theirs more than that.
fn nvrtc_post(nvrtc: &Nvrtc, arch: Arch) -> Result<(), Failed> {
    for (in_host_memory, last) in [(0, "fence.acq_rel.gpu;"), (1, "fence.acq_rel.sys;")] {
        let program =
            Program::new("post.cu", POST).option(format!("-DIN_HOST_MEMORY={in_host_memory}"));
        let compiled = nvrtc.compile(&program, &Target::Ptx(arch.clone()))?;
        let ptx = String::from_utf8(compiled.code)?;
        let kernel = ptx.split(".entry post_one").nth(1).ok_or("no kernel")?;
        let (segment, bell) = ("st.relaxed.sys.v2.u64", "st.mmio.relaxed.sys.global.u64");
        let (record, release) = ("st.relaxed.sys.u32", "fence.acq_rel.sys;");
        let seen: Vec<_> = kernel
            .lines()
            .filter_map(|line| {
                let stores = [segment, bell, record, release, "fence.acq_rel.gpu;"];
                stores.into_iter().find(|store| line.contains(store))
            })
            .collect();
        let expected = [
            segment, segment, segment, segment, release, bell, record, last, bell,
        ];
        if seen != expected {
            return Err(format!("{seen:?}, not {expected:?}:\n{kernel}").into());
        }
    }
    Ok(())
}

fn nvrtc_errors(nvrtc: &Nvrtc, arch: Arch) -> Result<(), Failed> {
    let program = Program::new("broken.cu", "int main() { return undeclared; }");
    match nvrtc.compile(&program, &Target::Cubin(arch.clone())) {
        Err(NvrtcError::Compile { program, log, .. })
            if program == "broken.cu" && log.contains("undeclared") => {}
        other => return Err(format!("{other:?}").into()),
    }
    match nvrtc.compile(&Program::new("zero.cu", "a\0b"), &Target::Cubin(arch)) {
        Err(NvrtcError::Zero { .. }) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn nvrtc_unsupported(nvrtc: &Nvrtc, arch: Arch) -> Result<(), Failed> {
    match nvrtc.compile(&Program::new("any.cu", ""), &Target::Cubin(arch)) {
        Err(NvrtcError::Unsupported { supported, .. }) if !supported.is_empty() => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
