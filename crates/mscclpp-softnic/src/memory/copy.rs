// SPDX-License-Identifier: MIT
//! Copies of memory that others access at the same time.
//!
//! Each aligned 8-byte word is moved by one atomic access where source and
//! destination allow it, so that a word is never seen half written; bytes
//! before and after the words move one by one. Plain copies would be data
//! races; these are not.
//!
//! Each load acquires and each store releases: a NIC's accesses are visible in
//! the order in which it makes them, which is what a signal written like any
//! other bytes stands on. On x86 that costs nothing.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = 8;

/// Bytes from `address` to the next word boundary, at most `length`.
fn head(address: usize, length: usize) -> usize {
    (address.wrapping_neg() % WORD).min(length)
}

/// # Safety
/// `address` is valid for atomic access and lives throughout.
unsafe fn byte<'a>(address: *mut u8) -> &'a AtomicU8 {
    // SAFETY: one byte has no alignment; validity is the caller's promise.
    unsafe { AtomicU8::from_ptr(address) }
}

/// # Safety
/// `address` is a multiple of 8, valid for atomic access, and lives
/// throughout.
unsafe fn word<'a>(address: *mut u8) -> &'a AtomicU64 {
    // SAFETY: as the caller promises.
    unsafe { AtomicU64::from_ptr(address.cast()) }
}

/// Fills `out` from `from`.
///
/// # Safety
/// The range is valid for atomic reads throughout the call.
pub(super) unsafe fn read(from: *mut u8, out: &mut [u8]) {
    let length = out.len();
    let (start, rest) = out.split_at_mut(head(from as usize, length));
    let skip = start.len();
    for (i, slot) in start.iter_mut().enumerate() {
        // SAFETY: `i` is inside the range.
        *slot = unsafe { byte(from.add(i)) }.load(Ordering::Acquire);
    }
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    for (i, slot) in words.iter_mut().enumerate() {
        // SAFETY: inside the range; `from + skip` is a word boundary.
        let value = unsafe { word(from.add(skip + i * WORD)) }.load(Ordering::Acquire);
        *slot = value.to_ne_bytes();
    }
    let skip = length - tail.len();
    for (i, slot) in tail.iter_mut().enumerate() {
        // SAFETY: inside the range.
        *slot = unsafe { byte(from.add(skip + i)) }.load(Ordering::Acquire);
    }
}

/// Stores `bytes` at `to`.
///
/// # Safety
/// The range is valid for atomic writes throughout the call.
pub(super) unsafe fn write(to: *mut u8, bytes: &[u8]) {
    let (start, rest) = bytes.split_at(head(to as usize, bytes.len()));
    for (i, &value) in start.iter().enumerate() {
        // SAFETY: inside the range.
        unsafe { byte(to.add(i)) }.store(value, Ordering::Release);
    }
    let skip = start.len();
    let (words, tail) = rest.as_chunks::<WORD>();
    for (i, &value) in words.iter().enumerate() {
        // SAFETY: inside the range; `to + skip` is a word boundary.
        unsafe { word(to.add(skip + i * WORD)) }
            .store(u64::from_ne_bytes(value), Ordering::Release);
    }
    let skip = bytes.len() - tail.len();
    for (i, &value) in tail.iter().enumerate() {
        // SAFETY: inside the range.
        unsafe { byte(to.add(skip + i)) }.store(value, Ordering::Release);
    }
}

/// Reads a word and leaves zeroes, if it is not zero.
///
/// # Safety
/// `address` is a multiple of 8 and valid for atomic access.
pub(super) unsafe fn take(address: *mut u8) -> u64 {
    // SAFETY: the caller's promise.
    let word = unsafe { word(address) };
    // Mostly it is zero: then the line stays shared with the poster's.
    match word.load(Ordering::Acquire) {
        0 => 0,
        _ => word.swap(0, Ordering::AcqRel),
    }
}

/// Copies `length` bytes.
///
/// # Safety
/// Both ranges are valid for atomic access throughout the call.
pub(super) unsafe fn copy(from: *mut u8, to: *mut u8, length: usize) {
    if from as usize % WORD != to as usize % WORD {
        // No word of one is a word of the other: through a buffer, whose
        // pieces end at word boundaries of the destination.
        let mut buffer = [0u8; 4096];
        let mut done = 0;
        while done < length {
            let first = head(to as usize + done, length - done);
            let step = if first > 0 {
                first
            } else {
                buffer.len().min(length - done)
            };
            // SAFETY: `done + step` is at most `length`.
            unsafe {
                read(from.add(done), &mut buffer[..step]);
                write(to.add(done), &buffer[..step]);
            }
            done += step;
        }
        return;
    }
    let start = head(to as usize, length);
    let words = (length - start) / WORD;
    for i in (0..start).chain(start + words * WORD..length) {
        // SAFETY: inside both ranges.
        unsafe {
            byte(to.add(i)).store(byte(from.add(i)).load(Ordering::Acquire), Ordering::Release)
        }
    }
    // SAFETY: inside both ranges, and both starts are word boundaries.
    unsafe { copy_words(from.add(start), to.add(start), words) }
}

/// Words from which on the processor's own copy is faster than a loop.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 128;

/// # Safety
/// As for [`copy`], with both addresses multiples of 8.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_words(from: *mut u8, to: *mut u8, words: usize) {
    if words < LONG {
        // SAFETY: the caller's promise.
        return unsafe { copy_each_word(from, to, words) };
    }
    // SAFETY: the caller's promise. The instruction moves whole words, so
    // aligned ones do not tear, and the compiler takes the accesses for those
    // of a stranger, as which they race with no one's.
    unsafe {
        core::arch::asm!(
            "rep movsq",
            inout("rcx") words => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// As for [`copy`], with both addresses multiples of 8.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_words(from: *mut u8, to: *mut u8, words: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_each_word(from, to, words) }
}

/// # Safety
/// As for [`copy`], with both addresses multiples of 8.
unsafe fn copy_each_word(from: *mut u8, to: *mut u8, words: usize) {
    // Eight at a time, loads before stores: the processor overlaps them,
    // where a word at a time would wait for each.
    const BATCH: usize = 8;
    let mut i = 0;
    while i + BATCH <= words {
        let mut batch = [0u64; BATCH];
        for (j, slot) in batch.iter_mut().enumerate() {
            // SAFETY: `i + j` is less than `words`.
            *slot = unsafe { word(from.add((i + j) * WORD)) }.load(Ordering::Acquire);
        }
        for (j, &value) in batch.iter().enumerate() {
            // SAFETY: as above.
            unsafe { word(to.add((i + j) * WORD)) }.store(value, Ordering::Release);
        }
        i += BATCH;
    }
    while i < words {
        // SAFETY: `i` is less than `words`.
        unsafe {
            let value = word(from.add(i * WORD)).load(Ordering::Acquire);
            word(to.add(i * WORD)).store(value, Ordering::Release);
        }
        i += 1;
    }
}
