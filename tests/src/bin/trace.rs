// SPDX-License-Identifier: MIT
//! Time lines: `mscclpp_port::trace` as a command. `cargo xtask trace` starts it.

#[path = "../../../xtask/src/trace/options.rs"]
mod options;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Parser;
use mscclpp_conformance::closed_pipe;
use mscclpp_conformance::trace_demo::{Way, run};
use mscclpp_port::trace::{Facts, RankTrace, check, chrome};
use options::{OUTPUT, TraceArgs};
use serde_json::Value;

fn main() -> ExitCode {
    closed_pipe::guard(time_lines)
}

fn time_lines() -> anyhow::Result<()> {
    let options = TraceArgs::parse();
    if options.check {
        for file in &options.files {
            let text = fs::read(file).with_context(|| format!("read {}", file.display()))?;
            let json = serde_json::from_slice(&text)?;
            println!("{}: {}", file.display(), told(&checked(&json)?));
        }
        return Ok(());
    }
    let output = options.output.as_deref().unwrap_or(Path::new(OUTPUT));
    if options.demo {
        for way in [Way::Proxy, Way::Queue] {
            let ranks = run(way, options.iterations)?;
            let output = beside(output, way.name());
            for rank in ranks.iter().filter(|_| options.keep) {
                let file = beside(&output, &format!("rank{}", rank.rank));
                rank.save(&file)
                    .with_context(|| format!("write {}", file.display()))?;
            }
            let facts = write(&ranks, &output)?;
            way.expect(&facts, options.iterations)?;
        }
        return Ok(());
    }
    let ranks: Vec<RankTrace> = (options.files.iter())
        .map(|file| {
            RankTrace::load(file).with_context(|| format!("{} is no rank's trace", file.display()))
        })
        .collect::<anyhow::Result<_>>()?;
    for (index, rank) in ranks.iter().enumerate() {
        let twice = ranks[..index].iter().any(|other| other.rank == rank.rank);
        ensure!(!twice, "two of the files are of rank {}", rank.rank);
    }
    write(&ranks, output)?;
    Ok(())
}

/// Writes the time line of some ranks.
fn write(ranks: &[RankTrace], output: &Path) -> anyhow::Result<Facts> {
    let json = chrome(ranks);
    let facts = checked(&json)?;
    fs::write(output, serde_json::to_vec(&json)?)
        .with_context(|| format!("write {}", output.display()))?;
    println!("{}: {}", output.display(), told(&facts));
    let other = &json["otherData"];
    println!(
        "  clocks: {}, within {} ns; {} records dropped",
        other["clocks"].as_str().unwrap_or_default(),
        other["clock_uncertainty_ns"],
        other["dropped_records"]
    );
    Ok(facts)
}

fn checked(json: &Value) -> anyhow::Result<Facts> {
    check(json).map_err(|faults| anyhow::anyhow!("no good trace:\n{}", faults.join("\n")))
}

fn told(facts: &Facts) -> String {
    let sum = |counts: &std::collections::BTreeMap<String, usize>| counts.values().sum::<usize>();
    format!(
        "{} bars on {} tracks, {} arrows, {} of them between ranks",
        sum(&facts.slices),
        facts.tracks.len(),
        sum(&facts.flows),
        facts.between_ranks
    )
}

/// `trace.json`, `proxy`: `trace-proxy.json`.
fn beside(file: &Path, part: &str) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("{stem}-{part}.json"))
}
