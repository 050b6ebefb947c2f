// SPDX-License-Identifier: MIT
//! Which endpoints over HCAs there can be, and which fit together. Both ends of a connection come to
//! the same answer, because both decide from both records.

use std::sync::Arc;

use mlx5_queue::RingSize;
use mscclpp_device::abi::{QueueForm, SignalMode};
use serde::{Deserialize, Serialize};

use super::config::{IbConfig, IbMode, QueuePlacement};
use super::hca::Hcas;
use super::provider::{GpuQueueProvider, HcaCapabilities, HcaQueue, Mtu, Path, QueueAddress};
use crate::env::env;
use crate::error::{Error, Result};
use crate::transport::TransportKind;

/// What numbers queue pairs have.
const QUEUE_NUMBERS: std::ops::Range<u32> = 1..1 << 24;
/// The last packet number.
const MAX_PACKET: u32 = (1 << 24) - 1;

/// What an endpoint over an HCA tells its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueRecord {
    /// The resolved mode.
    pub(crate) mode: IbMode,
    /// It signals by atomics, not by writes.
    pub(crate) atomic_signals: bool,
    /// Its HCA answers atomics.
    pub(crate) atomics: bool,
    pub(crate) mtu: Mtu,
    pub(crate) queue: QueueAddress,
    pub(crate) outstanding_reads: u8,
    /// Of an HCA that libibverbs knows, and only then.
    pub(crate) port: Option<PortRecord>,
}

/// How packets get to the port of an HCA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortRecord {
    /// RoCE, not InfiniBand.
    pub(crate) ethernet: bool,
    /// Its address within an InfiniBand subnet.
    pub(crate) lid: u16,
    /// Packets to it need a GID, also within its subnet.
    pub(crate) needs_gid: bool,
    /// Number of the first packet that the queue sends.
    pub(crate) first_packet: u32,
}

impl QueueRecord {
    pub(crate) fn new(
        mode: IbMode,
        signal_mode: SignalMode,
        capabilities: &HcaCapabilities,
        queue: QueueAddress,
    ) -> Self {
        Self {
            mode,
            atomic_signals: match mode {
                IbMode::GpuNetIo => signal_mode == SignalMode::Atomic,
                IbMode::HostNoAtomic => false,
                IbMode::Host | IbMode::Default => true,
            },
            atomics: capabilities.atomics,
            mtu: capabilities.mtu,
            queue,
            outstanding_reads: capabilities.max_outstanding_reads,
            port: None,
        }
    }

    /// Refuses what no endpoint says of itself.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.mode == IbMode::Default {
            return Err("its mode is not resolved");
        }
        if !QUEUE_NUMBERS.contains(&self.queue.number) {
            return Err("its queue number is impossible");
        }
        match self.port {
            None if self.mode != IbMode::GpuNetIo => Err("it does not say how to reach its port"),
            Some(port) if port.first_packet > MAX_PACKET => Err("its packet number is impossible"),
            _ => Ok(()),
        }
    }
}

/// The HCA of an endpoint, if there is one. What this build can do on no HCA says so first.
pub(crate) fn hca_for(
    hcas: &Hcas,
    transport: TransportKind,
    config: &IbConfig,
) -> Result<Arc<dyn GpuQueueProvider>> {
    let hca = hcas.get(transport);
    if let Err(Error::HcaUnavailable { .. }) = hca
        && !cfg!(feature = "ib")
        && config.mode != IbMode::GpuNetIo
    {
        return Err(unsupported(
            transport,
            "this build has no InfiniBand support for posts of the host: build mscclpp-port with the \
             feature `ib`",
        ));
    }
    hca
}

fn unsupported(transport: TransportKind, missing: &'static str) -> Error {
    Error::Unsupported {
        operation: "create an endpoint",
        transport,
        missing,
    }
}

/// Whether queues of an HCA can be posted to by those that a mode means.
fn check_mode(transport: TransportKind, mode: IbMode, has: &HcaCapabilities) -> Result<()> {
    let missing = match mode {
        IbMode::GpuNetIo if has.posts_of_kernels => return Ok(()),
        IbMode::GpuNetIo => {
            "kernels cannot post to this HCA in this build (IbMode::GpuNetIo): a NIC in software \
             (soft0) takes their posts, and this one those of the host (IbMode::Host)"
        }
        _ if has.posts_of_host => return Ok(()),
        IbMode::HostNoAtomic => {
            "a NIC in software takes posts of kernels only (the mode is HostNoAtomic): use \
             IbMode::GpuNetIo, or an HCA that libibverbs knows"
        }
        IbMode::Host | IbMode::Default => {
            "a NIC in software takes posts of kernels only (the mode is Host): use \
             IbMode::GpuNetIo, or an HCA that libibverbs knows"
        }
    };
    Err(unsupported(transport, missing))
}

/// Whether this build and this HCA can do what an endpoint asks for.
pub(crate) fn check_local(
    transport: TransportKind,
    config: &IbConfig,
    capabilities: &HcaCapabilities,
) -> Result<IbMode> {
    let invalid = |detail: String| {
        Err(Error::InvalidUsage {
            operation: "create an endpoint",
            detail,
        })
    };
    let mode = config.mode.resolve(env().ib_mode, capabilities.atomics);
    check_mode(transport, mode, capabilities)?;
    if mode == IbMode::GpuNetIo && config.signal_mode == SignalMode::Atomic && !capabilities.atomics
    {
        return invalid(format!(
            "the HCA of {transport} has no atomics, which signals need: SignalMode::InlineWrite \
             does without (kernels can then not accumulate), and is never chosen silently"
        ));
    }
    let most = capabilities.max_blocks.min(RingSize::MAX_SEND_BLOCKS);
    if config.blocks() > most {
        return invalid(format!(
            "a send queue of {} requests was asked for, and the HCA has room for {most}",
            config.blocks()
        ));
    }
    Ok(mode)
}

/// Whether a queue that was made is one that kernels can post to without help of the host. Nothing is
/// taken on trust that kernels would only find out by waiting for ever.
pub(crate) fn check_made(hca: &str, queue: &dyn HcaQueue, config: &IbConfig) -> Result<()> {
    let (handle, number) = (queue.device_handle(), queue.address().number);
    let wrong = if let Err(error) = handle.check() {
        error.to_string()
    } else if handle.number != number || !QUEUE_NUMBERS.contains(&number) {
        format!(
            "its number is {number:#x} to peers and {:#x} to kernels",
            handle.number
        )
    } else if handle.doorbell == 0 || handle.doorbell % 8 != 0 {
        "kernels cannot ring its doorbell themselves".into()
    } else if handle.record == 0 || handle.record % 4 != 0 {
        "it has no doorbell record".into()
    } else if (handle.record_in_host_memory != 0)
        != (config.queue_placement == QueuePlacement::Host)
    {
        format!(
            "its doorbell record is not in the memory that was asked for ({:?})",
            config.queue_placement
        )
    } else if handle.send_ring == 0 || handle.blocks != config.blocks() {
        format!(
            "its send ring holds {} requests, not {}",
            handle.blocks,
            config.blocks()
        )
    } else if handle.completions == 0 || handle.completion_entries < handle.blocks {
        format!(
            "its completion ring holds {} entries for {} requests, or is not in device memory",
            handle.completion_entries, handle.blocks
        )
    } else if handle.state == 0 || handle.scratch == 0 {
        "it has no memory for its state or for results of atomics".into()
    } else if handle.form != config.queue_form as u32
        || handle.signal_mode != config.signal_mode as u32
        || (config.queue_form == QueueForm::Shared
            && (handle.ready == 0 || handle.signal_every != 1))
    {
        "it is of another form than was asked for".into()
    } else if handle.max_message == 0 {
        "it takes no message".into()
    } else {
        return Ok(());
    };
    Err(Error::UnfitQueue {
        hca: hca.into(),
        queue: number,
        reason: wrong,
    })
}

/// The path between the queues of two endpoints as the first sees it, or why they do not fit together.
pub(crate) fn join(local: &QueueRecord, remote: &QueueRecord) -> Result<Path, String> {
    if local.mode != remote.mode {
        // In the order of their numbers, so that both ends say the same.
        let (one, other) = if u8::from(local.mode) < u8::from(remote.mode) {
            (local.mode, remote.mode)
        } else {
            (remote.mode, local.mode)
        };
        let way_out = match (one, other) {
            (IbMode::Host, IbMode::HostNoAtomic) => {
                " (an HCA without atomics has only that): use IbMode::HostNoAtomic on both ends"
            }
            _ => "",
        };
        return Err(format!(
            "one is for IbMode::{one}, the other for {other}{way_out}"
        ));
    }
    if local.port.map(|port| port.ethernet) != remote.port.map(|port| port.ethernet) {
        return Err(
            "their HCAs have no fabric in common: of NICs in software, RoCE and InfiniBand, they \
             have two"
                .into(),
        );
    }
    for (signaller, target) in [(local, remote), (remote, local)] {
        if signaller.atomic_signals && !target.atomics {
            return Err(
                "one signals by atomics and the HCA of the other has none: use \
                 SignalMode::InlineWrite on both ends"
                    .into(),
            );
        }
    }
    Ok(Path {
        peer: remote.queue,
        mtu: path_mtu(local.mtu, remote.mtu),
        outstanding_reads: local.outstanding_reads.min(remote.outstanding_reads).max(1),
        port: remote.port,
    })
}

/// The MTU of a path: the smaller of its two ends'.
fn path_mtu(local: Mtu, remote: Mtu) -> Mtu {
    local.min(remote)
}

#[cfg(test)]
mod tests {
    use super::super::provider::HcaAddress;
    use super::*;

    fn capabilities(atomics: bool) -> HcaCapabilities {
        HcaCapabilities {
            atomics,
            mtu: Mtu::from_code(5).unwrap(),
            max_blocks: 1 << 15,
            max_outstanding_reads: 16,
            posts_of_host: true,
            posts_of_kernels: true,
        }
    }

    fn record(mode: IbMode, atomics: bool, atomic_signals: bool) -> QueueRecord {
        let queue = QueueAddress {
            hca: HcaAddress([2; 16]),
            number: 7,
        };
        QueueRecord {
            atomic_signals,
            ..QueueRecord::new(mode, SignalMode::Atomic, &capabilities(atomics), queue)
        }
    }

    fn port(ethernet: bool) -> Option<PortRecord> {
        Some(PortRecord {
            ethernet,
            lid: 3,
            needs_gid: ethernet,
            first_packet: 7,
        })
    }

    #[test]
    fn gpunetio_path_mtu_is_the_smaller_for_all_pairs_and_unknown_codes_are_refused() {
        for a in 0..=255 {
            let Some(local) = Mtu::from_code(a) else {
                assert!(!(1..=5).contains(&a) && Mtu::try_from(a).is_err());
                continue;
            };
            for b in 1..=5 {
                let remote = Mtu::from_code(b).unwrap();
                assert_eq!(path_mtu(local, remote).code(), a.min(b));
            }
        }
    }

    #[test]
    fn gpunetio_modes_that_differ_are_refused_by_both_ends_alike() {
        let modes = [IbMode::Host, IbMode::HostNoAtomic, IbMode::GpuNetIo];
        for a in modes {
            for b in modes {
                let (a_end, b_end) = (record(a, true, true), record(b, true, true));
                let (at_a, at_b) = (join(&a_end, &b_end), join(&b_end, &a_end));
                assert_eq!(at_a.is_ok(), a == b);
                assert_eq!(at_a.err(), at_b.err());
            }
        }
        // The fallback counts, not what was asked for.
        let fallen = IbMode::Host.resolve(IbMode::Host, false);
        let fallen = record(fallen, false, false);
        assert!(join(&fallen, &record(IbMode::GpuNetIo, true, true)).is_err());
        let error = join(&fallen, &record(IbMode::Host, true, true)).unwrap_err();
        assert!(error.to_string().contains("on both ends"), "{error}");
    }

    #[test]
    fn ib_ports_of_different_fabrics_are_refused_by_both_ends_alike() {
        let with = |port| QueueRecord {
            port,
            ..record(IbMode::GpuNetIo, true, true)
        };
        let kinds = [None, port(true), port(false)];
        for a in kinds {
            for b in kinds {
                let (at_a, at_b) = (join(&with(a), &with(b)), join(&with(b), &with(a)));
                assert_eq!(at_a.is_ok(), a == b);
                assert_eq!(at_a.err(), at_b.err());
            }
        }
    }

    #[test]
    fn ib_records_without_a_port_or_with_an_impossible_packet_number_are_refused() {
        let good = QueueRecord {
            port: port(true),
            ..record(IbMode::Host, true, true)
        };
        good.check().unwrap();
        let without = QueueRecord { port: None, ..good };
        assert!(without.check().is_err());
        let mut beyond = good;
        beyond.port = port(true).map(|port| PortRecord {
            first_packet: 1 << 24,
            ..port
        });
        assert!(beyond.check().is_err());
        let kernels = record(IbMode::GpuNetIo, true, true);
        kernels.check().unwrap();
    }

    #[test]
    fn gpunetio_atomic_signals_need_an_hca_that_answers_them() {
        let with = record(IbMode::GpuNetIo, true, true);
        let with_inline = record(IbMode::GpuNetIo, true, false);
        let without = record(IbMode::GpuNetIo, false, false);
        for (a, b, fits) in [
            (with, with, true),
            (with, with_inline, true),
            (with, without, false),
            (with_inline, without, true),
            (without, without, true),
        ] {
            assert_eq!(join(&a, &b).is_ok(), fits, "{a:?} {b:?}");
            assert_eq!(join(&b, &a).is_ok(), fits, "{b:?} {a:?}");
        }
    }

    #[test]
    fn gpunetio_policy_names_the_way_out() {
        let config = IbConfig {
            mode: IbMode::GpuNetIo,
            ..IbConfig::default()
        };
        let ib = TransportKind::IB3;
        let mode = check_local(ib, &config, &capabilities(true)).unwrap();
        assert_eq!(mode, IbMode::GpuNetIo);
        let error = check_local(ib, &config, &capabilities(false)).unwrap_err();
        assert!(
            error.to_string().contains("SignalMode::InlineWrite"),
            "{error}"
        );
        let soft = |atomics| HcaCapabilities {
            posts_of_host: false,
            ..capabilities(atomics)
        };
        for (mode, atomics, resolved) in [
            (IbMode::Default, true, "is Host)"),
            (IbMode::HostNoAtomic, true, "NoAtomic)"),
            (IbMode::Host, false, "NoAtomic)"),
        ] {
            let config = IbConfig { mode, ..config };
            let error = check_local(ib, &config, &soft(atomics)).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains(resolved), "{error}");
            let mode = check_local(ib, &config, &capabilities(atomics)).unwrap();
            assert!(format!("is {mode})").ends_with(resolved), "{mode}");
        }
        let real = HcaCapabilities {
            posts_of_kernels: false,
            ..capabilities(true)
        };
        let error = check_local(ib, &config, &real).unwrap_err();
        assert!(error.to_string().contains("IbMode::Host"), "{error}");
        let small = HcaCapabilities {
            max_blocks: 64,
            ..capabilities(true)
        };
        assert!(check_local(ib, &config, &small).is_err());
    }

    #[test]
    fn gpunetio_reads_under_way_are_what_both_ends_allow() {
        let (a, mut b) = (
            record(IbMode::GpuNetIo, true, true),
            record(IbMode::GpuNetIo, true, true),
        );
        b.outstanding_reads = 4;
        assert_eq!(join(&a, &b).unwrap().outstanding_reads, 4);
        assert_eq!(join(&b, &a).unwrap().outstanding_reads, 4);
    }
}
