// SPDX-License-Identifier: MIT
//! The trace costs nothing where it is not compiled in: the code is that of headers without a word of
//! it. Where it is, it is there.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Failed;
use mscclpp_device::headers;
use mscclpp_device::nvrtc::{Arch, Nvrtc, Program, Target};

use crate::SIGNATURES;

const MACRO: &str = "-DMSCCLPP_DEVICE_TRACE";
/// Of all that is the trace's.
const MARK: &str = "TRACE_";
/// A call with the trace around it.
const CALL: &str = "MSCCLPP_TRACED_";
/// A directory of headers without it.
const PLAIN: &str = "plain/";

/// The headers without a line of the trace.
fn plain() -> Vec<(String, String)> {
    let own = |line: &str| {
        if let Some((before, call)) = line.split_once(CALL) {
            // What is called, without the two or three arguments before it.
            let spans = call.starts_with("SPAN(");
            let called = call.splitn(if spans { 3 } else { 4 }, ", ").last();
            let called = called.filter(|_| !call.ends_with(',')).unwrap_or_default();
            return Some(format!("{before}({called}"));
        }
        (!line.contains(MARK) && !line.contains("trace_device.hpp")).then(|| line.to_owned())
    };
    let other = headers::ALL
        .iter()
        .filter(|(name, _)| !name.contains("trace_device"));
    other
        .map(|(name, text)| {
            let text: Vec<String> = text.lines().filter_map(own).collect();
            (in_plain(name), in_plain(&(text.join("\n") + "\n")))
        })
        .collect()
}

fn in_plain(text: &str) -> String {
    text.replace("mscclpp/", PLAIN)
}

/// Compiles every call with each set of headers, and holds the results against each other.
fn hold(compile: impl Fn(&str, bool) -> Result<String, Failed>) -> Result<(), Failed> {
    let without = compile(&in_plain(SIGNATURES), false)?;
    let off = compile(SIGNATURES, false)?;
    if off != without {
        let line = (off.lines().zip(without.lines())).find(|(a, b)| a != b);
        return Err(format!("code changes with the trace off: {line:?}").into());
    }
    let on = compile(SIGNATURES, true)?;
    if on == off || on.lines().count() <= off.lines().count() {
        return Err("the trace is not there when it is on".into());
    }
    Ok(())
}

pub(crate) fn host(compiler: &str, define: Option<&str>) -> Result<(), Failed> {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    for (name, text) in plain() {
        let file = scratch.path().join(name);
        std::fs::create_dir_all(file.parent().ok_or("no directory")?)?;
        std::fs::write(file, text)?;
    }
    let modelled = define.is_some();
    let assembly = |source: &str, on: bool| {
        std::fs::write(scratch.path().join("calls.cpp"), source)?;
        let output = Command::new(compiler)
            .current_dir(scratch.path())
            .args(["-std=c++17", "-O2", "-S", "-o", "-", "calls.cpp", "-I."])
            .args(["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/include")])
            .args(define)
            .args(on.then_some(MACRO))
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(String::from_utf8(output.stdout)?)
    };
    if modelled {
        // On memory models there is none, whatever is defined.
        let (off, on) = (assembly(SIGNATURES, false)?, assembly(SIGNATURES, true)?);
        return if off == on {
            Ok(())
        } else {
            Err("a modelled object has a trace".into())
        };
    }
    hold(assembly)
}

pub(crate) fn nvrtc(nvrtc: &Nvrtc, arch: Arch) -> Result<(), Failed> {
    hold(|source, on| {
        let mut program = Program::new("calls.cu", source);
        for (name, text) in plain() {
            program = program.header(name, text);
        }
        if on {
            program = program.option(MACRO);
        }
        let compiled = nvrtc.compile(&program, &Target::Ptx(arch.clone()))?;
        if !compiled.log.is_empty() {
            return Err(compiled.log.into());
        }
        let ptx = String::from_utf8(compiled.code)?;
        // The name by which the host finds it.
        for trace in [" mscclppTraceRing[16]", "globaltimer"] {
            // Waits look at the clock in any case.
            if ptx.contains(trace) != (on || trace == "globaltimer") {
                return Err(format!("{trace}, with the trace {on}").into());
            }
        }
        Ok(ptx)
    })
}

/// The headers that have a line of the trace: where it can be at all.
pub(crate) fn marked() -> Result<(), Failed> {
    let marked: Vec<&str> = (headers::ALL.iter())
        .filter(|(name, text)| {
            !name.contains("trace_device") && (text.contains(MARK) || text.contains(CALL))
        })
        .map(|(name, _)| Path::new(name).file_stem().and_then(|stem| stem.to_str()))
        .map(|stem| stem.unwrap_or_default())
        .collect();
    let expected = [
        "fifo_device",
        "port_channel_device",
        "queue_device",
        "semaphore_device",
    ];
    if marked == expected {
        Ok(())
    } else {
        Err(format!("{marked:?}").into())
    }
}
