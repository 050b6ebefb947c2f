// SPDX-License-Identifier: MIT
//! A queue pair of the library: its way to RTS, and what becomes of it.

use std::sync::Mutex;

use gpunetio_sys::ffi::*;
use mscclpp_device::abi::QueueDeviceHandle;

use super::super::layout::{self, QueueLayout};
use super::super::lock;
use super::super::policy::{PortRecord, QueueRecord};
use super::super::provider::{
    HcaAddress, HcaQueue, HcaRegistration, Mtu, Path, QueueAddress, QueueFault, QueuePlan,
};
use super::calls::{Failed, Object, call, object};
use super::create::Made;
use crate::counters::QueueCounters;
use crate::env::env;
use crate::error::{Error, Result};

/// How long an acknowledgement may take before everything is sent again, as a code of verbs: 268 ms.
/// Peers that die are noticed by the control stream, long before the retries are used up.
const ACK_TIMEOUT: u8 = 16;
const RETRIES: u8 = 7;
/// Of what finds no receive at the peer: there is none that needs one.
const RNR_TIMER: u16 = 12;
const HOP_LIMIT: u8 = 64;

/// A queue pair, and its memory. Fields are let go of in this order.
pub(super) struct DocaQueue {
    pub(super) made: Made,
    pub(super) scratch: Box<dyn HcaRegistration>,
    pub(super) memory: QueueLayout,
    pub(super) plan: QueuePlan,
    pub(super) port: PortUse,
    pub(super) hca: String,
    pub(super) atomics: bool,
    /// Held while the library is called with the queue pair.
    pub(super) calling: Mutex<()>,
}

/// The port that a queue is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct PortUse {
    pub(super) number: u16,
    pub(super) gid: HcaAddress,
    pub(super) gid_index: u8,
    /// If it is not that of the HCA.
    pub(super) mtu: Option<Mtu>,
    /// Bytes of the longest request.
    pub(super) max_message: u64,
    pub(super) record: PortRecord,
}

/// Reads and atomics that may be under way on a path, as a power of two: 3.0.0 rounds to the one below,
/// and from 4.0.0 on the library takes no other number.
fn reads(path: &Path) -> u8 {
    1 << path.outstanding_reads.max(1).ilog2()
}

impl DocaQueue {
    fn step(
        &self,
        operation: &'static str,
        step: impl FnOnce() -> Result<(), Failed>,
    ) -> Result<()> {
        let _one = lock(&self.calling);
        step().map_err(|error| Error::hca(&self.hca, operation, error))
    }

    /// To a state, by attributes that `set` sets and names.
    fn modify(
        &self,
        next: i32,
        set: impl FnOnce(*mut DocaQpAttr) -> Result<i32, Failed>,
    ) -> Result<(), Failed> {
        let calls = &self.made.calls;
        let attr = object!(calls, doca_verbs_qp_attr_create => doca_verbs_qp_attr_destroy)?;
        call!(calls, doca_verbs_qp_attr_set_next_state, attr.raw(), next)?;
        let mask = set(attr.raw())? | attribute::NEXT_STATE;
        call!(
            calls,
            doca_verbs_qp_modify,
            self.made.pair.raw(),
            attr.raw(),
            mask
        )
    }

    /// Where the peer is, as the library takes it.
    fn address_of(&self, path: &Path) -> Result<Object<DocaAhAttr>, Failed> {
        let calls = &self.made.calls;
        let device = self.made.device.raw();
        let address =
            object!(calls, doca_verbs_ah_attr_create => doca_verbs_ah_attr_destroy, device)?;
        let raw = address.raw();
        let peer = path.port.unwrap_or(self.port.record);
        let gid = path.peer.hca.0;
        let is_ipv4 = std::net::Ipv6Addr::from(gid).to_ipv4_mapped().is_some();
        let needs_gid = peer.needs_gid || self.port.record.needs_gid;
        let kind = match (self.port.record.ethernet, needs_gid) {
            (true, _) if is_ipv4 => address_type::IPV4,
            (true, _) => address_type::IPV6,
            (false, true) => address_type::IB_GRH,
            (false, false) => address_type::IB_NO_GRH,
        };
        call!(calls, doca_verbs_ah_attr_set_addr_type, raw, kind)?;
        call!(calls, doca_verbs_ah_attr_set_gid, raw, DocaGid { raw: gid })?;
        call!(
            calls,
            doca_verbs_ah_attr_set_sgid_index,
            raw,
            self.port.gid_index
        )?;
        call!(calls, doca_verbs_ah_attr_set_hop_limit, raw, HOP_LIMIT)?;
        let asked = &self.plan.asked;
        let level = asked.service_level.or(env().ib_service_level).unwrap_or(0);
        let class = asked.traffic_class.or(env().ib_traffic_class).unwrap_or(0);
        call!(calls, doca_verbs_ah_attr_set_sl, raw, level)?;
        call!(calls, doca_verbs_ah_attr_set_traffic_class, raw, class)?;
        if !self.port.record.ethernet {
            call!(calls, doca_verbs_ah_attr_set_dlid, raw, peer.lid.into())?;
        }
        Ok(address)
    }

    fn has_error(&self) -> bool {
        let _one = lock(&self.calling);
        self.made.has_error().unwrap_or_else(|error| {
            tracing::warn!(hca = self.hca, %error, "a queue pair does not say how it is");
            false
        })
    }
}

impl HcaQueue for DocaQueue {
    fn address(&self) -> QueueAddress {
        QueueAddress {
            hca: self.port.gid,
            number: self.made.shown.number,
        }
    }

    fn complete(&self, record: QueueRecord) -> QueueRecord {
        QueueRecord {
            mtu: self.port.mtu.unwrap_or(record.mtu),
            port: Some(self.port.record),
            ..record
        }
    }

    fn init(&self) -> Result<()> {
        let calls = &self.made.calls;
        self.step("bring a queue pair to INIT", || {
            self.modify(state::INIT, |attr| {
                call!(calls, doca_verbs_qp_attr_set_pkey_index, attr, 0)?;
                call!(
                    calls,
                    doca_verbs_qp_attr_set_port_num,
                    attr,
                    self.port.number
                )?;
                call!(calls, doca_verbs_qp_attr_set_allow_remote_write, attr, 1)?;
                call!(calls, doca_verbs_qp_attr_set_allow_remote_read, attr, 1)?;
                let mut mask = attribute::PKEY_INDEX
                    | attribute::PORT_NUM
                    | attribute::ALLOW_REMOTE_WRITE
                    | attribute::ALLOW_REMOTE_READ;
                if self.atomics {
                    let mode = atomic_mode::IB_SPEC;
                    call!(calls, doca_verbs_qp_attr_set_atomic_mode, attr, mode)?;
                    mask |= attribute::ATOMIC_MODE;
                }
                Ok(mask)
            })
        })
    }

    fn ready_to_receive(&self, path: &Path) -> Result<()> {
        let calls = &self.made.calls;
        let first = path.port.map_or(0, |port| port.first_packet);
        // The library counts sizes from 0.
        let mtu = i32::from(path.mtu.code()) - 1;
        let (number, reads) = (path.peer.number, reads(path));
        self.step("bring a queue pair to RTR", || {
            let address = self.address_of(path)?;
            self.modify(state::RTR, |attr| {
                call!(calls, doca_verbs_qp_attr_set_ah_attr, attr, address.raw())?;
                call!(calls, doca_verbs_qp_attr_set_rq_psn, attr, first)?;
                call!(calls, doca_verbs_qp_attr_set_dest_qp_num, attr, number)?;
                call!(calls, doca_verbs_qp_attr_set_path_mtu, attr, mtu)?;
                call!(calls, doca_verbs_qp_attr_set_min_rnr_timer, attr, RNR_TIMER)?;
                call!(
                    calls,
                    doca_verbs_qp_attr_set_max_dest_rd_atomic,
                    attr,
                    reads
                )?;
                Ok(attribute::AH_ATTR
                    | attribute::RQ_PSN
                    | attribute::DEST_QP_NUM
                    | attribute::PATH_MTU
                    | attribute::MIN_RNR_TIMER
                    | attribute::MAX_DEST_RD_ATOMIC)
            })
        })
    }

    fn ready_to_send(&self, path: &Path) -> Result<()> {
        let calls = &self.made.calls;
        let first = self.port.record.first_packet;
        let reads = reads(path);
        let asked = &self.plan.asked;
        let timeout = asked.timeout.or(env().ib_timeout).unwrap_or(ACK_TIMEOUT);
        let retries = asked
            .retry_count
            .or(env().ib_retry_count)
            .unwrap_or(RETRIES);
        self.step("bring a queue pair to RTS", || {
            self.modify(state::RTS, |attr| {
                call!(calls, doca_verbs_qp_attr_set_sq_psn, attr, first)?;
                call!(
                    calls,
                    doca_verbs_qp_attr_set_ack_timeout,
                    attr,
                    timeout.into()
                )?;
                call!(
                    calls,
                    doca_verbs_qp_attr_set_retry_cnt,
                    attr,
                    retries.into()
                )?;
                call!(
                    calls,
                    doca_verbs_qp_attr_set_rnr_retry,
                    attr,
                    RETRIES.into()
                )?;
                call!(calls, doca_verbs_qp_attr_set_max_rd_atomic, attr, reads)?;
                Ok(attribute::SQ_PSN
                    | attribute::ACK_TIMEOUT
                    | attribute::RETRY_CNT
                    | attribute::RNR_RETRY
                    | attribute::MAX_QP_RD_ATOMIC)
            })
        })
    }

    fn device_handle(&self) -> QueueDeviceHandle {
        self.memory.handle(
            self.plan,
            layout::Shown {
                number: self.made.shown.number,
                doorbell: self.made.shown.doorbell,
                scratch_key: self.scratch.local_key(),
                max_message: self.port.max_message,
            },
        )
    }

    fn counters(&self) -> Option<QueueCounters> {
        Some(self.memory.counters(self.made.shown.number))
    }

    fn fault(&self) -> Option<QueueFault> {
        if !self.has_error() {
            return self.memory.broken_promise();
        }
        // The library does not say why; the completions do, and those that were flushed do not.
        Some(match self.memory.told() {
            Some(QueueFault::Request { syndrome, .. })
                if syndrome == mlx5_queue::Syndrome::FLUSHED =>
            {
                QueueFault::Refusal
            }
            Some(told) => told,
            None => QueueFault::Refusal,
        })
    }

    fn stop(&self) {
        let stopped = self.step("stop a queue pair", || self.modify(state::ERR, |_| Ok(0)));
        if let Err(error) = stopped {
            tracing::warn!(%error, "a queue cannot be stopped");
        }
    }
}
