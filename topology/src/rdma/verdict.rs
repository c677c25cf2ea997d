//! Whether two ranks are joined by verbs, over which ports, and why not. Each rank makes an [`Offer`]; from both offers
//! both ranks come to the same verdict, so that nobody waits for a queue pair that the other does not make.

use serde::{Deserialize, Serialize};

use super::{GidClass, LinkLayer, PortChoice};
use crate::printable;

/// What a rank's settings say of verbs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// Wherever they work between hosts.
    #[default]
    Auto,
    /// Verbs or an error, inside a host too.
    Verbs,
    /// Never; the setting that says so, such as `ND_TRANSPORT=tcp`.
    Never(String),
}

/// Whether libibverbs can be opened.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Library {
    /// Nobody looked: the machine is described in a file.
    #[default]
    Unknown,
    /// It is there.
    Present,
    /// It is not: why, and what to do.
    Absent(String),
}

/// What a rank has for verbs. Travels to its peers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Offer {
    /// Its settings.
    pub asked: Asked,
    /// Whether it can open libibverbs.
    pub library: Library,
    /// The ports that it would use.
    pub ports: Vec<OfferedPort>,
    /// The other ports, each with the reason, such as `mlx5_1:1 down (Disabled)`.
    pub left_out: Vec<String>,
}

/// A port that a rank would use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedPort {
    /// The device's name.
    pub device: String,
    /// The port's number.
    pub number: u32,
    /// What its packets travel in.
    pub link_layer: LinkLayer,
    /// Mb/s in one direction, where known.
    pub rate_mbps: Option<u64>,
    /// Bytes of payload in a packet at most, where known.
    pub mtu: Option<u32>,
    /// InfiniBand's local address.
    pub lid: Option<u16>,
    /// InfiniBand's subnet prefix.
    pub subnet: Option<u64>,
    /// By what it is reached: the index of its address of each class, best first.
    pub gids: Vec<(GidClass, u32)>,
}

impl OfferedPort {
    /// `mlx5_0:1`.
    pub fn name(&self) -> String {
        format!("{}:{}", printable(&self.device), self.number)
    }
}

impl Offer {
    /// Of a rank that chose these ports.
    pub fn new(asked: Asked, library: Library, choice: &PortChoice<'_>) -> Offer {
        let port = |c: &super::ports::ChosenPort<'_>| {
            let mut gids: Vec<(GidClass, u32)> = Vec::new();
            for (class, gid) in &c.gids {
                if gids.iter().all(|(known, _)| known != class) {
                    gids.push((*class, gid.index));
                }
            }
            let infiniband = c.link_layer == LinkLayer::InfiniBand;
            OfferedPort {
                device: c.of.device.name.clone(),
                number: c.of.port.number,
                link_layer: c.link_layer,
                rate_mbps: c.of.port.rate_mbps,
                mtu: c.of.port.roce_mtu(),
                lid: c.of.port.lid,
                subnet: c.gids.first().filter(|_| infiniband).map(|(_, g)| g.subnet()),
                gids,
            }
        };
        Offer {
            asked,
            library,
            ports: choice.rails.iter().map(port).collect(),
            left_out: choice.left_out.iter().map(|(of, why)| format!("{of} {why}")).collect(),
        }
    }

    fn layers(&self) -> Vec<LinkLayer> {
        let all = [LinkLayer::InfiniBand, LinkLayer::Ethernet];
        all.into_iter().filter(|&l| self.ports.iter().any(|p| p.link_layer == l)).collect()
    }

    fn of(&self, layer: LinkLayer) -> Vec<usize> {
        (0..self.ports.len()).filter(|&i| self.ports[i].link_layer == layer).collect()
    }
}

/// Whether two ranks are joined by verbs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Over these pairs of ports, of one link layer; at least one.
    Verbs(Vec<Rail>),
    /// Not.
    No(NoVerbs),
}

/// Two ports that carry the traffic of two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rail {
    /// Ours (index into [`Offer::ports`]).
    pub here: usize,
    /// Theirs.
    pub there: usize,
    /// By addresses of this class.
    pub class: GidClass,
    /// The index of ours.
    pub gid_here: u32,
    /// The index of theirs.
    pub gid_there: u32,
    /// Bytes of payload in a packet, the less of both, where known.
    pub mtu: Option<u32>,
}

/// One of two ranks, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Ours.
    Here,
    /// The peer.
    There,
    /// Both.
    Both,
}

/// Why two ranks are not joined by verbs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoVerbs {
    /// The settings say so.
    NotAsked {
        /// Whose.
        side: Side,
        /// Which setting.
        setting: String,
    },
    /// They share memory, which is faster.
    SameHost,
    /// There is no RDMA device.
    NoDevice(Side),
    /// libibverbs cannot be opened.
    NoLibrary {
        /// Where.
        side: Side,
        /// Why, and what to do.
        reason: String,
    },
    /// There are ports, and none can be used.
    NoPort {
        /// Where.
        side: Side,
        /// Our ports, each with the reason.
        here: Vec<String>,
        /// Theirs.
        there: Vec<String>,
    },
    /// One has InfiniBand, the other Ethernet.
    LinkLayers {
        /// Ours.
        here: LinkLayer,
        /// Theirs.
        there: LinkLayer,
    },
    /// InfiniBand ports in different subnets.
    Subnets {
        /// Prefix of ours.
        here: u64,
        /// Prefix of theirs.
        there: u64,
    },
    /// RoCE ports without addresses of one class.
    Addresses {
        /// Classes of ours.
        here: Vec<GidClass>,
        /// Classes of theirs.
        there: Vec<GidClass>,
    },
}

impl NoVerbs {
    /// Whether a user would want to know: not where nobody asked, and not where there is no RDMA at all.
    pub fn is_surprising(&self) -> bool {
        !matches!(self, NoVerbs::NotAsked { .. } | NoVerbs::SameHost | NoVerbs::NoDevice(Side::Both))
    }

    /// One clause, with what to call the two ranks or hosts; the same name twice where the other is thought to be like
    /// this one.
    pub fn text(&self, here: &str, there: &str) -> String {
        let one = |side: &Side| match side {
            Side::There => Some(there),
            Side::Both if here != there => None,
            Side::Here | Side::Both => Some(here),
        };
        match self {
            NoVerbs::NotAsked { side: Side::Both, setting } => setting.clone(),
            NoVerbs::NotAsked { side, setting } => format!("{setting} on {}", one(side).unwrap_or(here)),
            NoVerbs::SameHost => "they are on one host and share its memory".to_owned(),
            NoVerbs::NoDevice(side) => match one(side) {
                Some(name) => format!("{name} has no RDMA device"),
                None => format!("neither {here} nor {there} has an RDMA device"),
            },
            NoVerbs::NoLibrary { side, reason } => match one(side) {
                Some(name) => format!("{name}: {reason}"),
                None => format!("{here} and {there}: {reason}"),
            },
            NoVerbs::NoPort { side, here: ours, there: theirs } => match one(side) {
                Some(name) => {
                    let ports = if *side == Side::There { theirs } else { ours };
                    format!("{name} has no usable RDMA port: {}", ports.join("; "))
                }
                None => format!(
                    "neither has a usable RDMA port ({here}: {}; {there}: {})",
                    ours.join("; "),
                    theirs.join("; ")
                ),
            },
            NoVerbs::LinkLayers { here: a, there: b } => {
                format!("{here} has {a} ports, {there} has {b} ports")
            }
            NoVerbs::Subnets { here: a, there: b } => format!(
                "their InfiniBand ports are in different subnets ({here}: {a:016x}, {there}: {b:016x})"
            ),
            NoVerbs::Addresses { here: a, there: b } => {
                let list = |c: &[GidClass]| c.iter().map(GidClass::to_string).collect::<Vec<_>>().join(" / ");
                format!(
                    "their RoCE addresses do not fit together ({here}: {}, {there}: {}); give both interfaces an \
                     IPv4 address",
                    list(a),
                    list(b)
                )
            }
        }
    }
}

/// Whether two ranks are joined by verbs. `between(b, a)` is the mirror image of `between(a, b)`.
///
/// Of two link layers that both have, the one with more bandwidth is used. The side with less bandwidth is used with
/// all its ports, each with one of the other's in order.
pub fn between(here: &Offer, there: &Offer, same_host: bool) -> Verdict {
    match refusal(here, there, same_host) {
        Some(why) => Verdict::No(why),
        None => fabric(here, there),
    }
}

/// What speaks against verbs before ports are compared.
fn refusal(here: &Offer, there: &Offer, same_host: bool) -> Option<NoVerbs> {
    let sides = |at: &dyn Fn(&Offer) -> bool| match (at(here), at(there)) {
        (true, true) => Some(Side::Both),
        (true, false) => Some(Side::Here),
        (false, true) => Some(Side::There),
        (false, false) => None,
    };
    let first = |side: Side| if side == Side::There { there } else { here };
    if let Some(side) = sides(&|o| matches!(o.asked, Asked::Never(_)))
        && let Asked::Never(setting) = &first(side).asked
    {
        return Some(NoVerbs::NotAsked { side, setting: setting.clone() });
    }
    if same_host && (here.asked != Asked::Verbs || there.asked != Asked::Verbs) {
        return Some(NoVerbs::SameHost);
    }
    if let Some(side) = sides(&|o| o.ports.is_empty() && o.left_out.is_empty()) {
        return Some(NoVerbs::NoDevice(side));
    }
    if let Some(side) = sides(&|o| matches!(o.library, Library::Absent(_)))
        && let Library::Absent(reason) = &first(side).library
    {
        return Some(NoVerbs::NoLibrary { side, reason: reason.clone() });
    }
    sides(&|o| o.ports.is_empty()).map(|side| {
        let (here, there) = (here.left_out.clone(), there.left_out.clone());
        NoVerbs::NoPort { side, here, there }
    })
}

/// Which ports fit together.
fn fabric(here: &Offer, there: &Offer) -> Verdict {
    let common: Vec<LinkLayer> = here.layers().into_iter().filter(|l| there.layers().contains(l)).collect();
    let speed = |rails: &[Rail]| -> u64 {
        let rate = |r: &Rail| here.ports[r.here].rate_mbps.min(there.ports[r.there].rate_mbps).unwrap_or(1);
        rails.iter().map(rate).fold(0, u64::saturating_add)
    };
    let ways = common.iter().map(|&layer| rails(here, there, layer)).filter(|rails| !rails.is_empty());
    // InfiniBand before Ethernet where both carry as much.
    let best = ways.rev().max_by_key(|rails| speed(rails));
    if let Some(rails) = best {
        return Verdict::Verbs(rails);
    }
    let (a, b) = (&here.ports[0], &there.ports[0]);
    Verdict::No(match common.first() {
        None => NoVerbs::LinkLayers { here: a.link_layer, there: b.link_layer },
        Some(LinkLayer::InfiniBand) => {
            let subnet = |o: &Offer| o.ports.iter().find_map(|p| p.subnet).unwrap_or_default();
            NoVerbs::Subnets { here: subnet(here), there: subnet(there) }
        }
        Some(LinkLayer::Ethernet) => {
            let classes = |o: &Offer| {
                let of = o.of(LinkLayer::Ethernet).into_iter().flat_map(|i| &o.ports[i].gids);
                let mut all: Vec<GidClass> = of.map(|(class, _)| *class).collect();
                all.sort_unstable();
                all.dedup();
                all
            };
            NoVerbs::Addresses { here: classes(here), there: classes(there) }
        }
    })
}

/// The pairs of ports of one link layer.
fn rails(here: &Offer, there: &Offer, layer: LinkLayer) -> Vec<Rail> {
    let (ours, theirs) = (here.of(layer), there.of(layer));
    let total = |o: &Offer, ports: &[usize]| {
        ports.iter().map(|&i| o.ports[i].rate_mbps.unwrap_or(1)).fold(0, u64::saturating_add)
    };
    let count = match total(here, &ours).cmp(&total(there, &theirs)) {
        std::cmp::Ordering::Less => ours.len(),
        std::cmp::Ordering::Greater => theirs.len(),
        std::cmp::Ordering::Equal => ours.len().max(theirs.len()),
    };
    let pair = |i: usize, j: usize| join(here, there, ours[i], theirs[j]);
    let even: Vec<Rail> = (0..count).filter_map(|k| pair(k % ours.len(), k % theirs.len())).collect();
    if !even.is_empty() {
        return even;
    }
    // Not in order, then: whatever fits, the first ports of both first. Equal from either side.
    let all = (0..ours.len()).flat_map(|i| (0..theirs.len()).map(move |j| (i, j)));
    let fits = all.filter_map(|(i, j)| Some(((i.max(j), i.min(j)), pair(i, j)?)));
    let fits: Vec<_> = fits.collect();
    let first = fits.iter().map(|(key, _)| *key).min();
    fits.into_iter().filter(|(key, _)| Some(*key) == first).map(|(_, rail)| rail).collect()
}

/// Two ports as a rail, if they can reach each other.
fn join(here: &Offer, there: &Offer, i: usize, j: usize) -> Option<Rail> {
    let (a, b) = (&here.ports[i], &there.ports[j]);
    if a.link_layer == LinkLayer::InfiniBand && a.subnet != b.subnet {
        return None;
    }
    let classes = a.gids.iter().filter_map(|(class, own)| {
        let other = b.gids.iter().find(|(c, _)| c == class)?.1;
        Some((*class, *own, other))
    });
    let (class, gid_here, gid_there) = classes.min_by_key(|(class, ..)| *class)?;
    let mtu = a.mtu.zip(b.mtu).map(|(a, b)| a.min(b));
    Some(Rail { here: i, there: j, class, gid_here, gid_there, mtu })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn port(device: &str, link_layer: LinkLayer, gbits: u64, gids: &[(GidClass, u32)]) -> OfferedPort {
        OfferedPort {
            device: device.into(),
            number: 1,
            link_layer,
            rate_mbps: Some(gbits * 1000),
            mtu: Some(1024),
            lid: None,
            subnet: (link_layer == LinkLayer::InfiniBand).then_some(super::super::gid::DEFAULT_SUBNET),
            gids: gids.to_vec(),
        }
    }

    fn roce(device: &str, gbits: u64) -> OfferedPort {
        port(device, LinkLayer::Ethernet, gbits, &[(GidClass::RoceV2Ipv4, 3), (GidClass::RoceV1, 0)])
    }

    fn infiniband(device: &str, gbits: u64) -> OfferedPort {
        port(device, LinkLayer::InfiniBand, gbits, &[(GidClass::InfiniBand, 0)])
    }

    fn offer(ports: Vec<OfferedPort>) -> Offer {
        Offer { library: Library::Present, ports, ..Offer::default() }
    }

    /// Pairs as `a-b`, or why not.
    fn said(here: &Offer, there: &Offer) -> String {
        match between(here, there, false) {
            Verdict::Verbs(rails) => {
                let pair =
                    |r: &Rail| format!("{}-{}", here.ports[r.here].device, there.ports[r.there].device);
                rails.iter().map(pair).collect::<Vec<_>>().join(" ")
            }
            Verdict::No(why) => why.text("node0", "node1"),
        }
    }

    #[test]
    fn ports_are_paired_in_order() {
        let a = |n: usize, gbits| offer((0..n).map(|i| roce(&format!("a{i}"), gbits)).collect());
        let b = |n: usize, gbits| offer((0..n).map(|i| roce(&format!("b{i}"), gbits)).collect());
        assert_eq!(said(&a(2, 100), &b(2, 100)), "a0-b0 a1-b1");
        // Two of 100 fill one of 200; one of 100 is filled by one.
        assert_eq!(said(&a(2, 100), &b(1, 200)), "a0-b0 a1-b0");
        assert_eq!(said(&a(2, 100), &b(1, 100)), "a0-b0");
        assert_eq!(said(&a(1, 100), &b(4, 100)), "a0-b0");
    }

    #[test]
    fn the_common_link_layer_with_more_bandwidth_is_used() {
        let both = offer(vec![roce("r", 100), infiniband("i", 400)]);
        assert_eq!(said(&both, &both), "i-i");
        assert_eq!(said(&both, &offer(vec![roce("x", 100)])), "r-x");
        let equal = offer(vec![roce("r", 100), infiniband("i", 100)]);
        assert_eq!(said(&equal, &equal), "i-i");
        let apart = said(&offer(vec![roce("x", 1)]), &offer(vec![infiniband("y", 1)]));
        assert_eq!(apart, "node0 has Ethernet ports, node1 has InfiniBand ports");
    }

    #[test]
    fn the_best_common_address_is_used_and_the_lesser_mtu() {
        let a = port("a", LinkLayer::Ethernet, 1, &[(GidClass::RoceV2Ipv4, 5), (GidClass::RoceV2Ipv6, 3)]);
        let b = OfferedPort {
            mtu: Some(4096),
            ..port("b", LinkLayer::Ethernet, 1, &[(GidClass::RoceV2Ipv6, 1)])
        };
        let rail = Rail {
            here: 0,
            there: 0,
            class: GidClass::RoceV2Ipv6,
            gid_here: 3,
            gid_there: 1,
            mtu: Some(1024),
        };
        assert_eq!(between(&offer(vec![a.clone()]), &offer(vec![b]), false), Verdict::Verbs(vec![rail]));
        let v1 = port("c", LinkLayer::Ethernet, 1, &[(GidClass::RoceV1, 0)]);
        let text = said(&offer(vec![a]), &offer(vec![v1]));
        assert!(text.contains("(node0: RoCE v2, IPv4 / RoCE v2, IPv6, node1: RoCE v1)"), "{text}");
    }

    #[test]
    fn subnets_are_told_apart_and_matched_out_of_order() {
        let other = |device: &str| OfferedPort { subnet: Some(0xfec0 << 48), ..infiniband(device, 100) };
        let text = said(&offer(vec![infiniband("a", 100)]), &offer(vec![other("b")]));
        assert!(text.contains("node0: fe80000000000000, node1: fec0000000000000"), "{text}");
        let (x, y) =
            (offer(vec![infiniband("a", 100), other("b")]), offer(vec![other("c"), infiniband("d", 100)]));
        assert_eq!(said(&x, &y), "a-d b-c");
    }

    #[test]
    fn every_refusal_says_where_and_what_to_do() {
        let good = offer(vec![roce("a", 100)]);
        let none = Offer { library: Library::Present, ..Offer::default() };
        assert_eq!(said(&good, &none), "node1 has no RDMA device");
        assert_eq!(said(&none, &none), "neither node0 nor node1 has an RDMA device");
        let down = Offer { left_out: vec!["mlx5_0:1 down (Disabled)".into()], ..none.clone() };
        assert_eq!(said(&down, &good), "node0 has no usable RDMA port: mlx5_0:1 down (Disabled)");
        let two = said(&down, &Offer { left_out: vec!["x:1 init".into()], ..none.clone() });
        assert_eq!(two, "neither has a usable RDMA port (node0: mlx5_0:1 down (Disabled); node1: x:1 init)");
        let bare = Offer { library: Library::Absent("no such file".into()), ..good.clone() };
        assert_eq!(said(&good, &bare), "node1: no such file");
        let tcp = Offer { asked: Asked::Never("ND_TRANSPORT=tcp".into()), ..good.clone() };
        assert_eq!(said(&tcp, &good), "ND_TRANSPORT=tcp on node0");
        assert_eq!(said(&tcp, &tcp), "ND_TRANSPORT=tcp");
        let alike = |offer: &Offer| match between(offer, offer, false) {
            Verdict::No(why) => why.text("node0", "node0"),
            Verdict::Verbs(_) => String::new(),
        };
        assert_eq!(alike(&down), "node0 has no usable RDMA port: mlx5_0:1 down (Disabled)");
        assert_eq!(alike(&none), "node0 has no RDMA device");
        // Without a device nobody misses the library.
        let nothing = Offer { library: Library::Absent("no such file".into()), ..none.clone() };
        assert_eq!(between(&nothing, &none, false), Verdict::No(NoVerbs::NoDevice(Side::Both)));
    }

    #[test]
    fn one_host_shares_memory_unless_verbs_are_asked_for() {
        let auto = offer(vec![roce("a", 100)]);
        assert_eq!(between(&auto, &auto, true), Verdict::No(NoVerbs::SameHost));
        let asked = Offer { asked: Asked::Verbs, ..auto };
        assert!(matches!(between(&asked, &asked, true), Verdict::Verbs(_)));
    }

    #[test]
    fn only_surprises_are_worth_a_warning() {
        let no = |why: &NoVerbs| why.is_surprising();
        assert!(!no(&NoVerbs::SameHost) && !no(&NoVerbs::NoDevice(Side::Both)));
        assert!(no(&NoVerbs::NoDevice(Side::There)) && no(&NoVerbs::Subnets { here: 0, there: 1 }));
    }

    fn offers() -> impl Strategy<Value = Offer> {
        let classes = prop::sample::subsequence(
            vec![GidClass::RoceV2Ipv4, GidClass::RoceV2Ipv6, GidClass::RoceV2Ipv6Link, GidClass::RoceV1],
            0..4,
        );
        let port = (any::<bool>(), classes, 0u64..3, prop::option::of(1u64..4)).prop_map(
            |(ib, classes, n, rate)| {
                let gids: Vec<_> = classes.into_iter().zip([n as u32, 7, 9]).collect();
                OfferedPort {
                    rate_mbps: rate.map(|r| r * 100_000),
                    subnet: ib.then_some(n),
                    ..if ib { infiniband("i", 1) } else { port("r", LinkLayer::Ethernet, 1, &gids) }
                }
            },
        );
        let asked = prop::sample::select(vec![Asked::Auto, Asked::Verbs, Asked::Never("x".into())]);
        let library =
            prop::sample::select(vec![Library::Present, Library::Absent("y".into()), Library::Unknown]);
        (asked, library, prop::collection::vec(port, 0..4), prop::collection::vec("z", 0..2))
            .prop_map(|(asked, library, ports, left_out)| Offer { asked, library, ports, left_out })
    }

    fn mirror(verdict: Verdict) -> Verdict {
        use NoVerbs::*;
        let side = |s| match s {
            Side::Here => Side::There,
            Side::There => Side::Here,
            Side::Both => Side::Both,
        };
        match verdict {
            Verdict::Verbs(mut rails) => {
                for r in &mut rails {
                    std::mem::swap(&mut r.here, &mut r.there);
                    std::mem::swap(&mut r.gid_here, &mut r.gid_there);
                }
                rails.sort_by_key(|r| (r.here, r.there));
                Verdict::Verbs(rails)
            }
            Verdict::No(why) => Verdict::No(match why {
                NotAsked { side: s, setting } => NotAsked { side: side(s), setting },
                SameHost => SameHost,
                NoDevice(s) => NoDevice(side(s)),
                NoLibrary { side: s, reason } => NoLibrary { side: side(s), reason },
                NoPort { side: s, here, there } => NoPort { side: side(s), here: there, there: here },
                LinkLayers { here, there } => LinkLayers { here: there, there: here },
                Subnets { here, there } => Subnets { here: there, there: here },
                Addresses { here, there } => Addresses { here: there, there: here },
            }),
        }
    }

    proptest! {
        /// Both ranks come to the same verdict, whatever they have; and a rail joins what fits.
        #[test]
        fn both_sides_agree(a in offers(), b in offers(), same_host: bool) {
            let ours = between(&a, &b, same_host);
            prop_assert_eq!(mirror(mirror(ours.clone())), mirror(between(&b, &a, same_host)));
            if let Verdict::Verbs(rails) = &ours {
                prop_assert!(!rails.is_empty());
                for r in rails {
                    let (x, y) = (&a.ports[r.here], &b.ports[r.there]);
                    prop_assert_eq!(x.link_layer, y.link_layer);
                    prop_assert_eq!(x.subnet, y.subnet);
                    prop_assert!(x.gids.contains(&(r.class, r.gid_here)) && y.gids.contains(&(r.class, r.gid_there)));
                }
            } else if let Verdict::No(why) = ours {
                prop_assert!(!why.text("a", "b").is_empty());
            }
        }
    }
}
