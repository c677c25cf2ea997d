//! Rails: how many, which, and that both ranks come to the same.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::rdma::{GidClass, LinkLayer, OfferedPort};

fn port(device: &str, number: u32, gids: &[(GidClass, u32)]) -> OfferedPort {
    OfferedPort {
        device: device.into(),
        number,
        link_layer: LinkLayer::Ethernet,
        rate_mbps: Some(100_000),
        mtu: Some(4096),
        lid: None,
        subnet: None,
        gids: gids.to_vec(),
        farther: false,
    }
}

const V4: (GidClass, u32) = (GidClass::RoceV2Ipv4, 3);

/// Of devices that are called so, each with one port.
fn offer(devices: &[&str], most_rails: u8) -> Offer {
    let ports = devices.iter().map(|device| port(device, 1, &[V4])).collect();
    Offer { most_rails, library: Library::Present, ports, ..Offer::default() }
}

/// Pairs as `a-b`.
fn said(here: (&Offer, Share), there: (&Offer, Share)) -> String {
    match between_ranks(here, there, false, false) {
        Verdict::Verbs(rails) => {
            let name =
                |r: &Rail| format!("{}-{}", here.0.ports[r.here].device, there.0.ports[r.there].device);
            rails.iter().map(name).collect::<Vec<_>>().join(" ")
        }
        Verdict::No(why) => why.text("node0", "node1"),
    }
}

#[test]
fn ports_are_divided_among_the_ranks_that_share_them() {
    let (a, b) = (offer(&["a0", "a1", "a2", "a3"], 4), offer(&["b0", "b1", "b2", "b3"], 4));
    let of = |index, ranks| said((&a, Share { index, ranks }), (&b, Share { index, ranks }));
    assert_eq!(of(0, 1), "a0-b0 a1-b1 a2-b2 a3-b3");
    assert_eq!([of(0, 2), of(1, 2)], ["a0-b0 a1-b1", "a2-b2 a3-b3"]);
    assert_eq!([of(0, 3), of(2, 3)], ["a0-b0", "a2-b2"]);
    assert_eq!([of(1, 8), of(6, 8)], ["a1-b1", "a2-b2"]);
    // The host with fewer for each decides, and so does the lower setting.
    let two = Share { index: 1, ranks: 2 };
    assert_eq!(said((&a, Share::ALONE), (&b, two)), "a0-b0 a1-b1");
    assert_eq!(said((&a, Share::ALONE), (&offer(&["c0", "c1"], 4), Share::ALONE)), "a0-c0 a1-c1");
    assert_eq!(said((&a, Share::ALONE), (&offer(&["c0", "c1"], 4), two)), "a0-c0");
    assert_eq!(said((&a, Share::ALONE), (&offer(&["c0", "c1", "c2"], 2), Share::ALONE)), "a0-c0 a1-c1");
    assert_eq!(said((&a, Share::ALONE), (&offer(&["c0", "c1"], 0), Share::ALONE)), "a0-c0");
}

#[test]
fn a_port_is_in_as_many_rails_as_it_has_the_speed_for() {
    let of = |devices: &[&str], gbits: u64| {
        let mut offer = offer(devices, 4);
        offer.ports.iter_mut().for_each(|port| port.rate_mbps = Some(1000 * gbits));
        offer
    };
    let (four, two) = (of(&["a0", "a1", "a2", "a3"], 100), of(&["b0", "b1"], 200));
    assert_eq!(said((&four, Share::ALONE), (&two, Share::ALONE)), "a0-b0 a1-b1 a2-b0 a3-b1");
    assert_eq!(said((&two, Share::ALONE), (&four, Share::ALONE)), "b0-a0 b1-a1 b0-a2 b1-a3");
    let halves = [0, 1].map(|index| Share { index, ranks: 2 });
    let of_half = |half| said((&four, half), (&two, half));
    assert_eq!(halves.map(of_half), ["a0-b0 a1-b1", "a2-b0 a3-b1"]);
    // Half of what is left of either would hold a third up.
    assert_eq!(
        said((&of(&["a0", "a1", "a2"], 100), Share::ALONE), (&of(&["b0", "b1"], 150), Share::ALONE)),
        "a0-b0 a1-b1"
    );
    // One of 200 serves two; of a port whose speed nobody knows nothing is expected.
    assert_eq!(said((&four, Share::ALONE), (&of(&["b0"], 200), Share::ALONE)), "a0-b0 a1-b0");
    let mut unknown = of(&["b0", "b1"], 200);
    unknown.ports[0].rate_mbps = None;
    assert_eq!(said((&four, Share::ALONE), (&unknown, Share::ALONE)), "a0-b0 a1-b1 a2-b1");
}

#[test]
fn ranks_share_what_is_near_to_both() {
    let of = |offers: &[&Offer]| -> Vec<(usize, usize)> {
        shares(offers).iter().map(|s| (s.index, s.ranks)).collect()
    };
    let (left, right) = (offer(&["a0", "a1"], 4), offer(&["a2", "a3"], 4));
    assert_eq!(of(&[&left, &right, &left, &right]), [(0, 2), (0, 2), (1, 2), (1, 2)]);
    // Who does not use them, or could only use them where its own do not reach, does not count.
    let never = Offer { asked: Asked::Never("ND_IB_DISABLE=1".into()), ..left.clone() };
    let bare = Offer { library: Library::Absent("none".into()), ..left.clone() };
    let mut far = right.clone();
    far.ports.push(OfferedPort { farther: true, ..left.ports[0].clone() });
    assert_eq!(of(&[&never, &left, &bare, &far]), [(0, 1), (0, 1), (0, 1), (0, 1)]);
    // Two ports of one device are two.
    let first = Offer { ports: vec![port("a0", 1, &[V4])], ..left.clone() };
    let second = Offer { ports: vec![port("a0", 2, &[V4])], ..left.clone() };
    assert_eq!(of(&[&first, &second, &first]), [(0, 2), (0, 1), (1, 2)]);
}

fn offers() -> impl Strategy<Value = Offer> {
    let classes =
        prop::sample::subsequence(vec![GidClass::RoceV2Ipv4, GidClass::RoceV2Ipv6, GidClass::RoceV1], 0..4);
    let one = (any::<bool>(), classes, 0u64..3, 1u64..4, any::<bool>());
    let one = one.prop_map(|(infiniband, classes, subnet, rate, farther)| {
        let gids: Vec<_> = classes.into_iter().zip([subnet as u32, 7, 9]).collect();
        let rate_mbps = Some(rate * 100_000);
        let port = OfferedPort { rate_mbps, farther, ..port("", 1, &gids) };
        if !infiniband {
            return port;
        }
        let gids = vec![(GidClass::InfiniBand, 0)];
        OfferedPort { link_layer: LinkLayer::InfiniBand, subnet: Some(subnet), gids, ..port }
    });
    (prop::collection::vec(one, 0..7), 0u8..6).prop_map(|(mut ports, most_rails)| {
        for (i, port) in ports.iter_mut().enumerate() {
            port.device = format!("d{i}");
        }
        Offer { most_rails, library: Library::Present, ports, ..Offer::default() }
    })
}

fn share() -> impl Strategy<Value = Share> {
    (1usize..6).prop_flat_map(|ranks| (0..ranks).prop_map(move |index| Share { index, ranks }))
}

proptest! {
    /// Both ranks come to the same rails, in the same order, and none of their ports is in more than it has the speed for.
    #[test]
    fn both_ranks_agree(a in offers(), b in offers(), ours in share(), theirs in share()) {
        let here = between_ranks((&a, ours), (&b, theirs), false, false);
        let there = between_ranks((&b, theirs), (&a, ours), false, true);
        let (Verdict::Verbs(here), Verdict::Verbs(there)) = (here, there) else {
            prop_assert!(matches!(between(&a, &b, false), Verdict::No(_)));
            return Ok(());
        };
        prop_assert_eq!(&there.iter().map(Rail::turned).collect::<Vec<_>>(), &here);
        let most = usize::from(a.most_rails.min(b.most_rails)).max(1);
        prop_assert!(!here.is_empty() && here.len() <= most);
        for rail in &here {
            let (x, y) = (&a.ports[rail.here], &b.ports[rail.there]);
            let speed = |r: &Rail| a.ports[r.here].rate_mbps.min(b.ports[r.there].rate_mbps).unwrap();
            let all = |of: fn(&Rail) -> usize| -> Vec<u64> {
                here.iter().filter(|r| of(r) == of(rail)).map(speed).collect()
            };
            for (rates, port) in [(all(|r| r.here), x), (all(|r| r.there), y)] {
                prop_assert!(rates.iter().sum::<u64>() <= port.rate_mbps.unwrap());
            }
        }
        if let Verdict::Verbs(all) = between(&a, &b, false) {
            prop_assert!(here.iter().all(|rail| all.contains(rail)));
        }
    }

    /// The ranks of two like hosts load their ports alike: none carries more than one rail more than another, and where
    /// there are enough for all, no two ranks meet on one.
    #[test]
    fn ranks_load_ports_alike(ports in 1usize..17, ranks in 1usize..17, most in 1u8..5) {
        let names: Vec<String> = (0..ports).map(|i| format!("d{i}")).collect();
        let host = offer(&names.iter().map(String::as_str).collect::<Vec<_>>(), most);
        let mut load: BTreeMap<usize, usize> = (0..ports).map(|port| (port, 0)).collect();
        for share in shares(&vec![&host; ranks]) {
            prop_assert_eq!(share.ranks, ranks);
            let Verdict::Verbs(rails) = between_ranks((&host, share), (&host, share), false, false) else {
                return Err(TestCaseError::fail("no verbs"));
            };
            prop_assert_eq!(rails.len(), (ports / ranks).clamp(1, most.into()));
            rails.iter().for_each(|rail| *load.entry(rail.here).or_default() += 1);
        }
        let (least, most) = (load.values().min().unwrap(), load.values().max().unwrap());
        prop_assert!(most - least <= 1, "{load:?}");
    }
}
