// SPDX-License-Identifier: MIT
use mscclpp_device::trace::{Kind, Phase, Record, Snapshot};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn ring(place: Place, records: &[Record]) -> RingTrace {
    let snapshot = Snapshot {
        records: records.to_vec(),
        dropped: 0,
    };
    RingTrace::new(place, "a ring".into(), &snapshot, (0, 0))
}

fn rank(rank: usize, rings: Vec<RingTrace>) -> RankTrace {
    RankTrace {
        version: RankTrace::VERSION,
        rank,
        boot: "one".into(),
        wall: 5,
        rings,
    }
}

fn point(time: u64, kind: Kind, object: u64, sequence: u64) -> Record {
    Record::new(time, kind, Phase::Point, 0, object, sequence)
}

/// A signal from a kernel of rank 0 to one of rank 1, through proxy and wire.
fn signal() -> Vec<RankTrace> {
    let call = |time, phase, kind| Record::new(time, kind, phase, 1025, 3, 0);
    let handled = |time, phase| Record::new(time, Kind::Handled, phase, 0, 9, 70_000);
    let sender = vec![
        ring(
            Place::Gpu,
            &[
                call(1000, Phase::Begin, Kind::Signal),
                Record::new(1100, Kind::Pushed, Phase::Point, 1025, 9, 70_000),
                call(1200, Phase::End, Kind::Signal),
            ],
        ),
        ring(
            Place::Proxy,
            &[
                point(1350, Kind::Posted, 4, 1),
                handled(1300, Phase::Begin),
                handled(1400, Phase::End),
            ],
        ),
        ring(Place::Nic, &[point(1500, Kind::Left, 4, 1)]),
        ring(Place::Wire, &[point(1500, Kind::Sent, 4, 1)]),
    ];
    let receiver = vec![
        ring(
            Place::Gpu,
            &[
                call(500, Phase::Begin, Kind::Wait),
                Record::new(1900, Kind::Took, Phase::Point, 1025, 6, 1),
                call(1900, Phase::End, Kind::Wait),
            ],
        ),
        ring(
            Place::Wire,
            &[
                point(1700, Kind::Received, 4, 1),
                point(1800, Kind::Raised, 6, 1),
            ],
        ),
    ];
    vec![rank(0, sender), rank(1, receiver)]
}

#[test]
fn a_signal_can_be_followed_from_kernel_to_kernel() {
    let json = chrome(&signal());
    let facts = check(&json).unwrap();
    for (flow, count) in [("trigger", 1), ("post", 1), ("packet", 1), ("signal", 1)] {
        assert_eq!(facts.flows.get(flow), Some(&count), "{facts:?}");
    }
    assert_eq!(facts.between_ranks, 1);
    for track in ["GPU a ring block 1 thread 1", "proxy a ring", "wire a ring"] {
        assert!(facts.tracks.iter().any(|name| name == track), "{facts:?}");
    }
    let events = json["traceEvents"].as_array().unwrap();
    let wait = events.iter().find(|event| event["name"] == "wait").unwrap();
    assert_eq!((&wait["ts"], &wait["dur"]), (&json!(0.0), &json!(1.4)));
    assert_eq!((&wait["pid"], &wait["ph"]), (&json!(1), &json!("X")));
}

#[test]
fn files_come_back_as_they_were_and_other_versions_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rank0.json");
    let [mut trace, _] = <[RankTrace; 2]>::try_from(signal()).unwrap();
    trace.save(&path).unwrap();
    assert_eq!(RankTrace::load(&path).unwrap(), trace);
    trace.version = 2;
    trace.save(&path).unwrap();
    let error = RankTrace::load(&path).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}

#[test]
fn clocks_are_laid_upon_each_other() {
    let mut ranks = signal();
    // The GPU of rank 1 has a clock of its own; its machine another boot and another wall clock.
    for time in &mut ranks[1].rings[0].records {
        time.0 += 1_000_000;
    }
    ranks[1].rings[0].offset = 1_000_000;
    ranks[1].rings[0].uncertainty = 40;
    assert_eq!(check(&chrome(&ranks)).unwrap().flows["signal"], 1);

    ranks[1].boot = "two".into();
    ranks[1].wall = 5 + 700;
    for ring in &mut ranks[1].rings {
        ring.records.iter_mut().for_each(|record| record.0 -= 400);
    }
    let json = chrome(&ranks);
    let facts = check(&json).unwrap();
    assert_eq!((facts.flows["signal"], facts.between_ranks), (1, 1));
    assert!(
        json["otherData"]["clocks"]
            .as_str()
            .unwrap()
            .contains("wall")
    );
    assert_eq!(json["otherData"]["clock_uncertainty_ns"], 40);
}

#[test]
fn what_is_cut_off_is_told() {
    let mut ring = ring(
        Place::Gpu,
        &[
            Record::new(10, Kind::Wait, Phase::End, 0, 0, 0),
            Record::new(20, Kind::Put, Phase::Begin, 0, 0, 0),
            Record::new(25, Kind::Pushed, Phase::Point, 0, 0, 0),
        ],
    );
    ring.dropped = 8;
    let json = chrome(&[rank(0, vec![ring])]);
    let facts = check(&json).unwrap();
    let other = &json["otherData"];
    assert_eq!(other["dropped_records"], 8);
    assert_eq!(other["ends_without_begin"], 1);
    assert_eq!(other["spans_without_end"], 1);
    assert!(facts.tracks[0].contains("8 older records dropped"));
    assert_eq!(facts.slices.get("wait"), None);
}

#[test]
fn a_number_that_comes_again_leads_to_its_own() {
    let wrapped: Vec<Record> = (0..3)
        .flat_map(|lap| {
            let number = 5 + (lap << 16);
            let at = 1000 * lap;
            [
                point(at, Kind::Raised, 1, number),
                point(at + 10, Kind::Took, 1, number),
            ]
        })
        .collect();
    let json = chrome(&[rank(0, vec![ring(Place::Wire, &wrapped)])]);
    assert_eq!(check(&json).unwrap().flows["signal"], 3);
    // Without the second begin, its end has none: it does not take the first one's.
    let mut lost = wrapped;
    lost.remove(2);
    let json = chrome(&[rank(0, vec![ring(Place::Wire, &lost)])]);
    assert_eq!(check(&json).unwrap().flows["signal"], 2);
}

/// Each fault, put into a good trace, is found.
#[test]
fn planted_faults_are_found() {
    fn bar(json: &mut Value, name: &str) -> usize {
        let events = json["traceEvents"].as_array().unwrap();
        let found = events.iter().position(|event| {
            event["name"] == name && !matches!(event["ph"].as_str(), Some("s" | "f"))
        });
        found.unwrap()
    }
    type Plant = fn(&mut Value);
    let faults: &[(&str, Plant)] = &[
        ("no array", |json| json["traceEvents"] = json!({})),
        ("displayTimeUnit", |json| {
            json["displayTimeUnit"] = json!("s")
        }),
        ("no text ph", |json| {
            let at = bar(json, "wait");
            json["traceEvents"][at]
                .as_object_mut()
                .unwrap()
                .remove("ph");
        }),
        ("no number ts", |json| {
            let at = bar(json, "wait");
            json["traceEvents"][at]["ts"] = json!("0");
        }),
        ("no number pid", |json| {
            let at = bar(json, "wait");
            json["traceEvents"][at]["pid"] = json!("rank");
        }),
        ("dur is -1", |json| {
            let at = bar(json, "wait");
            json["traceEvents"][at]["dur"] = json!(-1.0);
        }),
        ("no number dur", |json| {
            let at = bar(json, "signal");
            json["traceEvents"][at]
                .as_object_mut()
                .unwrap()
                .remove("dur");
        }),
        ("sticks out", |json| {
            let at = bar(json, "push");
            json["traceEvents"][at]["dur"] = json!(5.0);
        }),
        ("goes back", |json| {
            let last = json["traceEvents"].as_array().unwrap().len() - 1;
            json["traceEvents"][last]["ts"] = json!(0.0);
        }),
        ("1 begins and 0 ends", |json| {
            let events = json["traceEvents"].as_array_mut().unwrap();
            events.retain(|event| event["ph"] != "f" || event["name"] != "packet");
        }),
        ("at no bar", |json| {
            let events = json["traceEvents"].as_array_mut().unwrap();
            let from = events.iter_mut().find(|event| event["ph"] == "s").unwrap();
            from["tid"] = json!(99);
        }),
        ("not bound", |json| {
            let events = json["traceEvents"].as_array_mut().unwrap();
            let to = events.iter_mut().find(|event| event["ph"] == "f").unwrap();
            to["bp"] = json!("s");
        }),
        ("points back", |json| {
            let events = json["traceEvents"].as_array_mut().unwrap();
            for event in events.iter_mut() {
                match event["ph"].as_str() {
                    Some("s") if event["name"] == "packet" => event["ph"] = json!("f"),
                    Some("f") if event["name"] == "packet" => event["ph"] = json!("s"),
                    _ => continue,
                }
                event["bp"] = json!("e");
            }
        }),
        ("has no end", |json| {
            let at = bar(json, "push");
            json["traceEvents"][at]["ph"] = json!("B");
        }),
        ("what began last", |json| {
            let at = bar(json, "push");
            json["traceEvents"][at]["ph"] = json!("E");
        }),
        ("not known", |json| {
            let at = bar(json, "push");
            json["traceEvents"][at]["ph"] = json!("Q");
        }),
        ("metadata", |json| {
            let at = bar(json, "process_name");
            json["traceEvents"][at]["name"] = json!("process_colour");
        }),
    ];
    check(&chrome(&signal())).unwrap();
    for (expected, plant) in faults {
        let mut json = chrome(&signal());
        plant(&mut json);
        let found = check(&json).expect_err(expected);
        assert!(
            found.iter().any(|fault| fault.contains(expected)),
            "{expected}: {found:?}"
        );
    }
}

proptest! {
    /// Whatever rings hold, what is made of it is a trace.
    #[test]
    fn any_records_make_a_trace(
        records in prop::collection::vec((0u64..50, any::<u64>()), 0..60),
        kinds in prop::collection::vec((0u64..50, 0..Kind::ALL.len(), 0u64..3, 0u64..2), 0..60),
    ) {
        let known = kinds.iter().map(|(time, kind, phase, object)| {
            let phase = [Phase::Point, Phase::Begin, Phase::End][*phase as usize];
            Record::new(*time, Kind::ALL[*kind], phase, 0, *object, 0)
        });
        let wild = records.iter().map(|(time, what)| Record { time: *time, what: *what });
        let rings = vec![
            ring(Place::Gpu, &known.collect::<Vec<_>>()),
            ring(Place::Wire, &wild.collect::<Vec<_>>()),
        ];
        let found = check(&chrome(&[rank(0, rings.clone()), rank(1, rings)]));
        prop_assert!(found.is_ok(), "{:?}", found);
    }
}
