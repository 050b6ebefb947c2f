// SPDX-License-Identifier: MIT
//! Ranks find each other and agree: rendezvous, messages, collectives.
#![forbid(unsafe_code)]
