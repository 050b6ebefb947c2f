// SPDX-License-Identifier: MIT
//! Counters of two connected contexts as Prometheus's text.

use mscclpp_port::{
    Context, ContextConfig, EndpointConfig, Error, Hca, ProxyService, Snapshot, TransportKind,
};

use crate::common::{LOCALHOST, Memory, connect, connect_with, context, eventually, patience};
use crate::exposition::{Labels, read};

/// Apart from those of other tests.
const RANKS: [usize; 2] = [10, 11];

fn labels(pairs: &[(&str, &str)]) -> Labels {
    (pairs
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into())))
    .collect()
}

/// The one sample of a family that has some labels among its own.
fn value(text: &str, family: &str, with: &[(&str, &str)]) -> f64 {
    let families = read(text).unwrap();
    let wanted = labels(with);
    let has = |own: &Labels| {
        wanted
            .iter()
            .all(|(name, value)| own.get(name) == Some(value))
    };
    let found = families.get(family).map(|family| &family.samples);
    let found: Vec<f64> = (found.into_iter().flatten())
        .filter(|(own, _)| has(own))
        .map(|(_, value)| *value)
        .collect();
    assert_eq!(found.len(), 1, "{family} {with:?} in\n{text}");
    found[0]
}

#[test]
fn the_text_says_what_was_posted_with_rank_and_peer() {
    let [a, b] = RANKS.map(context);
    let (a_to_b, b_to_a) = connect(&a, &b);
    let (other_a_to_b, _other) = connect(&a, &b);
    let (at_a, at_b) = (Memory::new(&a, 4096), Memory::new(&b, 4096));
    let remote = at_b.seen_by(&a);
    a_to_b.write(&remote, 0, &at_a.local, 0, 1000).unwrap();
    a_to_b.write(&remote, 0, &at_a.local, 0, 24).unwrap();
    a_to_b.accumulate(&remote, 8, 3).unwrap();
    a_to_b.flush(patience()).unwrap();
    let service = ProxyService::new(16).unwrap();

    let text = a.counters().with_proxy(&service).prometheus();
    let connection = a_to_b.counters().connection.to_string();
    let other = other_a_to_b.counters().connection.to_string();
    let ours = [
        ("rank", "10"),
        ("peer", "11"),
        ("transport", "ETH"),
        ("connection", connection.as_str()),
    ];
    let kind = |kind| {
        let mut labels = ours.to_vec();
        labels.push(("kind", kind));
        value(&text, "mscclpp_posts_total", &labels)
    };
    assert_eq!(
        (kind("put"), kind("accumulate"), kind("flush")),
        (2.0, 1.0, 1.0)
    );
    assert_eq!((kind("signal"), kind("put_with_signal")), (0.0, 0.0));
    assert_eq!(value(&text, "mscclpp_posted_bytes_total", &ours), 1024.0);
    assert_eq!(value(&text, "mscclpp_flushes_done_total", &ours), 1.0);
    assert_eq!(value(&text, "mscclpp_completions_total", &ours), 1.0);
    assert!(value(&text, "mscclpp_doorbells_total", &ours) >= 1.0);
    assert_eq!(value(&text, "mscclpp_backpressure_total", &ours), 0.0);
    assert_eq!(value(&text, "mscclpp_connection_up", &ours), 1.0);
    assert_eq!(
        value(
            &text,
            "mscclpp_posted_bytes_total",
            &[("connection", &other)]
        ),
        0.0
    );
    assert_eq!(value(&text, "mscclpp_fifo_slots", &[]), 16.0);
    assert_eq!(value(&text, "mscclpp_proxy_running", &[]), 0.0);
    // Exactly these labels, and nothing of b's.
    let families = read(&text).unwrap();
    let samples = &families["mscclpp_connection_up"].samples;
    assert_eq!(samples.len(), 2);
    assert!(samples.iter().any(|(own, _)| *own == labels(&ours)));
    assert!(!families.contains_key("mscclpp_connection_error_info"));

    // Both ranks in one text, what is in both once.
    let both = a.counters().and(b.counters()).and(a.counters());
    assert_eq!(both.connections.len(), 4);
    read(&both.prometheus()).unwrap();

    // One that is dropped leaves.
    drop(other_a_to_b);
    let text = a.counters().prometheus();
    assert!(!text.contains(&format!("connection=\"{other}\"")), "{text}");
    drop(b_to_a);
    eventually("the peer's leaving is noticed", || {
        a_to_b.status().is_some()
    });
    let text = a.counters().prometheus();
    assert_eq!(value(&text, "mscclpp_connection_up", &ours), 0.0);
    let info = value(
        &text,
        "mscclpp_connection_error_info",
        &[("code", "RemoteError")],
    );
    assert_eq!(info, 1.0);
}

#[test]
fn what_ends_a_label_is_escaped() {
    let [a, b] = RANKS.map(context);
    let (_a_to_b, _b_to_a) = connect(&a, &b);
    let mut snapshot = a.counters();
    let cause = "it said \"no\",\nat C:\\new";
    snapshot.connections[0].last_error = Some(Error::PeerDown {
        rank: Some(11),
        cause: cause.into(),
    });
    let families = read(&snapshot.prometheus()).unwrap();
    let (labels, value) = &families["mscclpp_connection_error_info"].samples[0];
    assert!(labels["error"].contains(cause), "{labels:?}");
    assert_eq!(*value, 1.0);
}

#[test]
fn queues_of_kernels_and_their_hcas_are_in_the_text() {
    let contexts = RANKS.map(|rank| {
        let mut config = ContextConfig::new(LOCALHOST);
        config.rank = Some(rank);
        let device = mscclpp_softnic::Device::open("soft0", Default::default()).unwrap();
        config.hca_devices = vec![Hca::from(device)];
        Context::with_config(config).unwrap()
    });
    let config = EndpointConfig::gpu_initiated(TransportKind::IB0);
    let (a_to_b, b_to_a) = connect_with(&contexts[0], &contexts[1], config);
    a_to_b.wait_connected(patience()).unwrap();
    b_to_a.wait_connected(patience()).unwrap();
    let snapshot = contexts[0].counters();
    let queue = snapshot.connections[0].queue.unwrap();
    assert!(snapshot.connections[0].posts.is_none());
    let text = snapshot.prometheus();
    let number = queue.number.to_string();
    let ours = [("rank", "10"), ("peer", "11"), ("queue", number.as_str())];
    // The test of a new queue is one request, which the host has seen completed.
    let is = |family, expected| assert_eq!(value(&text, family, &ours), expected, "{family}");
    is("mscclpp_queue_requests_total", 1.0);
    is("mscclpp_queue_requests_done_total", 1.0);
    is("mscclpp_queue_slots", f64::from(queue.slots));
    let hca = [("rank", "10"), ("hca", "soft0")];
    assert!(value(&text, "mscclpp_hca_doorbells_total", &hca) >= 1.0);
    assert!(value(&text, "mscclpp_hca_completions_total", &hca) >= 1.0);
    let families = read(&text).unwrap();
    assert!(
        !families.contains_key("mscclpp_posts_total"),
        "nobody counts them"
    );
}

#[test]
fn a_table_has_a_row_of_each_connection() {
    let [a, b] = RANKS.map(context);
    let (_one, _two) = (connect(&a, &b), connect(&a, &b));
    let text = a.counters().to_string();
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows.len(), 3, "{text}");
    assert!(!text.ends_with('\n'), "who prints it ends the line");
    let widths: Vec<usize> = rows.iter().map(|row| row.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    assert!(
        rows[0].contains("puts+signal") && rows[1].contains("ETH"),
        "{text}"
    );
    assert_eq!(a.counters().connections[0].to_string().lines().count(), 2);
    assert_eq!(Snapshot::default().to_string(), "");
}
