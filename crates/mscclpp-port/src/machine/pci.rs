// SPDX-License-Identifier: MIT
//! The PCIe tree: where functions are, and how far two of them are apart.

use std::fmt;
use std::str::FromStr;

use super::Root;

/// NVIDIA's vendor number.
pub(crate) const NVIDIA: u16 = 0x10de;

/// Where a function is on PCIe: domain, bus, device and function, as `0000:1b:00.0`.
///
/// Parsed from what `lspci`, `nvidia-smi` and CUDA print; the domain may be left out.
///
/// ```
/// use mscclpp_port::PciAddress;
///
/// let gpu: PciAddress = "00000000:1B:00.0".parse()?;
/// assert_eq!(gpu.to_string(), "0000:1b:00.0");
/// assert_eq!(gpu, "1b:00.0".parse()?);
/// # Ok::<(), mscclpp_port::PciAddressError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text that is no address on PCIe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no PCI address; one is written 0000:1b:00.0")]
pub struct PciAddressError {
    /// The text.
    pub text: String,
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        parse(text.trim()).ok_or_else(|| PciAddressError { text: text.into() })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let hex = |digits: &str| {
        let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(digits, 16).ok().filter(|_| plain)
    };
    let (rest, function) = text.split_once('.')?;
    let mut parts = rest.rsplit(':');
    let (device, bus) = (parts.next()?, parts.next()?);
    let domain = parts.next().map_or(Some(0), hex)?;
    if parts.next().is_some() {
        return None;
    }
    let (bus, device, function) = (hex(bus)?, hex(device)?, hex(function)?);
    Some(PciAddress {
        domain,
        bus: u8::try_from(bus).ok()?,
        device: u8::try_from(device).ok().filter(|device| *device < 32)?,
        function: u8::try_from(function)
            .ok()
            .filter(|function| *function < 8)?,
    })
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

/// A function of a device, as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) address: PciAddress,
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    /// Class, subclass and interface.
    pub(crate) class: u32,
    /// `None` where the kernel does not know (-1), as in most virtual machines.
    pub(crate) numa_node: Option<u32>,
    /// From the host bridge (`pci0000:15`) through the bridges to itself.
    pub(crate) path: Vec<String>,
}

impl Function {
    pub(crate) fn read(root: &Root, address: PciAddress) -> Option<Self> {
        let directory = format!("/sys/bus/pci/devices/{address}");
        let path = root.resolve(&directory)?;
        // Something may stand before the host bridge, such as a platform's node.
        let path: Vec<String> = (path.split('/').map(str::to_owned))
            .skip_while(|part| !is_host_bridge(part))
            .collect();
        let id = |name: &str| root.number(&format!("{directory}/{name}"));
        let short = |name: &str| id(name).and_then(|id| u16::try_from(id).ok());
        Some(Self {
            address,
            vendor: short("vendor")?,
            device: short("device")?,
            class: id("class").and_then(|id| u32::try_from(id).ok())?,
            numa_node: id("numa_node").and_then(|id| u32::try_from(id).ok()),
            path,
        })
    }

    /// All of them, by address.
    pub(crate) fn all(root: &Root) -> Vec<Self> {
        let names = root.names("/sys/bus/pci/devices");
        let addresses = names.iter().filter_map(|name| name.parse().ok());
        let mut all: Vec<Self> = (addresses)
            .filter_map(|address| Self::read(root, address))
            .collect();
        all.sort_by_key(|function| function.address);
        all
    }
}

fn is_host_bridge(part: &str) -> bool {
    let Some(rest) = part.strip_prefix("pci") else {
        return false;
    };
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
    (rest.split_once(':')).is_some_and(|(domain, bus)| plain(domain) && plain(bus))
}

/// How many NUMA nodes a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nodes(usize);

impl Nodes {
    pub(crate) fn count(root: &Root) -> Self {
        let names = root.names("/sys/devices/system/node");
        let numbers = names.iter().filter_map(|name| name.strip_prefix("node"));
        Self(numbers.filter(|rest| rest.parse::<u32>().is_ok()).count())
    }
}

/// How far two functions are apart on PCIe. Levels and their names ([`Display`](fmt::Display)) are
/// those of `nvidia-smi topo -m`; smaller is nearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// `PIX`: behind the same switch, or the same port.
    SameSwitch,
    /// `PXB`: through several switches, and not through a host bridge.
    Switches,
    /// `PHB`: through the host bridge that both are behind, usually in the CPU.
    HostBridge,
    /// `NODE`: between host bridges of one NUMA node.
    Node,
    /// `SYS`: between NUMA nodes, or by a way that is not known.
    System,
}

impl Distance {
    /// What it means, in a few words.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::SameSwitch => "behind the same PCIe switch",
            Self::Switches => "through several PCIe switches",
            Self::HostBridge => "behind the same host bridge",
            Self::Node => "on the same NUMA node",
            Self::System => "not on the same NUMA node, as far as is known",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SameSwitch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
        })
    }
}

/// The way between two functions; `None` is one that the kernel does not list.
pub(crate) fn distance(a: Option<&Function>, b: Option<&Function>, nodes: Nodes) -> Distance {
    let (Some(a), Some(b)) = (a, b) else {
        return Distance::System;
    };
    let common = (a.path.iter().zip(&b.path))
        .take_while(|(a, b)| a == b)
        .count();
    match common {
        0 => match (a.numa_node, b.numa_node) {
            (Some(a), Some(b)) if a == b => Distance::Node,
            (Some(_), Some(_)) => Distance::System,
            // Where nobody says, there is only one to be on, or it is not known.
            _ if nodes.0 <= 1 => Distance::Node,
            _ => Distance::System,
        },
        1 => Distance::HostBridge,
        // A port of the switch and the device lie below what both have in common.
        common if a.path.len().max(b.path.len()) - common <= 2 => Distance::SameSwitch,
        _ => Distance::Switches,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(path: &str, numa_node: Option<u32>) -> Function {
        let path: Vec<String> = path.split('/').map(str::to_owned).collect();
        Function {
            address: path.last().unwrap().parse().unwrap(),
            vendor: 0,
            device: 0,
            class: 0,
            numa_node,
            path,
        }
    }

    #[test]
    fn addresses_are_those_of_lspci_and_cuda_and_nothing_else_is_one() {
        for (text, shown) in [
            ("0000:1b:00.0", "0000:1b:00.0"),
            ("00000000:1B:1F.7", "0000:1b:1f.7"),
            ("03:00.1", "0000:03:00.1"),
            (" 10000:01:00.0\n", "10000:01:00.0"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "1b",
            "1b:00",
            "0000:1b:00",
            "0000:1b:20.0",
            "0000:1b:00.8",
            "0000:100:00.0",
            "0:0000:1b:00.0",
            "+1:1b:00.0",
            "x:1b:00.0",
            ":1b:00.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn levels_are_those_of_nvidia_smi() {
        let gpu = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0";
        for (other, node, level) in [
            // Another port of the same switch.
            (
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0",
                0,
                "PIX",
            ),
            // A switch behind that switch.
            (
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0",
                0,
                "PXB",
            ),
            ("pci0000:15/0000:15:03.0/0000:1c:00.0", 0, "PHB"),
            ("pci0000:26/0000:26:01.0/0000:27:00.0", 0, "NODE"),
            ("pci0000:97/0000:97:01.0/0000:98:00.0", 1, "SYS"),
        ] {
            let (a, b) = (function(gpu, Some(0)), function(other, Some(node)));
            for (a, b) in [(&a, &b), (&b, &a)] {
                let found = distance(Some(a), Some(b), Nodes(2));
                assert_eq!(found.to_string(), level, "{other}");
            }
        }
        assert!(Distance::SameSwitch < Distance::Switches && Distance::Node < Distance::System);
    }

    #[test]
    fn a_node_that_is_not_known_never_fails() {
        let gpu = function("pci0000:15/0000:15:01.0", None);
        let nic = function("pci0000:26/0000:26:01.0", Some(0));
        for (nodes, level) in [
            (0, Distance::Node),
            (1, Distance::Node),
            (2, Distance::System),
        ] {
            assert_eq!(distance(Some(&gpu), Some(&nic), Nodes(nodes)), level);
            assert_eq!(distance(Some(&nic), Some(&gpu), Nodes(nodes)), level);
        }
        assert_eq!(distance(None, Some(&nic), Nodes(1)), Distance::System);
    }
}
