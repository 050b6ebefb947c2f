// SPDX-License-Identifier: MIT
//! How a service is used, and misused.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::{Bootstrap, Deadline, Recording, Traffic};

use super::faulty::faulty_service;
use super::mail::Mail;
use super::points::Rig;
use super::world::{PATIENCE, Part, is_empty, nics, service, set_up, world};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, ErrorCode};
use crate::gpu_net_io_service::{GpuNetIoService, QueueCounts};
use crate::gpu_queue::Hca;
use crate::testing::{eventually, run_alone};

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
fn gpunetio_a_setup_without_time_ends_at_once() {
    for time in [Duration::ZERO, Duration::from_micros(10)] {
        let (ranks, nics) = (world(2), nics(2));
        let (told, ended) = mpsc::channel();
        for (rank, nic) in ranks.iter().zip(&nics) {
            let (service, told) = (service(rank, nic), told.clone());
            thread::spawn(move || {
                let ended = service.setup_by(QueueCounts::Uniform(1), 0, Deadline::after(time));
                told.send(ended)
            });
        }
        for _ in 0..2 {
            let ended = ended.recv_timeout(PATIENCE).expect("it goes on for ever");
            assert!(matches!(ended, Err(Error::Setup(_))), "{ended:?}");
        }
    }
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
    let mut refused = Vec::from(refused);
    refused.push(one.rebuild(1, 0, Deadline::after(PATIENCE)).unwrap_err());
    // Of another service, which has queues.
    let others = (world(2), crate::gpu_net_io_service::tests::world::nics(2));
    let others: Vec<_> = (others.0.iter().zip(&others.1))
        .map(|(rank, nic)| service(rank, nic))
        .collect();
    for result in up(&others, &[vec![0, 1], vec![1, 0]], 0) {
        result.unwrap();
    }
    let connections = [others[0].connect(1, 0), others[1].connect(0, 0)].map(|made| made.unwrap());
    let halves = [0, 1].map(|rank: usize| {
        let made = others[rank].build_semaphore(&connections[rank], 0);
        made.unwrap()
    });
    refused.push(
        one.build_semaphore(&connections[0], 0)
            .map(drop)
            .unwrap_err(),
    );
    let semaphore = halves[0].get().unwrap();
    let nothing = Default::default();
    refused.push(
        one.port_channel(semaphore, &nothing, &nothing)
            .map(drop)
            .unwrap_err(),
    );
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
fn gpunetio_the_same_number_to_all_is_checked_as_any_other() {
    let (ranks, nics) = (world(2), nics(2));
    for (count, works) in [
        (0, true),
        (1, true),
        (-1, false),
        (65, false),
        (i32::MIN, false),
    ] {
        let services: Vec<_> = (ranks.iter().zip(&nics))
            .map(|(rank, nic)| service(rank, nic))
            .collect();
        let parts: Vec<Part<'_>> = (services.iter())
            .map(|service| Part {
                service,
                counts: QueueCounts::Uniform(count),
                comes_after: Duration::ZERO,
            })
            .collect();
        for result in set_up(&parts, 0, PATIENCE) {
            match result {
                Ok(()) => assert!(works, "{count} is accepted"),
                Err(error) => {
                    assert!(!works, "{count}: {error}");
                    assert_eq!(error.code(), ErrorCode::InvalidUsage);
                    assert!(error.to_string().contains(&count.to_string()), "{error}");
                }
            }
        }
    }
    assert!(nics.iter().all(is_empty));
}

#[test]
fn gpunetio_a_rank_alone_sets_nothing_up_and_gets_no_queue_to_itself() {
    let (ranks, nics) = (world(1), nics(1));
    let alone = service(&ranks[0], &nics[0]);
    alone.setup(&[0], 0).unwrap();
    assert_eq!(nics[0].counters().live.queue_pairs, 0);
    let error = alone.connect(0, 0).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidUsage, "{error}");
    drop(alone);
    let error = service(&ranks[0], &nics[0]).setup(&[1], 0).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidUsage, "{error}");
    assert!(error.to_string().contains("itself"), "{error}");
    assert!(nics.iter().all(is_empty));
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
fn gpunetio_ranges_outside_of_a_buffer_are_not_registered() {
    let (ranks, nics) = (world(2), nics(2));
    let services: Vec<_> = (ranks.iter().zip(&nics))
        .map(|(rank, nic)| service(rank, nic))
        .collect();
    for result in up(&services, &[vec![0, 1], vec![1, 0]], 0) {
        result.unwrap();
    }
    let buffer = Buffer::new(Device::cpu(), 64).unwrap();
    for range in [0..65, 64..64, 10..5, 65..66, u64::MAX..0, 1..u64::MAX] {
        let made = services[0].register_memory(&buffer, range.clone());
        assert!(made.is_err(), "{range:?} is registered");
    }
    services[0].register_memory(&buffer, 63..64).unwrap();
}

#[test]
fn gpunetio_while_a_setup_is_under_way_it_is_not_done_and_its_tag_is_taken() {
    let (ranks, nics) = (world(2), nics(1));
    let recording = Arc::new(Recording::new(Arc::clone(&ranks[1])));
    let rank = Arc::clone(&recording) as Arc<dyn Bootstrap>;
    let (one, other) = (service(&rank, &nics[0]), service(&rank, &nics[0]));
    thread::scope(|scope| {
        // Rank 0, to which rank 1 says that it is there, does not come.
        let first = scope.spawn(|| {
            let alone = Deadline::after(Duration::from_secs(5));
            one.setup_by(&[1, 0], 6, alone).unwrap_err()
        });
        eventually("the setup is under way", || {
            recording.total() != Traffic::default()
        });
        let error = one.connect(0, 0).unwrap_err();
        assert!(error.to_string().contains("under way"), "{error}");
        let error = one.setup(&[1, 0], 7).unwrap_err();
        assert!(matches!(error, Error::SetUpAgain { found } if found.contains("under way")));
        let brief = Deadline::after(Duration::from_millis(100));
        let error = other.setup_by(&[1, 0], 6, brief).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        let Error::Setup(error) = first.join().unwrap() else {
            panic!("an error of the setup");
        };
        assert_eq!(error.lost_rank(), Some(0));
    });
    assert!(nics.iter().all(is_empty));
}

#[test]
fn gpunetio_records_that_come_twice_do_no_harm_to_a_setup_or_the_next() {
    let (ranks, nics) = (world(3), nics(3));
    for _ in 0..3 {
        let services: Vec<_> = (ranks.iter().zip(&nics))
            .map(|(rank, nic)| {
                let rig = Rig {
                    mail: Some(Mail::Twice),
                    ..Rig::default()
                };
                faulty_service(rank, nic, &rig)
            })
            .collect();
        for result in up(&services, &[vec![0, 2, 1], vec![2, 0, 0], vec![1, 0, 0]], 4) {
            result.unwrap();
        }
    }
    assert!(nics.iter().all(is_empty));
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
        // Nor do NICs reach others.
        assert_eq!(nics[rank].links().len(), expected.len());
    }
    drop(services);
    assert!(nics.iter().all(is_empty));
}

#[test]
#[ignore = "run by the next test, with MSCCLPP_IB_GID_INDEX set"]
fn child_with_another_gid() {
    let ranks = world(1);
    let hca = Hca::named("soft0");
    let service = GpuNetIoService::new(Arc::clone(&ranks[0]), hca, Device::cpu()).unwrap();
    let error = service.setup(&[0], 0).unwrap_err().to_string();
    for part in ["phase port", "index 5", "MSCCLPP_IB_GID_INDEX"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn gpunetio_the_gid_that_the_environment_names_is_used() {
    let name = "gpu_net_io_service::tests::usage::child_with_another_gid";
    run_alone(name, &[("MSCCLPP_IB_GID_INDEX", b"5")]);
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
    thread::scope(|scope| {
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
