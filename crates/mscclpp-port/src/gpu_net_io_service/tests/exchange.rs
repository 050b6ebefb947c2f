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

/// A rank whose peer 1 takes nothing of the communicator's.
struct Held {
    inner: Arc<dyn Bootstrap>,
    says: Sender<()>,
    held: Mutex<Receiver<()>>,
}

impl Bootstrap for Held {
    forward_bootstrap!(inner);

    fn send(&self, to: usize, tag: Tag, data: &[u8], by: Deadline) -> Result<(), BootstrapError> {
        if to == 1 && tag.value() >> 32 == Tag::layered(1, 0).value() >> 32 {
            self.says.send(()).unwrap();
            let _ = self.held.lock().unwrap().recv();
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
    let ((says, said), (release, held)) = (channel(), channel::<()>());
    ranks[0] = Arc::new(Held {
        inner: Arc::clone(&ranks[0]),
        says,
        held: Mutex::new(held),
    });
    let services: Vec<_> = (ranks.iter().zip(&nics))
        .map(|(rank, nic)| service(rank, nic))
        .collect();
    set_up_alike(&services, 1);
    let buffer = Buffer::new(Device::cpu(), 4096).unwrap();
    let of = |rank: usize| services[rank].register_memory(&buffer, 0..8).unwrap();
    let memory = of(0);
    thread::scope(|scope| {
        let blocked = scope.spawn(|| services[0].exchange_memory(1, &memory, 9).map(drop));
        said.recv_timeout(PATIENCE).unwrap();
        let (done, is_done) = channel();
        let (services, memory) = (&services, &memory);
        scope.spawn(move || {
            services[0].exchange_memory(2, memory, 9).unwrap();
            done.send(()).unwrap();
        });
        let in_time = is_done.recv_timeout(PATIENCE);
        drop(release);
        blocked.join().unwrap().unwrap();
        assert_eq!(in_time, Ok(()));
    });
}
