// SPDX-License-Identifier: MIT
//! Ranks find each other and agree: rendezvous, messages, collectives.
#![forbid(unsafe_code)]

mod address;
mod background;
mod bootstrap;
mod collectives;
mod deadline;
mod error;
mod failure;
pub mod host;
pub mod interface;
pub mod launcher;
pub mod link;
pub mod message;
mod secret;
mod socket;
mod sync;
mod tag;
mod tcp;
mod unique_id;

pub use bootstrap::{Bootstrap, ReduceOp};
pub use collectives::Turns;
pub use deadline::Deadline;
pub use error::BootstrapError;
pub use failure::{FailureKind, FailureObserver, PeerFailure};
pub use secret::{JobKey, Secret};
pub use tag::Tag;
pub use tcp::{TcpBootstrap, TcpOptions};
pub use unique_id::UniqueId;
