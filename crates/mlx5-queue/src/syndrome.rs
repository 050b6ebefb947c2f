// SPDX-License-Identifier: MIT
use core::fmt;

/// Why a request failed: byte 55 of an error completion.
///
/// Any byte is one; those with a name are rdma-core's `MLX5_CQE_SYNDROME_*`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Syndrome(pub u8);

impl Syndrome {
    /// The message is longer than the queue or the receive request allows.
    pub const LOCAL_LENGTH: Self = Self(0x01);
    /// The request itself is malformed or not allowed on its queue.
    pub const LOCAL_QP_OPERATION: Self = Self(0x02);
    /// Local memory: unknown key, outside its registration, or not writable.
    pub const LOCAL_PROTECTION: Self = Self(0x04);
    /// Not executed: the queue was in error before its turn came.
    pub const FLUSHED: Self = Self(0x05);
    /// Binding a memory window failed.
    pub const MEMORY_WINDOW_BIND: Self = Self(0x06);
    /// The peer's answer is not one to this request.
    pub const BAD_RESPONSE: Self = Self(0x10);
    /// A protection error on memory that a received request names.
    pub const LOCAL_ACCESS: Self = Self(0x11);
    /// The peer cannot do this: operation not allowed on its queue, misaligned
    /// atomic, too many at once, or a message longer than its receive request.
    pub const REMOTE_INVALID_REQUEST: Self = Self(0x12);
    /// Remote memory: unknown key, outside its registration, or not permitted.
    pub const REMOTE_ACCESS: Self = Self(0x13);
    /// The peer failed for a reason of its own.
    pub const REMOTE_OPERATION: Self = Self(0x14);
    /// The peer did not acknowledge, after all retries.
    pub const TRANSPORT_RETRY_EXCEEDED: Self = Self(0x15);
    /// The peer had no receive request, after all retries.
    pub const RNR_RETRY_EXCEEDED: Self = Self(0x16);
    /// The peer gave the request up.
    pub const REMOTE_ABORTED: Self = Self(0x22);

    /// The name that verbs users know (without `IBV_WC_`), if it has one.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::LOCAL_LENGTH => "LOC_LEN_ERR",
            Self::LOCAL_QP_OPERATION => "LOC_QP_OP_ERR",
            Self::LOCAL_PROTECTION => "LOC_PROT_ERR",
            Self::FLUSHED => "WR_FLUSH_ERR",
            Self::MEMORY_WINDOW_BIND => "MW_BIND_ERR",
            Self::BAD_RESPONSE => "BAD_RESP_ERR",
            Self::LOCAL_ACCESS => "LOC_ACCESS_ERR",
            Self::REMOTE_INVALID_REQUEST => "REM_INV_REQ_ERR",
            Self::REMOTE_ACCESS => "REM_ACCESS_ERR",
            Self::REMOTE_OPERATION => "REM_OP_ERR",
            Self::TRANSPORT_RETRY_EXCEEDED => "RETRY_EXC_ERR",
            Self::RNR_RETRY_EXCEEDED => "RNR_RETRY_EXC_ERR",
            Self::REMOTE_ABORTED => "REM_ABORT_ERR",
            _ => return None,
        })
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#04x})", self.0),
            None => write!(f, "syndrome {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
