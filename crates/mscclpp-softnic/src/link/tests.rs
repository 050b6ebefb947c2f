// SPDX-License-Identifier: MIT
use std::os::unix::net::UnixStream;

use super::*;

#[test]
fn a_peer_that_reads_no_notices_has_so_many_kept_for_it() {
    let (near, _far) = UnixStream::pair().unwrap();
    let mut end = LinkEnd::new(DeviceAddress([1; 16]), 1, near.into());
    let mut said = 0;
    while !end.closed {
        end.tell(MemoryKey::new(5), &Notice::Released, None);
        said += 1;
        assert!(end.waiting() <= MOST_WAITING);
    }
    // More than a device has to say that keeps to the protocol: of 4096
    // registrations each way, and some offers.
    assert!(said > 4 * 4096, "{said}");
}
