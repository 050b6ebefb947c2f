// SPDX-License-Identifier: MIT
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use super::{Access, AccessId, AccessResult, Bytes, MemoryRange, NicMemory, Submitted, copy};

/// The memory of this process. Each access completes when it is submitted.
#[derive(Debug)]
pub struct HostMemory(());

impl HostMemory {
    /// The one instance.
    pub fn shared() -> Arc<dyn NicMemory> {
        static SHARED: OnceLock<Arc<HostMemory>> = OnceLock::new();
        SHARED.get_or_init(|| Arc::new(Self(()))).clone()
    }

    /// `length` bytes at `start`, kept alive by `owner`.
    ///
    /// # Safety
    /// While `owner` lives, the range must be readable and writable memory of
    /// this process, accessed by others only through atomics or foreign code.
    pub unsafe fn range(
        start: *mut u8,
        length: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> MemoryRange {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { MemoryRange::new(Self::shared(), start as u64, length as u64, owner) }
    }
}

/// An aligned word of the host's memory, kept alive.
pub(crate) struct HostWord(MemoryRange);

impl HostWord {
    /// The first 8 bytes of a range; none if it is of other memory, too short
    /// or not aligned.
    pub(crate) fn of(range: &MemoryRange) -> Option<Self> {
        let host = HostMemory::shared();
        let in_host = std::ptr::addr_eq(Arc::as_ptr(range.memory()), Arc::as_ptr(&host));
        let word = range.slice(0, 8)?;
        (in_host && word.address().is_multiple_of(8)).then_some(Self(word))
    }

    /// Takes what is there and leaves zeroes.
    pub(crate) fn take(&self) -> u64 {
        // SAFETY: aligned memory of the host, as `of` has found; who made the
        // range promised that it can be reached while its owner lives.
        unsafe { copy::take(self.0.address() as *mut u8) }
    }

    pub(crate) fn range(&self) -> MemoryRange {
        self.0.clone()
    }
}

impl NicMemory for HostMemory {
    unsafe fn submit(&self, _id: AccessId, access: Access) -> Submitted {
        // SAFETY: the access lies inside a `MemoryRange` whose owner lives,
        // and whose constructor's caller promised that it is memory.
        unsafe { perform(access) }
    }

    fn complete(&self) -> Option<(AccessId, AccessResult)> {
        None
    }
}

/// # Safety
/// The addresses of `access` are valid for atomic access.
unsafe fn perform(access: Access) -> Submitted {
    Submitted::Done(Ok(match access {
        Access::Read { address, mut bytes } => {
            // SAFETY: the caller's promise.
            // What this copy was told of (a request by its record) is read by
            // later copies, not earlier: it acquires.
            unsafe { copy::read(address as *mut u8, &mut bytes) };
            bytes
        }
        Access::Write { address, bytes } => {
            // SAFETY: the caller's promise.
            unsafe { copy::write(address as *mut u8, &bytes) };
            bytes
        }
        Access::Publish { address, bytes } => {
            let split = bytes.len().saturating_sub(8);
            let (body, last) = bytes.split_at(split);
            // SAFETY: the caller's promise.
            unsafe { copy::write(address as *mut u8, body) };
            // SAFETY: the caller's promise; the last word is aligned, so it
            // is one store, which releases.
            unsafe { copy::write((address as *mut u8).add(split), last) };
            bytes
        }
        Access::Copy { from, to, length } => {
            // SAFETY: the caller's promise.
            unsafe { copy::copy(from as *mut u8, to as *mut u8, length as usize) };
            Bytes::new()
        }
    }))
}

/// A page-aligned buffer of zeroes that a NIC can reach, and its owner by
/// copies. For tests, examples and queues in host memory.
///
/// Clones share the memory. Reads and writes race with the NIC's without harm:
/// aligned 8-byte words are moved whole.
#[derive(Clone)]
pub struct HostBuffer(Arc<Allocation>);

struct Allocation {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the memory is plain bytes, reached only by the atomic copies of this
// module and by the NIC, which uses the same.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no one holds the range any
        // more: a `MemoryRange` holds this owner.
        unsafe { dealloc(self.start, self.layout) }
    }
}

impl HostBuffer {
    const PAGE: usize = 4096;

    /// `length` bytes of zeroes (at least one page is allocated).
    ///
    /// # Panics
    /// If the process is out of memory or `length` exceeds `isize::MAX`.
    pub fn new(length: usize) -> Self {
        let layout = Layout::from_size_align(length.max(1), Self::PAGE)
            .map(|layout| layout.pad_to_align())
            .unwrap_or_else(|_| panic!("a buffer of {length} bytes"));
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self(Arc::new(Allocation { start, layout }))
    }

    /// First byte.
    pub fn address(&self) -> u64 {
        self.0.start as u64
    }

    /// The start of the buffer, for foreign code.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start
    }

    /// Bytes: the length asked for, rounded up to whole pages.
    pub fn len(&self) -> usize {
        self.0.layout.size()
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All of it, for a registration or a queue.
    pub fn range(&self) -> MemoryRange {
        // SAFETY: the allocation is readable and writable while the Arc lives,
        // and is only accessed by atomic copies.
        unsafe { HostMemory::range(self.0.start, self.len(), self.0.clone()) }
    }

    /// `length` bytes of it from `offset`, for a registration or a queue.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn slice(&self, offset: usize, length: usize) -> MemoryRange {
        self.range()
            .slice(offset as u64, length as u64)
            .unwrap_or_else(|| panic!("{length} bytes at {offset} of {}", self.len()))
    }

    /// Copies out of the buffer. An acquire: what was published before the
    /// bytes read is visible afterwards.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        // SAFETY: inside the allocation.
        unsafe { copy::read(from, out) };
    }

    /// Copies into the buffer. A release: what was written before is visible
    /// to whoever sees these bytes.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: inside the allocation.
        unsafe { copy::write(to, bytes) };
    }

    /// The 8 bytes at `offset`, in the machine's byte order.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn read_u64(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Stores 8 bytes at `offset`, in the machine's byte order.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn write_u64(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.len());
        assert!(inside, "{length} bytes at {offset} of {}", self.len());
        // SAFETY: inside the allocation.
        unsafe { self.0.start.add(offset) }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({:#x} + {:#x})", self.address(), self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(buffer: &HostBuffer, from: usize, to: usize, length: usize) {
        let access = Access::Copy {
            from: buffer.address() + from as u64,
            to: buffer.address() + to as u64,
            length: length as u64,
        };
        // SAFETY: every test copies inside the buffer.
        let done = unsafe { HostMemory::shared().submit(AccessId(0), access) };
        assert!(matches!(done, Submitted::Done(Ok(_))));
    }

    #[test]
    fn copies_every_alignment_and_nothing_around() {
        let buffer = HostBuffer::new(4 * 4096);
        for from in 0..9 {
            for to in 0..9 {
                for length in [0, 1, 7, 8, 9, 15, 16, 63, 64, 65, 200, 5000] {
                    let pattern: Vec<u8> = (0..16384).map(|i| (i * 7 + i / 256) as u8).collect();
                    buffer.write(0, &pattern);
                    copied(&buffer, from, 8192 + to, length);
                    let mut seen = vec![0; 16384];
                    buffer.read(0, &mut seen);
                    let mut expected = pattern.clone();
                    expected.copy_within(from..from + length, 8192 + to);
                    assert_eq!(seen, expected, "{from} -> {to}, {length}");
                }
            }
        }
    }

    #[test]
    fn reads_and_writes_any_alignment() {
        let buffer = HostBuffer::new(100);
        assert_eq!(buffer.len(), 4096);
        for offset in 0..17 {
            for length in 0..40 {
                let bytes: Vec<u8> = (0..length).map(|i| (i + offset) as u8 | 0x80).collect();
                buffer.write(offset, &bytes);
                let mut seen = vec![0; length];
                buffer.read(offset, &mut seen);
                assert_eq!(seen, bytes);
            }
        }
    }

    #[test]
    fn aligned_words_never_tear() {
        let buffer = HostBuffer::new(8192);
        let writer = buffer.clone();
        let values = [0x1111_1111_1111_1111u64, 0xeeee_eeee_eeee_eeee];
        for slot in 0..1024 {
            buffer.write_u64(slot * 8, values[0]);
        }
        let thread = std::thread::spawn(move || {
            for round in 0..2000 {
                let bytes = values[round % 2].to_ne_bytes().repeat(64);
                writer.write(0, &bytes);
                copied(&writer, 0, 4096, 512);
            }
        });
        while !thread.is_finished() {
            for slot in 0..64 {
                for base in [0, 4096] {
                    let seen = buffer.read_u64(base + slot * 8);
                    assert!(values.contains(&seen), "torn word {seen:#x}");
                }
            }
        }
        thread.join().unwrap();
    }
}
