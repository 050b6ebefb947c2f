// SPDX-License-Identifier: MIT
//! Queues between two ranks alone. Both send an *offer* with a random number and which queues they
//! want; who has seen the other's offer sends an *answer* with both numbers and its queues. So both
//! know that they mean each other's present call, and not one that was given up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mscclpp_bootstrap::gate::Cause;
use mscclpp_bootstrap::{Bootstrap, Deadline, Tag};
use serde::{Deserialize, Serialize};

use super::record::EdgeRecord;
use super::{GpuNetIoService, is_of_another};
use crate::connection::Connection;
use crate::endpoint::{Endpoint, MAX_RECORD};
use crate::error::{Error, Result};
use crate::message;
use crate::random::random_u64;

/// The number that these messages take among the layers between users and bootstrap.
pub(super) const LAYER: u8 = 3;
const WHAT: &str = "queues on demand";
const WAITING: &str = "waiting for queues of";
/// So much longer than its call a refusal may take: also one that is due when the time is up is said.
const PARTING: Duration = Duration::from_millis(200);
/// More than any message takes; checked before decoding.
const MAX_MESSAGE: usize = 256 + mscclpp_bootstrap::plan::MAX_QUEUES as usize * MAX_RECORD;

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) queues: u32,
    /// They take the place of those of a setup.
    pub(super) rebuilt: bool,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rebuilt {
            false if self.queues == 1 => f.write_str("1 queue"),
            false => write!(f, "{} queues", self.queues),
            true if self.queues == 1 => f.write_str("the queue of a setup to be rebuilt"),
            true => write!(f, "the {} queues of a setup to be rebuilt", self.queues),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Message {
    Offer {
        call: u64,
        wanted: Wanted,
    },
    Answer {
        /// The receiver's call.
        to: u64,
        call: u64,
        queues: EdgeRecord,
    },
    /// There will be no queues for the receiver's call.
    Refusal {
        to: u64,
        reason: String,
    },
}

impl Message {
    fn encode(&self) -> Result<Vec<u8>> {
        message::encode("demand", self)
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let message: Self = message::decode("demand", bytes, MAX_MESSAGE)?;
        if let Self::Answer { queues, .. } = &message {
            queues.check()?;
        }
        Ok(message)
    }
}

/// The stream of messages with one peer.
struct Line<'a> {
    bootstrap: &'a Arc<dyn Bootstrap>,
    peer: usize,
    tag: u32,
    deadline: Deadline,
}

impl Line<'_> {
    fn send(&self, message: &Message, deadline: Deadline) -> Result<()> {
        let tag = Tag::layered(LAYER, self.tag);
        (self.bootstrap)
            .send(self.peer, tag, &message.encode()?, deadline)
            .map_err(|error| self.failed("asking for queues to", error))
    }

    fn receive(&self, deadline: Deadline) -> Result<Message> {
        let tag = Tag::layered(LAYER, self.tag);
        let bytes = (self.bootstrap)
            .recv(self.peer, tag, deadline)
            .map_err(|error| self.failed(WAITING, error))?;
        Message::decode(&bytes).map_err(Error::said_by(self.peer, self.tag))
    }

    /// An error when the time is up though messages have come: a bad peer has no end of those that lead
    /// nowhere.
    fn check_time(&self, ends: Deadline) -> Result<()> {
        if !ends.expired() {
            return Ok(());
        }
        Err(Error::Timeout {
            operation: self.operation(WAITING),
            rank: Some(self.peer),
            waited: self.deadline.budget(),
        })
    }

    /// Until when the peer may still be told something when the call ends.
    fn parting(&self) -> Deadline {
        Deadline::after(self.deadline.remaining().saturating_add(PARTING))
    }

    fn refuse(&self, to: u64, reason: &str) {
        let reason = Cause::new(reason).to_string();
        let deadline = self.parting().at_most(self.bootstrap.timeout());
        if let Err(error) = self.send(&Message::Refusal { to, reason }, deadline) {
            tracing::warn!(peer = self.peer, %error, "a rank could not be told of a refusal");
        }
    }

    fn operation(&self, doing: &str) -> String {
        format!("{doing} rank {} on demand (tag {})", self.peer, self.tag)
    }

    fn failed(&self, doing: &str, error: mscclpp_bootstrap::BootstrapError) -> Error {
        Error::bootstrap(self.operation(doing), self.peer, error)
    }

    fn gave_up(&self, reason: String) -> Error {
        Error::PeerGaveUp {
            rank: self.peer,
            tag: self.tag,
            what: WHAT,
            reason,
        }
    }
}

/// Makes queues with one peer, which does the same.
pub(super) fn connect(
    service: &GpuNetIoService,
    (peer, wanted): (usize, Wanted),
    tag: u32,
    deadline: Deadline,
) -> Result<Vec<Connection>> {
    let rank = service.bootstrap().rank();
    let queues = wanted.queues;
    let _span = tracing::info_span!("connect_on_demand", rank, peer, tag, queues).entered();
    let line = Line {
        bootstrap: service.bootstrap(),
        peer,
        tag,
        deadline,
    };
    let context = service.communicator.context();
    let call = random_u64()?;
    line.send(&Message::Offer { call, wanted }, deadline)?;
    let made = (0..wanted.queues).map(|_| context.create_endpoint(service.endpoint));
    let made: Result<Vec<Endpoint>> = match context.check_port(super::TRANSPORT, service.gid_index)
    {
        Ok(()) => made.collect(),
        Err(error) => Err(error),
    };
    let theirs = meet(&line, call, wanted, &made)?;
    // An error here was told to the peer.
    let made = made?;
    let connections: Vec<Connection> = (made.into_iter().zip(&theirs.queues))
        .map(|(local, remote)| {
            if remote.rank() != Some(peer) {
                return Err(line.gave_up("it sent queues of another rank".into()));
            }
            let connection =
                (context.connect_to(local, remote, deadline)).map_err(Error::said_by(peer, tag))?;
            service.communicator.adopt(connection.sticky(), peer, tag);
            Ok(connection)
        })
        .collect::<Result<_>>()?;
    let up = (connections.iter()).try_for_each(|connection| connection.wait_connected(deadline));
    let Err(first) = up else {
        return Ok(connections);
    };
    // What this rank failed at comes before what it heard of that. By those that are up the peer
    // hears why, and not only that they go.
    let own = (connections.iter().filter_map(Connection::status)).find(|e| !is_of_another(e));
    let error = own.unwrap_or(first);
    (connections.iter()).for_each(|connection| connection.fail(error.clone()));
    Err(error)
}

/// Goes on until both have the other's answer to their present call.
fn meet(
    line: &Line<'_>,
    call: u64,
    wanted: Wanted,
    made: &Result<Vec<Endpoint>>,
) -> Result<EdgeRecord> {
    let mut offered = None;
    let mut answered: Option<(u64, EdgeRecord)> = None;
    let mut received = line.receive(line.deadline);
    loop {
        let message = match (received, made) {
            // Nobody has asked for what there is not.
            (Err(_), Err(error)) => return Err(error.clone()),
            (received, _) => received?,
        };
        match message {
            Message::Offer {
                call: to,
                wanted: theirs,
            } => {
                // A later offer takes the place of one that was given up.
                offered = Some(to);
                let made = match made {
                    Ok(made) => made,
                    Err(error) => {
                        line.refuse(to, &error.to_string());
                        return Err(error.clone());
                    }
                };
                if theirs == wanted {
                    let queues = EdgeRecord {
                        setup: None,
                        queues: made.iter().map(Endpoint::record).collect(),
                    };
                    line.send(&Message::Answer { to, call, queues }, line.deadline)?;
                } else {
                    // Not the end: it may be one that was given up, and asked for others. Else the
                    // peer refuses this call, too.
                    let reason = format!(
                        "it asks for {wanted} and was asked for {theirs}: both must ask for the same"
                    );
                    line.refuse(to, &reason);
                }
            }
            Message::Answer {
                to,
                call: from,
                queues,
            } if to == call => {
                if queues.queues.len() != wanted.queues as usize {
                    return Err(line.gave_up("it sent another number of queues".into()));
                }
                answered = Some((from, queues));
            }
            Message::Refusal { to, reason } if to == call => return Err(line.gave_up(reason)),
            // To a call that was given up.
            Message::Answer { .. } | Message::Refusal { .. } => {}
        }
        if let (Some(offer), Some((from, _))) = (offered, &answered)
            && offer == *from
            && let Some((_, queues)) = answered.take()
        {
            return Ok(queues);
        }
        received = (line.check_time(line.deadline)).and_then(|()| line.receive(line.deadline));
    }
}

/// Refuses the calls of a peer that have come, and waits for one if there is none.
pub(super) fn refuse(
    service: &GpuNetIoService,
    peer: usize,
    tag: u32,
    reason: &str,
    deadline: Deadline,
) -> Result<()> {
    let rank = service.bootstrap().rank();
    let _span = tracing::info_span!("refuse_on_demand", rank, peer, tag).entered();
    let line = Line {
        bootstrap: service.bootstrap(),
        peer,
        tag,
        deadline,
    };
    let (mut until, mut ends) = (deadline, deadline);
    let mut refused = false;
    loop {
        match line.receive(until) {
            Ok(Message::Offer { call, .. }) => {
                line.refuse(call, reason);
                // Calls that were given up may have come before the present one.
                if !refused {
                    (until, ends) = (Deadline::after(Duration::ZERO), line.parting());
                }
                refused = true;
            }
            Ok(_) => {}
            Err(Error::Timeout { .. }) if refused => return Ok(()),
            Err(error) => return Err(error),
        }
        line.check_time(ends)?;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn fuzz_demand_message() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(message) = mscclpp_fuzz::in_proportion(bytes, || Message::decode(bytes)) {
                let again = Message::decode(&message.encode().unwrap()).unwrap();
                assert_eq!(again, message);
            }
        });
    }
}
