// SPDX-License-Identifier: MIT
//! How ranks join: every other rank makes a proven connection to rank 0, says
//! where it listens, and gets the addresses of all and the number of the job. Rank
//! 0 holds these connections only until all have joined.
//!
//! Both messages are a length (4 bytes, little-endian) and a body
//! ([`crate::message`]).

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::link::{
    Admission, Call, CallError, Claims, LinkId, LinkKey, Refusal, Service, connect_async,
};
use crate::{BootstrapError, Deadline, JobKey, Secret, message};

/// How long a rank waits beyond its deadline for rank 0 to say who is missing.
const LAST_WORD: std::time::Duration = std::time::Duration::from_millis(50);

const RECORD_MAX: usize = 256;

/// What a rank says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JoinRecord {
    listen: SocketAddr,
}

/// What rank 0 answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum JoinReply {
    /// All are there.
    Complete {
        /// A random number that tells this job from others with the same secret.
        job: [u8; 32],
        /// Where each rank listens.
        addresses: Vec<SocketAddr>,
    },
    /// The time is up and these are missing.
    Missing { ranks: Vec<u32> },
    /// One rank makes it impossible.
    Failed { by: u32, cause: String },
}

/// The key and id of joining with this secret.
pub(crate) fn service_key(secret: &Secret) -> (LinkId, LinkKey) {
    let key = LinkKey::derive(Some(&secret.join_key()), "join", b"");
    (LinkId::of_service(&key), key)
}

async fn send<T: Serialize>(stream: &mut TcpStream, value: &T) -> io::Result<()> {
    let body = message::encode(value).map_err(io::Error::other)?;
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    stream.write_all(&frame).await
}

async fn recv<T: DeserializeOwned>(stream: &mut TcpStream, max: usize) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > max {
        return Err(io::Error::other("a message of the join is too large"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    message::decode(&body, max).map_err(io::Error::other)
}

/// What happens at rank 0 while ranks join.
enum Event {
    Arrived {
        rank: usize,
        listen: SocketAddr,
        reply: oneshot::Sender<JoinReply>,
    },
    Lost {
        rank: usize,
        cause: String,
    },
    /// A process with the secret and a wrong idea of the world.
    Misfit {
        rank: usize,
        cause: String,
    },
    Stream {
        rank: usize,
        stream: TcpStream,
    },
}

/// Takes the connections of joining ranks.
pub(crate) struct JoinService {
    world: usize,
    events: mpsc::UnboundedSender<Event>,
}

pub(crate) struct Arrivals(mpsc::UnboundedReceiver<Event>, usize);

impl JoinService {
    pub(crate) fn new(world: usize) -> (Arc<Self>, Arrivals) {
        let (events, arrivals) = mpsc::unbounded_channel();
        (Arc::new(Self { world, events }), Arrivals(arrivals, world))
    }
}

impl Service for JoinService {
    fn admit(&self, claims: Claims, _: SocketAddr) -> Result<Box<dyn Admission>, Refusal> {
        let rank = claims.from as usize;
        let misfit = |cause: String, refusal| {
            let _ended = self.events.send(Event::Misfit { rank, cause });
            Err(refusal)
        };
        if claims.world as usize != self.world {
            let (theirs, ours) = (claims.world, self.world);
            return misfit(
                format!("it counts {theirs} ranks where rank 0 counts {ours}"),
                Refusal::WrongWorld,
            );
        }
        if rank == 0 || rank >= self.world || claims.to != 0 {
            return misfit(
                "its rank does not fit the world; rank 0 is here already".into(),
                Refusal::WrongRank,
            );
        }
        Ok(Box::new(Arriving(rank, self.events.clone())))
    }
}

struct Arriving(usize, mpsc::UnboundedSender<Event>);

impl Admission for Arriving {
    fn deliver(self: Box<Self>, stream: TcpStream) {
        let rank = self.0;
        let _ended = self.1.send(Event::Stream { rank, stream });
    }
}

/// One joining rank, at rank 0.
async fn attend(
    rank: usize,
    mut stream: TcpStream,
    events: mpsc::UnboundedSender<Event>,
) {
    let lost = |error: io::Error| Event::Lost {
        rank,
        cause: format!("its connection broke while ranks joined: {error}"),
    };
    let record: JoinRecord = match recv(&mut stream, RECORD_MAX).await {
        Ok(record) => record,
        Err(error) => {
            let _ended = events.send(lost(error));
            return;
        }
    };
    let (reply, replied) = oneshot::channel();
    let listen = record.listen;
    let _ended = events.send(Event::Arrived { rank, listen, reply });
    let mut byte = [0];
    tokio::select! {
        reply = replied => {
            let Ok(reply) = reply else { return };
            let sent = async {
                send(&mut stream, &reply).await?;
                stream.shutdown().await?;
                // Until the other end has read it all.
                stream.read(&mut byte).await
            };
            if let Err(error) = sent.await {
                tracing::debug!(rank, %error, "answering a joining rank");
            }
        }
        read = stream.read(&mut byte) => {
            let error = match read {
                Ok(_) => io::ErrorKind::UnexpectedEof.into(),
                Err(error) => error,
            };
            let _ended = events.send(lost(error));
        }
    }
}

/// What rank 0 has of a join.
pub(crate) struct Table {
    pub(crate) job: [u8; 32],
    pub(crate) addresses: Vec<SocketAddr>,
    replies: Vec<oneshot::Sender<JoinReply>>,
    attending: JoinSet<()>,
}

impl Table {
    /// Tells all ranks. Called when rank 0 is ready for their connections.
    pub(crate) async fn announce(mut self, deadline: Deadline) {
        let reply = JoinReply::Complete {
            job: self.job,
            addresses: self.addresses,
        };
        answer(self.replies.drain(..), &reply, &mut self.attending, deadline).await;
    }
}

async fn answer(
    replies: impl Iterator<Item = oneshot::Sender<JoinReply>>,
    reply: &JoinReply,
    attending: &mut JoinSet<()>,
    deadline: Deadline,
) {
    for waiting in replies {
        let _lost = waiting.send(reply.clone());
    }
    let limit = deadline.remaining().max(LAST_WORD);
    let all = async { while attending.join_next().await.is_some() {} };
    let _late = tokio::time::timeout(limit, all).await;
}

/// Rank 0: waits for all others.
pub(crate) async fn gather(
    arrivals: Arrivals,
    service: Arc<JoinService>,
    own: SocketAddr,
    deadline: Deadline,
) -> Result<Table, BootstrapError> {
    let Arrivals(mut events, world) = arrivals;
    let mut here: HashMap<usize, (SocketAddr, oneshot::Sender<JoinReply>)> = HashMap::new();
    let mut connected: HashMap<usize, String> = HashMap::new();
    let mut attending = JoinSet::new();
    let limit = tokio::time::Instant::from_std(deadline.at());
    let error = loop {
        if here.len() + 1 == world {
            let mut addresses = vec![own; world];
            let mut replies = Vec::with_capacity(world);
            for (rank, (listen, reply)) in here {
                addresses[rank] = listen;
                replies.push(reply);
            }
            return Ok(Table {
                job: crate::secret::random()?,
                addresses,
                replies,
                attending,
            });
        }
        let event = match tokio::time::timeout_at(limit, events.recv()).await {
            Ok(Some(event)) => event,
            Ok(None) | Err(_) => {
                let missing = (1..world).filter(|rank| !here.contains_key(rank));
                break BootstrapError::Timeout {
                    rank: 0,
                    operation: "joining, where ranks check in".into(),
                    waiting_for: missing.collect(),
                    waited: deadline.budget(),
                    hint: String::new(),
                };
            }
        };
        match event {
            Event::Stream { rank, stream } => {
                let from = stream.peer_addr().map_or_else(|e| e.to_string(), |a| a.to_string());
                if let Some(first) = connected.insert(rank, from.clone()) {
                    break BootstrapError::DuplicateRank {
                        rank,
                        first,
                        second: from,
                    };
                }
                attending.spawn(attend(rank, stream, service.events.clone()));
            }
            Event::Arrived {
                rank,
                listen,
                reply,
            } => {
                here.insert(rank, (listen, reply));
            }
            Event::Lost { rank, cause } | Event::Misfit { rank, cause } => {
                break BootstrapError::JoinFailed {
                    rank: 0,
                    by: rank,
                    cause,
                };
            }
        }
    };
    // Whoever arrives from now on finds nobody waiting, and is let go.
    drop(events);
    let reply = match &error {
        BootstrapError::Timeout { waiting_for, .. } => JoinReply::Missing {
            ranks: waiting_for.iter().map(|rank| *rank as u32).collect(),
        },
        BootstrapError::JoinFailed { by, cause, .. } => JoinReply::Failed {
            by: *by as u32,
            cause: cause.clone(),
        },
        BootstrapError::DuplicateRank { rank, .. } => JoinReply::Failed {
            by: *rank as u32,
            cause: error.to_string(),
        },
        other => JoinReply::Failed {
            by: 0,
            cause: other.to_string(),
        },
    };
    let replies = here.into_values().map(|(_, reply)| reply);
    answer(replies, &reply, &mut attending, deadline).await;
    Err(error)
}

/// Another rank: joins at `root`, listening at `listen`. `patience` is how long
/// this address is tried; the deadline is that of the whole join.
pub(crate) async fn join(
    rank: usize,
    world: usize,
    root: SocketAddr,
    secret: &Secret,
    listen: SocketAddr,
    patience: Deadline,
    deadline: Deadline,
) -> Result<(JobKey, Vec<SocketAddr>), BootstrapError> {
    let (id, key) = service_key(secret);
    let call = Call {
        address: root,
        id,
        key,
        claims: Claims {
            from: rank as u32,
            to: 0,
            world: world as u32,
        },
    };
    let timeout = |operation: String, waiting_for, hint| BootstrapError::Timeout {
        rank,
        operation,
        waiting_for,
        waited: deadline.budget(),
        hint,
    };
    let mut stream = match connect_async(&call, true, patience).await {
        Ok(stream) => stream,
        Err(CallError::Other(BootstrapError::LinkTimeout { hint, .. })) => {
            return Err(timeout(format!("joining at {root}"), vec![0], hint));
        }
        Err(error) => return Err(error.into_error(root)),
    };
    let lost = |error: io::Error| BootstrapError::JoinFailed {
        rank,
        by: 0,
        cause: format!("its connection broke while ranks joined: {error}"),
    };
    send(&mut stream, &JoinRecord { listen }).await.map_err(lost)?;
    let limit = tokio::time::Instant::from_std(deadline.at()) + LAST_WORD;
    let reply = recv(&mut stream, 4096 + 64 * world);
    let waiting = "joining, where rank 0 waits for all ranks";
    let reply: JoinReply = match tokio::time::timeout_at(limit, reply).await {
        Ok(reply) => reply.map_err(lost)?,
        Err(_) => return Err(timeout(waiting.into(), vec![0], String::new())),
    };
    match reply {
        JoinReply::Complete { job, addresses } if addresses.len() == world => {
            Ok((secret.job_key(&job), addresses))
        }
        JoinReply::Complete { .. } => Err(BootstrapError::BadMessage {
            reason: "rank 0 told of another number of ranks".into(),
        }),
        JoinReply::Missing { ranks } => {
            let missing = ranks.into_iter().map(|rank| rank as usize).collect();
            Err(timeout(waiting.into(), missing, String::new()))
        }
        JoinReply::Failed { by, cause } => Err(BootstrapError::JoinFailed {
            rank,
            by: by as usize,
            cause,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_join_record() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let _refused = message::decode::<JoinRecord>(bytes, RECORD_MAX);
        });
    }

    #[test]
    fn fuzz_join_reply() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let _refused = message::decode::<JoinReply>(bytes, 4096);
        });
    }
}
