// SPDX-License-Identifier: MIT
//! Every point of the table on every rank of four: all ranks get the same error, nothing is left on
//! any NIC, and the next setup on the same bootstrap works.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::Bootstrap;
use mscclpp_bootstrap::SetupError;
use mscclpp_bootstrap::gate::Reason;
use mscclpp_softnic::{Device as Nic, DeviceConfig, FaultPlan};

use super::faulty::{PANIC, faulty_service};
use super::points::{self, COUNTS, Named, Point};
use super::world::{PATIENCE, Part, is_empty, nic, nics, service, set_up, try_set_up, world};
use crate::error::Error;
use crate::gpu_net_io_service::setup::PHASES;
use crate::gpu_net_io_service::{GpuNetIoService, QueueCounts};

pub(super) const RANKS: usize = 4;
/// Most of the time ranks wait for one that is late, so that several worlds fit a small machine.
const WORLDS: usize = 8;
const TAG: u32 = 7;

#[test]
fn gpunetio_a_fault_on_any_rank_fails_the_setup_on_all_and_leaves_nothing() {
    let points = points::all();
    let cases: Vec<(&Point, usize)> = (points.iter())
        .flat_map(|point| (0..RANKS).map(move |rank| (point, rank)))
        .collect();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..WORLDS {
            scope.spawn(|| {
                let ranks = world(RANKS);
                while let Some((point, rank)) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if let Err(what) = try_case(&ranks, point, *rank) {
                        let line = format!("{} on rank {rank}: {what}", point.name);
                        wrong.lock().unwrap().push(line);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} cases: {wrong:#?}", wrong.len());
    let mut names: Vec<&str> = points.iter().map(|point| &*point.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), points.len(), "points have different names");
    assert!(points.len() >= 50 && cases.len() >= 200);
    println!("{} fault cases, {} points", cases.len(), points.len());
}

/// What is wrong with a case. Where a rank was on its way to the fault when the time was up, the case has
/// shown nothing yet, and is tried with more time.
pub(super) fn try_case(
    ranks: &[Arc<dyn Bootstrap>],
    point: &Point,
    faulty: usize,
) -> Result<(), String> {
    let mut devices = nics(RANKS);
    if let Some(config) = &point.rig.nic {
        devices[faulty] = nic(config.clone());
    }
    devices[faulty].set_faults(point.rig.nic_faults.clone());
    let services: Vec<GpuNetIoService> = (0..RANKS)
        .map(|rank| match rank == faulty {
            true => faulty_service(&ranks[rank], &devices[rank], &point.rig),
            false => service(&ranks[rank], &devices[rank]),
        })
        .collect();
    let rows: Vec<Vec<i32>> = (0..RANKS)
        .map(|rank| {
            let mut row = COUNTS[rank].to_vec();
            if let Some(change) = point.rig.counts.filter(|_| rank == faulty) {
                change(rank, &mut row);
            }
            row
        })
        .collect();
    let sparse = point.rig.sparse.map(|make| make(faulty));
    let parts: Vec<Part<'_>> = (0..RANKS)
        .map(|rank| Part {
            service: &services[rank],
            counts: match &sparse {
                Some(pairs) if rank == faulty => QueueCounts::Sparse(pairs),
                _ => QueueCounts::PerRank(&rows[rank]),
            },
            comes_after: match rank == faulty {
                true => point.rig.late,
                false => Duration::ZERO,
            },
        })
        .collect();
    let mut results = try_set_up(&parts, TAG, point.timeout);
    if point.named == Named::Panicked {
        // The others are told; it has its panic.
        let panic = results.remove(faulty);
        if (panic.err()).and_then(|panic| panic.downcast_ref::<&str>().copied()) != Some(PANIC) {
            return Err("the panic does not reach its caller".into());
        }
    }
    let results: Vec<_> = (results.into_iter().map(|end| end.expect("no panic"))).collect();
    let right = check_errors(point, faulty, &results);
    let longer = (point.with_more_time())
        .filter(|_| right.is_err() && was_on_its_way(point, faulty, &results));
    if longer.is_none() {
        right?;
    }
    // The services are still there, and have let go of everything.
    for (rank, device) in devices.iter().enumerate() {
        if !is_empty(device) {
            return Err(format!("rank {rank} keeps {:?}", device.counters().live));
        }
    }
    for service in &services {
        let again = service.setup(QueueCounts::Uniform(0), TAG);
        if !matches!(&again, Err(Error::SetUpAgain { found }) if found.contains("failed")) {
            return Err(format!("a second setup after a failure gives {again:?}"));
        }
    }
    drop(services);

    devices[faulty].set_faults(FaultPlan::default());
    if point.rig.nic.is_some() {
        devices[faulty] = nic(DeviceConfig::default());
    }
    works(ranks, &devices, service)?;
    match longer {
        Some(longer) => {
            let Point { name, timeout, .. } = &longer;
            println!("{name} on rank {faulty}: again, within {timeout:?}");
            try_case(ranks, &longer, faulty)
        }
        None => Ok(()),
    }
}

/// Whether all name a rank that has not come to the step with the fault. In a step that waits for
/// others it may not have come because of the fault.
fn was_on_its_way(point: &Point, faulty: usize, results: &[Result<(), Error>]) -> bool {
    let errors = results.iter().map(|result| match result {
        Err(Error::Setup(error)) => Some(&**error),
        _ => None,
    });
    let errors: Option<Vec<&SetupError>> = errors.collect();
    let Some((first, others)) = errors.as_deref().and_then(|errors| errors.split_first()) else {
        return false;
    };
    let place = |phase: &str| {
        std::iter::once("plan")
            .chain(PHASES)
            .position(|of| of == phase)
    };
    let (Some(reached), Some(due)) = (place(&first.phase), place(point.phase)) else {
        return false;
    };
    let waits = ["exchange", "wire", "self-test"].contains(&point.phase);
    let late_too = point.named == Named::Silent && first.rank != faulty && !waits;
    others.iter().all(|error| error == first)
        && matches!(first.reason, Reason::Silent)
        && (reached < due || reached == due && late_too)
}

fn check_errors(point: &Point, faulty: usize, results: &[Result<(), Error>]) -> Result<(), String> {
    let mut errors: Vec<&SetupError> = Vec::new();
    for result in results {
        match result {
            Err(Error::Setup(error)) => errors.push(error),
            other => {
                return Err(format!(
                    "not an error of the setup: {other:?} in {results:?}"
                ));
            }
        }
    }
    let first = errors[0];
    if errors.iter().any(|error| *error != first) {
        return Err(format!("the ranks differ: {errors:?}"));
    }
    if first.phase != point.phase {
        return Err(format!("not in phase {}: {first:?}", point.phase));
    }
    let peers = || (COUNTS[faulty].iter().enumerate()).filter(|(_, count)| **count > 0);
    let is_peer = |rank: usize| peers().any(|(peer, _)| peer == rank);
    let failed = matches!(first.reason, Reason::Failed(_));
    let text = first.to_string();
    let right = match point.named {
        Named::Failed => failed && first.rank == faulty,
        Named::Plan => matches!(first.reason, Reason::Plan(_)) && first.rank == faulty,
        Named::Edge => text.contains(&format!("rank {faulty}")),
        Named::Finder => failed && is_peer(first.rank) && text.contains(&format!("rank {faulty}")),
        Named::InText => {
            failed && (first.rank == faulty || text.contains(&format!("rank {faulty}")))
        }
        Named::Panicked => failed && first.rank == faulty && text.contains("abandoned"),
        Named::Silent => matches!(first.reason, Reason::Silent) && first.rank == faulty,
    };
    match right {
        true => Ok(()),
        false => Err(format!("expected {:?}: {first:?}", point.named)),
    }
}

/// A setup without faults, on the same bootstraps and with the same tag.
pub(super) fn works(
    ranks: &[Arc<dyn Bootstrap>],
    devices: &[Nic],
    make: impl Fn(&Arc<dyn Bootstrap>, &Nic) -> GpuNetIoService,
) -> Result<(), String> {
    let services: Vec<_> = (ranks.iter().zip(devices))
        .map(|(bootstrap, device)| make(bootstrap, device))
        .collect();
    let parts: Vec<Part<'_>> = (services.iter().zip(&COUNTS))
        .map(|(service, counts)| Part {
            service,
            counts: counts.into(),
            comes_after: Duration::ZERO,
        })
        .collect();
    for (rank, result) in set_up(&parts, TAG, PATIENCE).into_iter().enumerate() {
        result.map_err(|error| format!("the next setup fails on rank {rank}: {error}"))?;
    }
    for (rank, service) in services.iter().enumerate() {
        for (peer, count) in COUNTS[rank].iter().enumerate() {
            for index in 0..*count as u32 {
                let connection = service.connect(peer, index).map_err(|e| e.to_string())?;
                if let Some(error) = connection.status() {
                    return Err(format!("a new connection has failed: {error}"));
                }
            }
        }
    }
    drop(services);
    match devices.iter().all(is_empty) {
        true => Ok(()),
        false => Err("the next setup leaves something".into()),
    }
}
