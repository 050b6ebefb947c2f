// SPDX-License-Identifier: MIT
//! Rank 0's part of joining.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::book::Book;
use super::locate::Stand;
use super::wire::{self, Answer, LOOKS, Trouble, Visit};
use super::{Join, Listening, Meeting, local_ip, meeting_key, nonce};
use crate::link::{Admission, Claims, Refusal, Registry, Service, serve};
use crate::tcp::meter::{Meter, Metered};
use crate::tcp::node::{Node, Place};
use crate::tcp::suspicion::{self, Listens};
use crate::{BootstrapError, Deadline, socket};

/// How often waiting ranks are told who is missing, so that their own timeouts
/// can name them.
const NEWS_EVERY: Duration = Duration::from_millis(250);
/// How long the last words to the ranks may take when joining failed.
const LAST_WORDS: Duration = Duration::from_millis(50);
/// How long, after a failure, those who come late are told of it; ranks are
/// started at about the same time.
const LATECOMERS: Duration = Duration::from_secs(1);
/// How long others whose connections broke for the same reason may take to be noticed.
const BROKE_TOGETHER: Duration = Duration::from_millis(200);
/// Descriptors that rank 0 keeps free for everything but waiting ranks.
const SPARE_DESCRIPTORS: u64 = 512;

pub(super) async fn host(node: &Arc<Node>, mut join: Join) -> Result<Vec<Place>, BootstrapError> {
    let stand = match &mut join.meeting {
        Meeting::Id(id, listener) => match listener.take() {
            Some(listener) => Stand {
                listener,
                address: id.address(),
                notice: None,
            },
            None => Stand::listen(id.address(), join.deadline).await?,
        },
        Meeting::At(root) => {
            let root = root.clone();
            Stand::open(&join, &root).await?
        }
    };
    let secret = join.secret_at(stand.address)?;
    let ip = match &join.meeting {
        Meeting::Id(..) => stand.address.ip(),
        Meeting::At(root) => local_ip(&join.options, root, Some(stand.address.ip()))?,
    };
    raise_descriptor_limit(node.world);
    let listening = Listening::start(node, ip)?;
    let nonce = nonce()?;
    listening.admit(node, &secret, &nonce);

    let registry = Arc::new(Registry::default());
    let (id, key) = meeting_key(&secret);
    let (arrivals, arrived) = unbounded_channel();
    registry.register(id, key, Arc::new(Door(arrivals)));
    let listener = TcpListener::from_std(stand.listener)
        .map_err(|e| BootstrapError::io(format!("listening at {}", stand.address), e))?;
    let server = node
        .runtime
        .spawn(serve(listener, Arc::clone(&registry), node.deadlines.proof));

    let (events, said) = unbounded_channel();
    let mut gathering = Gathering {
        book: Book::new(node.world, listening.place),
        nonce,
        deadline: join.deadline,
        silence: node.deadlines.silence,
        goodbye: node.deadlines.goodbye,
        meter: Arc::clone(&node.meter),
        registry,
        start: Instant::now(),
        came: 0,
        seats: HashMap::new(),
        tasks: JoinSet::new(),
        events,
        lost: Vec::new(),
    };
    let outcome = gathering.run(arrived, said).await;
    // The port is free again when this returns.
    server.abort();
    let _ = server.await;
    drop(stand.notice);
    outcome?;
    Ok(gathering.book.places())
}

/// Rank 0 holds a connection to every rank for a moment.
fn raise_descriptor_limit(world: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let need = world as u64 + SPARE_DESCRIPTORS;
    if limit.current.is_none_or(|current| current >= need) {
        return;
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, need, "the limit of open files could not be raised; try ulimit -n");
    }
}

/// Takes everybody who has proven to know the secret.
struct Door(UnboundedSender<TcpStream>);

struct Arrival(UnboundedSender<TcpStream>);

impl Service for Door {
    fn admit(&self, _: Claims) -> Result<Box<dyn Admission>, Refusal> {
        // What does not fit is answered with a reason when it checks in.
        Ok(Box::new(Arrival(self.0.clone())))
    }
}

impl Admission for Arrival {
    fn deliver(self: Box<Self>, stream: TcpStream) {
        // After the meeting nobody takes arrivals; the stream closes.
        drop(self.0.send(stream));
    }
}

enum Event {
    Said(Visit),
    Lost(String),
    /// It was looked for at its address, after its connection was lost for this cause.
    LookedFor(String, Listens),
}

/// One rank that has come, or somebody who will turn out to be one.
struct Seat {
    rank: Option<u32>,
    answers: UnboundedSender<Answer>,
    heard: Instant,
}

struct Gathering {
    book: Book,
    nonce: [u8; 32],
    deadline: Deadline,
    silence: Duration,
    /// How long those that came may take for the last answer.
    goodbye: Duration,
    meter: Arc<Meter>,
    registry: Arc<Registry>,
    start: Instant,
    /// How many have come; also their numbers.
    came: u64,
    seats: HashMap<u64, Seat>,
    tasks: JoinSet<()>,
    events: UnboundedSender<(u64, Event)>,
    /// Those whose connections broke.
    lost: Vec<u32>,
}

impl Gathering {
    async fn run(
        &mut self,
        mut arrived: UnboundedReceiver<TcpStream>,
        said: UnboundedReceiver<(u64, Event)>,
    ) -> Result<(), BootstrapError> {
        let outcome = self.gather(&mut arrived, said).await;
        let (last, time) = match &outcome {
            Ok(()) => (Answer::Go, self.goodbye),
            Err(trouble) => (Answer::Failed(trouble.clone()), LAST_WORDS),
        };
        self.dismiss(&last);
        if let Err(trouble) = &outcome {
            self.tell_latecomers(&mut arrived, trouble, &last).await;
        }
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(time, all).await;
        outcome.map_err(|trouble| self.error(trouble))
    }

    /// Gives every seat its last answer.
    fn dismiss(&mut self, last: &Answer) {
        for (_, seat) in self.seats.drain() {
            // A rank that is gone needs no answer.
            let _ = seat.answers.send(last.clone());
        }
    }

    async fn tell_latecomers(
        &mut self,
        arrived: &mut UnboundedReceiver<TcpStream>,
        trouble: &Trouble,
        last: &Answer,
    ) {
        // One that does not fit may be one too many.
        let surplus = match trouble {
            Trouble::Missing { .. } => return,
            Trouble::Died { .. } => 0,
            Trouble::Duplicate { .. } | Trouble::World { .. } | Trouble::Other { .. } => 1,
        };
        let limit = self.deadline.at_most(LATECOMERS).at();
        let limit = tokio::time::Instant::from_std(limit);
        while self.came + 1 < self.book.world() as u64 + surplus {
            match tokio::time::timeout_at(limit, arrived.recv()).await {
                Ok(Some(stream)) => self.seat(stream),
                _ => return,
            }
            self.dismiss(last);
        }
    }

    fn error(&self, trouble: Trouble) -> BootstrapError {
        let mut error = trouble.into_error(0);
        if let BootstrapError::Timeout { hint, .. } = &mut error {
            let failed = self.registry.unproven();
            if failed > 0 {
                *hint = format!(
                    "{failed} connections failed their proof; do all ranks have the same secret?"
                );
            }
        }
        error
    }

    async fn gather(
        &mut self,
        arrived: &mut UnboundedReceiver<TcpStream>,
        mut said: UnboundedReceiver<(u64, Event)>,
    ) -> Result<(), Trouble> {
        let limit = tokio::time::Instant::from_std(self.deadline.at());
        let mut news = tokio::time::interval(NEWS_EVERY);
        let mut told = (Vec::new(), Instant::now());
        let mut looked = Instant::now();
        while !self.book.all_ready() {
            tokio::select! {
                () = tokio::time::sleep_until(limit) => {
                    return Err(Trouble::Missing {
                        ranks: self.book.missing(),
                        waited: self.deadline.budget(),
                    });
                }
                Some(stream) = arrived.recv() => self.seat(stream),
                Some((number, event)) = said.recv() => self.hear(number, event)?,
                _ = news.tick() => {
                    self.look(&mut looked)?;
                    let missing = self.book.missing();
                    if told.0 != missing || told.1.elapsed() >= self.silence / LOOKS {
                        self.tell_all(&Answer::Missing(missing.clone()));
                        told = (missing, Instant::now());
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether all that have checked in give signs of life.
    fn look(&mut self, looked: &mut Instant) -> Result<(), Trouble> {
        let now = Instant::now();
        let paused = now - std::mem::replace(looked, now) > self.silence / 2;
        for seat in self.seats.values_mut() {
            if paused {
                // This process did not run, so it can not tell who was silent.
                seat.heard = now;
            }
            let silent = now - seat.heard;
            if let Some(rank) = seat.rank.filter(|_| silent > self.silence) {
                return Err(Trouble::Died {
                    rank,
                    cause: format!("rank 0 heard nothing from it for {silent:.1?} in joining"),
                });
            }
        }
        Ok(())
    }

    fn seat(&mut self, stream: TcpStream) {
        let number = self.came;
        self.came += 1;
        let (answers, outbox) = unbounded_channel();
        let events = self.events.clone();
        let meter = Arc::clone(&self.meter);
        self.tasks
            .spawn(attend(number, stream, meter, (events, outbox)));
        let seat = Seat {
            rank: None,
            answers,
            heard: Instant::now(),
        };
        self.seats.insert(number, seat);
    }

    fn tell_all(&self, answer: &Answer) {
        for seat in self.seats.values().filter(|seat| seat.rank.is_some()) {
            // A rank that is gone is noticed by its connection.
            let _ = seat.answers.send(answer.clone());
        }
    }

    fn hear(&mut self, number: u64, event: Event) -> Result<(), Trouble> {
        let Some(seat) = self.seats.get_mut(&number) else {
            return Ok(());
        };
        seat.heard = Instant::now();
        match (event, seat.rank) {
            (Event::Said(Visit::Here), Some(_)) => {}
            (Event::Said(Visit::CheckIn { rank, world, place }), None) => {
                seat.rank = Some(rank);
                self.book.check_in(rank, world, place)?;
                tracing::debug!(rank, "checked in with rank 0");
                let _ = seat.answers.send(Answer::Seated { nonce: self.nonce });
                let _ = seat.answers.send(Answer::Missing(self.book.missing()));
                if self.book.complete() {
                    self.show_parents();
                }
            }
            (Event::Said(Visit::Ready), Some(rank)) => {
                self.book.ready(rank);
            }
            (Event::Said(Visit::Sorry { cause }), Some(rank)) => {
                return Err(Trouble::Other { rank, cause });
            }
            (Event::Said(Visit::GaveUp), Some(_)) => {
                return Err(Trouble::Missing {
                    ranks: self.book.missing(),
                    waited: self.start.elapsed(),
                });
            }
            (Event::Lost(cause), Some(rank)) => {
                self.lost.push(rank);
                let (place, events) = (self.book.place(rank), self.events.clone());
                self.tasks.spawn(async move {
                    let listens = match place {
                        Some(place) => suspicion::look(place.address).await,
                        None => Listens::Unknown,
                    };
                    if listens == Listens::Yes {
                        tokio::time::sleep(BROKE_TOGETHER).await;
                    }
                    drop(events.send((number, Event::LookedFor(cause, listens))));
                });
            }
            // The rank that lost several which live is the one with which something is wrong.
            (Event::LookedFor(_, Listens::Yes), Some(_)) if self.lost.len() > 1 => {
                return Err(Trouble::Other {
                    rank: 0,
                    cause: format!(
                        "its connections to ranks {:?} broke at once, and one lives: rank 0 is \
                         to blame",
                        self.lost
                    ),
                });
            }
            (Event::LookedFor(cause, _), Some(rank)) => {
                return Err(Trouble::Died {
                    rank,
                    cause: format!("its connection to rank 0 broke while joining: {cause}"),
                });
            }
            // Somebody who knows the secret and not the protocol.
            (Event::Lost(_) | Event::LookedFor(..), None) | (Event::Said(_), None) => {
                self.seats.remove(&number);
            }
            (Event::Said(Visit::CheckIn { .. }), Some(rank)) => {
                return Err(Trouble::Other {
                    rank,
                    cause: "it checked in twice on one connection".into(),
                });
            }
        }
        Ok(())
    }

    fn show_parents(&self) {
        for seat in self.seats.values() {
            if let Some((rank, place)) = seat.rank.and_then(|rank| self.book.parent(rank)) {
                let _ = seat.answers.send(Answer::Parent { rank, place });
            }
        }
    }
}

/// Reads and writes for one seat until either ends.
async fn attend(
    number: u64,
    stream: TcpStream,
    meter: Arc<Meter>,
    (events, mut outbox): (UnboundedSender<(u64, Event)>, UnboundedReceiver<Answer>),
) {
    if let Err(error) = socket::prepare(&stream) {
        tracing::debug!(%error, "a rank's connection has not all options set");
    }
    let (reader, writer) = stream.into_split();
    let (mut reader, mut writer) = (Metered::new(reader, &meter), Metered::new(writer, &meter));
    let reading = async {
        loop {
            match wire::read(&mut reader).await {
                // The meeting may be over; then nobody listens.
                Ok(visit) => drop(events.send((number, Event::Said(visit)))),
                Err(error) => return error,
            }
        }
    };
    let writing = async {
        while let Some(answer) = outbox.recv().await {
            wire::write(&mut writer, &answer).await?;
        }
        Ok(())
    };
    let lost = tokio::select! {
        error = reading => error,
        written = writing => match written {
            Ok(()) => return,
            Err(error) => error,
        },
    };
    let cause = match lost.kind() {
        std::io::ErrorKind::UnexpectedEof => "it was closed".into(),
        _ => lost.to_string(),
    };
    drop(events.send((number, Event::Lost(cause))));
}
