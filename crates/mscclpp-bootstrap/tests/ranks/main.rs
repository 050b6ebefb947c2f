// SPDX-License-Identifier: MIT
//! Ranks as threads and as processes, over real sockets and over channels.

mod attacks;
mod body;
mod collectives;
mod environment;
mod failures;
mod gates;
mod gates_of_processes;
mod joining;
mod links;
mod liveness;
mod local;
mod messages;
mod processes;
mod strangers;
mod user_defined;
mod ways;
