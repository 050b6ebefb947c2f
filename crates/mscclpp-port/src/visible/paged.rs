// SPDX-License-Identifier: MIT
//! Values on pages of their own.

use std::mem::needs_drop;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu::VisiblePages;

/// A value that the host and kernels share.
pub(crate) struct Visible<T: ?Sized> {
    value: NonNull<T>,
    pages: VisiblePages,
}

impl<T: Default> Visible<T> {
    /// The default value.
    pub(crate) fn new() -> Result<Self> {
        let one = Visible::<[T]>::many(1)?;
        Ok(Self {
            value: one.value.cast(),
            pages: one.pages,
        })
    }
}

impl<T: Default> Visible<[T]> {
    /// `count` default values, at least one.
    pub(crate) fn many(count: usize) -> Result<Self> {
        const { assert!(!needs_drop::<T>() && align_of::<T>() <= 4096) };
        let pages = VisiblePages::new((size_of::<T>() * count) as u64)?;
        let first = NonNull::new(pages.base().cast::<T>()).ok_or_else(|| Error::InvalidUsage {
            operation: "map memory for kernels",
            detail: "mapped at null".into(),
        })?;
        for i in 0..count {
            // SAFETY: inside the pages, which are this value's alone and aligned.
            unsafe { first.add(i).write(T::default()) };
        }
        Ok(Self {
            value: NonNull::slice_from_raw_parts(first, count),
            pages,
        })
    }
}

impl<T: ?Sized> Visible<T> {
    /// Lets kernels of a device see it, at its own address. Does nothing the second time.
    pub(crate) fn show_to(&self, device: Device) -> Result<()> {
        self.pages.show_to(device)
    }
}

// SAFETY: it owns its value as a box does.
unsafe impl<T: ?Sized + Send> Send for Visible<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for Visible<T> {}

impl<T: ?Sized> Deref for Visible<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written when made, and valid as long as the pages.
        unsafe { self.value.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn each_lies_on_pages_of_its_own() {
        let page = rustix::param::page_size();
        let words: Vec<Visible<AtomicU64>> = (0..3).map(|_| Visible::new().unwrap()).collect();
        let ring = Visible::<[AtomicU64]>::many(page / 8 + 1).unwrap();
        let mut starts: Vec<usize> = (words.iter())
            .map(|word| std::ptr::from_ref(&**word).addr())
            .chain([ring.as_ptr().addr(), ring.as_ptr().addr() + page])
            .collect();
        assert!(starts.iter().all(|start| start.is_multiple_of(page)));
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), 5);
    }

    #[test]
    fn a_cpu_sees_it_anyway() {
        let word: Visible<AtomicU64> = Visible::new().unwrap();
        word.show_to(Device::cpu()).unwrap();
    }
}
