// SPDX-License-Identifier: MIT
//! Queue pairs of NICs in software.

use std::time::Duration;

use mlx5_queue::QueueNumber;
use mscclpp_device::abi::QueueDeviceHandle;
use mscclpp_softnic as nic;

use super::layout::{QueueLayout, Shown};
use super::provider::{HcaAddress, HcaQueue, Path, QueueAddress, QueueFault, QueuePlan};
use crate::counters::QueueCounters;
use crate::error::{Error, Result};

/// How long an acknowledgement may take before everything is sent again: code 16 of verbs. Peers that
/// die are noticed by the control stream, long before the retries are used up.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_micros(268_435);

/// A queue pair, and its memory. Fields are let go in this order.
pub(super) struct SoftQueue {
    pub(super) pair: nic::QueuePair,
    pub(super) scratch: nic::Registration,
    pub(super) page: nic::DoorbellPage,
    pub(super) memory: QueueLayout,
    pub(super) plan: QueuePlan,
    pub(super) device: nic::Device,
}

impl SoftQueue {
    fn step(&self, operation: &'static str, step: nic::Transition) -> Result<()> {
        (self.pair.modify(step)).map_err(|error| Error::hca(self.device.name(), operation, error))
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
        self.memory.handle(
            self.plan,
            Shown {
                number: self.pair.number().get(),
                doorbell: self.page.register().address(),
                scratch_key: self.scratch.key().get(),
                max_message: self.device.capabilities().max_message,
            },
        )
    }

    fn counters(&self) -> Option<QueueCounters> {
        Some(self.memory.counters(self.pair.number().get()))
    }

    fn fault(&self) -> Option<QueueFault> {
        let status = self.pair.status();
        if status.state != nic::State::Error {
            return self.memory.broken_promise();
        }
        Some(match (status.failure, self.memory.told()) {
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
