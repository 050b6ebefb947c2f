// SPDX-License-Identifier: MIT
//! Rank 2 of three has gone bad: it speaks the job's protocol, over real sockets and with the job's
//! key, and sends what others said, what was said before, or what nobody says. Ranks 0 and 1 get
//! errors that name it, and work on.

mod common;

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use common::{LOCALHOST, patience};
use mscclpp_bootstrap::{Bootstrap, Tag, TcpBootstrap, TcpOptions};
use mscclpp_port::{
    Buffer, Communicator, Connection, Device, EndpointConfig, Error, RegisteredMemory,
    TransportKind,
};

/// The number that communicators take among the layers between users and bootstrap.
const LAYER: u8 = 1;
const BAD: usize = 2;
const SIZE: u64 = 64;

/// One rank of the job.
struct Rank {
    bootstrap: Arc<dyn Bootstrap>,
    communicator: Communicator,
}

impl Rank {
    /// Connects with `rank` as the protocol has it.
    fn connect(&self, rank: usize, tag: u32) -> Connection {
        let pending = self.communicator.connect(ethernet(), rank, tag).unwrap();
        pending.get_by(patience()).unwrap()
    }

    fn memory(&self) -> (Buffer, RegisteredMemory) {
        let buffer = Buffer::new(Device::cpu(), SIZE).unwrap();
        let memory = self.communicator.register_memory(&buffer, 0..SIZE).unwrap();
        (buffer, memory)
    }

    /// What `rank` has sent on a tag, as it is on the wire.
    fn overhear(&self, rank: usize, tag: u32) -> Vec<u8> {
        let tag = Tag::layered(LAYER, tag);
        self.bootstrap.recv(rank, tag, patience()).unwrap()
    }

    /// Sends bytes as if they were a record.
    fn say(&self, rank: usize, tag: u32, bytes: &[u8]) {
        let tag = Tag::layered(LAYER, tag);
        (self.bootstrap.send(rank, tag, bytes, patience())).unwrap();
    }

    /// Rank 2 keeps what it has until rank 0 lets it go.
    fn stay(&self) {
        (self.bootstrap.recv(0, Tag::user(0), patience())).unwrap();
    }

    fn let_go(&self) {
        (self.bootstrap.send(BAD, Tag::user(0), &[], patience())).unwrap();
    }

    /// Ranks 0 and 1 connect and write, whatever rank 2 has done.
    fn work_on(&self) {
        let me = self.bootstrap.rank();
        if me == BAD {
            return;
        }
        let peer = 1 - me;
        let connection = self.connect(peer, 100);
        let (buffer, mine) = self.memory();
        self.communicator.send_memory(&mine, peer, 101).unwrap();
        let theirs = self.communicator.recv_memory(peer, 101).unwrap();
        let theirs = theirs.get_by(patience()).unwrap();
        buffer.write(0, &[me as u8 + 1; 8]).unwrap();
        connection.write(&theirs, 32, &mine, 0, 8).unwrap();
        connection.flush(patience()).unwrap();
        self.bootstrap.group_barrier(&[0, 1]).unwrap();
        let mut there = [0; 8];
        buffer.read(32, &mut there).unwrap();
        assert_eq!(there, [peer as u8 + 1; 8]);
    }
}

fn ethernet() -> EndpointConfig {
    EndpointConfig::new(TransportKind::Ethernet)
}

/// Runs `rank` on each of three ranks, then the work of the good ones.
fn job(rank: impl Fn(&Rank) + Send + Sync) {
    let options = TcpOptions::new().timeout(Duration::from_secs(20));
    let new = |rank| TcpBootstrap::with_options(rank, 3, options.clone()).unwrap();
    let zero = new(0);
    let id = zero.create_unique_id_at(LOCALHOST).unwrap();
    let ranks = [zero, new(1), new(BAD)];
    let end = Barrier::new(3);
    thread::scope(|scope| {
        let threads: Vec<_> = (ranks.into_iter())
            .map(|bootstrap| {
                let (id, rank, end) = (&id, &rank, &end);
                scope.spawn(move || {
                    bootstrap.initialize(id, Duration::from_secs(20)).unwrap();
                    let bootstrap = Arc::new(bootstrap) as Arc<dyn Bootstrap>;
                    let communicator = Communicator::new(Arc::clone(&bootstrap)).unwrap();
                    let one = Rank {
                        bootstrap,
                        communicator,
                    };
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        rank(&one);
                        one.work_on();
                    }));
                    end.wait();
                    outcome.unwrap();
                })
            })
            .collect();
        threads.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

/// That what rank 2 said is refused at once, and how.
fn refused<T>(result: Result<T, Error>, start: Instant, words: &[&str]) {
    let error = result.err().expect("it is taken");
    assert!(matches!(error, Error::Record { .. }), "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{text}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{text}");
}

#[test]
fn an_endpoint_of_another_rank_is_refused() {
    job(|rank| match rank.bootstrap.rank() {
        0 => {
            // Rank 1's, and then its own: connected, it would take itself for rank 2.
            for (tag, owner) in [(1, "rank 1"), (2, "rank 0")] {
                let start = Instant::now();
                let pending = rank.communicator.connect(ethernet(), BAD, tag).unwrap();
                refused(pending.get_by(patience()), start, &["rank 2", owner]);
            }
        }
        1 => drop(rank.communicator.connect(ethernet(), BAD, 1).unwrap()),
        _ => {
            let of_another = rank.overhear(1, 1);
            let of_the_first = rank.overhear(0, 1);
            rank.say(0, 1, &of_another);
            rank.say(0, 2, &of_the_first);
        }
    });
}

#[test]
fn a_semaphore_of_another_rank_is_refused() {
    job(|rank| match rank.bootstrap.rank() {
        0 => {
            let connection = rank.connect(BAD, 1);
            // The token of the first comes back for the second.
            let asked = [2, 3].map(|tag| {
                let pending = rank.communicator.build_semaphore(&connection, BAD, tag);
                pending.unwrap()
            });
            for (pending, owner) in asked.iter().zip(["rank 1", "rank 0"]).rev() {
                let start = Instant::now();
                refused(pending.get_by(patience()), start, &["rank 2", owner]);
            }
            assert!(connection.status().is_none());
            rank.let_go();
        }
        1 => {
            let connection = rank.connect(BAD, 1);
            drop((rank.communicator.build_semaphore(&connection, BAD, 2)).unwrap());
        }
        _ => {
            let zero = rank.communicator.connect(ethernet(), 0, 1).unwrap();
            let one = rank.communicator.connect(ethernet(), 1, 1).unwrap();
            let _connections = [
                zero.get_by(patience()).unwrap(),
                one.get_by(patience()).unwrap(),
            ];
            let of_another = rank.overhear(1, 2);
            let of_the_first = rank.overhear(0, 2);
            rank.say(0, 2, &of_another);
            rank.say(0, 3, &of_the_first);
            rank.stay();
        }
    });
}

/// Rights to a memory may be handed on, but not used over a connection to another than its owner.
#[test]
fn memory_of_another_rank_is_not_written_over_a_connection_to_its_sender() {
    job(|rank| match rank.bootstrap.rank() {
        0 => {
            let connection = rank.connect(BAD, 1);
            let memory = rank.communicator.recv_memory(BAD, 2).unwrap();
            let memory = memory.get_by(patience()).unwrap();
            assert_eq!(memory.owner_rank(), Some(1));
            let (_buffer, source) = rank.memory();
            for (what, error) in [
                ("write", connection.write(&memory, 0, &source, 0, 8)),
                ("signal", connection.signal(&memory, 0)),
                ("accumulate", connection.accumulate(&memory, 0, 1)),
            ] {
                let text = error.expect_err(what).to_string();
                assert!(text.contains("rank 1"), "{what}: {text}");
            }
            rank.let_go();
            rank.bootstrap.group_barrier(&[0, 1]).unwrap();
        }
        1 => {
            let (buffer, memory) = rank.memory();
            rank.communicator.send_memory(&memory, BAD, 2).unwrap();
            rank.bootstrap.group_barrier(&[0, 1]).unwrap();
            let mut bytes = [0; SIZE as usize];
            buffer.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; SIZE as usize]);
        }
        _ => {
            let _connection = rank.connect(0, 1);
            let record = rank.overhear(1, 2);
            rank.say(0, 2, &record);
            // The connection stays until rank 0 has tried.
            rank.stay();
        }
    });
}

#[test]
fn what_is_no_record_is_an_error_and_the_next_record_is_taken() {
    type Change = fn(Vec<u8>) -> Vec<u8>;
    let bad: [(Change, &str); 6] = [
        (
            |mut record| {
                record[0] += 1;
                record
            },
            "version",
        ),
        (|record| record[..record.len() - 1].to_vec(), ""),
        (|record| [record, vec![0]].concat(), "left over"),
        (|_| Vec::new(), "empty"),
        (|_| vec![1; 9000], "9000"),
        (|record| vec![0xc1; record.len()], ""),
    ];
    job(|rank| match rank.bootstrap.rank() {
        0 => {
            for (_, word) in &bad {
                let pending = rank.communicator.recv_memory(BAD, 1).unwrap();
                refused(
                    pending.get_by(patience()),
                    Instant::now(),
                    &["rank 2", word],
                );
            }
            let pending = rank.communicator.recv_memory(BAD, 1).unwrap();
            assert_eq!(pending.get_by(patience()).unwrap().size(), SIZE);
        }
        1 => {
            let (_buffer, memory) = rank.memory();
            rank.communicator.send_memory(&memory, BAD, 1).unwrap();
        }
        _ => {
            let good = rank.overhear(1, 1);
            for (change, _) in &bad {
                rank.say(0, 1, &change(good.clone()));
            }
            rank.say(0, 1, &good);
        }
    });
}

/// What was meant for another call is not taken for the answer to this one.
#[test]
fn what_is_said_on_another_tag_is_waited_for_in_vain() {
    job(|rank| match rank.bootstrap.rank() {
        0 => {
            let pending = rank.communicator.recv_memory(BAD, 2).unwrap();
            let short = mscclpp_bootstrap::Deadline::after(Duration::from_millis(300));
            let error = pending.get_by(short).unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::Timeout {
                        rank: Some(BAD),
                        ..
                    }
                ),
                "{error}"
            );
        }
        1 => {
            let (_buffer, memory) = rank.memory();
            rank.communicator.send_memory(&memory, BAD, 1).unwrap();
        }
        _ => {
            let record = rank.overhear(1, 1);
            rank.say(0, 1, &record);
        }
    });
}
