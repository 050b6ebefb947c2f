// SPDX-License-Identifier: MIT
//! What the library exports of a queue, held against what was asked for.

use gpunetio_sys::device::DevQp;
use gpunetio_sys::ffi::{handler, memory_type};

use super::super::layout::QueueLayout;

/// Whether what was exported works without the host's help, and is what was asked for.
pub(super) fn check(queue: &DevQp, number: u32, layout: &QueueLayout) -> Result<(), String> {
    let rings = layout.rings.address();
    let cq = &queue.cq_sq;
    let send_half = mlx5_queue::DoorbellRecord::SEND_OFFSET as u64;
    let facts = [
        (
            "who rings its doorbell",
            queue.nic_handler as u64,
            handler::GPU_SM_DB as u64,
        ),
        (
            "where it lies",
            queue.mem_type as u64,
            memory_type::GPU as u64,
        ),
        (
            "where its completions lie",
            cq.mem_type as u64,
            memory_type::GPU as u64,
        ),
        ("its number", queue.sq_num.into(), number.into()),
        (
            "how many requests it holds",
            queue.sq_wqe_num.into(),
            layout.blocks.into(),
        ),
        (
            "its send ring",
            queue.sq_wqe_daddr as u64,
            rings + layout.ring,
        ),
        (
            "its doorbell record",
            queue.sq_dbrec as u64,
            rings + layout.record + send_half,
        ),
        (
            "how many completions it holds",
            cq.cqe_num.into(),
            layout.entries.into(),
        ),
        ("bytes of a completion", cq.cqe_size.into(), 64),
        ("kind of its completion queue", cq.cq_type.into(), 0),
        (
            "its completion ring",
            cq.cqe_daddr as u64,
            rings + layout.completions,
        ),
    ];
    for (what, found, wanted) in facts {
        if found != wanted {
            return Err(format!("{what} is {found:#x} and not {wanted:#x}"));
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom), feature = "gpunetio-soft"))]
pub(super) mod tests {
    use std::ptr;

    use super::*;

    /// What the library exports of a good queue, as far as it is looked at.
    pub(in super::super) fn exported(number: u32, layout: &QueueLayout) -> DevQp {
        // SAFETY: numbers and addresses, all of which may be zero.
        let mut queue: DevQp = unsafe { std::mem::zeroed() };
        let at = |offset| ptr::without_provenance_mut((layout.rings.address() + offset) as usize);
        queue.nic_handler = handler::GPU_SM_DB;
        queue.mem_type = memory_type::GPU;
        queue.sq_num = number;
        queue.sq_wqe_num = layout.blocks as u16;
        queue.sq_wqe_daddr = at(layout.ring);
        queue.sq_dbrec = at(layout.record + 4).cast();
        queue.cq_sq.mem_type = memory_type::GPU;
        queue.cq_sq.cqe_num = layout.entries;
        queue.cq_sq.cqe_size = 64;
        queue.cq_sq.cqe_daddr = at(layout.completions);
        queue
    }
}
