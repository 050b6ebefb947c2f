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
use crate::error::{Error, Result};
use crate::transport::TransportKind;

/// What numbers queue pairs have.
const QUEUE_NUMBERS: std::ops::Range<u32> = 1..1 << 24;

/// What an endpoint over an HCA tells its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueRecord {
    /// The resolved mode.
    pub(crate) mode: IbMode,
    /// Its kernels signal by atomics, not by inline writes.
    pub(crate) atomic_signals: bool,
    /// Its HCA answers atomics.
    pub(crate) atomics: bool,
    pub(crate) mtu: Mtu,
    pub(crate) queue: QueueAddress,
    pub(crate) outstanding_reads: u8,
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
            atomic_signals: signal_mode == SignalMode::Atomic,
            atomics: capabilities.atomics,
            mtu: capabilities.mtu,
            queue,
            outstanding_reads: capabilities.max_outstanding_reads,
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
        Ok(())
    }
}

/// The HCA of an endpoint, if there is one. What this build can do on no HCA says so first.
pub(crate) fn hca_for(
    hcas: &Hcas,
    transport: TransportKind,
    config: &IbConfig,
) -> Result<Arc<dyn GpuQueueProvider>> {
    let hca = hcas.get(transport);
    if let Err(Error::HcaUnavailable { .. }) = hca {
        check_mode(transport, config.mode.resolve(true))?;
    }
    hca
}

/// Whether this build has a mode.
fn check_mode(transport: TransportKind, mode: IbMode) -> Result<()> {
    let missing = match mode {
        IbMode::GpuNetIo => return Ok(()),
        IbMode::HostNoAtomic => {
            "this build has no InfiniBand support for posts of the host (the mode is \
             HostNoAtomic): IbMode::GpuNetIo is what there is"
        }
        IbMode::Host | IbMode::Default => {
            "this build has no InfiniBand support for posts of the host (the mode is Host): \
             IbMode::GpuNetIo is what there is"
        }
    };
    Err(Error::Unsupported {
        operation: "create an endpoint",
        transport,
        missing,
    })
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
    let mode = config.mode.resolve(capabilities.atomics);
    check_mode(transport, mode)?;
    if config.signal_mode == SignalMode::Atomic && !capabilities.atomics {
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

/// Whether two endpoints fit together, and the path between their queues as the first sees it.
pub(crate) fn join(local: &QueueRecord, remote: &QueueRecord) -> Result<Path> {
    let refused = |reason: String| Err(Error::IncompatibleEndpoints { reason });
    if local.mode != remote.mode {
        // In the order of their numbers, so that both ends say the same.
        let (one, other) = if u8::from(local.mode) < u8::from(remote.mode) {
            (local.mode, remote.mode)
        } else {
            (remote.mode, local.mode)
        };
        return refused(format!("one is for IbMode::{one}, the other for {other}"));
    }
    for (signaller, target) in [(local, remote), (remote, local)] {
        if signaller.atomic_signals && !target.atomics {
            return refused(
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
                let text = |result: Result<Path>| result.err().map(|error| error.to_string());
                assert_eq!(text(at_a), text(at_b));
            }
        }
        // The fallback counts, not what was asked for.
        let fallen = record(IbMode::Host.resolve(false), true, true);
        assert!(join(&fallen, &record(IbMode::GpuNetIo, true, true)).is_err());
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
        for (mode, resolved) in [
            (IbMode::Default, "is Host)"),
            (IbMode::HostNoAtomic, "NoAtomic)"),
        ] {
            let config = IbConfig { mode, ..config };
            let error = check_local(ib, &config, &capabilities(true)).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains(resolved), "{error}");
        }
        let host = IbConfig::default();
        let error = check_local(ib, &host, &capabilities(false)).unwrap_err();
        assert!(error.to_string().contains("HostNoAtomic"), "{error}");
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
