// SPDX-License-Identifier: MIT
//! Which HCA is nearest to a GPU.

#[cfg(all(test, not(loom)))]
mod tests;

use std::cmp::Reverse;
use std::fmt;

use crate::env::env;
use crate::error::{Error, Result};
use crate::gpu_queue::Hca;
use crate::ib::port::{self, Choice, Wish};
use crate::machine::{
    Distance, Function, GpuFunction, Nodes, PciAddress, RdmaDevice, RdmaPort, Root, distance,
};

/// The port that [`Hca::nearest`] has picked. Printing it says why.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Nearest {
    /// The HCA.
    pub hca: Hca,
    /// Its port, for [`IbConfig::port`](crate::IbConfig::port).
    pub port: u8,
    /// How far the HCA is from the GPU on PCIe.
    pub distance: Distance,
    /// Why this one, what else could be used, and what could not.
    pub why: String,
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}: {}", self.hca.name(), self.port, self.why)
    }
}

/// A port that cannot be used, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnusablePort {
    /// The HCA's name.
    pub hca: String,
    /// Its port; `None` if it has none.
    pub port: Option<u8>,
    /// Why not.
    pub why: String,
}

impl fmt::Display for UnusablePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{} port {port}: {}", self.hca, self.why),
            None => write!(f, "{}: {}", self.hca, self.why),
        }
    }
}

impl Hca {
    /// The HCA port that is nearest to a GPU on PCIe, among those that can be used: the port is
    /// active and, over Ethernet, has a GID that packets can be routed to
    /// (`MSCCLPP_IB_GID_INDEX` is obeyed).
    ///
    /// Of several at the same distance the fastest is taken. GPUs that share the choice between
    /// several ports are spread over them, by the order of their addresses. The same machine in the
    /// same state always gives the same answer.
    ///
    /// Only sysfs is read: no GPU, driver or library is needed, and any address can be asked for.
    /// [`Device::pci_address`](crate::Device::pci_address) tells a GPU's.
    ///
    /// What is named explicitly wins: with `MSCCLPP_HCA_DEVICES` set, only its HCAs are considered,
    /// a NIC in software among them, and [`Hca::named`] asks nobody.
    ///
    /// ```no_run
    /// use mscclpp_port::{ContextConfig, Hca, PciAddress};
    ///
    /// # fn configure(config: &mut ContextConfig) -> Result<(), Box<dyn std::error::Error>> {
    /// let gpu: PciAddress = "0000:1b:00.0".parse()?;
    /// let nearest = Hca::nearest(&gpu)?;
    /// println!("{nearest}");
    /// config.hca_devices = vec![nearest.hca];
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoUsablePort`] lists every port and why it cannot be used.
    pub fn nearest(gpu: &PciAddress) -> Result<Nearest> {
        let wish = Wish {
            gid_index: env().gid_index,
            ..Wish::default()
        };
        Survey::new(&Root::system(), wish, &env().hca_devices).nearest(gpu)
    }
}

/// What there is to choose from.
pub(crate) struct Survey {
    root: Root,
    nodes: Nodes,
    gpus: Vec<GpuFunction>,
    usable: Vec<Usable>,
    unusable: Vec<UnusablePort>,
}

/// A port that can be used.
#[derive(Debug, Clone)]
pub(crate) struct Usable {
    pub(crate) hca: String,
    pub(crate) port: u8,
    function: Option<Function>,
    gigabits: u32,
}

impl Survey {
    /// `named`: the only HCAs to consider; all of them if there is none.
    pub(crate) fn new(root: &Root, wish: Wish, named: &[String]) -> Self {
        let mut survey = Self {
            root: root.clone(),
            nodes: Nodes::count(root),
            gpus: GpuFunction::all(root),
            usable: Vec::new(),
            unusable: Vec::new(),
        };
        let devices = RdmaDevice::all(root);
        for device in &devices {
            if named.is_empty() || named.contains(&device.name) {
                survey.add(device, wish);
            }
        }
        for name in named {
            if mscclpp_softnic::Device::is_name(name) {
                survey.usable.push(Usable {
                    hca: name.clone(),
                    port: 1,
                    function: None,
                    gigabits: 0,
                });
            } else if !devices.iter().any(|device| device.name == *name) {
                survey.unusable.push(UnusablePort {
                    hca: name.clone(),
                    port: None,
                    why: "MSCCLPP_HCA_DEVICES names it, and it is not there".into(),
                });
            }
        }
        survey
    }

    fn add(&mut self, device: &RdmaDevice, wish: Wish) {
        if device.ports.is_empty() {
            self.unusable.push(UnusablePort {
                hca: device.name.clone(),
                port: None,
                why: "it has no port".into(),
            });
        }
        for port in &device.ports {
            match usable(port, wish) {
                Ok(_) => self.usable.push(Usable {
                    hca: device.name.clone(),
                    port: port.facts.number,
                    function: device.function.clone(),
                    gigabits: port.gigabits(),
                }),
                Err(why) => self.unusable.push(UnusablePort {
                    hca: device.name.clone(),
                    port: Some(port.facts.number),
                    why,
                }),
            }
        }
    }

    pub(crate) fn gpus(&self) -> &[GpuFunction] {
        &self.gpus
    }

    /// Every usable port, the nearest and then the fastest first.
    pub(crate) fn by_distance(&self, gpu: PciAddress) -> Vec<(Distance, &Usable)> {
        let gpu = Function::read(&self.root, gpu);
        let mut ports: Vec<_> = (self.usable.iter())
            .map(|port| {
                let level = distance(gpu.as_ref(), port.function.as_ref(), self.nodes);
                (level, port)
            })
            .collect();
        // Stable: otherwise they stay in the order of their names.
        ports.sort_by_key(|(level, port)| (*level, Reverse(port.gigabits)));
        ports
    }

    /// Those of [`by_distance`](Self::by_distance) that nothing is better than.
    fn best(&self, gpu: PciAddress) -> Vec<(Distance, &Usable)> {
        let mut ports = self.by_distance(gpu);
        let key = |(level, port): &(Distance, &Usable)| (*level, port.gigabits);
        if let Some(best) = ports.first().map(key) {
            ports.retain(|port| key(port) == best);
        }
        ports
    }

    pub(crate) fn nearest(&self, gpu: &PciAddress) -> Result<Nearest> {
        let best = self.best(*gpu);
        let names = |ports: &[(Distance, &Usable)]| -> Vec<(String, u8)> {
            let names = ports.iter().map(|(_, port)| (port.hca.clone(), port.port));
            names.collect()
        };
        // Counted among those that choose from the same ports, so that all of these are used.
        let before = (self.gpus.iter().map(|other| other.function.address))
            .filter(|other| other < gpu && names(&self.best(*other)) == names(&best))
            .count();
        let Some(turn) = before.checked_rem(best.len()) else {
            return Err(Error::NoUsablePort {
                gpu: *gpu,
                ports: self.unusable.clone(),
            });
        };
        let (level, port) = best[turn];
        Ok(Nearest {
            hca: Hca::named(&port.hca),
            port: port.port,
            distance: level,
            why: self.why(*gpu, &best, turn),
        })
    }

    fn why(&self, gpu: PciAddress, best: &[(Distance, &Usable)], turn: usize) -> String {
        let (level, port) = best[turn];
        let mut why = match port.function {
            None => format!("{level} from {gpu}: it has no place on PCIe"),
            Some(_) => format!("{level} from {gpu}, {}", level.meaning()),
        };
        let equal = best.len();
        if equal > 1 {
            why += &format!(
                "; number {} of {equal} equal ports, by the GPUs' order",
                turn + 1
            );
        }
        let chosen = |(_, other): &&(Distance, &Usable)| {
            !(best.iter()).any(|(_, port)| port.hca == other.hca && port.port == other.port)
        };
        let ports = self.by_distance(gpu);
        let others = ports.iter().filter(chosen).map(|(other, port)| {
            let slower = if *other == level { " and slower" } else { "" };
            format!("{} port {} is {other}{slower}", port.hca, port.port)
        });
        let passed = self
            .unusable
            .iter()
            .map(|port| format!("passed over {port}"));
        for part in others.chain(passed) {
            why += "; ";
            why += &part;
        }
        why
    }
}

/// The GID of a port that peers can be sent, or why there is none: the connection's own choice, but
/// for addresses that no router knows, which only somebody who names the HCA gets.
pub(crate) fn usable(port: &RdmaPort, wish: Wish) -> Result<Choice, String> {
    let choice = port::choose_one(&port.facts, wish)?;
    let routed = port.facts.ethernet == Some(false) || port::is_routable(&choice.gid);
    if routed || wish.gid_index.is_some() {
        return Ok(choice);
    }
    Err(format!(
        "no GID of it can be routed to (the best is {}): give its network interface an address",
        choice.gid
    ))
}
