// SPDX-License-Identifier: MIT
//! The example of a sparse setup does what docs/setup.md says.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::TcpBootstrap;

#[path = "../examples/sparse.rs"]
mod sparse;

const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn gpunetio_the_sparse_example_runs() {
    let root = TcpBootstrap::new(0, 4).unwrap();
    let id = root.create_unique_id_at([127, 0, 0, 1].into()).unwrap();
    let others: Vec<_> = (1..4)
        .map(|rank| {
            let id = id.clone();
            thread::spawn(move || {
                let bootstrap = TcpBootstrap::new(rank, 4).unwrap();
                bootstrap.initialize(&id, TIMEOUT).unwrap();
                sparse::rank(Arc::new(bootstrap)).unwrap();
            })
        })
        .collect();
    root.initialize(&id, TIMEOUT).unwrap();
    sparse::rank(Arc::new(root)).unwrap();
    for rank in others {
        rank.join().unwrap();
    }
}
