// SPDX-License-Identifier: MIT
//! Ranks find each other and agree: rendezvous, messages, collectives, and who
//! has died.
//!
//! A job is a *world* of processes, each with a *rank* from 0. [`TcpBootstrap`]
//! lets them meet, from a [`UniqueId`], from an address, or from what a launcher
//! says ([`launcher`]). [`Bootstrap`] is what it offers then, and what a user may
//! implement with four methods over anything else that carries messages.
//!
//! ```
//! use std::time::Duration;
//! use mscclpp_bootstrap::{Bootstrap, Deadline, ReduceOp, Tag, TcpBootstrap};
//!
//! # fn main() -> Result<(), mscclpp_bootstrap::BootstrapError> {
//! let zero = TcpBootstrap::new(0, 2)?;
//! let id = zero.create_unique_id_at([127, 0, 0, 1].into())?;
//! // Carry the id to the other ranks over something you trust.
//! let text = id.to_text();
//!
//! // Another process; here a thread.
//! let other = std::thread::spawn(move || {
//!     let one = TcpBootstrap::new(1, 2)?;
//!     one.initialize(&text.parse()?, Duration::from_secs(10))?;
//!     one.send(0, Tag::user(7), b"hello", Deadline::default())?;
//!     one.all_reduce(40, ReduceOp::Sum)
//! });
//!
//! zero.initialize(&id, Duration::from_secs(10))?;
//! assert_eq!(zero.recv(1, Tag::user(7), Deadline::default())?, b"hello");
//! assert_eq!(zero.all_reduce(2, ReduceOp::Sum)?, 42);
//! assert_eq!(other.join().unwrap()?, 42);
//! # Ok(())
//! # }
//! ```
//!
//! For setups of many ranks there is a [`Gate`] after each of their phases, which
//! all ranks pass or none, and a [`Plan`] of who wants how many queues to whom,
//! which they agree on.
//!
//! # What holds
//!
//! - **Nothing hangs.** Every call has a [`Deadline`]; a rank's death ends the
//!   waits for it earlier. The error names the rank that was waited for and the
//!   step.
//! - **Joining needs the secret**, which never travels; see [`link`] for the
//!   proof, which every later connection of the job makes too. Connections are
//!   authenticated when they are made; what travels is not encrypted.
//! - **A rank that dies is seen** and told to all; see [`FailureObserver`]. A death
//!   is a connection that breaks without a goodbye (let [`TcpBootstrap`] drop before
//!   the process ends), or silence for 5 s: a stopped process, a cut link. Who was
//!   taken for dead and lives gets [`BootstrapError::Excluded`].
//! - **Connections are few**: O(log world) and those to peers that one talks to.
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `MSCCLPP_ROOT`, `MSCCLPP_RANK`, … | see [`launcher`] |
//! | `MSCCLPP_SECRET`, `MSCCLPP_SECRET_FILE` | the secret for joins at an address |
//! | `MSCCLPP_SOCKET_IFNAME`, `MSCCLPP_SOCKET_FAMILY` | see [`interface`] |
//! | `MSCCLPP_BOOTSTRAP_TIMEOUT`, `MSCCLPP_SILENCE_TIMEOUT`, … | see [`Deadlines`] |
//! | `MSCCLPP_HOSTID` | see [`host::id`] |
//!
//! [`environment::faults`] says which of them cannot be used.
#![forbid(unsafe_code)]

mod address;
mod background;
mod bootstrap;
mod collectives;
mod deadline;
mod deadlines;
pub mod environment;
mod error;
mod failure;
mod file;
mod forward;
pub mod gate;
pub mod host;
pub mod interface;
pub mod launcher;
pub mod link;
pub mod message;
pub mod plan;
mod recording;
mod secret;
mod socket;
mod sync;
mod tag;
mod tcp;
mod unique_id;

pub use bootstrap::{Bootstrap, ReduceOp};
pub use collectives::Turns;
pub use deadline::Deadline;
pub use deadlines::Deadlines;
pub use error::BootstrapError;
pub use failure::{FailureKind, FailureObserver, PeerFailure};
pub use gate::{Gate, SetupError};
pub use plan::Plan;
pub use recording::{Recording, Traffic};
pub use secret::{JobKey, Secret};
pub use tag::Tag;
pub use tcp::{TcpBootstrap, TcpOptions, WireBytes};
pub use unique_id::UniqueId;
