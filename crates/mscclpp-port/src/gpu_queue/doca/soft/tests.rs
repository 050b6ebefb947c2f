// SPDX-License-Identifier: MIT
//! Queue pairs that the library makes on a NIC in software: connected, broken, failed and let go of.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gpunetio_sys::Library;
use gpunetio_sys::device::DevQp;
use gpunetio_sys::seam::Call;
use mscclpp_device::abi::{QueueForm, SignalMode};
use mscclpp_softnic::devx::Port;
use mscclpp_softnic::{Device as Nic, DeviceConfig, LiveObjects};

use super::super::{DocaHca, exported, hca::PAGE};
use super::Watch;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu_queue::config::{IbConfig, IbMode};
use crate::gpu_queue::layout::QueueLayout;
use crate::gpu_queue::policy::{QueueRecord, check_made};
use crate::gpu_queue::provider::{GpuQueueProvider, HcaQueue, Mtu, Path, QueueFault, QueuePlan};
use crate::gpu_queue::{QueuePlacement, lock};

const PORTS: [Port; 2] = [DocaHca::INFINI_BAND, Port::Ethernet];

/// Whether there is a library. Without one a test is skipped.
pub(crate) fn library(test: &str) -> bool {
    match Library::over_table() {
        Ok(_) => true,
        Err(gpunetio_sys::Error::NotNamed) => {
            println!("SKIP {test}: no GPUNetIO: GPUNETIO_LIBRARY is not set");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// What is undone, or only tells of errors: it is not failed here.
pub(crate) fn is_left_alone(call: Call) -> bool {
    use Call::*;
    matches!(
        call,
        DevxObjDestroy
            | DevxUmemDereg
            | DevxFreeUar
            | IbvDestroyAh
            | CudaFree
            | CudaHostUnregister
            | CudaGetLastError
            | CudaGetErrorString
    )
}

/// What the library, or this crate, does without: a page for one owner alone, a dma-buf, and what says
/// whether a GPU has stores that this crate does not use.
pub(crate) fn is_survived(call: Call) -> bool {
    use Call::*;
    matches!(
        call,
        DevxAllocUar
            | CudaGetDevice
            | CudaDeviceGetAttribute
            | CuMemGetHandleForAddressRange
            | CuDeviceGetAttribute
    )
}

fn nic() -> Nic {
    Nic::open("soft0", DeviceConfig::default()).unwrap()
}

fn open(nic: &Nic, port: Port, watch: Option<Watch>) -> DocaHca {
    DocaHca::soft("doca:soft0".into(), nic.clone(), port, watch).unwrap()
}

fn plan(form: QueueForm, blocks: u32) -> QueuePlan {
    QueuePlan {
        device: Device::cpu(),
        placement: QueuePlacement::Device,
        form,
        signal_mode: SignalMode::Atomic,
        blocks,
        asked: IbConfig::default(),
    }
}

fn record(of: &dyn HcaQueue) -> QueueRecord {
    QueueRecord {
        mode: IbMode::GpuNetIo,
        atomic_signals: true,
        atomics: true,
        mtu: Mtu::SMALLEST,
        queue: of.address(),
        outstanding_reads: 16,
        port: None,
    }
}

fn path(to: &dyn HcaQueue) -> Path {
    Path {
        peer: to.address(),
        mtu: Mtu::from_code(5).unwrap(),
        outstanding_reads: 16,
        port: to.complete(record(to)).port,
    }
}

/// Two queues, each connected to the other.
fn connected(hca: &DocaHca) -> Result<[Box<dyn HcaQueue>; 2]> {
    let plan = plan(QueueForm::Shared, 64);
    let queues = [hca.create_queue(plan)?, hca.create_queue(plan)?];
    queues[0].connect(&path(&*queues[1]))?;
    queues[1].connect(&path(&*queues[0]))?;
    Ok(queues)
}

#[test]
fn gpunetio_doca_queues_of_every_size_are_what_was_asked_for() {
    if !library("gpunetio_doca_queues_of_every_size_are_what_was_asked_for") {
        return;
    }
    for port in PORTS {
        let nic = nic();
        let hca = open(&nic, port, None);
        for form in [QueueForm::Shared, QueueForm::Exclusive] {
            for blocks in [2, 64, 1024, 32768] {
                let queue = hca.create_queue(plan(form, blocks)).unwrap();
                let config = IbConfig {
                    queue_form: form,
                    max_send_wr: Some(blocks),
                    ..IbConfig::default()
                };
                check_made(hca.name(), &*queue, &config).unwrap();
                let handle = queue.device_handle();
                assert_eq!(handle.doorbell % PAGE, 0x800);
                assert_eq!(handle.send_ring % PAGE, 0);
            }
        }
        drop(hca);
        assert_eq!(nic.counters().live, LiveObjects::default());
    }
}

#[test]
fn gpunetio_doca_a_queue_in_host_memory_is_refused() {
    if !library("gpunetio_doca_a_queue_in_host_memory_is_refused") {
        return;
    }
    let hca = open(&nic(), DocaHca::INFINI_BAND, None);
    let plan = QueuePlan {
        placement: QueuePlacement::Host,
        ..plan(QueueForm::Shared, 64)
    };
    let error = hca.create_queue(plan).map(drop).unwrap_err();
    assert!(
        error.to_string().contains("QueuePlacement::Device"),
        "{error}"
    );
}

#[test]
fn gpunetio_doca_a_stopped_queue_says_so_and_its_steps_come_in_order() {
    if !library("gpunetio_doca_a_stopped_queue_says_so_and_its_steps_come_in_order") {
        return;
    }
    let nic = nic();
    let hca = open(&nic, DocaHca::INFINI_BAND, None);
    let queue = hca.create_queue(plan(QueueForm::Shared, 64)).unwrap();
    // From RESET there is no way to RTS, and the NIC says why.
    let error = queue.ready_to_send(&path(&*queue)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Hca { .. }), "{error:?}");
    for part in ["doca:soft0", "RTS", "doca_verbs_qp_modify"] {
        assert!(text.contains(part), "{text}");
    }
    let queues = connected(&hca).unwrap();
    assert_eq!(queues[0].fault(), None);
    queues[0].stop();
    assert_eq!(queues[0].fault(), Some(QueueFault::Refusal));
    assert_eq!(queues[1].fault(), None);
}

/// A NIC, or a peer, may allow any number of reads under way at once.
#[test]
fn gpunetio_doca_any_number_of_reads_under_way_is_taken() {
    if !library("gpunetio_doca_any_number_of_reads_under_way_is_taken") {
        return;
    }
    let hca = open(&nic(), DocaHca::INFINI_BAND, None);
    for outstanding_reads in [1, 2, 3, 7, 12, 16, 31] {
        let queue = hca.create_queue(plan(QueueForm::Shared, 64)).unwrap();
        let path = Path {
            outstanding_reads,
            ..path(&*queue)
        };
        let connected = queue.connect(&path);
        connected.unwrap_or_else(|error| panic!("{outstanding_reads}: {error}"));
    }
}

/// Each call of the library's to what it stands on fails once: either it does without, or the error
/// says which of its functions failed, and nothing is left.
#[test]
fn gpunetio_doca_whichever_call_fails_nothing_is_left() {
    if !library("gpunetio_doca_whichever_call_fails_nothing_is_left") {
        return;
    }
    for port in PORTS {
        let (mut failed, mut survived) = (BTreeSet::new(), BTreeSet::new());
        let mut cases = 0;
        for number in 0.. {
            let (count, on) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(true)));
            let which = Arc::new(Mutex::new(None));
            let (is_on, seen) = (Arc::clone(&on), Arc::clone(&which));
            let watch: Watch = Arc::new(move |call| {
                let counts = is_on.load(Ordering::SeqCst) && !is_left_alone(call);
                let due = counts && count.fetch_add(1, Ordering::SeqCst) == number;
                if due {
                    *lock(&seen) = Some(call);
                }
                due
            });
            let nic = nic();
            let hca = open(&nic, port, Some(watch));
            let result = connected(&hca);
            on.store(false, Ordering::SeqCst);
            let Some(call) = *lock(&which) else {
                result.unwrap();
                break;
            };
            cases += 1;
            failed.insert(call);
            match result {
                Ok(queues) => {
                    survived.insert(call);
                    drop(queues);
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("doca_"), "{call:?}: {text}");
                }
            }
            drop(hca);
            assert_eq!(nic.counters().live, LiveObjects::default(), "{call:?}");
        }
        println!(
            "{port:?}: {cases} calls failed, of {} kinds: {failed:?}",
            failed.len()
        );
        assert!(
            cases > 60 && failed.contains(&Call::DevxObjModify),
            "{cases}"
        );
    }
}

/// What a NIC refuses is told in its own words.
#[test]
fn gpunetio_doca_what_the_nic_refuses_is_told() {
    if !library("gpunetio_doca_what_the_nic_refuses_is_told") {
        return;
    }
    use mscclpp_softnic::{ControlOperation, FaultKind, FaultPlan, FaultRule};
    for (operation, parts) in [
        (
            ControlOperation::CreateQueuePair,
            ["doca_verbs_qp_create", "CREATE_QP"],
        ),
        (
            ControlOperation::CreateCompletionQueue,
            ["doca_verbs_cq_create", "CREATE_CQ"],
        ),
        (
            ControlOperation::AllocateDoorbellPage,
            ["doca_verbs_uar_create", "refused"],
        ),
    ] {
        let nic = nic();
        let hca = open(&nic, DocaHca::INFINI_BAND, None);
        nic.set_faults(FaultPlan::default().and(FaultRule {
            operation,
            skip: 0,
            count: u32::MAX,
            kind: FaultKind::Refuse,
        }));
        let error = connected(&hca).map(drop).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{operation}: {error}");
        }
        drop(hca);
        assert_eq!(nic.counters().live, LiveObjects::default());
    }
}

/// Nothing of what the library exports is taken on trust.
#[test]
fn gpunetio_doca_an_exported_structure_that_is_not_what_was_asked_for_is_refused() {
    let layout = QueueLayout::new(plan(QueueForm::Shared, 64), PAGE).unwrap();
    let good = exported::tests::exported(7, &layout);
    exported::check(&good, 7, &layout).unwrap();
    type Change = fn(&mut DevQp);
    let changes: [(&str, Change); 11] = [
        ("who rings", |qp| qp.nic_handler = 1),
        ("where it lies", |qp| qp.mem_type = 1),
        ("where its completions", |qp| qp.cq_sq.mem_type = 1),
        ("its number", |qp| qp.sq_num = 8),
        ("how many requests", |qp| qp.sq_wqe_num = 0),
        ("its send ring", |qp| qp.sq_wqe_daddr = std::ptr::null_mut()),
        ("its doorbell record", |qp| {
            qp.sq_dbrec = std::ptr::null_mut()
        }),
        ("how many completions", |qp| qp.cq_sq.cqe_num = 32),
        ("bytes of a completion", |qp| qp.cq_sq.cqe_size = 128),
        ("kind of its completion queue", |qp| qp.cq_sq.cq_type = 1),
        ("its completion ring", |qp| {
            qp.cq_sq.cqe_daddr = std::ptr::null_mut()
        }),
    ];
    for (what, change) in changes {
        let mut bad = good;
        change(&mut bad);
        let error = exported::check(&bad, 7, &layout).unwrap_err();
        assert!(error.starts_with(what), "{error}");
    }
}
