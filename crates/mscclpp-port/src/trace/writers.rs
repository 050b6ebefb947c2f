// SPDX-License-Identifier: MIT
//! The host's parts that write records.

use std::sync::Arc;

use mscclpp_device::trace::{Kind, Phase, Record, Ring, now, object_of};
use mscclpp_softnic::{DeviceAddress, Observer, Seen, Transfer};

use super::{Place, Tracer};

/// A proxy's.
pub(crate) struct ProxyTrace {
    ring: Arc<Ring>,
    fifo: u16,
}

impl ProxyTrace {
    /// Of the proxy whose FIFO has its slots there.
    pub(crate) fn new(tracer: &Tracer, slots: u64) -> Self {
        Self {
            ring: tracer.ring(Place::Proxy, "proxy"),
            fifo: object_of(slots),
        }
    }

    /// A trigger was executed, since `began`.
    pub(crate) fn handled(&self, began: u64, position: u64) {
        for (time, phase) in [(began, Phase::Begin), (now(), Phase::End)] {
            let fifo = self.fifo.into();
            self.ring
                .write(Record::new(time, Kind::Handled, phase, 0, fifo, position));
        }
    }

    /// An operation was posted on a connection.
    pub(crate) fn posted(&self, (connection, number): (u16, u64)) {
        self.ring.point(Kind::Posted, 0, connection.into(), number);
    }
}

/// A connection's, over a stream.
#[derive(Clone)]
pub(crate) struct LinkTrace {
    nic: Arc<Ring>,
    wire: Arc<Ring>,
    /// Names what goes from here, and what comes; the peer has the same names.
    sends: u16,
    receives: u16,
}

impl LinkTrace {
    /// Of the connection between endpoints of these random names.
    pub(crate) fn new(tracer: &Tracer, peer: Option<usize>, own: &[u8], theirs: &[u8]) -> Self {
        let to = peer.map_or("a peer".into(), |rank| format!("rank {rank}"));
        Self {
            nic: tracer.ring(Place::Nic, format!("connection to {to}")),
            wire: tracer.ring(Place::Wire, format!("stream to {to}")),
            sends: fold(own),
            receives: fold(theirs),
        }
    }

    /// What posts on it are named by.
    pub(crate) fn connection(&self) -> u16 {
        self.sends
    }

    /// A post goes out, or a part of it.
    pub(crate) fn left(&self, number: u64) {
        self.nic.point(Kind::Left, 0, self.sends.into(), number);
    }

    /// A frame goes out.
    pub(crate) fn sent(&self, number: u64) {
        self.wire.point(Kind::Sent, 0, self.sends.into(), number);
    }

    /// The header of a frame has come.
    pub(crate) fn received(&self, number: u64) {
        self.wire
            .point(Kind::Received, 0, self.receives.into(), number);
    }

    /// A signal is added to a token.
    pub(crate) fn raised(&self, token: u64, count: u64) {
        self.wire
            .point(Kind::Raised, 0, object_of(token).into(), count);
    }
}

/// A NIC's in software.
pub(super) struct NicTrace {
    nic: Arc<Ring>,
    wire: Arc<Ring>,
}

impl NicTrace {
    pub(super) fn new(tracer: &Tracer, name: &str) -> Self {
        Self {
            nic: tracer.ring(Place::Nic, name),
            wire: tracer.ring(Place::Wire, format!("link of {name}")),
        }
    }
}

impl Observer for NicTrace {
    fn see(&self, seen: Seen) {
        let nic = |kind, queue: u32, sequence: u16| {
            self.nic.point(kind, queue, queue.into(), sequence.into());
        };
        match seen {
            Seen::Doorbell { queue, end } => nic(Kind::Heard, queue.get(), end),
            Seen::Fetched { queue, index, .. } => nic(Kind::Fetched, queue.get(), index),
            Seen::Completed { queue, index } => nic(Kind::Wrote, queue.get(), index),
            Seen::Sent(transfer) => self.packet(Kind::Sent, &transfer),
            Seen::Received(transfer) => self.packet(Kind::Received, &transfer),
            Seen::Added {
                queue,
                address,
                old,
            } => {
                let (token, count) = (object_of(address).into(), old.wrapping_add(1));
                self.wire.point(Kind::Raised, queue.get(), token, count);
            }
            _ => {}
        }
    }
}

impl NicTrace {
    fn packet(&self, kind: Kind, transfer: &Transfer) {
        let DeviceAddress(to) = transfer.to;
        let mut name = to.to_vec();
        name.extend(transfer.to_queue.get().to_le_bytes());
        name.extend([transfer.answer.into(), 0]);
        let direction = fold(&name).into();
        self.wire
            .point(kind, transfer.local.get(), direction, transfer.number);
    }
}

/// 16 bits of a name.
fn fold(name: &[u8]) -> u16 {
    let pair = |pair: &[u8]| u16::from_le_bytes([pair[0], pair[1]]);
    (name.chunks_exact(2)).fold(0, |sum: u16, two| sum.rotate_left(5) ^ pair(two))
}
