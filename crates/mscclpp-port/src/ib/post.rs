// SPDX-License-Identifier: MIT
//! What is posted, and the requests that it becomes.

use std::sync::Arc;

use super::queue::Scratch;
use crate::gpu_queue::HcaRegistration;
use crate::verbs::{self, Local, Remote, Source};

/// What a request is to those who post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Put,
    Signal,
    Accumulate,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Signal => "signal",
            Self::Accumulate => "accumulate",
        }
    }
}

pub(super) enum Post {
    /// `len` bytes, not none, by one request or several.
    Write {
        to: u64,
        to_key: u32,
        from: u64,
        from_key: u32,
        len: u64,
        /// What `from` is valid with.
        keep: Arc<dyn HcaRegistration>,
    },
    /// A fetch-and-add.
    Add {
        operation: Operation,
        to: u64,
        key: u32,
        operand: u64,
    },
    /// A write of nothing, with immediate data that the peer's host knows a token by.
    Notice { token: u32 },
}

/// A request of a post.
pub(super) struct Piece {
    pub(super) made: verbs::Operation<'static>,
    pub(super) operation: Operation,
    /// What it needs, until it is done.
    pub(super) keep: Option<Arc<dyn HcaRegistration>>,
    /// It is the post's last.
    pub(super) ends_post: bool,
}

impl Post {
    /// The post's next request.
    pub(super) fn next(&mut self, scratch: Option<&Scratch>, largest: u64) -> Piece {
        match self {
            Self::Write {
                to,
                to_key,
                from,
                from_key,
                len,
                keep,
            } => {
                let step = (*len).min(largest);
                let local = Local {
                    address: *from,
                    // 64 MiB at most.
                    len: step as u32,
                    key: *from_key,
                };
                let remote = Remote {
                    address: *to,
                    key: *to_key,
                };
                (*to, *from, *len) = (*to + step, *from + step, *len - step);
                Piece {
                    made: verbs::Operation::Write {
                        source: Source::Region(local),
                        remote,
                        immediate: None,
                    },
                    operation: Operation::Put,
                    keep: Some(Arc::clone(keep)),
                    ends_post: *len == 0,
                }
            }
            Self::Add {
                operation,
                to,
                key,
                operand,
            } => Piece {
                made: verbs::Operation::FetchAdd {
                    local: scratch.map_or(Scratch::NONE, Scratch::local),
                    remote: Remote {
                        address: *to,
                        key: *key,
                    },
                    add: *operand,
                },
                operation: *operation,
                keep: None,
                ends_post: true,
            },
            Self::Notice { token } => Piece {
                made: verbs::Operation::Write {
                    source: Source::Nothing,
                    remote: Remote { address: 0, key: 0 },
                    immediate: Some(*token),
                },
                operation: Operation::Signal,
                keep: None,
                ends_post: true,
            },
        }
    }
}
