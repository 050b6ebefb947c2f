// SPDX-License-Identifier: MIT
//! The tests, a file a subject.

mod accumulate;
mod blocked;
mod bootstrap;
mod bounds;
mod channels;
mod communicator;
mod file_bootstrap;
mod flush;
mod gpu;
mod jobs;
mod kill;
mod large;
mod lifetime;
mod mesh;
mod packet;
mod ping_pong;
mod queue;
mod rdma;
mod service;
mod stress;

use crate::backend::Executor;
use crate::harness::{Registry, Test};

#[cfg(test)]
pub(crate) use file_bootstrap::FileBootstrap;
pub use jobs::{join_seconds, play};
pub use kill::kill_cases;

/// Every test of an executor, in the order in which they run: what others stand on first.
pub fn all(executor: Executor) -> Vec<Test> {
    let mut registry = Registry::default();
    bootstrap::register(&mut registry);
    for (_, backend) in executor.backends() {
        registry.of(backend, |registry, backend| {
            communicator::register(registry, backend);
            ping_pong::register(registry, backend);
            packet::register(registry, backend);
            flush::register(registry, backend);
            accumulate::register(registry, backend);
            mesh::register(registry, backend);
            channels::register(registry, backend);
            bounds::register(registry, backend);
            large::register(registry, backend);
            lifetime::register(registry, backend);
            blocked::register(registry, backend);
            queue::register(registry, backend);
            rdma::register(registry, backend);
            service::register(registry, backend);
            stress::register(registry, backend);
            gpu::register(registry, backend);
        });
    }
    blocked::register_bootstrap(&mut registry);
    jobs::register(&mut registry);
    kill::register(&mut registry, executor);
    registry.into_tests()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_a_suite_and_a_test_and_differ() {
        for executor in [Executor::Host, Executor::Cuda] {
            check_names(executor);
        }
    }

    fn check_names(executor: Executor) {
        let mut names: Vec<String> = all(executor).into_iter().map(|test| test.name).collect();
        assert!(
            names.iter().all(|name| name.split('.').count() == 2),
            "{names:?}"
        );
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
