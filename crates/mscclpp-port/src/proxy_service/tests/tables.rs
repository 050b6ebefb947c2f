// SPDX-License-Identifier: MIT
//! Tables of memories and semaphores, and channels over them.

use super::*;

#[test]
fn tables_are_limited_by_what_triggers_can_name() {
    let bench = Bench::new(1);
    let shared = device_semaphore(&bench.connections[0]);
    for id in 1..MAX_SEMAPHORES {
        let added = bench.service.add_host2device_semaphore(Arc::clone(&shared));
        assert_eq!(added.unwrap(), SemaphoreId(id));
    }
    let error = bench.service.add_host2device_semaphore(shared).unwrap_err();
    assert!(
        matches!(error, Error::TooMany { limit: 1024, .. }),
        "{error}"
    );

    let free = MAX_MEMORIES - 1;
    assert_eq!(bench.service.next_memory_id(free).unwrap(), MemoryId(1));
    assert!(bench.service.next_memory_id(free + 1).is_err());
    let error = bench.service.next_memory_id(0).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidUsage);
    for id in 1..MAX_MEMORIES {
        let added = bench.service.add_memory(RegisteredMemory::default());
        assert_eq!(added.unwrap(), MemoryId(id));
    }
    let error = bench.service.add_memory(memory(8)).unwrap_err();
    assert!(
        matches!(error, Error::TooMany { limit: 512, .. }),
        "{error}"
    );
}

#[test]
fn ids_may_be_used_as_soon_as_they_are_returned() {
    let bench = Bench::started(0);
    let connections: Vec<_> = (0..100).map(Fake::connect).collect();
    thread::scope(|scope| {
        for half in connections.chunks(50) {
            let service = &bench.service;
            scope.spawn(move || {
                for (connection, _) in half {
                    let semaphore = service.add_semaphore(semaphore(connection)).unwrap();
                    let memory = service.add_memory(memory(16)).unwrap().into();
                    push(
                        service,
                        Trigger::Put {
                            transfer: transfer(memory, memory, 0, 8),
                            semaphore: semaphore.into(),
                        },
                    );
                }
            });
        }
    });
    bench.service.stop_proxy().unwrap();
    for (connection, fake) in &connections {
        assert!(connection.status().is_none(), "{:?}", connection.status());
        assert_eq!(fake.ops(), [write(0, 8)]);
    }
    assert!(bench.service.error().is_none());
}

/// A kernel would only see that the connection has failed.
#[test]
fn a_destination_that_is_not_open_over_the_transport_is_refused_when_bound() {
    let bench = Bench::new(1);
    let (connection, _fake) = Fake::connect_over(TransportKind::CudaIpc, 1);
    let id = bench.service.add_semaphore(semaphore(&connection)).unwrap();
    // Open over Ethernet.
    let memory = MemoryId(0);
    let error = bench.service.port_channel(id, memory, memory).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidUsage);
    let text = error.to_string();
    for part in [
        "memory 0",
        "over ETH",
        "over IPC",
        "MemoryOptions::transports",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(connection.status().is_none());
}

#[test]
fn channels_check_their_ids_when_they_are_made() {
    let bench = Bench::new(2);
    let service = &bench.service;
    let (zero, one, two) = (SemaphoreId(0), SemaphoreId(1), SemaphoreId(2));
    let memory = MemoryId(0);
    assert!(matches!(
        service.base_port_channel(two),
        Err(Error::UnknownSemaphore { id: 2, known: 2 })
    ));
    for (dst, src) in [(MemoryId(1), memory), (memory, MemoryId(512))] {
        let error = service.port_channel(zero, dst, src).unwrap_err();
        assert!(
            matches!(error, Error::UnknownMemory { known: 1, .. }),
            "{error}"
        );
    }
    let channel = service.port_channel(zero, memory, memory).unwrap();
    let handle = channel.device_handle();
    assert_eq!(handle.check(), Ok(()));
    assert_eq!(
        (handle.dst, handle.src, handle.base.semaphore_id),
        (0, 0, 0)
    );

    // Made directly: with a semaphore of its own on the same connection, and with a wrong one.
    let own = device_semaphore(&bench.connections[0]);
    let direct = PortChannel::new(service, zero, Arc::clone(&own), memory, memory).unwrap();
    assert_eq!(
        direct.device_handle().base.flush_done_pos,
        handle.base.flush_done_pos
    );
    assert_ne!(
        direct.device_handle().base.semaphore.inbound_token,
        handle.base.semaphore.inbound_token
    );
    let error = PortChannel::new(service, one, own, memory, memory).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidUsage, "{error}");
}

#[test]
fn channels_outlive_their_service_and_see_it_aborted() {
    for started in [false, true] {
        let bench = if started {
            Bench::started(1)
        } else {
            Bench::new(1)
        };
        let channel = bench
            .service
            .port_channel(SemaphoreId(0), MemoryId(0), MemoryId(0))
            .unwrap();
        let shared = Arc::clone(&bench.service.shared);
        drop(bench);
        assert_eq!(shared.proxy.status(), Status::Aborted);
        drop(shared);
        assert_eq!(channel.device_handle().check(), Ok(()));
    }
}
