//! Properties that hold for any machine, tried on random ones and on the library.
#![allow(clippy::unwrap_used)]

use nd_topology::graph::{LinkKind, NodeKind};
use nd_topology::model::{BusId, Device, Gpu, Nic, Numa, NvLink, Parent, Port};
use nd_topology::rdma::{Framing, Gid, LinkLayer, PortState, RdmaDevice, RdmaPort};
use nd_topology::search::{Channel, ChannelGraph, MAX_STEPS, Pattern, Settings, search};
use nd_topology::{Graph, PathClass, Paths, System, formats, library};
use proptest::prelude::*;

/// A host of one to three NUMA nodes, with switches, GPUs, NICs and NVLinks at random.
fn systems() -> impl Strategy<Value = System> {
    let device =
        (0usize..3, 0usize..3, prop::bool::weighted(0.6), 0usize..4, prop::sample::select(vec![1u32, 8, 16]));
    let makers = prop::sample::select(vec![("GenuineIntel", 143), ("GenuineIntel", 85), ("AuthenticAMD", 1)]);
    (
        1usize..4,
        makers,
        prop::collection::vec(device, 1..10),
        prop::sample::select(vec![0, 60, 70, 80, 90, 100]),
        prop::collection::vec((0usize..8, 0usize..8, 1u32..5), 0..12),
        prop::bool::ANY,
    )
        .prop_map(|(numas, (vendor, model), devices, sm, links, switched)| {
            let mut s = System { name: "random".into(), ..System::default() };
            for id in 0..numas {
                let (family, model) = (Some(6), Some(model));
                let vendor = vendor.to_owned();
                s.numas.push(Numa {
                    id: id as i32,
                    arch: "x86_64".into(),
                    vendor,
                    family,
                    model,
                    ..Numa::default()
                });
            }
            let mut bus = 0;
            let mut next = || {
                bus += 1;
                BusId::parse(&format!("0000:{bus:02x}:00.0")).unwrap()
            };
            let speeds = ["8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", ""];
            let mut switches = Vec::new();
            for n in 0..numas {
                for _ in 0..n {
                    let mut d = Device::new(Parent::Numa(n), next(), 0x060400);
                    d.link_speed = Some(speeds[1].into());
                    d.link_width = Some(16);
                    s.devices.push(d);
                    switches.push(s.devices.len() - 1);
                }
            }
            let mut gpus = Vec::new();
            let mut dev = 0;
            for (numa, switch, is_gpu, speed, width) in devices {
                let parent = match switches.get(switch) {
                    Some(&d) => Parent::Device(d),
                    None => Parent::Numa(numa % numas),
                };
                let mut d = Device::new(parent, next(), if is_gpu { 0x030200 } else { 0x020000 });
                d.link_speed = Some(speeds[speed].into());
                d.link_width = Some(width);
                if is_gpu {
                    let dev = gpus.len() as i32;
                    d.gpu = Some(Gpu { dev, sm, rank: Some(dev), gdr: Some(true), ..Gpu::default() });
                    gpus.push(s.devices.len());
                } else {
                    let speed_mbps = Some(100_000.0);
                    let name = format!("eth{dev}");
                    let (guid, gdr) = (Some(dev as u64 + 1), Some(true));
                    let port = Port { name, dev: Some(dev), speed_mbps, guid, gdr, ..Port::default() };
                    let at = s.devices.len();
                    s.rdma.push(hca(&port.name, at, (dev % 3 > 0).then_some(numa as i32)));
                    d.nics.push(Nic { ports: vec![port], extra: vec![] });
                    dev += 1;
                }
                s.devices.push(d);
            }
            let link = |s: &mut System, from: usize, target: BusId, count, class| {
                let gpu = s.devices[from].gpu.as_mut().unwrap();
                if gpu.nvlinks.iter().all(|l| l.target != target) {
                    gpu.nvlinks.push(NvLink {
                        target,
                        count,
                        target_class: Some(class),
                        bandwidth: None,
                        xgmi: false,
                    });
                }
            };
            if switched {
                for &g in &gpus {
                    link(&mut s, g, BusId::parse("fffffff:ffff:ff").unwrap(), 6, 0x068000);
                }
            } else if !gpus.is_empty() {
                for (a, b, count) in links {
                    let (a, b) = (gpus[a % gpus.len()], gpus[b % gpus.len()]);
                    if a != b {
                        let (to, back) = (s.devices[b].bus.clone(), s.devices[a].bus.clone());
                        link(&mut s, a, to, count, 0x030200);
                        link(&mut s, b, back, count, 0x030200);
                    }
                }
            }
            s
        })
}

/// An RDMA device with two ports, of which one says nothing.
fn hca(name: &str, at: usize, numa: Option<i32>) -> RdmaDevice {
    let gid = Gid {
        index: 3,
        address: "::ffff:10.0.0.1".parse().unwrap(),
        framing: Some(Framing::RoceV2),
        netdev: Some("eth0.7".into()),
    };
    let port = RdmaPort {
        number: 1,
        state: Some(PortState::Active),
        link_layer: Some([LinkLayer::InfiniBand, LinkLayer::Ethernet][at % 2]),
        rate_mbps: Some(100_000),
        gids: vec![gid],
        ..RdmaPort::default()
    };
    let silent = RdmaPort { number: 2, ..RdmaPort::default() };
    let device = RdmaDevice { name: format!("{name}_rdma"), device: Some(at), ..RdmaDevice::default() };
    RdmaDevice { numa, ports: vec![port, silent], ..device }
}

/// Puts every channel's speed on every link of its way and looks for a link that has too much.
fn overbooked(graph: &Graph, g: &ChannelGraph) -> Option<String> {
    let paths = Paths::new(graph);
    let mut load = vec![0.0; graph.links.len()];
    let gpu = |dev: &i32| {
        graph
            .gpus
            .iter()
            .copied()
            .find(|&n| matches!(graph.nodes[n].kind, NodeKind::Gpu { dev: d, .. } if d == *dev))
    };
    for Channel { gpus, nets } in &g.channels {
        assert!(nets.is_none());
        let mut walk: Vec<usize> = gpus.iter().map(|d| gpu(d).unwrap()).collect();
        let mut members = walk.clone();
        members.sort_unstable();
        members.dedup();
        assert_eq!(members.len(), graph.gpus.len(), "a channel passes every GPU once");
        if g.pattern == Pattern::Ring && walk.len() > 1 {
            walk.push(walk[0]);
        }
        for step in walk.windows(2) {
            for &l in &paths.between(step[0], step[1]).links {
                load[l] += g.speed_intra;
            }
        }
    }
    (0..load.len()).find(|&l| load[l] > graph.links[l].bandwidth + 1e-3).map(|l| {
        let link = &graph.links[l];
        format!(
            "{} → {}: {} of {}",
            graph.nodes[link.from].name, graph.nodes[link.to].name, load[l], link.bandwidth
        )
    })
}

fn check_paths(graph: &Graph) {
    let paths = Paths::new(graph);
    for a in 0..graph.nodes.len() {
        for b in 0..graph.nodes.len() {
            let (there, back) = (paths.between(a, b), paths.between(b, a));
            assert_eq!(there.class, back.class, "{} {}", graph.nodes[a].name, graph.nodes[b].name);
            assert_eq!(there.links.len(), back.links.len());
            for &l in &there.links {
                assert!(there.bandwidth <= graph.links[l].bandwidth);
            }
            assert!(!paths.reason(graph, a, b).is_empty());
            assert!(
                a == b
                    || there.class != PathClass::Loc
                    || graph.links.iter().any(|l| l.kind == LinkKind::Net)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn paths_are_symmetric_in_class_and_no_wider_than_their_links(system in systems()) {
        check_paths(&Graph::new(&system).unwrap());
    }

    #[test]
    fn search_never_overbooks_a_link_and_is_deterministic(system in systems()) {
        let graph = Graph::new(&system).unwrap();
        let found = search(&graph, &Settings::default());
        for g in [&found.ring, &found.tree] {
            if !graph.gpus.is_empty() && !g.is_fallback() {
                prop_assert_eq!(overbooked(&graph, g), None);
            }
        }
        prop_assert!(found.ring.steps + found.tree.steps <= MAX_STEPS);
        prop_assert_eq!(&found, &search(&graph, &Settings::default()));
        // The several-host search ends and keeps its channels whole.
        let several = search(&graph, &Settings { several_hosts: true, ..Settings::default() });
        prop_assert!(several.ring.steps + several.tree.steps <= MAX_STEPS);
        for c in &several.ring.channels {
            prop_assert_eq!(c.gpus.len(), graph.gpus.len());
        }
    }

    #[test]
    fn what_is_written_is_read_again(system in systems()) {
        let graph = Graph::new(&system).unwrap();
        let json = formats::json::write(&system, &graph, &Paths::new(&graph));
        prop_assert_eq!(&formats::json::read(&json).unwrap(), &system);
        let xml = formats::nccl_xml::write(&system);
        let read = formats::nccl_xml::read(&xml).unwrap();
        prop_assert_eq!(formats::nccl_xml::write(&read), xml);
        let again = Graph::new(&read).unwrap();
        let settings = Settings::default();
        prop_assert_eq!(search(&again, &settings).ring, search(&graph, &settings).ring);
    }
}

#[test]
fn the_library_keeps_the_same_promises() {
    for name in library::names() {
        let graph = Graph::new(&library::machine(name).unwrap()).unwrap();
        check_paths(&graph);
        if graph.gpus.is_empty() {
            continue;
        }
        let found = search(&graph, &Settings::default());
        for g in [&found.ring, &found.tree] {
            assert_eq!(overbooked(&graph, g), None, "{name}");
        }
    }
}

/// What NCCL is known to choose on these machines (12 × 30 on Hopper with NVSwitch).
#[test]
fn known_rings() {
    let ring = |name: &str| {
        let graph = Graph::new(&library::machine(name).unwrap()).unwrap();
        let r = search(&graph, &Settings::default()).ring;
        (r.channels.len(), r.speed_intra, r.type_intra)
    };
    assert_eq!(ring("dgx-h100"), (12, 30.0, PathClass::Nvl));
    assert_eq!(ring("dgx-a100"), (12, 20.0, PathClass::Nvl));
    assert_eq!(ring("dgx-1").2, PathClass::Nvl);
    assert_eq!(ring("pcie4-8x").2, PathClass::Sys);
}

/// Trees were lost where the second GPU of a balanced one cannot be reached from the first one's NIC, and the choice
/// between the ways to use NICs was worse than one of them.
#[test]
fn between_hosts_every_machine_has_trees_and_the_free_choice_of_nics_is_the_best() {
    for name in library::names() {
        let graph = Graph::new(&library::machine(name).unwrap()).unwrap();
        if graph.gpus.is_empty() || graph.nets.is_empty() {
            continue;
        }
        let with =
            |cross_nic| search(&graph, &Settings { several_hosts: true, cross_nic, ..Settings::default() });
        let found = [0, 1, 2].map(with);
        for f in &found {
            assert!(!f.ring.is_fallback() && !f.tree.is_fallback(), "{name}");
            assert!(f.ring.steps + f.tree.steps <= MAX_STEPS, "{name}");
        }
        let [zero, one, two] = found.map(|f| f.ring.bandwidth());
        // NCCL's measure: channels that cross NICs must move 15 % more.
        assert!(two >= zero && two * 1.15 >= one, "{name}: {zero} {one} {two}");
    }
}
