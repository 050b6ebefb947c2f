// SPDX-License-Identifier: MIT
//! Where ranks meet, as people write it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::BootstrapError;

/// An address of rank 0, with the network interface to use if one was named:
/// `ip:port`, `interface:ip:port`, `[ipv6]:port`, `interface:[ipv6]:port` or
/// `[ipv6%interface]:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootAddress {
    pub(crate) interface: Option<String>,
    pub(crate) socket: SocketAddr,
}

impl FromStr for RootAddress {
    type Err = BootstrapError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text.trim()).map_err(|reason| BootstrapError::BadAddress {
            text: text.into(),
            reason: reason.into(),
        })
    }
}

fn parse(text: &str) -> Result<RootAddress, &'static str> {
    let (mut interface, ip, port) = match text.split_once('[') {
        Some((before, bracketed)) => {
            let (inside, after) = bracketed
                .split_once(']')
                .ok_or("the bracket is not closed")?;
            let port = after.strip_prefix(':').ok_or("the port is missing")?;
            let interface = match before {
                "" => None,
                _ => Some(
                    before
                        .strip_suffix(':')
                        .ok_or("a colon is missing before the bracket")?,
                ),
            };
            (interface, inside, port)
        }
        None => match *text.split(':').collect::<Vec<_>>() {
            [ip, port] => (None, ip, port),
            [interface, ip, port] => (Some(interface), ip, port),
            [_] => return Err("the port is missing"),
            _ => return Err("an IPv6 address needs brackets"),
        },
    };
    let ip: IpAddr = if text.contains('[') {
        let (ip, zone) = match ip.split_once('%') {
            Some((ip, zone)) => (ip, Some(zone)),
            None => (ip, None),
        };
        if interface.is_some() && zone.is_some() {
            return Err("the interface is named twice");
        }
        interface = interface.or(zone);
        let ip: Ipv6Addr = ip
            .parse()
            .map_err(|_| "what is in brackets is no IPv6 address")?;
        if ip.is_unicast_link_local() {
            return Err("link-local addresses mean different things on different machines");
        }
        ip.into()
    } else {
        ip.parse().map_err(|_| "the ip is not numeric")?
    };
    let port: u16 = port
        .parse()
        .map_err(|_| "the port is no number up to 65535")?;
    if port == 0 {
        return Err("port 0 can not be found by others");
    }
    if ip.is_unspecified() || ip.is_multicast() {
        return Err("nobody can connect to this ip");
    }
    let interface = match interface {
        None => None,
        Some(name) if is_interface_name(name) => Some(name.to_owned()),
        Some(_) => return Err("that is no interface name"),
    };
    Ok(RootAddress {
        interface,
        socket: SocketAddr::new(ip, port),
    })
}

/// What Linux accepts: 1 to 15 bytes without slashes and white space.
fn is_interface_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control())
}

/// Where a launcher's ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// At an address that is known beforehand.
    At(RootAddress),
    /// At a name that has to be looked up.
    Named { host: String, port: u16 },
    /// At an address that rank 0 writes into a file that all ranks can read.
    File(PathBuf),
}

impl FromStr for Root {
    type Err = BootstrapError;

    /// Reads `MSCCLPP_ROOT`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().strip_prefix("file:") {
            Some("") => Err(BootstrapError::BadAddress {
                text: text.into(),
                reason: "the path is missing".into(),
            }),
            Some(path) => Ok(Self::File(path.into())),
            None => text.parse().map(Self::At),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> (Option<String>, String) {
        let root: RootAddress = text.parse().unwrap();
        (root.interface, root.socket.to_string())
    }

    #[test]
    fn every_documented_form_is_read() {
        assert_eq!(read("10.0.0.1:50000"), (None, "10.0.0.1:50000".into()));
        assert_eq!(
            read("eth0:10.0.0.1:5"),
            (Some("eth0".into()), "10.0.0.1:5".into())
        );
        assert_eq!(read("[::1]:5"), (None, "[::1]:5".into()));
        assert_eq!(read("ib0:[fd00::2]:5").0.as_deref(), Some("ib0"));
        assert_eq!(read("[fd00::2%ib0]:5").0.as_deref(), Some("ib0"));
    }

    #[test]
    fn what_can_not_be_an_address_is_refused_with_the_reason() {
        for bad in [
            "",
            ":",
            "10.0.0.1",
            "10.0.0.1:",
            "10.0.0.1:0",
            "10.0.0.1:65536",
            "host:80",
            "::1:80",
            "[::1]",
            "[::1]80",
            "[::1:80",
            "[10.0.0.1]:80",
            "[fe80::1%eth0]:80",
            "x[::1]:80",
            "0.0.0.0:80",
            "224.0.0.1:80",
            ":10.0.0.1:80",
            "a/b:10.0.0.1:80",
            "sixteen-letters-:10.0.0.1:80",
            "a:[::1%b]:80",
        ] {
            assert!(
                matches!(
                    bad.parse::<RootAddress>(),
                    Err(BootstrapError::BadAddress { .. })
                ),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_root_is_an_address_or_a_file() {
        assert_eq!(
            "file:/a/b".parse::<Root>().unwrap(),
            Root::File("/a/b".into())
        );
        assert!("file:".parse::<Root>().is_err());
        assert!(matches!("10.0.0.1:5".parse::<Root>().unwrap(), Root::At(_)));
    }

    proptest! {
        #[test]
        fn printed_addresses_are_read_again(ip in any::<IpAddr>(), port in 1_u16..) {
            let socket = SocketAddr::new(ip, port);
            if let Ok(root) = socket.to_string().parse::<RootAddress>() {
                prop_assert_eq!(root, RootAddress { interface: None, socket });
            } else {
                let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
                prop_assert!(ip.is_unspecified() || ip.is_multicast() || link_local);
            }
        }
    }

    #[test]
    fn fuzz_address() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(text) = std::str::from_utf8(bytes) {
                let _ = mscclpp_fuzz::in_proportion(bytes, || text.parse::<Root>());
            }
        });
    }
}
