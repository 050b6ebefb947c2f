// SPDX-License-Identifier: MIT
//! What the library answers, in the layer's words.

use std::collections::BTreeSet;

use mscclpp_ib_sys as sys;

use super::*;

#[test]
fn transitions_carry_what_their_step_needs() {
    let fake = Fake::new();
    let parts = parts(fake).unwrap();
    parts.queue.fail().unwrap();
    let modified = fake.state().modified.clone();
    let [
        (init_mask, init),
        (rtr_mask, rtr),
        (rts_mask, rts),
        (error_mask, error),
    ] = modified[..]
    else {
        panic!("{} transitions", modified.len());
    };
    // The masks that InfiniBand asks for in these steps of reliable connections.
    assert_eq!(init_mask, 0b0011_1001);
    assert_eq!((init.qp_state, init.port_num), (sys::IBV_QPS_INIT, 1));
    assert_eq!(init.qp_access_flags, sys::IBV_ACCESS_REMOTE_WRITE);
    let wanted = [0, 7, 8, 12, 15, 17, 20].map(|bit| 1 << bit);
    assert_eq!(rtr_mask, wanted.iter().sum::<i32>());
    assert_eq!((rtr.qp_state, rtr.path_mtu), (sys::IBV_QPS_RTR, 1));
    assert_eq!((rtr.dest_qp_num, rtr.rq_psn), (0x99, 0x555));
    assert_eq!((rtr.max_dest_rd_atomic, rtr.min_rnr_timer), (4, 12));
    let address = rtr.ah_attr;
    assert_eq!((address.dlid, address.sl, address.port_num), (5, 3, 1));
    assert_eq!((address.is_global, address.grh.dgid.bytes()), (1, [7; 16]));
    assert_eq!((address.grh.sgid_index, address.grh.hop_limit), (2, 64));
    assert_eq!(address.grh.traffic_class, 104);
    let wanted = [0, 9, 10, 11, 13, 16].map(|bit| 1 << bit);
    assert_eq!(rts_mask, wanted.iter().sum::<i32>());
    assert_eq!((rts.qp_state, rts.timeout), (sys::IBV_QPS_RTS, 14));
    assert_eq!((rts.retry_cnt, rts.rnr_retry), (7, 6));
    assert_eq!((rts.sq_psn, rts.max_rd_atomic), (0x777, 3));
    assert_eq!((error_mask, error.qp_state), (1, sys::IBV_QPS_ERR));
    assert_eq!(parts.queue.query_state().unwrap(), QueueState::Error);
    assert_eq!(parts.queue.size().send_requests, SIZE.send_requests + 1);
    assert_eq!(parts.queues[1].entries(), 9);
}

#[test]
fn without_a_route_the_lid_leads() {
    let fake = Fake::new();
    let device = open(fake).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    let queues = CompletionQueue::new(&device, 4).unwrap();
    let queue = QueuePair::new(&domain, &queues, &queues, SIZE).unwrap();
    let queue = queue.initialize(1, AccessFlags::NONE).unwrap();
    let mut path = path();
    path.destination.route = None;
    queue.ready_to_receive(&path).unwrap();
    let (_, rtr) = fake.state().modified[1];
    assert_eq!((rtr.ah_attr.is_global, rtr.ah_attr.dlid), (0, 5));
    assert!(path.to_string().ends_with(", to LID 5"), "{path}");
}

#[test]
fn a_channel_tells_of_a_queue_once_it_is_asked() {
    let fake = Fake::new();
    let device = open(fake).unwrap();
    let channel = CompletionChannel::new(&device).unwrap();
    let queue = CompletionQueue::with_channel(&device, 4, &channel).unwrap();
    queue.request_event().unwrap();
    assert!(fake.state().asked.is_some());
    channel.clear();
    assert!(fake.state().asked.is_none());
    // Each event is acknowledged: giving the queue back would wait for it.
    // SAFETY: live.
    assert_eq!(unsafe { queue.raw.as_ref() }.comp_events_completed, 1);
    // The queue holds the channel.
    drop(channel);
    assert!(fake.left().contains(&"completion channel"));
    drop((queue, device));
    assert_eq!(fake.left(), [""; 0]);
    let device = open(fake).unwrap();
    let without = CompletionQueue::new(&device, 4).unwrap();
    without.request_event().unwrap_err();
}

#[test]
fn completions_are_taken_in_batches_and_in_order() {
    let fake = Fake::new();
    let parts = parts(fake).unwrap();
    for id in 0..41 {
        let mut completion = sys::ibv_wc::zeroed();
        completion.wr_id = id;
        fake.state().completions.push_back(completion);
    }
    let mut taken = [WorkCompletion::default(); 33];
    let mut ids = Vec::new();
    for expected in [33, 8, 0] {
        let count = parts.queues[0].poll(&mut taken).unwrap();
        assert_eq!(count, expected);
        ids.extend(taken[..count].iter().map(|completion| completion.id));
    }
    assert_eq!(ids, (0..41).collect::<Vec<_>>());
    assert_eq!(parts.queues[0].poll(&mut []).unwrap(), 0);
}

#[test]
fn a_failed_completion_has_a_status_and_nothing_that_is_not_valid() {
    let fake = Fake::new();
    let parts = parts(fake).unwrap();
    let mut failed = sys::ibv_wc::zeroed();
    failed.wr_id = 3;
    failed.status = sys::IBV_WC_RETRY_EXC_ERR;
    failed.vendor_err = 129;
    failed.qp_num = 5;
    // Left over from something else.
    failed.opcode = sys::IBV_WC_RECV_RDMA_WITH_IMM;
    failed.byte_len = 77;
    failed.wc_flags = sys::IBV_WC_WITH_IMM;
    let mut signal = failed;
    signal.status = sys::IBV_WC_SUCCESS;
    signal.imm_data = u32::from_ne_bytes([1, 2, 3, 4]);
    fake.state().completions.extend([failed, signal]);
    let mut taken = [WorkCompletion::default(); 2];
    assert_eq!(parts.queues[1].poll(&mut taken).unwrap(), 2);
    let expected = WorkCompletion {
        id: 3,
        status: CompletionStatus::RetryExceeded,
        opcode: None,
        bytes: 0,
        immediate: None,
        queue_number: 5,
        vendor_error: 129,
    };
    assert_eq!(taken[0], expected);
    assert_eq!(taken[1].immediate, Some(0x0102_0304));
    assert_eq!(taken[1].opcode, Some(CompletionOpcode::ReceiveImmediate));
    assert_eq!(taken[1].bytes, 77);
}

#[test]
fn statuses_have_names_and_are_never_words_of_an_errno() {
    let mut names = BTreeSet::new();
    for number in 0..24 {
        let status = CompletionStatus::from_number(number);
        assert_eq!(status.number(), number);
        assert!(!matches!(status, CompletionStatus::Unknown(_)), "{number}");
        assert!(names.insert(status.name()), "{status}");
        // Upstream once printed status 12 as the errno of the same number.
        let words = std::io::Error::from_raw_os_error(number as i32).to_string();
        let words = words.split(" (os").next().unwrap().to_owned();
        assert!(!status.to_string().contains(&words), "{status}");
    }
    let retry = CompletionStatus::RetryExceeded;
    assert_eq!(retry.number(), sys::IBV_WC_RETRY_EXC_ERR);
    assert!(
        retry.to_string().starts_with("RETRY_EXC_ERR (12): "),
        "{retry}"
    );
    let unknown = CompletionStatus::from_number(99);
    assert_eq!(unknown, CompletionStatus::Unknown(99));
    assert!(unknown.to_string().contains("99"), "{unknown}");
}

#[test]
fn a_port_and_its_gids_are_told() {
    let fake = Fake::new();
    let device = open(fake).unwrap();
    let port = device.port(1).unwrap();
    assert_eq!(
        (port.state, port.link_layer),
        (PortState::Active, LinkLayer::Ethernet)
    );
    assert_eq!(port.active_mtu.unwrap().bytes(), 1024);
    assert_eq!(port.max_mtu, Some(Mtu::LARGEST));
    assert!(port.needs_gid());
    let gids = device.gids(1).unwrap();
    assert_eq!(gids.iter().map(|gid| gid.index).collect::<Vec<_>>(), [0, 2]);
    assert!(gids[0].is_link_local());
    fake.state().attributes.phys_port_cnt = 2;
    let both = open(fake).unwrap();
    fake.state().gids.get_mut(&2).unwrap().port_num = 2;
    for (port, index) in [(1, 0), (2, 2)] {
        let gids = both.gids(port).unwrap();
        assert_eq!((gids.len(), gids[0].index), (1, index));
    }
    assert_eq!(gids[1].ipv4().unwrap().to_string(), "10.77.0.1");
    assert_eq!(gids[1].to_string(), "2: ::ffff:10.77.0.1 (RoCE v2)");
    assert!(matches!(
        device.port(0),
        Err(VerbsError::UnknownPort { ports: 1, .. })
    ));

    fake.state().port.link_layer = sys::IBV_LINK_LAYER_INFINIBAND;
    assert!(!device.port(1).unwrap().needs_gid());
    fake.state().port.flags = sys::IB_UVERBS_QPF_GRH_REQUIRED;
    assert!(device.port(1).unwrap().needs_gid());
    fake.state().port.active_mtu = 9;
    assert_eq!(device.port(1).unwrap().active_mtu, None);
}

#[test]
fn taking_events_never_blocks() {
    use rustix::fs::{OFlags, fcntl_getfl};
    let [fake, other] = [Fake::new(), Fake::new()];
    let device = open(fake).unwrap();
    let channel = {
        let device = open(other).unwrap();
        rustix::fs::fcntl_setfl(device.event_fd(), OFlags::empty()).unwrap();
        CompletionChannel::new(&device).unwrap()
    };
    for flags in [fcntl_getfl(device.event_fd()), fcntl_getfl(&channel)] {
        assert!(flags.unwrap().contains(OFlags::NONBLOCK));
    }
}

#[test]
fn capabilities_are_told() {
    let fake = Fake::new();
    {
        let mut state = fake.state();
        state.attributes.max_sge = -1;
        state.attributes.fw_ver[0] = b'7' as _;
    }
    let can = open(fake).unwrap().capabilities().clone();
    assert!(can.atomics);
    assert_eq!((can.max_outstanding_reads, can.max_answered_reads), (8, 16));
    assert_eq!((can.max_segments, can.firmware.as_str()), (0, "7"));
    for (cap, atomics) in [(sys::IBV_ATOMIC_NONE, false), (sys::IBV_ATOMIC_GLOB, true)] {
        fake.state().attributes.atomic_cap = cap;
        assert_eq!(open(fake).unwrap().capabilities().atomics, atomics);
    }
}

#[test]
fn a_library_of_long_ago_is_asked_in_its_way() {
    let fake = Fake::new();
    fake.state().extension = None;
    let device = Device::open_in(Fake::old_verbs(), fake.name()).unwrap();
    let port = device.port(1).unwrap();
    assert_eq!(port.state, PortState::Active);
    // Its structure ends before the link layer.
    assert_eq!(port.link_layer, LinkLayer::InfiniBand);
    let gids = device.gids(1).unwrap();
    assert_eq!(gids.iter().map(|gid| gid.index).collect::<Vec<_>>(), [0, 2]);
    // There is no such device in sysfs.
    assert_eq!(gids[1].kind, GidKind::Unknown(u32::MAX));

    let domain = ProtectionDomain::new(&device).unwrap();
    let relaxed = AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING;
    drop(region(&domain, relaxed, Arc::new(())).unwrap());
    assert!(fake.state().calls.contains(&"ibv_reg_mr"));

    let file = std::fs::File::open("/dev/null").unwrap();
    let buffer = DmaBuf {
        fd: std::os::fd::AsFd::as_fd(&file),
        offset: 0,
        len: 8,
        address: 64,
    };
    let (route, owner) = (DmaBufRoute::Device, Arc::new(()));
    // SAFETY: nothing gets registered.
    let error = unsafe { MemoryRegion::register_dmabuf(&domain, buffer, route, relaxed, owner) };
    let error = error.unwrap_err().to_string();
    assert!(error.contains("cannot register DMA buffers"), "{error}");
}

#[test]
fn a_function_that_a_context_is_too_short_for_is_not_called() {
    let fake = Fake::new();
    let device = open(fake).unwrap();
    assert_eq!(device.port(1).unwrap().link_layer, LinkLayer::Ethernet);
    // It lacks the first field, which is the one that was added last.
    fake.state().extension = Some(size_of::<sys::verbs_context>() - 8);
    let device = open(fake).unwrap();
    assert_eq!(device.port(1).unwrap().link_layer, LinkLayer::InfiniBand);
}

#[test]
fn relaxed_ordering_is_asked_for_where_it_is_known() {
    let fake = Fake::new();
    let domain = ProtectionDomain::new(&open(fake).unwrap()).unwrap();
    let strict = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
    let keys = [strict, strict | AccessFlags::RELAXED_ORDERING].map(|access| {
        let region = region(&domain, access, Arc::new(())).unwrap();
        (region.lkey(), region.rkey())
    });
    assert_ne!(keys[0], keys[1]);
    let calls = fake.state().calls.clone();
    let registered: Vec<_> = calls
        .iter()
        .filter(|call| call.starts_with("ibv_reg_mr"))
        .collect();
    assert_eq!(registered, [&"ibv_reg_mr", &"ibv_reg_mr_iova2"]);
}

#[test]
fn nothing_and_too_much_are_refused_and_never_shortened() {
    let fake = Fake::new();
    fake.state().attributes.max_mr_size = 63;
    let domain = ProtectionDomain::new(&open(fake).unwrap()).unwrap();
    let error = region(&domain, AccessFlags::NONE, Arc::new(())).unwrap_err();
    assert!(
        matches!(error, VerbsError::Region { len: 64, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("limit is 63 bytes"), "{error}");
    assert!(!fake.left().contains(&"memory region"));
}

#[test]
fn events_are_told_by_what_they_concern() {
    let fake = Fake::new();
    let parts = parts(fake).unwrap();
    let mut qp = sys::ibv_qp::zeroed();
    qp.qp_num = 0x42;
    let mut cq = sys::ibv_cq::zeroed();
    cq.cq_context = std::ptr::without_provenance_mut(parts.queues[1].id() as usize);
    let queue = |change| AsyncEvent::QueuePair {
        number: 0x42,
        change,
    };
    let port = |change| AsyncEvent::Port { number: 1, change };
    let id = parts.queues[1].id();
    for (number, expected) in [
        (sys::IBV_EVENT_QP_FATAL, queue(QueueChange::Fatal)),
        (sys::IBV_EVENT_QP_REQ_ERR, queue(QueueChange::RequestError)),
        (
            sys::IBV_EVENT_QP_ACCESS_ERR,
            queue(QueueChange::AccessError),
        ),
        (sys::IBV_EVENT_COMM_EST, queue(QueueChange::Established)),
        (sys::IBV_EVENT_CQ_ERR, AsyncEvent::CompletionQueue { id }),
        (sys::IBV_EVENT_PORT_ERR, port(PortChange::Down)),
        (sys::IBV_EVENT_PORT_ACTIVE, port(PortChange::Active)),
        (sys::IBV_EVENT_GID_CHANGE, port(PortChange::Gids)),
        (sys::IBV_EVENT_LID_CHANGE, port(PortChange::Lid)),
        (sys::IBV_EVENT_SM_CHANGE, port(PortChange::Subnet)),
        (sys::IBV_EVENT_DEVICE_FATAL, AsyncEvent::DeviceFatal),
        (sys::IBV_EVENT_SRQ_ERR, AsyncEvent::Other(14)),
    ] {
        let mut event = sys::ibv_async_event::zeroed();
        event.event_type = number;
        event.element = match expected {
            AsyncEvent::QueuePair { .. } => sys::ibv_async_event_element { qp: &mut qp },
            AsyncEvent::CompletionQueue { .. } => sys::ibv_async_event_element { cq: &mut cq },
            _ => sys::ibv_async_event_element { port_num: 1 },
        };
        fake.state().event(event);
        assert_eq!(parts.device.take_event().unwrap(), Some(expected));
        assert_eq!(Fake::unacknowledged(), 0);
    }
    assert_eq!(parts.device.take_event().unwrap(), None);
}
