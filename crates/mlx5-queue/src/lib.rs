// SPDX-License-Identifier: MIT
//! The wire facts of mlx5 queues: work requests, completions, doorbells.
//!
//! An mlx5 NIC (ConnectX-4 and later) is driven through memory. Software
//! writes a *work request* into a ring of 64-byte basic blocks, stores the
//! ring's new end in a *doorbell record*, and rings a *doorbell* register. The
//! NIC fetches the request, executes it, and writes a 64-byte *completion*
//! into another ring. This crate holds those layouts and nothing else: it
//! turns values into bytes and bytes into values. It performs no I/O, touches
//! no memory but the slices it is given, allocates nothing, has no `unsafe`
//! and builds without the standard library. The same code serves whoever posts
//! (a CPU or GPU poster, a test) and whoever executes (a NIC in software, a
//! trace decoder).
//!
//! | what | type | bytes |
//! |---|---|---|
//! | work request | [`WorkRequest`] | 16 a segment, in blocks of [`BLOCK_BYTES`] |
//! | its first segment alone | [`Control`] | [`SEGMENT_BYTES`] |
//! | completion | [`Completion`] | [`COMPLETION_BYTES`] |
//! | doorbell register | [`Doorbell`] | 8 |
//! | doorbell record | [`DoorbellRecord`] | 8 |
//! | position in a ring | [`QueueIndex`] | carried in 64 bits, 16 on the wire |
//!
//! # Example
//!
//! A poster writes an RDMA write and learns how far its queue has come; a NIC
//! reads it back and answers.
//!
//! ```
//! use mlx5_queue::*;
//!
//! # fn main() -> Result<(), Error> {
//! let queue = QueueNumber::new(0x123456)?;
//! let ring = RingSize::new(64)?;
//! let head = QueueIndex::new(0xabcd);
//!
//! // The poster: one segment of local memory to one remote address.
//! let source = [DataSegment::new(0xa1a2_a3a4_a5a6_a7a8, MemoryKey::new(0x00c1_c25a), 64)?.encode()];
//! let request = WorkRequest {
//!     queue,
//!     index: head.low16(),
//!     flags: Flags::SIGNALLED,
//!     operation: Operation::Write {
//!         remote: RemoteAddress { address: 0x1122_3344_5566_7788, key: MemoryKey::new(0x00b1_b25a) },
//!         payload: Payload::Gather(DataSegments::new(&source)),
//!         immediate: None,
//!     },
//! };
//! let mut slot = [0u8; BLOCK_BYTES];
//! assert_eq!(request.encode(&mut slot)?, 48);
//! let head = head.advance(request.blocks()?);
//! let record = DoorbellRecord::send_word(head);
//! let doorbell = Doorbell::new(queue, head).encode();
//! assert_eq!(record, [0, 0, 0xab, 0xce]);
//! assert_eq!(doorbell, [0, 0xab, 0xce, 0, 0x12, 0x34, 0x56, 0]);
//!
//! // The NIC: read it, execute it, complete it.
//! assert_eq!(WorkRequest::decode(&slot)?, request);
//! let number = QueueIndex::ZERO; // the first completion of its queue
//! let completion = Completion {
//!     queue,
//!     wqe_counter: request.index,
//!     owner: number.owner(ring),
//!     entry: Entry::Requester { opcode: Opcode::Write as u8, bytes: 64, timestamp: 0 },
//! };
//! let bytes = completion.encode();
//!
//! // The poster polls: the entry is its own when the owner bit says so.
//! let seen = Completion::poll(&bytes, number, ring)?.expect("the NIC has written it");
//! assert_eq!(seen.wqe_counter, 0xabcd);
//! # Ok(())
//! # }
//! ```
//!
//! # Where the facts come from
//!
//! Each field names its source. *rdma-core* is `providers/mlx5/mlx5dv.h` of
//! linux-rdma/rdma-core (the user-space driver's public header, and `qp.c`
//! beside it), *Linux* is `include/linux/mlx5/{qp,device}.h`, *GPUNetIO* is
//! NVIDIA-DOCA/gpunetio's device headers, *UCX* is
//! `src/uct/ib/mlx5/ib_mlx5.inl` of openucx/ucx. Names and layouts are
//! theirs, the code is not. The tests compare with bytes that GPUNetIO's own
//! prepare functions produced.
//!
//! # What it does not do
//!
//! - No memory ordering. Which store must be visible before which is the
//!   business of whoever owns the memory: requests before the record, the
//!   record before the doorbell, the byte that holds the owner bit last.
//! - No queue state, credit or polling loop: [`QueueIndex`] gives the
//!   arithmetic, the caller the policy.
//! - Only what reliable connections need. No datagram address vectors,
//!   Ethernet segments, memory-window binding, tag matching, masked atomics,
//!   compressed completions or data scattered into completions; bytes that ask
//!   for these are refused with an [`Error`], never misread.
//!
//! # Untrusted bytes
//!
//! Every decoder accepts arbitrary bytes: it answers with a value or an
//! [`Error`], never panics, reads nothing outside the slice, and borrows
//! instead of allocating.
#![no_std]
#![forbid(unsafe_code)]

mod completion;
mod control;
mod doorbell;
mod error;
mod index;
mod opcode;
mod payload;
mod segment;
mod syndrome;
mod work_request;

pub use completion::{COMPLETION_BYTES, Completion, Entry, Failure, ReceiveKind};
pub use control::{CompletionMode, Control, FenceMode, Flags};
pub use doorbell::{Doorbell, DoorbellRecord};
pub use error::Error;
pub use index::{QueueIndex, QueueNumber, RingSize};
pub use opcode::Opcode;
pub use payload::{DataSegments, Payload};
pub use segment::{DataSegment, MemoryKey, RemoteAddress};
pub use syndrome::Syndrome;
pub use work_request::{Operation, WorkRequest};

/// Bytes of a basic block, the unit in which a send queue counts (WQEBB;
/// rdma-core `MLX5_SEND_WQE_BB`).
pub const BLOCK_BYTES: usize = 64;

/// Bytes of a segment, the unit in which a work request counts its own size
/// (the "octoword" of rdma-core's `mlx5dv_set_ctrl_seg`).
pub const SEGMENT_BYTES: usize = 16;

/// Segments in the largest work request: its count has six bits (`ds` in
/// rdma-core's `mlx5_wqe_ctrl_seg::qpn_ds`).
pub const MAX_SEGMENTS: usize = 63;

/// Blocks that the largest work request occupies.
pub const MAX_BLOCKS: usize = (MAX_SEGMENTS * SEGMENT_BYTES).div_ceil(BLOCK_BYTES);
