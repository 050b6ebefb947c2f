// SPDX-License-Identifier: MIT
//! The way to a peer, and the times of a connection, as a context has them.

use std::time::Duration;

use super::layout::context;
use super::{Command, Devx, Port, Refusal, Status, Syndrome, capability, mac};
use crate::DeviceAddress;

/// Where nobody is: requests to it are never answered.
const NOWHERE: DeviceAddress = DeviceAddress([0; 16]);

/// The device that a path leads to.
pub(super) fn peer(devx: &Devx, command: Command, wanted: &[u8]) -> Result<DeviceAddress, Refusal> {
    let bytes = |at: usize, length: usize| wanted.get(at..at + length).unwrap_or_default();
    let gid = bytes(context::REMOTE_GID, 16)
        .try_into()
        .map_or(NOWHERE, DeviceAddress);
    let has_gid = devx.port() == Port::Ethernet || context::HAS_GRH.is_set(wanted);
    let source = context::SOURCE_GID.get(wanted);
    if has_gid && source != 0 {
        let reason = format!("source GID {source} is empty");
        return Err(command.refuse(Status::BadIndex, Syndrome::GidIndex, reason));
    }
    match devx.port() {
        Port::Ethernet => {
            let port = context::SOURCE_PORT.get(wanted);
            if !capability::SOURCE_PORTS.contains(&port) {
                let reason = format!("UDP port {port} is none of RoCE's");
                let status = Status::BadParameter;
                return Err(command.refuse(status, Syndrome::SourcePort, reason));
            }
            let right = bytes(context::REMOTE_MAC, 6) == mac(gid);
            Ok(if right { gid } else { NOWHERE })
        }
        Port::InfiniBand { .. } if has_gid => Ok(gid),
        Port::InfiniBand { .. } => {
            let lid = context::REMOTE_LID.get(wanted);
            if lid == 0 {
                let reason = "neither LID nor GRH";
                return Err(command.refuse(Status::BadParameter, Syndrome::Path, reason));
            }
            let lid = u16::try_from(lid).unwrap_or_default();
            Ok(devx.tables().lids.get(&lid).copied().unwrap_or(NOWHERE))
        }
    }
}

/// Time until a peer repeats what found no receive request, by InfiniBand's code: 10 us to
/// 655 ms, the last for code 0.
pub(super) fn not_ready(code: u32) -> Duration {
    /// In units of 10 us.
    const TIMES: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let index = usize::try_from(code).unwrap_or(usize::MAX);
    Duration::from_micros(10 * TIMES.get(index).copied().unwrap_or(TIMES[0]))
}

/// Time until everything is sent again, by InfiniBand's code: 4.096 us times a power of two; 0
/// is never, here ten years.
pub(super) fn ack_timeout(code: u32) -> Duration {
    const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
    if code == 0 {
        NEVER
    } else {
        Duration::from_nanos(4096 << code.min(31))
    }
}
