// SPDX-License-Identifier: MIT
//! What it costs a rank to agree on a plan: prints a Markdown table of messages and
//! bytes, counted by a recording bootstrap on ranks that are threads.
//!
//! ```text
//! cargo run -p mscclpp-bootstrap --example plan_cost [-- --json]
//! ```

#[path = "../tests/ranks/local.rs"]
mod local;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use local::local_world;
use mscclpp_bootstrap::{Bootstrap, Deadline, Gate, Plan, Recording, Traffic};

/// One row of the table.
struct Row {
    world: usize,
    /// `None`: queues between all ranks.
    degree: Option<usize>,
    /// The rank that receives the most bytes, the one that receives the most
    /// messages, and so on: the worst of each.
    agreed: Traffic,
    mismatch: Traffic,
}

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let mut rows = Vec::new();
    for world in [4, 8, 16, 32, 64, 128, 256, 512] {
        let sparse = [1, 2, 4, 8, 16]
            .into_iter()
            .filter(|degree| *degree < world);
        for degree in sparse.map(Some).chain([None]) {
            rows.push(Row {
                world,
                degree,
                agreed: worst(world, degree, false),
                mismatch: worst(world, degree, true),
            });
        }
    }
    if json {
        print_json(&rows);
    } else {
        print_markdown(&rows);
    }
}

/// The counts of one rank: `degree` peers nearest to it on a ring, of which one is
/// opposite when the degree is odd.
fn counts(rank: usize, world: usize, degree: Option<usize>) -> Vec<(usize, u32)> {
    let degree = degree.unwrap_or(world - 1);
    let near = (1..=degree / 2).flat_map(|d| [(rank + d) % world, (rank + world - d) % world]);
    let opposite = (degree % 2 == 1).then_some((rank + world / 2) % world);
    near.chain(opposite).map(|peer| (peer, 4)).collect()
}

/// The most that any rank sends and receives while all agree, or do not.
fn worst(world: usize, degree: Option<usize>, mismatch: bool) -> Traffic {
    let ranks: Vec<_> = local_world(world)
        .into_iter()
        .map(|local| {
            thread::spawn(move || {
                let bootstrap = Recording::new(Arc::new(local));
                let rank = bootstrap.rank();
                let mut counts = counts(rank, world, degree);
                if mismatch && rank == world - 1 {
                    counts[0].1 += 1;
                }
                let deadline = Deadline::after(Duration::from_secs(60));
                let mut gate = Gate::new(&bootstrap, 0, deadline).expect("nobody else has the tag");
                let agreed = Plan::agree(Plan::sparse(rank, world, &counts), &mut gate);
                assert_eq!(agreed.is_err(), mismatch, "{agreed:?}");
                gate.finish();
                bootstrap.total()
            })
        })
        .collect();
    let mut worst = Traffic::default();
    for rank in ranks {
        let traffic = rank.join().expect("a rank failed");
        worst.sent_messages = worst.sent_messages.max(traffic.sent_messages);
        worst.sent_bytes = worst.sent_bytes.max(traffic.sent_bytes);
        worst.received_messages = worst.received_messages.max(traffic.received_messages);
        worst.received_bytes = worst.received_bytes.max(traffic.received_bytes);
    }
    worst
}

/// What one rank receives when every rank is sent the counts of all, four bytes
/// each.
fn gathered(world: usize) -> usize {
    world * world * 4
}

fn print_markdown(rows: &[Row]) {
    println!(
        "| ranks | queues to | received [B] | sent [B] | messages received | messages sent | \
         received on a mismatch [B] | in messages | gathering all counts [B] |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let degree = match row.degree {
            Some(1) => "1 peer".to_owned(),
            Some(degree) => format!("{degree} peers"),
            None => format!("all {}", row.world - 1),
        };
        println!(
            "| {} | {degree} | {} | {} | {} | {} | {} | {} | {} |",
            row.world,
            row.agreed.received_bytes,
            row.agreed.sent_bytes,
            row.agreed.received_messages,
            row.agreed.sent_messages,
            row.mismatch.received_bytes,
            row.mismatch.received_messages,
            gathered(row.world),
        );
    }
}

fn print_json(rows: &[Row]) {
    let rows: Vec<String> = rows
        .iter()
        .map(|row| {
            format!(
                "  {{\"world\": {}, \"degree\": {}, \"received_bytes\": {}, \"sent_bytes\": {}, \
                 \"received_messages\": {}, \"sent_messages\": {}, \
                 \"mismatch_received_bytes\": {}, \"mismatch_received_messages\": {}, \
                 \"gathered_bytes\": {}}}",
                row.world,
                row.degree.unwrap_or(row.world - 1),
                row.agreed.received_bytes,
                row.agreed.sent_bytes,
                row.agreed.received_messages,
                row.agreed.sent_messages,
                row.mismatch.received_bytes,
                row.mismatch.received_messages,
                gathered(row.world),
            )
        })
        .collect();
    println!("[\n{}\n]", rows.join(",\n"));
}
