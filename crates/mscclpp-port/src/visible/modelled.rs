// SPDX-License-Identifier: MIT
//! In a loom model there are no GPUs, and memory is the model's.

use std::ops::Deref;

use crate::device::{Device, DeviceKind};
use crate::error::Result;

pub(crate) struct Visible<T: ?Sized>(Box<T>);

impl<T: Default> Visible<T> {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Box::default()))
    }
}

impl<T: Default> Visible<[T]> {
    pub(crate) fn many(count: usize) -> Result<Self> {
        Ok(Self((0..count).map(|_| T::default()).collect()))
    }
}

impl<T: ?Sized> Visible<T> {
    pub(crate) fn show_to(&self, device: Device) -> Result<()> {
        debug_assert_eq!(device.kind(), DeviceKind::Cpu);
        Ok(())
    }
}

impl<T: ?Sized> Deref for Visible<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
