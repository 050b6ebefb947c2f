// SPDX-License-Identifier: MIT
//! The part of every rank but 0 in joining.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

use super::wire::{self, Answer, Visit};
use super::{Join, Listening, Meeting, local_ip, locate, meeting_key};
use crate::address::{Root, RootAddress};
use crate::link::{Call, Claims, PROOF_PATIENCE, connect_async};
use crate::tcp::node::{Node, Place};
use crate::tcp::peers;
use crate::{BootstrapError, Deadline, socket};

/// An address from a file is tried for this long before the file is read again:
/// it may be left over from an earlier job.
const FILE_TRUST: Duration = Duration::from_secs(1);
/// How long telling rank 0 that this rank waits no longer may take.
const LAST_WORDS: Duration = Duration::from_millis(20);

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
    let ip = local_ip(&join.options, &root, address.ip())?;
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
    loop {
        let address = locate::find(root, node.rank, join.deadline).await?;
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
        let (mut reader, mut writer) = stream.into_split();
        let check_in = Visit::CheckIn {
            rank: node.rank as u32,
            world: node.world as u32,
            place: listening.place,
        };
        self.say(&mut writer, &check_in).await?;
        let mut doing = "joining: checking in with rank 0";
        loop {
            let answer = self.hear(&mut reader, doing).await;
            if matches!(&answer, Err(error) if error.is_timeout()) {
                // So that rank 0 can tell this from a death.
                let word = wire::write(&mut writer, &Visit::GaveUp);
                let _ = tokio::time::timeout(LAST_WORDS, word).await;
            }
            match answer? {
                Answer::Seated { nonce } => {
                    listening.admit(node, secret, &nonce);
                    doing = "joining: not all ranks checked in with rank 0";
                }
                Answer::Missing(ranks) => {
                    self.missing = ranks.into_iter().map(|rank| rank as usize).collect();
                }
                Answer::Parent { rank, place } => {
                    doing = "joining: not all ranks are connected to their neighbours";
                    if let Err(error) = self.connect_to_parent(rank as usize, place).await {
                        let cause = error.to_string();
                        // Without it, rank 0 sees the connection close.
                        let _ = self.say(&mut writer, &Visit::Sorry { cause }).await;
                        return Err(error);
                    }
                    self.say(&mut writer, &Visit::Ready).await?;
                }
                Answer::Go => return Ok(()),
                Answer::Failed(trouble) => return Err(trouble.into_error(node.rank)),
            }
        }
    }

    async fn connect_to_parent(&self, rank: usize, place: Place) -> Result<(), BootstrapError> {
        let node = self.node;
        let call = peers::call(node, rank, place.address).filter(|_| rank < node.world);
        let call = call.ok_or_else(|| BootstrapError::BadMessage {
            reason: format!("rank 0 named rank {rank} as parent"),
        })?;
        let operation = format!("joining: connecting to rank {rank} at {}", place.address);
        let stream = match connect_async(&call, true, self.deadline).await {
            Ok(stream) => stream,
            Err(error) => match error.into_error(place.address) {
                BootstrapError::LinkTimeout { hint, .. } => {
                    return Err(BootstrapError::Timeout {
                        rank: node.rank,
                        operation,
                        waiting_for: vec![rank],
                        waited: self.deadline.budget(),
                        hint,
                    });
                }
                other => return Err(other),
            },
        };
        peers::open(node, rank, &node.peer(rank), stream)
            .map_err(|e| BootstrapError::io(operation, e))
    }

    async fn say(
        &self,
        writer: &mut tokio::net::tcp::OwnedWriteHalf,
        visit: &Visit,
    ) -> Result<(), BootstrapError> {
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

    async fn hear(
        &self,
        reader: &mut OwnedReadHalf,
        doing: &str,
    ) -> Result<Answer, BootstrapError> {
        let limit = tokio::time::Instant::from_std(self.deadline.at());
        match tokio::time::timeout_at(limit, wire::read(reader)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(BootstrapError::PeerFailed {
                rank: 0,
                observer: self.node.rank,
                operation: doing.into(),
                cause: match error.kind() {
                    std::io::ErrorKind::UnexpectedEof => {
                        "its connection was closed while ranks were joining".into()
                    }
                    _ => error.to_string(),
                },
            }),
            Err(_) => Err(self.timeout(doing)),
        }
    }

    fn timeout(&self, doing: &str) -> BootstrapError {
        BootstrapError::Timeout {
            rank: self.node.rank,
            operation: doing.into(),
            waiting_for: self.missing.clone(),
            waited: self.deadline.budget(),
            hint: String::new(),
        }
    }
}
