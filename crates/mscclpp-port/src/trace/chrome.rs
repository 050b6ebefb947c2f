// SPDX-License-Identifier: MIT
//! The traces of ranks as one of Chrome's Trace Event Format.

use std::collections::BTreeMap;

use mscclpp_device::trace::Record;
use serde_json::{Value, json};

use super::flows::{Flow, Placed, flows};
use super::spans::slices;
use super::{Place, RankTrace, RingTrace};

/// A track: its place, its ring, and which of the ring's.
type Track = (Place, usize, u32);

/// Makes one time line of the traces of ranks: a process a rank, a thread a track, and arrows. Perfetto and
/// Chrome show it.
///
/// Ranks of one boot of one machine have one clock. If there are several machines, their wall clocks are
/// taken to agree, and `otherData` says so; arrows between them may then point back in time.
#[must_use]
pub fn chrome(ranks: &[RankTrace]) -> Value {
    let one_clock = ranks.windows(2).all(|two| two[0].boot == two[1].boot);
    let mut uncertainty = 0;
    let mut timed: Vec<(usize, BTreeMap<Track, Vec<Record>>)> = Vec::new();
    for rank in ranks {
        let mut tracks: BTreeMap<Track, Vec<Record>> = BTreeMap::new();
        for (index, ring) in rank.rings.iter().enumerate() {
            uncertainty = uncertainty.max(ring.uncertainty);
            let wall = if one_clock { 0 } else { rank.wall };
            for (time, what) in &ring.records {
                let time = time.wrapping_add_signed(wall.wrapping_sub(ring.offset));
                let record = Record { time, what: *what };
                let track = (ring.place, index, record.track());
                tracks.entry(track).or_default().push(record);
            }
        }
        // A span's records are written when it ends, and threads overtake each other.
        for records in tracks.values_mut() {
            records.sort_by_key(|record| record.time);
        }
        timed.push((rank.rank, tracks));
    }
    let times = (timed.iter()).flat_map(|(_, tracks)| tracks.values().flatten());
    let base = times.map(|record| record.time).min().unwrap_or(0);

    let (mut events, mut placed) = (Vec::new(), Vec::new());
    let (mut halves, mut open) = (0, 0);
    for ((rank, tracks), trace) in timed.iter().zip(ranks) {
        events.push(name("process_name", *rank, 0, &format!("rank {rank}")));
        for (thread, (track, records)) in (1u64..).zip(tracks) {
            let ring = &trace.rings[track.1];
            events.push(name("thread_name", *rank, thread, &title(ring, track.2)));
            events.push(
                json!({"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": thread,
                               "args": {"sort_index": thread}}),
            );
            let (found, lost) = slices(records);
            halves += lost;
            for mut slice in found {
                slice.start -= base;
                open += u64::from(slice.open);
                placed.push(Placed {
                    rank: *rank,
                    thread,
                    slice,
                });
            }
        }
    }
    placed.sort_by_key(|at| (at.slice.start, std::cmp::Reverse(at.slice.len)));
    let arrows = flows(&placed, uncertainty);
    let mut timed: Vec<(u64, u8, Value)> = placed.iter().map(slice_event).collect();
    for (id, arrow) in (1u64..).zip(&arrows) {
        timed.extend(arrow_events(id, arrow));
    }
    // Arrows behind the bars that they are bound to.
    timed.sort_by_key(|(time, order, _)| (*time, *order));
    events.extend(timed.into_iter().map(|(_, _, event)| event));

    let dropped: u64 = (ranks.iter().flat_map(|rank| &rank.rings))
        .map(|ring| ring.dropped)
        .sum();
    let clocks = if one_clock {
        "CLOCK_MONOTONIC of one machine"
    } else {
        "the wall clocks of several machines, which may differ by more than is said here"
    };
    json!({
        "displayTimeUnit": "ns",
        "traceEvents": events,
        "otherData": {
            "clocks": clocks,
            "clock_uncertainty_ns": uncertainty,
            "base_ns": base,
            "dropped_records": dropped,
            "ends_without_begin": halves,
            "spans_without_end": open,
        },
    })
}

fn name(what: &str, rank: usize, thread: u64, text: &str) -> Value {
    json!({"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": text}})
}

/// What a track is called.
fn title(ring: &RingTrace, track: u32) -> String {
    let RingTrace { place, name, .. } = ring;
    let dropped = match ring.dropped {
        0 => String::new(),
        count => format!(" ({count} older records dropped)"),
    };
    let (label, which) = match place {
        Place::Gpu => (
            "GPU",
            format!(" block {} thread {}", track >> 10, track & 0x3ff),
        ),
        Place::Proxy => ("proxy", String::new()),
        Place::Nic => ("NIC", queue(track)),
        Place::Wire => ("wire", queue(track)),
    };
    let name = if name == label { "" } else { name };
    format!("{label} {name}{which}{dropped}")
        .replace("  ", " ")
        .trim()
        .to_owned()
}

fn queue(track: u32) -> String {
    if track == 0 {
        String::new()
    } else {
        format!(" queue {track:#x}")
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

fn slice_event(at: &Placed) -> (u64, u8, Value) {
    let slice = &at.slice;
    let mut event = json!({
        "ph": "X", "cat": "mscclpp", "name": slice.kind.text(), "pid": at.rank, "tid": at.thread,
        "ts": micros(slice.start), "dur": micros(slice.len),
        "args": {"object": slice.object, "sequence": slice.sequence},
    });
    if slice.open {
        event["args"]["unfinished"] = true.into();
    }
    (slice.start, 0, event)
}

fn arrow_events(id: u64, arrow: &Flow) -> [(u64, u8, Value); 2] {
    let event = |at: &Placed, phase: &str| {
        json!({"ph": phase, "cat": "flow", "name": arrow.name, "id": id, "pid": at.rank,
               "tid": at.thread, "ts": micros(at.slice.start)})
    };
    let mut end = event(&arrow.to, "f");
    // To the bar around it, not to the next one.
    end["bp"] = "e".into();
    [
        (arrow.from.slice.start, 1, event(&arrow.from, "s")),
        (arrow.to.slice.start, 2, end),
    ]
}
