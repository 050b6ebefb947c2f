// SPDX-License-Identifier: MIT
//! Ranks that meet over TCP.
