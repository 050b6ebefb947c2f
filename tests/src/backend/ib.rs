// SPDX-License-Identifier: MIT
//! Whether there are RDMA devices, and which is a rank's.

use std::sync::OnceLock;

use mscclpp_port::TransportKind;
use mscclpp_port::verbs::{Device, VerbsError};

/// Looked up once: tests ask before each of them.
fn devices() -> &'static Result<Vec<String>, VerbsError> {
    static DEVICES: OnceLock<Result<Vec<String>, VerbsError>> = OnceLock::new();
    DEVICES.get_or_init(Device::list)
}

/// The devices in turn, so that ranks next to each other have different ones if there are several.
pub(super) fn transport(rank: usize) -> TransportKind {
    let count = devices()
        .as_ref()
        .map_or(1, |names| names.len().clamp(1, 8));
    let number = u8::from(TransportKind::IB0) + (rank % count) as u8;
    TransportKind::try_from(number).expect("one of eight")
}

pub(super) fn obstacle() -> Option<String> {
    match devices() {
        Ok(names) if names.is_empty() => Some("no RDMA device".into()),
        Ok(_) => None,
        Err(error) => Some(format!("no RDMA device: {error}")),
    }
}
