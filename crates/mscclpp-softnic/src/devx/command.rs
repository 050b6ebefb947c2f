// SPDX-License-Identifier: MIT
//! Which commands there are, and that each is answered.

use super::{Refusal, Status, Syndrome, layout};

/// The commands that are known, by mlx5's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u16)]
#[expect(missing_docs, reason = "mlx5's names")]
pub enum Command {
    QueryHcaCap = 0x100,
    CreateCq = 0x400,
    CreateQp = 0x500,
    Rst2Init = 0x502,
    Init2Rtr = 0x503,
    Rtr2Rts = 0x504,
    Rts2Rts = 0x505,
    ToError = 0x507,
    ToReset = 0x50a,
    QueryQp = 0x50b,
    Init2Init = 0x50e,
    QueryRoceAddress = 0x760,
}

impl Command {
    const ALL: [Self; 12] = [
        Self::QueryHcaCap,
        Self::CreateCq,
        Self::CreateQp,
        Self::Rst2Init,
        Self::Init2Rtr,
        Self::Rtr2Rts,
        Self::Rts2Rts,
        Self::ToError,
        Self::ToReset,
        Self::QueryQp,
        Self::Init2Init,
        Self::QueryRoceAddress,
    ];

    pub(super) fn of(input: &[u8]) -> Result<Self, Refusal> {
        let number = layout::OPCODE.get(input);
        let mut known = Self::ALL.into_iter();
        known
            .find(|command| u32::from(*command as u16) == number)
            .ok_or_else(|| {
                let reason = format!("{number:#x} is none that this device knows");
                Refusal::new("command", Status::BadOpcode, Syndrome::Opcode, reason)
            })
    }

    pub(super) fn is_transition(self) -> bool {
        use Command::{Init2Init, Init2Rtr, Rst2Init, Rtr2Rts, Rts2Rts, ToError, ToReset};
        matches!(
            self,
            Rst2Init | Init2Init | Init2Rtr | Rtr2Rts | Rts2Rts | ToError | ToReset
        )
    }

    /// As mlx5 calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::QueryHcaCap => "QUERY_HCA_CAP",
            Self::CreateCq => "CREATE_CQ",
            Self::CreateQp => "CREATE_QP",
            Self::Rst2Init => "RST2INIT_QP",
            Self::Init2Rtr => "INIT2RTR_QP",
            Self::Rtr2Rts => "RTR2RTS_QP",
            Self::Rts2Rts => "RTS2RTS_QP",
            Self::ToError => "2ERR_QP",
            Self::ToReset => "2RST_QP",
            Self::QueryQp => "QUERY_QP",
            Self::Init2Init => "INIT2INIT_QP",
            Self::QueryRoceAddress => "QUERY_ROCE_ADDRESS",
        }
    }

    pub(super) fn refuse(
        self,
        status: Status,
        syndrome: Syndrome,
        reason: impl Into<String>,
    ) -> Refusal {
        Refusal::new(self.name(), status, syndrome, reason)
    }

    /// Checks that a command and its answer have the bytes that they need.
    pub(super) fn lengths(
        self,
        input: &[u8],
        at_least: usize,
        output: &[u8],
        answer: usize,
    ) -> Result<(), Refusal> {
        let (status, is, wanted) = if input.len() < at_least {
            (Status::BadInputLength, input.len(), at_least)
        } else if output.len() < answer {
            (Status::BadOutputLength, output.len(), answer)
        } else {
            return Ok(());
        };
        Err(self.refuse(
            status,
            Syndrome::Length,
            format!("{is} bytes, not {wanted}"),
        ))
    }
}

pub(super) fn misplaced(command: Command, what: &str) -> Refusal {
    let reason = format!("it is no command {what}");
    command.refuse(Status::BadOpcode, Syndrome::Opcode, reason)
}

/// Clears the answer, and writes there how the command ended.
pub(super) fn answered<R>(
    output: &mut [u8],
    command: impl FnOnce(&mut [u8]) -> Result<R, Refusal>,
) -> Result<R, Refusal> {
    output.fill(0);
    let result = command(output);
    if let Err(refusal) = &result {
        tracing::debug!("{refusal}");
        refusal.write(output);
    }
    result
}
