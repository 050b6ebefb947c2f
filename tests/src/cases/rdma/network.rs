// SPDX-License-Identifier: MIT
//! Networks that are slow, small or gone for a while: nothing is lost.

use std::thread;
use std::time::Duration;

use anyhow::ensure;
use mscclpp_port::{Buffer, Error, IbConfig};

use super::guest::{Change, dropped, needed, packets};
use super::name;
use crate::backend::{Backend, Setup};
use crate::fixture::{Fixture, Link};
use crate::harness::{Context, Registry, TestResult};
use crate::kernels::{Call, PingPong, Steps};

pub(super) fn register(registry: &mut Registry, backend: &'static Backend) {
    for (test, body) in [
        (
            "TwoDevices",
            two_devices as fn(&Context, &'static Backend) -> TestResult,
        ),
        ("PacketLoss", packet_loss),
        ("LinkDownAndUp", link_down_and_up),
        ("OtherMtu", other_mtu),
        ("GidIndex", gid_index),
    ] {
        registry
            .add(name(test, backend), move |context| {
                needed(context)?;
                body(context, backend)
            })
            .ranks(2, 2)
            .seconds(120);
    }
}

/// 32-bit words of the ping-pongs here: no round number of packets.
const WORDS: u64 = 12_345;
const MIB: u64 = 1 << 20;

fn ping_pong(fixture: &Fixture<'_>, link: &Link, buffer: &Buffer, iterations: u64) -> TestResult {
    let kernel = PingPong {
        channel: link.channel.clone(),
        buffer: buffer.clone(),
        elements: WORDS,
        iterations,
        polls: None,
        rank: fixture.context.rank(),
        flush: true,
        check: true,
        answers_last: false,
    };
    (kernel.launch(2)?.finish(fixture.context.deadline())).map(drop)
}

fn of_queue(queue: IbConfig) -> Setup {
    Setup {
        queue,
        ..Setup::default()
    }
}

/// A MiB from rank 0, and how many packets of it rank 1's end of the link has seen.
fn packets_of_a_mib(fixture: &Fixture<'_>, link: &Link) -> anyhow::Result<u64> {
    fixture.meet()?;
    let before = packets("veth1")?;
    fixture.meet()?;
    if fixture.context.rank() == 0 {
        let calls = [(0, Call::PutWithSignal(link.first(MIB))), (0, Call::Flush)];
        Steps::run(&[link.base()], &calls, fixture.context.deadline())?;
    } else {
        Steps::run(
            &[link.base()],
            &[(0, Call::Wait)],
            fixture.context.deadline(),
        )?;
    }
    fixture.meet()?;
    Ok(packets("veth1")? - before)
}

/// Each rank has a device of its own, and what they send crosses the link.
fn two_devices(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(MIB)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    ping_pong(&fixture, &link, &buffer, 10)?;
    let count = packets_of_a_mib(&fixture, &link)?;
    context.measure("packets of a MiB", count as f64, "");
    // 256 with 4096 bytes, and few others: the link's own, and acknowledgements.
    ensure!((256..512).contains(&count), "{count} packets");
    Ok(())
}

/// One packet in a hundred is lost, in both directions.
fn packet_loss(context: &Context, backend: &'static Backend) -> TestResult {
    // 67 ms, so that the last packet of a message, if it is lost, is not waited for long.
    let queue = IbConfig {
        timeout: Some(14),
        ..IbConfig::default()
    };
    let fixture = Fixture::with(context, backend, &of_queue(queue))?;
    let buffer = fixture.buffer(4 * WORDS)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    fixture.meet()?;
    let change = (context.rank() == 0).then(|| {
        Change::make(
            "tc qdisc add dev veth0 root netem loss 1%; tc qdisc add dev veth1 root netem loss 1%",
            "tc qdisc del dev veth0 root; tc qdisc del dev veth1 root",
        )
    });
    let change = change.transpose()?;
    fixture.meet()?;
    context.stage("ping-pong with losses");
    ping_pong(&fixture, &link, &buffer, context.profile().pick(100, 1000))?;
    context.stage("signals with losses");
    let mut calls = vec![(0, Call::Signal); 200];
    calls.push((0, Call::Flush));
    calls.extend([(0, Call::Wait); 200]);
    Steps::run(&[link.base()], &calls, context.deadline())?;
    fixture.meet()?;
    if let Some(change) = change {
        let lost = dropped()?;
        context.measure("packets lost", lost as f64, "");
        ensure!(lost > 0, "no packet was lost");
        change.undo()?;
    }
    fixture.meet()
}

/// Puts while the link is down wait until it is up.
fn link_down_and_up(context: &Context, backend: &'static Backend) -> TestResult {
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(MIB)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    ping_pong(&fixture, &link, &buffer, 5)?;
    fixture.meet()?;
    if context.rank() == 0 {
        let bytes = vec![0x5a; MIB as usize];
        buffer.write(0, &bytes)?;
        // The other end, because without a route Soft-RoCE refuses to send, which no NIC does. The route
        // of that end goes with it; its address stays.
        let down = Change::make(
            "ip link set veth1 down",
            "ip link set veth1 up
             ip route replace 10.77.0.1/32 dev veth1 src 10.77.0.2 table 102",
        )?;
        context.stage("put while the link is down");
        let before = packets("veth1")?;
        let calls = [(0, Call::PutWithSignal(link.first(MIB))), (0, Call::Flush)];
        let putting = Steps::launch(&[link.base()], &calls)?;
        thread::sleep(Duration::from_millis(1500));
        ensure!(
            packets("veth1")? == before,
            "packets cross a link that is down"
        );
        ensure!(
            link.connection.status().is_none(),
            "{:?}",
            link.connection.status()
        );
        down.undo()?;
        context.stage("the link is up again");
        let done = putting.finish(context.deadline())?;
        ensure!(done.iter().all(|call| call.is_ok()), "{done:?}");
    } else {
        context.stage("wait for a put over a link that is down");
        Steps::run(&[link.base()], &[(0, Call::Wait)], context.deadline())?;
        let mut bytes = vec![0; MIB as usize];
        buffer.read(0, &mut bytes)?;
        ensure!(
            bytes.iter().all(|byte| *byte == 0x5a),
            "the data is not there"
        );
    }
    fixture.meet()?;
    ping_pong(&fixture, &link, &buffer, 5)?;
    fixture.meet()
}

/// Packets of one end's size do not fit the other's network: both send small ones.
fn other_mtu(context: &Context, backend: &'static Backend) -> TestResult {
    context.meet()?;
    let change = (context.rank() == 0)
        .then(|| Change::make("ip link set veth1 mtu 1500", "ip link set veth1 mtu 4200"));
    let change = change.transpose()?;
    context.meet()?;
    let fixture = Fixture::new(context, backend)?;
    let buffer = fixture.buffer(MIB)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    ping_pong(&fixture, &link, &buffer, 10)?;
    let count = packets_of_a_mib(&fixture, &link)?;
    context.measure("packets of a MiB", count as f64, "");
    // Of 1024 bytes: what fits 1500.
    ensure!((1024..2048).contains(&count), "{count} packets");
    fixture.meet()?;
    change.map_or(Ok(()), Change::undo)?;
    context.meet()
}

/// An index of the table of GIDs with nothing in it is refused, with what there is; the others work,
/// as far as packets can get there.
fn gid_index(context: &Context, backend: &'static Backend) -> TestResult {
    let with = |index| {
        of_queue(IbConfig {
            gid_index: Some(index),
            ..IbConfig::default()
        })
    };
    let fixture = Fixture::with(context, backend, &with(77))?;
    let peer = 1 - context.rank();
    let refused = (fixture.communicator)
        .connect(fixture.endpoint, peer, 0)
        .err();
    match refused {
        Some(Error::HcaUnavailable { detail, .. })
            if detail.contains("GID index 77") && detail.contains("10.77.0.") => {}
        other => anyhow::bail!("GID index 77: {other:?}"),
    }
    fixture.meet()?;
    // The entry of the IPv4 address: what is chosen without an index.
    let fixture = Fixture::with(context, backend, &with(1))?;
    let buffer = fixture.buffer(4 * WORDS)?;
    let link = fixture.pair_in_place(0, &buffer)?;
    ping_pong(&fixture, &link, &buffer, 5)?;
    fixture.meet()
}
