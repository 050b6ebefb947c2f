// SPDX-License-Identifier: MIT
//! A bootstrap of a user, with nothing but the four methods.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use mscclpp_bootstrap::gate::Cause;
use mscclpp_bootstrap::{Bootstrap, BootstrapError, Deadline, Gate, ReduceOp, Tag, Turns};

use crate::body;
use crate::local::{Local, local_world};

type Queues = HashMap<(usize, usize, Tag), VecDeque<Vec<u8>>>;

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    changed: Condvar,
}

pub(crate) struct InMemory {
    rank: usize,
    world: usize,
    shared: Arc<Shared>,
}

impl Bootstrap for InMemory {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world
    }

    fn send(&self, peer: usize, tag: Tag, data: &[u8], _: Deadline) -> Result<(), BootstrapError> {
        let key = (self.rank, peer, tag);
        let mut queues = self.shared.queues.lock().unwrap();
        queues.entry(key).or_default().push_back(data.to_vec());
        self.shared.changed.notify_all();
        Ok(())
    }

    fn recv(&self, peer: usize, tag: Tag, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        let key = (peer, self.rank, tag);
        let queues = self.shared.queues.lock().unwrap();
        let empty = |queues: &mut Queues| queues.get(&key).is_none_or(VecDeque::is_empty);
        let (mut queues, _) = self
            .shared
            .changed
            .wait_timeout_while(queues, deadline.remaining(), empty)
            .unwrap();
        let message = queues.get_mut(&key).and_then(VecDeque::pop_front);
        message.ok_or_else(|| BootstrapError::Timeout {
            rank: self.rank,
            operation: "recv".into(),
            waiting_for: vec![peer],
            waited: deadline.budget(),
            hint: String::new(),
        })
    }

    fn timeout(&self) -> Duration {
        body::secs(5)
    }
}

pub(crate) fn in_memory(world: usize) -> impl Fn(usize) -> InMemory + Clone {
    let shared = Arc::new(Shared::default());
    move |rank| InMemory {
        rank,
        world,
        shared: Arc::clone(&shared),
    }
}

#[test]
fn a_users_bootstrap_satisfies_the_body() {
    for world in [1, 2, 3, 4, 7] {
        let make = in_memory(world);
        body::run(world, move |rank| body::body(&make(rank)));
    }
}

#[test]
fn a_users_bootstrap_gets_every_collective() {
    for world in 1..=9 {
        let make = in_memory(world);
        body::run(world, move |rank| {
            let b = make(rank);
            crate::collectives::all_collectives_give_the_right_results(&b);
        });
    }
}

#[test]
fn a_collective_that_lacks_a_rank_names_it_and_the_step() {
    let make = in_memory(4);
    let texts = body::run(3, move |rank| {
        struct Hasty(InMemory);
        impl Bootstrap for Hasty {
            fn rank(&self) -> usize {
                self.0.rank
            }
            fn world_size(&self) -> usize {
                4
            }
            fn send(
                &self,
                peer: usize,
                tag: Tag,
                data: &[u8],
                deadline: Deadline,
            ) -> Result<(), BootstrapError> {
                self.0.send(peer, tag, data, deadline)
            }
            fn recv(
                &self,
                peer: usize,
                tag: Tag,
                deadline: Deadline,
            ) -> Result<Vec<u8>, BootstrapError> {
                self.0.recv(peer, tag, deadline)
            }
            fn timeout(&self) -> Duration {
                Duration::from_millis(200)
            }
        }
        Hasty(make(rank))
            .all_reduce(1, ReduceOp::Sum)
            .unwrap_err()
            .to_string()
    });
    // Rank 3 is a leaf below rank 2.
    assert!(
        texts[2].contains("all-reduce (Sum), step 1"),
        "{}",
        texts[2]
    );
    assert!(texts[2].contains("waiting for rank 3"), "{}", texts[2]);
    assert_eq!(texts[2].matches("rank 3").count(), 1, "{}", texts[2]);
}

/// Its peer is a bad one: it sends its first message again and again, for longer than anything takes.
struct Flooded {
    inner: Local,
    flood: Mutex<Option<(Vec<u8>, Instant)>>,
}

impl Flooded {
    const LASTS: Duration = body::secs(20);
}

impl Bootstrap for Flooded {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn turns(&self) -> Option<&Turns> {
        self.inner.turns()
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn send(&self, to: usize, tag: Tag, data: &[u8], by: Deadline) -> Result<(), BootstrapError> {
        self.inner.send(to, tag, data, by)
    }

    fn recv(&self, from: usize, tag: Tag, by: Deadline) -> Result<Vec<u8>, BootstrapError> {
        let mut flood = self.flood.lock().unwrap();
        match &*flood {
            Some((again, first)) if first.elapsed() < Self::LASTS => Ok(again.clone()),
            Some(_) => self.inner.recv(from, tag, by),
            None => {
                let message = self.inner.recv(from, tag, body::soon())?;
                *flood = Some((message.clone(), Instant::now()));
                Ok(message)
            }
        }
    }
}

#[test]
fn what_is_of_earlier_collectives_does_not_make_one_endless() {
    let mut ranks = local_world(2);
    let (peer, inner) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let flood = Mutex::default();
    let flooded = Flooded { inner, flood };
    std::thread::scope(|scope| {
        scope.spawn(|| peer.barrier().unwrap());
        flooded.barrier().unwrap();
    });
    let error = flooded.barrier().unwrap_err();
    let (_, first) = flooded.flood.into_inner().unwrap().unwrap();
    assert!(first.elapsed() < Flooded::LASTS, "{error}");
    assert!(error.is_timeout(), "{error}");
    let text = error.to_string();
    assert!(text.contains("waiting for rank 1"), "{text}");
    assert_eq!(text.matches("rank 1").count(), 1, "{text}");
}

#[test]
fn what_was_said_before_does_not_make_a_gate_endless() {
    let mut ranks = local_world(2);
    let (peer, inner) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let flood = Mutex::default();
    let flooded = Flooded { inner, flood };
    let step = || Ok::<_, Cause>(());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut gate = Gate::new(&peer, 0, Deadline::after(body::secs(3))).unwrap();
            let _ = gate.pass("step", step());
        });
        let mut gate = Gate::new(&flooded, 0, Deadline::after(body::secs(1))).unwrap();
        // Whatever is in the message that comes again and again.
        let passed = (0..3).try_for_each(|_| gate.pass("step", step()));
        let error = passed.unwrap_err();
        let (_, first) = flooded.flood.lock().unwrap().clone().unwrap();
        assert!(first.elapsed() < Flooded::LASTS, "{error}");
    });
}
