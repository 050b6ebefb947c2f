// SPDX-License-Identifier: MIT
//! Ranks as threads over real sockets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, ReduceOp, Tag, TcpBootstrap, UniqueId};

const TIMEOUT: Duration = Duration::from_secs(20);

fn soon() -> Deadline {
    Deadline::after(TIMEOUT)
}

/// Runs a body on every rank of a job and returns what they return.
fn job<T: Send>(world: usize, body: impl Fn(TcpBootstrap) -> T + Sync) -> Vec<T> {
    let zero = TcpBootstrap::new(0, world).unwrap();
    let id = zero.create_unique_id().unwrap();
    let start = |rank: usize, zero: Option<TcpBootstrap>| {
        let own = zero.unwrap_or_else(|| TcpBootstrap::new(rank, world).unwrap());
        own.initialize(&id, TIMEOUT).unwrap();
        body(own)
    };
    std::thread::scope(|scope| {
        let start = &start;
        let mut zero = Some(zero);
        let threads: Vec<_> = (0..world)
            .map(|rank| {
                let zero = if rank == 0 { zero.take() } else { None };
                scope.spawn(move || start(rank, zero))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn everything(boot: &dyn Bootstrap) {
    let (rank, world) = (boot.rank(), boot.world_size());
    let all = boot.all_gather(&(rank as u64 + 1).to_le_bytes()).unwrap();
    for (r, slice) in all.iter().enumerate() {
        assert_eq!(slice[..], (r as u64 + 1).to_le_bytes());
    }
    boot.barrier().unwrap();
    for peer in 0..world {
        for tag in 0..3 {
            let value = (rank as u32 + 1) * 3 + tag;
            boot.send(peer, Tag::user(tag), &value.to_le_bytes(), soon()).unwrap();
        }
    }
    for peer in 0..world {
        for tag in [1, 2, 0] {
            let value = (peer as u32 + 1) * 3 + tag;
            assert_eq!(boot.recv(peer, Tag::user(tag), soon()).unwrap(), value.to_le_bytes());
        }
    }
    let sum = boot.all_reduce(rank as u64, ReduceOp::Sum).unwrap();
    assert_eq!(sum as usize, world * (world - 1) / 2);
    for root in 0..world {
        let text = boot.broadcast(format!("from {rank}").as_bytes(), root).unwrap();
        assert_eq!(text, format!("from {root}").as_bytes());
    }
    assert_eq!(boot.ranks_per_node().unwrap(), world);
    boot.barrier().unwrap();
}

#[test]
fn ranks_with_an_id_do_everything() {
    for world in [1, 2, 3, 5, 8] {
        job(world, |boot| everything(&boot));
    }
}

#[test]
fn ranks_meet_again_at_the_same_port() {
    let port = {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        probe.local_addr().unwrap().port()
    };
    let address = format!("127.0.0.1:{port}");
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let address = &address;
            scope.spawn(move || {
                for _ in 0..5 {
                    let boot = TcpBootstrap::new(rank, 3).unwrap();
                    boot.initialize_at(address, TIMEOUT).unwrap();
                    everything(&boot);
                }
            });
        }
    });
}

#[test]
fn large_messages_may_all_be_sent_first() {
    const BYTES: usize = 64 << 20;
    job(2, |boot| {
        let other = 1 - boot.rank();
        let data = vec![boot.rank() as u8; BYTES];
        boot.send(other, Tag::user(0), &data, soon()).unwrap();
        let theirs = boot.recv(other, Tag::user(0), soon()).unwrap();
        assert!(theirs.len() == BYTES && theirs.iter().all(|b| *b == other as u8));
        boot.barrier().unwrap();
    });
}

#[test]
fn a_receive_ends_by_its_deadline_and_names_the_rank() {
    job(2, |boot| {
        let other = 1 - boot.rank();
        let start = Instant::now();
        let short = Deadline::after(Duration::from_millis(100));
        let error = boot.recv(other, Tag::user(9), short).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(
            matches!(&error, BootstrapError::Timeout { waiting_for, .. } if *waiting_for == [other]),
            "{error}"
        );
        boot.barrier().unwrap();
    });
}

#[test]
fn ranks_that_can_not_meet_end_in_time() {
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let boot = TcpBootstrap::new(rank, 3).unwrap();
                let id = boot.create_unique_id().unwrap();
                let start = Instant::now();
                let error = boot.initialize(&id, Duration::from_secs(1)).unwrap_err();
                let took = start.elapsed();
                assert!(error.is_timeout(), "{error}");
                assert!(took >= Duration::from_secs(1) && took < Duration::from_millis(1300), "{took:?}");
                let again = boot.initialize(&id, Duration::from_secs(1)).unwrap_err();
                assert!(matches!(again, BootstrapError::FailedBefore { .. }), "{again}");
            });
        }
    });
}

#[test]
fn what_was_sent_before_leaving_arrives_and_then_it_says_left() {
    job(2, |boot| {
        if boot.rank() == 0 {
            boot.send(1, Tag::user(0), b"last words", soon()).unwrap();
        } else {
            assert_eq!(boot.recv(0, Tag::user(0), soon()).unwrap(), b"last words");
            let error = boot.recv(0, Tag::user(0), soon()).unwrap_err();
            assert!(matches!(error, BootstrapError::PeerLeft { rank: 0, .. }), "{error}");
        }
    });
}

#[test]
fn two_processes_with_one_rank_are_told_apart() {
    let zero = TcpBootstrap::new(0, 3).unwrap();
    let id: Arc<UniqueId> = Arc::new(zero.create_unique_id().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let id = Arc::clone(&id);
            scope.spawn(move || {
                let one = TcpBootstrap::new(1, 3).unwrap();
                let error = one.initialize(&id, TIMEOUT).unwrap_err();
                assert!(!error.is_timeout(), "{error}");
            });
        }
        let error = zero.initialize(&id, TIMEOUT).unwrap_err();
        assert!(matches!(error, BootstrapError::DuplicateRank { rank: 1, .. }), "{error}");
    });
}
