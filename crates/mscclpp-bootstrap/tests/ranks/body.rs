// SPDX-License-Identifier: MIT
//! What the tests share: running ranks as threads, and the body that every
//! bootstrap has to satisfy.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use mscclpp_bootstrap::{Bootstrap, Deadline, Tag, TcpBootstrap, TcpOptions, UniqueId};

pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// No test may take longer than this.
const GUARD: Duration = Duration::from_secs(60);

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn soon() -> Deadline {
    Deadline::after(secs(20))
}

/// Runs `rank(0..world)` on a thread each and returns what they return. A panic
/// of one, or a rank that does not end, fails the test.
pub(crate) fn run<T: Send + 'static>(
    world: usize,
    rank: impl Fn(usize) -> T + Send + Sync + Clone + 'static,
) -> Vec<T> {
    let (done, results) = mpsc::channel();
    for r in 0..world {
        let (rank, done) = (rank.clone(), done.clone());
        thread::spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rank(r)));
            done.send((r, result)).unwrap();
        });
    }
    let guard = Deadline::after(GUARD);
    let mut all: Vec<Option<T>> = (0..world).map(|_| None).collect();
    for _ in 0..world {
        let (r, result) = results
            .recv_timeout(guard.remaining())
            .expect("a rank did not end in time");
        all[r] = Some(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    }
    all.into_iter().map(Option::unwrap).collect()
}

/// A world whose ranks meet by an id on loopback; `rank` runs on each, joined.
pub(crate) fn run_joined<T: Send + 'static>(
    world: usize,
    rank: impl Fn(TcpBootstrap) -> T + Send + Sync + Clone + 'static,
) -> Vec<T> {
    run_joined_with(world, TcpOptions::new().timeout(secs(20)), rank)
}

pub(crate) fn run_joined_with<T: Send + 'static>(
    world: usize,
    options: TcpOptions,
    rank: impl Fn(TcpBootstrap) -> T + Send + Sync + Clone + 'static,
) -> Vec<T> {
    let zero = TcpBootstrap::with_options(0, world, options.clone()).unwrap();
    let id = zero.create_unique_id_at(LOCALHOST).unwrap();
    let zero = std::sync::Arc::new(std::sync::Mutex::new(Some(zero)));
    run(world, move |r| {
        let bootstrap = match r {
            0 => zero.lock().unwrap().take().unwrap(),
            _ => TcpBootstrap::with_options(r, world, options.clone()).unwrap(),
        };
        bootstrap.initialize(&id, secs(30)).unwrap();
        rank(bootstrap)
    })
}

/// An id as another process would get it.
pub(crate) fn carried(id: &UniqueId) -> UniqueId {
    id.to_text().parse().unwrap()
}

/// A port of loopback that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(SocketAddr::new(LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// What every bootstrap has to do: an all-gather, a barrier, and three messages
/// to each rank on three tags, sent first and received in another order.
pub(crate) fn body(bootstrap: &dyn Bootstrap) {
    let (rank, world) = (bootstrap.rank(), bootstrap.world_size());
    let all = bootstrap
        .all_gather(&(rank as u32 + 1).to_le_bytes())
        .unwrap();
    assert_eq!(all.len(), world);
    for (r, slice) in all.iter().enumerate() {
        assert_eq!(slice[..], (r as u32 + 1).to_le_bytes());
    }
    bootstrap.barrier().unwrap();
    let value = |rank: usize, tag: u32| ((rank as u32 + 1) * 3 + tag).to_le_bytes();
    for peer in 0..world {
        for tag in 0..3 {
            let data = value(rank, tag);
            bootstrap.send(peer, Tag::user(tag), &data, soon()).unwrap();
        }
    }
    for peer in 0..world {
        for tag in [1, 2, 0] {
            let data = bootstrap.recv(peer, Tag::user(tag), soon()).unwrap();
            assert_eq!(data[..], value(peer, tag));
        }
    }
    let per_node = bootstrap.ranks_per_node().unwrap();
    assert!(0 < per_node && per_node <= world);
    bootstrap.barrier().unwrap();
}
