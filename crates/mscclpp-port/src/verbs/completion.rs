// SPDX-License-Identifier: MIT
//! Completion queues, and what they tell.

use std::fmt;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mscclpp_ib_sys as sys;

use super::channel::CompletionChannel;
use super::device::Device;
use super::error::{Errno, VerbsError};
use super::status::CompletionStatus;

/// Where completions of queue pairs arrive.
pub struct CompletionQueue {
    pub(super) raw: NonNull<sys::ibv_cq>,
    id: u64,
    /// Behind the queue, which uses it.
    channel: Option<Arc<CompletionChannel>>,
    device: Arc<Device>,
}

// SAFETY: libibverbs locks it while it is polled, and only reads it otherwise.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

/// How one request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkCompletion {
    /// That of the request.
    pub id: u64,
    /// How it ended.
    pub status: CompletionStatus,
    /// What it was; known of requests that were executed.
    pub opcode: Option<CompletionOpcode>,
    /// What came, in bytes, for receives and reads that were executed.
    pub bytes: u32,
    /// What came with a write or send with immediate.
    pub immediate: Option<u32>,
    /// Number of the queue pair.
    pub queue_number: u32,
    /// The vendor's code for a failure.
    pub vendor_error: u32,
}

/// What a completed request was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionOpcode {
    /// A send.
    Send,
    /// A write, with or without immediate.
    Write,
    /// A read.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A receive that took a send.
    Receive,
    /// A receive that took the immediate of a write.
    ReceiveImmediate,
    /// Another; its number in `ibv_wc_opcode`.
    Other(u32),
}

impl CompletionQueue {
    /// Makes one with room for at least `entries` completions.
    ///
    /// More completions than it has room for make it, and the queue pairs that use it, unusable:
    /// queue pairs that share it may together have as many requests posted as it has entries. A
    /// failure completes requests that are not [signalled](super::SendRequest::signaled), too.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Call`].
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, VerbsError> {
        Self::made(device, entries, None)
    }

    /// The same, with a channel of the same device that tells of completions.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Call`].
    pub fn with_channel(
        device: &Arc<Device>,
        entries: u32,
        channel: &Arc<CompletionChannel>,
    ) -> Result<Arc<Self>, VerbsError> {
        Self::made(device, entries, Some(Arc::clone(channel)))
    }

    fn made(
        device: &Arc<Device>,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Arc<Self>, VerbsError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (verbs, context) = (device.verbs, device.context.as_ptr());
        // The context is the number by which events name the queue.
        let mark = without_provenance_mut(id as usize);
        let wanted = i32::try_from(entries).unwrap_or(i32::MAX);
        let events = (channel.as_ref()).map_or(null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: an open context; a live channel or none; the first vector is always there.
        let raw = unsafe { verbs.ibv_create_cq(context, wanted, mark, events, 0) };
        let Some(raw) = NonNull::new(raw) else {
            let limit = device.capabilities().max_completions;
            return Err(VerbsError::Call {
                device: device.name().into(),
                operation: "make a completion queue",
                detail: format!(" of {entries} entries (its limit is {limit})"),
                errno: Errno::last(),
            });
        };
        let device = Arc::clone(device);
        Ok(Arc::new(Self {
            raw,
            id,
            channel,
            device,
        }))
    }

    /// The number by which [`AsyncEvent`](super::AsyncEvent) names it; unique in the process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How many completions it has room for.
    #[must_use]
    pub fn entries(&self) -> u32 {
        // SAFETY: live; changed by resizing only, which nobody does.
        let entries = unsafe { (*self.raw.as_ptr()).cqe };
        u32::try_from(entries).unwrap_or(0)
    }

    /// The device that it was made on.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Has its channel told of the next completion that comes after this, once. Those that were there
    /// before count as told: poll once more before sleeping.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Call`]; without a channel always.
    pub fn request_event(&self) -> Result<(), VerbsError> {
        let code = match &self.channel {
            // SAFETY: a live queue with a channel.
            Some(_) => unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) },
            None => libc::EINVAL,
        };
        match code {
            0 => Ok(()),
            code => Err(self
                .device
                .failed("watch a completion queue", Errno::returned(code))),
        }
    }

    /// Takes completions that are there, as many as fit, and returns how many. It does not wait.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Call`]: the queue cannot be used any more.
    pub fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        const BATCH: usize = 16;
        let mut taken = 0;
        while taken < completions.len() {
            let wanted = (completions.len() - taken).min(BATCH);
            let mut raw = [const { sys::ibv_wc::zeroed() }; BATCH];
            // SAFETY: a live queue, and room for as many as said.
            let count =
                unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), wanted as i32, raw.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else {
                return Err(self
                    .device
                    .failed("poll a completion queue", Errno::returned(count)));
            };
            for (completion, raw) in completions[taken..].iter_mut().zip(&raw[..count]) {
                *completion = WorkCompletion::new(raw);
            }
            taken += count;
            if count < wanted {
                break;
            }
        }
        Ok(taken)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: live, and the queue pairs that use it are gone: they hold this.
        let code = unsafe { self.device.verbs.ibv_destroy_cq(self.raw.as_ptr()) };
        if code != 0 {
            self.device.kept("a completion queue", code);
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("device", &self.device.name())
            .field("id", &self.id)
            .field("entries", &self.entries())
            .finish_non_exhaustive()
    }
}

impl WorkCompletion {
    fn new(raw: &sys::ibv_wc) -> Self {
        let status = CompletionStatus::from_number(raw.status);
        let mut completion = Self {
            id: raw.wr_id,
            status,
            queue_number: raw.qp_num,
            vendor_error: raw.vendor_err,
            ..Self::default()
        };
        // A failed one has nothing else that is valid.
        if status.is_success() {
            completion.opcode = Some(CompletionOpcode::from_number(raw.opcode));
            completion.bytes = raw.byte_len;
            completion.immediate =
                (raw.wc_flags & sys::IBV_WC_WITH_IMM != 0).then(|| u32::from_be(raw.imm_data));
        }
        completion
    }
}

impl CompletionOpcode {
    fn from_number(number: u32) -> Self {
        match number {
            sys::IBV_WC_SEND => Self::Send,
            sys::IBV_WC_RDMA_WRITE => Self::Write,
            sys::IBV_WC_RDMA_READ => Self::Read,
            sys::IBV_WC_COMP_SWAP => Self::CompareSwap,
            sys::IBV_WC_FETCH_ADD => Self::FetchAdd,
            sys::IBV_WC_RECV => Self::Receive,
            sys::IBV_WC_RECV_RDMA_WITH_IMM => Self::ReceiveImmediate,
            number => Self::Other(number),
        }
    }
}
