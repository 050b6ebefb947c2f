// SPDX-License-Identifier: MIT
//! What is left when a link or a device ends.

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
