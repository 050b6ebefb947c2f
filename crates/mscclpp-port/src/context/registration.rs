// SPDX-License-Identifier: MIT
//! Opening memory to peers.

use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use super::Context;
use crate::buffer::Buffer;
use crate::cuda_ipc;
use crate::error::{Error, Result, check_range};
use crate::gpu_queue::WriteOrdering;
use crate::memory::{Access, MemoryOptions, Owner, Region, RegisteredMemory, Registration};
use crate::transport::TransportKind;

const REGISTER: &str = "register memory";

/// What is to be registered, and how.
struct Plan<'a> {
    options: MemoryOptions,
    ordering: WriteOrdering,
    /// The buffer that the memory is of, and where in it.
    buffer: Option<(&'a Buffer, u64)>,
}

impl Context {
    /// Opens a range of a buffer, in bytes, to peers, for all operations. Offsets into the result
    /// start at the start of the range. Nothing is pinned or copied; a range of many GiB costs
    /// nothing.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::InvalidUsage`] for an empty range.
    pub fn register_memory(
        &self,
        buffer: &Buffer,
        range: impl RangeBounds<u64>,
    ) -> Result<RegisteredMemory> {
        self.register_memory_with(buffer, range, MemoryOptions::default())
    }

    /// Opens a range of a buffer to peers, over some transports and for some operations.
    ///
    /// # Errors
    /// As [`register_memory`](Self::register_memory); [`Error::Unsupported`] for a transport that
    /// this build lacks; [`Error::HcaUnavailable`]; [`Error::Hca`] if an HCA refuses.
    pub fn register_memory_with(
        &self,
        buffer: &Buffer,
        range: impl RangeBounds<u64>,
        options: MemoryOptions,
    ) -> Result<RegisteredMemory> {
        let out = |offset, len| Error::OutOfBounds {
            what: REGISTER,
            offset,
            len,
            size: buffer.len(),
        };
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.checked_add(1).ok_or_else(|| out(*before, 1))?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1).ok_or_else(|| out(*last, 1))?,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => buffer.len(),
        };
        let len = end.saturating_sub(start);
        check_range(REGISTER, start, len, buffer.len())?;
        // Inside the buffer, so the offset fits an address.
        let base = buffer.as_ptr().wrapping_add(start as usize);
        let base = NonNull::new(base).ok_or_else(|| out(start, len))?;
        let plan = Plan {
            options,
            ordering: WriteOrdering::Relaxed,
            buffer: Some((buffer, start)),
        };
        // SAFETY: the range was checked to lie in the buffer, which goes with it.
        unsafe { self.register(base, len, plan) }
    }

    /// Opens all of a buffer to peers over one transport, as what their signals go to.
    pub(crate) fn register_signal(
        &self,
        buffer: &Buffer,
        transport: TransportKind,
    ) -> Result<RegisteredMemory> {
        let plan = Plan {
            options: MemoryOptions {
                transports: transport.into(),
                ..MemoryOptions::default()
            },
            ordering: WriteOrdering::Strict,
            buffer: Some((buffer, 0)),
        };
        let base = NonNull::new(buffer.as_ptr()).ok_or(Error::OutOfBounds {
            what: REGISTER,
            offset: 0,
            len: buffer.len(),
            size: 0,
        })?;
        // SAFETY: all of the buffer, which goes with it.
        unsafe { self.register(base, buffer.len(), plan) }
    }

    /// Opens memory that is not a [`Buffer`] to peers, over Ethernet.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if `len` is 0 or passes the end of the address space.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `len` bytes from any thread until the last
    /// clone and sub-range of the result in this process is dropped. That drop ends all access:
    /// it waits for a copy that is going on (of 1 MiB at most), and a write that was posted from
    /// the memory and not yet sent fails its connection with [`Error::SourceGone`]. Until then,
    /// this program must access the memory only by atomic accesses where a peer may write it.
    pub unsafe fn register_raw(
        &self,
        base: NonNull<u8>,
        len: u64,
        access: Access,
    ) -> Result<RegisteredMemory> {
        let fits = usize::try_from(len).ok().is_some_and(|len| {
            isize::try_from(len).is_ok() && base.addr().get().checked_add(len).is_some()
        });
        if !fits {
            return Err(Error::InvalidUsage {
                operation: REGISTER,
                detail: format!("{len} bytes pass the end of the address space"),
            });
        }
        let plan = Plan {
            options: MemoryOptions {
                access,
                ..MemoryOptions::default()
            },
            ordering: WriteOrdering::Relaxed,
            buffer: None,
        };
        // SAFETY: the caller's promise.
        unsafe { self.register(base, len, plan) }
    }

    /// # Safety
    /// As [`Region::new`].
    unsafe fn register(
        &self,
        base: NonNull<u8>,
        len: u64,
        plan: Plan<'_>,
    ) -> Result<RegisteredMemory> {
        let _span =
            tracing::debug_span!("register_memory", rank = self.rank(), bytes = len).entered();
        let invalid = |detail: &str| Error::InvalidUsage {
            operation: REGISTER,
            detail: detail.into(),
        };
        if len == 0 {
            return Err(invalid("the range is empty"));
        }
        let MemoryOptions { transports, access } = plan.options;
        let mut hcas = Vec::new();
        let mut ipc = None;
        for transport in TransportKind::ALL {
            match transport {
                _ if !transports.has(transport) => {}
                TransportKind::Unknown => return Err(invalid("UNK is no transport")),
                TransportKind::CudaIpc => {
                    let memory =
                        (plan.buffer).and_then(|(buffer, offset)| Some((buffer.gpu()?, offset)));
                    let Some((memory, offset)) = memory else {
                        cuda_ipc::check()?;
                        return Err(invalid("CUDA IPC reaches buffers on GPUs only"));
                    };
                    if access != Access::FULL {
                        return Err(invalid(
                            "over CUDA IPC peers reach memory themselves, so they can do everything; \
                             a source of writes need not be open over it",
                        ));
                    }
                    let for_signals = plan.ordering == WriteOrdering::Strict;
                    ipc = Some(self.share_memory(memory, offset, len, for_signals)?);
                }
                TransportKind::Ethernet => {}
                _ => {
                    let hca = self.inner.hcas.get(transport)?;
                    let Some((buffer, offset)) = plan.buffer else {
                        return Err(invalid("HCAs reach buffers only"));
                    };
                    let registration = hca.register(buffer, offset, len, access, plan.ordering)?;
                    hcas.push((transport, Arc::from(registration)));
                }
            }
        }
        if transports.none() {
            return Err(invalid("no transport was chosen"));
        }
        // What peers may do over Ethernet; HCAs look after their own.
        let over_ethernet = if transports.has(TransportKind::Ethernet) {
            access
        } else {
            Access::LOCAL
        };
        let buffer = plan.buffer.map(|(buffer, _)| buffer.clone());
        // SAFETY: the caller's promise.
        let region = unsafe { Region::new(base, len, over_ethernet, buffer) };
        let region = Arc::new(if plan.ordering == WriteOrdering::Strict {
            region.for_signals()
        } else {
            region
        });
        let table = &self.inner.table;
        let registration = table.insert(Arc::clone(&region), |key| {
            Arc::new(Registration {
                key,
                owner: Owner {
                    context: self.inner.id,
                    rank: self.inner.config.rank,
                },
                transports,
                region,
                table: Arc::clone(table),
                hcas,
                #[cfg(feature = "ib")]
                access,
                ipc,
            })
        })?;
        Ok(RegisteredMemory::local(registration))
    }
}
