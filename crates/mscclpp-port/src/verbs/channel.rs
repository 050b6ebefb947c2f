// SPDX-License-Identifier: MIT
//! Descriptors that tell of completions, for those who would rather sleep than poll.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use mscclpp_ib_sys as sys;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::device::Device;
use super::error::{Errno, VerbsError};

/// Becomes readable when a completion queue that was made with it, and that was
/// [asked to](super::CompletionQueue::request_event), gets a completion.
pub struct CompletionChannel {
    pub(super) raw: NonNull<sys::ibv_comp_channel>,
    device: Arc<Device>,
}

// SAFETY: libibverbs only reads it; events are taken by a system call.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Call`].
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: an open context.
        let raw = unsafe { (device.verbs).ibv_create_comp_channel(device.context.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(device.failed("make a completion channel", Errno::last()));
        };
        let device = Arc::clone(device);
        let channel = Self { raw, device };
        // So that taking events never blocks.
        fcntl_getfl(&channel)
            .and_then(|flags| fcntl_setfl(&channel, flags | OFlags::NONBLOCK))
            .map_err(|errno| {
                let errno = Errno(errno.raw_os_error());
                channel.device.failed("watch a completion channel", errno)
            })?;
        Ok(Arc::new(channel))
    }

    /// Makes it unreadable: takes the events that there are.
    pub fn clear(&self) {
        let verbs = self.device.verbs;
        loop {
            let (mut queue, mut mark) = (null_mut(), null_mut());
            // SAFETY: a live channel, and pointers to write to.
            let code = unsafe { verbs.ibv_get_cq_event(self.raw.as_ptr(), &mut queue, &mut mark) };
            if code != 0 {
                return;
            }
            // SAFETY: a queue that is live: giving one back waits until its events are
            // acknowledged, which this one is once.
            unsafe { verbs.ibv_ack_cq_events(queue, 1) };
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel, which is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: live, and the queues that use it are gone: they hold this.
        let code = unsafe { (self.device.verbs).ibv_destroy_comp_channel(self.raw.as_ptr()) };
        if code != 0 {
            self.device.kept("a completion channel", code);
        }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel")
            .field(&self.device.name())
            .finish()
    }
}
