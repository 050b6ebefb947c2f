// SPDX-License-Identifier: MIT
//! A strict mlx5 network card in software.
//!
//! [`Device`] is a NIC that executes the work requests of an mlx5 send queue
//! ([`mlx5_queue`]) from memory of the caller's choice: the same 64-byte
//! blocks, doorbell record, doorbell register and completions as a ConnectX,
//! written by the same poster code, on a machine without one. It is strict,
//! not kind: it checks what a ConnectX checks, answers with the same syndromes,
//! reports posters that only *seem* to work, and on request uses every freedom
//! that RDMA's ordering leaves it.
//!
//! # Example
//!
//! Two queue pairs of one device; one writes 8 bytes to the other's memory.
//!
//! ```
//! use mlx5_queue::{
//!     Completion, DataSegment, DataSegments, Doorbell, DoorbellRecord, Flags, Operation, Payload,
//!     QueueIndex, RemoteAddress, RingSize, WorkRequest,
//! };
//! use mscclpp_softnic::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Inline: the doorbell call runs the NIC. A thread is the default.
//! let device =
//!     Device::open("soft0", DeviceConfig { engine: EngineMode::Inline, ..Default::default() })?;
//! let domain = device.allocate_domain()?;
//! let page = device.allocate_doorbell_page()?;
//!
//! // A queue pair is made of memory: send ring, record, completion ring.
//! let make = || -> Result<_, Error> {
//!     let (ring, record) = (HostBuffer::new(64 * 64), HostBuffer::new(8));
//!     let completions = HostBuffer::new(64 * 64);
//!     for slot in 0..64 {
//!         completions.write(slot * 64 + 63, &[Completion::UNWRITTEN]);
//!     }
//!     let queue = device.create_completion_queue(completions.range(), 64)?;
//!     let pair = domain.create_queue_pair(QueuePairConfig {
//!         send_ring: ring.range(),
//!         send_blocks: 64,
//!         record: record.range(),
//!         send_completions: &queue,
//!         receive: None,
//!         page: &page,
//!         trigger: None,
//!     })?;
//!     Ok((pair, ring, record, completions))
//! };
//! let ((a, ring, record, completions), (b, ..)) = (make()?, make()?);
//! for (pair, peer) in [(&a, &b), (&b, &a)] {
//!     pair.modify(Transition::Init(InitAttributes::ALL))?;
//!     pair.modify(Transition::ReadyToReceive(ReceiveAttributes::new(peer.address())))?;
//!     pair.modify(Transition::ReadyToSend(SendAttributes::default()))?;
//! }
//!
//! // Memory has to be registered to be named.
//! let (source, target) = (HostBuffer::new(8), HostBuffer::new(8));
//! let from = domain.register(source.range(), AccessFlags::LOCAL_READ, WriteOrdering::Relaxed)?;
//! let to = domain.register(target.range(), AccessFlags::ALL, WriteOrdering::Relaxed)?;
//! source.write_u64(0, 42);
//!
//! // Post: request, then record, then doorbell.
//! let list = [DataSegment::new(source.address(), from.key(), 8)?.encode()];
//! let request = WorkRequest {
//!     queue: a.number(),
//!     index: 0,
//!     flags: Flags::SIGNALLED,
//!     operation: Operation::Write {
//!         remote: RemoteAddress { address: target.address(), key: to.key() },
//!         payload: Payload::Gather(DataSegments::new(&list)),
//!         immediate: None,
//!     },
//! };
//! let mut slot = [0; 64];
//! let written = request.encode(&mut slot)?;
//! ring.write(0, &slot[..written]);
//! let head = QueueIndex::new(1);
//! record.write(DoorbellRecord::SEND_OFFSET, &DoorbellRecord::send_word(head));
//! page.ring(Doorbell::new(a.number(), head));
//!
//! // Poll.
//! let mut bytes = [0; 64];
//! completions.read(0, &mut bytes);
//! let seen = Completion::poll(&bytes, QueueIndex::ZERO, RingSize::new(64)?)?;
//! assert_eq!(seen.expect("complete").failure(), None);
//! assert_eq!(target.read_u64(0), 42);
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! - **Requests**: NOP, RDMA write (with immediate), send (with immediate),
//!   read, 64-bit fetch-and-add and compare-and-swap, DUMP; gathered and inline
//!   data; fences; signalled and unsignalled. WAIT and everything that
//!   [`mlx5_queue`] does not decode are answered with LOC_QP_OP_ERR.
//! - **Reliable connections**: packets in sequence, acknowledged; lost ones are
//!   sent again after a timeout or a complaint of the peer, then RETRY_EXC_ERR;
//!   RNR_RETRY_EXC_ERR where there is no receive request; after an error the
//!   rest is flushed with WR_FLUSH_ERR, unsignalled requests too.
//! - **Devices** are separate: `soft0` opened twice is two NICs, each with its
//!   own numbers, keys and engine. Queue pairs of one device reach each other.
//!   Devices, in one process, in two or on two hosts, reach each other once
//!   [`Device::link`] has joined them by a TCP or Unix stream. The stream comes
//!   from the caller, who has proven the peers to each other. Connecting to a
//!   device without a link succeeds, as on a fabric without a cable; requests
//!   then fail with RETRY_EXC_ERR, and so they do when the peer's process dies.
//!
//! # Lent memory
//!
//! Between two devices that a Unix stream joins, payload need not travel. Where
//! the memory of a registration can be [exported](NicMemory::export), the device
//! offers it to the peer's when it first sends from it, and the peer's
//! [maps](NicMemory::import) it, or declines; the answer holds for that
//! registration. From then on packets name places in the registration, and the
//! receiver copies from there: for writes, messages and the answers to reads.
//! Nothing else changes: places are checked against what was lent, the bytes land
//! before a later atomic acts, an acknowledgement tells that they were fetched.
//! Bytes travel until the answer has come, if it is no, between hosts, and from
//! the [host's memory](HostMemory), which is never lent.
//! [`Counters::bytes_mapped`] and the log (`debug`) say which.
//!
//! What the two can *not* take back: when a registration ends, the peer's device
//! uses its mapping no more, but hears of it a moment later, and the memory is kept
//! until it says so. The peer's process, however, has been given a way to the memory
//! (all of what was exported, a whole allocation of a GPU, say, for writing too) that
//! nobody can close: a device that does not keep to the protocol keeps it. And a
//! request that fails at its sender may still be fetching when the sender uses its
//! memory again: what is in the destination then is not defined, as always after a
//! failure.
//!
//! # Checks and their answers
//!
//! | what is wrong | syndrome |
//! |---|---|
//! | index, queue number, opcode, size or form of a slot; doorbell or record back or too far; atomics where the device has none | LOC_QP_OP_ERR |
//! | message longer than the device's limit; atomic result not 8 bytes | LOC_LEN_ERR |
//! | local key, bounds, protection domain, or no local write permission | LOC_PROT_ERR |
//! | remote key, bounds, protection domain, or permission of the registration | REM_ACCESS_ERR |
//! | operation not enabled on the peer's queue pair; misaligned atomic; more reads and atomics at once than the peer allows; packet larger than the peer's MTU; message longer than the receive request | REM_INV_REQ_ERR |
//! | the peer cannot reach its own memory, or memory that was lent to it, or the place was not lent | REM_OP_ERR |
//! | no answer: peer not ready, in error, gone, or the network down | RETRY_EXC_ERR |
//! | no receive request | RNR_RETRY_EXC_ERR |
//! | queue already in error | WR_FLUSH_ERR |
//!
//! A responder that refuses a request goes into error too, as the InfiniBand
//! specification says. Which of REM_ACCESS_ERR and REM_INV_REQ_ERR a disabled
//! operation gets follows Linux' soft RoCE.
//!
//! What a poster does wrong is also reported as a [`Violation`]
//! ([`Device::take_violations`]), among them faults that no completion shows: a
//! record that is never followed by a doorbell, or the other way round. A slot
//! may be used again once a *completion* covers it; announcing more is an
//! error, even if the request in it happens to be finished.
//!
//! # Commands
//!
//! A driver that makes its queues by mlx5 commands, instead of by the calls of this crate, finds
//! them in [`devx`].
//!
//! # Events
//!
//! A queue pair that goes into error, and a link that goes down, are
//! [`Event`]s: reported once, without anyone polling completions, to whoever
//! waits in [`Device::next_event`] or watches [`Device::event_fd`] together
//! with its sockets.
//!
//! # Ordering contract
//!
//! No stronger than hardware's, and all that a poster or a peer may rely on:
//!
//! 1. Requests are taken only after what announced them was seen, up to the
//!    announced index, from copies made after that.
//! 2. An aligned 8-byte word never tears.
//! 3. A write has landed before a later atomic, read, or receive completion of
//!    its queue pair acts.
//! 4. A write to a [strict](WriteOrdering::Strict) registration lands after all
//!    earlier writes of its queue pair.
//! 5. Results of reads and atomics have landed before their completion is
//!    visible. A later request that depends on them needs a fence.
//! 6. Atomics of one device on one word exclude each other, and nothing else:
//!    they are a load, a delay and a store. Atomics of other devices, and of
//!    processors, may come in between.
//! 7. The byte that holds a completion's owner bit becomes visible last.
//!
//! Everything else may land in any order and in pieces.
//! [`Landing::Scattered`], [`Acknowledge::Accepted`], the [`TriggerMode`]s and
//! [`Checks`] use what is left open; chance comes from
//! [`DeviceConfig::seed`].
//!
//! # Threads and time
//!
//! The NIC is a state machine that is told of doorbells, finished memory
//! accesses, packets and the time. [`EngineMode`] says who runs it; with
//! [`EngineMode::Manual`] everything repeats exactly. All handles may be used
//! from any thread. The engine thread yields for 50 us after it last heard of
//! something, then naps, for an eighth of the time since, 1 ms at most, as long
//! as there are queue pairs whose registers are memory that anyone may store to;
//! a doorbell *call* and a packet wake it.
//!
//! # Ownership
//!
//! Every handle keeps what it stands on alive; drop them in any order. Memory
//! that is let go stays allocated until no access that had begun can touch it.
//!
//! # What it does not prove
//!
//! PCIe's ordering between a GPU and a real NIC, its caches and its timing. A
//! poster that passes here breaks none of the rules that this NIC knows; a
//! poster that fails here is wrong.
// Helpers of the tests of devices are compiled here, too.
#[cfg(test)]
extern crate self as mscclpp_softnic;

mod capability;
mod config;
mod counters;
mod device;
pub mod devx;
mod engine;
mod error;
mod event;
mod fault;
mod handles;
mod lending;
mod link;
mod memory;
mod nic;
mod observer;
mod queue_config;
mod region;
mod shell;
mod time;
mod violation;

pub use capability::{Capabilities, DeviceAddress, Mtu};
pub use config::{
    Acknowledge, Checks, DeviceConfig, EngineMode, Landing, NetworkConfig, TriggerMode,
};
pub use counters::{Counters, LiveObjects};
pub use device::Device;
pub use error::Error;
pub use event::{Event, FailureCause};
pub use fault::{ControlOperation, FaultKind, FaultPlan, FaultRule};
pub use handles::{CompletionQueue, DoorbellPage, ProtectionDomain, QueuePair, Registration};
pub use link::LinkStream;
pub use memory::{
    Access, AccessId, AccessResult, Bytes, Export, HostBuffer, HostMemory, Imported, MemoryFault,
    MemoryRange, NicMemory, Submitted,
};
pub use observer::{Observer, Seen, Transfer};
pub use queue_config::{
    InitAttributes, QueueAddress, QueuePairConfig, QueuePairStatus, ReceiveAttributes,
    ReceiveQueueConfig, SendAttributes, State, Transition,
};
pub use region::{AccessFlags, WriteOrdering};
pub use time::Time;
pub use violation::{Violation, ViolationKind};
