// SPDX-License-Identifier: MIT
//! The calls that are compared.

/// Twin of `Operation` in posts.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Operation {
    Put,
    PutSignal,
    Signal,
    Accumulate,
    Get,
    /// A signal as a write of the next count.
    Word,
    /// A put, and such a signal behind it.
    PutWord,
    Poll,
    Wait,
    // What only the library has.
    Word4,
    Inline,
    PutImmediate,
    GetDump,
    CompareSwap,
    MaskedAdd4,
    MaskedAdd8,
    MaskedSwap4,
    MaskedSwap8,
    WaitFor,
    Dump,
}

impl Operation {
    /// As tables and differences have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutSignal => "put with signal",
            Self::Signal => "signal",
            Self::Accumulate => "accumulate",
            Self::Get => "get",
            Self::Word => "signal as inline write",
            Self::PutWord => "put with signal as inline write",
            Self::Poll => "poll",
            Self::Wait => "wait",
            Self::Word4 => "inline write of 4 bytes",
            Self::Inline => "inline write",
            Self::PutImmediate => "put with immediate",
            Self::GetDump => "get with dump",
            Self::CompareSwap => "compare and swap",
            Self::MaskedAdd4 => "masked add, 4 bytes",
            Self::MaskedAdd8 => "masked add, 8 bytes",
            Self::MaskedSwap4 => "masked swap, 4 bytes",
            Self::MaskedSwap8 => "masked swap, 8 bytes",
            Self::WaitFor => "wait for a completion",
            Self::Dump => "dump",
        }
    }

    /// Whether its signal is a write, which exclusive queues alone have.
    pub(crate) fn writes_signal(self) -> bool {
        matches!(self, Self::Word | Self::PutWord)
    }
}

/// Twin of `Call` in posts.cpp. Keys are as they are stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) remote_key: u32,
    pub(crate) local_key: u32,
    pub(crate) reserved: u32,
    pub(crate) remote: u64,
    pub(crate) local: u64,
    pub(crate) size: u64,
    pub(crate) value: u64,
}

impl Call {
    /// Of an operation, with fields that are all different. Nobody accesses the memory that they name.
    pub(crate) fn of(operation: Operation, size: u64) -> Self {
        Self {
            operation,
            remote_key: 0x00b1_b25a_u32.to_be(),
            local_key: 0x00c1_c25a_u32.to_be(),
            reserved: 0,
            remote: 0x1122_3344_5566_7780,
            local: 0x00a2_a3a4_a5a6_a7a8,
            size,
            value: 0xd1d2_d3d4_d5d6_d7d8,
        }
    }

    /// Looks at the completions of `count` requests from `index` on.
    pub(crate) fn look(index: u64, count: u64) -> Self {
        Self {
            value: index,
            ..Self::of(Operation::Poll, count)
        }
    }

    /// Waits for the completion of the request at `index`.
    pub(crate) fn wait(index: u64) -> Self {
        Self {
            value: index,
            ..Self::of(Operation::Wait, 0)
        }
    }

    /// With other fields, by a number.
    pub(crate) fn varied(mut self, by: u64) -> Self {
        let odd = by.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.remote ^= (odd & 0xff_ffff) << 3;
        self.local ^= odd >> 40;
        self.remote_key ^= odd as u32;
        self.local_key ^= (odd >> 16) as u32;
        self.value ^= odd;
        self
    }
}

/// Most bytes of a request: the library's, and of queues here, so that both split alike.
pub(crate) const MOST: u64 = 1 << 30;

/// Sizes of transfers: none, small ones, and those about which requests are split.
const SIZES: [u64; 10] = [
    0,
    1,
    8,
    4096,
    MOST - 1,
    MOST,
    MOST + 1,
    2 * MOST,
    3 * MOST + 5,
    6 * MOST - 1,
];

/// Each operation that both sides have, in each form.
pub(crate) fn calls() -> Vec<Call> {
    use Operation::*;
    let mut calls = Vec::new();
    for operation in [Put, PutSignal, Get, PutWord] {
        calls.extend(SIZES.map(|size| Call::of(operation, size)));
    }
    calls.push(Call::of(Signal, 0));
    calls.push(Call::of(Word, 0));
    for value in [0, 1, u64::MAX, 1 << 63, 0x0102_0304_0506_0708] {
        let call = Call::of(Accumulate, 0);
        calls.push(Call { value, ..call });
    }
    calls
}

/// What only the library has. What `mlx5-queue` reads of it: see `foreign.rs`.
pub(crate) fn foreign() -> Vec<Call> {
    use Operation::*;
    vec![
        Call::of(Word4, 0),
        Call::of(Inline, 12),
        Call::of(Inline, 28),
        Call::of(PutImmediate, 64),
        Call::of(GetDump, 64),
        Call::of(CompareSwap, 0),
        // The number of the completion queue.
        Call::of(WaitFor, 0x65_4321),
        Call::of(Dump, 8),
        Call::of(MaskedAdd4, 0),
        Call::of(MaskedAdd8, 0),
        Call::of(MaskedSwap4, 0),
        Call::of(MaskedSwap8, 0),
    ]
}

/// Requests that it takes.
pub(crate) fn requests(call: &Call) -> u64 {
    let parts = call.size.div_ceil(MOST).max(1);
    match call.operation {
        Operation::Put | Operation::Get => parts,
        Operation::PutSignal | Operation::PutWord => parts + 1,
        Operation::Poll | Operation::Wait => 0,
        Operation::GetDump | Operation::MaskedSwap8 => 2,
        _ => 1,
    }
}
