// SPDX-License-Identifier: MIT
//! What a run tells: a line now and then, and tables at the end.

use std::time::Instant;

use anyhow::Context as _;
use mscclpp_bootstrap::Bootstrap;
use serde::{Deserialize, Serialize};

use super::count::Counts;
use super::judge::QUANTITIES;
use super::sample::Sample;
use super::{Options, Rank};

/// What a rank tells at the end.
#[derive(Serialize, Deserialize)]
struct Told {
    counts: Counts,
    samples: Vec<Sample>,
}

/// A line.
pub(super) fn progress(begun: Instant, era: u64, counts: &Counts, sample: Option<&Sample>) {
    let holds = sample.map_or(String::new(), |sample| {
        format!(
            "{:.1} MiB resident, {:.0} KiB in use, {} descriptors, {} threads, {} objects",
            sample.resident / 1024.0,
            sample.heap,
            sample.descriptors,
            sample.threads,
            sample.objects
        )
    });
    let faults: u64 = counts.faults.values().sum();
    println!(
        "{:5.0} s: {} eras; rank 0: {} operations, {faults} faults; {holds}",
        begun.elapsed().as_secs_f64(),
        era + 1,
        counts.total(),
    );
}

/// The end: whether nothing grew, on any rank. Rank 0 tells.
pub(super) fn finish(rank: &Rank, samples: Vec<Sample>, options: &Options) -> anyhow::Result<bool> {
    let told = Told {
        counts: rank.counts.clone(),
        samples,
    };
    let all = rank.bootstrap.all_gather(&serde_json::to_vec(&told)?)?;
    let all: Vec<Told> = all
        .iter()
        .map(|bytes| serde_json::from_slice(bytes))
        .collect::<Result<_, _>>()?;
    let verdicts: Vec<(String, bool)> = (all.iter().enumerate())
        .flat_map(|(number, told)| {
            QUANTITIES
                .iter()
                .map(move |quantity| match quantity.trend(&told.samples) {
                    Some(trend) => {
                        let row = format!(
                            "| {number} | {} | {:.0} | {:.0} | {:+.2} | {:+.0} | {:.0} | {} |",
                            quantity.name,
                            trend.min,
                            trend.max,
                            trend.slope,
                            trend.rise,
                            quantity.tolerance,
                            if trend.flat { "flat" } else { "GROWS" }
                        );
                        (row, trend.flat)
                    }
                    None => (
                        format!("| {number} | {} | too few samples |", quantity.name),
                        false,
                    ),
                })
        })
        .collect();
    let flat = verdicts.iter().all(|(_, flat)| *flat);
    if rank.rank() == 0 {
        tables(rank, &all);
        println!("\n| rank | what | least | most | slope a minute | rise | tolerance | |");
        println!("|---|---|---|---|---|---|---|---|");
        for (row, _) in &verdicts {
            println!("{row}");
        }
        println!(
            "\n{}",
            if flat {
                "nothing grew"
            } else {
                "something grew"
            }
        );
        if let Some(path) = &options.json {
            let text = serde_json::to_vec(&all)?;
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(flat)
}

fn tables(rank: &Rank, all: &[Told]) {
    let mut counts = Counts::default();
    for told in all {
        counts.join(&told.counts);
    }
    let samples: Vec<usize> = all.iter().map(|told| told.samples.len()).collect();
    println!(
        "\n{} eras, {} operations on {} ranks, seed {}; samples: {samples:?}",
        rank.era,
        counts.total(),
        all.len(),
        rank.seed
    );
    for (title, map) in [("operation", &counts.operations), ("fault", &counts.faults)] {
        println!("\n| {title} | times |\n|---|---|");
        for (name, times) in map {
            println!("| {name} | {times} |");
        }
    }
}
