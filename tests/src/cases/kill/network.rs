// SPDX-License-Identifier: MIT
//! A network of its own for the ranks of a job: a network namespace each, and one with the bridge
//! between them, in which packets can be dropped. Nothing outside of it is touched.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use mscclpp_bootstrap::Deadline;

use super::RANKS;
use crate::harness::Place;

/// How long a namespace may take to be there.
const READY: Duration = Duration::from_secs(5);
/// Where rank 0 lets the others meet; nobody else is in these namespaces.
const PORT: u16 = 4700;

/// Namespaces that exist as long as this does.
pub(super) struct Network {
    hub: Holder,
    ranks: Vec<Holder>,
}

/// A process that keeps a namespace.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        // It ends by itself when its input does; an error means that it has.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Holder {
    /// `command` is what makes the namespace.
    fn start(command: &[String]) -> anyhow::Result<Self> {
        let [first, rest @ ..] = command else {
            anyhow::bail!("no command");
        };
        let own = fs::read_link("/proc/self/ns/net")?;
        let process = Command::new(first)
            .args(rest)
            .arg("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {first}"))?;
        let mut holder = Self(process);
        let deadline = Deadline::after(READY);
        let link = format!("/proc/{}/ns/net", holder.0.id());
        loop {
            let is_cat = fs::read_to_string(format!("/proc/{}/comm", holder.0.id()))
                .is_ok_and(|name| name.trim() == "cat");
            if is_cat && fs::read_link(&link).is_ok_and(|namespace| namespace != own) {
                return Ok(holder);
            }
            let ended = holder.0.try_wait()?;
            ensure!(
                ended.is_none() && !deadline.expired(),
                "no network namespace can be made: {}",
                command.join(" ")
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What runs a command in the namespace.
    fn enter(&self) -> Vec<String> {
        let pid = self.0.id().to_string();
        let mut words = vec!["nsenter", "-t", &pid];
        if !rustix::process::geteuid().is_root() {
            words.extend(["-U", "--preserve-credentials"]);
        }
        words.extend(["-n", "--"]);
        words.into_iter().map(str::to_owned).collect()
    }

    fn run(&self, command: &str) -> anyhow::Result<()> {
        let enter = self.enter();
        let output = Command::new(&enter[0])
            .args(&enter[1..])
            .args(command.split(' '))
            .output()
            .context("cannot run nsenter")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command}: {}", said.trim());
        Ok(())
    }
}

impl Network {
    pub(super) fn new() -> anyhow::Result<Self> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let unshare: Vec<String> = if rustix::process::geteuid().is_root() {
            words(&["unshare", "--net"])
        } else {
            words(&["unshare", "--user", "--map-root-user", "--net"])
        };
        let hub = Holder::start(&unshare)?;
        hub.run("ip link add hub type bridge")?;
        hub.run("ip link set hub up")?;
        let mut ranks = Vec::new();
        for rank in 0..RANKS {
            let mut command = hub.enter();
            command.extend(["unshare".to_owned(), "--net".to_owned()]);
            let holder = Holder::start(&command)?;
            let pid = holder.0.id();
            hub.run(&format!(
                "ip link add port{rank} type veth peer name rank netns {pid}"
            ))?;
            hub.run(&format!("ip link set port{rank} master hub up"))?;
            let address = Self::address(rank);
            holder.run(&format!("ip address add {address}/24 dev rank"))?;
            holder.run("ip link set rank up")?;
            holder.run("ip link set lo up")?;
            ranks.push(holder);
        }
        Ok(Self { hub, ranks })
    }

    fn address(rank: usize) -> String {
        format!("10.77.0.{}", rank + 1)
    }

    /// Runs the ranks of a job in their namespaces.
    pub(super) fn place(&self) -> Place {
        Place {
            root: Some(format!("{}:{PORT}", Self::address(0))),
            prefix: self.ranks.iter().map(Holder::enter).collect(),
            apart: true,
            variables: Vec::new(),
        }
    }

    /// Drops all packets from and to a rank, without a word to anybody.
    pub(super) fn cut(&self, rank: usize) -> anyhow::Result<()> {
        (self.hub).run(&format!("tc qdisc replace dev port{rank} root blackhole"))?;
        self.ranks[rank].run("tc qdisc replace dev rank root blackhole")
    }

    /// Lets packets through again.
    pub(super) fn heal(&self, rank: usize) -> anyhow::Result<()> {
        self.hub.run(&format!("tc qdisc del dev port{rank} root"))?;
        self.ranks[rank].run("tc qdisc del dev rank root")
    }
}
