// SPDX-License-Identifier: MIT
//! What a kernel tells of what went wrong.

use mscclpp_port::{Buffer, Device, Status};

/// The first thing that went wrong in a kernel: `report.hpp`.
#[derive(Clone)]
pub(super) struct Report(Buffer);

impl Report {
    /// Bytes of `conformance::Report`.
    const SIZE: u64 = 48;

    /// In memory of the device that runs the kernel.
    pub(super) fn new(device: Device) -> anyhow::Result<Self> {
        Ok(Self(Buffer::new(device, Self::SIZE)?))
    }

    /// Where the kernel finds it.
    pub(super) fn address(&self) -> u64 {
        super::address(&self.0)
    }

    /// What the kernel reports, once it has ended.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let mut bytes = [0; Self::SIZE as usize];
        self.0.read(0, &mut bytes)?;
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (thread, iteration) = (half(12), word(16));
        let place = format!("in iteration {iteration}, thread {thread}");
        match half(4) {
            0 => Ok(()),
            1 => Err(anyhow::anyhow!(
                "wrong value {place}: element {} is {} instead of {}",
                word(24),
                word(40) as i64,
                word(32) as i64
            )),
            2 => Err(anyhow::anyhow!(
                "a call returned {} {place}",
                status_text(half(8))
            )),
            3 => Err(anyhow::anyhow!("no signal in {} polls {place}", word(32))),
            other => Err(anyhow::anyhow!(
                "the kernel reports a failure of unknown kind {other}"
            )),
        }
    }
}

/// The name of a status that a kernel wrote down.
pub(super) fn status_text(code: u32) -> String {
    Status::try_from(code).map_or_else(|_| format!("status {code}"), |status| format!("{status:?}"))
}
