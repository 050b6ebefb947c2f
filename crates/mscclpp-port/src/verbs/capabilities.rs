// SPDX-License-Identifier: MIT
//! What a device says about itself.

use mscclpp_ib_sys as sys;

/// What a device can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCapabilities {
    /// 64-bit atomics.
    pub atomics: bool,
    /// Ports, counted from 1.
    pub ports: u8,
    /// Queue pairs.
    pub max_queue_pairs: u32,
    /// Requests in a send or receive queue.
    pub max_queue_requests: u32,
    /// Entries of a completion queue.
    pub max_completions: u32,
    /// Pieces of local memory in a request.
    pub max_segments: u32,
    /// Reads and atomics that a queue pair may have under way.
    pub max_outstanding_reads: u32,
    /// Reads and atomics of the peer that a queue pair answers at once.
    pub max_answered_reads: u32,
    /// Bytes of a memory region.
    pub max_region: u64,
    /// Version of the firmware.
    pub firmware: String,
    /// The vendor's number.
    pub vendor: u32,
}

impl DeviceCapabilities {
    pub(super) const NONE: Self = Self {
        atomics: false,
        ports: 0,
        max_queue_pairs: 0,
        max_queue_requests: 0,
        max_completions: 0,
        max_segments: 0,
        max_outstanding_reads: 0,
        max_answered_reads: 0,
        max_region: 0,
        firmware: String::new(),
        vendor: 0,
    };

    pub(super) fn new(attributes: &sys::ibv_device_attr) -> Self {
        // A limit that is negative is none that can be used.
        let limit = |value: i32| u32::try_from(value).unwrap_or(0);
        let firmware: Vec<u8> = attributes.fw_ver.iter().map(|&byte| byte as u8).collect();
        let firmware = firmware.split(|&byte| byte == 0).next().unwrap_or_default();
        Self {
            atomics: matches!(
                attributes.atomic_cap,
                sys::IBV_ATOMIC_HCA | sys::IBV_ATOMIC_GLOB
            ),
            ports: attributes.phys_port_cnt,
            max_queue_pairs: limit(attributes.max_qp),
            max_queue_requests: limit(attributes.max_qp_wr),
            max_completions: limit(attributes.max_cqe),
            max_segments: limit(attributes.max_sge),
            max_outstanding_reads: limit(attributes.max_qp_init_rd_atom),
            max_answered_reads: limit(attributes.max_qp_rd_atom),
            max_region: attributes.max_mr_size,
            firmware: String::from_utf8_lossy(firmware).into_owned(),
            vendor: attributes.vendor_id,
        }
    }
}
