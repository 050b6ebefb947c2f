// SPDX-License-Identifier: MIT
//! Joining, in every way and in every wrong way.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mscclpp_bootstrap::{Bootstrap, BootstrapError, Secret, TcpBootstrap, TcpOptions};

use crate::body::{LOCALHOST, body, carried, free_port, run, run_joined, run_joined_with, secs};

#[test]
fn with_id() {
    for world in [1, 2, 4, 7] {
        run_joined(world, |b| body(&b));
    }
}

#[test]
fn with_id_over_ipv6() {
    let zero = TcpBootstrap::new(0, 3).unwrap();
    let id = zero.create_unique_id_at("::1".parse().unwrap()).unwrap();
    let zero = Arc::new(Mutex::new(Some(zero)));
    run(3, move |r| {
        let b = match r {
            0 => zero.lock().unwrap().take().unwrap(),
            _ => TcpBootstrap::new(r, 3).unwrap(),
        };
        b.initialize(&carried(&id), secs(20)).unwrap();
        assert_eq!(b.local_ip().unwrap().to_string(), "::1");
        body(&b);
    });
}

#[test]
fn with_ip_port_pair() {
    for form in ["127.0.0.1:", "lo:127.0.0.1:", "[::1]:"] {
        let address = format!("{form}{}", free_port());
        run(4, move |r| {
            let b = TcpBootstrap::new(r, 4).unwrap();
            b.initialize_at(&address, secs(20)).unwrap();
            body(&b);
        });
    }
}

#[test]
fn resume_with_id() {
    for _ in 0..10 {
        run_joined(3, |b| body(&b));
    }
}

#[test]
fn resume_with_ip_port_pair() {
    let address = format!("127.0.0.1:{}", free_port());
    run(4, move |r| {
        // Each rank goes on to the next round as soon as it is done with one.
        for _ in 0..5 {
            let b = TcpBootstrap::new(r, 4).unwrap();
            b.initialize_at(&address, secs(20)).unwrap();
            body(&b);
        }
    });
}

#[test]
fn rounds_on_one_port_may_overlap() {
    let address = format!("127.0.0.1:{}", free_port());
    run(3, move |r| {
        let jobs: Vec<TcpBootstrap> = (0..3)
            .map(|_| {
                let b = TcpBootstrap::new(r, 3).unwrap();
                b.initialize_at(&address, secs(20)).unwrap();
                b
            })
            .collect();
        jobs.iter().for_each(|b| body(b));
    });
}

#[test]
fn exit_before_connect() {
    let b = TcpBootstrap::new(0, 2).unwrap();
    let id = b.create_unique_id_at(LOCALHOST).unwrap();
    let again = b.create_unique_id_at(LOCALHOST).unwrap();
    assert_eq!(id.to_bytes(), again.to_bytes());
    drop(b);
    // The port is free again.
    std::net::TcpListener::bind(id.address()).unwrap();
    drop(TcpBootstrap::new(1, 2).unwrap());
}

/// Every rank has its own id, so that nobody meets; returns the longest time that
/// one waited for its limit of a second.
fn wait_in_vain() -> Duration {
    let outcomes = run(4, |r| {
        let b = TcpBootstrap::new(r, 4).unwrap();
        let id = b.create_unique_id_at(LOCALHOST).unwrap();
        let start = Instant::now();
        let error = b.initialize(&id, secs(1)).unwrap_err();
        let took = start.elapsed();
        assert!(matches!(error, BootstrapError::Timeout { .. }), "{error}");
        assert!(took >= secs(1) && took < secs(2), "{took:?}");
        assert!(matches!(
            b.initialize(&id, secs(1)),
            Err(BootstrapError::FailedBefore { .. })
        ));
        (error.to_string(), took)
    });
    let root = &outcomes[0].0;
    assert!(root.contains("waiting for ranks 1, 2, 3"), "{root}");
    assert!(root.contains("the same MSCCLPP_ROOT"), "{root}");
    for (text, _) in &outcomes[1..] {
        assert!(text.contains("waiting for rank 0"), "{text}");
    }
    outcomes.into_iter().map(|(_, took)| took).max().unwrap()
}

#[test]
fn timeout_with_id() {
    // A busy machine may hold a thread up, though not every time.
    let in_time = |took: Duration| took < Duration::from_millis(1100);
    assert!((0..5).any(|_| in_time(wait_in_vain())));
}

#[test]
fn all_who_came_are_told_who_is_missing() {
    let zero = TcpBootstrap::new(0, 4).unwrap();
    let id = zero.create_unique_id_at(LOCALHOST).unwrap();
    let zero = Arc::new(Mutex::new(Some(zero)));
    // Rank 3 never comes.
    let errors = run(3, move |r| {
        let b = match r {
            0 => zero.lock().unwrap().take().unwrap(),
            _ => TcpBootstrap::new(r, 4).unwrap(),
        };
        b.initialize(&id, secs(1)).unwrap_err()
    });
    for error in errors {
        let BootstrapError::Timeout { waiting_for, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(waiting_for, &[3], "{error}");
    }
}

#[test]
fn times_without_end_are_times() {
    let options = TcpOptions::new()
        .silence(Duration::MAX)
        .timeout(Duration::MAX);
    run_joined_with(3, options, |b| body(&b));
    let none = TcpOptions::new().silence(Duration::ZERO);
    run_joined_with(2, none, |b| drop(b.barrier()));
}

#[test]
fn an_object_joins_once() {
    run_joined(1, |b| {
        assert!(matches!(
            b.initialize_at("127.0.0.1:9", secs(1)),
            Err(BootstrapError::AlreadyInitialized { rank: 0 })
        ));
        assert!(b.create_unique_id_at(LOCALHOST).is_err());
    });
}

#[test]
fn nothing_works_before_joining_and_ranks_are_checked() {
    assert!(matches!(
        TcpBootstrap::new(0, 0),
        Err(BootstrapError::WorldSize { .. })
    ));
    assert!(matches!(
        TcpBootstrap::new(2, 2),
        Err(error @ BootstrapError::RankOutOfRange { .. })
            if error.to_string().starts_with("rank 2 does not exist")
    ));
    let b = TcpBootstrap::new(0, 2).unwrap();
    assert!(matches!(
        b.barrier(),
        Err(BootstrapError::NotInitialized { rank: 0 })
    ));
    for bad in ["", "1.2.3.4", "::1:5", "nowhere:5"] {
        assert!(matches!(
            b.initialize_at(bad, secs(1)),
            Err(BootstrapError::BadAddress { .. })
        ));
    }
    // None of that used the object up.
    drop(b.create_unique_id_at(LOCALHOST).unwrap());
}

/// Runs ranks of the given numbers in worlds of the given sizes.
fn mismatched(ranks: &'static [(usize, usize)]) -> Vec<BootstrapError> {
    let zero = TcpBootstrap::new(0, ranks[0].1).unwrap();
    let id = zero.create_unique_id_at(LOCALHOST).unwrap();
    let zero = Arc::new(Mutex::new(Some(zero)));
    let start = Instant::now();
    let errors = run(ranks.len(), move |i| {
        let (rank, world) = ranks[i];
        let b = match i {
            0 => zero.lock().unwrap().take().unwrap(),
            _ => TcpBootstrap::new(rank, world).unwrap(),
        };
        b.initialize(&id, secs(20)).unwrap_err()
    });
    assert!(start.elapsed() < secs(5), "they need not wait");
    errors
}

#[test]
fn a_rank_that_comes_twice_is_named_to_all() {
    for error in mismatched(&[(0, 4), (1, 4), (2, 4), (2, 4)]) {
        assert!(
            matches!(error, BootstrapError::DuplicateRank { rank: 2, .. }),
            "{error}"
        );
    }
}

#[test]
fn a_second_rank_0_is_named_to_all() {
    let zero = TcpBootstrap::new(0, 2).unwrap();
    let id = zero.create_unique_id_at(LOCALHOST).unwrap();
    let other = TcpBootstrap::new(0, 2).unwrap();
    let error = other.initialize(&id, secs(1)).unwrap_err();
    assert!(error.to_string().contains("listening at"), "{error}");
    assert!(error.to_string().contains("a second rank 0"), "{error}");
}

#[test]
fn another_world_size_is_named_to_all() {
    for error in mismatched(&[(0, 3), (1, 3), (2, 4)]) {
        assert!(
            matches!(
                error,
                BootstrapError::WorldMismatch {
                    rank: 2,
                    theirs: 4,
                    ours: 3
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn a_wrong_secret_is_refused_within_seconds_and_harms_nobody() {
    let address = format!("127.0.0.1:{}", free_port());
    let start = Instant::now();
    let outcomes = run(3, move |i| {
        // The third process has rank 1 as well, and another secret.
        let secret = Secret::new(if i == 2 {
            *b"another-secret!!"
        } else {
            *b"the-real-secret!"
        });
        let options = TcpOptions::new().secret(secret.unwrap());
        let b = TcpBootstrap::with_options(i.min(1), 2, options).unwrap();
        if i == 1 {
            // The impostor comes first.
            std::thread::sleep(Duration::from_millis(300));
        }
        let outcome = b.initialize_at(&address, secs(20));
        if outcome.is_ok() {
            body(&b);
        }
        outcome.map_err(|e| e.to_string())
    });
    assert!(outcomes[0].is_ok() && outcomes[1].is_ok(), "{outcomes:?}");
    // Once the real ranks have met, nobody listens there any more.
    let refused = outcomes[2].as_ref().unwrap_err();
    assert!(
        refused.contains("MSCCLPP_SECRET") || refused.contains("waiting for rank 0"),
        "{refused}"
    );
    assert!(start.elapsed() < secs(30));
}

#[test]
fn a_wrong_secret_is_the_reported_reason() {
    let address = format!("127.0.0.1:{}", free_port());
    let errors = run(2, move |r| {
        let secret = Secret::new(if r == 0 {
            *b"another-secret!!"
        } else {
            *b"the-real-secret!"
        });
        let options = TcpOptions::new().secret(secret.unwrap());
        let b = TcpBootstrap::with_options(r, 2, options).unwrap();
        let start = Instant::now();
        let error = b.initialize_at(&address, secs(4)).unwrap_err();
        (error, start.elapsed())
    });
    let (root, visitor) = (&errors[0], &errors[1]);
    assert!(
        root.0.to_string().contains("failed their proof"),
        "{}",
        root.0
    );
    assert!(matches!(visitor.0, BootstrapError::ProofRefused { .. }));
    assert!(visitor.1 < secs(4), "it does not wait for the deadline");
}

#[test]
fn without_a_secret_others_than_loopback_are_refused() {
    for rank in 0..2 {
        let b = TcpBootstrap::new(rank, 2).unwrap();
        // An address of documentation: nothing is ever sent there by rank 1, and
        // rank 0 can not listen there.
        let error = b.initialize_at("192.0.2.250:5", secs(1)).unwrap_err();
        match rank {
            0 => assert!(matches!(error, BootstrapError::Io { .. }), "{error}"),
            _ => assert!(
                matches!(error, BootstrapError::SecretRequired { .. }),
                "{error}"
            ),
        }
    }
}

#[test]
fn a_rank_that_gives_up_ends_the_joining_of_all() {
    let zero = TcpBootstrap::new(0, 3).unwrap();
    let id = zero.create_unique_id_at(LOCALHOST).unwrap();
    let zero = Arc::new(Mutex::new(Some(zero)));
    let start = Instant::now();
    // Rank 2 never comes; rank 1 waits for a second only.
    let errors = run(2, move |r| {
        let b = match r {
            0 => zero.lock().unwrap().take().unwrap(),
            _ => TcpBootstrap::new(r, 3).unwrap(),
        };
        b.initialize(&id, secs(if r == 0 { 20 } else { 1 }))
            .unwrap_err()
    });
    assert!(start.elapsed() < secs(3));
    for error in errors {
        let BootstrapError::Timeout { waiting_for, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(waiting_for, &[2], "{error}");
    }
}

#[test]
fn joining_works_inside_an_async_runtime() {
    run(2, {
        let address = format!("127.0.0.1:{}", free_port());
        move |r| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let b = TcpBootstrap::new(r, 2).unwrap();
                b.initialize_at(&address, secs(20)).unwrap();
                body(&b);
            });
        }
    });
}

#[test]
fn sixty_four_ranks_join_quickly() {
    let start = Instant::now();
    run_joined(64, |b| b.barrier().unwrap());
    let took = start.elapsed();
    println!("64 ranks as threads joined, met in a barrier and left in {took:?}");
    assert!(took < secs(10), "{took:?}");
}
