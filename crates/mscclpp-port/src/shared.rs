// SPDX-License-Identifier: MIT
//! Copies to and from memory that kernels, peers and other threads may write at the same time.
//!
//! Such memory is never seen through a Rust reference to its bytes: it is only touched by relaxed
//! atomic accesses (here) and by the operating system (sockets). An access is as wide as the
//! alignment of the shared side allows, up to 8 bytes, so an aligned word is never torn. Nothing is
//! ordered by a copy alone; order comes from the token or flag that the callers use.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Splits `len` bytes at `address` into the unaligned head, whole aligned words, and the tail.
fn split(address: usize, len: usize) -> (usize, usize, usize) {
    let head = address.wrapping_neg() % 8;
    if head >= len {
        return (len, 0, 0);
    }
    let words = (len - head) / 8;
    (head, words, len - head - words * 8)
}

/// The width of the next access at `address` with `left` bytes to go: the largest that is aligned.
fn width(address: usize, left: usize) -> usize {
    [4, 2]
        .into_iter()
        .find(|w| address.is_multiple_of(*w) && left >= *w)
        .unwrap_or(1)
}

/// Copies `from` to shared memory at `to`, in ascending order of addresses.
///
/// # Safety
/// `to` must be valid for writes of `from.len()` bytes for the whole call. Others may access the
/// bytes at the same time, by atomic accesses or from outside this program.
pub(crate) unsafe fn store(to: *mut u8, from: &[u8]) {
    let (head, words, tail) = split(to.addr(), from.len());
    let (first, rest) = from.split_at(head);
    let (middle, last) = rest.split_at(words * 8);
    // SAFETY: head + words * 8 + tail is the length, for which the caller vouches; `to + head` is
    // 8-byte aligned by the split.
    unsafe {
        store_edge(to, first);
        let base = to.add(head).cast::<u64>();
        for (i, word) in middle.chunks_exact(8).enumerate() {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            AtomicU64::from_ptr(base.add(i)).store(u64::from_ne_bytes(bytes), Relaxed);
        }
        debug_assert_eq!(tail, last.len());
        store_edge(to.add(head + words * 8), last);
    }
}

/// Copies shared memory at `from` to `to`, in ascending order of addresses.
///
/// # Safety
/// As for [`store`], with `from` valid for reads of `to.len()` bytes.
pub(crate) unsafe fn load(to: &mut [u8], from: *const u8) {
    let (head, words, _) = split(from.addr(), to.len());
    let (first, rest) = to.split_at_mut(head);
    let (middle, last) = rest.split_at_mut(words * 8);
    // SAFETY: as in `store`.
    unsafe {
        load_edge(first, from);
        let base = from.add(head).cast::<u64>().cast_mut();
        for (i, word) in middle.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&AtomicU64::from_ptr(base.add(i)).load(Relaxed).to_ne_bytes());
        }
        load_edge(last, from.add(head + words * 8));
    }
}

/// Copies `len` bytes between two places in shared memory, in ascending order of addresses.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `len` bytes for the whole call. What the
/// destination holds afterwards is unspecified where the two overlap.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    let mut block = [0; 4096];
    let mut done = 0;
    while done < len {
        let step = block.len().min(len - done);
        // SAFETY: done + step <= len, for which the caller vouches.
        unsafe {
            load(&mut block[..step], from.add(done));
            store(to.add(done), &block[..step]);
        }
        done += step;
    }
}

/// The 8-byte word at `at`, shared by all who add to it or poll it.
///
/// # Safety
/// `at` must be 8-byte aligned and valid for reads and writes for `'a`.
pub(crate) unsafe fn word<'a>(at: *mut u8) -> &'a AtomicU64 {
    debug_assert!(at.addr().is_multiple_of(8));
    // SAFETY: the caller's promise; every access in this program is atomic.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

/// # Safety
/// As for [`store`].
unsafe fn store_edge(to: *mut u8, from: &[u8]) {
    let mut done = 0;
    while done < from.len() {
        // SAFETY: done + width <= len; `width` returns only what the address is aligned to.
        unsafe {
            let at = to.add(done);
            let piece = &from[done..];
            match width(at.addr(), piece.len()) {
                4 => {
                    let value = u32::from_ne_bytes([piece[0], piece[1], piece[2], piece[3]]);
                    AtomicU32::from_ptr(at.cast()).store(value, Relaxed);
                    done += 4;
                }
                2 => {
                    let value = u16::from_ne_bytes([piece[0], piece[1]]);
                    AtomicU16::from_ptr(at.cast()).store(value, Relaxed);
                    done += 2;
                }
                _ => {
                    AtomicU8::from_ptr(at).store(piece[0], Relaxed);
                    done += 1;
                }
            }
        }
    }
}

/// # Safety
/// As for [`load`].
unsafe fn load_edge(to: &mut [u8], from: *const u8) {
    let mut done = 0;
    while done < to.len() {
        let piece = &mut to[done..];
        // SAFETY: done + width <= len; `width` returns only what the address is aligned to.
        unsafe {
            let at = from.add(done).cast_mut();
            match width(at.addr(), piece.len()) {
                4 => {
                    let value = AtomicU32::from_ptr(at.cast()).load(Relaxed);
                    piece[..4].copy_from_slice(&value.to_ne_bytes());
                    done += 4;
                }
                2 => {
                    let value = AtomicU16::from_ptr(at.cast()).load(Relaxed);
                    piece[..2].copy_from_slice(&value.to_ne_bytes());
                    done += 2;
                }
                _ => {
                    piece[0] = AtomicU8::from_ptr(at).load(Relaxed);
                    done += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn copies_move_exactly_the_bytes_asked_for(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            at in 0usize..16,
            to in 0usize..16,
        ) {
            let mut space = [0xa5u8; 256];
            let mut other = [0x5au8; 256];
            let mut back = vec![0; bytes.len()];
            // SAFETY: 16 + 200 bytes lie inside both arrays, which nothing else touches.
            unsafe {
                store(space.as_mut_ptr().add(at), &bytes);
                copy(other.as_mut_ptr().add(to), space.as_ptr().add(at), bytes.len());
                load(&mut back, other.as_ptr().add(to));
            }
            prop_assert_eq!(&back, &bytes);
            let outside = |s: &[u8], from: usize, fill: u8| {
                s[..from].iter().chain(&s[from + bytes.len()..]).all(|b| *b == fill)
            };
            prop_assert!(outside(&space, at, 0xa5) && outside(&other, to, 0x5a));
        }
    }
}
