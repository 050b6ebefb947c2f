// SPDX-License-Identifier: MIT
//! Exchanges of memory between a set up pair, from several threads.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Tag, forward_bootstrap};

use super::world::{PATIENCE, nics, service, set_up_alike, world};
use crate::buffer::Buffer;
use crate::device::Device;

#[test]
fn gpunetio_exchanges_of_two_threads_with_one_tag_do_not_cross() {
    let (ranks, nics) = (world(2), nics(2));
    let services: Vec<_> = (ranks.iter().zip(&nics))
        .map(|(rank, nic)| service(rank, nic))
        .collect();
    set_up_alike(&services, 1);
    let buffer = Buffer::new(Device::cpu(), 4096).unwrap();
    let of = |rank: usize, size| services[rank].register_memory(&buffer, 0..size).unwrap();
    let (mine, theirs) = ([of(0, 8), of(0, 16)], [of(1, 8), of(1, 16)]);
    let mut crossed = 0;
    for _ in 0..1500 {
        let got = thread::scope(|scope| {
            let threads: Vec<_> = (mine.iter())
                .map(|memory| scope.spawn(|| services[0].exchange_memory(1, memory, 9).unwrap()))
                .collect();
            let halves: Vec<_> = (theirs.iter())
                .map(|memory| services[1].exchange_memory(0, memory, 9).unwrap())
                .collect();
            let at_0: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            let at_0: Vec<u64> = at_0.iter().map(|p| p.get().unwrap().size()).collect();
            let at_1: Vec<u64> = halves.iter().map(|p| p.get().unwrap().size()).collect();
            (at_0, at_1)
        });
        // Rank 1's first call gave 8 bytes; whose memory it got is whose call got 8 bytes.
        let (at_0, at_1) = got;
        let first = usize::from(at_1[0] == 16);
        if at_0[first] != 8 {
            crossed += 1;
        }
    }
    assert_eq!(crossed, 0);
}

/// Takes nothing for a rank until the test ends.
struct TakesNothing {
    inner: Arc<dyn Bootstrap>,
    peer: usize,
    /// Told when a send to the peer has begun.
    begun: Sender<()>,
    ends: Mutex<Receiver<()>>,
}

impl Bootstrap for TakesNothing {
    forward_bootstrap!(inner);

    fn send(&self, to: usize, tag: Tag, data: &[u8], by: Deadline) -> Result<(), BootstrapError> {
        // What communicators send.
        if to == self.peer && tag.value() >> 32 == Tag::layered(1, 0).value() >> 32 {
            self.begun.send(()).unwrap();
            let _ = self.ends.lock().unwrap().recv();
        }
        self.inner.send(to, tag, data, by)
    }

    fn recv(&self, from: usize, tag: Tag, by: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.inner.recv(from, tag, by)
    }
}

#[test]
fn gpunetio_a_peer_that_takes_nothing_holds_up_no_exchange_with_another() {
    let (mut ranks, nics) = (world(3), nics(3));
    let (begun, has_begun) = channel();
    let (end, ends) = channel();
    ranks[0] = Arc::new(TakesNothing {
        inner: Arc::clone(&ranks[0]),
        peer: 2,
        begun,
        ends: Mutex::new(ends),
    });
    let services: Vec<_> = (ranks.iter().zip(&nics))
        .map(|(rank, nic)| service(rank, nic))
        .collect();
    set_up_alike(&services, 1);
    let buffer = Buffer::new(Device::cpu(), 64).unwrap();
    let memories: Vec<_> = (services.iter())
        .map(|service| service.register_memory(&buffer, 0..64).unwrap())
        .collect();
    let (done, is_done) = channel();
    thread::scope(|scope| {
        scope.spawn(|| services[0].exchange_memory(2, &memories[0], 5).map(drop));
        has_begun.recv_timeout(PATIENCE).unwrap();
        scope.spawn(|| {
            let healthy = services[0].exchange_memory(1, &memories[0], 5);
            done.send(healthy.map(drop)).unwrap();
        });
        let healthy = is_done.recv_timeout(PATIENCE);
        // Before anything is asserted: the first exchange waits for this.
        drop(end);
        healthy.expect("it is not held up").unwrap();
    });
}
