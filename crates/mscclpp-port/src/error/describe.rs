// SPDX-License-Identifier: MIT
//! Parts of errors in their messages.

use std::fmt;

use mlx5_queue::Syndrome;
use mscclpp_device::abi::{Transfer, Trigger};

/// What keeps a peer from leaving too early, in the errors of those that it leaves.
pub(crate) const BARRIER: &str = "a barrier before anybody lets go keeps it until all are through";

/// A trigger in a message: the operation, and the ids and offsets that it names.
pub(super) struct Described<'a>(pub(super) &'a Trigger);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, transfer) = match self.0 {
            Trigger::Put { transfer, .. } => ("put", transfer),
            Trigger::PutWithSignal { transfer, .. } => ("putWithSignal", transfer),
            Trigger::PutWithSignalAndFlush { transfer, .. } => ("putWithSignalAndFlush", transfer),
            Trigger::Signal { .. } => return f.write_str("signal"),
            Trigger::Flush { .. } => return f.write_str("flush"),
            Trigger::Accumulate {
                dst, dst_offset, ..
            } => return write!(f, "accumulate to memory {dst} at offset {dst_offset}"),
        };
        let Transfer {
            dst,
            dst_offset,
            src,
            src_offset,
            size,
        } = transfer;
        write!(
            f,
            "{name} of {size} bytes from memory {src} at offset {src_offset} to memory {dst} at \
             offset {dst_offset}"
        )
    }
}

/// What is usually behind a syndrome.
pub(super) struct Hint(pub(super) Syndrome);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Syndrome::REMOTE_ACCESS => {
                "; the peer does not allow it: it dropped the registration or died, or registered less"
            }
            Syndrome::REMOTE_INVALID_REQUEST => {
                "; the peer's queue does not allow it: a misaligned word, or atomics that its HCA \
                 lacks"
            }
            Syndrome::TRANSPORT_RETRY_EXCEEDED => {
                "; nobody answers: the peer, its HCA or the path to it is gone"
            }
            Syndrome::LOCAL_PROTECTION => "; the memory here is not registered (any more)",
            Syndrome::LOCAL_QP_OPERATION => "; the HCA does not understand it",
            Syndrome::FLUSHED => "; the queue had failed or was stopped before",
            _ => "",
        })
    }
}

/// A rank in a message, or that nobody knows it.
pub(super) struct RankName(pub(super) Option<usize>);

impl fmt::Display for RankName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rank) => write!(f, "{rank}"),
            None => f.write_str("unknown"),
        }
    }
}

/// A rank in brackets behind an operation, unless the operation names it itself.
pub(super) struct UnnamedRank<'a>(pub(super) &'a str, pub(super) Option<usize>);

impl fmt::Display for UnnamedRank<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(operation, rank) = *self;
        if let Some(rank) = rank {
            let name = format!("rank {rank}");
            let mut behind = operation.split(&name).skip(1);
            // Rank 1 is not named by "rank 12".
            if behind.any(|text| !text.starts_with(|c: char| c.is_ascii_digit())) {
                return Ok(());
            }
        }
        write!(f, " (rank {})", RankName(rank))
    }
}

/// Whose the other end is, and on which tag, as far as it is known.
pub(super) struct OtherEnd(pub(super) Option<usize>, pub(super) Option<u32>);

impl fmt::Display for OtherEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Some(rank), tag) = self else {
            return Ok(());
        };
        write!(f, " (the other end is that of rank {rank}")?;
        if let Some(tag) = tag {
            write!(f, ", tag {tag}")?;
        }
        f.write_str(")")
    }
}

/// The ranks that were waited for, if any is known.
pub(super) struct WaitedFor<'a>(pub(super) &'a [usize]);

impl fmt::Display for WaitedFor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        match &names[..] {
            [] => Ok(()),
            [one] => write!(f, "; it waited for rank {one}"),
            _ => write!(f, "; it waited for ranks {}", names.join(", ")),
        }
    }
}

/// Ports and why they cannot be used, as one text.
#[cfg(feature = "ib")]
pub(super) fn list(ports: &[crate::nearest::UnusablePort]) -> String {
    if ports.is_empty() {
        return "there is none".into();
    }
    let texts: Vec<String> = ports.iter().map(ToString::to_string).collect();
    texts.join("; ")
}
