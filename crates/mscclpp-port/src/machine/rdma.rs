// SPDX-License-Identifier: MIT
//! RDMA devices and their ports, from /sys/class/infiniband.

use std::net::Ipv6Addr;

use super::{Function, Root};
use crate::ib::port::PortFacts;
use crate::verbs::{Gid, GidKind, LinkLayer, PortState};

/// An RDMA device.
#[derive(Debug, Clone)]
pub(crate) struct RdmaDevice {
    pub(crate) name: String,
    /// `None` for devices in software.
    pub(crate) function: Option<Function>,
    /// Whether it is a virtual function of a device of this machine.
    pub(crate) is_virtual: bool,
    pub(crate) firmware: Option<String>,
    pub(crate) board: Option<String>,
    /// Name of its file in /dev/infiniband.
    pub(crate) uverbs: Option<String>,
    pub(crate) ports: Vec<RdmaPort>,
}

/// A port of it.
#[derive(Debug, Clone)]
pub(crate) struct RdmaPort {
    /// What the choice of port and GID stands on.
    pub(crate) facts: PortFacts,
    pub(crate) link_layer: Option<LinkLayer>,
    /// As the kernel words it: `LinkUp`, `Polling`, `Disabled`.
    pub(crate) physical: Option<String>,
    /// As the kernel words it: `400 Gb/sec (4X NDR)`.
    pub(crate) rate: Option<String>,
    /// Its network interface, if it has one.
    pub(crate) network: Option<String>,
    pub(crate) network_mtu: Option<u32>,
}

impl RdmaPort {
    /// Its rate as a number, in Gb/s; 0 where it is not known.
    pub(crate) fn gigabits(&self) -> u32 {
        let word = self.rate.as_deref().and_then(|rate| rate.split(' ').next());
        // The slowest have a fraction: 2.5 Gb/sec.
        word.and_then(|word| word.parse().ok())
            .map_or(0, |rate: f64| rate as u32)
    }
}

impl RdmaDevice {
    /// All of them, by name.
    pub(crate) fn all(root: &Root) -> Vec<Self> {
        let names = root.names("/sys/class/infiniband").into_iter();
        names.map(|name| Self::read(root, name)).collect()
    }

    fn read(root: &Root, name: String) -> Self {
        let directory = format!("/sys/class/infiniband/{name}");
        let text = |file: &str| root.text(&format!("{directory}/{file}"));
        let device = root.resolve(&format!("{directory}/device"));
        let address = device.and_then(|path| path.rsplit('/').next()?.parse().ok());
        let uverbs = root.names("/sys/class/infiniband_verbs").into_iter();
        let uverbs = uverbs
            .filter(|file| file.starts_with("uverbs"))
            .find(|file| {
                let owner = root.text(&format!("/sys/class/infiniband_verbs/{file}/ibdev"));
                owner.as_deref() == Some(&name)
            });
        let numbers = root.names(&format!("{directory}/ports")).into_iter();
        Self {
            function: address.and_then(|address| Function::read(root, address)),
            is_virtual: root.exists(&format!("{directory}/device/physfn")),
            firmware: text("fw_ver").filter(|text| !text.is_empty()),
            board: text("board_id").filter(|text| !text.is_empty()),
            uverbs,
            ports: numbers
                .filter_map(|number| RdmaPort::read(root, &directory, number.parse().ok()?))
                .collect(),
            name,
        }
    }
}

impl RdmaPort {
    fn read(root: &Root, device: &str, number: u8) -> Option<Self> {
        let directory = format!("{device}/ports/{number}");
        let text = |file: &str| root.text(&format!("{directory}/{file}"));
        // `4: ACTIVE`
        let coded = |file: &str| {
            let text = text(file)?;
            let (code, word) = text.split_once(':')?;
            Some((code.parse::<u32>().ok()?, word.trim().to_owned()))
        };
        let link_layer = match text("link_layer").as_deref() {
            Some("InfiniBand") => Some(LinkLayer::InfiniBand),
            Some("Ethernet") => Some(LinkLayer::Ethernet),
            _ => None,
        };
        let gids = gids(root, &directory, link_layer);
        // Without an address no GID names it.
        let of_device = root.names(&format!("{device}/device/net"));
        let alone = (of_device.len() == 1).then(|| of_device[0].clone());
        let network = (gids.iter().find_map(|gid| gid.netdev.clone())).or(alone);
        let network_mtu = network.as_ref().and_then(|name| {
            let mtu = root.number(&format!("/sys/class/net/{name}/mtu"))?;
            u32::try_from(mtu).ok()
        });
        let (state, _) = coded("state")?;
        Some(Self {
            facts: PortFacts::new(number, PortState::from_number(state), link_layer, gids),
            link_layer,
            physical: coded("phys_state").map(|(_, word)| word),
            rate: text("rate"),
            network,
            network_mtu,
        })
    }
}

/// The entries of a table that have something in them.
fn gids(root: &Root, port: &str, link_layer: Option<LinkLayer>) -> Vec<Gid> {
    let attribute = |what: &str, index: u32| root.text(&format!("{port}/gid_attrs/{what}/{index}"));
    let gid = |name: String| {
        let index: u32 = name.parse().ok()?;
        let raw = root.text(&format!("{port}/gids/{name}"))?;
        let raw = raw.parse::<Ipv6Addr>().ok()?.octets();
        let kind = attribute("types", index)
            .and_then(|text| GidKind::from_sysfs(&text, link_layer?))
            .unwrap_or(GidKind::Unknown(u32::MAX));
        (raw != [0; 16]).then(|| Gid {
            index,
            raw,
            kind,
            netdev: attribute("ndevs", index).filter(|name| !name.is_empty()),
        })
    };
    let names = root.names(&format!("{port}/gids")).into_iter();
    names.filter_map(gid).collect()
}
