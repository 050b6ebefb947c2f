// SPDX-License-Identifier: MIT
//! What stands for GPUs in a build without them: types without values.

use std::sync::Arc;
use std::time::Duration;

use super::Keep;
use crate::device::Device;
use crate::error::{Error, Result};

fn absent<T>(device: Device) -> Result<T> {
    Err(Error::DeviceUnavailable {
        device,
        reason: "this build lacks the feature `cuda`".into(),
    })
}

pub(crate) fn check(device: Device) -> Result<()> {
    absent(device)
}

#[cfg(feature = "ib")]
pub(crate) fn pci_address(device: Device) -> Result<crate::PciAddress> {
    absent(device)
}

pub(crate) enum GpuMemory {}

impl GpuMemory {
    pub(crate) fn new(device: Device, _bytes: u64) -> Result<Self> {
        absent(device)
    }

    pub(crate) unsafe fn foreign(device: Device, _address: u64, _bytes: u64) -> Result<Self> {
        absent(device)
    }

    pub(crate) fn device(&self) -> Device {
        match *self {}
    }

    pub(crate) fn address(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn len(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn read(self: &Arc<Self>, _offset: u64, _to: &mut [u8]) -> Result<()> {
        match **self {}
    }

    pub(crate) fn write(self: &Arc<Self>, _offset: u64, _from: &[u8]) -> Result<()> {
        match **self {}
    }

    pub(crate) fn load_u64(self: &Arc<Self>, _offset: u64) -> Result<u64> {
        match **self {}
    }

    pub(crate) fn store_u64(self: &Arc<Self>, _offset: u64, _value: u64) -> Result<()> {
        match **self {}
    }

    pub(crate) fn add_u64(self: &Arc<Self>, _offset: u64, _value: u64) -> Result<()> {
        match **self {}
    }

    pub(crate) fn copy_to(
        self: &Arc<Self>,
        _offset: u64,
        _to: &Arc<Self>,
        _to_offset: u64,
        _len: u64,
    ) -> Result<()> {
        match **self {}
    }
}

pub(crate) enum PinnedHost {}

impl PinnedHost {
    pub(crate) fn new(device: Device, _bytes: u64) -> Result<Self> {
        absent(device)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        match *self {}
    }

    pub(crate) fn len(&self) -> u64 {
        match *self {}
    }
}

/// Pages that kernels on CPU threads see.
#[cfg(not(loom))]
pub(crate) struct VisiblePages(crate::pages::Pages);

#[cfg(not(loom))]
impl VisiblePages {
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        crate::pages::Pages::new(bytes).map(Self)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.0.base().as_ptr()
    }

    pub(crate) fn show_to(&self, device: Device) -> Result<()> {
        match device.kind() {
            crate::device::DeviceKind::Cpu => Ok(()),
            crate::device::DeviceKind::Gpu => absent(device),
        }
    }
}

/// Handed out by [`Staging`], so never.
#[derive(Clone, Copy)]
pub(crate) struct Piece(());

impl Piece {
    pub(crate) fn len(self) -> usize {
        let Self(()) = self;
        0
    }
}

pub(crate) enum Staging {}

impl Staging {
    pub(crate) fn new(device: Device, _patience: Duration) -> Result<Self> {
        absent(device)
    }

    pub(crate) fn wait_for_room(&mut self, _address: u64, _len: u64) -> Result<Piece> {
        match *self {}
    }

    pub(crate) fn shrink(&mut self, _piece: Piece, _len: usize) -> Piece {
        match *self {}
    }

    pub(crate) fn at(&self, _piece: &Piece) -> *mut u8 {
        match *self {}
    }

    pub(crate) fn release(&mut self, _piece: Piece) {
        match *self {}
    }

    pub(crate) unsafe fn fetch(
        &mut self,
        _from: u64,
        _len: u64,
        _keep: Keep,
    ) -> Result<Option<Piece>> {
        match *self {}
    }

    pub(crate) fn is_ready(&self, _piece: &Piece) -> bool {
        match *self {}
    }

    pub(crate) unsafe fn land(
        &mut self,
        _piece: &Piece,
        _len: usize,
        _to: u64,
        _keep: Keep,
    ) -> Result<()> {
        match *self {}
    }

    pub(crate) unsafe fn write_u64(&mut self, _to: u64, _value: u64, _keep: Keep) -> Result<()> {
        match *self {}
    }

    pub(crate) fn mark(&mut self) -> Result<u64> {
        match *self {}
    }

    pub(crate) fn is_done(&self, _mark: u64) -> bool {
        match *self {}
    }

    pub(crate) fn is_busy(&self) -> bool {
        match *self {}
    }

    pub(crate) fn check(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn settle(&mut self) -> Result<()> {
        match *self {}
    }
}
