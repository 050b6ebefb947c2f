// SPDX-License-Identifier: MIT
//! What kernels and threads leave behind of what they did: rings of records with times.
//!
//! A record is 16 bytes: a time in nanoseconds, and one word with what happened, on which thread, to
//! what, and a sequence number. Kernels write records where they are compiled with
//! `MSCCLPP_DEVICE_TRACE` (`trace_device.hpp`; without it their code is what it was), host threads
//! where they are given a [`Ring`]. A ring that is full keeps the newest records and counts the others.
//!
//! Times of CPU threads, of kernels too, are those of `CLOCK_MONOTONIC`. A GPU's are those of its
//! `globaltimer`.
//!
//! ```
//! use mscclpp_device::trace::{Kind, Ring};
//!
//! let ring = Ring::new(1024);
//! ring.point(Kind::Posted, 7, 1, 2);
//! let seen = ring.snapshot();
//! assert_eq!((seen.records.len(), seen.dropped), (1, 0));
//! let record = seen.records[0];
//! assert_eq!((record.kind(), record.track()), (Some(Kind::Posted), 7));
//! assert_eq!((record.object(), record.sequence()), (1, 2));
//! ```
//!
//! A kernel of an object compiled with the macro is given its ring by
#![cfg_attr(
    feature = "host-executor",
    doc = "[`HostKernel::launch_traced`](crate::executor::HostKernel::launch_traced)"
)]
#![cfg_attr(not(feature = "host-executor"), doc = "`HostKernel::launch_traced`")]
//! on CPU threads, and by
#![cfg_attr(
    feature = "cuda",
    doc = "[`Module::trace_into`](crate::cuda::Module::trace_into)"
)]
#![cfg_attr(not(feature = "cuda"), doc = "`Module::trace_into`")]
//! on a GPU.

mod ring;

#[cfg(feature = "cuda")]
pub(crate) use ring::{HEAD, slots};
pub use ring::{Ring, RingHandle, Snapshot, now};

/// Where in a record's second word things lie, from the bottom.
const OBJECT: u32 = 16;
const TRACK: u32 = 32;
const LAP: u64 = 1 << 53;
const PHASE: u32 = 54;
const KIND: u32 = 56;
const TRACK_MASK: u64 = (1 << 21) - 1;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// What happened. Numbers up to 31 are device code's, twins of `mscclpp::trace::Kind`. Object
        /// and sequence of a record are of the kind: see each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $number,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The kind with a number.
            #[must_use]
            pub const fn of(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// What a reader of the trace sees.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

kinds! {
    /// A call whose arguments do not fit a trigger.
    Refused = 0, "refused call";
    /// A call, begin and end; the object is the semaphore's id. So are the next seven.
    Put = 1, "put";
    /// See [`Put`](Self::Put).
    Signal = 2, "signal";
    /// See [`Put`](Self::Put).
    PutWithSignal = 3, "putWithSignal";
    /// See [`Put`](Self::Put).
    Flush = 4, "flush";
    /// See [`Put`](Self::Put).
    Get = 5, "get";
    /// See [`Put`](Self::Put).
    Accumulate = 6, "accumulate";
    /// See [`Put`](Self::Put).
    PutWithSignalAndFlush = 7, "putWithSignalAndFlush";
    /// See [`Put`](Self::Put).
    Wait = 8, "wait";
    /// A trigger goes into a FIFO: the FIFO ([`object_of`] its slots), the position.
    Pushed = 9, "push";
    /// Slots of a send queue are taken: the queue's number, the first slot.
    Reserved = 10, "reserve";
    /// The NIC is told of requests: the queue's number, one past the last request.
    Rung = 11, "ring the doorbell";
    /// Requests are complete, the kernel knows: the queue's number, one past the last request.
    Completed = 12, "completed";
    /// A signal was consumed: the semaphore ([`object_of`] its token), the count.
    Took = 13, "take a signal";
    /// A flush is complete, the kernel knows: the FIFO, the position.
    Flushed = 14, "flushed";

    /// The proxy executes a trigger, begin and end: the FIFO, the position.
    Handled = 32, "execute a trigger";
    /// The proxy has posted on a connection: the connection, the number of the post.
    Posted = 33, "post";

    /// The NIC was told of requests: the queue's number, one past the last request.
    Heard = 48, "doorbell";
    /// The NIC has taken a request: the queue's number, its index.
    Fetched = 49, "fetch a request";
    /// The NIC has written a completion: the queue's number, the request's index.
    Wrote = 50, "write a completion";
    /// A post leaves its connection's queue: the connection, the number of the post.
    Left = 51, "send a post";

    /// A packet or frame goes out: the direction, its number.
    Sent = 64, "sent";
    /// A packet or frame has come: the direction, its number.
    Received = 65, "received";
    /// A signal has been added: the semaphore, the count.
    Raised = 66, "raise a semaphore";
}

/// Whether a record is a moment, or one end of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A moment.
    Point,
    /// The begin of a span.
    Begin,
    /// The end of the innermost span of its kind and track that has begun.
    End,
}

/// One record: a time in nanoseconds of the writer's clock, and what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// The time.
    pub time: u64,
    /// The rest; read it by the methods.
    pub what: u64,
}

impl Record {
    /// A record of its first lap. `track` has 21 bits; of object and sequence the low 16 are kept.
    #[must_use]
    pub const fn new(
        time: u64,
        kind: Kind,
        phase: Phase,
        track: u32,
        object: u64,
        sequence: u64,
    ) -> Self {
        let what = (kind as u64) << KIND
            | (phase as u64) << PHASE
            | LAP
            | (track as u64 & TRACK_MASK) << TRACK
            | (object & 0xffff) << OBJECT
            | sequence & 0xffff;
        Self { time, what }
    }

    /// What happened; `None` for a kind that this version does not know.
    #[must_use]
    pub const fn kind(self) -> Option<Kind> {
        Kind::of((self.what >> KIND) as u8)
    }

    /// A moment, a begin or an end; `None` for what is none of them.
    #[must_use]
    pub const fn phase(self) -> Option<Phase> {
        match self.what >> PHASE & 3 {
            0 => Some(Phase::Point),
            1 => Some(Phase::Begin),
            2 => Some(Phase::End),
            _ => None,
        }
    }

    /// Of a kernel: block × 1024 + thread, the block modulo 2048. Of others what they chose.
    #[must_use]
    pub const fn track(self) -> u32 {
        (self.what >> TRACK & TRACK_MASK) as u32
    }

    /// To what it happened: 16 bits of a number or of an address.
    #[must_use]
    pub const fn object(self) -> u16 {
        (self.what >> OBJECT) as u16
    }

    /// The low 16 bits of a count.
    #[must_use]
    pub const fn sequence(self) -> u16 {
        self.what as u16
    }
}

/// 16 bits that tell things in memory apart, mostly; the same as device code's.
#[must_use]
pub const fn object_of(address: u64) -> u16 {
    let line = address >> 3;
    (line ^ line >> 16 ^ line >> 32) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers;

    /// The numbers of device code's kinds are those of the header.
    #[test]
    fn the_header_has_the_same_kinds() {
        let header = headers::ALL
            .iter()
            .find(|(name, _)| name.ends_with("/trace_device.hpp"));
        let (_, text) = header.unwrap();
        let kinds = text.split_once("enum Kind").unwrap().1;
        let found: Vec<&str> = (kinds.split_once("};").unwrap().0.lines())
            .map(|line| line.trim().trim_end_matches(','))
            .filter(|line| line.contains(" = "))
            .collect();
        let own: Vec<String> = (Kind::ALL.iter())
            .filter(|kind| (**kind as u8) < 32)
            .map(|kind| format!("{kind:?} = {}", *kind as u8))
            .collect();
        assert_eq!(found, own);
    }
}
