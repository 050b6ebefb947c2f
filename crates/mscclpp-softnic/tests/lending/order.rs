// SPDX-License-Identifier: MIT
//! A signal is seen behind the payload that was fetched before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use mlx5_queue::*;

use crate::ends::*;
use crate::support::shared_memory::*;
use crate::support::*;

pub(crate) const ROUNDS: u64 = 200;
const BYTES: usize = 100_000;
const TOKEN: usize = 4 << 20;

/// Counts the signals that an end sees before what was put before them.
pub(crate) fn watch(end: &End) -> Arc<AtomicU64> {
    let stale = Arc::new(AtomicU64::new(0));
    let (count, buffer) = (Arc::clone(&stale), end.buffer.clone());
    let token = buffer.address() + TOKEN as u64;
    end.memory.after_write(move |address| {
        if address == token {
            let expected = vec![buffer.read_u64(TOKEN) as u8; BYTES];
            count.fetch_add((buffer.read(0, BYTES) != expected).into(), SeqCst);
        }
    });
    stale
}

/// Puts and signals, over and over; all of the payload is fetched by the peer.
pub(crate) fn put_and_signal(end: &mut End, remote: impl Fn(usize) -> RemoteAddress) {
    for round in 1..=ROUNDS {
        end.buffer.write(0, &vec![round as u8; BYTES]);
        let list = [end.local(0, BYTES as u32).encode()];
        end.poster
            .write(Flags::UNSIGNALLED, write(remote(0), &list));
        let result = end.local(TOKEN + 64, 8);
        end.poster.post(Operation::FetchAdd {
            remote: remote(TOKEN),
            add: 1,
            result,
        });
        assert_eq!(end.poster.wait().failure(), None);
    }
}

fn stale(keeps: Keeps) -> u64 {
    let mut a = End::new(SharedMemory::new(Keeps::Order));
    let b = End::new(SharedMemory::new(keeps));
    connect(&a, &b, unix());
    lend(&mut a, &b);
    let stale = watch(&b);
    let before = b.device.counters().bytes_mapped;
    put_and_signal(&mut a, |offset| b.remote(offset));
    let mapped = b.device.counters().bytes_mapped - before;
    assert_eq!(mapped, ROUNDS * BYTES as u64);
    assert_eq!(b.buffer.read_u64(TOKEN), ROUNDS);
    stale.load(SeqCst)
}

#[test]
fn a_signal_is_behind_the_payload_that_was_fetched() {
    for keeps in [Keeps::Order, Keeps::Nothing] {
        assert_eq!(stale(keeps), 0, "{keeps:?}");
    }
}

/// The test above would see it.
#[test]
fn a_memory_that_swaps_payload_and_signal_is_found() {
    assert!(stale(Keeps::NothingSecretly) > ROUNDS / 2);
}
