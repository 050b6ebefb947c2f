// SPDX-License-Identifier: MIT
//! Posting.

use std::ptr::null_mut;

use mscclpp_ib_sys as sys;

use super::{QueuePair, ReadyToSend, Receiving};
use crate::verbs::device::Device;
use crate::verbs::error::{Errno, VerbsError};
use crate::verbs::request::{Local, Operation, PostError, ReceiveRequest, SendRequest, Source};

/// How many requests are handed over at a time.
const CHAIN: usize = 8;

impl QueuePair<ReadyToSend> {
    /// Posts requests in their order. Posts of other threads may come between them.
    ///
    /// Inline bytes are copied; registered memory is read later, and that of reads and atomics written
    /// later, until the completion of the request or a later one.
    ///
    /// # Errors
    ///
    /// How many were posted, and why the next was not. If the queue [is full](PostError::is_full),
    /// it can be posted later.
    pub fn post(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        for (chunk, requests) in requests.chunks(CHAIN).enumerate() {
            let mut pieces = [const { sys::ibv_sge::zeroed() }; CHAIN];
            let mut chain = [const { sys::ibv_send_wr::zeroed() }; CHAIN];
            for (request, (raw, piece)) in requests.iter().zip(chain.iter_mut().zip(&mut pieces)) {
                fill(request, raw, piece);
            }
            let first = chain.as_mut_ptr();
            for index in 1..requests.len() {
                // SAFETY: both are among the chain's, of which there are as many as requests.
                unsafe { (*first.add(index - 1)).next = first.add(index) };
            }
            let mut bad = null_mut();
            // SAFETY: a live queue pair, and a chain whose pieces and inline bytes live during the
            // call. What the requests name otherwise is checked by the device against keys.
            let code = unsafe { sys::ibv_post_send(self.raw.qp.as_ptr(), first, &mut bad) };
            if code != 0 {
                // The first that was not posted. A provider that does not say refused the first.
                let index = (0..requests.len())
                    .find(|&index| bad.cast_const() == first.wrapping_add(index).cast_const())
                    .unwrap_or(0);
                return Err(PostError {
                    posted: chunk * CHAIN + index,
                    source: failed(self.raw.device(), "post a request", self.number(), code),
                });
            }
        }
        Ok(())
    }
}

impl<S: Receiving> QueuePair<S> {
    /// Posts requests to the receive queue, in their order.
    ///
    /// # Errors
    ///
    /// As for [`post`](QueuePair::post).
    pub fn post_receive(&self, requests: &[ReceiveRequest]) -> Result<(), PostError> {
        for (posted, request) in requests.iter().enumerate() {
            let mut piece = request.local.map(segment);
            let mut raw = sys::ibv_recv_wr::zeroed();
            raw.wr_id = request.id;
            if let Some(piece) = &mut piece {
                raw.sg_list = piece;
                raw.num_sge = 1;
            }
            let mut bad = null_mut();
            // SAFETY: a live queue pair, and a request whose piece lives during the call. Its memory
            // is checked by the device against the key.
            let code = unsafe { sys::ibv_post_recv(self.raw.qp.as_ptr(), &mut raw, &mut bad) };
            if code != 0 {
                return Err(PostError {
                    posted,
                    source: failed(self.raw.device(), "post a receive", self.number(), code),
                });
            }
        }
        Ok(())
    }
}

fn failed(device: &Device, operation: &'static str, queue: u32, code: i32) -> VerbsError {
    VerbsError::Call {
        device: device.name().into(),
        operation,
        detail: format!(" to queue pair {queue:#x}"),
        errno: Errno::returned(code),
    }
}

fn segment(local: Local) -> sys::ibv_sge {
    sys::ibv_sge {
        addr: local.address,
        length: local.len,
        lkey: local.key,
    }
}

fn fill(request: &SendRequest<'_>, raw: &mut sys::ibv_send_wr, piece: &mut sys::ibv_sge) {
    raw.wr_id = request.id;
    if request.signaled {
        raw.send_flags |= sys::IBV_SEND_SIGNALED;
    }
    if request.fence {
        raw.send_flags |= sys::IBV_SEND_FENCE;
    }
    let (source, immediate) = match request.operation {
        Operation::Write {
            source, immediate, ..
        } => {
            raw.opcode = sys::IBV_WR_RDMA_WRITE;
            (
                source,
                immediate.map(|word| (word, sys::IBV_WR_RDMA_WRITE_WITH_IMM)),
            )
        }
        Operation::Send { source, immediate } => {
            raw.opcode = sys::IBV_WR_SEND;
            (
                source,
                immediate.map(|word| (word, sys::IBV_WR_SEND_WITH_IMM)),
            )
        }
        Operation::Read { local, .. } => {
            raw.opcode = sys::IBV_WR_RDMA_READ;
            (Source::Region(local), None)
        }
        Operation::FetchAdd { local, .. } => {
            raw.opcode = sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
            (Source::Region(local), None)
        }
        Operation::CompareSwap { local, .. } => {
            raw.opcode = sys::IBV_WR_ATOMIC_CMP_AND_SWP;
            (Source::Region(local), None)
        }
    };
    if let Some((word, opcode)) = immediate {
        raw.opcode = opcode;
        raw.imm_data = word.to_be();
    }
    match source {
        Source::Region(local) => *piece = segment(local),
        Source::Inline(bytes) => {
            raw.send_flags |= sys::IBV_SEND_INLINE;
            piece.addr = bytes.as_ptr().expose_provenance() as u64;
            // More than a queue pair takes is refused when it is posted.
            piece.length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        }
        Source::Nothing => {}
    }
    if source != Source::Nothing {
        raw.sg_list = piece;
        raw.num_sge = 1;
    }
    raw.wr = remote(&request.operation);
}

fn remote(operation: &Operation<'_>) -> sys::ibv_send_wr_remote {
    match *operation {
        Operation::Write { remote, .. } | Operation::Read { remote, .. } => {
            sys::ibv_send_wr_remote {
                rdma: sys::ibv_send_wr_rdma {
                    remote_addr: remote.address,
                    rkey: remote.key,
                },
            }
        }
        Operation::FetchAdd { remote, add, .. } => sys::ibv_send_wr_remote {
            atomic: sys::ibv_send_wr_atomic {
                remote_addr: remote.address,
                compare_add: add,
                swap: 0,
                rkey: remote.key,
            },
        },
        Operation::CompareSwap {
            remote,
            compare,
            swap,
            ..
        } => sys::ibv_send_wr_remote {
            atomic: sys::ibv_send_wr_atomic {
                remote_addr: remote.address,
                compare_add: compare,
                swap,
                rkey: remote.key,
            },
        },
        Operation::Send { .. } => sys::ibv_send_wr_remote::zeroed(),
    }
}
