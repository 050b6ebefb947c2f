// SPDX-License-Identifier: MIT
//! Each call fails in turn: the error says what, and nothing is left.

use std::sync::{Arc, Mutex};

use super::*;
use crate::error::Error;
use crate::transport::TransportKind;

/// Uses everything once.
fn tour(fake: &Fake) -> Result<(), VerbsError> {
    let Parts {
        device,
        domain,
        queues,
        region,
        queue,
    } = parts(fake)?;
    device.port(1)?;
    assert_eq!(device.gids(1)?.len(), 2);
    device.take_event()?;
    queue.query_state()?;
    let request = SendRequest {
        id: 1,
        signaled: true,
        fence: false,
        operation: Operation::Send {
            source: Source::Nothing,
            immediate: None,
        },
    };
    queue.post(&[request]).map_err(|error| error.source)?;
    let receive = ReceiveRequest { id: 2, local: None };
    queue
        .post_receive(&[receive])
        .map_err(|error| error.source)?;
    queues[0].poll(&mut [WorkCompletion::default()])?;
    queues[1].request_event()?;
    queue.fail()?;
    // In an order in which each would go before what stands on it.
    drop((device, domain, queues, region, queue));
    Ok(())
}

const GIVING_BACK: [&str; 6] = [
    "ibv_close_device",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_comp_channel",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
];

#[test]
fn whatever_call_fails_the_error_says_so_and_nothing_is_left() {
    let mut failed = Vec::new();
    loop {
        let fake = Fake::new();
        fake.fail_call(failed.len(), libc::EIO);
        let result = tour(fake);
        let calls = fake.state().calls.clone();
        let Some(&call) = calls.get(failed.len()) else {
            result.unwrap();
            assert_eq!(fake.left(), [""; 0]);
            break;
        };
        failed.push(call);
        if GIVING_BACK.contains(&call) {
            // It is warned of, and what cannot be given back stays, with what it stands on.
            result.unwrap();
            assert!(fake.left().contains(&"device"), "{call}: {:?}", fake.left());
            continue;
        }
        let error = result.expect_err(call);
        assert_eq!(fake.left(), [""; 0], "{call}: {error}");
        let text = error.to_string();
        assert!(text.contains(fake.name()), "{call}: {text}");
        assert!(text.contains("Input/output error"), "{call}: {text}");
        assert!(matches!(
            error,
            VerbsError::Call { .. } | VerbsError::Transition { .. }
        ));
    }
    for call in [
        "ibv_open_device",
        "ibv_query_device",
        "ibv_query_port",
        "_ibv_query_gid_table",
        "ibv_alloc_pd",
        "ibv_create_comp_channel",
        "ibv_create_cq",
        "ibv_reg_mr",
        "ibv_create_qp",
        "ibv_modify_qp",
        "ibv_query_qp",
        "ibv_get_async_event",
        "ibv_post_send",
        "ibv_post_recv",
        "ibv_poll_cq",
        "ibv_req_notify_cq",
    ]
    .into_iter()
    .chain(GIVING_BACK)
    {
        assert!(failed.contains(&call), "{call} is not in {failed:?}");
    }
    let transitions = failed.iter().filter(|call| **call == "ibv_modify_qp");
    assert_eq!(transitions.count(), 4);
}

#[test]
fn a_failed_transition_is_told_with_states_mask_and_path() {
    let fake = Fake::new();
    let device = open(fake).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    let queues = CompletionQueue::new(&device, 4).unwrap();
    let queue = QueuePair::new(&domain, &queues, &queues, SIZE).unwrap();
    let number = queue.number();
    let queue = queue.initialize(1, AccessFlags::REMOTE_WRITE).unwrap();
    fake.fail("ibv_modify_qp", libc::ENODEV);
    let error = queue.ready_to_receive(&path()).unwrap_err();
    let text = error.to_string();
    for part in [
        fake.name(),
        &format!("queue pair {number:#x} does not go from INIT to RTR"),
        "(STATE|AV|PATH_MTU|RQ_PSN|MIN_RNR_TIMER|MAX_DEST_RD_ATOMIC|DEST_QPN)",
        "to 0x99 from port 1, MTU 256, 4 reads, from GID index 2 to GID 707:707:",
        "No such device",
        "no way leads from this GID to the peer's",
    ] {
        assert!(text.contains(part), "{text}\nlacks {part}");
    }
    // The queue pair went with the error; what it shared is still there.
    assert_eq!(fake.left().len(), 3, "{:?}", fake.left());
}

#[test]
fn memory_that_the_device_may_still_write_is_not_given_back() {
    static KEPT: Mutex<Vec<Arc<Vec<u64>>>> = Mutex::new(Vec::new());
    let fake = Fake::new();
    let domain = ProtectionDomain::new(&open(fake).unwrap()).unwrap();
    let owner = Arc::new(vec![0u64; 8]);
    // So that what leaks on purpose can be reached.
    KEPT.lock().unwrap().push(Arc::clone(&owner));
    let register = || region(&domain, AccessFlags::LOCAL_WRITE, owner.clone()).unwrap();

    let held = register();
    assert_eq!(Arc::strong_count(&owner), 3);
    drop(held);
    assert_eq!(Arc::strong_count(&owner), 2);

    let held = register();
    fake.fail("ibv_dereg_mr", libc::EBUSY);
    drop(held);
    assert_eq!(Arc::strong_count(&owner), 3);
}

#[test]
fn each_owner_holds_what_it_stands_on() {
    // Five owners, dropped in every order: the fake takes nothing back that is in use.
    let mut orders = vec![Vec::new()];
    for _ in 0..5 {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                (0..5)
                    .filter(|next| !order.contains(next))
                    .map(|next| [order.clone(), vec![next]].concat())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    assert_eq!(orders.len(), 120);
    for order in orders {
        let fake = Fake::new();
        let parts = parts(fake).unwrap();
        let mut owners: [Option<Box<dyn Any>>; 5] = [
            Some(Box::new(parts.device)),
            Some(Box::new(parts.domain)),
            Some(Box::new(parts.queues)),
            Some(Box::new(parts.region)),
            Some(Box::new(parts.queue)),
        ];
        for index in &order {
            drop(owners[*index].take());
        }
        assert_eq!(fake.left(), [""; 0], "{order:?}");
    }
}

#[test]
fn what_is_not_there_is_told_apart() {
    // A library without any device says something else.
    let fake = Fake::new();
    let error = Device::open_in(Fake::verbs(), "mlx5_0").unwrap_err();
    let VerbsError::UnknownDevice { name, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(name, "mlx5_0");
    assert!(
        Device::list_in(Fake::verbs())
            .unwrap()
            .contains(&fake.name().into())
    );
    fake.fail("ibv_open_device", libc::EACCES);
    let text = open(fake).unwrap_err().to_string();
    assert!(text.contains("/dev/infiniband"), "{text}");
}

#[test]
fn no_device_is_one_sentence_and_an_empty_list() {
    for (errno, reason, listed) in [
        (Some(libc::ENOSYS), "this kernel has no InfiniBand", true),
        (None, "libibverbs lists none", true),
        (Some(libc::EPERM), "Operation not permitted", false),
    ] {
        let verbs = Fake::verbs_without_devices(errno);
        match Device::list_in(verbs) {
            Ok(names) => assert!(listed && names.is_empty()),
            Err(error) => assert!(!listed, "{error}"),
        }
        let error = Device::open_in(verbs, "mlx5_0").unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("no RDMA device: "), "{text}");
        assert!(text.contains(reason), "{text}");
        assert!(!text.contains('\n'), "{text}");
        let error = error.into_error(TransportKind::IB0);
        let Error::HcaUnavailable { detail, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*detail, text);
    }
}
