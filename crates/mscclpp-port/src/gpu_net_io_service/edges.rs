// SPDX-License-Identifier: MIT
//! This rank's queues, from the first allocation to connections that can be handed out.

use std::sync::Arc;
use std::time::Duration;

use mscclpp_bootstrap::{Deadline, Plan, Tag};

use super::GpuNetIoService;
use super::record::EdgeRecord;
use crate::connection::Connection;
use crate::context::{Context, incompatible};
use crate::control::Route;
use crate::endpoint::{Endpoint, EndpointConfig, EndpointRecord};
use crate::error::{Error, Result};
use crate::gpu_queue::{self, GpuTransport, Handshake, Path, QueueEnd};
use crate::status::StickyStatus;

/// The number that setups take among the layers between users and bootstrap.
const LAYER: u8 = 2;
/// A queue gets at least so long to execute its first request, even when other steps took all the
/// time.
const SHORTEST_TEST: Duration = Duration::from_millis(50);

/// Queues that are not connected, with the peers that they are for: in order of peer and index.
pub(super) struct Allocated(Vec<(usize, Vec<Endpoint>)>);

impl Allocated {
    /// The queues of a plan, and nothing else.
    pub(super) fn new(context: &Context, config: EndpointConfig, plan: &Plan) -> Result<Self> {
        let edge = |(peer, count)| {
            let queues = (0..count).map(|_| context.create_endpoint(config));
            Ok((peer, queues.collect::<Result<_>>()?))
        };
        plan.peers().map(edge).collect::<Result<_>>().map(Self)
    }

    /// Tells the peers of a plan what they need to know of the queues.
    pub(super) fn send(
        &self,
        service: &GpuNetIoService,
        setup: (u32, Option<u64>),
        deadline: Deadline,
    ) -> Result<()> {
        let (tag, number) = (Tag::layered(LAYER, setup.0), setup.1);
        let bootstrap = service.bootstrap();
        for (peer, queues) in &self.0 {
            let record = EdgeRecord {
                setup: number,
                queues: queues.iter().map(Endpoint::record).collect(),
            };
            (bootstrap.send(*peer, tag, &record.encode()?, deadline)).map_err(|error| {
                Error::bootstrap(format!("telling rank {peer} of queues"), *peer, error)
            })?;
        }
        Ok(())
    }

    /// Hears of the peers' queues. Each of the own ones is then an end whose other end is known.
    pub(super) fn receive(
        self,
        service: &GpuNetIoService,
        setup: (u32, Option<u64>),
        deadline: Deadline,
    ) -> Result<Joined> {
        let (tag, number) = (Tag::layered(LAYER, setup.0), setup.1);
        let bootstrap = service.bootstrap();
        let mut queues = Vec::new();
        for (peer, endpoints) in self.0 {
            let said_by = Error::said_by(peer, setup.0);
            let waiting = format!("waiting for queues of rank {peer}");
            let record = loop {
                let bytes = (bootstrap.recv(peer, tag, deadline))
                    .map_err(|error| Error::bootstrap(&*waiting, peer, error))?;
                let record = EdgeRecord::decode(&bytes).map_err(&said_by)?;
                if !record.is_stale(number).map_err(&said_by)? {
                    break record;
                }
                // A bad peer has no end of them.
                if deadline.expired() {
                    return Err(Error::Timeout {
                        operation: waiting,
                        rank: Some(peer),
                        waited: deadline.budget(),
                    });
                }
            };
            if record.queues.len() != endpoints.len() {
                return Err(said_by(Error::Record {
                    what: "edge",
                    detail: format!(
                        "it tells of {} queues where {} were agreed on",
                        record.queues.len(),
                        endpoints.len()
                    ),
                }));
            }
            for (index, (endpoint, remote)) in endpoints.into_iter().zip(&record.queues).enumerate()
            {
                let queue = Joint::new(service, endpoint, (peer, remote), setup.0, deadline)
                    .map_err(&said_by)?;
                queues.push((index == 0, queue));
            }
        }
        Ok(Joined(queues))
    }
}

/// One queue whose other end is known.
struct Joint {
    peer: usize,
    end: QueueEnd,
    handshake: Handshake,
    route: Option<Route>,
    remote: crate::transport::TransportKind,
    status: Arc<StickyStatus>,
}

impl Joint {
    fn new(
        service: &GpuNetIoService,
        endpoint: Endpoint,
        (peer, remote): (usize, &EndpointRecord),
        tag: u32,
        deadline: Deadline,
    ) -> Result<Self> {
        let config = endpoint.config;
        let theirs = (remote.queue.as_ref())
            .filter(|_| remote.rank() == Some(peer))
            .ok_or_else(|| Error::Record {
                what: "endpoint",
                detail: format!("it is no queue of rank {peer}"),
            })?;
        if !config.transport.reaches(remote.transport) {
            return Err(incompatible(&endpoint, remote));
        }
        let context = service.communicator.context();
        let status = context.new_status(Some(peer), config.transport)?;
        // From here on its death ends what waits for it.
        service.communicator.adopt(&status, peer, tag);
        // Who waits for a stream that does not come gives up first. Then it tells those that wait for
        // its wires, and is named instead of them.
        let streams = Deadline::after(deadline.remaining() / 2);
        let (end, mut handshake, route) =
            context.join_queue(endpoint, remote, theirs, &status, streams)?;
        handshake.deadline = deadline;
        Ok(Self {
            peer,
            end,
            handshake,
            route: Some(route),
            remote: remote.transport,
            status,
        })
    }
}

/// Queues whose other ends are known, each with whether it is the first to its peer.
pub(super) struct Joined(Vec<(bool, Joint)>);

impl Joined {
    /// Makes the streams by which ends tell each other of failures, and the wires that the HCAs need.
    /// All ranks go through their peers in the order of ranks, so that no two wait for each other.
    pub(super) fn wire(&mut self) -> Result<()> {
        let result = self.try_wire();
        if let Err(error) = &result {
            // Those that wait for this rank are told.
            for (_, queue) in &self.0 {
                queue.end.fail(error.clone());
            }
        }
        result
    }

    fn try_wire(&mut self) -> Result<()> {
        // Also when one cannot be made: by the others their ends are told.
        let mut attached = Ok(());
        for (_, queue) in &mut self.0 {
            if let Some(route) = queue.route.take() {
                attached = attached.and(queue.end.control.attach(route));
            }
        }
        attached?;
        for (first, queue) in &self.0 {
            if *first {
                queue.handshake.wire(&queue.end)?;
            }
        }
        Ok(())
    }

    /// A step of every queue; the first that fails ends it.
    pub(super) fn each(&self, step: impl Fn(&QueueEnd, &Path) -> Result<()>) -> Result<()> {
        (self.0.iter()).try_for_each(|(_, queue)| step(&queue.end, queue.end.path()))
    }

    /// One request on every queue.
    pub(super) fn test(&self, deadline: Deadline) -> Result<()> {
        (self.0.iter()).try_for_each(|(_, queue)| {
            let most = queue.end.control.deadlines.self_test;
            let timeout = most.min(deadline.remaining()).max(SHORTEST_TEST);
            gpu_queue::test(&queue.end, timeout)
        })
    }

    /// Hands the queues to the watcher, and makes connections of them. A queue that has failed
    /// meanwhile is found.
    pub(super) fn publish(
        self,
        context: &Context,
        config: EndpointConfig,
    ) -> Result<Vec<Connection>> {
        self.each(|end, _| end.check_queue(&config.ib))?;
        let mut connections = Vec::new();
        for (_, queue) in self.0 {
            let transport = GpuTransport::adopt(queue.end, context.watcher()?)?;
            let (link, peer) = (Box::new(transport), queue.peer);
            let over = (config, queue.remote);
            connections.push(context.new_connection(link, queue.status, Some(peer), over));
        }
        Ok(connections)
    }
}
