// SPDX-License-Identifier: MIT
//! Triggers that fail, and what becomes of their connections.

use super::*;

fn error_of(bench: &Bench, trigger: ProxyTrigger) -> Error {
    push_raw(&bench.service, trigger);
    eventually("an error", || bench.connections[0].status().is_some());
    push(&bench.service, Trigger::Signal { semaphore: 0 });
    let position = push(&bench.service, Trigger::Flush { semaphore: 1 });
    eventually("the other connection", || bench.flushed(1) == position + 1);
    assert!(bench.connections[1].status().is_none());
    assert_eq!(bench.fakes[0].ops(), [], "executed on a failed connection");
    bench.connections[0].status().unwrap()
}

#[test]
fn a_put_with_an_unknown_memory_ends_its_connection_only() {
    let bench = Bench::started(2);
    let trigger = Trigger::PutWithSignal {
        transfer: transfer(0, 77, 4, 8),
        semaphore: 0,
    };
    let error = error_of(&bench, trigger.encode().unwrap());
    let text = error.to_string();
    assert!(text.contains("to rank 0"), "{text}");
    assert!(text.contains("memory id 77 is unknown"), "{text}");
    assert!(
        text.contains("8 bytes from memory 77 at offset 5"),
        "{text}"
    );
    assert_eq!(error.status(), Status::QueueError);
}

#[test]
fn a_put_beyond_a_memory_names_memory_offset_and_size() {
    let bench = Bench::started(2);
    let trigger = Trigger::Put {
        transfer: transfer(0, 0, u64::from(u32::MAX) - 1, u64::from(u32::MAX)),
        semaphore: 0,
    };
    let text = error_of(&bench, trigger.encode().unwrap()).to_string();
    for part in ["out of bounds", "memory 0", "4294967294", "4294967295"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_put_with_an_empty_placeholder_ends_its_connection() {
    let bench = Bench::started(2);
    let id = bench
        .service
        .add_memory(RegisteredMemory::default())
        .unwrap();
    let channel = bench.service.port_channel(SemaphoreId(0), id, MemoryId(0));
    assert!(channel.is_ok(), "a placeholder may be bound");
    let trigger = Trigger::Put {
        transfer: transfer(id.into(), 0, 0, 8),
        semaphore: 0,
    };
    let error = error_of(&bench, trigger.encode().unwrap());
    assert!(error.to_string().contains("empty placeholder"), "{error}");
    assert_eq!(error.code(), ErrorCode::InvalidUsage);
}

#[test]
fn opcodes_that_do_not_exist_end_the_connection() {
    for opcode in [0_u64, 5] {
        let bench = Bench::started(2);
        let trigger = ProxyTrigger {
            fst: 0,
            snd: opcode << 50,
        };
        let error = error_of(&bench, trigger);
        assert!(matches!(error, Error::BadTrigger { .. }), "{error}");
        assert!(error.to_string().contains("to rank 0"), "{error}");
        assert!(
            error.to_string().contains(&format!("opcode {opcode}")),
            "{error}"
        );
    }
}

#[test]
fn a_trigger_of_no_semaphore_is_counted_and_dropped() {
    let bench = Bench::started(1);
    assert!(bench.service.error().is_none());
    for _ in 0..3 {
        push(&bench.service, Trigger::Signal { semaphore: 1023 });
    }
    let position = push(&bench.service, Trigger::Flush { semaphore: 0 });
    eventually("the next trigger", || bench.flushed(0) == position + 1);
    assert_eq!(bench.service.dropped_triggers(), 3);
    assert!(matches!(
        bench.service.error(),
        Some(Error::UnknownSemaphore { id: 1023, known: 1 })
    ));
}

#[test]
fn a_failed_write_is_sticky_and_abandons_flushes() {
    let bench = Bench::started(2);
    bench.fakes[0].finish_flushes(0);
    push(&bench.service, Trigger::Flush { semaphore: 0 });
    bench.fakes[0].fail_write(Error::PeerDown {
        rank: Some(0),
        cause: "test".into(),
    });
    push(
        &bench.service,
        Trigger::Put {
            transfer: transfer(0, 0, 0, 8),
            semaphore: 0,
        },
    );
    eventually("the error", || bench.connections[0].status().is_some());
    let error = bench.connections[0].status().unwrap();
    assert_eq!(error.status(), Status::PeerDown);
    bench.fakes[0].finish_flushes(9);
    // The pending flush does not keep the proxy from stopping, and is not reported as done.
    bench.service.stop_proxy_by(soon()).unwrap();
    assert_eq!(bench.flushed(0), 0);
}

#[test]
fn failing_progress_ends_the_connection() {
    let bench = Bench::started(1);
    bench.fakes[0].fail_progress(Error::Stalled {
        rank: Some(0),
        after: PATIENCE,
    });
    push(&bench.service, Trigger::Flush { semaphore: 0 });
    eventually("the error", || bench.connections[0].status().is_some());
    assert!(matches!(
        bench.connections[0].status(),
        Some(Error::Stalled { .. })
    ));
    bench.service.stop_proxy_by(soon()).unwrap();
}

/// Nothing but the held trigger is known of the connection, as when the host has filled it.
#[test]
fn a_first_trigger_that_is_held_goes_on_when_progress_fails() {
    let bench = Bench::started(2);
    bench.fakes[0].fail_progress(Error::Stalled {
        rank: Some(0),
        after: PATIENCE,
    });
    bench.fakes[0].set_full(true);
    push(&bench.service, Trigger::Signal { semaphore: 0 });
    let behind = push(&bench.service, Trigger::Flush { semaphore: 1 });
    eventually("the other connection", || bench.flushed(1) == behind + 1);
    assert!(matches!(
        bench.connections[0].status(),
        Some(Error::Stalled { .. })
    ));
    assert_eq!(bench.fakes[0].ops(), []);
}
