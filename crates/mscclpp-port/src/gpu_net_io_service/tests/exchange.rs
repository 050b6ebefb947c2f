// SPDX-License-Identifier: MIT
//! Exchanges of memory between a set up pair, from several threads.

use std::thread;

use super::world::{nics, service, set_up_alike, world};
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
