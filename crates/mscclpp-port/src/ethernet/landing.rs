// SPDX-License-Identifier: MIT
//! What arrives for a GPU's memory: copies from pinned memory on the receiver's stream, and words that
//! are written behind them.

use std::sync::Arc;
use std::time::Duration;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu::Staging;
use crate::memory::{Region, RegistrationTable};
use crate::refusal::Refusal;
use crate::shared;

/// Bytes of a word, which a copy does not split.
pub(super) const WORD: usize = 8;

/// How many of `len` bytes to an address, of `left` that come, are to be copied now: all that are
/// left, or those that end with a word.
pub(super) fn whole_words(to: usize, len: usize, left: u64) -> usize {
    if len as u64 == left {
        len
    } else {
        len.saturating_sub((to + len) % WORD)
    }
}

/// The landing of a receiver, made if there is none.
pub(super) fn landing(
    landing: &mut Option<Staging>,
    device: Device,
    gpu_copy: Duration,
) -> Result<&mut Staging> {
    match landing {
        Some(landing) => Ok(landing),
        None => Ok(landing.insert(Staging::new(device, gpu_copy)?)),
    }
}

/// Starts to copy bytes to a GPU's memory.
pub(super) fn land(
    landing: &mut Staging,
    region: &Arc<Region>,
    to: *mut u8,
    bytes: &[u8],
) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let at = to.addr() as u64 + done as u64;
        let piece = landing.wait_for_room(at, (bytes.len() - done) as u64)?;
        let part = &bytes[done..done + piece.len()];
        // SAFETY: the piece is this call's, and the system's memory; the range in the region was
        // checked, and the region keeps its buffer.
        unsafe {
            shared::store(landing.at(&piece), part);
            landing.land(&piece, part.len(), at, Arc::clone(region) as _)?;
        }
        done += part.len();
    }
    Ok(())
}

/// Adds to a word behind what is on its way to a GPU.
pub(super) fn add_behind(
    landing: &mut Staging,
    table: &RegistrationTable,
    (key, offset): (u64, u64),
    operand: u64,
) -> Result<(), Refusal> {
    let region = table.open_for_add(key)?;
    let guard = region.enter().ok_or(Refusal::UnknownKey)?;
    let at = guard.word(offset)?;
    if let (Some(_), Some(mut count)) = (region.gpu(), region.signals()) {
        *count = count.wrapping_add(operand);
        let keep = Arc::clone(&region) as _;
        // SAFETY: the guard has checked range and alignment; the region keeps its buffer.
        return unsafe { landing.write_u64(at.addr() as u64, *count, keep) }.map_err(on_gpu);
    }
    drop(guard);
    // Not in the order of the stream, so when that has done what came before.
    landing.settle().map_err(on_gpu)?;
    table.add(key, offset, operand)
}

/// What the peer is told of a GPU's failure.
pub(super) fn on_gpu(error: Error) -> Refusal {
    tracing::warn!(%error, "what a peer sent could not be executed");
    Refusal::Device
}
