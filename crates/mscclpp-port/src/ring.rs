// SPDX-License-Identifier: MIT
//! Where pieces lie in a ring of staging memory. Arithmetic only; the memory is the owner's.

/// Of the lines that copies move: a cache line of the host, and more than a GPU's smallest access.
const LINE: u64 = 64;

/// Hands pieces out, and takes them back in the same order.
#[derive(Debug)]
pub(crate) struct Ring {
    size: u64,
    /// Bytes handed out, and bytes that came back, ever. Whole lines.
    head: u64,
    tail: u64,
}

/// Bytes of a ring, counted from the first that was ever handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    start: u64,
    len: u64,
}

impl Span {
    pub(crate) fn len(self) -> u64 {
        self.len
    }

    /// One past its last line.
    pub(crate) fn end(self) -> u64 {
        (self.start + self.len).next_multiple_of(LINE)
    }

    /// Its first `len` bytes, at most all of them.
    pub(crate) fn first(self, len: u64) -> Self {
        let len = len.min(self.len);
        Self { len, ..self }
    }
}

impl Ring {
    /// A ring of `size` bytes, whole lines, all free.
    pub(crate) fn new(size: u64) -> Self {
        debug_assert!(size > 0 && size.is_multiple_of(LINE));
        Self {
            size,
            head: 0,
            tail: 0,
        }
    }

    /// A piece for bytes that come from `address` or go there: `len` of them, or up to the last end
    /// of a line that is no further than `most`; `None` if there is no room now.
    ///
    /// It begins as far into a line as `address` does. A copy between places that differ in this
    /// writes its bytes shifted, and a GPU then shows halves of words.
    pub(crate) fn take(&mut self, address: u64, len: u64, most: u64) -> Option<Span> {
        let phase = address % LINE;
        let most = most.min(self.size);
        let len = if phase + len > most {
            most / LINE * LINE - phase
        } else {
            len
        };
        // Whole: what is left at the ring's end may be too short.
        let line = if self.head % self.size + phase + len > self.size {
            self.head.next_multiple_of(self.size)
        } else {
            self.head
        };
        let span = Span {
            start: line + phase,
            len,
        };
        if span.end() - self.tail > self.size {
            return None;
        }
        self.head = span.end();
        Some(span)
    }

    /// One past all that was handed out, counted as [`Span::end`].
    #[cfg(feature = "cuda")]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Takes back all of the piece that was handed out last but its `first` bytes.
    pub(crate) fn shrink(&mut self, last: Span, first: u64) -> Span {
        let span = last.first(first);
        self.head = span.end();
        span
    }

    /// Takes back all pieces up to one that ends here.
    pub(crate) fn give_back(&mut self, end: u64) {
        self.tail = end;
    }

    /// The end of what came back.
    #[cfg(feature = "cuda")]
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Where in the memory a piece lies.
    pub(crate) fn offset(&self, span: Span) -> u64 {
        span.start % self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_lie_whole_apart_and_in_phase(asked in prop::collection::vec(
            (any::<u32>(), 1u64..5000, 0u64..5000, any::<bool>()), 1..200
        )) {
            const SIZE: u64 = 4096;
            let mut ring = Ring::new(SIZE);
            let mut out: Vec<Span> = Vec::new();
            for (address, len, first, free) in asked {
                let address = u64::from(address);
                if free && !out.is_empty() {
                    ring.give_back(out.remove(0).end());
                }
                let Some(mut span) = ring.take(address, len, 1024) else {
                    prop_assert!(!out.is_empty(), "an empty ring has room");
                    continue;
                };
                prop_assert!(span.len() > 0 && span.len() <= len);
                prop_assert!(span.len() == len || (address + span.len()).is_multiple_of(LINE));
                span = ring.shrink(span, first);
                let at = ring.offset(span);
                prop_assert_eq!(at % LINE, address % LINE);
                prop_assert!(at + span.len() <= SIZE);
                for other in &out {
                    let there = ring.offset(*other);
                    let apart = at + span.len() <= there || there + other.len() <= at;
                    prop_assert!(apart, "{:?} {:?}", span, other);
                }
                out.push(span);
            }
        }
    }
}
