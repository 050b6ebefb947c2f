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
mod jobs;
mod large;
mod lifetime;
mod mesh;
mod packet;
mod ping_pong;
mod queue;
mod service;

use crate::backend::BACKENDS;
use crate::harness::{Registry, Test};

#[cfg(test)]
pub(crate) use file_bootstrap::FileBootstrap;
pub use jobs::{join_seconds, play};

/// Every test, in the order in which they run: what others stand on first.
pub fn all() -> Vec<Test> {
    let mut registry = Registry::default();
    bootstrap::register(&mut registry);
    for backend in BACKENDS {
        communicator::register(&mut registry, backend);
        ping_pong::register(&mut registry, backend);
        packet::register(&mut registry, backend);
        flush::register(&mut registry, backend);
        accumulate::register(&mut registry, backend);
        mesh::register(&mut registry, backend);
        channels::register(&mut registry, backend);
        bounds::register(&mut registry, backend);
        large::register(&mut registry, backend);
        lifetime::register(&mut registry, backend);
        blocked::register(&mut registry, backend);
        queue::register(&mut registry, backend);
        service::register(&mut registry, backend);
    }
    blocked::register_bootstrap(&mut registry);
    jobs::register(&mut registry);
    registry.into_tests()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_a_suite_and_a_test_and_differ() {
        let mut names: Vec<String> = all().into_iter().map(|test| test.name).collect();
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
