// SPDX-License-Identifier: MIT
//! Devices, ports and events; and that nothing is left behind.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

use mscclpp_port::verbs::{
    AsyncEvent, Device, GidKind, LinkLayer, PortChange, PortState, ProtectionDomain,
};

use super::in_guest;
use super::pair::{DEVICE, Pair, initialized, made, open, path};

fn command(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[test]
fn the_device_describes_itself() {
    in_guest!(the_device_describes_itself);
    assert!(Device::list().unwrap().contains(&DEVICE.into()));
    let device = open();
    let can = device.capabilities();
    assert!(can.atomics, "{can:?}");
    assert_eq!(can.ports, 1);
    assert!(
        can.max_queue_requests >= 1024 && can.max_completions >= 1024,
        "{can:?}"
    );
    assert!(
        can.max_outstanding_reads >= 16 && can.max_answered_reads >= 16,
        "{can:?}"
    );
    assert!(!device.has_data_direct());

    let port = device.port(1).unwrap();
    assert_eq!(port.state, PortState::Active);
    assert_eq!(port.link_layer, LinkLayer::Ethernet);
    assert!(port.needs_gid());
    assert!(port.gid_table_len > 1, "{port:?}");
}

#[test]
fn gids_have_their_kind_and_interface() {
    in_guest!(gids_have_their_kind_and_interface);
    let gids = open().gids(1).unwrap();
    assert!(
        gids.iter().all(|gid| gid.kind == GidKind::RoceV2),
        "{gids:?}"
    );
    let address = Ipv4Addr::new(10, 77, 0, 1);
    let Some(gid) = gids.iter().find(|gid| gid.ipv4() == Some(address)) else {
        panic!("{gids:?}");
    };
    assert!(!gid.is_link_local());
    assert!(
        gid.netdev.as_deref().is_some_and(|name| name.len() > 2),
        "{gid:?}"
    );
    assert!(
        gids.iter()
            .any(|gid| gid.is_link_local() && gid.ipv4().is_none()),
        "{gids:?}"
    );
}

/// The events of a device until one is found, which has to be soon.
fn until(device: &Device, wanted: AsyncEvent) {
    let end = Instant::now() + Duration::from_secs(10);
    let mut seen = Vec::new();
    while seen.last() != Some(&wanted) {
        match device.take_event().unwrap() {
            Some(event) => seen.push(event),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
        assert!(Instant::now() < end, "no {wanted:?}, only {seen:?}");
    }
}

#[test]
fn a_link_that_goes_down_and_comes_back_is_told() {
    in_guest!(a_link_that_goes_down_and_comes_back_is_told);
    let device = open();
    let netdev = device.gids(1).unwrap()[0].netdev.clone().unwrap();
    assert_eq!(device.take_event().unwrap(), None);
    let port = |change| AsyncEvent::Port { number: 1, change };
    command(&format!("ip link set {netdev} down"));
    until(&device, port(PortChange::Down));
    assert_eq!(device.port(1).unwrap().state, PortState::Down);
    command(&format!("ip link set {netdev} up"));
    until(&device, port(PortChange::Active));
    command(&format!("ip addr add 10.78.0.9/24 dev {netdev}"));
    until(&device, port(PortChange::Gids));
    command(&format!("ip addr del 10.78.0.9/24 dev {netdev}"));
}

/// This thread's objects, as the kernel counts them: it notes the thread that made them.
fn objects() -> String {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = thread.file_name().unwrap().display();
    ["qp", "cq", "mr", "pd"]
        .map(|kind| {
            let all = command(&format!("rdma resource show {kind}"));
            let own = all
                .lines()
                .filter(|line| line.contains(&format!("pid {thread} ")));
            format!("{kind} {}", own.count())
        })
        .join(" ")
}

#[test]
fn nothing_is_left_whatever_goes_first() {
    in_guest!(nothing_is_left_whatever_goes_first);
    let before = objects();
    for round in 0..3 {
        let pair = Pair::new();
        let words = pair.words(64);
        assert_ne!(objects(), before);
        let Pair { domain, ends } = pair;
        let [one, two] = ends;
        match round {
            0 => drop((domain, words, one, two)),
            1 => drop((two, one, words, domain)),
            _ => drop((one.sent, one.received, domain, one.queue, words, two)),
        }
        assert_eq!(objects(), before, "round {round}");
    }
}

#[test]
fn a_queue_pair_that_fails_half_way_leaves_nothing() {
    in_guest!(a_queue_pair_that_fails_half_way_leaves_nothing);
    let before = objects();
    let device = open();
    let domain = ProtectionDomain::new(&device).unwrap();
    let with_domain = objects();
    assert_ne!(with_domain, before);

    let (queue, queues) = made(&domain);
    drop(queues);
    assert_ne!(objects(), with_domain);
    queue.initialize(9, super::pair::REMOTE).unwrap_err();
    assert_eq!(objects(), with_domain);

    let (queue, queues) = initialized(&domain);
    drop(queues);
    let mut path = path(&device, queue.number());
    path.destination.route = None;
    queue.ready_to_receive(&path).unwrap_err();
    assert_eq!(objects(), with_domain);
    drop((device, domain));
    assert_eq!(objects(), before);
}
