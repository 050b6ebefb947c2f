// SPDX-License-Identifier: MIT
//! Which of a machine's network addresses ranks use.
//!
//! | variable | meaning |
//! |---|---|
//! | `MSCCLPP_SOCKET_IFNAME` | comma list of interface name prefixes; with `^` before the list: all but those; with `=` before it: whole names instead of prefixes |
//! | `MSCCLPP_SOCKET_FAMILY` | `AF_INET` or `AF_INET6`: addresses of that family only |
//! | `MSCCLPP_COMM_ID` | deprecated: an `ip:port`; an address in its subnet is preferred |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use crate::BootstrapError;
use crate::address::RootAddress;
use crate::launcher::{Variables, environment};

pub(crate) const IFNAME: &str = "MSCCLPP_SOCKET_IFNAME";
pub(crate) const FAMILY: &str = "MSCCLPP_SOCKET_FAMILY";
pub(crate) const COMM_ID: &str = "MSCCLPP_COMM_ID";

/// Chooses the address of this machine that other ranks should connect to.
///
/// If `MSCCLPP_SOCKET_IFNAME` is set, an interface that it matches, or an error.
/// Otherwise, with `towards` (an address of rank 0): an address in its subnet,
/// or the one from which the system would route there. Otherwise the first of:
/// an interface whose name begins with `ib`; an address in the subnet of
/// `MSCCLPP_COMM_ID`; any but `docker*` and `lo*`; `docker*`; `lo*`. IPv6 loopback
/// is chosen only for an IPv6 loopback `towards`; link-local IPv6 never.
///
/// # Errors
/// [`BootstrapError::NoInterface`] when no address fits,
/// [`BootstrapError::BadEnvironment`] when a variable makes no sense, and
/// [`BootstrapError::Io`] when the system does not tell its addresses.
pub fn choose(towards: Option<IpAddr>) -> Result<IpAddr, BootstrapError> {
    let rules = Rules::from_environment()?;
    pick(&list()?, &rules, towards, route)
}

/// The address of the interface with exactly this name, of the family of
/// `towards` where that is given.
///
/// # Errors
/// As [`choose`].
pub fn named(name: &str, towards: Option<IpAddr>) -> Result<IpAddr, BootstrapError> {
    let rules = Rules {
        names: Some(Names {
            patterns: vec![name.into()],
            exact: true,
            exclude: false,
        }),
        ..Rules::from_environment()?
    };
    pick(&list()?, &rules, towards, route)
}

/// Why no address of this machine fits the variables that `get` gives, whomever ranks meet.
pub(crate) fn fits(get: Variables<'_>) -> Result<(), BootstrapError> {
    let (all, rules) = (list()?, Rules::from_variables(get)?);
    // The loopback of IPv6 is chosen for ranks alone that meet there.
    let found = pick(&all, &rules, None, route);
    match pick(&all, &rules, Some(Ipv6Addr::LOCALHOST.into()), route) {
        Ok(_) => Ok(()),
        Err(_) => found.map(drop),
    }
}

/// One address of one interface.
#[derive(Clone, Debug)]
struct Candidate {
    name: String,
    ip: IpAddr,
    prefix: u8,
}

fn list() -> Result<Vec<Candidate>, BootstrapError> {
    let interfaces = if_addrs::get_if_addrs()
        .map_err(|e| BootstrapError::io("listing the network interfaces", e))?;
    let candidate = |interface: if_addrs::Interface| {
        let (ip, prefix) = match interface.addr {
            if_addrs::IfAddr::V4(v4) => (v4.ip.into(), v4.prefixlen),
            if_addrs::IfAddr::V6(v6) => (v6.ip.into(), v6.prefixlen),
        };
        Candidate {
            name: interface.name,
            ip,
            prefix,
        }
    };
    Ok(interfaces.into_iter().map(candidate).collect())
}

/// The source address for packets to `towards`. Connecting a datagram socket
/// sends nothing.
fn route(towards: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match towards {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // The port plays no role; 9 is "discard".
    socket.connect((towards, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Which interface names are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Names {
    patterns: Vec<String>,
    exact: bool,
    exclude: bool,
}

impl Names {
    fn parse(text: &str) -> Option<Self> {
        let (exclude, rest) = match text.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (exact, rest) = match rest.strip_prefix('=') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let patterns: Vec<String> = rest
            .split(',')
            .map(str::trim)
            .filter(|pattern| !pattern.is_empty())
            .map(str::to_owned)
            .collect();
        (!patterns.is_empty()).then_some(Self {
            patterns,
            exact,
            exclude,
        })
    }

    fn wants(&self, name: &str) -> bool {
        let named = self.patterns.iter().any(|pattern| {
            if self.exact {
                name == pattern
            } else {
                name.starts_with(pattern.as_str())
            }
        });
        named != self.exclude
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The rules that the environment sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    names: Option<Names>,
    family: Option<Family>,
    comm_id: Option<IpAddr>,
}

impl Rules {
    fn from_environment() -> Result<Self, BootstrapError> {
        Self::from_variables(environment)
    }

    pub(crate) fn from_variables(
        get: impl Fn(&str) -> Result<Option<String>, BootstrapError>,
    ) -> Result<Self, BootstrapError> {
        let bad = |variable: &str, value: String, reason: &str| BootstrapError::BadEnvironment {
            variable: variable.into(),
            value,
            reason: reason.into(),
        };
        let mut rules = Self::default();
        if let Some(text) = get(IFNAME)? {
            rules.names = Some(Names::parse(text.trim()).ok_or_else(|| {
                bad(
                    IFNAME,
                    text.clone(),
                    "it names no interface; write a comma list of name prefixes",
                )
            })?);
        }
        if let Some(text) = get(FAMILY)? {
            rules.family = Some(match text.trim() {
                "AF_INET" => Family::V4,
                "AF_INET6" => Family::V6,
                _ => {
                    return Err(bad(FAMILY, text, "write AF_INET or AF_INET6"));
                }
            });
        }
        if let Some(text) = get(COMM_ID)? {
            let root: Result<RootAddress, _> = text.parse();
            rules.comm_id = Some(
                root.map_err(|e| bad(COMM_ID, text.clone(), &e.to_string()))?
                    .socket
                    .ip(),
            );
        }
        Ok(rules)
    }
}

fn same_subnet(candidate: &Candidate, other: IpAddr) -> bool {
    match (candidate.ip, other) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let mask = u32::MAX
                .checked_shl(32 - u32::from(candidate.prefix.min(32)))
                .unwrap_or(0);
            u32::from(a) & mask == u32::from(b) & mask
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let mask = u128::MAX
                .checked_shl(128 - u32::from(candidate.prefix.min(128)))
                .unwrap_or(0);
            u128::from(a) & mask == u128::from(b) & mask
        }
        _ => false,
    }
}

fn pick(
    all: &[Candidate],
    rules: &Rules,
    towards: Option<IpAddr>,
    route: impl Fn(IpAddr) -> Option<IpAddr>,
) -> Result<IpAddr, BootstrapError> {
    let none = |reason: String| BootstrapError::NoInterface {
        reason,
        available: all
            .iter()
            .map(|c| format!("{} {}", c.name, c.ip))
            .collect::<Vec<_>>()
            .join(", "),
    };
    if let (Some(family), Some(ip)) = (rules.family, towards)
        && family != Family::of(ip)
    {
        return Err(none(format!(
            "MSCCLPP_SOCKET_FAMILY does not allow {ip}, where the ranks meet"
        )));
    }
    let family = rules.family.or(towards.map(Family::of));
    let usable: Vec<&Candidate> = all
        .iter()
        .filter(|c| family.is_none_or(|family| family == Family::of(c.ip)))
        .filter(|c| match c.ip {
            IpAddr::V4(_) => true,
            IpAddr::V6(ip) if ip.is_loopback() => towards == Some(c.ip),
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        })
        .collect();
    let first =
        |wanted: &dyn Fn(&Candidate) -> bool| usable.iter().find(|c| wanted(c)).map(|c| c.ip);
    if let Some(names) = &rules.names {
        // Of several addresses, the one that rank 0 reaches directly.
        let direct = towards.and_then(|ip| first(&|c| names.wants(&c.name) && same_subnet(c, ip)));
        return direct
            .or_else(|| first(&|c| names.wants(&c.name)))
            .ok_or_else(|| {
                none(format!(
                    "no interface fits the names asked for ({})",
                    names.patterns.join(", ")
                ))
            });
    }
    if let Some(ip) = towards {
        return first(&|c| c.ip == ip)
            .or_else(|| first(&|c| same_subnet(c, ip)))
            .or_else(|| route(ip))
            .ok_or_else(|| none(format!("nothing here reaches {ip}, where the ranks meet")));
    }
    let is = |c: &Candidate, prefix: &str| c.name.starts_with(prefix);
    first(&|c| is(c, "ib"))
        .or_else(|| rules.comm_id.and_then(|ip| first(&|c| same_subnet(c, ip))))
        .or_else(|| first(&|c| !is(c, "docker") && !is(c, "lo")))
        .or_else(|| first(&|c| is(c, "docker")))
        .or_else(|| first(&|c| is(c, "lo")))
        .ok_or_else(|| none("there is none of the family asked for".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Vec<Candidate> {
        [
            ("lo", "127.0.0.1", 8),
            ("lo", "::1", 128),
            ("docker0", "172.17.0.1", 16),
            ("eth0", "192.0.2.7", 24),
            ("eth0", "fe80::7", 64),
            ("eth0", "fd00::7", 64),
            ("eth1", "10.1.0.7", 16),
        ]
        .map(|(name, ip, prefix)| Candidate {
            name: name.into(),
            ip: ip.parse().unwrap(),
            prefix,
        })
        .to_vec()
    }

    fn with(names: &[&str], all: Vec<Candidate>) -> Vec<Candidate> {
        all.into_iter()
            .filter(|c| names.contains(&c.name.as_str()))
            .collect()
    }

    fn picked(all: &[Candidate], variables: &[(&str, &str)], towards: Option<&str>) -> String {
        let rules = Rules::from_variables(|name| {
            let found = variables.iter().find(|(n, _)| *n == name);
            Ok(found.map(|(_, value)| (*value).to_owned()))
        })
        .unwrap();
        let towards = towards.map(|ip| ip.parse().unwrap());
        match pick(all, &rules, towards, |_| None) {
            Ok(ip) => ip.to_string(),
            Err(error) => {
                assert!(matches!(error, BootstrapError::NoInterface { .. }));
                "none".into()
            }
        }
    }

    #[test]
    fn without_hints_the_order_is_ib_others_docker_loopback() {
        let mut all = machine();
        assert_eq!(picked(&all, &[], None), "192.0.2.7");
        all.push(Candidate {
            name: "ib0".into(),
            ip: "10.9.0.7".parse().unwrap(),
            prefix: 16,
        });
        assert_eq!(picked(&all, &[], None), "10.9.0.7");
        assert_eq!(
            picked(&with(&["lo", "docker0"], machine()), &[], None),
            "172.17.0.1"
        );
        assert_eq!(picked(&with(&["lo"], machine()), &[], None), "127.0.0.1");
        assert_eq!(picked(&[], &[], None), "none");
    }

    #[test]
    fn names_are_prefixes_unless_exact_and_can_be_excluded() {
        let all = machine();
        let name = |value| picked(&all, &[("MSCCLPP_SOCKET_IFNAME", value)], None);
        assert_eq!(name("eth1"), "10.1.0.7");
        assert_eq!(name("nope,eth"), "192.0.2.7");
        assert_eq!(name("=eth"), "none");
        assert_eq!(name("=eth1"), "10.1.0.7");
        assert_eq!(name("^lo,docker,eth0"), "10.1.0.7");
        assert_eq!(name("^=lo,docker0"), "192.0.2.7");
        assert_eq!(name("nope"), "none");
        assert_eq!(name("lo"), "127.0.0.1");
    }

    #[test]
    fn family_filters_and_contradictions_are_errors() {
        let all = machine();
        let family = [("MSCCLPP_SOCKET_FAMILY", "AF_INET6")];
        assert_eq!(picked(&all, &family, None), "fd00::7");
        assert_eq!(picked(&all, &family, Some("10.1.0.1")), "none");
        assert_eq!(picked(&with(&["lo"], machine()), &family, None), "none");
    }

    #[test]
    fn the_subnet_of_rank_0_decides() {
        let all = machine();
        assert_eq!(picked(&all, &[], Some("10.1.9.9")), "10.1.0.7");
        assert_eq!(picked(&all, &[], Some("127.0.0.1")), "127.0.0.1");
        assert_eq!(picked(&all, &[], Some("127.0.0.2")), "127.0.0.1");
        assert_eq!(picked(&all, &[], Some("::1")), "::1");
        assert_eq!(picked(&all, &[], Some("fd00::1")), "fd00::7");
        assert_eq!(picked(&all, &[], Some("8.8.8.8")), "none");
        let comm = [("MSCCLPP_COMM_ID", "10.1.2.3:50")];
        assert_eq!(picked(&all, &comm, None), "10.1.0.7");
    }

    #[test]
    fn variables_that_make_no_sense_are_named() {
        for (name, value) in [
            ("MSCCLPP_SOCKET_IFNAME", "^"),
            ("MSCCLPP_SOCKET_FAMILY", "ipv4"),
            ("MSCCLPP_COMM_ID", "here"),
        ] {
            let rules = Rules::from_variables(|n| Ok((n == name).then(|| value.to_owned())));
            let text = rules.unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
    }

    /// Each line of the input is the value of one variable.
    #[test]
    fn fuzz_interface_rules() {
        let names = [
            "MSCCLPP_SOCKET_IFNAME",
            "MSCCLPP_SOCKET_FAMILY",
            "MSCCLPP_COMM_ID",
        ];
        let all = machine();
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let lines: Vec<&str> = text.split('\n').collect();
            let get = |name: &str| {
                let line = names.iter().zip(&lines).find(|(n, _)| **n == name);
                Ok(line.map(|(_, line)| (*line).to_owned()))
            };
            let rules = mscclpp_fuzz::in_proportion(bytes, || Rules::from_variables(get));
            if let Ok(rules) = rules
                && let Ok(ip) = pick(&all, &rules, None, |_| None)
            {
                assert!(all.iter().any(|candidate| candidate.ip == ip));
            }
        });
    }

    #[test]
    fn this_machine_reaches_its_own_loopback() {
        assert!(choose(Some(Ipv4Addr::LOCALHOST.into())).is_ok());
    }
}
