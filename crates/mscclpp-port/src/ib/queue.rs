// SPDX-License-Identifier: MIT
//! The queue pair of an endpoint, and how it becomes a connection.

use std::sync::Arc;

use mscclpp_bootstrap::{Deadline, Deadlines};

use super::end::{self, IbEnd};
use super::hca::IbHca;
use super::memory;
use super::news::{Affected, News};
use super::port::{Choice, Wish};
use super::posts::{self, Names, Posts};
use super::receiver::Receiver;
use super::transport::{IbTransport, Places, Start};
use crate::buffer::Buffer;
use crate::control::Route;
use crate::control_end::ControlEnd;
use crate::device::Device as Place;
use crate::endpoint::EndpointConfig;
use crate::env::env;
use crate::error::{Error, Result};
use crate::gpu_queue::{
    self, GpuQueueProvider, HcaAddress, IbMode, Mtu, PortRecord, QueueAddress, QueueRecord,
};
use crate::memory::RegistrationTable;
use crate::random::random_u64;
use crate::status::StickyStatus;
use crate::verbs::{
    self, AccessFlags, CompletionChannel, CompletionQueue, Destination, Device, GlobalRoute,
    Initialized, LinkLayer, Local, MemoryRegion, QueuePair, QueuePairSize, ReadyToSend, Sending,
    VerbsError,
};
use crate::watcher::Watcher;

/// Posts that may wait or be under way when the endpoint does not say.
const DEFAULT_QUEUE: usize = 1024;
/// Signals that may come in a row, where the host executes them.
const DEFAULT_RECEIVES: u32 = 512;
/// About a second.
const DEFAULT_TIMEOUT: u8 = 18;
/// All that there are.
const DEFAULT_RETRIES: u8 = 7;
/// 640 µs, in which the host looks at receives several times.
const NOT_READY_TIMER: u8 = 12;
/// For ever: the host may be slow, and a peer that is gone is noticed by its control stream.
const NOT_READY_RETRIES: u8 = 7;
/// As many routers as there can be.
const HOP_LIMIT: u8 = 255;
/// Packets are numbered with so many bits.
const PACKET_BITS: u32 = 24;

/// A word for the results of atomics, which nobody reads.
pub(super) struct Scratch(MemoryRegion, u64);

impl Scratch {
    pub(super) const NONE: Local = Local {
        address: 0,
        len: 8,
        key: 0,
    };

    fn new(hca: &IbHca) -> Result<Self, VerbsError> {
        // Host memory: there is always room for a page.
        let word = Buffer::new(Place::cpu(), 8).map_err(|error| VerbsError::Region {
            device: hca.name().into(),
            len: 8,
            reason: error.to_string(),
        })?;
        let owner = Arc::new(word.clone());
        let region = memory::register(&hca.domain, &word, (0, 8), AccessFlags::LOCAL_WRITE, owner)?;
        Ok(Self(region, word.address()))
    }

    pub(super) fn local(&self) -> Local {
        Local {
            address: self.1,
            len: 8,
            key: self.0.lkey(),
        }
    }
}

/// The queue of an endpoint that is not connected yet: in INIT, with its receives posted.
pub(crate) struct IbQueue {
    pair: QueuePair<Initialized>,
    send: Arc<CompletionQueue>,
    receive: Arc<CompletionQueue>,
    /// Tells of signals, where the host executes them.
    arrivals: Option<Arc<CompletionChannel>>,
    /// Where the HCA's atomics do the signals.
    scratch: Option<Scratch>,
    choice: Choice,
    port: PortRecord,
    mtu: Mtu,
    largest: u64,
    slots: u32,
    limit: usize,
    service_level: u8,
    traffic_class: u8,
    timeout: u8,
    retry_count: u8,
    device: Arc<Device>,
    news: Arc<News>,
}

impl IbQueue {
    /// Makes one for a mode of the host's. `ipv6`: peers connect to this context so.
    pub(crate) fn new(
        hca: &IbHca,
        config: &EndpointConfig,
        mode: IbMode,
        ipv6: bool,
    ) -> Result<Self> {
        let EndpointConfig { transport, ib, .. } = *config;
        let failed = |error: VerbsError| error.into_error(transport);
        let wish = Wish {
            port: ib.port,
            gid_index: ib.gid_index.or(env().gid_index),
            ipv6,
        };
        let choice = hca.choose(transport, wish)?;
        let attributes = hca.device.port(choice.port).map_err(failed)?;
        let ethernet = attributes.link_layer == LinkLayer::Ethernet;
        let service_level = ib.service_level.or(env().ib_service_level).unwrap_or(0);
        if ethernet && service_level > 7 {
            return Err(Error::InvalidUsage {
                operation: "create an endpoint",
                detail: format!("service level {service_level}: over Ethernet there are 0 to 7"),
            });
        }
        let slots = ib.blocks();
        let atomics = mode == IbMode::Host;
        let receives = match (atomics, ib.max_recv_wr) {
            (true, _) => 0,
            (false, asked) => asked.unwrap_or(DEFAULT_RECEIVES),
        };
        // Entries for all that can complete: neither can be overrun.
        let send = CompletionQueue::new(&hca.device, slots).map_err(failed)?;
        let arrivals = (!atomics).then(|| CompletionChannel::new(&hca.device));
        let arrivals = arrivals.transpose().map_err(failed)?;
        let receive = match &arrivals {
            None => Arc::clone(&send),
            Some(channel) => {
                CompletionQueue::with_channel(&hca.device, receives, channel).map_err(failed)?
            }
        };
        let size = QueuePairSize {
            send_requests: slots,
            receive_requests: receives,
            inline_bytes: 0,
        };
        let access = if atomics {
            AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC
        } else {
            AccessFlags::REMOTE_WRITE
        };
        let pair = QueuePair::new(&hca.domain, &send, &receive, size)
            .and_then(|pair| pair.initialize(choice.port, access))
            .map_err(failed)?;
        let receives = vec![verbs::ReceiveRequest { id: 0, local: None }; receives as usize];
        (pair.post_receive(&receives)).map_err(|error| failed(error.source))?;
        Ok(Self {
            pair,
            send,
            receive,
            arrivals,
            scratch: (atomics.then(|| Scratch::new(hca)))
                .transpose()
                .map_err(failed)?,
            port: PortRecord {
                ethernet,
                lid: attributes.lid,
                needs_gid: attributes.needs_gid(),
                first_packet: (random_u64()? & ((1 << PACKET_BITS) - 1)) as u32,
            },
            mtu: (attributes.active_mtu)
                .and_then(|mtu| Mtu::from_code(mtu.code()))
                .unwrap_or(Mtu::SMALLEST),
            largest: attributes.max_message.into(),
            slots,
            limit: config.max_write_queue_size.unwrap_or(DEFAULT_QUEUE),
            service_level,
            traffic_class: ib.traffic_class.or(env().ib_traffic_class).unwrap_or(0),
            timeout: ib.timeout.or(env().ib_timeout).unwrap_or(DEFAULT_TIMEOUT),
            retry_count: (ib.retry_count.or(env().ib_retry_count)).unwrap_or(DEFAULT_RETRIES),
            choice,
            device: Arc::clone(&hca.device),
            news: Arc::clone(&hca.news),
        })
    }

    /// Puts what peers need to know into a record.
    pub(crate) fn complete(&self, record: QueueRecord) -> QueueRecord {
        QueueRecord {
            mtu: self.mtu,
            queue: self.address(),
            port: Some(self.port),
            ..record
        }
    }

    pub(crate) fn address(&self) -> QueueAddress {
        QueueAddress {
            hca: HcaAddress(self.choice.gid.raw),
            number: self.pair.number(),
        }
    }
}

/// What a queue becomes a connection with.
pub(crate) struct Joined {
    pub(crate) places: Places,
    pub(crate) rank: Option<usize>,
    /// The queue at the other end, as this end reaches it.
    pub(crate) path: gpu_queue::Path,
    pub(crate) port: PortRecord,
    pub(crate) hca: Arc<dyn GpuQueueProvider>,
    pub(crate) status: Arc<StickyStatus>,
    pub(crate) table: Arc<RegistrationTable>,
    pub(crate) route: Route,
    pub(crate) deadlines: Deadlines,
    pub(crate) deadline: Deadline,
}

impl IbQueue {
    /// Begins to connect it.
    pub(crate) fn start(self, joined: Joined, watcher: Arc<Watcher>) -> Result<IbTransport> {
        let Joined {
            places,
            rank,
            path,
            port,
            ..
        } = joined;
        let atomics = self.scratch.is_some();
        let names = Names {
            rank,
            queue: self.pair.number(),
            transport: places.own.1,
        };
        let affected = Affected {
            queue: names.queue,
            completions: [self.send.id(), self.receive.id()],
            port: self.choice.port,
        };
        let receiver = (self.arrivals).map(|channel| {
            let completions = (Arc::clone(&self.receive), channel);
            Receiver::new(completions, joined.table, places.own.1, rank)
        });
        let receiver = receiver.transpose()?;
        let posts = Posts::new(posts::Parts {
            completions: Arc::clone(&self.send),
            scratch: self.scratch,
            slots: self.slots as usize,
            limit: self.limit,
            largest: self.largest,
            names,
        });
        let end = IbEnd::new(
            posts,
            end::Parts {
                control: ControlEnd::new(joined.status, rank, joined.deadlines),
                receiver,
                hca: joined.hca,
                news: self.news,
                affected,
                names,
            },
        );
        let reads = if atomics { path.outstanding_reads } else { 0 };
        let mtu = verbs::Mtu::from_code(path.mtu.code().into());
        let route =
            (port.ethernet || port.needs_gid || self.port.needs_gid).then_some(GlobalRoute {
                gid: path.peer.hca.0,
                source_index: 0,
                hop_limit: HOP_LIMIT,
                traffic_class: self.traffic_class,
            });
        let connector = Connector {
            pair: self.pair,
            device: self.device,
            choice: self.choice,
            names,
            path: verbs::Path {
                peer: path.peer.number,
                destination: Destination {
                    port: affected.port,
                    lid: port.lid,
                    service_level: self.service_level,
                    route,
                },
                mtu: mtu.unwrap_or(verbs::Mtu::SMALLEST),
                packet_number: port.first_packet,
                answered_reads: reads,
                receiver_not_ready_timer: NOT_READY_TIMER,
            },
            sending: Sending {
                timeout: self.timeout,
                retry_count: self.retry_count,
                receiver_not_ready_retries: NOT_READY_RETRIES,
                packet_number: self.port.first_packet,
                outstanding_reads: reads,
            },
        };
        let start = Start {
            connector,
            route: joined.route,
            deadline: joined.deadline,
        };
        IbTransport::start(end, places, start, watcher)
    }
}

/// What brings a queue pair to RTS.
pub(super) struct Connector {
    pair: QueuePair<Initialized>,
    device: Arc<Device>,
    choice: Choice,
    names: Names,
    path: verbs::Path,
    sending: Sending,
}

impl Connector {
    pub(super) fn connect(self) -> Result<QueuePair<ReadyToSend>> {
        let mut path = self.path.clone();
        if let Some(route) = &mut path.destination.route {
            route.source_index = self.source_index()?;
        }
        (self.pair.ready_to_receive(&path))
            .and_then(|pair| pair.ready_to_send(&self.sending))
            .map_err(|error| error.into_error(self.names.transport))
    }

    /// Where the GID is that the peer was told: tables of GIDs change.
    fn source_index(&self) -> Result<u8> {
        let Choice { port, gid, .. } = &self.choice;
        let failed = |error: VerbsError| error.into_error(self.names.transport);
        let now = self.device.gids(*port).map_err(failed)?;
        let same = |other: &&verbs::Gid| other.raw == gid.raw && other.kind == gid.kind;
        let found = (now
            .iter()
            .find(|other| other.index == gid.index && same(other)))
        .or_else(|| now.iter().find(same));
        let index = found.and_then(|found| u8::try_from(found.index).ok());
        index.ok_or_else(|| Error::HcaUnavailable {
            transport: self.names.transport,
            detail: format!(
                "{}: port {port} has GID {gid} no more, which the peer was told; connect again",
                self.device.name()
            ),
        })
    }
}
