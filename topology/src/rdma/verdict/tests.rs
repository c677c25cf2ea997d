//! Verdicts: what fits, why not, and that both sides agree.

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
        farther: false,
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

fn unused(port: &str, why: &str, remedy: &str) -> Unused {
    Unused { port: port.into(), why: why.into(), remedy: remedy.into() }
}

/// Pairs as `a-b`, or why not.
fn said(here: &Offer, there: &Offer) -> String {
    match between(here, there, false) {
        Verdict::Verbs(rails) => {
            let pair = |r: &Rail| format!("{}-{}", here.ports[r.here].device, there.ports[r.there].device);
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
    let b =
        OfferedPort { mtu: Some(4096), ..port("b", LinkLayer::Ethernet, 1, &[(GidClass::RoceV2Ipv6, 1)]) };
    let rail =
        Rail { here: 0, there: 0, class: GidClass::RoceV2Ipv6, gid_here: 3, gid_there: 1, mtu: Some(1024) };
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
fn farther_ports_are_used_where_the_nearest_reach_nobody() {
    let far = |port: OfferedPort| OfferedPort { farther: true, ..port };
    let both = offer(vec![roce("r", 100), far(infiniband("i", 400))]);
    assert_eq!(said(&both, &offer(vec![roce("x", 100)])), "r-x");
    assert_eq!(said(&both, &both), "r-r");
    assert_eq!(said(&both, &offer(vec![infiniband("y", 100)])), "i-y");
    assert_eq!(said(&offer(vec![infiniband("y", 100)]), &both), "y-i");
    // Its nearest cannot be opened.
    let rest = offer(vec![far(roce("f", 100))]);
    assert_eq!(said(&rest, &both), "f-r");
    // What is said of those that reach nobody is said of the nearest.
    let v1 = port("v", LinkLayer::Ethernet, 1, &[(GidClass::RoceV1, 0)]);
    let v2 = port("w", LinkLayer::Ethernet, 1, &[(GidClass::RoceV2Ipv6, 0)]);
    let text = said(&offer(vec![v1.clone(), far(v1)]), &offer(vec![v2]));
    assert!(text.contains("(node0: RoCE v1, node1: RoCE v2, IPv6)"), "{text}");
}

#[test]
fn every_refusal_says_where_and_what_to_do() {
    let good = offer(vec![roce("a", 100)]);
    let none = Offer { library: Library::Present, ..Offer::default() };
    assert_eq!(said(&good, &none), "node1 has no RDMA device");
    assert_eq!(said(&none, &none), "neither node0 nor node1 has an RDMA device");
    let down = Offer { left_out: vec![unused("mlx5_0:1", "down (Disabled)", "")], ..none.clone() };
    assert_eq!(said(&down, &good), "node0 has no usable RDMA port: mlx5_0:1 down (Disabled)");
    let two = said(&down, &Offer { left_out: vec![unused("x:1", "init", "")], ..none.clone() });
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
fn what_several_ports_lack_is_told_once() {
    let none = Offer { library: Library::Present, ..Offer::default() };
    let of = |kib: u64, ports: &[&str]| {
        let why = format!("has {kib} KiB");
        let left_out = ports.iter().map(|port| unused(port, &why, "raise it")).collect();
        Offer { left_out, ..none.clone() }
    };
    let mut two = of(4, &["a:1", "b:1"]);
    assert_eq!(
        said(&two, &two),
        "neither node0 nor node1 has a usable RDMA port: a:1, b:1 has 4 KiB; raise it"
    );
    let other = of(8, &["c:1"]);
    let both = "neither has a usable RDMA port (node0: a:1, b:1 has 4 KiB; node1: c:1 has 8 KiB); raise it";
    assert_eq!(said(&two, &other), both);
    two.left_out.push(unused("c:1", "down", ""));
    let one = "node0 has no usable RDMA port: a:1, b:1 has 4 KiB; c:1 down; raise it";
    assert_eq!(said(&two, &offer(vec![roce("a", 100)])), one);
    assert_eq!(two.left_out[0].to_string(), "a:1 has 4 KiB; raise it");
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
    let port =
        (any::<bool>(), classes, 0u64..3, prop::option::of(1u64..4)).prop_map(|(ib, classes, n, rate)| {
            let gids: Vec<_> = classes.into_iter().zip([n as u32, 7, 9]).collect();
            OfferedPort {
                rate_mbps: rate.map(|r| r * 100_000),
                subnet: ib.then_some(n),
                ..if ib { infiniband("i", 1) } else { port("r", LinkLayer::Ethernet, 1, &gids) }
            }
        });
    let asked = prop::sample::select(vec![Asked::Auto, Asked::Verbs, Asked::Never("x".into())]);
    let library = prop::sample::select(vec![Library::Present, Library::Absent("y".into()), Library::Unknown]);
    (
        asked,
        library,
        prop::collection::vec(port, 0..4),
        prop::collection::vec(Just(unused("z:1", "y", "x")), 0..2),
    )
        .prop_map(|(asked, library, ports, left_out)| Offer {
            asked,
            most_rails: 1,
            library,
            ports,
            left_out,
        })
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
            rails.iter_mut().for_each(|rail| *rail = rail.turned());
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
