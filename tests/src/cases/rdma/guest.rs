// SPDX-License-Identifier: MIT
//! The network of a guest with two devices, `rxe0` on `veth0` and `rxe1` on `veth1`, and a link
//! between the two. `cargo xtask rxe-run` makes it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::harness::{Context, TestResult, is_guest};

/// Skips the test anywhere else.
pub(super) fn needed(context: &Context) -> TestResult {
    let here = is_guest()
        && Path::new("/sys/class/infiniband/rxe1").exists()
        && Path::new("/sys/class/net/veth1").exists();
    context.skip_unless((!here).then(|| "not in the Soft-RoCE guest".to_owned()))
}

/// Runs a shell script, and returns what it prints.
pub(super) fn shell(script: &str) -> anyhow::Result<String> {
    let output = Command::new("sh").args(["-ec", script]).output();
    let output = output.context("cannot start sh")?;
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    ensure!(output.status.success(), "`{script}`: {errors}");
    Ok(out)
}

/// A change of the network that is undone at the latest when this is dropped.
pub(super) struct Change {
    undo: Option<&'static str>,
}

impl Change {
    pub(super) fn make(script: &str, undo: &'static str) -> anyhow::Result<Self> {
        shell(script)?;
        Ok(Self { undo: Some(undo) })
    }

    pub(super) fn undo(mut self) -> TestResult {
        self.undo
            .take()
            .map_or(Ok(()), |undo| shell(undo).map(drop))
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if let Some(undo) = self.undo
            && let Err(error) = shell(undo)
        {
            tracing::warn!("the guest's network stays as it is: {error:#}");
        }
    }
}

/// Packets that an end of the link has received.
pub(super) fn packets(interface: &str) -> anyhow::Result<u64> {
    let path = format!("/sys/class/net/{interface}/statistics/rx_packets");
    let text = fs::read_to_string(&path).context(path)?;
    Ok(text.trim().parse()?)
}

/// Packets that the queueing disciplines of both ends have dropped.
pub(super) fn dropped() -> anyhow::Result<u64> {
    let text = shell("tc -s qdisc show dev veth0; tc -s qdisc show dev veth1")?;
    let numbers = text.split("dropped ").skip(1).map(|rest| {
        let number = rest.split([',', ' ']).next().unwrap_or_default();
        (number.parse::<u64>()).with_context(|| format!("no number in {text:?}"))
    });
    numbers.sum()
}

/// Verbs objects of all processes: the kernel's line for each device.
pub(super) fn objects() -> anyhow::Result<Vec<String>> {
    Ok(shell("rdma resource show")?
        .lines()
        .map(str::to_owned)
        .collect())
}
