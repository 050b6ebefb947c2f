// SPDX-License-Identifier: MIT
use std::os::unix::net::UnixStream;

use mlx5_queue::QueueNumber;

use super::*;
use crate::memory::Export;
use crate::nic::loans::Offer;
use crate::nic::packet::Body;

#[test]
fn a_peer_that_reads_no_notices_has_so_many_kept_for_it() {
    let (near, _far) = UnixStream::pair().unwrap();
    let mut end = LinkEnd::new(DeviceAddress([1; 16]), 1, near.into());
    let (key, number) = (MemoryKey::new(5), QueueNumber::new(6).unwrap());
    let packet = Packet {
        to: number,
        from: number,
        number: 0,
        body: Body::Acknowledge,
    };
    while end.push(&packet) {}
    // What a device has to say at most that keeps to the protocol: of all that it may take and lend,
    // and the offers that may be without an answer.
    for _ in 0..2 * 4096 {
        end.tell(key, &Notice::Released, None);
    }
    for _ in 0..32 {
        let offer = Offer {
            address: 0,
            length: 1,
            descriptor: false,
            description: vec![0; Export::MAX_DESCRIPTION],
        };
        end.tell(key, &Notice::Offered(offer), None);
    }
    assert!(!end.closed);
    while !end.closed {
        end.tell(key, &Notice::Released, None);
        assert!(end.waiting() <= MOST_WAITING);
    }
}
