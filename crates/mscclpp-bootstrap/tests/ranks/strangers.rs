// SPDX-License-Identifier: MIT
//! Strangers at the door.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::TcpBootstrap;

use crate::body::{LOCALHOST, body, run, secs};
use crate::ways::{Tcp, stranger};

#[test]
fn a_thousand_strangers_during_a_join_do_no_harm() {
    let world = 6;
    let zero = TcpBootstrap::new(0, world).unwrap();
    let id = zero.create_unique_id_at(LOCALHOST).unwrap();
    let address = id.address();
    let came = Arc::new(AtomicUsize::new(0));
    let strangers: Vec<_> = (0..4)
        .map(|s| {
            let came = Arc::clone(&came);
            thread::spawn(move || {
                let held: Vec<_> = (0..250).map(|i| stranger::<Tcp>(s + i, address)).collect();
                came.fetch_add(held.iter().flatten().count(), Ordering::SeqCst);
                held
            })
        })
        .collect();
    let zero = Arc::new(std::sync::Mutex::new(Some(zero)));
    let outcome = run(world, move |r| {
        let b = match r {
            0 => zero.lock().unwrap().take().unwrap(),
            _ => TcpBootstrap::new(r, world).unwrap(),
        };
        if r != 0 {
            // The flood is there first.
            let begun = Instant::now();
            while came.load(Ordering::SeqCst) < 250 && begun.elapsed() < secs(10) {
                thread::sleep(Duration::from_millis(5));
            }
        }
        let start = Instant::now();
        b.initialize(&id, secs(30)).unwrap();
        let took = start.elapsed();
        body(&b);
        (took, came.load(Ordering::SeqCst))
    });
    let (took, came) = outcome[world - 1];
    println!("with {came} strangers before it, the last rank joined in {took:?}");
    assert!(took < secs(3), "{took:?}");
    strangers.into_iter().for_each(|s| drop(s.join().unwrap()));
}
