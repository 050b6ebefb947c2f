// SPDX-License-Identifier: MIT
//! How a work request ended: by name, never as an error number of the system.

use std::fmt;

/// Declares the statuses: number, name in verbs.h behind `IBV_WC_`, meaning, usual cause.
macro_rules! statuses {
    ($($number:literal $variant:ident $name:literal: $meaning:literal, $cause:literal;)*) => {
        /// How a work request ended; names and numbers of `ibv_wc_status`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum CompletionStatus {
            $(
                #[doc = concat!("`IBV_WC_", $name, "`: ", $meaning, ".")]
                $variant,
            )*
            /// One that verbs.h did not have when this was written.
            Unknown(u32),
        }

        impl CompletionStatus {
            /// The status with this number.
            #[must_use]
            pub fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    number => Self::Unknown(number),
                }
            }

            /// Its number.
            #[must_use]
            pub fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Unknown(number) => number,
                }
            }

            /// Its name in verbs.h, without `IBV_WC_`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Unknown(_) => "unknown status",
                }
            }

            /// What it means.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => $meaning,)*
                    Self::Unknown(_) => "not known to this version",
                }
            }

            /// What is usually behind it; empty if there is no usual cause.
            #[must_use]
            pub fn usual_cause(self) -> &'static str {
                match self {
                    $(Self::$variant => $cause,)*
                    Self::Unknown(_) => "",
                }
            }
        }
    };
}

statuses! {
    0 Success "SUCCESS": "executed", "";
    1 LocalLength "LOC_LEN_ERR": "a message does not fit the memory given for it",
        "a receive is smaller than what the peer sent, or a request larger than the port's largest message";
    2 LocalQueueOperation "LOC_QP_OP_ERR": "the device does not understand the request",
        "an operation that this device lacks, or attributes that do not fit the peer's";
    3 LocalEeContext "LOC_EEC_OP_ERR": "an end-to-end context refused the request", "";
    4 LocalProtection "LOC_PROT_ERR": "the local memory is not registered for this",
        "the registration is gone, smaller, or lacks the access";
    5 Flushed "WR_FLUSH_ERR": "not executed, because the queue had failed",
        "an earlier request failed, or the queue was stopped; its first error is the cause";
    6 WindowBinding "MW_BIND_ERR": "a memory window was not bound", "";
    7 BadResponse "BAD_RESP_ERR": "the peer answered what nobody asked for", "";
    8 LocalAccess "LOC_ACCESS_ERR": "the peer's write with immediate lacks access here", "";
    9 RemoteInvalidRequest "REM_INV_REQ_ERR": "the peer's queue does not take this request",
        "a misaligned word, atomics that its HCA lacks, or access that its queue was not given";
    10 RemoteAccess "REM_ACCESS_ERR": "the peer does not allow it",
        "it dropped the registration or died, or registered less, or the key is wrong";
    11 RemoteOperation "REM_OP_ERR": "the peer could not finish the request", "its HCA or memory failed";
    12 RetryExceeded "RETRY_EXC_ERR": "nobody acknowledged, and all retries are used up",
        "the peer, its port or the path to it is gone, or its queue pair has failed";
    13 ReceiverNotReady "RNR_RETRY_EXC_ERR": "the peer had no receive posted, and all retries are used up",
        "the peer does not take signals fast enough, or has stopped";
    14 LocalRddViolation "LOC_RDD_VIOL_ERR": "a reliable datagram domain was violated", "";
    15 RemoteInvalidRead "REM_INV_RD_REQ_ERR": "the peer does not take this read", "";
    16 RemoteAborted "REM_ABORT_ERR": "the peer gave the request up", "";
    17 InvalidEeContextNumber "INV_EECN_ERR": "no such end-to-end context", "";
    18 InvalidEeContextState "INV_EEC_STATE_ERR": "an end-to-end context in the wrong state", "";
    19 Fatal "FATAL_ERR": "the device failed", "the HCA has to be reset; the kernel's log says more";
    20 ResponseTimeout "RESP_TIMEOUT_ERR": "no answer in time", "";
    21 General "GENERAL_ERR": "an error without a name", "the vendor's code says more";
    22 TagMatching "TM_ERR": "tag matching failed", "";
    23 TagRendezvous "TM_RNDV_INCOMPLETE": "a rendezvous has to be finished by software", "";
}

impl Default for CompletionStatus {
    /// Of no completion.
    fn default() -> Self {
        Self::Unknown(u32::MAX)
    }
}

impl CompletionStatus {
    /// Whether the request was executed.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Success
    }
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name(), self.number(), self.meaning())?;
        match self.usual_cause() {
            "" => Ok(()),
            cause => write!(f, "; usually {cause}"),
        }
    }
}
