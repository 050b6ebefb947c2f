// SPDX-License-Identifier: MIT
//! What the packages depend on is allowed by `deny.toml`, and used.
//!
//! Both programs are built from source, which takes minutes: where one of them
//! is not installed, its check is skipped.

use std::process::Command;

use crate::workspace::Workspace;

/// A program of Cargo's that others made.
pub struct Program {
    /// As Cargo calls it.
    pub name: &'static str,
    arguments: &'static [&'static str],
}

/// Those that [`check`](super::check) runs.
pub const PROGRAMS: [Program; 2] = [
    Program {
        name: "deny",
        arguments: &["--all-features", "check", "bans", "licenses", "sources"],
    },
    Program {
        name: "machete",
        arguments: &[],
    },
];

impl Program {
    /// The command, or why there is none.
    ///
    /// # Errors
    ///
    /// When it is not installed: how to install it.
    pub fn command(&self, workspace: &Workspace) -> Result<Command, String> {
        let Self { name, arguments } = self;
        let cargo = || {
            let mut cargo = workspace.cargo();
            // With it, cargo-machete takes itself for a program that is being tested.
            cargo.env_remove("CARGO_PKG_NAME").arg(name);
            cargo
        };
        let there = cargo().arg("--version").output();
        if !there.is_ok_and(|output| output.status.success()) {
            return Err(format!(
                "not installed; `cargo install --locked cargo-{name}` does that"
            ));
        }
        let mut command = cargo();
        command.args(*arguments);
        Ok(command)
    }
}
