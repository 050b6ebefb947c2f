// SPDX-License-Identifier: MIT
//! Setups whose queues GPUNetIO makes: each kind of its calls to what it stands on fails, the first
//! and the last time, on each of four ranks. All ranks get the same error, nothing is left on any
//! NIC, and the next setup on the same bootstrap works.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use gpunetio_sys::seam::Call;
use mscclpp_bootstrap::Bootstrap;
use mscclpp_bootstrap::gate::Reason;
use mscclpp_softnic::Device as Nic;
use mscclpp_softnic::devx::Port;

use super::faults::{RANKS, works};
use super::points::COUNTS;
use super::world::{PATIENCE, Part, is_empty, nics, service_on, set_up, world};
use crate::error::Error;
use crate::gpu_net_io_service::GpuNetIoService;
use crate::gpu_queue::tests::{is_left_alone, is_survived, library};
use crate::gpu_queue::{DocaHca, Hca, Watch};

const WORLDS: usize = 4;
const TAG: u32 = 9;

fn service(
    bootstrap: &Arc<dyn Bootstrap>,
    nic: &Nic,
    port: Port,
    watch: Option<Watch>,
) -> GpuNetIoService {
    let nic = nic.clone();
    let hca = Hca::made(move || {
        let name = "doca:soft0".into();
        let hca = DocaHca::soft(name, nic.clone(), port, watch.clone())?;
        Ok(Arc::new(hca))
    });
    service_on(bootstrap, hca)
}

/// What all ranks get, where one rank's library is watched.
fn results(
    ranks: &[Arc<dyn Bootstrap>],
    devices: &[Nic],
    port: Port,
    faulty: usize,
    watch: &Watch,
) -> Vec<Result<(), Error>> {
    results_and(ranks, devices, port, faulty, watch, || {})
}

/// The same; `then` is called while the services are still there.
fn results_and(
    ranks: &[Arc<dyn Bootstrap>],
    devices: &[Nic],
    port: Port,
    faulty: usize,
    watch: &Watch,
    then: impl FnOnce(),
) -> Vec<Result<(), Error>> {
    let services: Vec<_> = (0..RANKS)
        .map(|rank| {
            let watch = (rank == faulty).then(|| Arc::clone(watch));
            service(&ranks[rank], &devices[rank], port, watch)
        })
        .collect();
    let parts: Vec<Part<'_>> = (services.iter().zip(&COUNTS))
        .map(|(service, counts)| Part {
            service,
            counts: counts.into(),
            comes_after: Duration::ZERO,
        })
        .collect();
    let results = set_up(&parts, TAG, PATIENCE);
    then();
    results
}

/// How often each kind of call is made by a rank, in a setup that works.
fn calls(ranks: &[Arc<dyn Bootstrap>], port: Port, rank: usize) -> Vec<(Call, usize)> {
    let made = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&made);
    let watch: Watch = Arc::new(move |call| {
        list.lock().unwrap().push(call);
        false
    });
    let devices = nics(RANKS);
    let mut calls = Vec::new();
    let then = || calls = made.lock().unwrap().clone();
    for result in results_and(ranks, &devices, port, rank, &watch, then) {
        result.unwrap();
    }
    assert!(devices.iter().all(is_empty));
    let count = |call: Call| (call, calls.iter().filter(|other| **other == call).count());
    let all = Call::ALL.iter().copied().map(count);
    all.filter(|(call, times)| *times > 0 && !is_left_alone(*call))
        .collect()
}

#[test]
fn gpunetio_doca_a_failing_call_of_the_library_on_any_rank_fails_the_setup_on_all() {
    if !library("gpunetio_doca_a_failing_call_of_the_library_on_any_rank_fails_the_setup_on_all") {
        return;
    }
    let ranks = world(RANKS);
    let mut cases = Vec::new();
    for port in [DocaHca::INFINI_BAND, Port::Ethernet] {
        for rank in 0..RANKS {
            for (call, times) in calls(&ranks, port, rank) {
                cases.push((port, rank, call, 0));
                // Later queries only ask how a queue is, as often as there is news.
                if times > 1 && call != Call::DevxObjQuery {
                    cases.push((port, rank, call, times - 1));
                }
            }
        }
    }
    drop(ranks);
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..WORLDS {
            scope.spawn(|| {
                let ranks = world(RANKS);
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if let Err(what) = try_case(&ranks, *case) {
                        wrong.lock().unwrap().push(format!("{case:?}: {what}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} cases: {wrong:#?}", wrong.len());
    assert!(cases.len() >= 200, "{}", cases.len());
    println!("{} cases", cases.len());
}

fn try_case(
    ranks: &[Arc<dyn Bootstrap>],
    (port, faulty, call, skip): (Port, usize, Call, usize),
) -> Result<(), String> {
    let seen = AtomicUsize::new(0);
    let watch: Watch =
        Arc::new(move |made| made == call && seen.fetch_add(1, Ordering::SeqCst) == skip);
    let devices = nics(RANKS);
    let results = results(ranks, &devices, port, faulty, &watch);
    let failed: Vec<_> = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .collect();
    match failed.first() {
        None if is_survived(call) => {}
        None => return Err("it went on without".into()),
        Some(Error::Setup(first)) => {
            let same = |error: &&Error| matches!(error, Error::Setup(other) if other == first);
            if failed.len() != RANKS || !failed.iter().all(same) {
                return Err(format!("the ranks differ: {results:?}"));
            }
            let text = first.to_string();
            let phase = ["allocate", "INIT", "RTR", "RTS"].contains(&&*first.phase);
            let named = first.rank == faulty && matches!(first.reason, Reason::Failed(_));
            if !phase || !named || !text.contains("doca_") || !text.contains("doca:soft0") {
                return Err(format!("not that of the call: {first:?}"));
            }
        }
        Some(other) => return Err(format!("not an error of the setup: {other:?}")),
    }
    for (rank, device) in devices.iter().enumerate() {
        if !is_empty(device) {
            return Err(format!("rank {rank} keeps {:?}", device.counters().live));
        }
    }
    works(ranks, &devices, |bootstrap, nic| {
        service(bootstrap, nic, port, None)
    })
}
