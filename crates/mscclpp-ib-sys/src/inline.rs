// SPDX-License-Identifier: MIT
//! Functions that verbs.h has inline, and that need no library: they call through an object's context.

use std::ffi::c_int;

use crate::objects::{ibv_cq, ibv_qp};
use crate::requests::{ibv_recv_wr, ibv_send_wr, ibv_wc};

/// Inline in verbs.h: through the context of the queue pair. 0 or an errno; then `bad` is the first
/// request that was not posted.
///
/// # Safety
///
/// A live queue pair, and requests whose lists and memory live as the manual page says.
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise; libibverbs fills the context's functions when it opens it.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post) => post(qp, wr, bad),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Inline in verbs.h: through the context of the queue pair. 0 or an errno; then `bad` is the first
/// request that was not posted.
///
/// # Safety
///
/// A live queue pair, and requests whose lists and memory live as the manual page says.
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(post) => post(qp, wr, bad),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Inline in verbs.h: through the context of the completion queue. How many were written to `wc`, or
/// a negative number.
///
/// # Safety
///
/// A live completion queue and room for `entries` completions.
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll) => poll(cq, entries, wc),
            None => -libc::EOPNOTSUPP,
        }
    }
}

/// Inline in verbs.h: through the context of the completion queue. 0 or an errno.
///
/// # Safety
///
/// A live completion queue that was made with a channel.
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(request) => request(cq, solicited_only),
            None => libc::EOPNOTSUPP,
        }
    }
}
