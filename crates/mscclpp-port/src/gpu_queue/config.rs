// SPDX-License-Identifier: MIT
//! What is asked for of an endpoint over an HCA.

use std::fmt;

use mscclpp_device::abi::{QueueForm, SignalMode};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Requests that fit a send queue of the usual size.
pub(crate) const DEFAULT_BLOCKS: u32 = 1024;
const BLOCKS: std::ops::RangeInclusive<u32> = 2..=32768;

/// Who posts to an InfiniBand endpoint's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[repr(u8)]
pub enum IbMode {
    /// What is usual: [`Host`](Self::Host).
    #[default]
    Default = 0,
    /// The proxy's thread, with the HCA's atomics for signals. Becomes
    /// [`HostNoAtomic`](Self::HostNoAtomic) on an HCA without atomics.
    Host = 1,
    /// The proxy's thread; signals are writes that the peer's host counts.
    HostNoAtomic = 2,
    /// Kernels post themselves: GPU-initiated.
    GpuNetIo = 3,
}

impl IbMode {
    const ALL: [Self; 4] = [
        Self::Default,
        Self::Host,
        Self::HostNoAtomic,
        Self::GpuNetIo,
    ];

    /// The mode that an HCA with or without atomics gives, which is what peers are told.
    pub(crate) fn resolve(self, atomics: bool) -> Self {
        match self {
            Self::Default | Self::Host if atomics => Self::Host,
            Self::Default | Self::Host => Self::HostNoAtomic,
            other => other,
        }
    }
}

impl fmt::Display for IbMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl From<IbMode> for u8 {
    fn from(mode: IbMode) -> Self {
        mode as Self
    }
}

impl TryFrom<u8> for IbMode {
    type Error = String;

    fn try_from(code: u8) -> Result<Self, String> {
        (Self::ALL.get(usize::from(code)).copied())
            .ok_or_else(|| format!("there is no InfiniBand mode number {code}"))
    }
}

/// Where the rings and the doorbell record of a queue lie: what kernels write and the HCA reads, and
/// the other way round. What only kernels use lies in the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum QueuePlacement {
    /// In the memory of the device whose kernels post.
    #[default]
    Device,
    /// In host memory that the device reaches. A NIC in software, which runs on the host, has less of
    /// a way to it; a GPU's threads have more.
    Host,
}

/// What an InfiniBand endpoint is to be, beyond what every endpoint is.
///
/// All but the mode concerns [`IbMode::GpuNetIo`] only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IbConfig {
    /// Who posts. Both ends of a connection must have the same kind.
    pub mode: IbMode,
    /// Which threads of a kernel may post at the same time.
    pub queue_form: QueueForm,
    /// How kernels signal. [`SignalMode::InlineWrite`] is for HCAs without atomics; it needs
    /// [`QueueForm::Exclusive`] and rules accumulates out.
    pub signal_mode: SignalMode,
    /// Requests in the send queue: a power of two, 2 to 32768; `None` for 1024. A put takes one (one
    /// for each GiB or so), a signal another.
    pub max_send_wr: Option<u32>,
    /// Where the queue lies. Of no effect on what the endpoint is to its peer.
    pub queue_placement: QueuePlacement,
}

impl IbConfig {
    /// Checks what can be checked without an HCA.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |detail: String| {
            Err(Error::InvalidUsage {
                operation: "create an endpoint",
                detail,
            })
        };
        if self.signal_mode == SignalMode::InlineWrite && self.queue_form != QueueForm::Exclusive {
            return invalid(
                "SignalMode::InlineWrite needs QueueForm::Exclusive: each signal is the next \
                 count, which only one thread at a time can know"
                    .into(),
            );
        }
        let blocks = self.blocks();
        if !BLOCKS.contains(&blocks) || !blocks.is_power_of_two() {
            return invalid(format!(
                "max_send_wr is {blocks}: a send queue holds a power of two of requests, 2 to 32768"
            ));
        }
        Ok(())
    }

    /// Blocks of 64 bytes in the send queue; each request takes one.
    pub(crate) fn blocks(&self) -> u32 {
        self.max_send_wr.unwrap_or(DEFAULT_BLOCKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpunetio_the_mode_is_resolved_by_the_hca() {
        use IbMode::{Default, GpuNetIo, Host, HostNoAtomic};
        for (asked, with, without) in [
            (Default, Host, HostNoAtomic),
            (Host, Host, HostNoAtomic),
            (HostNoAtomic, HostNoAtomic, HostNoAtomic),
            (GpuNetIo, GpuNetIo, GpuNetIo),
        ] {
            assert_eq!((asked.resolve(true), asked.resolve(false)), (with, without));
        }
    }

    #[test]
    fn gpunetio_queue_sizes_and_forms_are_checked() {
        let sized = |max_send_wr| IbConfig {
            max_send_wr: Some(max_send_wr),
            ..IbConfig::default()
        };
        for good in [2, 64, 32768] {
            sized(good).check().unwrap();
        }
        for bad in [0, 1, 3, 100, 65536] {
            assert!(sized(bad).check().is_err(), "{bad}");
        }
        let shared = IbConfig {
            signal_mode: SignalMode::InlineWrite,
            ..IbConfig::default()
        };
        let error = shared.check().unwrap_err().to_string();
        assert!(error.contains("QueueForm::Exclusive"), "{error}");
        IbConfig {
            queue_form: QueueForm::Exclusive,
            ..shared
        }
        .check()
        .unwrap();
    }
}
