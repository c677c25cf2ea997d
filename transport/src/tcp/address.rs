//! Which addresses to advertise, and which of a peer's to try, in which order and why. Pure: interfaces are data.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use serde::{Deserialize, Serialize};

use crate::Family;

/// What sort of interface it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A card, or what a container sees as one.
    Physical,
    /// A bridge, tunnel or container network: often reaches nobody else.
    Virtual,
    /// This host only.
    Loopback,
}

/// An address of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// The address.
    pub address: IpAddr,
    /// Bits of its network.
    pub prefix: u8,
}

/// A network interface of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// As the kernel names it.
    pub name: String,
    /// As the kernel numbers it: the zone of link-local addresses.
    pub index: u32,
    /// Its addresses.
    pub addresses: Vec<Local>,
    /// Up and running.
    pub up: bool,
    /// What it is.
    pub kind: Kind,
    /// Mb/s, where the kernel knows.
    pub speed: Option<i64>,
}

impl Interface {
    /// Whether anybody can be reached by it.
    pub fn is_usable(&self) -> bool {
        self.up && !self.addresses.is_empty()
    }
}

/// An address that a rank may be reached by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advertised {
    /// The address.
    pub address: IpAddr,
    /// Bits of its network.
    pub prefix: u8,
    /// Its interface, as the owner names it.
    pub interface: String,
    /// What that interface is.
    pub kind: Kind,
}

/// How a rank can be reached by TCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpCard {
    /// Best first.
    pub addresses: Vec<Advertised>,
    /// The port, on all of them.
    pub port: u16,
}

/// Names that no card has.
const VIRTUAL: [&str; 22] = [
    "docker",
    "br-",
    "virbr",
    "veth",
    "vnet",
    "cni",
    "flannel",
    "cali",
    "cilium",
    "lxc",
    "lxdbr",
    "podman",
    "kube",
    "weave",
    "tun",
    "tap",
    "wg",
    "tailscale",
    "vmnet",
    "vboxnet",
    "dummy",
    "ifb",
];

/// What the name alone says.
pub fn kind_by_name(name: &str) -> Kind {
    match name {
        "lo" => Kind::Loopback,
        _ if VIRTUAL.iter().any(|v| name.starts_with(v)) => Kind::Virtual,
        _ => Kind::Physical,
    }
}

/// `ND_SOCKET_IFNAME`, in NCCL's syntax: prefixes, separated by commas; a leading `=` makes all of them whole names,
/// a leading `^` excludes what they match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

impl Filter {
    /// Reads the setting; empty text lets everything through.
    pub fn parse(text: &str) -> Filter {
        let text = text.trim();
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        // People repeat the sign before every name; no interface starts with one.
        let names = text.split(',').map(|n| n.trim().trim_start_matches(['^', '=']).to_owned());
        Filter { exclude, exact, names: names.filter(|n| !n.is_empty()).collect() }
    }

    /// The place of the name that matches in the list.
    fn matched(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| if self.exact { name == n } else { name.starts_with(n.as_str()) })
    }

    fn allows(&self, name: &str) -> bool {
        self.names.is_empty() || self.matched(name).is_some() != self.exclude
    }

    /// Whether it names what to use, in that order.
    pub fn chooses(&self) -> bool {
        !self.exclude && !self.names.is_empty()
    }
}

/// The addresses to advertise, best first; an error says what there is instead.
///
/// Order: as the filter names them; else the interface of `preferred` (by which the rendezvous was reached), then
/// cards by speed, then bridges and tunnels, and loopback, which only peers of the same host use. Within an
/// interface IPv4 comes first and link-local addresses last.
pub fn advertise(
    interfaces: &[Interface],
    filter: &Filter,
    family: Family,
    preferred: Option<IpAddr>,
) -> Result<Vec<Advertised>, String> {
    let preferred = preferred.filter(|p| !p.is_loopback()).map(canonical);
    let owns = |i: &Interface| preferred.is_some_and(|p| i.addresses.iter().any(|a| a.address == p));
    let mut usable: Vec<&Interface> =
        interfaces.iter().filter(|i| i.is_usable() && filter.allows(&i.name)).collect();
    usable.sort_by_key(|i| {
        let named = if filter.chooses() { filter.matched(&i.name) } else { None };
        (named, !owns(i), i.kind, std::cmp::Reverse(i.speed.unwrap_or(0)))
    });
    let mut addresses = Vec::new();
    for interface in usable {
        let mut of_it: Vec<&Local> = interface.addresses.iter().filter(|a| fits(a.address, family)).collect();
        of_it.sort_by_key(|a| (link_local(a.address), a.address.is_ipv6()));
        addresses.extend(of_it.iter().map(|a| Advertised {
            address: a.address,
            prefix: a.prefix,
            interface: interface.name.clone(),
            kind: interface.kind,
        }));
    }
    if addresses.is_empty() {
        let there: Vec<String> = interfaces.iter().map(Interface::to_string).collect();
        return Err(format!("no interface fits; there are: {}", there.join(", ")));
    }
    Ok(addresses)
}

/// An address of a peer to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Where to connect to.
    pub to: SocketAddr,
    /// Our interface, where it is known.
    pub via: Option<String>,
    /// Whether the address means something only on one link.
    pub link_local: bool,
    /// Why it stands where it stands.
    pub reason: String,
}

/// The addresses of a peer to try, best first.
///
/// Loopback leads to peers of the same host, and to them first; never to others. An address that this host has as
/// well leads back here and is left out. Then: a network that we share, other networks, link-local addresses (by
/// each of our interfaces that has one, since the peer's zone means nothing here), bridges and tunnels last.
pub fn candidates(
    interfaces: &[Interface],
    filter: &Filter,
    family: Family,
    peer: &TcpCard,
    same_host: bool,
) -> Vec<Candidate> {
    let ours: Vec<&Interface> = interfaces.iter().filter(|i| i.up && filter.allows(&i.name)).collect();
    let mut found = Vec::new();
    for there in peer.addresses.iter().filter(|a| fits(a.address, family)) {
        let at = there.address;
        let shared = ours.iter().find(|i| i.addresses.iter().any(|a| same_subnet(a, there)));
        let here = interfaces.iter().any(|i| i.addresses.iter().any(|a| a.address == at));
        let candidate = |to, via: Option<&Interface>, reason| Candidate {
            to,
            via: via.map(|i| i.name.clone()),
            link_local: link_local(at),
            reason,
        };
        let to = SocketAddr::new(at, peer.port);
        if at.is_loopback() {
            if same_host {
                found.push((0, candidate(to, None, "the peer is on this host".into())));
            }
        } else if here && !same_host {
            // Every host has a 172.17.0.1 on docker0.
        } else if let (IpAddr::V6(v6), true) = (at, link_local(at)) {
            for own in ours
                .iter()
                .filter(|i| i.addresses.iter().any(|a| a.address.is_ipv6() && link_local(a.address)))
            {
                let to = SocketAddrV6::new(v6, peer.port, 0, own.index);
                let reason = format!("link-local, by the zone of {}", own.name);
                found.push((3 + rank(there.kind), candidate(to.into(), Some(own), reason)));
            }
        } else if let Some(own) = shared {
            let bridge = there.kind == Kind::Virtual || own.kind == Kind::Virtual;
            let reason =
                format!("same subnet as {}{}", own.name, if bridge { ", a bridge or tunnel" } else { "" });
            found.push((if bridge { 5 } else { 1 }, candidate(to, Some(own), reason)));
        } else {
            let reason = match there.kind {
                Kind::Virtual => {
                    format!("the peer's {} is a bridge or tunnel, by the default route", there.interface)
                }
                _ => "another subnet, by the default route".into(),
            };
            found.push((2 + rank(there.kind), candidate(to, None, reason)));
        }
    }
    // Stable: the peer's own order decides between equals, IPv4 first.
    found.sort_by_key(|(class, c)| (*class, c.to.is_ipv6()));
    found.into_iter().map(|(_, c)| c).collect()
}

/// Bridges and tunnels come after everything else.
fn rank(kind: Kind) -> u8 {
    if kind == Kind::Virtual { 4 } else { 0 }
}

fn fits(address: IpAddr, family: Family) -> bool {
    match family {
        Family::Any => true,
        Family::V4 => address.is_ipv4(),
        Family::V6 => address.is_ipv6(),
    }
}

fn link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

fn same_subnet(ours: &Local, theirs: &Advertised) -> bool {
    let prefix = ours.prefix.max(theirs.prefix);
    match (ours.address, theirs.address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(prefix.min(32))
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(prefix.min(128))
        }
        _ => false,
    }
}

fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        v4 => v4,
    }
}

impl fmt::Display for Interface {
    /// "eth0 (10.0.0.1)", "docker0 (172.17.0.1, bridge or tunnel)", "eth1 (down)".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut facts: Vec<String> = self.addresses.iter().map(|a| a.address.to_string()).collect();
        if facts.is_empty() {
            facts.push("no address".into());
        }
        if !self.up {
            facts.push("down".into());
        }
        match self.kind {
            Kind::Physical => {}
            Kind::Virtual => facts.push("bridge or tunnel".into()),
            Kind::Loopback => facts.push("loopback".into()),
        }
        write!(f, "{} ({})", self.name, facts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interface(name: &str, index: u32, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|a| {
            let (address, prefix) = a.split_once('/').unwrap();
            Local { address: address.parse().unwrap(), prefix: prefix.parse().unwrap() }
        });
        Interface {
            name: name.into(),
            index,
            addresses: addresses.collect(),
            up: true,
            kind: kind_by_name(name),
            speed: None,
        }
    }

    /// docker0 on every host, as users have it (nccl#913, horovod#310).
    fn host(number: u8) -> Vec<Interface> {
        vec![
            interface("lo", 1, &["127.0.0.1/8", "::1/128"]),
            interface("docker0", 2, &["172.17.0.1/16"]),
            interface("eth0", 3, &[&format!("10.0.0.{number}/24"), &format!("fe80::{number}/64")]),
            interface("eth1", 4, &[&format!("192.168.{number}.1/24")]),
        ]
    }

    fn card(interfaces: &[Interface], filter: &str) -> TcpCard {
        TcpCard {
            addresses: advertise(interfaces, &Filter::parse(filter), Family::Any, None).unwrap(),
            port: 7,
        }
    }

    fn tried(
        ours: &[Interface],
        filter: &str,
        family: Family,
        peer: &TcpCard,
        same_host: bool,
    ) -> Vec<String> {
        candidates(ours, &Filter::parse(filter), family, peer, same_host)
            .iter()
            .map(|c| c.to.to_string())
            .collect()
    }

    fn names(interfaces: &[Interface], filter: &str, preferred: Option<&str>) -> Vec<String> {
        let preferred = preferred.map(|p| p.parse().unwrap());
        let mut names: Vec<String> = advertise(interfaces, &Filter::parse(filter), Family::Any, preferred)
            .unwrap()
            .into_iter()
            .map(|a| a.interface)
            .collect();
        names.dedup();
        names
    }

    #[test]
    fn the_filter_reads_as_in_nccl() {
        let all = host(1);
        assert_eq!(names(&all, "", None), ["eth0", "eth1", "docker0", "lo"]);
        assert_eq!(names(&all, "eth", None), ["eth0", "eth1"]);
        assert_eq!(names(&all, "eth1,eth0", None), ["eth1", "eth0"]);
        assert_eq!(names(&all, "=eth0", None), ["eth0"]);
        assert_eq!(names(&all, "=eth0,=eth1", None), ["eth0", "eth1"]);
        assert_eq!(names(&all, "^docker,lo", None), ["eth0", "eth1"]);
        assert_eq!(names(&all, "^=eth", None), ["eth0", "eth1", "docker0", "lo"]);
        assert_eq!(names(&all, "lo", None), ["lo"]);
    }

    #[test]
    fn the_interface_of_the_rendezvous_comes_first_then_the_faster() {
        let mut all = host(1);
        assert_eq!(names(&all, "", Some("192.168.1.1"))[0], "eth1");
        assert_eq!(names(&all, "", Some("::ffff:192.168.1.1"))[0], "eth1");
        assert_eq!(names(&all, "", Some("127.0.0.1"))[0], "eth0");
        all[3].speed = Some(100_000);
        assert_eq!(names(&all, "", None)[0], "eth1");
        all[3].up = false;
        assert_eq!(names(&all, "", None), ["eth0", "docker0", "lo"]);
    }

    #[test]
    fn nothing_that_fits_names_what_there_is() {
        let e = advertise(&host(1), &Filter::parse("ib"), Family::Any, None).unwrap_err();
        for part in
            ["lo (127.0.0.1, ::1, loopback)", "docker0 (172.17.0.1, bridge or tunnel)", "eth0 (10.0.0.1"]
        {
            assert!(e.contains(part), "{e}");
        }
    }

    #[test]
    fn a_remote_peer_is_never_reached_by_loopback_or_by_our_own_address() {
        let peer = card(&host(2), "");
        assert_eq!(
            tried(&host(1), "", Family::Any, &peer, false),
            ["10.0.0.2:7", "192.168.2.1:7", "[fe80::2%3]:7"]
        );
        let c = candidates(&host(1), &Filter::default(), Family::Any, &peer, false);
        assert_eq!((c[0].via.as_deref(), c[0].reason.as_str()), (Some("eth0"), "same subnet as eth0"));
    }

    #[test]
    fn a_peer_of_the_same_host_is_reached_by_loopback_unless_that_is_excluded() {
        let here = host(1);
        assert_eq!(tried(&here, "", Family::Any, &card(&here, ""), true)[..2], ["127.0.0.1:7", "[::1]:7"]);
        assert_eq!(tried(&here, "=eth0", Family::V4, &card(&here, "=eth0"), true), ["10.0.0.1:7"]);
        assert_eq!(tried(&here, "", Family::V6, &card(&here, ""), true)[0], "[::1]:7");
    }

    #[test]
    fn bridges_come_last_but_come() {
        let ours = [interface("docker0", 1, &["172.17.0.2/16"])];
        let theirs = [interface("docker0", 1, &["172.17.0.3/16"]), interface("eth0", 2, &["10.9.9.9/24"])];
        assert_eq!(tried(&ours, "", Family::Any, &card(&theirs, ""), false), ["10.9.9.9:7", "172.17.0.3:7"]);
    }

    #[test]
    fn ipv6_alone_and_link_local_alone_work() {
        let only6 = |n: u32| [interface("eth0", 5, &[&format!("fd00::{n}/64"), &format!("fe80::{n}/64")])];
        assert_eq!(
            tried(&only6(1), "", Family::Any, &card(&only6(2), ""), false),
            ["[fd00::2]:7", "[fe80::2%5]:7"]
        );
        let ours = [interface("eth0", 5, &["fe80::1/64"]), interface("ib0", 9, &["fe80::aa/64"])];
        let theirs = [interface("net1", 77, &["fe80::2/64"])];
        assert_eq!(
            tried(&ours, "", Family::Any, &card(&theirs, ""), false),
            ["[fe80::2%5]:7", "[fe80::2%9]:7"]
        );
        assert!(tried(&ours, "", Family::V4, &card(&theirs, ""), false).is_empty());
    }

    proptest! {
        #[test]
        fn loopback_never_leads_to_another_host(
            ours in prop::collection::vec((0usize..4, any::<u32>(), 0u8..=32), 0..6),
            theirs in prop::collection::vec((0usize..4, any::<u32>(), 0u8..=32), 1..6),
        ) {
            let name = |i: usize| ["lo", "eth0", "docker0", "ib0"][i];
            let build = |list: &[(usize, u32, u8)]| -> Vec<Interface> {
                list.iter().enumerate().map(|(n, &(i, bits, prefix))| {
                    let first = if i == 0 { 127 << 24 | bits >> 8 } else { bits };
                    let address = std::net::Ipv4Addr::from_bits(first);
                    interface(&format!("{}{n}", name(i)), n as u32, &[&format!("{address}/{prefix}")])
                }).collect()
            };
            let (ours, theirs) = (build(&ours), build(&theirs));
            for c in candidates(&ours, &Filter::default(), Family::Any, &card(&theirs, ""), false) {
                prop_assert!(!c.to.ip().is_loopback());
                prop_assert!(!c.reason.is_empty());
                prop_assert!(ours.iter().all(|i| i.addresses.iter().all(|a| a.address != c.to.ip())));
            }
        }

        #[test]
        fn any_filter_is_read(text in ".{0,40}") {
            let _ = Filter::parse(&text).allows("eth0");
        }
    }
}
