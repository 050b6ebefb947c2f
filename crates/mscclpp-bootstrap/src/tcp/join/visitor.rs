// SPDX-License-Identifier: MIT
//! The part of every rank but 0 in joining.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::wire::{self, Answer, LOOKS, Visit};
use super::{Join, Listening, Meeting, local_ip, locate, meeting_key};
use crate::address::{Root, RootAddress};
use crate::link::{Call, Claims, PROOF_PATIENCE, connect_async};
use crate::tcp::connection::Opened;
use crate::tcp::meter::Metered;
use crate::tcp::node::{Node, Place};
use crate::tcp::peers;
use crate::{BootstrapError, Deadline, socket};

/// An address from a file is tried for this long before the file is read again:
/// it may be left over from an earlier job.
const FILE_TRUST: Duration = Duration::from_secs(1);
/// How long to wait before another try when the parent did not take a connection.
const PAUSE: Duration = Duration::from_millis(10);
/// How long telling rank 0 that this rank waits no longer may take.
const LAST_WORDS: Duration = Duration::from_millis(20);
/// How long a rank whose connection to rank 0 broke can still be found: rank 0 may live, and tells by
/// who listens whether it is to blame itself.
const LINGERS: Duration = Duration::from_millis(300);

pub(super) async fn visit(node: &Arc<Node>, join: Join) -> Result<(), BootstrapError> {
    let root = match &join.meeting {
        Meeting::At(root) => root.clone(),
        Meeting::Id(id, _) => Root::At(RootAddress {
            interface: None,
            socket: id.address(),
        }),
    };
    let (stream, address) = connect(node, &join, &root).await?;
    let secret = join.secret_at(address)?;
    let ip = local_ip(&join.options, &root, Some(address.ip()))?;
    let listening = Listening::start(node, ip)?;
    let visitor = Visitor {
        node,
        deadline: join.deadline,
        missing: vec![0],
    };
    visitor.stay(stream, &listening, &secret).await
}

/// A proven connection to rank 0.
async fn connect(
    node: &Node,
    join: &Join,
    root: &Root,
) -> Result<(TcpStream, SocketAddr), BootstrapError> {
    // What is wrong on this machine is told before others are waited for.
    if let Root::File(_) = root {
        local_ip(&join.options, root, None)?;
    }
    loop {
        let address = locate::find(root, node.rank, join.deadline).await?;
        // In a file there may be an address of an earlier job.
        if !matches!(root, Root::File(_)) {
            local_ip(&join.options, root, Some(address.ip()))?;
        }
        let (id, key) = meeting_key(&join.secret_at(address)?);
        let call = Call {
            address,
            id,
            key,
            claims: Claims {
                from: node.rank as u32,
                to: 0,
                world: node.world as u32,
            },
            proof_patience: PROOF_PATIENCE,
        };
        let attempt = match root {
            Root::File(_) => join.deadline.at_most(FILE_TRUST),
            _ => join.deadline,
        };
        let error = match connect_async(&call, true, attempt).await {
            Ok(stream) => {
                if let Err(error) = socket::prepare(&stream) {
                    tracing::debug!(%error, "the connection to rank 0 has not all options set");
                }
                return Ok((stream, address));
            }
            Err(error) => error.into_error(address),
        };
        match error {
            BootstrapError::LinkTimeout { .. } | BootstrapError::ProofRefused { .. }
                if !join.deadline.expired() && matches!(root, Root::File(_)) => {}
            BootstrapError::LinkTimeout { hint, .. } => {
                return Err(BootstrapError::Timeout {
                    rank: node.rank,
                    operation: format!("joining: connecting to rank 0 at {address}"),
                    waiting_for: vec![0],
                    waited: join.deadline.budget(),
                    hint,
                });
            }
            BootstrapError::ProofRefused { with } => {
                return Err(BootstrapError::ProofRefused {
                    with: format!("rank {} joining at rank 0 ({with})", node.rank),
                });
            }
            other => return Err(other),
        }
    }
}

type Reader = Metered<OwnedReadHalf>;
type Writer = Metered<OwnedWriteHalf>;

struct Visitor<'a> {
    node: &'a Arc<Node>,
    deadline: Deadline,
    /// Who is known to be late.
    missing: Vec<usize>,
}

impl Visitor<'_> {
    async fn stay(
        mut self,
        stream: TcpStream,
        listening: &Listening,
        secret: &crate::Secret,
    ) -> Result<(), BootstrapError> {
        let node = self.node;
        let (reader, writer) = stream.into_split();
        let (reader, mut writer) = (
            Metered::new(reader, &node.meter),
            Metered::new(writer, &node.meter),
        );
        let check_in = Visit::CheckIn {
            rank: node.rank as u32,
            world: node.world as u32,
            place: listening.place,
        };
        self.say(&mut writer, &check_in).await?;
        let mut doing = "joining: checking in with rank 0";
        let mut hearing = Box::pin(hear(reader));
        let mut heard = Instant::now();
        let mut connecting = None;
        let mut signs = tokio::time::interval(node.deadlines.silence / LOOKS);
        loop {
            let limit = self.deadline.at().min(heard + node.deadlines.silence);
            let answer = tokio::select! {
                // What has come tells more than the time that it took.
                biased;
                (reader, answer) = &mut hearing => {
                    hearing = Box::pin(hear(reader));
                    heard = Instant::now();
                    match answer {
                        Ok(answer) => answer,
                        Err(error) => {
                            let error = self.lost(doing, &error);
                            tokio::time::sleep(LINGERS).await;
                            return Err(error);
                        }
                    }
                }
                connected = of(&mut connecting) => {
                    connecting = None;
                    if let Err(error) = connected {
                        return self.give_up(&mut writer, error).await;
                    }
                    self.say(&mut writer, &Visit::Ready).await?;
                    continue;
                }
                _ = signs.tick() => {
                    self.say(&mut writer, &Visit::Here).await?;
                    continue;
                }
                () = tokio::time::sleep_until(limit.into()) => {
                    let error = if self.deadline.expired() {
                        self.timeout(doing)
                    } else {
                        self.silent(doing)
                    };
                    // So that rank 0 can tell this from a death.
                    let word = wire::write(&mut writer, &Visit::GaveUp);
                    let _ = tokio::time::timeout(LAST_WORDS, word).await;
                    return Err(error);
                }
            };
            match answer {
                Answer::Seated { nonce } => {
                    listening.admit(node, secret, &nonce);
                    doing = wire::NOT_ALL_IN;
                }
                Answer::Missing(ranks) => {
                    self.missing = ranks.into_iter().map(|rank| rank as usize).collect();
                }
                Answer::Parent { rank, place } => {
                    doing = "joining: not all ranks are connected to their neighbours";
                    let (node, deadline) = (self.node, self.deadline);
                    connecting = Some(Box::pin(connect_to_parent(
                        node,
                        deadline,
                        rank as usize,
                        place,
                    )));
                }
                Answer::Go => return Ok(()),
                Answer::Failed(trouble) => return Err(trouble.into_error(node.rank)),
            }
        }
    }

    /// Tells rank 0 why this rank can not go on.
    async fn give_up(
        &self,
        writer: &mut Writer,
        error: BootstrapError,
    ) -> Result<(), BootstrapError> {
        let cause = error.to_string();
        // Without it, rank 0 sees the connection close.
        let _ = self.say(writer, &Visit::Sorry { cause }).await;
        Err(error)
    }

    async fn say(&self, writer: &mut Writer, visit: &Visit) -> Result<(), BootstrapError> {
        let limit = tokio::time::Instant::from_std(self.deadline.at());
        match tokio::time::timeout_at(limit, wire::write(writer, visit)).await {
            Ok(Ok(())) => Ok(()),
            // The reason, if rank 0 gave one, is read next.
            Ok(Err(error)) => {
                tracing::debug!(%error, "rank 0 does not listen any more");
                Ok(())
            }
            Err(_) => Err(self.timeout("joining: checking in with rank 0")),
        }
    }

    /// The error of one whose connection to rank 0 broke.
    fn lost(&self, doing: &str, error: &io::Error) -> BootstrapError {
        self.failed(
            doing,
            match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    "its connection was closed while ranks were joining".into()
                }
                _ => error.to_string(),
            },
        )
    }

    /// The error of one that hears nothing of rank 0.
    fn silent(&self, doing: &str) -> BootstrapError {
        let silence = self.node.deadlines.silence;
        self.failed(doing, format!("nothing was heard from it for {silence:?}"))
    }

    fn failed(&self, doing: &str, cause: String) -> BootstrapError {
        BootstrapError::PeerFailed {
            rank: 0,
            observer: self.node.rank,
            operation: doing.into(),
            cause,
        }
    }

    fn timeout(&self, doing: &str) -> BootstrapError {
        let hint = match doing {
            wire::NOT_ALL_IN => wire::NOT_ALL_IN_HINT,
            _ => "",
        };
        BootstrapError::Timeout {
            rank: self.node.rank,
            operation: doing.into(),
            waiting_for: self.missing.clone(),
            waited: self.deadline.budget(),
            hint: hint.into(),
        }
    }
}

/// Rank 0's next answer, with the stream that it came by.
async fn hear(mut reader: Reader) -> (Reader, io::Result<Answer>) {
    let answer = wire::read(&mut reader).await;
    (reader, answer)
}

/// The outcome of a task, once there is a task and it has one.
async fn of<T: Future + Unpin>(task: &mut Option<T>) -> T::Output {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

async fn connect_to_parent(
    node: &Arc<Node>,
    deadline: Deadline,
    rank: usize,
    place: Place,
) -> Result<(), BootstrapError> {
    let call = peers::call(node, rank, place.address).filter(|_| rank < node.world);
    let call = call.ok_or_else(|| BootstrapError::BadMessage {
        reason: format!("rank 0 named rank {rank} as parent"),
    })?;
    let operation = || format!("joining: connecting to rank {rank} at {}", place.address);
    let timeout = |hint| BootstrapError::Timeout {
        rank: node.rank,
        operation: operation(),
        waiting_for: vec![rank],
        waited: deadline.budget(),
        hint,
    };
    loop {
        let stream = match connect_async(&call, true, deadline).await {
            Ok(stream) => stream,
            Err(error) => match error.into_error(place.address) {
                BootstrapError::LinkTimeout { hint, .. } => return Err(timeout(hint)),
                other => return Err(other),
            },
        };
        let peer = node.peer(rank);
        let opening = peers::open(node, rank, &peer, stream);
        let limit = tokio::time::Instant::from_std(deadline.at());
        match tokio::time::timeout_at(limit, opening).await {
            Ok(Opened::Taken) => return Ok(()),
            Ok(Opened::NotTaken(error)) if deadline.expired() => {
                return Err(timeout(error.to_string()));
            }
            Ok(Opened::NotTaken(_)) => tokio::time::sleep(PAUSE).await,
            Ok(Opened::Ended) => {
                return Err(BootstrapError::io(
                    operation(),
                    io::ErrorKind::ConnectionAborted.into(),
                ));
            }
            Err(_) => return Err(timeout("it does not confirm the connection".into())),
        }
    }
}
