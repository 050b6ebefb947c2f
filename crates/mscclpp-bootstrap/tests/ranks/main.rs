// SPDX-License-Identifier: MIT
//! Ranks as threads and as processes, over real sockets and over channels.

mod body;
mod collectives;
mod failures;
mod joining;
mod messages;
mod processes;
mod strangers;
mod unix_links;
mod user_defined;
