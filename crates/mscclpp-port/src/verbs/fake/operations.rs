// SPDX-License-Identifier: MIT
//! What programs call through a context, not by name.

use std::ffi::c_int;

use mscclpp_ib_sys::*;

use super::Posted;
use super::functions::{code, fake_of};

pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    assert_eq!(size, size_of::<ibv_port_attr>());
    // SAFETY: the caller keeps to the manual page.
    let result = unsafe { fake_of(context) }.enter("ibv_query_port");
    code(result.and_then(|state| {
        if !(1..=state.attributes.phys_port_cnt).contains(&port) {
            return Err(libc::EINVAL);
        }
        // SAFETY: as above.
        unsafe { *attr = state.port };
        Ok(())
    }))
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller keeps to the manual page.
    unsafe {
        match fake_of((*cq).context).enter("ibv_poll_cq") {
            Ok(mut state) => {
                // One that wakes somebody is of a receive queue, and of nothing else.
                let takes = |completion: &ibv_wc| {
                    (*cq).channel.is_null() || completion.opcode & IBV_WC_RECV != 0
                };
                let mut count = 0;
                while count < entries as usize
                    && let Some(completion) = state.completions.pop_front_if(|next| takes(next))
                {
                    wc.add(count).write(completion);
                    count += 1;
                }
                count as c_int
            }
            Err(errno) => -errno,
        }
    }
}

/// What is asked for has happened at once.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    assert_eq!(solicited_only, 0);
    // SAFETY: the caller keeps to the manual page.
    unsafe {
        code(
            fake_of((*cq).context)
                .enter("ibv_req_notify_cq")
                .map(|mut state| state.asked = Some(cq.expose_provenance())),
        )
    }
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller keeps to the manual page.
    unsafe {
        let mut state = match fake_of((*qp).context).enter("ibv_post_send") {
            Ok(state) => state,
            Err(errno) => {
                *bad = wr;
                return errno;
            }
        };
        while let Some(request) = wr.as_ref() {
            if state.posted.len() >= state.room {
                *bad = wr;
                return libc::ENOMEM;
            }
            let pieces = match request.num_sge {
                0 => Vec::new(),
                count => std::slice::from_raw_parts(request.sg_list, count as usize).to_vec(),
            };
            let mut inline = Vec::new();
            if request.send_flags & IBV_SEND_INLINE != 0 {
                for piece in &pieces {
                    let bytes = std::ptr::with_exposed_provenance::<u8>(piece.addr as usize);
                    inline.extend_from_slice(std::slice::from_raw_parts(
                        bytes,
                        piece.length as usize,
                    ));
                }
            }
            state.posted.push(Posted {
                request: *request,
                pieces,
                inline,
            });
            wr = request.next;
        }
    }
    0
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller keeps to the manual page.
    unsafe {
        code(
            fake_of((*qp).context)
                .enter("ibv_post_recv")
                .map(drop)
                .inspect_err(|_| *bad = wr),
        )
    }
}
