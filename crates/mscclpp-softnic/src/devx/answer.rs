// SPDX-License-Identifier: MIT
//! How a command ends.

use super::layout;
use crate::Error;

/// Why firmware refuses a command: what it answers, and a sentence for a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{command}: {reason} (status {:#x}, syndrome {:#x})", *.status as u8, *.syndrome as u32)]
#[non_exhaustive]
pub struct Refusal {
    /// The command.
    pub command: &'static str,
    /// What kind of refusal it is.
    pub status: Status,
    /// Which check it is that failed.
    pub syndrome: Syndrome,
    /// What was wrong with what was asked for.
    pub reason: String,
}

/// Statuses of firmware's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Status {
    /// There is no such command.
    BadOpcode = 0x02,
    /// A field has a value that it cannot have.
    BadParameter = 0x03,
    /// An object that is named does not exist.
    BadResource = 0x05,
    /// Something still stands on the object.
    ResourceBusy = 0x06,
    /// More than the device can do.
    ExceedsLimit = 0x08,
    /// The object is in another state.
    BadResourceState = 0x09,
    /// There is no entry of this index.
    BadIndex = 0x0a,
    /// The device has none left, or was told to say so.
    NoResources = 0x0f,
    /// The input is too short.
    BadInputLength = 0x50,
    /// The room for the answer is too short.
    BadOutputLength = 0x51,
}

/// Which check failed. Firmware's own numbers are not known; these are this model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
#[expect(
    missing_docs,
    reason = "each is named by its check; the refusal has a sentence"
)]
pub enum Syndrome {
    Opcode = 0x50f7_0001,
    Length,
    CapabilityType,
    Umem,
    UmemBounds,
    Page,
    Domain,
    CompletionQueue,
    EventQueue,
    Size,
    Form,
    RecordMode,
    QueueNumber,
    State,
    Port,
    Rights,
    Path,
    Mtu,
    Reads,
    SourcePort,
    GidIndex,
    Busy,
    Device,
}

impl Refusal {
    pub(super) fn new(
        command: &'static str,
        status: Status,
        syndrome: Syndrome,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            command,
            status,
            syndrome,
            reason: reason.into(),
        }
    }

    /// What the NIC itself refuses.
    pub(super) fn of_device(command: &'static str, error: &Error) -> Self {
        let status = match error {
            Error::Refused { .. } => Status::NoResources,
            Error::Limit { .. } => Status::ExceedsLimit,
            Error::Transition { .. } => Status::BadResourceState,
            _ => Status::BadParameter,
        };
        Self::new(command, status, Syndrome::Device, error.to_string())
    }

    /// Writes it where the answer is to be, as far as there is room.
    pub(super) fn write(&self, output: &mut [u8]) {
        output.fill(0);
        layout::STATUS.set(output, self.status as u32);
        layout::SYNDROME.set(output, self.syndrome as u32);
    }
}
