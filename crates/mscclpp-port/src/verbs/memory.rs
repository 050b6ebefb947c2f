// SPDX-License-Identifier: MIT
//! Memory regions: what the device may read and write.

use std::any::Any;
use std::fmt;
use std::ops::BitOr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use mscclpp_ib_sys as sys;

use super::domain::ProtectionDomain;
use super::error::{Errno, VerbsError};

/// What may be done to a memory region or through a queue pair; combined with `|`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccessFlags(u32);

impl AccessFlags {
    /// Reading from here only.
    pub const NONE: Self = Self(0);
    /// Requests from here may write: results of reads and atomics, and received data.
    pub const LOCAL_WRITE: Self = Self(sys::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may write. A region needs [`LOCAL_WRITE`](Self::LOCAL_WRITE), too.
    pub const REMOTE_WRITE: Self = Self(sys::IBV_ACCESS_REMOTE_WRITE);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(sys::IBV_ACCESS_REMOTE_READ);
    /// Peers may use atomics. A region needs [`LOCAL_WRITE`](Self::LOCAL_WRITE), too.
    pub const REMOTE_ATOMIC: Self = Self(sys::IBV_ACCESS_REMOTE_ATOMIC);
    /// Writes may overtake each other on their way to memory: faster, and wrong for signals. Ignored
    /// by devices and libraries that do not know it.
    pub const RELAXED_ORDERING: Self = Self(sys::IBV_ACCESS_RELAXED_ORDERING);

    const NAMES: [(Self, &str); 5] = [
        (Self::LOCAL_WRITE, "LOCAL_WRITE"),
        (Self::REMOTE_WRITE, "REMOTE_WRITE"),
        (Self::REMOTE_READ, "REMOTE_READ"),
        (Self::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
        (Self::RELAXED_ORDERING, "RELAXED_ORDERING"),
    ];

    /// Whether all of these are among them.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for AccessFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Self::NAMES.iter().filter(|(flag, _)| self.contains(*flag));
        let Some((_, first)) = names.next() else {
            return f.write_str("read only");
        };
        f.write_str(first)?;
        names.try_for_each(|(_, name)| write!(f, "|{name}"))
    }
}

impl fmt::Debug for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A part of a DMA buffer, such as one exported by a GPU's driver.
#[derive(Debug, Clone, Copy)]
pub struct DmaBuf<'a> {
    /// The buffer. It is needed during registration only.
    pub fd: BorrowedFd<'a>,
    /// Where the part begins, in bytes.
    pub offset: u64,
    /// Bytes of the part.
    pub len: usize,
    /// The address by which requests name the part's first byte: usually that of the GPU's memory.
    /// Its place in a page of the device is that of the offset.
    pub address: u64,
}

/// How the device reaches a DMA buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DmaBufRoute {
    /// As it reaches all memory.
    Device,
    /// By way of its data-direct function, if it
    /// [has one](super::Device::has_data_direct).
    DataDirect,
}

/// Registered memory, until it is dropped. It holds what owns the memory.
pub struct MemoryRegion {
    raw: NonNull<sys::ibv_mr>,
    domain: Arc<ProtectionDomain>,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: libibverbs only reads it, but when it is given back.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers `len` bytes from `base`.
    ///
    /// # Safety
    ///
    /// All of it is memory of this process, or of a GPU if a module (nvidia_peermem) makes that
    /// known to the kernel, for as long as `owner` lives. While this lives, the device writes to it
    /// at any time, as far as `access` allows it to the process's requests and to peers: nobody holds
    /// a reference to it that a write would make wrong.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Region`], [`VerbsError::Call`].
    pub unsafe fn register(
        domain: &Arc<ProtectionDomain>,
        base: NonNull<u8>,
        len: usize,
        access: AccessFlags,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, VerbsError> {
        check(domain, len)?;
        let (verbs, pd) = (domain.device().verbs, domain.raw.as_ptr());
        // SAFETY: a live domain; the memory lives as long as its owner, which is held until the
        // region is given back.
        let raw = unsafe { verbs.ibv_reg_mr(pd, base.as_ptr().cast(), len, access.bits()) };
        Self::of(raw, domain, "register memory", access, len, owner)
    }

    /// Registers a part of a DMA buffer.
    ///
    /// # Safety
    ///
    /// As for [`register`](Self::register), about the buffer's memory.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Region`], [`VerbsError::Call`].
    pub unsafe fn register_dmabuf(
        domain: &Arc<ProtectionDomain>,
        buffer: DmaBuf<'_>,
        route: DmaBufRoute,
        access: AccessFlags,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, VerbsError> {
        check(domain, buffer.len)?;
        let (verbs, pd) = (domain.device().verbs, domain.raw.as_ptr());
        let DmaBuf {
            fd,
            offset,
            len,
            address,
        } = buffer;
        let (fd, flags) = (fd.as_raw_fd(), access.bits());
        // SAFETY: a live domain and an open descriptor; mlx5's own call only where the library is
        // there and the device has what it needs, which is so for mlx5 devices only.
        let raw = unsafe {
            match (route, sys::Mlx5dv::get()) {
                (DmaBufRoute::DataDirect, Ok(mlx5)) if domain.device().has_data_direct() => mlx5
                    .mlx5dv_reg_dmabuf_mr(
                        pd,
                        offset,
                        len,
                        address,
                        fd,
                        flags as i32,
                        sys::MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT,
                    ),
                (DmaBufRoute::DataDirect, _) => {
                    return Err(VerbsError::Region {
                        device: domain.device().name().into(),
                        len: len as u64,
                        reason: "it has no data-direct function".into(),
                    });
                }
                (DmaBufRoute::Device, _) => {
                    verbs.ibv_reg_dmabuf_mr(pd, offset, len, address, fd, flags)
                }
            }
        };
        Self::of(raw, domain, "register a DMA buffer", access, len, owner)
    }

    fn of(
        raw: *mut sys::ibv_mr,
        domain: &Arc<ProtectionDomain>,
        operation: &'static str,
        access: AccessFlags,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, VerbsError> {
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::Call {
                device: domain.device().name().into(),
                operation,
                detail: format!(" of {len} bytes ({access})"),
                errno: Errno::last(),
            });
        };
        Ok(Self {
            raw,
            domain: Arc::clone(domain),
            owner: Some(owner),
        })
    }

    /// The key for requests of this process.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        // SAFETY: live, and not changed after it was made.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The key for requests of peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// The domain that it was made in.
    #[must_use]
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }
}

/// What no device registers: nothing, and more than it can. It is never shortened.
fn check(domain: &ProtectionDomain, len: usize) -> Result<(), VerbsError> {
    let device = domain.device();
    let (len, limit) = (len as u64, device.capabilities().max_region);
    let reason = match len {
        0 => "there is nothing to register".into(),
        len if len > limit => {
            format!("the device's limit is {limit} bytes; register several ranges")
        }
        _ => return Ok(()),
    };
    Err(VerbsError::Region {
        device: device.name().into(),
        len,
        reason,
    })
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let device = self.domain.device();
        // SAFETY: live, not used again.
        let code = unsafe { device.verbs.ibv_dereg_mr(self.raw.as_ptr()) };
        if code != 0 {
            device.kept("a memory region", code);
            // The device may still write there.
            std::mem::forget(self.owner.take());
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("device", &self.domain.device().name())
            .field("lkey", &self.lkey())
            .field("rkey", &self.rkey())
            .finish_non_exhaustive()
    }
}
