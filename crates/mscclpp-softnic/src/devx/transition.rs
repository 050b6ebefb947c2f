// SPDX-License-Identifier: MIT
//! The life of a queue pair, step by step, and what it says of itself.

use std::sync::PoisonError;

use mlx5_queue::QueueNumber;

use super::create::{self, Pair};
use super::layout::{self, context, optional};
use super::{Command, Devx, Refusal, Status, Syndrome, path};
use crate::{
    InitAttributes, Mtu, QueueAddress, ReceiveAttributes, SendAttributes, State, Transition,
};

/// Bytes of a path's longest message, as a power of two.
const LOG_MESSAGE: u32 = 30;

/// mlx5's number of a state.
fn number(state: State) -> u32 {
    match state {
        State::Reset => 0,
        State::Init => 1,
        State::ReadyToReceive => 2,
        State::ReadyToSend => 3,
        State::Error => 6,
    }
}

/// One command to one queue pair.
struct Step<'a> {
    devx: &'a Devx,
    pair: &'a Pair,
    command: Command,
    optional: u32,
    wanted: &'a [u8],
}

pub(super) fn step(
    devx: &Devx,
    pair: &Pair,
    command: Command,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let has_context = !matches!(command, Command::ToError | Command::ToReset);
    command.lengths(input, if has_context { 0x110 } else { 0x10 }, output, 0x10)?;
    is_named(command, pair, input)?;
    let step = Step {
        devx,
        pair,
        command,
        optional: if has_context {
            layout::OPTIONAL.get(input)
        } else {
            0
        },
        wanted: if has_context {
            layout::from(input, context::AT)
        } else {
            &[]
        },
    };
    // One at a time: a step and what is kept of it belong together.
    let mut kept = pair.context.lock().unwrap_or_else(PoisonError::into_inner);
    step.comes_from_its_state()?;
    match command {
        Command::Rst2Init | Command::Init2Init => step.init(&mut kept[..]),
        Command::Init2Rtr => step.ready_to_receive(&mut kept[..]),
        Command::Rtr2Rts | Command::Rts2Rts => step.ready_to_send(&mut kept[..]),
        Command::ToError => step.modify(Transition::Error),
        _ => {
            step.modify(Transition::Reset)?;
            create::forget_connection(&mut kept, devx);
            Ok(())
        }
    }
}

/// The object and the number in the command are the same queue pair.
fn is_named(command: Command, pair: &Pair, input: &[u8]) -> Result<(), Refusal> {
    let named = layout::QUEUE.get(input);
    if named == pair.number() {
        return Ok(());
    }
    let reason = format!(
        "queue pair {named:#x} is named, the object is {:#x}",
        pair.number()
    );
    Err(command.refuse(Status::BadParameter, Syndrome::QueueNumber, reason))
}

impl Step<'_> {
    fn refuse(&self, syndrome: Syndrome, reason: impl Into<String>) -> Refusal {
        self.command.refuse(Status::BadParameter, syndrome, reason)
    }

    fn modify(&self, transition: Transition) -> Result<(), Refusal> {
        let result = self.pair.pair.modify(transition);
        result.map_err(|error| Refusal::of_device(self.command.name(), &error))
    }

    fn comes_from_its_state(&self) -> Result<(), Refusal> {
        let state = self.pair.pair.status().state;
        let wanted = match self.command {
            Command::Rst2Init => State::Reset,
            Command::Init2Init | Command::Init2Rtr => State::Init,
            Command::Rtr2Rts => State::ReadyToReceive,
            Command::Rts2Rts => State::ReadyToSend,
            _ => return Ok(()),
        };
        if state == wanted {
            return Ok(());
        }
        let reason = format!("the queue pair is in {state}, not in {wanted}");
        Err(self
            .command
            .refuse(Status::BadResourceState, Syndrome::State, reason))
    }

    /// The rights that the context has, all of them.
    fn rights(&self) -> Result<InitAttributes, Refusal> {
        let atomic = context::REMOTE_ATOMIC.is_set(self.wanted);
        let mode = context::ATOMIC_MODE.get(self.wanted);
        if atomic && mode == 0 {
            return Err(self.refuse(Syndrome::Rights, "atomics without a mode"));
        }
        if atomic && !self.devx.device().capabilities().atomics {
            return Err(self.refuse(Syndrome::Rights, "the device has no atomics"));
        }
        Ok(InitAttributes {
            remote_write: context::REMOTE_WRITE.is_set(self.wanted),
            remote_read: context::REMOTE_READ.is_set(self.wanted),
            remote_atomic: atomic,
        })
    }

    fn init(&self, kept: &mut [u8]) -> Result<(), Refusal> {
        let first = self.command == Command::Rst2Init;
        if first && context::PATH_MIGRATION.get(self.wanted) != 3 {
            return Err(self.refuse(
                Syndrome::Path,
                "a path that does not say it is the only one",
            ));
        }
        let port = context::PORT.get(self.wanted);
        if port != 1 {
            return Err(self.refuse(Syndrome::Port, format!("there is no port {port}")));
        }
        let rights = if first {
            self.rights()?
        } else {
            self.changed(kept)?
        };
        self.modify(Transition::Init(rights))?;
        context::PORT.set(kept, port);
        keep(kept, rights);
        Ok(())
    }

    /// The rights after what the optional parameters change.
    fn changed(&self, kept: &[u8]) -> Result<InitAttributes, Refusal> {
        let new = self.rights()?;
        let old = kept_rights(kept);
        let choose = |bit, new, old| if self.optional & bit == 0 { old } else { new };
        Ok(InitAttributes {
            remote_write: choose(optional::REMOTE_WRITE, new.remote_write, old.remote_write),
            remote_read: choose(optional::REMOTE_READ, new.remote_read, old.remote_read),
            remote_atomic: choose(
                optional::REMOTE_ATOMIC,
                new.remote_atomic,
                old.remote_atomic,
            ),
        })
    }

    /// Reads and atomics at once, of which a context has the logarithm.
    fn reads(&self, log: u32) -> Result<u8, Refusal> {
        let most = self.devx.device().capabilities().max_outstanding_reads;
        let asked = 1u8 << log;
        if asked > most.max(1) {
            let reason = format!("{asked} reads and atomics at once, {most} possible");
            return Err(self
                .command
                .refuse(Status::ExceedsLimit, Syndrome::Reads, reason));
        }
        Ok(asked)
    }

    fn ready_to_receive(&self, kept: &mut [u8]) -> Result<(), Refusal> {
        let code = context::MTU.get(self.wanted);
        let mtu = u8::try_from(code).ok().and_then(Mtu::from_code);
        let mtu = mtu.ok_or_else(|| self.refuse(Syndrome::Mtu, format!("MTU {code} is none")))?;
        let longest = context::LOG_MESSAGE.get(self.wanted);
        if longest != LOG_MESSAGE {
            let reason = format!("messages of 2^{longest} bytes: 2^{LOG_MESSAGE} is all there is");
            return Err(self.refuse(Syndrome::Size, reason));
        }
        let rights = self.changed(kept)?;
        let remote = context::REMOTE_QUEUE.get(self.wanted);
        let queue = QueueNumber::new(remote)
            .map_err(|error| self.refuse(Syndrome::QueueNumber, error.to_string()))?;
        let attributes = ReceiveAttributes {
            remote: QueueAddress {
                device: path::peer(self.devx, self.command, self.wanted)?,
                queue,
            },
            mtu,
            first_packet: context::RECEIVE_PSN.get(self.wanted),
            max_outstanding_reads: self.reads(context::LOG_RECEIVE_READS.get(self.wanted))?,
            receiver_not_ready: path::not_ready(context::RNR_TIMER.get(self.wanted)),
        };
        // While it is in INIT, rights may change.
        self.modify(Transition::Init(rights))?;
        self.modify(Transition::ReadyToReceive(attributes))?;
        keep(kept, rights);
        copy(
            kept,
            self.wanted,
            &[
                context::MTU,
                context::LOG_MESSAGE,
                context::REMOTE_QUEUE,
                context::RECEIVE_PSN,
                context::LOG_RECEIVE_READS,
                context::RNR_TIMER,
                context::REMOTE_LID,
                context::HAS_GRH,
                context::SOURCE_GID,
                context::SOURCE_PORT,
            ],
        );
        Ok(())
    }

    fn ready_to_send(&self, kept: &mut [u8]) -> Result<(), Refusal> {
        if self.changed(kept)? != kept_rights(kept) {
            // Of a queue pair that answers requests already.
            let reason = "other rights than at INIT are not supported";
            return Err(self.refuse(Syndrome::Rights, reason));
        }
        if self.command == Command::Rts2Rts {
            // What may change then is what this model does not look at.
            return Ok(());
        }
        let small = |field: layout::Field| u8::try_from(field.get(self.wanted)).unwrap_or(u8::MAX);
        let attributes = SendAttributes {
            first_packet: context::SEND_PSN.get(self.wanted),
            max_outstanding_reads: self.reads(context::LOG_SEND_READS.get(self.wanted))?,
            timeout: path::ack_timeout(context::ACK_TIMEOUT.get(self.wanted)),
            retry_count: small(context::RETRY_COUNT),
            rnr_retry: small(context::RNR_RETRY),
        };
        self.modify(Transition::ReadyToSend(attributes))?;
        copy(
            kept,
            self.wanted,
            &[
                context::SEND_PSN,
                context::LOG_SEND_READS,
                context::ACK_TIMEOUT,
                context::RETRY_COUNT,
                context::RNR_RETRY,
            ],
        );
        Ok(())
    }
}

fn kept_rights(kept: &[u8]) -> InitAttributes {
    InitAttributes {
        remote_write: context::REMOTE_WRITE.is_set(kept),
        remote_read: context::REMOTE_READ.is_set(kept),
        remote_atomic: context::REMOTE_ATOMIC.is_set(kept),
    }
}

fn keep(kept: &mut [u8], rights: InitAttributes) {
    context::REMOTE_WRITE.set(kept, rights.remote_write.into());
    context::REMOTE_READ.set(kept, rights.remote_read.into());
    context::REMOTE_ATOMIC.set(kept, rights.remote_atomic.into());
}

fn copy(kept: &mut [u8], wanted: &[u8], fields: &[layout::Field]) {
    for field in fields {
        field.set(kept, field.get(wanted));
    }
}

pub(super) fn query(pair: &Pair, input: &[u8], output: &mut [u8]) -> Result<(), Refusal> {
    let command = Command::QueryQp;
    command.lengths(input, 0x10, output, 0x110)?;
    is_named(command, pair, input)?;
    let mut context = *pair.context.lock().unwrap_or_else(PoisonError::into_inner);
    context::STATE.set(&mut context, number(pair.pair.status().state));
    context::PATH_MIGRATION.set(&mut context, 3);
    if let Some(place) = output.get_mut(context::AT..context::AT + context.len()) {
        place.copy_from_slice(&context);
    }
    Ok(())
}
