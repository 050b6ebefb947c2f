// SPDX-License-Identifier: MIT
//! Ports of a device, and their addresses.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use mscclpp_ib_sys as sys;

/// A port, as it was when it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortAttributes {
    /// Counted from 1.
    pub number: u8,
    /// Whether it can be used.
    pub state: PortState,
    /// What it is a port of.
    pub link_layer: LinkLayer,
    /// The largest payload of a packet, now; `None` if it has no value that is known.
    pub active_mtu: Option<Mtu>,
    /// The same, at best.
    pub max_mtu: Option<Mtu>,
    /// Its address within an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// How many indices its table of GIDs has; not all need to have one.
    pub gid_table_len: u32,
    /// Whether packets need a global route also within an InfiniBand subnet.
    pub grh_required: bool,
    /// The largest message, in bytes.
    pub max_message: u32,
}

impl PortAttributes {
    pub(super) fn new(number: u8, port: &sys::ibv_port_attr) -> Self {
        Self {
            number,
            state: PortState::from_number(port.state),
            link_layer: LinkLayer::from_number(port.link_layer),
            active_mtu: Mtu::from_code(port.active_mtu),
            max_mtu: Mtu::from_code(port.max_mtu),
            lid: port.lid,
            gid_table_len: u32::try_from(port.gid_tbl_len).unwrap_or(0),
            grh_required: port.flags & sys::IB_UVERBS_QPF_GRH_REQUIRED != 0,
            max_message: port.max_msg_sz,
        }
    }

    /// Whether packets between this port and others have a global route, and so need a GID: always
    /// over Ethernet.
    #[must_use]
    pub fn needs_gid(&self) -> bool {
        self.link_layer == LinkLayer::Ethernet || self.grh_required
    }
}

/// State of a port; numbers of `ibv_port_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// Nothing is connected, or it was taken down.
    Down,
    /// The link is up and has no address yet: a subnet manager is missing.
    Init,
    /// Addressed, and not yet active.
    Armed,
    /// It can be used.
    Active,
    /// Active, and its link is being brought up again.
    ActiveDeferred,
    /// Another.
    Unknown(u32),
}

impl PortState {
    pub(crate) fn from_number(number: u32) -> Self {
        match number {
            sys::IBV_PORT_DOWN => Self::Down,
            sys::IBV_PORT_INIT => Self::Init,
            sys::IBV_PORT_ARMED => Self::Armed,
            sys::IBV_PORT_ACTIVE => Self::Active,
            sys::IBV_PORT_ACTIVE_DEFER => Self::ActiveDeferred,
            number => Self::Unknown(number),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "down",
            Self::Init => "initialising (no subnet manager?)",
            Self::Armed => "armed, not active",
            Self::Active => "active",
            Self::ActiveDeferred => "active, deferred",
            Self::Unknown(number) => return write!(f, "in unknown state {number}"),
        })
    }
}

/// What a port is a port of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand, which is also what devices without the property are.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Another.
    Unknown(u8),
}

impl LinkLayer {
    fn from_number(number: u8) -> Self {
        match number {
            sys::IBV_LINK_LAYER_UNSPECIFIED | sys::IBV_LINK_LAYER_INFINIBAND => Self::InfiniBand,
            sys::IBV_LINK_LAYER_ETHERNET => Self::Ethernet,
            number => Self::Unknown(number),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Unknown(number) => return write!(f, "unknown link layer {number}"),
        })
    }
}

/// Payload of the largest packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(u8);

impl Mtu {
    /// 256 bytes.
    pub const SMALLEST: Self = Self(1);
    /// 4096 bytes.
    pub const LARGEST: Self = Self(5);

    /// That of a code of verbs: 1 for 256 bytes to 5 for 4096.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            1..=5 => Some(Self(code as u8)),
            _ => None,
        }
    }

    /// Its code.
    #[must_use]
    pub fn code(self) -> u8 {
        self.0
    }

    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        128 << self.0
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// An address of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    /// Where it is in the port's table.
    pub index: u32,
    /// The address.
    pub raw: [u8; 16],
    /// Which packets are sent from it.
    pub kind: GidKind,
    /// The network interface that it belongs to.
    pub netdev: Option<String>,
}

impl Gid {
    /// The IPv4 address that it stands for, on RoCE.
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.raw).to_ipv4_mapped()
    }

    /// Whether it is known within one link only (fe80::/10), and so leads through no router.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        self.raw[0] == 0xfe && self.raw[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.raw);
        write!(f, "{}: {address} ({}", self.index, self.kind)?;
        match &self.netdev {
            Some(name) => write!(f, ", {name})"),
            None => f.write_str(")"),
        }
    }
}

/// Which packets are sent from a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: Ethernet frames, which no router passes on.
    RoceV1,
    /// RoCE v2: UDP.
    RoceV2,
    /// Another.
    Unknown(u32),
}

impl GidKind {
    pub(super) fn from_number(number: u32) -> Self {
        match number {
            sys::IBV_GID_TYPE_IB => Self::InfiniBand,
            sys::IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            number => Self::Unknown(number),
        }
    }

    /// From the words in sysfs, which says the same of InfiniBand and RoCE v1.
    pub(crate) fn from_sysfs(text: &str, link_layer: LinkLayer) -> Option<Self> {
        match (text.trim(), link_layer) {
            ("RoCE v2", _) => Some(Self::RoceV2),
            ("IB/RoCE v1", LinkLayer::Ethernet) => Some(Self::RoceV1),
            ("IB/RoCE v1", _) => Some(Self::InfiniBand),
            _ => None,
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Unknown(number) => return write!(f, "unknown kind {number}"),
        })
    }
}
