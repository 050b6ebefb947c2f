// SPDX-License-Identifier: MIT
//! The library, unmodified, on a NIC in software: its queue pairs are made, connected, work,
//! break and are destroyed without a NIC or a GPU.

mod backend;
mod driver;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use backend::SoftHca;
use driver::{ENTRIES, Failed, Queue};
use gpunetio_sys::ffi::{address_type, handler, memory_type};
use gpunetio_sys::seam::{Backend, Call, Intercepted};
use mlx5_queue::{DataSegment, DataSegments, Operation, Payload, RemoteAddress, Syndrome};
use mscclpp_softnic::devx::Port;
use mscclpp_softnic::{AccessFlags, Device, DeviceConfig, HostBuffer, WriteOrdering};

/// Kinds of ports, and how the library calls an address on each.
const PORTS: [(Port, i32); 2] = [
    (Port::InfiniBand { lid: 7 }, address_type::IB_GRH),
    (Port::Ethernet, address_type::IPV6),
];

fn open(port: Port) -> (Arc<SoftHca>, Arc<dyn Backend>) {
    let device = Device::open("soft0", DeviceConfig::default()).unwrap();
    let hca = SoftHca::open(&device, port);
    (Arc::clone(&hca), hca)
}

/// Two queue pairs, each connected to the other.
fn connected(
    hca: &Arc<SoftHca>,
    backend: &Arc<dyn Backend>,
    kind: i32,
) -> Result<[Queue; 2], Failed> {
    let queues = [Queue::new(hca, backend)?, Queue::new(hca, backend)?];
    let address = hca.devx.device().address();
    queues[0].connect(address, queues[1].number(), kind)?;
    queues[1].connect(address, queues[0].number(), kind)?;
    Ok(queues)
}

/// Puts 8 bytes and adds 3 to a word behind them, under a key that is wrong by so much.
fn put_and_add(hca: &SoftHca, queue: &mut Queue, wrong: u32) -> [Option<Syndrome>; 2] {
    let (source, target) = (HostBuffer::new(16), HostBuffer::new(16));
    let all = AccessFlags::ALL;
    let from = hca
        .domain
        .register(source.range(), all, WriteOrdering::Relaxed)
        .unwrap();
    let to = hca
        .domain
        .register(target.range(), all, WriteOrdering::Relaxed)
        .unwrap();
    let key = mlx5_queue::MemoryKey::new(to.key().get() ^ wrong);
    source.write_u64(0, 42);
    target.write_u64(8, 100);
    let list = [DataSegment::new(source.address(), from.key(), 8)
        .unwrap()
        .encode()];
    queue.post(Operation::Write {
        remote: RemoteAddress {
            address: target.address(),
            key,
        },
        payload: Payload::Gather(DataSegments::new(&list)),
        immediate: None,
    });
    queue.post(Operation::FetchAdd {
        remote: RemoteAddress {
            address: target.address() + 8,
            key,
        },
        add: 3,
        result: DataSegment::new(source.address() + 8, from.key(), 8).unwrap(),
    });
    let results = [queue.poll(), queue.poll()];
    if results == [None, None] {
        assert_eq!((target.read_u64(0), target.read_u64(8)), (42, 103));
        assert_eq!(source.read_u64(8), 100);
    }
    results
}

#[test]
fn its_queue_pairs_work_break_and_go_on_both_kinds_of_port() {
    for (port, kind) in PORTS {
        let (hca, backend) = open(port);
        let mut queues = connected(&hca, &backend, kind).unwrap();
        for queue in &mut queues {
            // More than a lap.
            for _ in 0..ENTRIES {
                assert_eq!(put_and_add(&hca, queue, 0), [None, None]);
            }
            assert!(!queue.has_error());
        }
        let broken = put_and_add(&hca, &mut queues[0], 0x5500);
        assert_eq!(
            broken,
            [Some(Syndrome::REMOTE_ACCESS), Some(Syndrome::FLUSHED)]
        );
        assert!(queues[0].has_error());
        assert_eq!(hca.devx.device().take_violations(), []);
        drop(queues);
        assert_eq!(hca.live(), [0; 5]);
    }
}

#[test]
fn what_it_exports_is_what_was_asked_for() {
    let (hca, backend) = open(PORTS[0].0);
    let queue = Queue::new(&hca, &backend).unwrap();
    let device = queue.device;
    assert_eq!(device.nic_handler, handler::GPU_SM_DB);
    assert_eq!(device.mem_type, memory_type::GPU);
    assert_eq!(u32::from(device.sq_wqe_num), ENTRIES);
    assert_eq!((device.cq_sq.cqe_num, device.cq_sq.cqe_size), (ENTRIES, 64));
    assert_eq!(device.cq_sq.mem_type, memory_type::GPU);
    assert_eq!(device.cq_sq.cq_type, 0);
    assert_eq!(device.sq_num, queue.number());
    assert_eq!(device.sq_num_shift8_be, (queue.number() << 8).to_be());
    assert_eq!(device.sq_db as usize % 4096, 0x800);
    // The send half of the record.
    assert_eq!(device.sq_dbrec as usize % 8, 4);
}

/// Each call of the library's, failed once: it says so, and nothing is left.
#[test]
fn whichever_call_fails_nothing_is_left() {
    for (port, kind) in PORTS {
        let (hca, backend) = open(port);
        let mut tried = 0;
        let mut seen = std::collections::BTreeSet::new();
        let mut survived = Vec::new();
        for fails in 0.. {
            let count = Arc::new(AtomicUsize::new(0));
            let failed = Arc::new(std::sync::Mutex::new(None));
            let (counter, which) = (Arc::clone(&count), Arc::clone(&failed));
            let building = Arc::new(AtomicUsize::new(1));
            let on = Arc::clone(&building);
            let watched = Intercepted::new(Arc::clone(&backend), move |call| {
                // What only tells of errors cannot fail, nor does what is undone.
                let tells = matches!(call, Call::CudaGetLastError | Call::CudaGetErrorString);
                let destroys = matches!(
                    call,
                    Call::DevxObjDestroy
                        | Call::DevxUmemDereg
                        | Call::DevxFreeUar
                        | Call::IbvDestroyAh
                        | Call::CudaFree
                        | Call::CudaHostUnregister
                );
                if tells || destroys || on.load(Ordering::Relaxed) == 0 {
                    return false;
                }
                let now = counter.fetch_add(1, Ordering::Relaxed) == fails;
                if now {
                    *which.lock().unwrap() = Some(call);
                }
                now
            });
            let watched: Arc<dyn Backend> = Arc::new(watched);
            let result = connected(&hca, &watched, kind);
            building.store(0, Ordering::Relaxed);
            let call = *failed.lock().unwrap();
            let Some(call) = call else {
                // All of them were made.
                assert!(result.is_ok());
                break;
            };
            tried += 1;
            seen.insert(call);
            match result {
                Ok(mut queues) => {
                    survived.push(call);
                    assert_eq!(put_and_add(&hca, &mut queues[0], 0), [None, None]);
                }
                Err((function, error)) => assert_ne!(error.0, 0, "{function}"),
            }
            assert_eq!(hca.live(), [0; 5], "after {call:?} failed");
        }
        println!(
            "{port:?}: {tried} calls failed, of {} kinds: {seen:?}",
            seen.len()
        );
        survived.sort_unstable();
        survived.dedup();
        println!("{port:?}: it went on without {survived:?}");
        assert!(tried > 40, "{tried}");
    }
}
