// SPDX-License-Identifier: MIT
//! Time lines: `mscclpp_port::trace` as a command. `cargo xtask trace` starts it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Parser;
use mscclpp_conformance::trace_demo::{Way, run};
use mscclpp_port::trace::{Facts, RankTrace, check, chrome};
use serde_json::Value;

/// Makes one time line of the traces of ranks, checks it, and writes it.
#[derive(Debug, Parser)]
struct Options {
    /// Files of ranks, as RankTrace::save writes them; with --check, time lines
    #[arg(value_name = "FILE", required_unless_present = "demo")]
    files: Vec<PathBuf>,
    /// Where to write it
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// Only hold time lines against the format's rules
    #[arg(long, conflicts_with = "demo")]
    check: bool,
    /// Make the traces: ping-pongs of two ranks on CPU threads, through proxies over TCP and on queues of
    /// NICs in software; the ranks' files go beside the output
    #[arg(long, conflicts_with = "files")]
    demo: bool,
    /// Round trips of each ping-pong
    #[arg(long, value_name = "N", default_value = "20", requires = "demo")]
    iterations: u64,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    if options.check {
        for file in &options.files {
            let text = fs::read(file).with_context(|| format!("read {}", file.display()))?;
            let json = serde_json::from_slice(&text)?;
            println!("{}: {}", file.display(), told(&checked(&json)?));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if options.demo {
        for way in [Way::Proxy, Way::Queue] {
            let ranks = run(way, options.iterations)?;
            let output = beside(&options.output, way.name());
            for rank in &ranks {
                let file = beside(&output, &format!("rank{}", rank.rank));
                rank.save(&file)
                    .with_context(|| format!("write {}", file.display()))?;
            }
            let facts = write(&ranks, &output)?;
            way.expect(&facts, options.iterations)?;
        }
        return Ok(ExitCode::SUCCESS);
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
    write(&ranks, &options.output)?;
    Ok(ExitCode::SUCCESS)
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
