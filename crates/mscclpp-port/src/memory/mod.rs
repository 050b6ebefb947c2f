// SPDX-License-Identifier: MIT
//! Memory that connections can reach: local registrations and what peers sent of theirs.

mod hca;
mod ipc;
mod options;
mod record;
mod signal;
mod table;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use mscclpp_bootstrap::Deadline;

#[cfg(feature = "ib")]
pub(crate) use hca::{HcaSource, HcaTarget};
#[cfg(any(test, feature = "cuda"))]
pub(crate) use ipc::IpcHandle;
#[cfg(feature = "cuda")]
pub(crate) use ipc::ProcessId;
pub(crate) use ipc::{IpcRecord, Mapped};
pub use options::MemoryOptions;
pub(crate) use record::{HcaKey, MemoryRecord};
pub(crate) use signal::SignalMemory;
pub use table::Access;
pub(crate) use table::{Region, RegionGuard, RegistrationTable};

use crate::context::{Context, ContextId};
use crate::error::{Error, check_range};
use crate::gpu::Keep;
use crate::gpu_queue::HcaRegistration;
#[cfg(feature = "ib")]
use crate::refusal::Refusal;
use crate::transport::{TransportFlags, TransportKind};

/// A range of bytes that connections may name: in this process, or a peer's.
///
/// Cheap to clone. The default value is an *empty placeholder*: it may be stored and passed along,
/// has size 0, and every operation on it is [`Error::InvalidUsage`].
///
/// A local registration keeps its [`Buffer`](crate::Buffer) alive. When the last clone and
/// sub-range of it in this process is dropped, it ends: a peer that still writes to it gets a
/// refusal ([`Refusal::UnknownKey`](crate::Refusal::UnknownKey)) on its connection, and the drop
/// waits for no peer. (Two exceptions: a copy into a GPU's memory that was started before may still
/// land, while the buffer stays allocated; and over CUDA IPC a peer reaches the memory until it drops
/// its own.) A write that was posted *from* it earlier still goes through, unless the
/// memory was registered raw.
///
/// Offsets are relative to the start of the range.
#[derive(Clone, Default)]
pub struct RegisteredMemory {
    view: Option<View>,
}

#[derive(Clone)]
struct View {
    backing: Backing,
    /// Start of this range in the registration.
    offset: u64,
    size: u64,
}

#[derive(Clone)]
enum Backing {
    Local(Arc<Registration>),
    Remote(Arc<RemoteRegistration>),
}

/// The right of peers to reach a region. Ends with its last clone.
pub(crate) struct Registration {
    pub(crate) key: u64,
    pub(crate) owner: Owner,
    pub(crate) transports: TransportFlags,
    pub(crate) region: Arc<Region>,
    pub(crate) table: Arc<RegistrationTable>,
    /// Its keys on HCAs.
    pub(crate) hcas: Vec<(TransportKind, Arc<dyn HcaRegistration>)>,
    /// What peers may do over HCAs that leave signals to their hosts.
    #[cfg(feature = "ib")]
    pub(crate) access: Access,
    /// How processes of this host reach it over CUDA IPC, and what they ask.
    pub(crate) ipc: Option<(IpcRecord, Keep)>,
}

impl Registration {
    /// Its registration with the HCA of a transport.
    fn on(&self, transport: TransportKind) -> Option<&Arc<dyn HcaRegistration>> {
        (self.hcas.iter()).find_map(|(kind, hca)| (*kind == transport).then_some(hca))
    }

    /// Its key for peers on the HCA of a transport.
    fn key_on(&self, transport: TransportKind) -> Option<u32> {
        Some(self.on(transport)?.key())
    }

    /// Executes a peer's signal to the first word, for an HCA without atomics.
    #[cfg(feature = "ib")]
    pub(crate) fn signal(&self) -> Result<(), Refusal> {
        if self.access.remote_atomic {
            self.region.signal()
        } else {
            Err(Refusal::AccessDenied)
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.table.remove(self.key);
    }
}

/// A peer's registration, as far as it told.
pub(crate) struct RemoteRegistration {
    pub(crate) key: u64,
    pub(crate) owner: Owner,
    pub(crate) transports: TransportFlags,
    /// Address of the registration's first byte, modulo 8.
    pub(crate) misalignment: u8,
    /// Where HCAs find the registration's first byte, and by which keys.
    pub(crate) address: u64,
    pub(crate) keys: Vec<HcaKey>,
    /// How its owner says that it is reached over CUDA IPC, and how this process does, or why not.
    pub(crate) ipc: Option<(IpcRecord, Result<Mapped, Error>)>,
}

/// Whose memory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) context: ContextId,
    pub(crate) rank: Option<usize>,
}

/// A place in a registration, checked as far as this side can: what goes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) key: u64,
    /// From the start of the registration.
    pub(crate) offset: u64,
}

impl RegisteredMemory {
    pub(crate) fn local(registration: Arc<Registration>) -> Self {
        let size = registration.region.len();
        Self {
            view: Some(View {
                backing: Backing::Local(registration),
                offset: 0,
                size,
            }),
        }
    }

    pub(crate) fn remote(registration: RemoteRegistration, offset: u64, size: u64) -> Self {
        let backing = Backing::Remote(Arc::new(registration));
        Self {
            view: Some(View {
                backing,
                offset,
                size,
            }),
        }
    }

    /// The size in bytes; 0 for the empty placeholder only.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.view.as_ref().map_or(0, |v| v.size)
    }

    /// Whether this is the empty placeholder.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.view.is_none()
    }

    /// The transports over which it can be reached.
    #[must_use]
    pub fn transports(&self) -> TransportFlags {
        self.view
            .as_ref()
            .map_or(TransportFlags::NONE, |v| v.backing.transports())
    }

    /// The rank that owns the memory, where its context has one.
    #[must_use]
    pub fn owner_rank(&self) -> Option<usize> {
        self.view.as_ref().and_then(|v| v.backing.owner().rank)
    }

    /// Whether the memory was registered by a context of this process and can be a source.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.data().is_some()
    }

    /// The first byte, if the memory is local; of a GPU's memory the address, which the host may not
    /// touch. Valid while the registration's buffer lives, which it does as long as `self` does.
    #[must_use]
    pub fn data(&self) -> Option<NonNull<u8>> {
        match self.view.as_ref()? {
            View {
                backing: Backing::Local(registration),
                offset,
                ..
            } => {
                let base = registration.region.base().as_ptr();
                NonNull::new(base.wrapping_add(*offset as usize))
            }
            _ => None,
        }
    }

    /// A part of this memory as a memory of its own, with offsets that start at its first byte. It
    /// shares the registration: it needs no new exchange with the owner, and both keep it alive.
    ///
    /// This is how a trigger, whose offsets have 32 bits, reaches beyond 4 GiB. It protects against
    /// mistakes of the peer that gets it, not against malice: the owner checks what arrives against
    /// the whole registration.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::InvalidUsage`] if `len` is 0 or this is the placeholder.
    pub fn sub_range(&self, offset: u64, len: u64) -> Result<Self, Error> {
        const WHAT: &str = "take a sub-range of registered memory";
        let view = self.view(WHAT)?;
        if len == 0 {
            return Err(Error::InvalidUsage {
                operation: WHAT,
                detail: "it would be empty".into(),
            });
        }
        check_range(WHAT, offset, len, view.size)?;
        let view = View {
            offset: view.offset + offset,
            size: len,
            ..view.clone()
        };
        Ok(Self { view: Some(view) })
    }

    /// The record to send to a peer, who turns it into a memory with
    /// [`deserialize`](Self::deserialize). It holds a key, and for each HCA that the memory is
    /// registered with a key of that and the address. The peer can use it as long as a clone of
    /// this memory lives here.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] for the placeholder.
    pub fn serialize(&self) -> Result<Vec<u8>, Error> {
        let view = self.view("serialize registered memory")?;
        MemoryRecord {
            key: view.backing.key(),
            offset: view.offset,
            size: view.size,
            owner: view.backing.owner(),
            transports: view.backing.transports(),
            misalignment: view.backing.misalignment(),
            address: view.backing.address(),
            keys: view.backing.keys(),
            ipc: view.backing.ipc().cloned(),
        }
        .encode()
    }

    /// The memory that a record describes. A record of `context`'s own memory gives the local
    /// memory back, if it is still registered.
    ///
    /// Memory that is open over CUDA IPC is mapped into this process, which asks the owner for it
    /// and waits for its answer, 30 seconds at most ([`deserialize_by`](Self::deserialize_by)).
    ///
    /// # Errors
    /// [`Error::Record`] if the bytes are no such record, or name memory of this context or process
    /// that is not registered any more. For memory that is open over CUDA IPC only, why it cannot be
    /// mapped: [`Error::DeviceUnavailable`], [`Error::Unsupported`] (another host), [`Error::Cuda`],
    /// [`Error::Timeout`], [`Error::Bootstrap`]; if it is open over other transports too, posts over
    /// CUDA IPC return that.
    pub fn deserialize(context: &Context, record: &[u8]) -> Result<Self, Error> {
        Self::deserialize_by(context, record, Deadline::after(context.deadlines().step))
    }

    /// As [`deserialize`](Self::deserialize), with a deadline.
    ///
    /// # Errors
    /// As [`deserialize`](Self::deserialize).
    pub fn deserialize_by(
        context: &Context,
        record: &[u8],
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let record = MemoryRecord::decode(record)?;
        if record.owner.context != context.id() {
            let mapped = record.ipc.as_ref().map(|ipc| {
                let end = record.offset + record.size;
                let owner = record.owner;
                context.map_memory((record.key, owner.context, owner.rank), ipc, end, deadline)
            });
            if let (Some(Err(error)), 1) = (&mapped, record.transports.count()) {
                return Err(error.clone());
            }
            let remote = RemoteRegistration {
                key: record.key,
                owner: record.owner,
                transports: record.transports,
                misalignment: record.misalignment,
                address: record.address,
                keys: record.keys,
                ipc: record.ipc.zip(mapped),
            };
            return Ok(Self::remote(remote, record.offset, record.size));
        }
        let gone = |detail: &str| Error::Record {
            what: "memory",
            detail: detail.into(),
        };
        let registration = context
            .table()
            .registration(record.key)
            .ok_or_else(|| gone("it names memory of this context that is not registered"))?;
        check_range(
            "memory record",
            record.offset,
            record.size,
            registration.region.len(),
        )
        .map_err(|error| gone(&error.to_string()))?;
        let backing = Backing::Local(registration);
        Ok(Self {
            view: Some(View {
                backing,
                offset: record.offset,
                size: record.size,
            }),
        })
    }

    /// This memory as the destination of `len` bytes at `offset`, at the context `peer`.
    pub(crate) fn target(
        &self,
        what: &'static str,
        peer: ContextId,
        offset: u64,
        len: u64,
    ) -> Result<Target, Error> {
        let ethernet = TransportKind::Ethernet;
        let view = self.destination(what, (peer, ethernet), offset, len)?;
        Ok(Target {
            key: view.backing.key(),
            offset: view.offset + offset,
        })
    }

    /// This memory as the destination of copies of this process, at the context `peer`: its key, and
    /// `len` bytes at `offset` as they are mapped here.
    #[cfg(feature = "cuda")]
    pub(crate) fn mapped(
        &self,
        what: &'static str,
        peer: ContextId,
        offset: u64,
        len: u64,
    ) -> Result<(u64, Mapped), Error> {
        let ipc = TransportKind::CudaIpc;
        let view = self.destination(what, (peer, ipc), offset, len)?;
        let mapped = match &view.backing {
            Backing::Local(registration) => Mapped {
                address: registration.region.base().addr().get() as u64,
                for_signals: registration.region.signals().is_some(),
                keep: Arc::clone(&registration.region) as _,
            },
            Backing::Remote(registration) => match &registration.ipc {
                Some((_, mapped)) => mapped.clone()?,
                // `destination` has refused what is not open over CUDA IPC.
                None => return Err(self.unreachable_over(what, ipc)),
            },
        };
        let address = mapped.address + view.offset + offset;
        Ok((view.backing.key(), Mapped { address, ..mapped }))
    }

    fn unreachable_over(&self, what: &'static str, transport: TransportKind) -> Error {
        Error::InvalidUsage {
            operation: what,
            detail: self.not_open_over(transport),
        }
    }

    fn not_open_over(&self, transport: TransportKind) -> String {
        format!(
            "the destination does not support this transport: it is open over {}, not over \
             {transport}; its owner must register it for that, too (MemoryOptions::transports)",
            self.transports()
        )
    }

    /// Whether puts over the transport can reach it, or what to do. Of an empty placeholder nobody
    /// knows.
    pub(crate) fn check_open_over(&self, transport: TransportKind) -> Result<(), String> {
        if self.view.is_none() || self.transports().has(transport) {
            return Ok(());
        }
        Err(self.not_open_over(transport))
    }

    fn destination(
        &self,
        what: &'static str,
        (peer, transport): (ContextId, TransportKind),
        offset: u64,
        len: u64,
    ) -> Result<&View, Error> {
        let view = self.view(what)?;
        let owner = view.backing.owner();
        if owner.context != peer {
            let whose = owner
                .rank
                .map_or("another context".into(), |r| format!("rank {r}"));
            let detail = format!("the destination is memory of {whose}, not of this peer");
            return Err(Error::InvalidUsage {
                operation: what,
                detail,
            });
        }
        if !view.backing.transports().has(transport) {
            return Err(self.unreachable_over(what, transport));
        }
        check_range(what, offset, len, view.size)?;
        Ok(view)
    }

    /// This memory as the destination of an atomic on the word at `offset`, at the context `peer`.
    pub(crate) fn target_word(
        &self,
        what: &'static str,
        peer: ContextId,
        offset: u64,
    ) -> Result<Target, Error> {
        let target = self.target(what, peer, offset, 8)?;
        let misalignment = self.view(what)?.backing.misalignment();
        if (target.offset % 8 + u64::from(misalignment)).is_multiple_of(8) {
            Ok(target)
        } else {
            Err(Error::Misaligned { what, offset })
        }
    }

    /// This memory as the source of `len` bytes at `offset`: the region, and where in it.
    pub(crate) fn source(
        &self,
        what: &'static str,
        offset: u64,
        len: u64,
    ) -> Result<(Arc<Region>, u64), Error> {
        let view = self.view(what)?;
        let Backing::Local(registration) = &view.backing else {
            let detail = "the source is a peer's memory".into();
            return Err(Error::InvalidUsage {
                operation: what,
                detail,
            });
        };
        check_range(what, offset, len, view.size)?;
        Ok((Arc::clone(&registration.region), view.offset + offset))
    }

    fn view(&self, operation: &'static str) -> Result<&View, Error> {
        self.view.as_ref().ok_or_else(|| Error::InvalidUsage {
            operation,
            detail: "the memory is an empty placeholder".into(),
        })
    }
}

impl Backing {
    /// Where HCAs find the registration's first byte; 0 without.
    fn address(&self) -> u64 {
        match self {
            Self::Local(registration) if registration.hcas.is_empty() => 0,
            Self::Local(registration) => {
                registration.region.base().as_ptr().expose_provenance() as u64
            }
            Self::Remote(registration) => registration.address,
        }
    }

    fn keys(&self) -> Vec<HcaKey> {
        match self {
            Self::Local(registration) => (registration.hcas.iter())
                .map(|(transport, registration)| HcaKey {
                    transport: *transport,
                    key: registration.key(),
                })
                .collect(),
            Self::Remote(registration) => registration.keys.clone(),
        }
    }

    /// Its key for peers on the HCA of a transport.
    fn key_on(&self, transport: TransportKind) -> Option<u32> {
        match self {
            Self::Local(registration) => registration.key_on(transport),
            Self::Remote(registration) => (registration.keys.iter())
                .find(|key| key.transport == transport)
                .map(|key| key.key),
        }
    }

    fn ipc(&self) -> Option<&IpcRecord> {
        match self {
            Self::Local(registration) => registration.ipc.as_ref().map(|(record, _)| record),
            Self::Remote(registration) => registration.ipc.as_ref().map(|(record, _)| record),
        }
    }

    fn key(&self) -> u64 {
        match self {
            Self::Local(registration) => registration.key,
            Self::Remote(registration) => registration.key,
        }
    }

    fn owner(&self) -> Owner {
        match self {
            Self::Local(registration) => registration.owner,
            Self::Remote(registration) => registration.owner,
        }
    }

    fn transports(&self) -> TransportFlags {
        match self {
            Self::Local(registration) => registration.transports,
            Self::Remote(registration) => registration.transports,
        }
    }

    fn misalignment(&self) -> u8 {
        match self {
            Self::Local(registration) => (registration.region.base().addr().get() % 8) as u8,
            Self::Remote(registration) => registration.misalignment,
        }
    }
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(view) = &self.view else {
            return f.write_str("RegisteredMemory(empty)");
        };
        f.debug_struct("RegisteredMemory")
            .field("local", &self.is_local())
            .field("offset", &view.offset)
            .field("size", &view.size)
            .field("owner_rank", &view.backing.owner().rank)
            .field("transports", &view.backing.transports())
            .finish_non_exhaustive()
    }
}
