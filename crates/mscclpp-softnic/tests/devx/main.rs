// SPDX-License-Identifier: MIT
//! Queues that are made, connected, used and destroyed by mlx5 commands alone.

mod commands;
mod refusals;

use std::time::Duration;

use commands::*;
use mlx5_queue::{
    DataSegment, DataSegments, Operation, Payload, RemoteAddress, Syndrome as RequestSyndrome,
};
use mscclpp_softnic::devx::*;
use mscclpp_softnic::*;

const PORTS: [Port; 2] = [Port::InfiniBand { lid: 7 }, Port::Ethernet];

fn open(port: Port) -> (Device, Devx, ProtectionDomain) {
    let device = Device::open("soft0", DeviceConfig::default()).unwrap();
    let devx = Devx::new(device.clone(), port);
    let domain = device.allocate_domain().unwrap();
    (device, devx, domain)
}

/// Two queue pairs, each connected to the other.
fn connected(devx: &Devx, domain: &ProtectionDomain) -> [Queue; 2] {
    let queues = [Queue::made(devx, domain), Queue::made(devx, domain)];
    let address = devx.device().address();
    for (queue, peer) in [(&queues[0], &queues[1]), (&queues[1], &queues[0])] {
        queue.init(AS_IT_IS).unwrap();
        queue.rtr(address, peer.number(), AS_IT_IS).unwrap();
        queue.rts(AS_IT_IS).unwrap();
    }
    queues
}

/// Puts 8 bytes and adds 3 to a word behind them; what the completions say.
fn put_and_add(queue: &mut Queue, domain: &ProtectionDomain) -> Vec<Option<RequestSyndrome>> {
    let (source, target) = (HostBuffer::new(16), HostBuffer::new(16));
    let all = AccessFlags::ALL;
    let from = domain
        .register(source.range(), all, WriteOrdering::Relaxed)
        .unwrap();
    let to = domain
        .register(target.range(), all, WriteOrdering::Relaxed)
        .unwrap();
    source.write_u64(0, 42);
    target.write_u64(8, 100);
    let list = [DataSegment::new(source.address(), from.key(), 8)
        .unwrap()
        .encode()];
    queue.post(Operation::Write {
        remote: RemoteAddress {
            address: target.address(),
            key: to.key(),
        },
        payload: Payload::Gather(DataSegments::new(&list)),
        immediate: None,
    });
    queue.post(Operation::FetchAdd {
        remote: RemoteAddress {
            address: target.address() + 8,
            key: to.key(),
        },
        add: 3,
        result: DataSegment::new(source.address() + 8, from.key(), 8).unwrap(),
    });
    let results = vec![queue.poll(), queue.poll()];
    if results == [None, None] {
        assert_eq!((target.read_u64(0), target.read_u64(8)), (42, 103));
        assert_eq!(source.read_u64(8), 100);
    }
    results
}

/// All that commands and the device count is gone, but for the domain.
fn nothing_is_left(devx: &Devx) {
    let live = devx.device().counters().live;
    assert_eq!((live.total(), live.protection_domains), (1, 1), "{live:?}");
    assert_eq!(devx.live_umems(), 0);
}

#[test]
fn queues_made_by_commands_work_on_both_kinds_of_port() {
    for port in PORTS {
        let (device, devx, domain) = open(port);
        let mut queues = connected(&devx, &domain);
        for queue in &mut queues {
            // More than a lap.
            for _ in 0..40 {
                assert_eq!(put_and_add(queue, &domain), [None, None]);
            }
        }
        assert_eq!(device.take_violations(), []);
        queues.into_iter().for_each(Queue::destroy);
        nothing_is_left(&devx);
    }
}

#[test]
fn what_is_dropped_instead_of_destroyed_is_gone_too() {
    let (_, devx, domain) = open(PORTS[0]);
    drop(connected(&devx, &domain));
    nothing_is_left(&devx);
}

#[test]
fn a_wrong_way_reaches_nobody() {
    let unreachable = |port, edit: Edit<'_>| {
        let (device, devx, domain) = open(port);
        let mut queue = Queue::made(&devx, &domain);
        let peer = Queue::made(&devx, &domain);
        peer.init(AS_IT_IS).unwrap();
        peer.rtr(device.address(), queue.number(), AS_IT_IS)
            .unwrap();
        queue.init(AS_IT_IS).unwrap();
        queue.rtr(device.address(), peer.number(), edit).unwrap();
        queue.rts(AS_IT_IS).unwrap();
        let results = put_and_add(&mut queue, &domain);
        assert_eq!(queue.state().0, 6);
        results
    };
    let nobody = [
        Some(RequestSyndrome::TRANSPORT_RETRY_EXCEEDED),
        Some(RequestSyndrome::FLUSHED),
    ];
    // The MAC of another port, a GID that no device has, a LID that the subnet does not know.
    assert_eq!(
        unreachable(Port::Ethernet, &|input| input[0x18 + 0x43] ^= 1),
        nobody
    );
    assert_eq!(
        unreachable(PORTS[0], &|input| input[0x18 + 0x28] ^= 1),
        nobody
    );
    let by_lid: Edit<'_> = &|input| {
        set(&mut input[0x18..], 0x1c, 23, 1, 0);
        set(&mut input[0x18..], 0x1c, 0, 16, 9);
    };
    assert_eq!(unreachable(PORTS[0], by_lid), nobody);
}

#[test]
fn a_lid_that_the_subnet_knows_leads_to_its_device() {
    let (device, devx, domain) = open(PORTS[0]);
    devx.learn(9, device.address());
    let mut queues = [Queue::made(&devx, &domain), Queue::made(&devx, &domain)];
    for (queue, peer) in [(&queues[0], &queues[1]), (&queues[1], &queues[0])] {
        queue.init(AS_IT_IS).unwrap();
        let by_lid: Edit<'_> = &|input| {
            set(&mut input[0x18..], 0x1c, 23, 1, 0);
            set(&mut input[0x18..], 0x1c, 0, 16, 9);
            input[0x18 + 0x28..0x18 + 0x38].fill(0);
        };
        queue.rtr(device.address(), peer.number(), by_lid).unwrap();
        queue.rts(AS_IT_IS).unwrap();
    }
    assert_eq!(put_and_add(&mut queues[0], &domain), [None, None]);
}

#[test]
fn rights_are_those_of_init_and_what_later_steps_say_they_change() {
    let writes_alone: Edit<'_> = &|input| set(&mut input[0x18..], 0x90, 13, 3, 0b010);
    let cases: [(Edit<'_>, Option<RequestSyndrome>); 2] = [
        (AS_IT_IS, Some(RequestSyndrome::REMOTE_INVALID_REQUEST)),
        // The bit for atomics, and that it counts.
        (
            &|input| {
                set(input, 0x10, 2, 1, 1);
                set(&mut input[0x18..], 0x90, 13, 1, 1);
                set(&mut input[0x18..], 0x90, 16, 4, 1);
            },
            None,
        ),
    ];
    for (edit, of_the_atomic) in cases {
        let (device, devx, domain) = open(PORTS[0]);
        let mut queue = Queue::made(&devx, &domain);
        let peer = Queue::made(&devx, &domain);
        peer.init(writes_alone).unwrap();
        peer.rtr(device.address(), queue.number(), edit).unwrap();
        queue.init(AS_IT_IS).unwrap();
        queue
            .rtr(device.address(), peer.number(), AS_IT_IS)
            .unwrap();
        queue.rts(AS_IT_IS).unwrap();
        assert_eq!(put_and_add(&mut queue, &domain), [None, of_the_atomic]);
    }
}

#[test]
fn queries_say_what_was_set() {
    let (device, devx, domain) = open(PORTS[0]);
    let queue = Queue::made(&devx, &domain);
    // The port's MTU before there is a path: drivers refuse 0.
    assert_eq!(queue.state(), (0, 5));
    queue.init(AS_IT_IS).unwrap();
    assert_eq!(queue.state(), (1, 5));
    queue
        .rtr(device.address(), queue.number(), AS_IT_IS)
        .unwrap();
    assert_eq!(queue.state(), (2, 3));
    queue.rts(AS_IT_IS).unwrap();
    assert_eq!(queue.state(), (3, 3));
    queue.modify(0x507, AS_IT_IS).unwrap();
    assert_eq!(queue.state(), (6, 3));
    queue.modify(0x50a, AS_IT_IS).unwrap();
    assert_eq!(queue.state(), (0, 5));
    // And again, as new.
    queue.init(AS_IT_IS).unwrap();
    queue
        .rtr(device.address(), queue.number(), AS_IT_IS)
        .unwrap();
    queue.rts(AS_IT_IS).unwrap();
    queue.modify(0x505, AS_IT_IS).unwrap();
}

#[test]
fn capabilities_are_those_of_the_device() {
    let query = |devx: &Devx, kind: u32| {
        let mut input = command(0x100, 0x10);
        set(&mut input, 0x04, 0, 16, kind << 1 | 1);
        let mut output = vec![0xff; 0x1010];
        devx.general(&input, &mut output)
            .map(|()| output[0x10..].to_vec())
    };
    for port in PORTS {
        let (_, devx, _) = open(port);
        let general = query(&devx, 0).unwrap();
        assert_eq!(get(&general, 0x34, 8, 2), u32::from(port == Port::Ethernet));
        assert_eq!(get(&general, 0x44, 0, 1), 1);
        assert_eq!(
            1 << get(&general, 0x10, 16, 8),
            devx.device().capabilities().max_send_blocks
        );
        assert!(get(&general, 0x50, 0, 16) >= 1024);
        let roce = query(&devx, 4).unwrap();
        assert!(get(&roce, 0x18, 0, 16) <= 0xc123 && get(&roce, 0x18, 16, 16) >= 0xc123);
        let second = query(&devx, 0x20).unwrap();
        assert_eq!(get(&second, 0x5c, 30, 1), 0);
        assert_eq!(
            query(&devx, 0x11).unwrap_err().syndrome,
            Syndrome::CapabilityType
        );
    }
}

#[test]
fn an_ethernet_port_tells_its_address() {
    let query = |devx: &Devx, index: u32| {
        let mut input = command(0x760, 0x10);
        set(&mut input, 0x08, 16, 16, index);
        let mut output = vec![0xff; 0x110];
        devx.general(&input, &mut output).map(|()| output)
    };
    let (device, devx, _) = open(Port::Ethernet);
    let output = query(&devx, 0).unwrap();
    assert_eq!(output[0x10..0x20], device.address().0);
    assert_eq!(get(&output, 0x28, 0, 8), 2);
    assert_eq!(query(&devx, 1).unwrap()[0x10..0x20], [0; 16]);
    assert_eq!(query(&devx, 8).unwrap_err().status, Status::BadIndex);
    let (_, devx, _) = open(PORTS[0]);
    assert_eq!(query(&devx, 0).unwrap_err().syndrome, Syndrome::Port);
}

#[test]
fn a_timeout_of_nothing_is_for_ever() {
    let (device, devx, domain) = open(PORTS[0]);
    let queue = Queue::made(&devx, &domain);
    queue.init(AS_IT_IS).unwrap();
    queue.rtr(device.address(), 0x00ff_fff0, AS_IT_IS).unwrap();
    queue
        .rts(&|input| set(&mut input[0x18..], 0x20, 27, 5, 0))
        .unwrap();
    let mut queue = queue;
    let target = HostBuffer::new(8);
    let range = target.range();
    let key = domain
        .register(range, AccessFlags::ALL, WriteOrdering::Relaxed)
        .unwrap();
    let list = [DataSegment::new(target.address(), key.key(), 8)
        .unwrap()
        .encode()];
    queue.post(Operation::Write {
        remote: RemoteAddress {
            address: target.address(),
            key: key.key(),
        },
        payload: Payload::Gather(DataSegments::new(&list)),
        immediate: None,
    });
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(queue.state().0, 3);
}
