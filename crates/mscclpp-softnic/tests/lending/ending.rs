// SPDX-License-Identifier: MIT
//! What is left when a link or a device ends.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use mscclpp_softnic::*;

use crate::ends::*;
use crate::peer::*;
use crate::support::shared_memory::*;
use crate::support::*;

/// One without queues sleeps until it hears of something.
#[test]
fn a_mapping_ends_with_its_link_whatever_the_device_has_to_do() {
    let memory = SharedMemory::new(Keeps::Order);
    let device = Device::open("soft0", DeviceConfig::default()).unwrap();
    let domain = device.allocate_domain().unwrap();
    let own = SharedBuffer::new(4096);
    let flags = AccessFlags::ALL;
    let _own = domain
        .register(memory.range(&own), flags, WriteOrdering::Relaxed)
        .unwrap();
    let (mut peer, _) = Peer::link(&device);
    let lent = SharedBuffer::new(4096);
    peer.say_with(&offer(5, 0x10000, 4096, true, 0), lent.memory());
    assert_eq!(peer.heard().0, TAKEN);
    assert_eq!(memory.mapped(), 1);
    // Until it sleeps.
    thread::sleep(Duration::from_millis(50));
    drop(peer);
    wait_for("the end of the mapping", || {
        (memory.mapped() == 0).then_some(())
    });
}

/// As when a driver's call does not return.
#[test]
fn a_device_ends_while_an_import_hangs_and_begins_no_other() {
    let end = end();
    let memory = Arc::clone(&end.memory);
    memory.hold_imports(true);
    let mut peer = Peer::of(&end);
    let lent = SharedBuffer::new(4096);
    for key in 0..8 {
        peer.say_with(&offer(key, 0x10000, 4096, true, 0), lent.memory());
    }
    wait_for("an import", || (memory.begun() == 1).then_some(()));
    // The others wait behind it.
    thread::sleep(Duration::from_millis(50));
    let (ended, has_ended) = channel();
    let dropping = thread::spawn(move || {
        drop(end);
        ended.send(()).unwrap();
    });
    let in_time = has_ended.recv_timeout(PATIENCE);
    memory.hold_imports(false);
    dropping.join().unwrap();
    assert_eq!(in_time, Ok(()), "the device waits for the import");
    // The thread that was left behind lets go of its memory, too.
    wait_for("the end of the thread", || {
        (Arc::strong_count(&memory) == 1).then_some(())
    });
    assert_eq!((memory.begun(), memory.mapped()), (1, 0));
}
