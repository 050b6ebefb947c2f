// SPDX-License-Identifier: MIT
//! Which port of an HCA is used, and which of its GIDs: decided from what the HCA says, without I/O.

use std::net::Ipv6Addr;

use crate::verbs::{Gid, GidKind, LinkLayer, PortState};

/// What an HCA says of one of its ports.
#[derive(Debug, Clone)]
pub(crate) struct PortFacts {
    pub(crate) number: u8,
    /// In its own word, where it is not active.
    pub(crate) state: Result<(), String>,
    /// Its link layer, if that is one of those that there are.
    pub(crate) ethernet: Option<bool>,
    pub(crate) gids: Vec<Gid>,
}

impl PortFacts {
    /// `link_layer`: `None` where it is not known.
    pub(crate) fn new(
        number: u8,
        state: PortState,
        link_layer: Option<LinkLayer>,
        gids: Vec<Gid>,
    ) -> Self {
        Self {
            number,
            state: match state {
                PortState::Active | PortState::ActiveDeferred => Ok(()),
                state => Err(format!("it is {state}")),
            },
            ethernet: match link_layer {
                Some(LinkLayer::Ethernet) => Some(true),
                Some(LinkLayer::InfiniBand) => Some(false),
                _ => None,
            },
            gids,
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wish {
    pub(crate) port: Option<u8>,
    pub(crate) gid_index: Option<u32>,
    /// The family by which peers connect to this context.
    pub(crate) ipv6: bool,
}

/// The port and the entry of its table of GIDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) port: u8,
    pub(crate) gid: Gid,
    pub(crate) rejected: Rejected,
}

/// Entries that were not taken, by their index, and why.
pub(crate) type Rejected = Vec<(u32, &'static str)>;

/// The port that was asked for, or the first that can be used. An error tells what is wrong with each.
pub(crate) fn choose(ports: &[PortFacts], wish: Wish) -> Result<Choice, String> {
    if let Some(number) = wish.port {
        let Some(port) = ports.iter().find(|port| port.number == number) else {
            return Err(format!(
                "port {number} was asked for, and it has {}",
                ports.len()
            ));
        };
        return choose_one(port, wish).map_err(|why| format!("port {number}: {why}"));
    }
    let mut reasons = Vec::new();
    for port in ports {
        match choose_one(port, wish) {
            Ok(choice) => return Ok(choice),
            Err(why) => reasons.push(format!("port {}: {why}", port.number)),
        }
    }
    Err(format!("no port can be used: {}", reasons.join("; ")))
}

/// The same for one port.
pub(crate) fn choose_one(port: &PortFacts, wish: Wish) -> Result<Choice, String> {
    port.state.clone()?;
    let ethernet = (port.ethernet).ok_or("its link layer is neither InfiniBand nor Ethernet")?;
    let (gid, rejected) = match wish.gid_index {
        Some(index) => (explicit(&port.gids, index)?, Vec::new()),
        None if ethernet => best(&port.gids, wish.ipv6)?,
        // The port's own number, with the prefix of its subnet.
        None => (explicit(&port.gids, 0)?, Vec::new()),
    };
    Ok(Choice {
        port: port.number,
        gid,
        rejected,
    })
}

/// The attributes of a queue pair have eight bits for an index; tables can be longer.
const LAST_INDEX: u32 = u8::MAX as u32;

/// An index that somebody has chosen is obeyed, and must have something in it.
fn explicit(gids: &[Gid], index: u32) -> Result<Gid, String> {
    if index > LAST_INDEX && gids.iter().any(|gid| gid.index == index) {
        return Err(format!(
            "GID index {index} (MSCCLPP_IB_GID_INDEX, IbConfig::gid_index): queue pairs can name 0 to \
             {LAST_INDEX} only"
        ));
    }
    let entry = gids.iter().find(|gid| gid.index == index);
    entry.cloned().ok_or_else(|| {
        let known: Vec<String> = gids.iter().map(Gid::to_string).collect();
        format!(
            "GID index {index} is empty or beyond its table (MSCCLPP_IB_GID_INDEX, \
             IbConfig::gid_index); it has {}",
            if known.is_empty() {
                "none".into()
            } else {
                known.join(", ")
            }
        )
    })
}

/// How good an entry is for RoCE, and what is wrong with it. Smaller is better.
fn rank(gid: &Gid, ipv6: bool) -> (u32, &'static str) {
    let address = Ipv6Addr::from(gid.raw);
    match gid.kind {
        GidKind::RoceV2 => {}
        GidKind::RoceV1 => return (4, "RoCE v1, which routers do not pass on"),
        _ => return (5, "not of RoCE"),
    }
    match address.to_ipv4_mapped() {
        Some(ip) if ip.is_unspecified() || ip.is_loopback() => (3, "the loopback address"),
        Some(ip) if ip.is_link_local() => (2, "link-local"),
        Some(_) if ipv6 => (1, "IPv4, and peers connect by IPv6"),
        Some(_) => (0, "a later one of the same kind"),
        None if address.is_unicast_link_local() => (2, "link-local"),
        None if address.is_unspecified() || address.is_loopback() => (3, "the loopback address"),
        None if ipv6 => (0, "a later one of the same kind"),
        None => (1, "IPv6, and peers connect by IPv4"),
    }
}

/// The best entry for RoCE, and why not the others. One that packets cannot be routed to is better
/// than none, and its index is never 0 only because 0 comes first.
fn best(gids: &[Gid], ipv6: bool) -> Result<(Gid, Rejected), String> {
    let named = gids.iter().filter(|gid| gid.index <= LAST_INDEX);
    let ranked = named.map(|gid| (rank(gid, ipv6), gid));
    let best = (ranked.clone()).min_by_key(|((rank, _), gid)| (*rank, gid.index));
    let Some(((_, _), best)) = best else {
        return Err("its table of GIDs is empty: give its network interface an address".into());
    };
    let others = ranked.filter(|(_, gid)| gid.index != best.index);
    let rejected = others.map(|((_, why), gid)| (gid.index, why)).collect();
    Ok((best.clone(), rejected))
}

/// Whether packets to a GID pass routers.
pub(crate) fn is_routable(gid: &Gid) -> bool {
    rank(gid, false).0 <= 1
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn gid(index: u32, address: &str, kind: GidKind) -> Gid {
        let raw = match address.parse().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        Gid {
            index,
            raw,
            kind,
            netdev: None,
        }
    }

    fn port(number: u8, gids: Vec<Gid>) -> PortFacts {
        PortFacts {
            number,
            state: Ok(()),
            ethernet: Some(true),
            gids,
        }
    }

    /// What a port of RoCE shows: each address once for v1 and once for v2.
    fn usual() -> Vec<Gid> {
        use GidKind::{RoceV1, RoceV2};
        vec![
            gid(0, "fe80::1", RoceV1),
            gid(1, "fe80::1", RoceV2),
            gid(2, "10.1.2.3", RoceV1),
            gid(3, "10.1.2.3", RoceV2),
            gid(4, "fd00::7", RoceV1),
            gid(5, "fd00::7", RoceV2),
            gid(6, "10.1.2.4", RoceV2),
        ]
    }

    fn index(gids: &[Gid], wish: Wish) -> u32 {
        choose(&[port(1, gids.to_vec())], wish).unwrap().gid.index
    }

    #[test]
    fn ib_the_routable_entry_of_the_right_family_is_chosen_and_the_others_are_told() {
        let v4 = Wish::default();
        let v6 = Wish { ipv6: true, ..v4 };
        assert_eq!((index(&usual(), v4), index(&usual(), v6)), (3, 5));
        let choice = choose(&[port(1, usual())], v4).unwrap();
        let rejected = |index| choice.rejected.iter().find(|(i, _)| *i == index).unwrap().1;
        assert_eq!(choice.rejected.len(), usual().len() - 1);
        assert_eq!(rejected(0), "RoCE v1, which routers do not pass on");
        assert_eq!(rejected(1), "link-local");
        assert_eq!(rejected(5), "IPv6, and peers connect by IPv4");
        assert_eq!(rejected(6), "a later one of the same kind");
        // A port that has only the other family is used with that.
        let only_v6: Vec<Gid> = usual()
            .drain(..)
            .filter(|gid| gid.index > 3 && gid.index < 6)
            .collect();
        assert_eq!(index(&only_v6, v4), 5);
    }

    #[test]
    fn ib_what_cannot_be_routed_is_the_last_resort_and_never_index_0_unseen() {
        use GidKind::{RoceV1, RoceV2};
        let table = [gid(0, "fe80::1", RoceV1), gid(1, "fe80::1", RoceV2)];
        let choice = choose(&[port(1, table.to_vec())], Wish::default()).unwrap();
        assert_eq!(choice.gid.index, 1);
        assert!(!is_routable(&choice.gid));
        assert!(
            is_routable(&gid(3, "10.0.0.1", RoceV2)) && is_routable(&gid(3, "fd00::1", RoceV2))
        );
        let loopback = [gid(0, "127.0.0.1", RoceV2), gid(1, "169.254.1.1", RoceV2)];
        assert_eq!(index(&loopback, Wish::default()), 1);
    }

    #[test]
    fn ib_an_index_that_was_asked_for_is_obeyed_or_refused() {
        let asked = |gid_index| Wish {
            gid_index: Some(gid_index),
            ..Wish::default()
        };
        // Bad as it may be.
        assert_eq!(index(&usual(), asked(0)), 0);
        for missing in [7, u32::MAX] {
            let error = choose(&[port(1, usual())], asked(missing)).unwrap_err();
            assert!(error.contains("MSCCLPP_IB_GID_INDEX"), "{error}");
            assert!(error.contains("3: ::ffff:10.1.2.3 (RoCE v2)"), "{error}");
        }
        // There, and out of a queue pair's reach.
        let long = [gid(300, "10.0.0.1", GidKind::RoceV2)];
        let error = choose(&[port(1, long.to_vec())], asked(300)).unwrap_err();
        assert!(error.contains("0 to 255"), "{error}");
        assert!(choose(&[port(1, long.to_vec())], Wish::default()).is_err());
    }

    #[test]
    fn ib_infiniband_takes_the_ports_own_gid() {
        let port = PortFacts {
            ethernet: Some(false),
            ..port(
                1,
                vec![
                    gid(0, "fe80::3", GidKind::InfiniBand),
                    gid(1, "fd00::3", GidKind::InfiniBand),
                ],
            )
        };
        let choice = choose(&[port], Wish::default()).unwrap();
        assert_eq!(choice.gid.index, 0);
    }

    #[test]
    fn ib_the_first_active_port_is_chosen_and_one_that_was_asked_for_is_checked() {
        let down = PortFacts {
            state: Err("it is down".into()),
            ..port(1, usual())
        };
        let strange = PortFacts {
            ethernet: None,
            ..port(2, usual())
        };
        let empty = port(3, Vec::new());
        let ports = [down, strange, empty, port(4, usual()), port(5, usual())];
        let wish = |port| Wish {
            port,
            ..Wish::default()
        };
        assert_eq!(choose(&ports, wish(None)).unwrap().port, 4);
        assert_eq!(choose(&ports, wish(Some(5))).unwrap().port, 5);
        for (number, text) in [
            (1, "down"),
            (2, "link layer"),
            (3, "empty"),
            (9, "it has 5"),
        ] {
            let error = choose(&ports, wish(Some(number))).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        let error = choose(&ports[..3], wish(None)).unwrap_err();
        for text in [
            "port 1: it is down",
            "port 2",
            "port 3",
            "no port can be used",
        ] {
            assert!(error.contains(text), "{error}");
        }
    }
}
