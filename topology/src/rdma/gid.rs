//! The address (GID) that a port is reached by. RoCE ports have several of unlike use, and the wrong one is silence on
//! the wire: so the choice has an order, and the table can be shown.

use std::fmt;
use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use super::{Framing, Gid, LinkLayer, RdmaPort};
use crate::{Error, Result, printable};

/// What an address is good for, best first. Two ports reach each other by addresses of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GidClass {
    /// InfiniBand.
    #[serde(rename = "infiniband")]
    InfiniBand,
    /// RoCE v2 over IPv4: routed.
    RoceV2Ipv4,
    /// RoCE v2 over IPv6: routed.
    RoceV2Ipv6,
    /// RoCE v2 over IPv4 addresses that hold on one link (169.254.0.0/16).
    RoceV2Ipv4Link,
    /// RoCE v2 over IPv6 addresses that hold on one link (fe80::/10).
    RoceV2Ipv6Link,
    /// RoCE v1: on one link.
    RoceV1,
}

impl fmt::Display for GidClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GidClass::InfiniBand => "InfiniBand",
            GidClass::RoceV2Ipv4 => "RoCE v2, IPv4",
            GidClass::RoceV2Ipv6 => "RoCE v2, IPv6",
            GidClass::RoceV2Ipv4Link => "RoCE v2, IPv4 link-local",
            GidClass::RoceV2Ipv6Link => "RoCE v2, IPv6 link-local",
            GidClass::RoceV1 => "RoCE v1",
        })
    }
}

impl Gid {
    /// What it is good for on a port of this link layer; nothing where its framing is not known, and where it leads
    /// nowhere but to this host.
    pub fn class(&self, link_layer: LinkLayer) -> Option<GidClass> {
        if link_layer == LinkLayer::InfiniBand {
            return Some(GidClass::InfiniBand);
        }
        let v4 = self.address.to_ipv4_mapped();
        if self.address.is_loopback() || v4.is_some_and(|a| a.is_loopback()) {
            return None;
        }
        Some(match (self.framing?, v4) {
            (Framing::IbOrRoceV1, _) => GidClass::RoceV1,
            (Framing::RoceV2, Some(a)) if a.is_link_local() => GidClass::RoceV2Ipv4Link,
            (Framing::RoceV2, Some(_)) => GidClass::RoceV2Ipv4,
            (Framing::RoceV2, None) if self.address.is_unicast_link_local() => GidClass::RoceV2Ipv6Link,
            (Framing::RoceV2, None) => GidClass::RoceV2Ipv6,
        })
    }

    /// InfiniBand's subnet prefix: ports with unlike ones are in unlike subnets.
    pub fn subnet(&self) -> u64 {
        (self.address.to_bits() >> 64) as u64
    }
}

/// The default subnet prefix of InfiniBand, fe80::/64 (InfiniBand Architecture Specification, volume 1, 4.1.1).
pub const DEFAULT_SUBNET: u64 = 0xfe80 << 48;

impl RdmaPort {
    /// The addresses by which others can reach it, best first: of the best class, then of the lowest index. On
    /// InfiniBand that is the one with index 0.
    pub fn usable_gids(&self) -> Vec<(GidClass, &Gid)> {
        let Some(layer) = self.link_layer else { return Vec::new() };
        let usable = self.gids.iter().filter_map(|g| Some((g.class(layer)?, g)));
        let mut usable: Vec<_> =
            usable.filter(|(class, g)| *class != GidClass::InfiniBand || g.index == 0).collect();
        usable.sort_by_key(|(class, g)| (*class, g.index));
        usable
    }
}

/// The address by which a port is reached: RoCE v2 over IPv4 before IPv6 before link-local ones before RoCE v1, and
/// index 0 on InfiniBand; `index` (`ND_IB_GID_INDEX`) wins. `device` is the port's device, for messages.
///
/// # Errors
/// [`Error::Invalid`] with the table, in one line: there is no such index, its entry is empty or of no use, or the table has none
/// that others can reach.
pub fn choose_gid<'p>(device: &str, port: &'p RdmaPort, index: Option<u32>) -> Result<(GidClass, &'p Gid)> {
    let fail = |why: String| Error::Invalid(format!("{why}; {}", listed(device, port)));
    let Some(layer) = port.link_layer else {
        return Err(fail(format!("{} port {} states no link layer", printable(device), port.number)));
    };
    let Some(index) = index else {
        return port.usable_gids().first().copied().ok_or_else(|| {
            fail(format!(
                "no address of {} port {} leads to other hosts; give its interface an IP address and bring it up",
                printable(device),
                port.number
            ))
        });
    };
    if let Some(count) = port.gid_count.filter(|&count| index >= count) {
        let last = count.saturating_sub(1);
        return Err(fail(format!("ND_IB_GID_INDEX={index} is out of range: the table ends at index {last}")));
    }
    let gid = port.gids.iter().find(|g| g.index == index).ok_or_else(|| {
        fail(format!(
            "ND_IB_GID_INDEX={index} is an empty entry; take one of those that are filled, or leave it unset"
        ))
    })?;
    let class = gid.class(layer).ok_or_else(|| {
        fail(format!(
            "ND_IB_GID_INDEX={index} ({}) does not lead to other hosts; take another, or leave it unset",
            gid.address
        ))
    })?;
    Ok((class, gid))
}

/// Addresses that an error lists at most.
const MOST_LISTED: usize = 32;

/// The table in one line.
fn listed(device: &str, port: &RdmaPort) -> String {
    let entry = |g: &Gid| match &g.netdev {
        Some(netdev) => format!("{} = {} ({}, {})", g.index, g.address, gid_word(port, g), printable(netdev)),
        None => format!("{} = {} ({})", g.index, g.address, gid_word(port, g)),
    };
    let mut all: Vec<String> = port.gids.iter().take(MOST_LISTED).map(entry).collect();
    match port.gids.len() - all.len() {
        0 if all.is_empty() => all.push("none".to_owned()),
        0 => {}
        more => all.push(format!("and {more} more")),
    }
    format!("addresses (GIDs) of {} port {}: {}", printable(device), port.number, all.join(", "))
}

/// What an address of a port is good for, in a word or two.
pub fn gid_word(port: &RdmaPort, gid: &Gid) -> String {
    match port.link_layer.and_then(|layer| gid.class(layer)) {
        Some(class) => class.to_string(),
        None if port.link_layer.is_none() => "link layer not known".to_owned(),
        None if gid.framing.is_none() => "framing not known".to_owned(),
        None => "this host only".to_owned(),
    }
}

/// A port's addresses as lines: index, class, address, interface; a star before the one that is chosen.
pub fn gid_table(port: &RdmaPort) -> String {
    let chosen = port.usable_gids().first().map(|(_, g)| g.index);
    let class = |g: &Gid| gid_word(port, g);
    let wide = port.gids.iter().map(|g| class(g).len()).max().unwrap_or(0);
    let address = port.gids.iter().map(|g| g.address.to_string().len()).max().unwrap_or(0);
    let line = |g: &Gid| {
        let mark = if chosen == Some(g.index) { '*' } else { ' ' };
        let netdev = printable(g.netdev.as_deref().unwrap_or(""));
        let line = format!(
            "{mark} {:>3}  {:<wide$}  {:<address$}  {netdev}",
            g.index,
            class(g),
            g.address.to_string()
        );
        line.trim_end().to_owned() + "\n"
    };
    port.gids.iter().map(line).collect()
}

/// Reads an address as sysfs writes it, eight groups of four digits.
pub(super) fn address(text: &str) -> Option<Ipv6Addr> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: Option<Framing> = Some(Framing::IbOrRoceV1);
    const V2: Option<Framing> = Some(Framing::RoceV2);

    fn port(link_layer: LinkLayer, gids: &[(u32, Option<Framing>, &str, &str)]) -> RdmaPort {
        let gid = |&(index, framing, address, netdev): &(u32, _, &str, &str)| Gid {
            index,
            address: address.parse().unwrap(),
            framing,
            netdev: Some(netdev.to_owned()),
        };
        RdmaPort {
            number: 1,
            link_layer: Some(link_layer),
            gid_count: Some(8),
            gids: gids.iter().map(gid).collect(),
            ..RdmaPort::default()
        }
    }

    fn roce(gids: &[(u32, Option<Framing>, &str, &str)]) -> RdmaPort {
        port(LinkLayer::Ethernet, gids)
    }

    #[test]
    fn routed_addresses_win() {
        let all = [
            (0, V1, "fe80::1", "eth0"),
            (1, V2, "fe80::1", "eth0"),
            (2, V2, "::ffff:169.254.0.7", "eth0"),
            (3, V2, "2001:db8::1", "eth0"),
            (4, V1, "::ffff:10.0.0.1", "eth0"),
            (5, V2, "::ffff:10.0.0.1", "eth0"),
            (6, V2, "::ffff:10.9.0.1", "eth0.9"),
        ];
        let chosen = |gids: &[_]| choose_gid("x", &roce(gids), None).map(|(c, g)| (g.index, c)).unwrap();
        assert_eq!(chosen(&all), (5, GidClass::RoceV2Ipv4));
        assert_eq!(chosen(&all[..5]), (3, GidClass::RoceV2Ipv6));
        assert_eq!(chosen(&all[..3]), (2, GidClass::RoceV2Ipv4Link));
        assert_eq!(chosen(&all[..2]), (1, GidClass::RoceV2Ipv6Link));
        assert_eq!(chosen(&all[..1]), (0, GidClass::RoceV1));
        // A VLAN's address is taken where the port itself has none that is routed.
        assert_eq!(chosen(&[all[1], all[6]]), (6, GidClass::RoceV2Ipv4));
    }

    #[test]
    fn what_leads_nowhere_is_not_chosen() {
        let gids = [(0, V2, "::1", "lo"), (1, V2, "::ffff:127.0.0.1", "lo"), (2, None, "2001:db8::1", "lo")];
        let error = choose_gid("rxe0", &roce(&gids), None).unwrap_err().to_string();
        assert!(error.contains("no address of rxe0 port 1 leads to other hosts"), "{error}");
        assert!(error.contains("2 = 2001:db8::1 (framing not known, lo)"), "{error}");
        assert!(error.contains("0 = ::1 (this host only, lo)"), "{error}");
        let error = choose_gid("rxe0", &roce(&[]), None).unwrap_err().to_string();
        assert!(error.ends_with("of rxe0 port 1: none"), "{error}");
        let silent = RdmaPort::default();
        assert!(choose_gid("x", &silent, None).unwrap_err().to_string().contains("states no link layer"));
    }

    #[test]
    fn an_index_wins_and_a_wrong_one_shows_the_table() {
        let gids = [(0, V1, "fe80::1", "eth0"), (5, V2, "::ffff:10.0.0.1", "eth0"), (6, V2, "::1", "lo")];
        let port = roce(&gids);
        let of = |index| choose_gid("mlx5_0", &port, Some(index));
        assert_eq!(of(0).unwrap().1.index, 0);
        let error = |index| of(index).unwrap_err().to_string();
        assert!(
            error(8).contains("ND_IB_GID_INDEX=8 is out of range: the table ends at index 7"),
            "{}",
            error(8)
        );
        assert!(error(1).contains("is an empty entry"), "{}", error(1));
        assert!(error(6).contains("does not lead to other hosts"), "{}", error(6));
        for index in [1, 6, 8] {
            let all = "addresses (GIDs) of mlx5_0 port 1: 0 = fe80::1 (RoCE v1, eth0), 5 = ::ffff:10.0.0.1 (RoCE v2, \
                       IPv4, eth0), 6 = ::1 (this host only, lo)";
            assert!(error(index).ends_with(all), "{}", error(index));
        }
        let lines = " *   5  RoCE v2, IPv4   ::ffff:10.0.0.1  eth0\n";
        assert!(gid_table(&port).contains(lines.trim_start()), "{}", gid_table(&port));
    }

    #[test]
    fn infiniband_takes_index_0() {
        let gids = [(0, V1, "fe80::248a:703:1e:39fe", ""), (1, V1, "fe80::1", "")];
        let port = port(LinkLayer::InfiniBand, &gids);
        let (class, gid) = choose_gid("mlx5_0", &port, None).unwrap();
        assert_eq!((class, gid.index, gid.subnet()), (GidClass::InfiniBand, 0, DEFAULT_SUBNET));
        assert_eq!(choose_gid("mlx5_0", &port, Some(1)).unwrap().1.index, 1);
    }
}
