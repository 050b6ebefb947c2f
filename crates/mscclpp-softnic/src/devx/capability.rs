// SPDX-License-Identifier: MIT
//! What a driver asks before it makes anything.

use super::layout::{self, capability, roce};
use super::{Command, Devx, Port, Refusal, Status, Syndrome};

/// The only event queue. Nothing ever arrives there.
pub(super) const EVENT_QUEUE: u32 = 5;

/// UDP ports that packets of a RoCE device may come from: those that RoCE version 2 is given.
pub(super) const SOURCE_PORTS: std::ops::RangeInclusive<u32> = 0xc000..=0xffff;

/// Entries of the GID table. On InfiniBand a code stands for it: 0 is 8.
pub(super) const GIDS: u32 = 8;
/// Bytes of the longest work request.
const REQUEST_BYTES: u32 = 1024;

const GENERAL: u32 = 0x0;
const ROCE: u32 = 0x4;
const GENERAL_2: u32 = 0x20;

pub(super) fn query(devx: &Devx, input: &[u8], output: &mut [u8]) -> Result<(), Refusal> {
    let command = Command::QueryHcaCap;
    command.lengths(input, 0x10, output, capability::BYTES)?;
    // The lowest bit chooses between what could be and what is: here the same.
    let kind = layout::OP_MOD.get(input) >> 1;
    let values = match kind {
        GENERAL => {
            let limits = devx.device().capabilities();
            let ethernet = devx.port() == Port::Ethernet;
            vec![
                (capability::HAS_SECOND, 1),
                (capability::LOG_QP_SIZE, limits.max_send_blocks.ilog2()),
                (capability::GID_TABLE, if ethernet { GIDS } else { 0 }),
                (capability::PORT_TYPE, u32::from(ethernet)),
                (capability::RELIABLE, 1),
                (capability::SEND_REQUEST, REQUEST_BYTES),
                (capability::RECEIVE_REQUEST, REQUEST_BYTES / 2),
            ]
        }
        ROCE => vec![
            (capability::LARGEST_PORT, *SOURCE_PORTS.end()),
            (capability::SMALLEST_PORT, *SOURCE_PORTS.start()),
            (capability::ADDRESS_TABLE, GIDS),
        ],
        // No queue works without its doorbell record.
        GENERAL_2 => Vec::new(),
        _ => {
            let reason = format!("capabilities of type {kind:#x} are not known");
            return Err(command.refuse(Status::BadParameter, Syndrome::CapabilityType, reason));
        }
    };
    let Some(output) = output.get_mut(capability::AT..) else {
        return Ok(());
    };
    for (field, value) in values {
        field.set(output, value);
    }
    Ok(())
}

pub(super) fn query_address(devx: &Devx, input: &[u8], output: &mut [u8]) -> Result<(), Refusal> {
    let command = Command::QueryRoceAddress;
    command.lengths(input, 0x10, output, 0x30)?;
    if devx.port() != Port::Ethernet {
        let reason = "the port is not Ethernet";
        return Err(command.refuse(Status::BadParameter, Syndrome::Port, reason));
    }
    let index = roce::INDEX.get(input);
    if index >= GIDS {
        let reason = format!("there are {GIDS} addresses, none of index {index}");
        return Err(command.refuse(Status::BadIndex, Syndrome::GidIndex, reason));
    }
    // The others are empty.
    if index == 0 {
        let gid = devx.device().address().0;
        if let Some(place) = output.get_mut(roce::GID..roce::GID + 16) {
            place.copy_from_slice(&gid);
        }
        roce::VERSION.set(output, 2);
    }
    Ok(())
}
