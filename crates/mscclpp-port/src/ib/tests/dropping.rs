// SPDX-License-Identifier: MIT
//! Dropping a connection ends in time, whatever its thread or its peer is in.

use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::*;

fn with_limits(fake: &'static Fake, linger: Duration, teardown: Duration) -> Context {
    let mut config = ContextConfig::new(Ipv4Addr::LOCALHOST.into());
    config.hca_devices = hcas(fake);
    config.deadlines.linger = linger;
    config.deadlines.teardown = teardown;
    Context::with_config(config).unwrap()
}

/// Posts that wait for a connection which does not come up are part of the same time as its coming up.
#[test]
fn ib_dropping_a_connection_that_never_came_up_takes_no_longer_than_said() {
    let (linger, teardown) = (Duration::from_secs(1), Duration::from_millis(900));
    let fake = fake(1 << 30);
    let ours = with_limits(fake, linger, teardown);
    let theirs = context(fake);
    let endpoint = ours.create_endpoint(ib(IbMode::Host)).unwrap();
    // It never connects.
    let other = theirs.create_endpoint(ib(IbMode::Host)).unwrap();
    let record = other.serialize().unwrap();
    let connection = ours.connect(endpoint, &record, deadline()).unwrap();
    let ((_buffer, source), (_theirs, target)) = (registered(&ours, 64), registered(&theirs, 64));
    let target = RegisteredMemory::deserialize(&ours, &target.serialize().unwrap()).unwrap();
    connection.write(&target, 0, &source, 0, 8).unwrap();
    let begun = Instant::now();
    drop(connection);
    let took = begun.elapsed();
    assert!(took < linger + teardown, "{took:?}");
}

#[test]
fn ib_dropping_a_connection_whose_thread_hangs_in_a_call_leaves_the_thread_behind() {
    let (linger, teardown) = (Duration::from_millis(200), Duration::from_millis(300));
    let fake = fake(1 << 30);
    let context = with_limits(fake, linger, teardown);
    let endpoint = context.create_endpoint(ib(IbMode::Host)).unwrap();
    let record = endpoint.serialize().unwrap();
    let (holds, held) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    // Every call of the library waits for this, for a while.
    let hold = thread::spawn(move || {
        let state = fake.state();
        holds.send(()).unwrap();
        let _ = released.recv_timeout(Duration::from_secs(5));
        drop(state);
    });
    held.recv().unwrap();
    let connection = context.connect(endpoint, &record, deadline()).unwrap();
    let begun = Instant::now();
    drop(connection);
    let took = begun.elapsed();
    release.send(()).unwrap();
    hold.join().unwrap();
    assert!(took < Duration::from_secs(3), "{took:?}");
    // The thread goes on to its end, and lets go of what it had.
    drop(context);
    eventually("the queue is let go of", || fake.left().is_empty());
}
