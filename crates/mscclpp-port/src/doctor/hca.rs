// SPDX-License-Identifier: MIT
//! Each HCA, its ports and their addresses.

use super::live::AskedPort;
use super::{Check, CheckStatus, Seen, rdma};
use crate::ib::port::{Choice, Rejected, is_routable};
use crate::machine::{Function, RdmaDevice, RdmaPort, Root};
use crate::nearest::usable;
use crate::verbs::{LinkLayer, Mtu};

/// The vendor of ConnectX and BlueField.
pub(super) const MELLANOX: u16 = 0x15b3;
/// Class of network controllers.
const NETWORK: u32 = 0x02;

/// What a device number of that vendor is, by the kernel's list (mlx5_core).
pub(super) fn generation(device: u16) -> String {
    let name = match device {
        0x1011 => "Connect-IB",
        0x1012 => "Connect-IB VF",
        0x1013 => "ConnectX-4",
        0x1014 => "ConnectX-4 VF",
        0x1015 => "ConnectX-4 Lx",
        0x1016 => "ConnectX-4 Lx VF",
        0x1017 => "ConnectX-5",
        0x1018 => "ConnectX-5 VF",
        0x1019 => "ConnectX-5 Ex",
        0x101a => "ConnectX-5 Ex VF",
        0x101b => "ConnectX-6",
        0x101c => "ConnectX-6 VF",
        0x101d => "ConnectX-6 Dx",
        0x101e => "ConnectX VF",
        0x101f => "ConnectX-6 Lx",
        0x1021 => "ConnectX-7",
        0x1023 => "ConnectX-8",
        0xa2d2 => "BlueField (ConnectX-5)",
        0xa2d6 => "BlueField-2 (ConnectX-6 Dx)",
        0xa2dc => "BlueField-3 (ConnectX-7)",
        device => return format!("device {MELLANOX:04x}:{device:04x}"),
    };
    name.to_owned()
}

/// Adapters of that vendor.
pub(super) fn adapters(root: &Root) -> Vec<Function> {
    let functions = Function::all(root).into_iter();
    functions
        .filter(|function| function.vendor == MELLANOX && function.class >> 16 == NETWORK)
        .collect()
}

pub(super) fn checks(seen: &Seen<'_>, device: &RdmaDevice) -> Vec<Check> {
    let mut checks = vec![itself(device), rdma::access(seen, device)];
    let has_usable = |port: &RdmaPort| usable(port, seen.live.wish).is_ok();
    let other_works = device.ports.iter().any(has_usable);
    for port in &device.ports {
        checks.push(link(seen, device, port, other_works));
        checks.push(address(seen, device, port));
    }
    checks.push(atomics(seen, device));
    checks.push(ordering(seen, device));
    checks
}

fn itself(device: &RdmaDevice) -> Check {
    let mut parts = Vec::new();
    match &device.function {
        Some(function) if function.vendor == MELLANOX => parts.push(generation(function.device)),
        Some(function) => {
            parts.push(format!(
                "device {:04x}:{:04x}",
                function.vendor, function.device
            ));
        }
        None => parts.push("in software, or by a bus that is not PCIe".into()),
    }
    if device.is_virtual {
        parts.push("a virtual function (SR-IOV) of this machine".into());
    }
    if let Some(function) = &device.function {
        parts.push(function.address.to_string());
        if let Some(node) = function.numa_node {
            parts.push(format!("NUMA node {node}"));
        }
    }
    let known = [("firmware", &device.firmware), ("board", &device.board)];
    for (what, value) in known {
        if let Some(value) = value {
            parts.push(format!("{what} {value}"));
        }
    }
    let ports = device.ports.len();
    parts.push(format!("{ports} port{}", if ports == 1 { "" } else { "s" }));
    Check::ok(format!("hca {}", device.name), parts.join(", "))
}

fn name(device: &RdmaDevice, port: &RdmaPort) -> String {
    format!("hca {} port {}", device.name, port.facts.number)
}

fn link(seen: &Seen<'_>, device: &RdmaDevice, port: &RdmaPort, other_works: bool) -> Check {
    let mut parts = Vec::new();
    match &port.facts.state {
        Ok(()) => parts.push("active".to_owned()),
        Err(why) => parts.push(why.clone()),
    }
    parts.extend(port.physical.clone());
    parts.push(match port.link_layer {
        Some(layer) => layer.to_string(),
        None => "neither InfiniBand nor Ethernet".into(),
    });
    parts.extend(port.rate.clone());
    let asked = seen.live.hcas.get(&device.name);
    let asked = asked.and_then(|hca| hca.as_ref().ok()?.ports.get(&port.facts.number));
    parts.push(mtu(port, asked));
    let ethernet = port.link_layer == Some(LinkLayer::Ethernet);
    // Over Ethernet all packets do.
    if !ethernet && asked.is_some_and(|asked| asked.grh_required) {
        parts.push("needs a global route (GRH)".into());
    }
    let dev = port.network.as_deref().unwrap_or("DEV");
    let small = asked.is_some_and(|asked| asked.active_mtu < asked.max_mtu);
    let (status, fix) = match &port.facts.state {
        Ok(()) if small && ethernet => (
            CheckStatus::Ok,
            format!("larger packets: ip link set {dev} mtu 4200, here, at peers and in switches"),
        ),
        Ok(()) => (CheckStatus::Ok, String::new()),
        Err(_) if other_works => (CheckStatus::NotNeeded, String::new()),
        Err(_) if ethernet => (
            CheckStatus::Missing,
            format!("ip link set {dev} up; look at cable and switch"),
        ),
        Err(_) => (
            CheckStatus::Missing,
            "look at cable and switch; a port in INIT waits for a subnet manager (opensm)".into(),
        ),
    };
    Check::new(name(device, port), status, parts.join(", "), fix)
}

/// Now and at best, by libibverbs; that of the network interface, by sysfs.
fn mtu(port: &RdmaPort, asked: Option<&AskedPort>) -> String {
    let mut text = match asked {
        Some(asked) => {
            let bytes = |mtu: Option<Mtu>| mtu.map_or("unknown".into(), |mtu| mtu.to_string());
            let (active, max) = (bytes(asked.active_mtu), bytes(asked.max_mtu));
            format!("MTU {active} of at most {max}")
        }
        None => "MTU not known without libibverbs".into(),
    };
    if let (Some(name), Some(mtu)) = (&port.network, port.network_mtu) {
        text += &format!(", {name} has {mtu}");
    }
    text
}

fn address(seen: &Seen<'_>, device: &RdmaDevice, port: &RdmaPort) -> Check {
    let name = format!("{} gid", name(device, port));
    if let Err(why) = &port.facts.state {
        return Check::not_needed(name, format!("none is chosen: {why}"));
    }
    match usable(port, seen.live.wish) {
        Ok(choice) => {
            let reason = reason(seen, port, &choice);
            let mut found = format!("takes {} ({reason})", choice.gid);
            let routable: Vec<String> = (port.facts.gids.iter())
                .filter(|gid| port.link_layer == Some(LinkLayer::Ethernet) && is_routable(gid))
                .map(|gid| gid.index.to_string())
                .collect();
            if !routable.is_empty() {
                found += &format!("; routable RoCE v2: {}", routable.join(", "));
            }
            Check::ok(name, found + &not_taken(&choice.rejected))
        }
        Err(why) => Check::missing(
            name,
            why,
            format!(
                "ip addr add ADDRESS/PREFIX dev {}, or name an entry in MSCCLPP_IB_GID_INDEX",
                port.network.as_deref().unwrap_or("DEV")
            ),
        ),
    }
}

fn reason(seen: &Seen<'_>, port: &RdmaPort, choice: &Choice) -> &'static str {
    if seen.live.wish.gid_index.is_some() {
        "MSCCLPP_IB_GID_INDEX says so"
    } else if port.link_layer == Some(LinkLayer::InfiniBand) {
        "the port's own"
    } else if choice.gid.ipv4().is_some() == seen.live.wish.ipv6 {
        "RoCE v2 and routable, of another family than peers connect by"
    } else {
        "the first that is RoCE v2, routable and of the family by which peers connect"
    }
}

/// The others, by what is wrong with them.
fn not_taken(rejected: &Rejected) -> String {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for (index, why) in rejected {
        match reasons.iter_mut().find(|(reason, _)| reason == why) {
            Some((_, indices)) => indices.push(index.to_string()),
            None => reasons.push((why, vec![index.to_string()])),
        }
    }
    let parts = reasons.iter();
    let parts: Vec<String> = parts
        .map(|(why, indices)| format!("; not {}: {why}", indices.join(", ")))
        .collect();
    parts.concat()
}

fn atomics(seen: &Seen<'_>, device: &RdmaDevice) -> Check {
    let name = format!("hca {} atomics", device.name);
    match seen.live.hcas.get(&device.name) {
        Some(Ok(asked)) if asked.atomics => Check::ok(name, "64-bit"),
        Some(Ok(_)) => Check::not_needed(
            name,
            "none: the proxy's peer raises the tokens itself (IbMode::HostNoAtomic)",
        ),
        Some(Err(why)) => Check::new(
            name,
            CheckStatus::Unknown,
            why,
            format!("see hca {} device file", device.name),
        ),
        None => Check::new(
            name,
            CheckStatus::Unknown,
            "only libibverbs knows, which was not asked",
            "see libibverbs",
        ),
    }
}

/// Where functions of PCIe have their control register, and the bit in it.
const CAPABILITIES: usize = 0x34;
const EXPRESS: u8 = 0x10;
const DEVICE_CONTROL: usize = 8;
const RELAXED: u16 = 1 << 4;
/// What everybody may read of a function's configuration.
const FOR_EVERYBODY: usize = 64;

/// Whether a function may relax the order of its writes; `None` if its configuration does not tell.
pub(super) fn relaxed(config: &[u8]) -> Option<bool> {
    let mut at = usize::from(*config.get(CAPABILITIES)?);
    // No list is longer: a capability has 4 bytes, and they lie in 192.
    for _ in 0..48 {
        if at < FOR_EVERYBODY {
            return None;
        }
        if *config.get(at)? == EXPRESS {
            let at = at + DEVICE_CONTROL;
            let word = [*config.get(at)?, *config.get(at + 1)?];
            return Some(u16::from_le_bytes(word) & RELAXED != 0);
        }
        at = usize::from(*config.get(at + 1)? & !3);
    }
    None
}

fn ordering(seen: &Seen<'_>, device: &RdmaDevice) -> Check {
    let name = format!("hca {} relaxed ordering", device.name);
    let Some(function) = &device.function else {
        return Check::not_needed(name, "it is not on PCIe");
    };
    let path = format!("/sys/bus/pci/devices/{}/config", function.address);
    let config = seen.root.bytes(&path).unwrap_or_default();
    match relaxed(&config) {
        Some(true) => Check::ok(name, "its PCIe function may relax the order of payload"),
        Some(false) => Check::missing(
            name,
            "switched off in its PCIe function: payload is slower on some hosts",
            format!(
                "setpci -s {} CAP_EXP+8.w=10:10 (apt install pciutils), or in the BIOS",
                function.address
            ),
        ),
        None => Check::new(
            name,
            CheckStatus::Unknown,
            format!(
                "{path} shows {} bytes, without the PCIe capability",
                config.len()
            ),
            "run it as root, who sees all of it",
        ),
    }
}
