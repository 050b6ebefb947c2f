// SPDX-License-Identifier: MIT
//! How a service is used, and misused.

use std::sync::Arc;
use std::time::Duration;

use mscclpp_bootstrap::{Bootstrap, Recording};

use super::world::{PATIENCE, Part, is_empty, nics, service, set_up, world};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, ErrorCode};
use crate::gpu_net_io_service::{GpuNetIoService, QueueCounts};
use crate::gpu_queue::Hca;

/// Sets services up with rows of counts.
fn up(services: &[GpuNetIoService], counts: &[Vec<i32>], tag: u32) -> Vec<Result<(), Error>> {
    let parts: Vec<Part<'_>> = (services.iter().zip(counts))
        .map(|(service, counts)| Part {
            service,
            counts: counts.into(),
            comes_after: Duration::ZERO,
        })
        .collect();
    set_up(&parts, tag, PATIENCE)
}

#[test]
fn gpunetio_calls_in_another_order_are_refused() {
    let (ranks, nics) = (world(2), nics(2));
    let services: Vec<_> = (ranks.iter().zip(&nics))
        .map(|(rank, nic)| service(rank, nic))
        .collect();
    let one = &services[0];
    let buffer = Buffer::new(Device::cpu(), 64).unwrap();
    let refused = [
        one.connect(1, 0).map(drop).unwrap_err(),
        one.register_memory(&buffer, 0..64).map(drop).unwrap_err(),
        (one.exchange_memory(1, &Default::default(), 0).map(drop)).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, Error::NotSetUp { .. }), "{error}");
        assert_eq!(error.code(), ErrorCode::InvalidUsage);
    }
    for result in up(&services, &[vec![0, 2], vec![2, 0]], 0) {
        result.unwrap();
    }
    let again = one.setup(&[0, 2], 0).unwrap_err();
    assert!(matches!(again, Error::SetUpAgain { .. }), "{again}");
    assert!(again.to_string().contains("succeeded"), "{again}");
    assert_eq!((one.queues(1), one.queues(0), one.queues(9)), (2, 0, 0));
    assert!(one.connect(1, 1).is_ok());
    for (peer, index, text) in [
        (1, 2, "no queue 2 to rank 1: the setup made 2"),
        (0, 0, "itself"),
        (2, 0, "does not exist"),
    ] {
        let error = one.connect(peer, index).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidUsage);
        assert!(error.to_string().contains(text), "{error}");
    }
    // A connection of another service.
    let foreign = services[1].connect(0, 0).unwrap();
    let error = one.build_semaphore(&foreign, 0).map(drop).unwrap_err();
    assert!(matches!(error, Error::UnknownConnection { .. }), "{error}");
}

#[test]
fn gpunetio_a_service_needs_the_name_of_an_hca_and_touches_no_rank() {
    let ranks = world(2);
    let recording: Vec<_> = (ranks.into_iter())
        .map(|rank| Arc::new(Recording::new(rank)))
        .collect();
    let new = |name: &str, device| {
        let bootstrap = Arc::clone(&recording[0]) as Arc<dyn Bootstrap>;
        GpuNetIoService::new(bootstrap, Hca::named(name), device).map(drop)
    };
    let error = new(" ", Device::cpu()).unwrap_err();
    assert!(matches!(error, Error::InvalidUsage { .. }), "{error}");
    let error = new("soft0", Device::gpu(1000)).unwrap_err();
    assert!(matches!(error, Error::DeviceUnavailable { .. }), "{error}");
    assert_eq!(recording[0].total(), Default::default());
    // A name that is not there is found by all ranks, in the setup.
    let services: Vec<_> = (recording.iter().zip(["soft0", "mlx5_0"]))
        .map(|(rank, name)| {
            let bootstrap = Arc::clone(rank) as Arc<dyn Bootstrap>;
            GpuNetIoService::new(bootstrap, Hca::named(name), Device::cpu()).unwrap()
        })
        .collect();
    assert_eq!(recording[1].total(), Default::default());
    let errors: Vec<_> = up(&services, &[vec![0, 1], vec![1, 0]], 3)
        .into_iter()
        .map(|result| result.unwrap_err().to_string())
        .collect();
    assert_eq!(errors[0], errors[1]);
    for part in ["capability", "rank 1", "mlx5_0", "soft0"] {
        assert!(errors[0].contains(part), "{}", errors[0]);
    }
}

#[test]
fn gpunetio_only_the_plan_is_made_and_only_its_peers_are_told() {
    let nics = nics(4);
    let recording: Vec<_> = (world(4).into_iter())
        .map(|rank| Arc::new(Recording::new(rank)))
        .collect();
    let services: Vec<_> = (recording.iter().zip(&nics))
        .map(|(rank, nic)| service(&(Arc::clone(rank) as Arc<dyn Bootstrap>), nic))
        .collect();
    // 0 and 1 have three queues, 1 and 3 have one, 2 is idle.
    let counts = [
        vec![0, 3, 0, 0],
        vec![3, 0, 0, 1],
        vec![0; 4],
        vec![0, 1, 0, 0],
    ];
    for result in up(&services, &counts, 5) {
        result.unwrap();
    }
    for (rank, row) in counts.iter().enumerate() {
        let queues = row.iter().sum::<i32>() as u64;
        let live = nics[rank].counters().live;
        assert_eq!(
            (live.queue_pairs, live.completion_queues, live.registrations),
            (queues, queues, queues)
        );
        // What is not the gate's goes along edges, one message each way.
        let told: Vec<_> = (recording[rank].by_stream().into_iter())
            .filter(|(_, tag, _)| tag.to_string().starts_with("layer 2"))
            .map(|(peer, _, traffic)| (peer, traffic.sent_messages, traffic.received_messages))
            .collect();
        let peers = row.iter().enumerate().filter(|(_, count)| **count > 0);
        let expected: Vec<_> = peers.map(|(peer, _)| (peer, 1, 1)).collect();
        assert_eq!(told, expected, "rank {rank}");
    }
    drop(services);
    assert!(nics.iter().all(is_empty));
}

#[test]
fn gpunetio_two_services_of_each_rank_come_up_at_once_with_two_tags() {
    let (ranks, nics) = (world(3), nics(3));
    let services: Vec<Vec<_>> = (0..2)
        .map(|_| {
            (ranks.iter().zip(&nics))
                .map(|(rank, nic)| service(rank, nic))
                .collect()
        })
        .collect();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (1..3)
            .map(|count| {
                let services = &services[count as usize - 1];
                scope.spawn(move || {
                    let parts: Vec<Part<'_>> = (services.iter())
                        .map(|service| Part {
                            service,
                            counts: QueueCounts::Uniform(count),
                            comes_after: Duration::ZERO,
                        })
                        .collect();
                    set_up(&parts, count as u32, PATIENCE)
                })
            })
            .collect();
        for result in runs.into_iter().flat_map(|run| run.join().unwrap()) {
            result.unwrap();
        }
    });
    for (count, services) in (1..).zip(&services) {
        for (rank, service) in services.iter().enumerate() {
            let queues: Vec<u32> = (0..3).map(|peer| service.queues(peer)).collect();
            let expected: Vec<u32> = (0..3).map(|p| if p == rank { 0 } else { count }).collect();
            assert_eq!(queues, expected);
        }
    }
}

#[test]
fn gpunetio_a_peer_may_have_64_queues_and_not_65() {
    let (ranks, nics) = (world(2), nics(2));
    let services = || -> Vec<_> {
        (ranks.iter().zip(&nics))
            .map(|(rank, nic)| service(rank, nic))
            .collect()
    };
    for result in up(&services(), &[vec![0, 65], vec![65, 0]], 0) {
        let error = result.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidUsage);
        for part in ["plan", "rank 0", "65 queues to rank 1"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
    let services = services();
    for result in up(&services, &[vec![0, 64], vec![64, 0]], 0) {
        result.unwrap();
    }
    // Each is a queue of its own, and leads to the peer's of the same index.
    let numbers = |service: &GpuNetIoService, peer| -> Vec<_> {
        (0..64)
            .map(|index| {
                let connection = service.connect(peer, index).unwrap();
                let end = connection.link().queue().unwrap();
                (end.queue().address().number, end.path().peer.number)
            })
            .collect()
    };
    let (mine, theirs) = (numbers(&services[0], 1), numbers(&services[1], 0));
    for (mine, theirs) in mine.iter().zip(&theirs) {
        assert_eq!((mine.0, mine.1), (theirs.1, theirs.0));
    }
    let different: std::collections::HashSet<_> = mine.into_iter().collect();
    assert_eq!(different.len(), 64);
    assert!(nics.iter().all(|nic| nic.counters().live.queue_pairs == 64));
    drop(services);
    assert!(nics.iter().all(is_empty));
}
