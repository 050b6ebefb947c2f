// SPDX-License-Identifier: MIT
//! Queues that two ranks make alone.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, Deadline, Recording, Tag};
use mscclpp_device::abi::{QueueForm, SignalMode};
use mscclpp_softnic::{
    Capabilities, ControlOperation, Device as Nic, DeviceConfig, FaultPlan, State,
};

use super::world::{PATIENCE, Part, is_empty, nic, nics, service, set_up, set_up_alike, world};
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::device::Device;
use crate::error::{Error, ErrorCode};
use crate::gpu_net_io_service::demand::LAYER;
use crate::gpu_net_io_service::{GpuNetIoConfig, GpuNetIoService, QueueCounts};
use crate::gpu_queue::{Hca, IbConfig};
use crate::sync::lock_plain as lock;
use crate::testing::eventually;

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

fn services(ranks: &[Arc<dyn Bootstrap>], nics: &[Nic]) -> Vec<GpuNetIoService> {
    (ranks.iter().zip(nics))
        .map(|(rank, nic)| service(rank, nic))
        .collect()
}

type Made = Result<Vec<Connection>, Error>;

/// What ranks 0 and 1 get that ask each other for so many queues.
fn ask(services: &[GpuNetIoService], counts: [u32; 2], within: [Duration; 2]) -> [Made; 2] {
    thread::scope(|scope| {
        [0, 1]
            .map(|rank| {
                scope.spawn(move || {
                    let deadline = Deadline::after(within[rank]);
                    services[rank].connect_on_demand(1 - rank, counts[rank], 4, deadline)
                })
            })
            .map(|rank| rank.join().unwrap())
    })
}

#[test]
fn gpunetio_two_ranks_make_queues_on_demand_and_no_other_takes_part() {
    let nics = nics(3);
    let recording: Vec<_> = (world(3).into_iter())
        .map(|rank| Arc::new(Recording::new(rank)))
        .collect();
    let ranks: Vec<_> = (recording.iter())
        .map(|rank| Arc::clone(rank) as Arc<dyn Bootstrap>)
        .collect();
    let services = services(&ranks, &nics);
    let made = ask(&services, [3, 3], [PATIENCE; 2]).map(|made| made.unwrap());
    for (rank, connections) in made.iter().enumerate() {
        assert_eq!(connections.len(), 3);
        for (mine, theirs) in connections.iter().zip(&made[1 - rank]) {
            let (mine, theirs) = (mine.link().queue().unwrap(), theirs.link().queue().unwrap());
            assert_eq!(mine.path().peer, theirs.queue().address());
        }
        assert!(!recording[rank].by_peer().contains_key(&2));
    }
    assert_eq!(recording[2].total(), Default::default());
    assert_eq!(nics[2].counters().live.total(), 0);
    // What stands on a connection can be made, also without a setup.
    let buffer = Buffer::new(Device::cpu(), 64).unwrap();
    let halves: Vec<_> = (services[..2].iter().zip(&made).enumerate())
        .map(|(rank, (service, connections))| {
            let memory = service.register_memory(&buffer, 0..64).unwrap();
            let remote = service.exchange_memory(1 - rank, &memory, 0).unwrap();
            let semaphore = service.build_semaphore(&connections[0], 0).unwrap();
            (service, memory, remote, semaphore)
        })
        .collect();
    for (service, memory, remote, semaphore) in halves {
        let (remote, semaphore) = (remote.get().unwrap(), semaphore.get().unwrap());
        service.port_channel(semaphore, &remote, &memory).unwrap();
    }
    // A setup is still possible.
    set_up_alike(&services, 1);
    assert!(made.iter().flatten().all(|made| made.status().is_none()));
    drop((made, services));
    assert!(nics.iter().all(is_empty));
}

#[test]
fn gpunetio_queues_on_demand_are_refused_or_given_up_and_the_next_call_works() {
    let (ranks, nics) = (world(2), nics(2));
    let services = services(&ranks, &nics);
    let works = || {
        for made in ask(&services, [2, 2], [PATIENCE; 2]) {
            assert_eq!(made.unwrap().len(), 2);
        }
    };
    // Nobody answers; then the other asks alone, and sees what the first left behind.
    for rank in [0, 1] {
        let short = Deadline::after(Duration::from_millis(100));
        let error = services[rank].connect_on_demand(1 - rank, 2, 4, short);
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("rank {}", 1 - rank)),
            "{error}"
        );
    }
    works();
    // It had asked for another number.
    let short = Deadline::after(Duration::from_millis(100));
    let error = services[1].connect_on_demand(0, 3, 4, short);
    assert!(matches!(error, Err(Error::Timeout { .. })), "{error:?}");
    works();
    // They do not agree.
    for (rank, made) in ask(&services, [1, 3], [PATIENCE; 2])
        .into_iter()
        .enumerate()
    {
        let error = made.unwrap_err();
        assert!(matches!(error, Error::PeerGaveUp { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("rank {}", 1 - rank)), "{text}");
        assert!(
            text.contains("asks for 1") || text.contains("asks for 3"),
            "{text}"
        );
    }
    works();
    // One cannot make its queues.
    nics[1].set_faults(FaultPlan::refuse(ControlOperation::CreateQueuePair));
    let [at_0, at_1] = ask(&services, [2, 2], [PATIENCE; 2]).map(|made| made.unwrap_err());
    assert!(matches!(at_0, Error::PeerGaveUp { rank: 1, .. }), "{at_0}");
    assert!(matches!(at_1, Error::Hca { .. }), "{at_1}");
    works();
    // One does not want to.
    let refusing = &services[1];
    let [asked, refused] = thread::scope(|scope| {
        let asks = scope.spawn(|| services[0].connect_on_demand(1, 2, 4, soon()).map(drop));
        // Before: the call is there when it is refused, or comes while it is waited for.
        let refuses = scope.spawn(move || refusing.refuse_on_demand(0, 4, "too busy", soon()));
        [asks.join().unwrap(), refuses.join().unwrap()]
    });
    refused.unwrap();
    let error = asked.unwrap_err();
    assert!(
        matches!(error, Error::PeerGaveUp { rank: 1, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("too busy"), "{error}");
    works();
    for (peer, count) in [(0, 1), (2, 1), (1, 0), (1, 65)] {
        let error = services[0]
            .connect_on_demand(peer, count, 4, soon())
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidUsage, "{error}");
    }
    drop(services);
    assert!(nics.iter().all(is_empty));
}

#[test]
fn gpunetio_a_message_on_demand_that_nobody_can_read_is_named_by_rank_and_tag() {
    let (ranks, nics) = (world(2), nics(1));
    let service = service(&ranks[0], &nics[0]);
    let tag = Tag::layered(LAYER, 4);
    ranks[1].send(0, tag, &[0xc1; 9], soon()).unwrap();
    let error = service.connect_on_demand(1, 1, 4, soon()).unwrap_err();
    assert!(matches!(error, Error::Record { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 1") && text.contains("tag 4"), "{text}");
}

/// Atomic signals, and an HCA that answers none.
#[test]
fn gpunetio_queues_on_demand_that_do_not_fit_name_each_other_and_the_tag() {
    let ranks = world(2);
    let kinds = [(SignalMode::Atomic, true), (SignalMode::InlineWrite, false)];
    let services: Vec<_> = (ranks.iter().zip(kinds))
        .map(|(rank, (signal_mode, atomics))| {
            let capabilities = Capabilities {
                atomics,
                ..Capabilities::default()
            };
            let nic = nic(DeviceConfig {
                capabilities,
                ..DeviceConfig::default()
            });
            let queue = IbConfig {
                queue_form: QueueForm::Exclusive,
                signal_mode,
                ..IbConfig::default()
            };
            let config = GpuNetIoConfig {
                queue,
                gid_index: 0,
            };
            GpuNetIoService::with_config(Arc::clone(rank), nic.into(), Device::cpu(), config)
                .unwrap()
        })
        .collect();
    let made = ask(&services, [1, 1], [PATIENCE; 2]);
    for (rank, made) in made.into_iter().enumerate() {
        let error = made.unwrap_err();
        assert!(
            matches!(error, Error::IncompatibleEndpoints { .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(
            text.contains(&format!("rank {}, tag 4", 1 - rank)),
            "{text}"
        );
    }
}

#[test]
fn gpunetio_calls_on_demand_with_the_same_peer_and_tag_do_not_mix() {
    let (ranks, nics) = (world(2), nics(2));
    let services = services(&ranks, &nics);
    let [one, other] = &services[..] else {
        panic!("two services");
    };
    let alone = Deadline::after(Duration::from_secs(5));
    thread::scope(|scope| {
        let first = scope.spawn(|| one.connect_on_demand(1, 1, 4, alone).unwrap_err());
        eventually("the first call is under way", || {
            lock(&one.pairwise.calls).contains(&(1, 4))
        });
        for second in [
            one.connect_on_demand(1, 1, 4, soon()).map(drop),
            one.refuse_on_demand(1, 4, "no", soon()),
        ] {
            let error = second.unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidUsage, "{error}");
            assert!(error.to_string().contains("tag 4"), "{error}");
        }
        let error = first.join().unwrap();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    });
    // Calls with other tags go on at the same time, each with its own.
    thread::scope(|scope| {
        let calls: Vec<_> = (4..8)
            .flat_map(|tag| [(tag, one, 1), (tag, other, 0)])
            .map(|(tag, service, peer)| {
                let made = scope.spawn(move || service.connect_on_demand(peer, tag, tag, soon()));
                (tag, made)
            })
            .collect();
        // Kept until all are there.
        let made: Vec<_> = (calls.into_iter())
            .map(|(tag, made)| (tag, made.join().unwrap().unwrap()))
            .collect();
        assert!(made.iter().all(|(tag, made)| made.len() == *tag as usize));
    });
}

#[test]
fn gpunetio_queues_that_cannot_be_made_on_demand_are_the_error_also_when_nobody_asks() {
    let (ranks, nics) = (world(2), nics(2));
    let services = services(&ranks, &nics);
    nics[0].set_faults(FaultPlan::refuse(ControlOperation::CreateQueuePair));
    // The offer has to be sent in that time, too.
    let brief = Deadline::after(Duration::from_secs(1));
    let error = services[0].connect_on_demand(1, 1, 0, brief).unwrap_err();
    assert!(matches!(error, Error::Hca { .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn gpunetio_a_step_that_one_cannot_do_on_demand_fails_on_both_and_leaves_nothing() {
    let (ranks, nics) = (world(2), nics(2));
    let services = services(&ranks, &nics);
    let before: Vec<_> = ask(&services, [1, 1], [PATIENCE; 2])
        .map(|made| made.unwrap())
        .into();
    let live = || [0, 1].map(|rank: usize| nics[rank].counters().live);
    let kept = live();
    for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
        for rank in [0, 1] {
            nics[rank].set_faults(FaultPlan::refuse(ControlOperation::Transition(state)));
            let errors = ask(&services, [2, 2], [PATIENCE; 2]).map(|made| made.unwrap_err());
            assert!(
                matches!(errors[rank], Error::Hca { .. }),
                "{}",
                errors[rank]
            );
            let told = &errors[1 - rank];
            assert!(
                matches!(told, Error::PeerFailed { rank: Some(r), .. } if *r == rank),
                "{told}"
            );
            let until = Instant::now() + PATIENCE;
            while live() != kept {
                assert!(Instant::now() < until, "{:?} instead of {kept:?}", live());
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
    assert!(before.iter().flatten().all(|made| made.status().is_none()));
    for made in ask(&services, [2, 2], [PATIENCE; 2]) {
        made.unwrap();
    }
}

#[test]
fn gpunetio_a_rank_that_dies_ends_calls_on_demand_with_it() {
    let nics = nics(2);
    let (ranks, kill) = crate::testing::Local::world(2);
    let services = services(&ranks, &nics);
    thread::scope(|scope| {
        let asks = scope.spawn(|| services[0].connect_on_demand(1, 2, 0, soon()).map(drop));
        let refuses = scope.spawn(|| services[0].refuse_on_demand(1, 1, "no", soon()));
        thread::sleep(Duration::from_millis(100));
        let killed = Instant::now();
        kill(1);
        for result in [asks.join().unwrap(), refuses.join().unwrap()] {
            let error = result.unwrap_err();
            assert!(
                matches!(error, Error::PeerDown { rank: Some(1), .. }),
                "{error}"
            );
        }
        assert!(killed.elapsed() < Duration::from_secs(5));
    });
    drop(services);
    assert!(nics.iter().all(is_empty));
}

#[test]
fn gpunetio_a_failed_setup_leaves_queues_made_on_demand_as_they_are() {
    let ranks = world(2);
    // Named HCAs: one that is opened again is another one.
    let services: Vec<_> = (ranks.iter())
        .map(|rank| GpuNetIoService::new(Arc::clone(rank), Hca::named("soft0"), Device::cpu()))
        .map(|service| service.unwrap())
        .collect();
    let made = ask(&services, [1, 1], [PATIENCE; 2]).map(|made| made.unwrap());
    let buffer = Buffer::new(Device::cpu(), 64).unwrap();
    let memories: Vec<_> = (services.iter())
        .map(|service| service.register_memory(&buffer, 0..64).unwrap())
        .collect();
    let parts: Vec<Part<'_>> = (services.iter().zip([1, 2]))
        .map(|(service, count)| Part {
            service,
            counts: QueueCounts::Uniform(count),
            comes_after: Duration::ZERO,
        })
        .collect();
    for result in set_up(&parts, 0, PATIENCE) {
        assert!(matches!(result, Err(Error::Setup(_))), "{result:?}");
    }
    assert!(made.iter().flatten().all(|made| made.status().is_none()));
    // Of the same HCA as the memory.
    let again = ask(&services, [1, 1], [PATIENCE; 2]).map(|made| made.unwrap());
    for (old, new) in made.iter().flatten().zip(again.iter().flatten()) {
        let hca = |made: &Connection| made.link().queue().unwrap().queue().address().hca;
        assert_eq!(hca(old), hca(new));
    }
    let halves: Vec<_> = (services.iter().zip(&memories).zip(&again).enumerate())
        .map(|(rank, ((service, memory), made))| {
            let remote = service.exchange_memory(1 - rank, memory, 0).unwrap();
            let semaphore = service.build_semaphore(&made[0], 0).unwrap();
            (service, memory, remote, semaphore)
        })
        .collect();
    for (service, memory, remote, semaphore) in halves {
        let (remote, semaphore) = (remote.get().unwrap(), semaphore.get().unwrap());
        service.port_channel(semaphore, &remote, memory).unwrap();
    }
}

#[test]
fn gpunetio_queues_on_demand_do_not_take_the_place_of_those_of_a_setup() {
    let (ranks, nics) = (world(2), nics(2));
    let services = services(&ranks, &nics);
    set_up_alike(&services, 1);
    let old = [0, 1].map(|rank: usize| services[rank].connect(1 - rank, 0).unwrap());
    // One makes the queues of the setup again, the other wants some besides.
    let [rebuilt, made] = thread::scope(|scope| {
        let rebuilds = scope.spawn(|| services[0].rebuild(1, 4, soon()));
        let asks = scope.spawn(|| services[1].connect_on_demand(0, 1, 4, soon()).map(drop));
        [rebuilds.join().unwrap(), asks.join().unwrap()]
    });
    for error in [rebuilt.unwrap_err(), made.unwrap_err()] {
        assert!(matches!(error, Error::PeerGaveUp { .. }), "{error}");
        assert!(error.to_string().contains("rebuilt"), "{error}");
    }
    assert!(old.iter().all(|old| old.status().is_none()));
}

#[test]
fn gpunetio_one_edge_is_rebuilt_while_the_others_go_on() {
    let (ranks, nics) = (world(3), nics(3));
    let services = services(&ranks, &nics);
    set_up_alike(&services, 2);
    let to = |rank: usize, peer, index| services[rank].connect(peer, index).unwrap();
    let old: Vec<_> = [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)]
        .map(|(rank, peer, index)| to(rank, peer, index))
        .into();
    old[0].fail(Error::PeerDown {
        rank: Some(1),
        cause: "a test".into(),
    });
    thread::scope(|scope| {
        for rank in [0, 1] {
            let service = &services[rank];
            scope.spawn(move || service.rebuild(1 - rank, 1, soon()).unwrap());
        }
    });
    for old in &old {
        assert!(old.status().is_some(), "an old handle fails at once");
    }
    for (rank, peer) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        for index in 0..2 {
            assert!(to(rank, peer, index).status().is_none());
        }
    }
    let error = services[0].rebuild(0, 1, soon()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidUsage);
    // The other does not come: the queues stay as they are.
    let brief = Deadline::after(Duration::from_millis(100));
    let error = services[0].rebuild(2, 1, brief).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(to(0, 2, 0).status().is_none() && to(2, 0, 1).status().is_none());
    drop((old, services));
    assert!(nics.iter().all(is_empty));
}
