// SPDX-License-Identifier: MIT
//! The owner of a queue pair, in any state.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use mscclpp_ib_sys as sys;

use super::{QueuePairSize, QueueState};
use crate::verbs::completion::CompletionQueue;
use crate::verbs::device::Device;
use crate::verbs::domain::ProtectionDomain;
use crate::verbs::error::{AttributeMask, Errno, VerbsError};

pub(super) struct RawQueue {
    pub(super) qp: NonNull<sys::ibv_qp>,
    size: QueuePairSize,
    // Given back after the queue pair, which uses them.
    domain: Arc<ProtectionDomain>,
    _completions: [Arc<CompletionQueue>; 2],
}

// SAFETY: libibverbs locks it while it is changed or posted to, and only reads it otherwise.
unsafe impl Send for RawQueue {}
// SAFETY: as above.
unsafe impl Sync for RawQueue {}

impl RawQueue {
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        send_completions: &Arc<CompletionQueue>,
        receive_completions: &Arc<CompletionQueue>,
        size: QueuePairSize,
    ) -> Result<Self, VerbsError> {
        let device = domain.device();
        let mut attributes = sys::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_completions.raw.as_ptr(),
            recv_cq: receive_completions.raw.as_ptr(),
            srq: null_mut(),
            cap: sys::ibv_qp_cap {
                max_send_wr: size.send_requests,
                max_recv_wr: size.receive_requests,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: size.inline_bytes,
            },
            qp_type: sys::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: a live domain and live completion queues, which are held below.
        let qp = unsafe {
            device
                .verbs
                .ibv_create_qp(domain.raw.as_ptr(), &mut attributes)
        };
        let Some(qp) = NonNull::new(qp) else {
            let limit = device.capabilities().max_queue_requests;
            return Err(VerbsError::Call {
                device: device.name().into(),
                operation: "make a queue pair",
                detail: format!(" of {size:?} (its limit is {limit} requests)"),
                errno: Errno::last(),
            });
        };
        Ok(Self {
            qp,
            size: QueuePairSize {
                send_requests: attributes.cap.max_send_wr,
                receive_requests: attributes.cap.max_recv_wr,
                inline_bytes: attributes.cap.max_inline_data,
            },
            domain: Arc::clone(domain),
            _completions: [send_completions, receive_completions].map(Arc::clone),
        })
    }

    pub(super) fn device(&self) -> &Device {
        self.domain.device()
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: live, and not changed after it was made.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    pub(super) fn size(&self) -> QueuePairSize {
        self.size
    }

    pub(super) fn modify(
        &self,
        from: QueueState,
        to: QueueState,
        mut attributes: sys::ibv_qp_attr,
        mask: i32,
        detail: impl FnOnce() -> String,
    ) -> Result<(), VerbsError> {
        let device = self.device();
        let mask = mask | sys::IBV_QP_STATE;
        attributes.qp_state = to.number();
        // SAFETY: a live queue pair and attributes to read.
        match unsafe {
            device
                .verbs
                .ibv_modify_qp(self.qp.as_ptr(), &mut attributes, mask)
        } {
            0 => Ok(()),
            code => Err(VerbsError::Transition {
                device: device.name().into(),
                queue: self.number(),
                from,
                to,
                attributes: AttributeMask(mask),
                detail: detail(),
                errno: Errno::returned(code),
            }),
        }
    }

    pub(super) fn query_state(&self) -> Result<QueueState, VerbsError> {
        let device = self.device();
        let mut attributes = sys::ibv_qp_attr::zeroed();
        let mut made_with = sys::ibv_qp_init_attr::zeroed();
        let qp = self.qp.as_ptr();
        // SAFETY: a live queue pair and structures to write to.
        let code = unsafe {
            let mask = sys::IBV_QP_STATE;
            device
                .verbs
                .ibv_query_qp(qp, &mut attributes, mask, &mut made_with)
        };
        match code {
            0 => Ok(QueueState::from_number(attributes.qp_state)),
            code => Err(device.failed("query a queue pair", Errno::returned(code))),
        }
    }
}

impl Drop for RawQueue {
    fn drop(&mut self) {
        let device = self.device();
        // SAFETY: live, not used again.
        let code = unsafe { device.verbs.ibv_destroy_qp(self.qp.as_ptr()) };
        if code != 0 {
            device.kept("a queue pair", code);
        }
    }
}
