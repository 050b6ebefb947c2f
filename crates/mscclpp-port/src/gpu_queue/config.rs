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
    /// What `MSCCLPP_IBV_MODE` says ([`env`](crate::env)), and without it [`Host`](Self::Host).
    #[default]
    Default = 0,
    /// The proxy's thread, with the HCA's atomics for signals. Becomes
    /// [`HostNoAtomic`](Self::HostNoAtomic) on an HCA without atomics.
    Host = 1,
    /// The proxy's thread; a signal is a write with immediate data, and the peer's host raises the
    /// token. There are no accumulates.
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

    /// The mode that an HCA with or without atomics gives, which is what peers are told. `usual` is
    /// what the default stands for.
    pub(crate) fn resolve(self, usual: Self, atomics: bool) -> Self {
        match (self, usual) {
            (Self::Default, Self::HostNoAtomic) => Self::HostNoAtomic,
            (Self::Default | Self::Host, _) if atomics => Self::Host,
            (Self::Default | Self::Host, _) => Self::HostNoAtomic,
            (other, _) => other,
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
/// Form, kind of signals and placement concern [`IbMode::GpuNetIo`] only, what follows them HCAs that
/// libibverbs knows. What is `None` is as the environment says ([`env`](crate::env)), or as is usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IbConfig {
    /// Who posts. Both ends of a connection must have the same kind, after fallback.
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
    /// The port of the HCA, counted from 1, which must be active; else the first active one that has
    /// a GID that can be used.
    pub port: Option<u8>,
    /// Index in the port's table of GIDs. It is obeyed; without, the first routable RoCE v2 entry of
    /// the address family that the context's peers connect by is taken.
    pub gid_index: Option<u32>,
    /// Service level of InfiniBand, or priority of RoCE: 0 to 15; usually 0.
    pub service_level: Option<u8>,
    /// Traffic class of packets that carry a GID: with RoCE v2 the DSCP and ECN bits of their IP
    /// header; usually 0.
    pub traffic_class: Option<u8>,
    /// How long an acknowledgement may take before a request is sent again: 4.096 µs × 2^n, n from 1
    /// to 31, of which HCAs may take up to four times as much; usually 18 (about a second).
    pub timeout: Option<u8>,
    /// How often a request is sent again before its queue fails: 0 to 7; usually 7. A peer that does
    /// not answer is given up after about (n + 1) timeouts.
    pub retry_count: Option<u8>,
    /// Signals that may arrive before the host looks, in [`IbMode::HostNoAtomic`]: 1 to 32768,
    /// usually 512. More have to wait at their sender.
    pub max_recv_wr: Option<u32>,
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
        for (name, value, least, most) in [
            ("port", self.port.map(u32::from), 1, 254),
            ("service_level", self.service_level.map(u32::from), 0, 15),
            ("timeout", self.timeout.map(u32::from), 1, 31),
            ("retry_count", self.retry_count.map(u32::from), 0, 7),
            ("max_recv_wr", self.max_recv_wr, 1, 32768),
        ] {
            if value.is_some_and(|value| !(least..=most).contains(&value)) {
                return invalid(format!(
                    "{name} is {}: it can be {least} to {most}",
                    value.unwrap_or_default()
                ));
            }
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
            let of = |atomics| asked.resolve(Host, atomics);
            assert_eq!((of(true), of(false)), (with, without));
        }
        // What the environment says is the default, and nothing else.
        assert_eq!(Default.resolve(HostNoAtomic, true), HostNoAtomic);
        assert_eq!(Host.resolve(HostNoAtomic, true), Host);
        assert_eq!(GpuNetIo.resolve(HostNoAtomic, true), GpuNetIo);
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

    #[test]
    fn ib_attributes_outside_their_fields_are_refused_and_named() {
        type Change = fn(&mut IbConfig);
        let bad: [(&str, Change); 6] = [
            ("port is 0", |config| config.port = Some(0)),
            ("service_level is 16", |config| {
                config.service_level = Some(16)
            }),
            // No timeout at all would be a wait without end.
            ("timeout is 0", |config| config.timeout = Some(0)),
            ("timeout is 32", |config| config.timeout = Some(32)),
            ("retry_count is 8", |config| config.retry_count = Some(8)),
            ("max_recv_wr is 0", |config| config.max_recv_wr = Some(0)),
        ];
        for (text, change) in bad {
            let mut config = IbConfig::default();
            change(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        IbConfig {
            port: Some(1),
            service_level: Some(15),
            traffic_class: Some(255),
            timeout: Some(31),
            retry_count: Some(0),
            max_recv_wr: Some(32768),
            ..IbConfig::default()
        }
        .check()
        .unwrap();
    }
}
