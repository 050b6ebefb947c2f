// SPDX-License-Identifier: MIT
//! What firmware refuses, and that a refusal changes nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// An edit of a command, and how it is refused.
type Case<'a> = (&'static str, Edit<'a>, Status, Syndrome);

fn is_refused(case: &Case<'_>, result: Result<Object, (Refusal, Vec<u8>)>) {
    let (name, _, status, syndrome) = case;
    let (refusal, output) = result.expect_err(name);
    assert_eq!(
        (refusal.status, refusal.syndrome),
        (*status, *syndrome),
        "{name}: {refusal}"
    );
    // The answer says it too.
    assert_eq!(u32::from(output[0]), *status as u32);
    assert_eq!(get(&output, 4, 0, 32), *syndrome as u32);
}

#[test]
fn completion_queues_that_are_not_modelled_or_lie_nowhere() {
    use Status::{BadParameter, BadResource};
    let (_, devx, domain) = open(PORTS[0]);
    let queue = Queue::new(&devx, &domain);
    let cases: [Case<'_>; 12] = [
        (
            "128 bytes",
            &|i| set(i, 0x10, 21, 3, 1),
            BadParameter,
            Syndrome::Form,
        ),
        (
            "collapsed",
            &|i| set(i, 0x10, 20, 1, 1),
            BadParameter,
            Syndrome::Form,
        ),
        (
            "overrun",
            &|i| set(i, 0x10, 17, 1, 0),
            BadParameter,
            Syndrome::Form,
        ),
        (
            "events",
            &|i| set(i, 0x24, 0, 8, 99),
            BadResource,
            Syndrome::EventQueue,
        ),
        (
            "page",
            &|i| set(i, 0x1c, 0, 24, 0xfff0),
            BadResource,
            Syndrome::Page,
        ),
        (
            "no umem",
            &|i| set(i, 0x5c, 31, 1, 0),
            BadParameter,
            Syndrome::Umem,
        ),
        (
            "umem",
            &|i| set(i, 0x58, 0, 32, 99),
            BadResource,
            Syndrome::Umem,
        ),
        (
            "too long",
            &|i| set(i, 0x1c, 24, 5, 9),
            BadParameter,
            Syndrome::UmemBounds,
        ),
        (
            "far too long",
            &|i| set(i, 0x1c, 24, 5, 31),
            BadParameter,
            Syndrome::UmemBounds,
        ),
        (
            "offset",
            &|i| i[0x50..0x58].fill(0xff),
            BadParameter,
            Syndrome::UmemBounds,
        ),
        (
            "no record",
            &|i| set(i, 0x10, 25, 1, 0),
            BadParameter,
            Syndrome::Umem,
        ),
        (
            "record",
            &|i| i[0x4e] = 0xff,
            BadParameter,
            Syndrome::UmemBounds,
        ),
    ];
    for case in &cases {
        is_refused(case, queue.create_cq(case.1));
    }
    queue.destroy();
    nothing_is_left(&devx);
}

#[test]
fn queue_pairs_that_are_not_modelled_or_stand_on_nothing() {
    use Status::{BadParameter, BadResource};
    let (_, devx, domain) = open(PORTS[0]);
    let mut queue = Queue::new(&devx, &domain);
    queue.completions = Some(queue.create_cq(AS_IT_IS).unwrap());
    let cases: [Case<'_>; 14] = [
        (
            "service",
            &|i| set(&mut i[0x18..], 0, 16, 8, 3),
            BadParameter,
            Syndrome::Form,
        ),
        (
            "receive",
            &|i| set(&mut i[0x18..], 0xac, 24, 3, 0),
            BadParameter,
            Syndrome::Form,
        ),
        (
            "no send",
            &|i| set(&mut i[0x18..], 0x08, 15, 1, 1),
            BadParameter,
            Syndrome::Form,
        ),
        (
            "mode",
            &|i| set(&mut i[0x18..], 0x10, 30, 2, 1),
            BadParameter,
            Syndrome::RecordMode,
        ),
        (
            "domain",
            &|i| set(&mut i[0x18..], 4, 0, 24, 99),
            BadResource,
            Syndrome::Domain,
        ),
        (
            "cq",
            &|i| set(&mut i[0x18..], 0x7c, 0, 24, 99),
            BadResource,
            Syndrome::CompletionQueue,
        ),
        (
            "page",
            &|i| set(&mut i[0x18..], 0x0c, 0, 24, 999),
            BadResource,
            Syndrome::Page,
        ),
        (
            "no ring",
            &|i| set(i, 0x10c, 31, 1, 0),
            BadParameter,
            Syndrome::Umem,
        ),
        (
            "ring",
            &|i| set(i, 0x108, 0, 32, 0),
            BadResource,
            Syndrome::Umem,
        ),
        (
            "too long",
            &|i| set(&mut i[0x18..], 8, 11, 4, 7),
            BadParameter,
            Syndrome::UmemBounds,
        ),
        (
            "offset",
            &|i| i[0x106] = 1,
            BadParameter,
            Syndrome::UmemBounds,
        ),
        (
            "no record",
            &|i| set(&mut i[0x18..], 0xd0, 28, 1, 0),
            BadParameter,
            Syndrome::Umem,
        ),
        (
            "record",
            &|i| i[0x18 + 0xa5] = 1,
            BadParameter,
            Syndrome::UmemBounds,
        ),
        (
            "odd record",
            &|i| i[0x18 + 0xa7] = 4,
            BadParameter,
            Syndrome::Device,
        ),
    ];
    for case in &cases {
        is_refused(case, queue.create_qp(&domain, case.1));
    }
    devx.forget_domain(&domain);
    let case: Case<'_> = ("forgotten", AS_IT_IS, BadResource, Syndrome::Domain);
    is_refused(&case, queue.create_qp(&domain, AS_IT_IS));
    queue.destroy();
    nothing_is_left(&devx);
}

#[test]
fn steps_that_are_none_from_there_or_ask_for_too_much() {
    use Status::{BadIndex, BadParameter, BadResourceState, ExceedsLimit};
    let (device, devx, domain) = open(Port::Ethernet);
    let queue = Queue::made(&devx, &domain);
    let address = device.address();
    let refused = |result: Result<(), Refusal>, status, syndrome| {
        let refusal = result.unwrap_err();
        assert_eq!(
            (refusal.status, refusal.syndrome),
            (status, syndrome),
            "{refusal}"
        );
    };
    let context = |at, shift, width, value| {
        move |input: &mut [u8]| set(&mut input[0x18..], at, shift, width, value)
    };
    // From RESET.
    refused(
        queue.rtr(address, 1, AS_IT_IS),
        BadResourceState,
        Syndrome::State,
    );
    refused(queue.rts(AS_IT_IS), BadResourceState, Syndrome::State);
    refused(
        queue.modify(0x505, AS_IT_IS),
        BadResourceState,
        Syndrome::State,
    );
    refused(
        queue.init(&context(0x3c, 16, 8, 2)),
        BadParameter,
        Syndrome::Port,
    );
    refused(
        queue.init(&context(0x00, 11, 2, 0)),
        BadParameter,
        Syndrome::Path,
    );
    refused(
        queue.init(&context(0x90, 16, 4, 0)),
        BadParameter,
        Syndrome::Rights,
    );
    let another: Edit<'_> = &|input| set(input, 0x08, 0, 24, 0x1234);
    refused(queue.init(another), BadParameter, Syndrome::QueueNumber);
    queue.init(AS_IT_IS).unwrap();
    refused(queue.init(AS_IT_IS), BadResourceState, Syndrome::State);
    // From INIT.
    for (edit, status, syndrome) in [
        (context(0x08, 29, 3, 0), BadParameter, Syndrome::Mtu),
        (context(0x08, 29, 3, 6), BadParameter, Syndrome::Mtu),
        (context(0x08, 24, 5, 31), BadParameter, Syndrome::Size),
        (context(0x90, 21, 3, 5), ExceedsLimit, Syndrome::Reads),
        (
            context(0x38, 0, 16, 4791),
            BadParameter,
            Syndrome::SourcePort,
        ),
        (context(0x20, 16, 8, 1), BadIndex, Syndrome::GidIndex),
    ] {
        refused(queue.rtr(address, 1, &edit), status, syndrome);
    }
    assert_eq!(queue.state(), (1, 5));
    queue.rtr(address, 1, AS_IT_IS).unwrap();
    refused(
        queue.rts(&context(0x70, 21, 3, 5)),
        ExceedsLimit,
        Syndrome::Reads,
    );
    // Writes no more.
    let fewer: Edit<'_> = &|input| set(input, 0x10, 3, 1, 1);
    refused(queue.rts(fewer), BadParameter, Syndrome::Rights);
    queue.rts(AS_IT_IS).unwrap();
    assert_eq!(queue.state(), (3, 3));

    // An InfiniBand port needs somewhere to go.
    let (_, devx, domain) = open(PORTS[0]);
    let queue = Queue::made(&devx, &domain);
    queue.init(AS_IT_IS).unwrap();
    refused(
        queue.rtr(address, 1, &context(0x1c, 23, 1, 0)),
        BadParameter,
        Syndrome::Path,
    );
}

#[test]
fn a_device_without_atomics_grants_none() {
    let capabilities = Capabilities {
        atomics: false,
        ..Default::default()
    };
    let config = DeviceConfig {
        capabilities,
        ..Default::default()
    };
    let device = Device::open("soft0", config).unwrap();
    let devx = Devx::new(device.clone(), PORTS[0]);
    let domain = device.allocate_domain().unwrap();
    let queue = Queue::made(&devx, &domain);
    assert_eq!(queue.init(AS_IT_IS).unwrap_err().syndrome, Syndrome::Rights);
    queue
        .init(&|input| set(&mut input[0x18..], 0x90, 13, 1, 0))
        .unwrap();
}

#[test]
fn what_something_stands_on_stays() {
    let (_, devx, domain) = open(PORTS[0]);
    let mut queue = Queue::made(&devx, &domain);
    for _ in 0..2 {
        let (object, refusal) = devx.destroy(queue.completions.take().unwrap()).unwrap_err();
        assert_eq!(refusal.status, Status::ResourceBusy);
        queue.completions = Some(object);
        let (page, refusal) = devx.free_page(queue.page.take().unwrap()).unwrap_err();
        assert_eq!(refusal.status, Status::ResourceBusy);
        queue.page = Some(page);
        let umems: Vec<_> = queue.umems.drain(..).collect();
        for umem in umems {
            let (umem, refusal) = devx.deregister(umem).unwrap_err();
            assert_eq!(refusal.status, Status::ResourceBusy);
            queue.umems.push(umem);
        }
        assert_eq!(devx.live_umems(), 3);
    }
    queue.destroy();
    nothing_is_left(&devx);
}

#[test]
fn pages_for_one_owner_alone_are_refused_as_older_kernels_do() {
    let (_, devx, _) = open(PORTS[0]);
    assert!(matches!(
        devx.allocate_page(UarKind::Dedicated),
        Err(Error::Unsupported { .. })
    ));
    let (first, second) = (UarKind::NonCached, UarKind::BlueFlame);
    let pages = [first, second].map(|kind| devx.allocate_page(kind).unwrap());
    assert_ne!(pages[0].number(), pages[1].number());
    assert_eq!(pages[0].page().register().address() % 4096, 0x800);
}

#[test]
fn the_devices_faults_reach_commands_and_leave_nothing() {
    let operations = [
        ControlOperation::Register,
        ControlOperation::AllocateDoorbellPage,
        ControlOperation::CreateCompletionQueue,
        ControlOperation::CreateQueuePair,
    ];
    for operation in operations {
        let (device, devx, domain) = open(PORTS[0]);
        device.set_faults(FaultPlan::refuse(operation));
        let made = catch_unwind(AssertUnwindSafe(|| Queue::made(&devx, &domain)));
        assert!(made.is_err(), "{operation}");
        nothing_is_left(&devx);
        // The next one works.
        Queue::made(&devx, &domain).destroy();
    }
    let (device, devx, domain) = open(PORTS[0]);
    let queue = Queue::made(&devx, &domain);
    let step = ControlOperation::Transition(State::Init);
    device.set_faults(FaultPlan::refuse(step));
    assert_eq!(
        queue.init(AS_IT_IS).unwrap_err().status,
        Status::NoResources
    );
    assert_eq!(queue.state().0, 0);
    queue.init(AS_IT_IS).unwrap();
}

#[test]
fn commands_at_the_wrong_place_and_of_wrong_lengths() {
    let (_, devx, domain) = open(PORTS[0]);
    let queue = Queue::made(&devx, &domain);
    let mut output = [0; 0x1010];
    let status = |result: Result<(), Refusal>| result.unwrap_err().status;
    assert_eq!(
        status(devx.general(&command(0x777, 0x10), &mut output)),
        Status::BadOpcode
    );
    assert_eq!(
        status(devx.general(&command(0x400, 0x110), &mut output)),
        Status::BadOpcode
    );
    assert_eq!(status(devx.general(&[], &mut output)), Status::BadOpcode);
    assert_eq!(
        status(devx.general(&command(0x100, 0xc), &mut output)),
        Status::BadInputLength
    );
    let short = &mut output[..0x1000];
    assert_eq!(
        status(devx.general(&command(0x100, 0x10), short)),
        Status::BadOutputLength
    );
    let pair = queue.pair.as_ref().unwrap();
    let completions = queue.completions.as_ref().unwrap();
    let made = devx.create(&command(0x502, 0x110), &mut output).map(drop);
    assert_eq!(status(made), Status::BadOpcode);
    let changed = devx.modify(completions, &command(0x502, 0x110), &mut output);
    assert_eq!(status(changed), Status::BadOpcode);
    let changed = devx.modify(pair, &command(0x502, 0x10c), &mut output);
    assert_eq!(status(changed), Status::BadInputLength);
    let changed = devx.modify(pair, &command(0x50b, 0x110), &mut output);
    assert_eq!(status(changed), Status::BadOpcode);
    let asked = devx.query(completions, &command(0x50b, 0x10), &mut output);
    assert_eq!(status(asked), Status::BadOpcode);
    let asked = devx.query(pair, &command(0x50b, 0x10), &mut output[..0x100]);
    assert_eq!(status(asked), Status::BadOutputLength);
}

/// Whatever is asked for, the answer is one, and what was refused has changed nothing.
#[test]
fn any_bytes_get_an_answer() {
    let mut random = fastrand::Rng::with_seed(7);
    let (_, devx, domain) = open(Port::Ethernet);
    let queue = Queue::made(&devx, &domain);
    let opcodes = [
        0x100, 0x400, 0x500, 0x502, 0x503, 0x504, 0x505, 0x507, 0x50a, 0x50b, 0x50e,
    ];
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut input = vec![0; random.usize(..0x120)];
        random.fill(&mut input);
        if input.len() >= 12 && random.u8(..) < 250 {
            set(
                &mut input,
                0,
                16,
                16,
                opcodes[random.usize(..opcodes.len())],
            );
            set(&mut input, 8, 0, 24, queue.number());
        }
        let mut output = vec![0xff; random.usize(..0x130)];
        let pair = queue.pair.as_ref().unwrap();
        let before = queue.state();
        let result = match random.u8(..4) {
            0 => devx.general(&input, &mut output),
            1 => devx.create(&input, &mut output).map(drop),
            2 => devx.modify(pair, &input, &mut output),
            _ => devx.query(pair, &input, &mut output),
        };
        if result.is_err() {
            refused += 1;
            assert_eq!(queue.state(), before);
            assert!(output.len() < 4 || output[0] != 0);
        }
    }
    assert!((1000..20_000).contains(&refused), "{refused}");
    queue.destroy();
    nothing_is_left(&devx);
}
