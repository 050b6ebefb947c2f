// SPDX-License-Identifier: MIT
//! Endpoints and connections over a libibverbs that does as it is told. What only real queues do is
//! tested on Soft-RoCE.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::Deadline;
use mscclpp_ib_sys as sys;

use super::hca::IbHca;
use super::posts::TOLD_WITHIN;
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::context::{Context, ContextConfig};
use crate::device::Device;
use crate::endpoint::{Endpoint, EndpointConfig};
use crate::error::{Error, Result};
use crate::gpu_queue::{GpuQueueProvider, Hca, IbConfig, IbMode};
use crate::memory::{MemoryOptions, RegisteredMemory, SignalMemory};
use crate::testing::{PATIENCE, eventually};
use crate::transport::TransportKind;
use crate::verbs::fake::Fake;
use crate::verbs::{self, CompletionStatus};

mod dropping;

const IB: TransportKind = TransportKind::IB0;
const GIB: u64 = 1 << 30;
/// A code that the fake's HCA says beside a failure.
const VENDOR: u32 = 0x81;

fn deadline() -> Deadline {
    Deadline::after(PATIENCE)
}

/// IB0 is the fake, and IB1 a NIC in software.
fn hcas(fake: &'static Fake) -> Vec<Hca> {
    let made = Hca::made(move || {
        let device = verbs::Device::open_in(Fake::verbs(), fake.name());
        let hca = device.and_then(IbHca::new);
        let hca = hca.map_err(|error| error.into_error(IB))?;
        Ok(Arc::new(hca) as Arc<dyn GpuQueueProvider>)
    });
    vec![made, Hca::named("soft0")]
}

fn context(fake: &'static Fake) -> Context {
    let mut config = ContextConfig::new(Ipv4Addr::LOCALHOST.into());
    config.hca_devices = hcas(fake);
    Context::with_config(config).unwrap()
}

fn ib(mode: IbMode) -> EndpointConfig {
    EndpointConfig {
        ib: IbConfig {
            mode,
            ..IbConfig::default()
        },
        ..EndpointConfig::new(IB)
    }
}

/// A fake whose port takes messages of a size.
fn fake(largest: u64) -> &'static Fake {
    let fake = Fake::new();
    let mut state = fake.state();
    state.port.max_msg_sz = largest as u32;
    state.attributes.max_mr_size = 1 << 40;
    drop(state);
    fake
}

/// A connection of an endpoint to itself, which the fake says is ready.
fn to_itself(context: &Context, config: EndpointConfig) -> Connection {
    let endpoint = context.create_endpoint(config).unwrap();
    let record = endpoint.serialize().unwrap();
    let connection = context.connect(endpoint, &record, deadline()).unwrap();
    connection.wait_connected(deadline()).unwrap();
    connection
}

fn registered(context: &Context, bytes: u64) -> (Buffer, RegisteredMemory) {
    let buffer = Buffer::new(Device::cpu(), bytes).unwrap();
    let options = MemoryOptions {
        transports: IB.into(),
        ..MemoryOptions::default()
    };
    let memory = context.register_memory_with(&buffer, .., options).unwrap();
    (buffer, memory)
}

/// The fake's HCA completes a request.
fn complete(fake: &Fake, id: u64, status: u32) {
    fake.state().completions.push_back(completion(id, status));
}

fn completion(id: u64, status: u32) -> sys::ibv_wc {
    let mut completion = sys::ibv_wc::zeroed();
    completion.wr_id = id;
    completion.status = status;
    completion.vendor_err = VENDOR;
    completion
}

/// Both ends' errors, which say the same.
fn refused(a: (&Context, Endpoint), b: (&Context, Endpoint)) -> String {
    let records = [&a.1, &b.1].map(|end| end.serialize().unwrap());
    let at_a = a.0.connect(a.1, &records[1], deadline()).map(drop);
    let at_b = b.0.connect(b.1, &records[0], deadline()).map(drop);
    let text = |result: Result<()>| {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::IncompatibleEndpoints { .. }),
            "{error}"
        );
        error.to_string()
    };
    let (at_a, at_b) = (text(at_a), text(at_b));
    assert_eq!(at_a, at_b);
    at_a
}

#[test]
fn ib_modes_that_do_not_fit_are_refused_by_both_ends_explicit_and_by_fallback() {
    let with = fake(GIB);
    let without = fake(GIB);
    without.state().attributes.atomic_cap = sys::IBV_ATOMIC_NONE;
    let kernels = EndpointConfig::gpu_initiated(TransportKind::IB1);
    for (fake, mode, resolved) in [
        (with, IbMode::Host, "Host"),
        (with, IbMode::HostNoAtomic, "HostNoAtomic"),
        // By fallback.
        (without, IbMode::Default, "HostNoAtomic"),
        (without, IbMode::Host, "HostNoAtomic"),
    ] {
        let (one, other) = (context(fake), context(with));
        let ends = (
            (&one, one.create_endpoint(ib(mode)).unwrap()),
            (&other, other.create_endpoint(kernels).unwrap()),
        );
        let text = refused(ends.0, ends.1);
        let expected = format!("one is for IbMode::{resolved}, the other for GpuNetIo");
        assert!(text.contains(&expected), "{text}");
        drop((one, other));
        assert_eq!(fake.left(), [""; 0]);
    }
    // Two of the host's, of which one fell back.
    let (one, other) = (context(without), context(with));
    let ends = [&one, &other].map(|at| (at, at.create_endpoint(ib(IbMode::Default)).unwrap()));
    let [a, b] = ends;
    let text = refused(a, b);
    assert!(
        text.contains("use IbMode::HostNoAtomic on both ends"),
        "{text}"
    );
}

#[test]
fn ib_a_gid_index_or_port_that_there_is_not_is_refused_before_anything_is_made() {
    let fake = fake(GIB);
    let context = context(fake);
    let mut config = ib(IbMode::Host);
    config.ib.gid_index = Some(1);
    let error = context.create_endpoint(config).map(drop).unwrap_err();
    assert!(matches!(error, Error::HcaUnavailable { .. }), "{error}");
    for text in [fake.name(), "GID index 1", "2: ::ffff:10.77.0.1 (RoCE v2)"] {
        assert!(error.to_string().contains(text), "{error}");
    }
    let mut config = ib(IbMode::Host);
    config.ib.port = Some(2);
    let error = context.create_endpoint(config).map(drop).unwrap_err();
    assert!(error.to_string().contains("port 2"), "{error}");
    fake.state().port.state = sys::IBV_PORT_DOWN;
    let error = context.create_endpoint(ib(IbMode::Host)).map(drop);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("port 1: it is down"), "{error}");
    let made = |call: &&str| call.starts_with("ibv_create");
    assert!(!fake.state().calls.iter().any(made));
}

#[test]
fn ib_whatever_call_fails_an_endpoint_is_made_or_nothing_is_left() {
    for mode in [IbMode::Host, IbMode::HostNoAtomic] {
        let mut failed = 0;
        loop {
            let fake = fake(GIB);
            fake.fail_call(failed, libc::EIO);
            let context = context(fake);
            let made = context.create_endpoint(ib(mode));
            let calls = fake.state().calls.len();
            fake.mend();
            let outcome = made.map(drop);
            drop(context);
            assert_eq!(fake.left(), [""; 0], "{mode}, call {failed}");
            if failed >= calls {
                outcome.unwrap();
                break;
            }
            outcome.unwrap_err();
            failed += 1;
        }
        assert!(failed > 10, "{failed} calls");
    }
}

#[test]
fn ib_a_connection_is_made_with_what_both_ends_say_and_what_was_asked_for() {
    let fake = fake(GIB);
    fake.state().port.active_mtu = sys::IBV_MTU_2048;
    let context = context(fake);
    let mut config = ib(IbMode::Host);
    config.ib = IbConfig {
        service_level: Some(5),
        traffic_class: Some(104),
        timeout: Some(20),
        retry_count: Some(3),
        ..config.ib
    };
    let one = context.create_endpoint(config).unwrap();
    fake.state().port.active_mtu = sys::IBV_MTU_1024;
    let other = context.create_endpoint(config).unwrap();
    let records = [&one, &other].map(|end| end.serialize().unwrap());
    let (psn, other_psn) = (one.record().queue.unwrap(), other.record().queue.unwrap());
    let (psn, other_psn) = (psn.port.unwrap(), other_psn.port.unwrap());
    let connections = [(one, &records[1]), (other, &records[0])]
        .map(|(end, record)| context.connect(end, record, deadline()).unwrap());
    for connection in &connections {
        connection.wait_connected(deadline()).unwrap();
    }
    let modified = fake.state().modified.clone();
    let of = |state| modified.iter().filter(move |(_, to)| to.qp_state == state);
    assert_eq!(of(sys::IBV_QPS_INIT).count(), 2);
    let (mut expected, mut sent) = (Vec::new(), Vec::new());
    for (_, rtr) in of(sys::IBV_QPS_RTR) {
        // The smaller of the two.
        assert_eq!(rtr.path_mtu, sys::IBV_MTU_1024);
        let address = &rtr.ah_attr;
        assert_eq!((address.sl, address.is_global, address.port_num), (5, 1, 1));
        assert_eq!(
            (address.grh.sgid_index, address.grh.traffic_class),
            (2, 104)
        );
        assert_eq!(rtr.max_dest_rd_atomic, 8);
        expected.push(rtr.rq_psn);
    }
    for (_, rts) in of(sys::IBV_QPS_RTS) {
        assert_eq!((rts.timeout, rts.retry_cnt, rts.rnr_retry), (20, 3, 7));
        sent.push(rts.sq_psn);
    }
    expected.sort_unstable();
    sent.sort_unstable();
    assert_eq!(expected, sent);
    let mut numbers = vec![psn.first_packet, other_psn.first_packet];
    numbers.sort_unstable();
    assert_eq!(sent, numbers);
    drop((connections, context));
    assert_eq!(fake.left(), [""; 0]);
}

#[test]
fn ib_ranges_above_the_largest_message_are_split_and_only_the_last_request_is_signalled() {
    const MIB: u64 = 1 << 20;
    // The HCA's largest message, or what this crate asks of any HCA.
    for (largest, piece) in [(16 * MIB, 16 * MIB), (GIB, 64 * MIB)] {
        split_in_three(largest, 5 * piece / 2 + 12);
    }
}

fn split_in_three(largest: u64, size: u64) {
    let fake = fake(largest);
    let context = context(fake);
    let connection = to_itself(&context, ib(IbMode::Host));
    let (buffer, memory) = registered(&context, size);
    connection.write(&memory, 4, &memory, 8, size - 8).unwrap();
    let flush = {
        let connection = connection.clone();
        std::thread::spawn(move || connection.flush(deadline()))
    };
    eventually("three requests", || fake.state().posted.len() == 3);
    let mut at = 0;
    for (number, posted) in fake.state().posted.iter().enumerate() {
        let request = &posted.request;
        assert_eq!(request.opcode, sys::IBV_WR_RDMA_WRITE);
        assert_eq!(request.wr_id, number as u64);
        let signalled = request.send_flags & sys::IBV_SEND_SIGNALED != 0;
        assert_eq!(signalled, number == 2);
        // SAFETY: it is a write.
        let remote = unsafe { request.wr.rdma };
        assert_eq!(remote.remote_addr, buffer.address() + 4 + at);
        assert_eq!(posted.pieces[0].addr, buffer.address() + 8 + at);
        // The fake's keys of the two kinds differ.
        let keys = (posted.pieces[0].lkey >> 12, remote.rkey >> 12);
        assert_eq!(keys, (1, 2));
        at += u64::from(posted.pieces[0].length);
    }
    assert_eq!(at, size - 8);
    assert!(!flush.is_finished());
    // It covers the others.
    complete(fake, 2, sys::IBV_WC_SUCCESS);
    flush.join().unwrap().unwrap();
}

#[test]
fn ib_what_a_request_reads_stays_registered_until_it_is_done() {
    let fake = fake(GIB);
    let context = context(fake);
    let connection = to_itself(&context, ib(IbMode::Host));
    let (source, memory) = registered(&context, 64);
    let (_kept, target) = registered(&context, 64);
    let regions = || {
        fake.left()
            .iter()
            .filter(|what| **what == "memory region")
            .count()
    };
    let before = regions();
    connection.write(&target, 0, &memory, 0, 64).unwrap();
    drop((source, memory));
    assert_eq!(regions(), before);
    complete(fake, 0, sys::IBV_WC_SUCCESS);
    connection.flush(deadline()).unwrap();
    assert_eq!(regions(), before - 1);
}

#[test]
fn ib_a_request_that_fails_is_told_by_status_number_operation_and_queue() {
    let fake = fake(GIB);
    let context = context(fake);
    let connection = to_itself(&context, ib(IbMode::Host));
    let (_buffer, memory) = registered(&context, 64);
    connection.write(&memory, 0, &memory, 0, 64).unwrap();
    connection.signal(&memory, 8).unwrap();
    complete(fake, 0, sys::IBV_WC_SUCCESS);
    complete(fake, 1, sys::IBV_WC_REM_ACCESS_ERR);
    let error = connection.flush(deadline()).unwrap_err();
    let Error::RequestFailed {
        index: 1,
        operation: "signal",
        status: CompletionStatus::RemoteAccess,
        vendor: VENDOR,
        queue,
        ..
    } = error
    else {
        panic!("{error:?}");
    };
    let text = error.to_string();
    for part in [
        "request 1 (signal)",
        &format!("queue {queue:#x}"),
        "REM_ACCESS_ERR",
        "the key is wrong",
        "0x81",
    ] {
        assert!(text.contains(part), "{text}\nlacks {part}");
    }
    // It stays.
    assert_eq!(connection.signal(&memory, 8).unwrap_err().to_string(), text);
}

#[test]
fn ib_a_flushed_request_waits_for_the_cause_and_is_told_without() {
    assert!(!flushed_tells_the_cause(false));
    eventually("the cause is heard soon enough", || {
        flushed_tells_the_cause(true)
    });
}

/// Whether a request that is flushed fails by its cause, which the HCA reports behind it. Else the cause
/// was waited for.
fn flushed_tells_the_cause(cause: bool) -> bool {
    let fake = fake(GIB);
    let context = context(fake);
    let connection = to_itself(&context, ib(IbMode::Host));
    let (_buffer, memory) = registered(&context, 64);
    connection.write(&memory, 0, &memory, 0, 64).unwrap();
    let started = Instant::now();
    complete(fake, 0, sys::IBV_WC_WR_FLUSH_ERR);
    if cause {
        let mut event = sys::ibv_async_event::zeroed();
        event.event_type = sys::IBV_EVENT_DEVICE_FATAL;
        fake.state().event(event);
    }
    let error = connection.flush(deadline()).unwrap_err();
    let told = matches!(error, Error::HcaFailed { .. });
    assert!(cause || !told, "{error}");
    assert!(
        told || error.to_string().contains("WR_FLUSH_ERR"),
        "{error}"
    );
    assert!(told || started.elapsed() > TOLD_WITHIN, "{error}");
    told
}

/// Whoever polls takes a completion for good: also who finds the peer dead by then.
#[test]
fn ib_what_has_failed_is_told_whoever_polled_it_when_the_peers_death_is_known() {
    let fake = fake(GIB);
    let context = context(fake);
    let connection = to_itself(&context, ib(IbMode::Host));
    let (_buffer, memory) = registered(&context, 64);
    connection.write(&memory, 0, &memory, 0, 64).unwrap();
    connection.signal(&memory, 8).unwrap();
    connection.link().kick();
    eventually("both are posted", || fake.state().posted.len() == 2);
    // Its calls wait for this.
    let mut hold = fake.state();
    let flush = {
        let connection = connection.clone();
        std::thread::spawn(move || connection.flush(deadline()))
    };
    // It polls; if not yet, it finds the death first, which is right, too.
    std::thread::sleep(Duration::from_millis(100));
    connection.sticky().fail(Error::PeerDown {
        rank: None,
        cause: "it has died".into(),
    });
    hold.completions.extend([
        completion(0, sys::IBV_WC_REM_ACCESS_ERR),
        completion(1, sys::IBV_WC_WR_FLUSH_ERR),
    ]);
    drop(hold);
    flush.join().unwrap().unwrap_err();
    eventually("the request's failure is told", || {
        let text = connection.status().unwrap().to_string();
        text.contains("it has died") && text.contains("REM_ACCESS_ERR")
    });
}

#[test]
fn ib_without_atomics_a_signal_is_a_write_that_names_the_token_and_no_more() {
    let fake = fake(GIB);
    let context = context(fake);
    let connection = to_itself(&context, ib(IbMode::HostNoAtomic));
    let own = SignalMemory::new(&context, Device::cpu(), IB).unwrap();
    let other = SignalMemory::new(&context, Device::cpu(), IB).unwrap();
    let record = |signal: &SignalMemory| {
        RegisteredMemory::deserialize(&context, &signal.record().unwrap()).unwrap()
    };
    connection.signal(&record(&own), 0).unwrap();
    let (opcode, token) = {
        let state = fake.state();
        let posted = &state.posted[0];
        assert!(posted.pieces.is_empty());
        (posted.request.opcode, u32::from_be(posted.request.imm_data))
    };
    assert_eq!(opcode, sys::IBV_WR_RDMA_WRITE_WITH_IMM);
    complete(fake, 0, sys::IBV_WC_SUCCESS);
    connection.flush(deadline()).unwrap();

    // What the peer's HCA makes of it.
    let arrive = |token: u32| {
        let mut completion = sys::ibv_wc::zeroed();
        completion.opcode = sys::IBV_WC_RECV_RDMA_WITH_IMM;
        completion.wc_flags = sys::IBV_WC_WITH_IMM;
        completion.imm_data = token.to_be();
        fake.state().completions.push_back(completion);
    };
    for count in 1..=3 {
        arrive(token);
        eventually("the token is raised", || {
            own.token().load_u64(0).unwrap() == count
        });
    }
    assert_eq!(other.token().load_u64(0).unwrap(), 0);

    let (_buffer, memory) = registered(&context, 64);
    for (result, text) in [
        (connection.accumulate(&memory, 0, 1), "HostNoAtomic"),
        (connection.signal(&memory, 8), "HostNoAtomic"),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    // A token that nobody knows ends the connection.
    arrive(token ^ 0x5555);
    eventually("the connection ends", || connection.status().is_some());
    let error = connection.status().unwrap();
    assert!(matches!(error, Error::RefusedPeer { .. }), "{error}");
}

#[test]
fn ib_posts_beyond_the_limit_get_an_error_and_change_nothing() {
    let fake = fake(GIB);
    let context = context(fake);
    let config = EndpointConfig {
        max_write_queue_size: Some(4),
        ..ib(IbMode::Host)
    };
    let connection = to_itself(&context, config);
    let (_buffer, memory) = registered(&context, 64);
    let link = connection.link();
    assert!(link.has_room());
    for _ in 0..4 {
        link.signal(&memory, 0).unwrap();
    }
    assert!(!link.has_room());
    let error = link.signal(&memory, 0).unwrap_err();
    assert!(
        matches!(error, Error::QueueFull { limit: 4, .. }),
        "{error}"
    );
    link.kick();
    assert_eq!(fake.state().posted.len(), 4);
    complete(fake, 3, sys::IBV_WC_SUCCESS);
    assert!(link.has_room());
    link.signal(&memory, 0).unwrap();
}

#[test]
fn ib_an_hca_that_answers_nothing_any_more_stalls_its_connection() {
    let fake = fake(GIB);
    let mut config = ContextConfig::new(Ipv4Addr::LOCALHOST.into());
    config.deadlines.stall = Duration::from_millis(150);
    config.hca_devices = hcas(fake);
    let context = Context::with_config(config).unwrap();
    let connection = to_itself(&context, ib(IbMode::Host));
    let (_buffer, memory) = registered(&context, 64);
    std::thread::sleep(Duration::from_millis(300));
    assert!(connection.status().is_none(), "idle is not stalled");
    connection.signal(&memory, 0).unwrap();
    eventually("it stalls", || connection.status().is_some());
    let error = connection.status().unwrap();
    assert!(matches!(error, Error::Stalled { .. }), "{error}");
}

#[test]
fn ib_a_subnet_needs_no_gid_unless_a_port_says_so() {
    for (flags, routed) in [(0, 0), (sys::IB_UVERBS_QPF_GRH_REQUIRED, 1)] {
        let fake = fake(GIB);
        {
            let mut state = fake.state();
            state.port.link_layer = sys::IBV_LINK_LAYER_INFINIBAND;
            (state.port.lid, state.port.flags) = (17, flags);
            state.gid(0, sys::IBV_GID_TYPE_IB, 0xfe80 << 112 | 5);
        }
        let context = context(fake);
        let _connection = to_itself(&context, ib(IbMode::Host));
        let modified = fake.state().modified.clone();
        let rtr = modified
            .iter()
            .find(|(_, to)| to.qp_state == sys::IBV_QPS_RTR);
        let address = rtr.unwrap().1.ah_attr;
        assert_eq!((address.dlid, address.is_global), (17, routed));
        // The port's own, at index 0.
        // SAFETY: both members have the same bytes.
        let gid = unsafe { address.grh.dgid.raw };
        assert_eq!(gid[15], 5 * routed);
    }
}

#[test]
fn ib_memory_beyond_the_hcas_limit_is_refused_and_never_shortened() {
    let fake = fake(GIB);
    fake.state().attributes.max_mr_size = 1 << 20;
    let context = context(fake);
    let buffer = Buffer::new(Device::cpu(), 2 << 20).unwrap();
    let options = MemoryOptions {
        transports: IB.into(),
        ..MemoryOptions::default()
    };
    let registered = |range| context.register_memory_with(&buffer, range, options);
    let error = registered(0..(1 << 20) + 1).map(drop).unwrap_err();
    assert!(matches!(error, Error::Verbs(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("1048577 bytes") && text.contains("1048576"),
        "{text}"
    );
    registered(0..1 << 20).unwrap();
    // What is not registered for an HCA is no source there.
    let connection = to_itself(&context, ib(IbMode::Host));
    let other = context.register_memory(&buffer, 0..64).unwrap();
    let target = registered(0..64).unwrap();
    let error = connection.write(&target, 0, &other, 0, 8).unwrap_err();
    assert!(
        error.to_string().contains("register it for that"),
        "{error}"
    );
}
