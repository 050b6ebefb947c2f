// SPDX-License-Identifier: MIT
//! What a caller may decide about joining.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{BootstrapError, Deadlines, Secret};

/// What stands for the secret where strangers are let in on purpose.
const OPEN: &[u8] = b"mscclpp: joining without a secret";

/// What a caller may decide about joining; the defaults are right for most.
#[derive(Clone, Debug, Default)]
pub struct TcpOptions {
    pub(crate) secret: Option<Secret>,
    pub(crate) without_secret: bool,
    pub(crate) deadlines: Option<Deadlines>,
    pub(crate) interface: Option<String>,
}

impl TcpOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The secret for joining at an address, instead of that of
    /// `MSCCLPP_SECRET` or `MSCCLPP_SECRET_FILE`. A unique id brings its own.
    #[must_use]
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Allows joining without a secret at an address that other machines reach.
    /// Anybody who reaches it may then join the job and write to its memory.
    #[must_use]
    pub fn allow_without_secret(mut self) -> Self {
        self.without_secret = true;
        self
    }

    /// All time limits, instead of those of the environment.
    #[must_use]
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = Some(deadlines);
        self
    }

    /// The time limit of each collective: [`Deadlines::step`].
    #[must_use]
    pub fn timeout(self, step: Duration) -> Self {
        let deadlines = self.limits();
        self.deadlines(Deadlines { step, ..deadlines })
    }

    /// After how long without a sign of life a rank counts as dead:
    /// [`Deadlines::silence`]. The same on all ranks.
    #[must_use]
    pub fn silence(self, silence: Duration) -> Self {
        let deadlines = self.limits();
        self.deadlines(Deadlines {
            silence,
            ..deadlines
        })
    }

    pub(crate) fn limits(&self) -> Deadlines {
        self.deadlines.unwrap_or_default()
    }

    /// The network interface to use, by its exact name, instead of the rules of
    /// [`crate::interface::choose`].
    #[must_use]
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// Takes the environment's secret where none was given.
    pub(crate) fn read_secret(&mut self) -> Result<(), BootstrapError> {
        if self.secret.is_none() {
            self.secret = Secret::from_environment()?;
        }
        Ok(())
    }

    /// The secret for meeting there, once it is read.
    pub(crate) fn secret_at(&self, address: SocketAddr) -> Result<Secret, BootstrapError> {
        if let Some(secret) = &self.secret {
            return Ok(secret.clone());
        }
        if !address.ip().is_loopback() {
            if !self.without_secret {
                return Err(BootstrapError::SecretRequired { address });
            }
            tracing::warn!(%address, "joining without a secret: whoever reaches this address may join");
        }
        Secret::new(OPEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_secret_only_loopback_is_open() {
        let options = TcpOptions::new();
        for inside in ["127.0.0.1:5", "127.9.9.9:5", "[::1]:5"] {
            assert!(options.secret_at(inside.parse().unwrap()).is_ok());
        }
        let outside: SocketAddr = "10.0.0.1:5".parse().unwrap();
        assert!(matches!(
            options.secret_at(outside),
            Err(BootstrapError::SecretRequired { address }) if address == outside
        ));
        assert!(
            options
                .clone()
                .allow_without_secret()
                .secret_at(outside)
                .is_ok()
        );
        let secret = Secret::new(*b"0123456789abcdef").unwrap();
        assert!(options.secret(secret).secret_at(outside).is_ok());
    }
}
