// SPDX-License-Identifier: MIT
//! How the NIC reaches memory: [`NicMemory`], and the memory of this process.

mod copy;
mod host;

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use smallvec::SmallVec;

pub(crate) use host::HostWord;
pub use host::{HostBuffer, HostMemory};

/// Bytes on their way to or from memory: up to one completion without
/// allocation.
pub type Bytes = SmallVec<[u8; 64]>;

/// Names an access from its submission to its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessId(pub(crate) u64);

impl AccessId {
    /// A name. The NIC makes its own; this is for tests of a [`NicMemory`].
    pub fn new(number: u64) -> Self {
        Self(number)
    }
}

/// One thing that the NIC does to memory. Addresses are absolute and inside a
/// [`MemoryRange`] of the memory that receives the access; that of a source may
/// also be inside what this memory has [imported](NicMemory::import).
#[derive(Debug)]
#[non_exhaustive]
pub enum Access {
    /// Fill `bytes` from `address`. The copy must not be older than the
    /// submission.
    Read {
        /// First byte.
        address: u64,
        /// Filled, and handed back in the result.
        bytes: Bytes,
    },
    /// Store `bytes` at `address`, in any order; an aligned 8-byte word never
    /// tears.
    Write {
        /// First byte.
        address: u64,
        /// What is stored.
        bytes: Bytes,
    },
    /// Store `bytes` so that their last aligned 8-byte word becomes visible
    /// after the rest of them and after every access that had completed
    /// before. `address` and the length are multiples of 8.
    Publish {
        /// First byte.
        address: u64,
        /// What is stored.
        bytes: Bytes,
    },
    /// Copy between two ranges of this memory; an aligned 8-byte word of the
    /// destination never tears. Overlapping ranges leave the destination with
    /// either copy's bytes.
    Copy {
        /// First byte of the source.
        from: u64,
        /// First byte of the destination.
        to: u64,
        /// Bytes.
        length: u64,
    },
}

/// The memory could not be reached: a message for a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MemoryFault(pub String);

/// The outcome of an access: for [`Access::Read`] the bytes, for others
/// nothing of interest.
pub type AccessResult = Result<Bytes, MemoryFault>;

/// What [`NicMemory::submit`] has done.
#[derive(Debug)]
pub enum Submitted {
    /// The access is complete.
    Done(AccessResult),
    /// It has begun; [`NicMemory::complete`] will report it.
    Pending,
}

/// Memory that the NIC can reach: submit an access, learn later that it is
/// complete.
///
/// The host's own ([`HostMemory`]) completes each access at once. A GPU's
/// starts an asynchronous copy and reports it when its stream says so. The NIC
/// never waits for one access before it goes on with another queue.
///
/// An access that is reported complete is visible to every other agent before
/// any access that is submitted afterwards.
pub trait NicMemory: Send + Sync + 'static {
    /// Starts an access. Called by the engine alone, and never blocks.
    ///
    /// # Safety
    /// Every address of `access` lies inside a [`MemoryRange`] of this memory
    /// or, as that of a source, inside what this memory has
    /// [imported](Self::import), whose owner lives until the access is complete.
    unsafe fn submit(&self, id: AccessId, access: Access) -> Submitted;

    /// Whether accesses act in the order in which they are submitted, and none
    /// acts once an earlier one has failed, as on a stream of copies. What has
    /// to act after an access that is under way is then submitted behind it,
    /// where else the NIC waits for its end.
    fn in_order(&self) -> bool {
        false
    }

    /// The next access that has completed since, in any order; `None` if there
    /// is none at the moment. Never blocks.
    fn complete(&self) -> Option<(AccessId, AccessResult)>;

    /// What a NIC of another process of this host needs to read `range`, which
    /// is of this memory, by itself; `None` if no other process can. Asked once
    /// for a registration and a peer, by a thread that is not the engine's and
    /// may be held up for a moment.
    ///
    /// Whoever gets it may reach more than the range, and for longer than it is
    /// registered: the peer's process is trusted with that (see [`Device::link`]).
    ///
    /// [`Device::link`]: crate::Device::link
    ///
    /// # Errors
    /// A reason for a log: the range is then not lent.
    fn export(&self, _range: &MemoryRange) -> Result<Option<Export>, MemoryFault> {
        Ok(None)
    }

    /// Maps the first `length` bytes of what another process has exported so
    /// that copies of this memory can have them as their source; `None` if it
    /// is nothing that this memory knows. Everything in `description` is the
    /// peer's word. By the same thread as [`export`](Self::export).
    ///
    /// # Errors
    /// A reason for a log: the peer then sends bytes.
    fn import(
        &self,
        _description: &[u8],
        _descriptor: Option<BorrowedFd<'_>>,
        _length: u64,
    ) -> Result<Option<Imported>, MemoryFault> {
        Ok(None)
    }
}

/// What a NIC of another process needs to reach a range: see
/// [`NicMemory::export`].
#[derive(Debug)]
pub struct Export {
    /// Read by the importing memory: at most [`Export::MAX_DESCRIPTION`] bytes.
    pub description: Vec<u8>,
    /// Handed over with it.
    pub descriptor: Option<OwnedFd>,
}

impl Export {
    /// Bytes of the longest description.
    pub const MAX_DESCRIPTION: usize = 1024;
}

/// Another process's memory, as copies of a memory reach it: see
/// [`NicMemory::import`].
pub struct Imported {
    pub(crate) address: u64,
    pub(crate) owner: Arc<dyn Any + Send + Sync>,
}

impl Imported {
    /// As many bytes as were asked for, from `address`, while `owner` lives.
    ///
    /// # Safety
    /// While `owner` lives, the memory that imports them must be able to read
    /// them all, and no Rust reference to them may exist.
    pub unsafe fn new(address: u64, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { address, owner }
    }
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Imported({:#x})", self.address)
    }
}

/// A range of memory that the NIC may reach, with what keeps it alive.
#[derive(Clone)]
pub struct MemoryRange {
    memory: Arc<dyn NicMemory>,
    address: u64,
    length: u64,
    owner: Arc<dyn Any + Send + Sync>,
}

impl MemoryRange {
    /// `length` bytes at `address` of `memory`, cut off at the end of the
    /// address space.
    ///
    /// # Safety
    /// While `owner` lives, `memory` must be able to read and write the whole
    /// range, and no Rust reference to its bytes may exist other than to
    /// atomics: the NIC accesses it at any time, from its own thread.
    pub unsafe fn new(
        memory: Arc<dyn NicMemory>,
        address: u64,
        length: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let length = length.min(u64::MAX - address);
        Self {
            memory,
            address,
            length,
            owner,
        }
    }

    /// The `length` bytes from `offset`, or `None` if they are not inside.
    pub fn slice(&self, offset: u64, length: u64) -> Option<Self> {
        if offset.checked_add(length)? > self.length {
            return None;
        }
        Some(Self {
            address: self.address + offset,
            length,
            ..self.clone()
        })
    }

    /// First byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn memory(&self) -> &Arc<dyn NicMemory> {
        &self.memory
    }

    /// What keeps it alive.
    pub fn owner(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.owner
    }
}

impl fmt::Debug for MemoryRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRange({:#x} + {:#x})", self.address, self.length)
    }
}
