// SPDX-License-Identifier: MIT
//! How long a result is waited for, and what that is to whoever else waits.

use super::*;

#[test]
fn a_timeout_names_the_rank_and_loses_nothing() {
    let [a, b] = pair();
    let pending = b.recv_memory(0, 9).unwrap();
    let error = pending
        .get_by(Deadline::after(Duration::from_millis(20)))
        .unwrap_err();
    assert!(
        matches!(error, Error::Timeout { rank: Some(0), .. }),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "timed out after 20ms in waiting for a registered memory from rank 0 (tag 9): did rank 0 \
         make the matching call on this tag?"
    );
    a.send_memory(&memory_of(&a, 8), 1, 9).unwrap();
    assert_eq!(pending.get_by(soon()).unwrap().size(), 8);
}

/// Who asks may be in a hurry; the connection is not.
#[test]
fn a_connection_has_time_to_come_up_however_short_the_wait_for_the_peers_half() {
    let [a, b] = pair();
    let (one, two) = (
        a.connect(ethernet(), 1, 0).unwrap(),
        b.connect(ethernet(), 0, 0).unwrap(),
    );
    let short = || Deadline::after(Duration::from_millis(100));
    // Both halves have been sent.
    let at_a = one.get_by(short()).unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(at_a.status().is_none());
    let at_b = two.get_by(short()).unwrap();
    // Kept until the other has come up, too.
    for connection in [&at_a, &at_b] {
        connection.wait_connected(soon()).unwrap();
    }
}

#[test]
fn nobody_waits_for_a_semaphore_of_a_connection_that_is_down() {
    let [a, b] = pair();
    let [at_a, at_b] = connect(&[a.clone(), b.clone()], 0);
    for connection in [&at_a, &at_b] {
        connection.wait_connected(soon()).unwrap();
    }
    let asked = a.build_semaphore(&at_a, 1, 0).unwrap();
    let asked_again = a.build_semaphore(&at_a, 1, 0).unwrap();
    let begin = Instant::now();
    thread::scope(|scope| {
        // The first waits for a record, the other for the first.
        let waits =
            [&asked, &asked_again].map(|asked| scope.spawn(|| asked.get_by(soon()).unwrap_err()));
        thread::sleep(Duration::from_millis(200));
        drop(at_b);
        for wait in waits {
            let error = wait.join().unwrap();
            assert!(
                matches!(error, Error::PeerDown { rank: Some(1), .. }),
                "{error}"
            );
        }
    });
    assert!(begin.elapsed() < PATIENCE);
    // The peer hears of one that is not made.
    let [fresh, from_b] = connect(&[a.clone(), b.clone()], 1);
    let error = a.build_semaphore(&at_a, 1, 2).unwrap_err();
    assert!(
        matches!(error, Error::PeerDown { rank: Some(1), .. }),
        "{error}"
    );
    let heard = b.build_semaphore(&from_b, 0, 2).unwrap();
    let error = heard.get_by(soon()).unwrap_err();
    assert!(
        matches!(error, Error::PeerGaveUp { rank: 0, .. }),
        "{error}"
    );
    drop(fresh);
}

/// The peer has made its half and is through before this rank asks.
#[test]
fn a_semaphore_whose_half_has_come_is_there_when_its_connection_is_down() {
    let [a, b] = pair();
    let [at_a, at_b] = connect(&[a.clone(), b.clone()], 0);
    let asked = [0, 0].map(|tag| a.build_semaphore(&at_a, 1, tag).unwrap());
    let theirs = b.build_semaphore(&at_b, 0, 0).unwrap();
    theirs.get_by(soon()).unwrap();
    drop((theirs, at_b));
    eventually("it is down", || at_a.status().is_some());
    asked[0].get_by(soon()).unwrap();
    let error = asked[1].get_by(soon()).unwrap_err();
    assert!(matches!(error, Error::PeerDown { .. }), "{error}");
}

/// Also where posts wait for the connection to come up, or for a peer that reads nothing.
#[test]
fn a_flush_keeps_to_its_deadline_when_the_queue_is_full() {
    let [a, b] = pair();
    let memory = memory_of(&b, 8);
    b.send_memory(&memory, 0, 0).unwrap();
    let remote = a.recv_memory(1, 0).unwrap().get_by(soon()).unwrap();
    let few = EndpointConfig {
        max_write_queue_size: Some(3),
        ..ethernet()
    };
    let at_a = a.connect(few, 1, 1).unwrap();
    let at_b = b.connect(ethernet(), 0, 1).unwrap();
    let at_a = at_a.get_by(soon()).unwrap();
    for _ in 0..3 {
        at_a.signal(&remote, 0).unwrap();
    }
    let begin = Instant::now();
    let error = at_a
        .flush(Deadline::after(Duration::from_millis(100)))
        .unwrap_err();
    assert!(
        matches!(&error, Error::Timeout { operation, .. } if operation == "flush"),
        "{error}"
    );
    assert!(begin.elapsed() < PATIENCE);
    let _at_b = at_b.get_by(soon()).unwrap();
    at_a.flush(soon()).unwrap();
}

#[test]
fn a_pending_that_was_dropped_keeps_neither_its_connection_nor_its_place_in_vain() {
    let [a, b] = pair();
    let [at_a, at_b] = connect(&[a.clone(), b.clone()], 0);
    let asked = a.build_semaphore(&at_a, 1, 0).unwrap();
    let error = asked
        .get_by(Deadline::after(Duration::from_millis(20)))
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    drop((asked, at_a));
    eventually("the peer sees it go", || at_b.status().is_some());
    // The record that comes for it is not another's.
    let [_at_a, at_b] = connect(&[a.clone(), b.clone()], 1);
    let _theirs = b.build_semaphore(&at_b, 0, 0).unwrap();
    b.send_memory(&memory_of(&b, 16), 0, 0).unwrap();
    let memory = a.recv_memory(1, 0).unwrap();
    assert_eq!(memory.get_by(soon()).unwrap().size(), 16);
}

/// As mapping a GPU's memory does, whose owner is slow to answer.
#[test]
fn what_could_not_be_made_of_a_record_in_time_is_made_when_asked_again() {
    let [a, b] = pair();
    let line = b.line("receive", 0, 0).unwrap();
    let slow = line.receive(Kind::Memory, |bytes, deadline| {
        if deadline.expired() {
            return Err(line_timeout());
        }
        Ok(bytes.len())
    });
    let next = b.recv_memory(0, 0).unwrap();
    let abandoned = line.receive(Kind::Memory, |_, _| Err::<usize, _>(line_timeout()));
    let last = b.recv_memory(0, 0).unwrap();
    for bytes in [8, 16, 24, 32] {
        a.send_memory(&memory_of(&a, bytes), 1, 0).unwrap();
    }
    let none = || Deadline::after(Duration::ZERO);
    for _ in 0..2 {
        // The next waits for it, too.
        for error in [slow.get_by(none()).err(), next.get_by(none()).err()] {
            assert!(matches!(error, Some(Error::Timeout { .. })), "{error:?}");
        }
    }
    assert_eq!(next.get_by(soon()).unwrap().size(), 16);
    assert!(slow.get_by(none()).unwrap() > 0);
    // What nobody asks for any more holds nobody up.
    abandoned.get_by(none()).unwrap_err();
    drop(abandoned);
    assert_eq!(last.get_by(soon()).unwrap().size(), 32);
}

fn line_timeout() -> Error {
    Error::Timeout {
        operation: "mapping".into(),
        rank: None,
        waited: Duration::ZERO,
    }
}

#[test]
fn a_connection_may_have_as_long_as_there_is_for_anything() {
    let forever = |rank: Arc<dyn Bootstrap>| {
        let mut config = ContextConfig::of_rank(&*rank);
        config.deadlines.linger = Duration::MAX;
        config.deadlines.self_test = Duration::MAX;
        config.deadlines.teardown = Duration::MAX;
        config.hca_devices = vec![Hca::named("soft0")];
        Communicator::with_config(rank, config).unwrap()
    };
    let ranks: Vec<_> = Local::world(2).0.into_iter().map(forever).collect();
    let [a, b]: [Communicator; 2] = ranks.try_into().unwrap();
    let [at_a, at_b] = connect(&[a.clone(), b.clone()], 0);
    let buffer = Buffer::new(Device::cpu(), 8).unwrap();
    let memory = b.register_memory(&buffer, 0..8).unwrap();
    b.send_memory(&memory, 0, 0).unwrap();
    let remote = a.recv_memory(1, 0).unwrap().get_by(soon()).unwrap();
    for _ in 0..500 {
        at_a.signal(&remote, 0).unwrap();
    }
    drop(at_a);
    eventually("all is posted", || buffer.load_u64(0).unwrap() == 500);
    eventually("the peer sees it go", || at_b.status().is_some());
    let error = at_b.status().unwrap().to_string();
    assert!(error.contains("the peer closed the connection"), "{error}");
    // Queues test themselves.
    let queue = EndpointConfig::gpu_initiated(TransportKind::IB0);
    let at_a = a.connect(queue, 1, 1).unwrap();
    let at_b = b.connect(queue, 0, 1).unwrap();
    let ends = [at_a, at_b].map(|pending| pending.get_by(soon()).unwrap());
    for connection in &ends {
        connection.wait_connected(soon()).unwrap();
    }
}

#[test]
fn a_thread_that_waits_for_another_keeps_its_own_deadline() {
    let [_a, b] = pair();
    let (slow, quick) = (b.recv_memory(0, 0).unwrap(), b.recv_memory(0, 0).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| slow.get_by(Deadline::after(Duration::from_millis(1500))));
        thread::sleep(Duration::from_millis(100));
        let begin = Instant::now();
        let error = quick
            .get_by(Deadline::after(Duration::from_millis(50)))
            .unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(begin.elapsed() < Duration::from_millis(1000));
    });
}
