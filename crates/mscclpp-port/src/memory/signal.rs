// SPDX-License-Identifier: MIT
//! Memory that signals arrive in.

use super::RegisteredMemory;
use crate::buffer::Buffer;
use crate::context::Context;
use crate::device::Device;
use crate::error::Result;
use crate::transport::TransportKind;

/// Bytes of a token.
const TOKEN: u64 = 8;

/// One side's token of a semaphore: a word that the peer raises.
///
/// A type of its own, because an HCA may let writes to other memory overtake each other, and must not
/// do so here: a signal says that all that was written before it has landed. It is registered in
/// strict order, and for the transport of its connection only.
#[derive(Clone)]
pub(crate) struct SignalMemory {
    token: Buffer,
    registration: RegisteredMemory,
}

impl SignalMemory {
    /// A zeroed token in memory of `device`, open to the peer over `transport`.
    pub(crate) fn new(context: &Context, device: Device, transport: TransportKind) -> Result<Self> {
        let token = Buffer::new(device, TOKEN)?;
        let registration = context.register_signal(&token, transport)?;
        Ok(Self {
            token,
            registration,
        })
    }

    /// What the peer needs to signal.
    pub(crate) fn record(&self) -> Result<Vec<u8>> {
        self.registration.serialize()
    }

    /// The word itself.
    pub(crate) fn token(&self) -> &Buffer {
        &self.token
    }
}
