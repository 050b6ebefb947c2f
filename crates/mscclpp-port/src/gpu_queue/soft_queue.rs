// SPDX-License-Identifier: MIT
//! Queue pairs of NICs in software.

use std::mem::offset_of;
use std::time::Duration;

use mlx5_queue::{COMPLETION_BYTES, DoorbellRecord, QueueNumber, RingSize};
use mscclpp_device::abi::{AbiHeader, QueueDeviceHandle, QueueForm, QueueState};
use mscclpp_softnic as nic;

use super::config::QueuePlacement;
use super::fault;
use super::layout::QueueLayout;
use super::provider::{HcaAddress, HcaQueue, Path, QueueAddress, QueueFault, QueuePlan};
use crate::counters::QueueCounters;
use crate::error::{Error, Result};

/// How long an acknowledgement may take before everything is sent again: code 16 of verbs. Peers that
/// die are noticed by the control stream, long before the retries are used up.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_micros(268_435);

/// Bytes of a request at most: its length has 31 bits, and one more says that data is inline.
const MAX_MESSAGE: u64 = 1 << 30;

/// A queue pair, and its memory. Fields are let go in this order.
pub(super) struct SoftQueue {
    pub(super) pair: nic::QueuePair,
    pub(super) scratch: nic::Registration,
    pub(super) page: nic::DoorbellPage,
    pub(super) memory: QueueLayout,
    pub(super) entries: RingSize,
    pub(super) plan: QueuePlan,
    pub(super) device: nic::Device,
}

impl SoftQueue {
    fn step(&self, operation: &'static str, step: nic::Transition) -> Result<()> {
        (self.pair.modify(step)).map_err(|error| Error::hca(self.device.name(), operation, error))
    }

    fn state_word(&self, offset: usize) -> u64 {
        // The state lies in the buffer, aligned.
        (self.memory.words)
            .load_u64(self.memory.state + offset as u64)
            .unwrap_or(0)
    }

    /// What kernels and completions tell.
    fn told(&self) -> Option<QueueFault> {
        // In this order, because kernels may be consuming: entries are counted on from what was
        // complete before the first of them.
        let completed = self.state_word(offset_of!(QueueState, completed));
        let consumed = self.state_word(offset_of!(QueueState, consumed));
        let read = |slot: u32| {
            let mut entry = [0; COMPLETION_BYTES];
            let at = self.memory.completions + u64::from(slot) * COMPLETION_BYTES as u64;
            // A queue in error has written its completions, so none is torn.
            let _ = self.memory.rings.read(at, &mut entry);
            entry
        };
        fault::of_completions(self.entries, consumed, completed, read).or_else(|| {
            let error = self.state_word(offset_of!(QueueState, error));
            fault::of_state(error, self.state_word(offset_of!(QueueState, error_index)))
        })
    }
}

impl HcaQueue for SoftQueue {
    fn address(&self) -> QueueAddress {
        let nic::QueueAddress { device, queue, .. } = self.pair.address();
        QueueAddress {
            hca: HcaAddress(device.0),
            number: queue.get(),
        }
    }

    fn init(&self) -> Result<()> {
        self.step(
            "bring a queue pair to INIT",
            nic::Transition::Init(nic::InitAttributes {
                remote_write: true,
                remote_read: true,
                remote_atomic: self.device.capabilities().atomics,
            }),
        )
    }

    fn ready_to_receive(&self, path: &Path) -> Result<()> {
        let refused = |error| Error::hca(self.device.name(), "connect a queue pair", error);
        let queue = QueueNumber::new(path.peer.number).map_err(refused)?;
        let remote = nic::QueueAddress {
            device: nic::DeviceAddress(path.peer.hca.0),
            queue,
        };
        self.step(
            "bring a queue pair to RTR",
            nic::Transition::ReadyToReceive(nic::ReceiveAttributes {
                mtu: nic::Mtu::from_code(path.mtu.code()).unwrap_or_default(),
                max_outstanding_reads: path.outstanding_reads,
                ..nic::ReceiveAttributes::new(remote)
            }),
        )
    }

    fn ready_to_send(&self, path: &Path) -> Result<()> {
        self.step(
            "bring a queue pair to RTS",
            nic::Transition::ReadyToSend(nic::SendAttributes {
                max_outstanding_reads: path.outstanding_reads,
                timeout: ACKNOWLEDGED_WITHIN,
                ..nic::SendAttributes::default()
            }),
        )
    }

    fn device_handle(&self) -> QueueDeviceHandle {
        let memory = &self.memory;
        let shared = self.plan.form == QueueForm::Shared;
        let (rings, words) = (memory.rings.address(), memory.words.address());
        QueueDeviceHandle {
            abi: AbiHeader::of::<QueueDeviceHandle>(),
            send_ring: rings + memory.ring,
            record: rings + memory.record + DoorbellRecord::SEND_OFFSET as u64,
            doorbell: self.page.register().address(),
            completions: rings + memory.completions,
            state: words + memory.state,
            ready: if shared { words + memory.ready } else { 0 },
            scratch: words + memory.scratch,
            scratch_key: self.scratch.key().get().to_be(),
            number: self.pair.number().get(),
            blocks: memory.blocks,
            completion_entries: memory.entries,
            form: self.plan.form as u32,
            signal_mode: self.plan.signal_mode as u32,
            record_in_host_memory: (self.plan.placement == QueuePlacement::Host).into(),
            // The n-th completion of a shared queue is that of the n-th request.
            signal_every: shared.into(),
            max_message: self.device.capabilities().max_message.min(MAX_MESSAGE),
        }
    }

    fn counters(&self) -> Option<QueueCounters> {
        // In this order: none is complete before it is posted.
        let completed = self.state_word(offset_of!(QueueState, completed));
        let posted = self.state_word(offset_of!(QueueState, reserved));
        Some(QueueCounters {
            number: self.pair.number().get(),
            slots: self.memory.blocks,
            posted,
            completed,
        })
    }

    fn fault(&self) -> Option<QueueFault> {
        let status = self.pair.status();
        if status.state != nic::State::Error {
            // A kernel found two threads where one had been promised; the NIC knows nothing of it.
            let error = fault::of_state(self.state_word(offset_of!(QueueState, error)), 0);
            return error.filter(|fault| *fault == QueueFault::NotExclusive);
        }
        Some(match (status.failure, self.told()) {
            (None, Some(QueueFault::NotExclusive)) => QueueFault::NotExclusive,
            // Flushed requests say nothing of why.
            (None, _) => QueueFault::Refusal,
            (Some(_), Some(told)) => told,
            (Some(syndrome), None) => QueueFault::Request {
                index: status.finished,
                opcode: None,
                syndrome,
                vendor: 0,
            },
        })
    }

    fn stop(&self) {
        if let Err(error) = self.pair.modify(nic::Transition::Error) {
            tracing::warn!(queue = ?self.pair, %error, "a queue cannot be stopped");
        }
    }
}
