// SPDX-License-Identifier: MIT
//! A member of a job that goes bad after joining: it has the job's key, and says what no rank says.

use std::net::Ipv4Addr;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::frame::{Head, MAX_MESSAGE};
use super::node::Node;
use super::peers;
use super::{TcpBootstrap, TcpOptions};
use crate::link::{Claims, connect_async};
use crate::{Bootstrap, BootstrapError, Deadline, Tag};

const WORLD: usize = 4;
const STEP: Duration = Duration::from_secs(10);
/// Ranks 1 and 2 have no connection to each other when they have joined.
const VICTIM: usize = 1;
const BAD: usize = 2;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn node(bootstrap: &TcpBootstrap) -> Arc<Node> {
    Arc::clone(&bootstrap.joined.get().unwrap().joined.0)
}

/// A joined world; `rank` runs on each, and all end together.
fn world(step: Duration, rank: impl Fn(&TcpBootstrap) + Send + Sync) {
    let options = TcpOptions::new().timeout(step);
    let new = |rank| TcpBootstrap::with_options(rank, WORLD, options.clone()).unwrap();
    let zero = new(0);
    let id = zero
        .create_unique_id_at(Ipv4Addr::LOCALHOST.into())
        .unwrap();
    let ranks: Vec<_> = std::iter::once(zero).chain((1..WORLD).map(new)).collect();
    let end = Barrier::new(WORLD);
    thread::scope(|scope| {
        let threads: Vec<_> = (ranks.iter())
            .map(|bootstrap| {
                let (id, rank, end) = (&id, &rank, &end);
                scope.spawn(move || {
                    bootstrap.initialize(id, Duration::from_secs(20)).unwrap();
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        rank(bootstrap);
                    }));
                    end.wait();
                    outcome.unwrap();
                })
            })
            .collect();
        threads.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

/// A connection to the victim, made by the rules as far as `claims` are by the rules.
async fn called(node: &Node, claims: Claims) -> Result<TcpStream, String> {
    let address = node.places.get().unwrap()[claims.to as usize].address;
    let mut call = peers::call(node, VICTIM, address).unwrap();
    call.address = node.places.get().unwrap()[VICTIM].address;
    call.claims = claims;
    connect_async(&call, false, soon())
        .await
        .map_err(|error| format!("{:?}", error.into_error(address)))
}

/// The bad rank opens a connection to the victim, lets it know by rank 0, says `words`, and waits
/// for it to be closed.
fn say(bootstrap: &TcpBootstrap, words: &[u8]) {
    let node = node(bootstrap);
    let claims = Claims {
        from: BAD as u32,
        to: VICTIM as u32,
        world: WORLD as u32,
    };
    let mut stream = node.runtime.block_on(async {
        let mut stream = called(&node, claims).await.unwrap();
        stream.write_all(&Head::Open.encode()).await.unwrap();
        let mut opened = [0; Head::BYTES];
        stream.read_exact(&mut opened).await.unwrap();
        assert_eq!(Head::decode(&opened).unwrap(), Head::Open);
        stream
    });
    bootstrap.send(0, Tag::user(0), &[], soon()).unwrap();
    node.runtime.block_on(async {
        // It may close before it has read all.
        let _ = stream.write_all(words).await;
        let closed = async { while let Ok(1..) = stream.read(&mut [0; 256]).await {} };
        let closed = tokio::time::timeout(Duration::from_secs(8), closed).await;
        closed.expect("the victim goes on listening");
    });
}

fn piece(head: Head, bytes: &[u8]) -> Vec<u8> {
    [&head.encode()[..], bytes].concat()
}

#[test]
fn a_member_that_breaks_the_protocol_is_named_and_the_others_go_on() {
    let tag = Tag::user(1);
    let first = |total| Head::First {
        tag,
        total,
        piece: total as usize,
    };
    let mut version = Head::Goodbye.encode();
    version[1] += 1;
    let mut huge = first(8).encode();
    huge[16..].copy_from_slice(&(MAX_MESSAGE + 1).to_le_bytes());
    let nobody = Head::Death { rank: 99, cause: 2 };
    for (what, words, cause) in [
        ("another version", version.to_vec(), "another version"),
        ("garbage", vec![0xff; 64], "unused"),
        (
            "a message that is too long",
            huge.to_vec(),
            "larger than the limit",
        ),
        (
            "the rest of no message",
            piece(Head::Further { tag, piece: 1 }, b"x"),
            "does not belong",
        ),
        (
            "an opening in the midst",
            Head::Open.encode().to_vec(),
            "twice",
        ),
        (
            "the death of a rank that does not exist",
            piece(nobody, b"ha"),
            "does not exist",
        ),
    ] {
        world(STEP, |bootstrap| match bootstrap.rank() {
            BAD => say(bootstrap, &words),
            VICTIM => {
                // Else it would call the bad rank itself.
                bootstrap.recv(0, Tag::user(0), soon()).unwrap();
                let error = bootstrap.recv(BAD, Tag::user(9), soon()).unwrap_err();
                let BootstrapError::PeerFailed {
                    rank, cause: said, ..
                } = &error
                else {
                    panic!("{what}: {error}");
                };
                assert_eq!(*rank, BAD, "{what}: {error}");
                assert!(said.contains(cause), "{what}: {error}");
                bootstrap.send(3, tag, b"still here", soon()).unwrap();
                assert_eq!(bootstrap.recv(0, tag, soon()).unwrap(), b"and I");
            }
            3 => assert_eq!(bootstrap.recv(VICTIM, tag, soon()).unwrap(), b"still here"),
            _ => {
                bootstrap.recv(BAD, Tag::user(0), soon()).unwrap();
                bootstrap.send(VICTIM, Tag::user(0), &[], soon()).unwrap();
                bootstrap.send(VICTIM, tag, b"and I", soon()).unwrap();
            }
        });
    }
}

#[test]
fn a_member_that_calls_by_wrong_numbers_is_refused() {
    let world_size = WORLD as u32;
    let claims = |from, to, world| Claims { from, to, world };
    let cases = [
        // Meant for another rank: passed on, for example, by one that was called.
        (claims(2, 0, world_size), "ranks do not fit"),
        (claims(2, 3, world_size), "ranks do not fit"),
        // By one that does not exist, and by the called itself.
        (claims(99, 1, world_size), "ranks do not fit"),
        (claims(1, 1, world_size), "ranks do not fit"),
        (claims(2, 1, 5), "size of the world"),
        // As a rank that is connected already.
        (claims(0, 1, world_size), "connected"),
    ];
    world(STEP, |bootstrap| {
        if bootstrap.rank() == BAD {
            let node = node(bootstrap);
            for (claims, reason) in cases {
                let refused = node.runtime.block_on(called(&node, claims)).unwrap_err();
                assert!(refused.contains(reason), "{claims:?}: {refused}");
            }
        }
        // Nobody took harm.
        bootstrap.barrier().unwrap();
    });
}

#[test]
fn what_no_collective_sends_is_an_error_that_names_the_sender() {
    let world_tag = Tag::WORLD;
    for (what, words) in [
        ("nothing", Vec::new()),
        ("garbage", vec![0xff; 40]),
        ("another version", {
            let mut bytes = vec![0; 20];
            bytes[0] = 9;
            bytes
        }),
    ] {
        world(Duration::from_secs(2), |bootstrap| {
            if bootstrap.rank() == BAD {
                bootstrap.send(0, world_tag, &words, soon()).unwrap();
                return;
            }
            let error = bootstrap.barrier().unwrap_err();
            if bootstrap.rank() == 0 {
                let text = error.to_string();
                assert!(text.contains("rank 2"), "{what}: {text}");
            }
        });
    }
}
