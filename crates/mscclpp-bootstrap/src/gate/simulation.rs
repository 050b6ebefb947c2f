// SPDX-License-Identifier: MIT
//! Many ranks in one thread and in simulated time: every message, with a random
//! delay, every death and every timer is an event of one queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use super::error::{Cause, Reason, SetupError};
use super::machine::Machine;
use super::wire::Message;
use crate::plan::{Check, Next, PHASE, Plan, PlanFault};

pub(super) const TIME: Duration = Duration::from_secs(30);

pub(super) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// xorshift: seeded, and good enough to shuffle events.
#[derive(Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }
}

/// What a rank does at the gates.
pub(super) enum Program {
    /// Steps, each with how long it takes.
    Phases(Vec<(Duration, Result<(), &'static str>)>),
    Plan(Result<Plan, PlanFault>, Check),
}

pub(super) struct Rank {
    machine: Machine,
    pub(super) program: Program,
    /// When it begins.
    pub(super) begins: Duration,
    /// How long it gives, from then on.
    pub(super) time: Duration,
    /// It dies when it would send the message of this number.
    pub(super) dies_before_message: Option<u64>,
    /// It dies at this moment.
    pub(super) dies_at: Option<Duration>,
    /// It is stopped from the first of these moments to the second.
    pub(super) stopped: Option<(Duration, Duration)>,
    /// It neither sends nor receives from this moment on, and is not dead.
    pub(super) hangs_at: Option<Duration>,
    /// What it sees of neighbours: in order, `None` is the end.
    mailboxes: HashMap<usize, VecDeque<Option<Vec<u8>>>>,
    running: bool,
    pub(super) dead: bool,
    /// The gates that it passed.
    pub(super) passed: usize,
    pub(super) result: Option<Result<(), SetupError>>,
    pub(super) ended_at: Duration,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    /// The most messages that it sent at one gate.
    pub(super) most_sent_at_a_gate: u64,
    sent_before_gate: u64,
}

enum Event {
    /// The next step of the rank is done.
    Step(usize),
    Arrives(usize, usize, Option<Vec<u8>>),
    Timer(usize),
    Death(usize),
    Resumed(usize),
}

pub(super) struct Simulation {
    pub(super) ranks: Vec<Rank>,
    pub(super) random: Random,
    /// Deaths are noticed by the bootstrap.
    pub(super) noticed: bool,
    /// Every message arrives twice.
    pub(super) doubled: bool,
    pub(super) longest_delay: u64,
    pub(super) now: Duration,
    events: BinaryHeap<Reverse<(Duration, u64)>>,
    bodies: HashMap<u64, Event>,
    next_event: u64,
    /// When the last message of an edge arrives.
    edges: HashMap<(usize, usize), Duration>,
}

impl Simulation {
    pub(super) fn new(seed: u64, programs: Vec<Program>) -> Self {
        let world = programs.len();
        let ranks = programs
            .into_iter()
            .enumerate()
            .map(|(rank, program)| Rank {
                machine: Machine::new(rank, world, 0, TIME),
                program,
                begins: Duration::ZERO,
                time: TIME,
                dies_before_message: None,
                dies_at: None,
                stopped: None,
                hangs_at: None,
                mailboxes: HashMap::new(),
                running: false,
                dead: false,
                passed: 0,
                result: None,
                ended_at: Duration::ZERO,
                sent: 0,
                received: 0,
                received_bytes: 0,
                most_sent_at_a_gate: 0,
                sent_before_gate: 0,
            });
        Self {
            ranks: ranks.collect(),
            random: Random::new(seed),
            noticed: true,
            doubled: false,
            longest_delay: 10,
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            bodies: HashMap::new(),
            next_event: 0,
            edges: HashMap::new(),
        }
    }

    /// All ranks with the same phases, none of which takes time or fails.
    pub(super) fn of_phases(seed: u64, world: usize, phases: usize) -> Self {
        let program = || Program::Phases(vec![(Duration::ZERO, Ok(())); phases]);
        Self::new(seed, (0..world).map(|_| program()).collect())
    }

    pub(super) fn of_plans(seed: u64, plans: Vec<Result<Plan, PlanFault>>) -> Self {
        let check = Check::new(plans.len());
        let programs = plans.into_iter().map(|p| Program::Plan(p, check.clone()));
        Self::new(seed, programs.collect())
    }

    pub(super) fn world(&self) -> usize {
        self.ranks.len()
    }

    pub(super) fn fails(&mut self, rank: usize, phase: usize, cause: &'static str) {
        if let Program::Phases(steps) = &mut self.ranks[rank].program {
            steps[phase].1 = Err(cause);
        }
    }

    pub(super) fn takes(&mut self, rank: usize, phase: usize, time: Duration) {
        if let Program::Phases(steps) = &mut self.ranks[rank].program {
            steps[phase].0 = time;
        }
    }

    /// Puts something into a mailbox before the rank begins.
    pub(super) fn leftover(&mut self, at: usize, from: usize, message: &Message) {
        let bytes = message.encode().unwrap();
        let mailbox = self.ranks[at].mailboxes.entry(from).or_default();
        mailbox.push_back(Some(bytes));
    }

    /// Begins another use of the tag, with what is left in the mailboxes.
    pub(super) fn again(&mut self, turn: u64, phases: usize) {
        let world = self.world();
        self.now = Duration::ZERO;
        for (rank, r) in self.ranks.iter_mut().enumerate() {
            r.machine = Machine::new(rank, world, turn, TIME);
            r.program = Program::Phases(vec![(Duration::ZERO, Ok(())); phases]);
            r.begins = Duration::ZERO;
            r.hangs_at = None;
            r.passed = 0;
            r.result = None;
            r.running = false;
        }
        self.edges.clear();
    }

    /// Runs until nothing happens any more.
    pub(super) fn run(&mut self) {
        let world = self.world();
        for rank in 0..world {
            let r = &mut self.ranks[rank];
            let turn = r.machine.turn();
            r.machine = Machine::new(rank, world, turn, r.time);
            let begins = r.begins;
            if let Some(at) = r.dies_at {
                self.schedule(at, Event::Death(rank));
            }
            if let Some((_, end)) = self.ranks[rank].stopped {
                self.schedule(end, Event::Resumed(rank));
            }
            self.schedule_step(rank, begins);
        }
        while let Some(Reverse((at, number))) = self.events.pop() {
            self.now = at;
            let event = self.bodies.remove(&number).unwrap();
            if let Some(end) = self.stopped_until(&event) {
                self.schedule(end, event);
                continue;
            }
            match event {
                Event::Step(rank) => self.enter(rank),
                Event::Arrives(to, from, what) => {
                    let mailbox = self.ranks[to].mailboxes.entry(from).or_default();
                    mailbox.push_back(what);
                    self.go_on(to);
                }
                Event::Timer(rank) => self.go_on(rank),
                Event::Death(rank) => self.die(rank),
                Event::Resumed(rank) => {
                    let r = &mut self.ranks[rank];
                    r.machine.resumed(self.now - r.begins);
                    self.go_on(rank);
                }
            }
        }
    }

    /// When the rank of an event, which is stopped, will see it. What has come
    /// meanwhile is seen a little after it goes on, in order.
    fn stopped_until(&self, event: &Event) -> Option<Duration> {
        let (Event::Step(rank) | Event::Timer(rank) | Event::Arrives(rank, ..)) = event else {
            return None;
        };
        let (from, to) = self.ranks[*rank].stopped?;
        if self.now < from || self.now > to {
            return None;
        }
        match event {
            Event::Arrives(..) => Some(to + millis(3)),
            _ if self.now < to => Some(to),
            _ => None,
        }
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.events.push(Reverse((at, self.next_event)));
        self.bodies.insert(self.next_event, event);
        self.next_event += 1;
    }

    fn schedule_step(&mut self, rank: usize, from: Duration) {
        let r = &self.ranks[rank];
        let takes = match &r.program {
            Program::Phases(steps) => steps[r.passed].0,
            Program::Plan(..) => Duration::ZERO,
        };
        self.schedule(from + takes, Event::Step(rank));
    }

    fn hangs(&self, rank: usize) -> bool {
        self.ranks[rank].hangs_at.is_some_and(|at| self.now >= at)
    }

    fn enter(&mut self, rank: usize) {
        if self.hangs(rank) {
            return;
        }
        let now = self.now;
        let r = &mut self.ranks[rank];
        if r.dead {
            return;
        }
        let (phase, local) = match &r.program {
            Program::Phases(steps) => {
                let failed = |cause| Reason::Failed(Cause::new(cause));
                let local = steps[r.passed].1.map(|()| Vec::new()).map_err(failed);
                (format!("phase {}", r.passed), local)
            }
            Program::Plan(plan, check) => {
                let local = match plan {
                    Ok(plan) => Ok(check.contribution(plan)),
                    Err(fault) => Err(Reason::Plan(fault.clone())),
                };
                (PHASE.to_owned(), local)
            }
        };
        r.sent_before_gate = r.sent;
        r.running = true;
        r.machine.enter(now - r.begins, &phase, local);
        self.go_on(rank);
    }

    /// What the driver does: take what is there, let the machine act, send.
    fn go_on(&mut self, rank: usize) {
        if self.hangs(rank) {
            return;
        }
        let world = self.world();
        let r = &mut self.ranks[rank];
        if r.dead || !r.running {
            return;
        }
        let now = self.now - r.begins;
        for from in r.machine.listens() {
            let mailbox = r.mailboxes.entry(from).or_default();
            while r.machine.outcome().is_none() {
                match mailbox.front() {
                    Some(Some(bytes)) => {
                        let message = Message::decode(bytes, world).unwrap();
                        r.received += 1;
                        r.received_bytes += bytes.len() as u64;
                        mailbox.pop_front();
                        r.machine.message(now, from, message);
                    }
                    // Stays: whoever looks again sees it again.
                    Some(None) => {
                        r.machine.lost(from, Reason::Died(Cause::new("seen")));
                        break;
                    }
                    None => break,
                }
            }
        }
        r.machine.tick(now);
        while let Some((to, message)) = self.ranks[rank].machine.take_message() {
            if self.ranks[rank].dies_before_message == Some(self.ranks[rank].sent) {
                return self.die(rank);
            }
            self.ranks[rank].sent += 1;
            let bytes = message.encode().unwrap();
            if self.doubled {
                self.send(rank, to, Some(bytes.clone()));
            }
            self.send(rank, to, Some(bytes));
        }
        self.conclude(rank);
    }

    fn conclude(&mut self, rank: usize) {
        let now = self.now;
        let r = &mut self.ranks[rank];
        let Some(outcome) = r.machine.outcome() else {
            let at = r.begins + r.machine.wake_at();
            return self.schedule(at.max(now), Event::Timer(rank));
        };
        r.running = false;
        r.most_sent_at_a_gate = r.most_sent_at_a_gate.max(r.sent - r.sent_before_gate);
        let end = match outcome {
            Err(error) => Some(Err(error)),
            Ok(sum) => r.next_gate(&sum),
        };
        match end {
            None => self.schedule_step(rank, now),
            Some(result) => {
                r.result = Some(result);
                r.ended_at = now;
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, what: Option<Vec<u8>>) {
        let delay = Duration::from_micros(self.random.below(self.longest_delay * 1000) + 1);
        let last = self.edges.get(&(from, to)).copied().unwrap_or_default();
        let at = (self.now + delay).max(last);
        self.edges.insert((from, to), at);
        self.schedule(at, Event::Arrives(to, from, what));
    }

    fn die(&mut self, rank: usize) {
        if std::mem::replace(&mut self.ranks[rank].dead, true) {
            return;
        }
        if self.noticed {
            // The news takes other ways, and may overtake what the dead has sent.
            for other in 0..self.world() {
                let delay = Duration::from_micros(self.random.below(20_000));
                self.schedule(self.now + delay, Event::Arrives(other, rank, None));
            }
        }
    }
}

impl Rank {
    /// After a gate that was passed: the end, or `None` when there is another.
    fn next_gate(&mut self, sum: &[u128]) -> Option<Result<(), SetupError>> {
        self.passed += 1;
        match &mut self.program {
            Program::Phases(steps) => (self.passed == steps.len()).then_some(Ok(())),
            Program::Plan(_, check) => match check.next(sum) {
                Next::Agreed => Some(Ok(())),
                Next::Narrowed => None,
                Next::Mismatch(error) => Some(Err(error)),
            },
        }
    }
}
