//! Which rank sits where in the mesh: tp inside hosts, then cp, then dp_shard, and the heaviest traffic on the fastest links.

use nd_comm::cost::calibration::{Between, Calibration, LinkCost};
use nd_comm::cost::hosts::Machines;
use nd_comm::prelude::Communicator;
use nd_topology::cluster::Slot;
use nd_topology::model::{LinkOverride, Nic, Numa, Port};
use nd_topology::placement::{self, Placement, Ring};
use nd_topology::{Cluster, System};

use super::spared::flat;
use crate::error::{Error, Result};
use crate::mesh::Mesh;

/// Where each rank of a communicator sits.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The place in the mesh of each rank.
    pub order: Vec<usize>,
    /// How that was found, with the links and predictions of each axis; on rank 0 alone.
    pub placement: Option<Placement>,
    /// The hosts and links that this is about; on rank 0 alone.
    pub cluster: Option<Cluster>,
    /// Where they would sit if the copies of shards were shards as well, if there are copies; on rank 0 alone.
    pub flat: Option<(Mesh, Placement)>,
    /// Whether the speeds of links were measured on these machines, and not those that are typical.
    pub measured: bool,
}

/// What groups of `size` ranks that lie `stride` apart in the mesh get of the links, where the place r in the mesh is the slot
/// `order[r]`. Collectives go through the ranks of one host after those of another, whatever their order in the mesh.
pub(super) fn ring(cluster: &Cluster, order: &[Slot], size: usize, stride: usize) -> Ring {
    let mut sorted = order.to_vec();
    for first in (0..order.len()).filter(|place| (place / stride).is_multiple_of(size)) {
        let places = (0..size).map(|i| first + i * stride);
        let mut group: Vec<Slot> = places.clone().map(|place| order[place]).collect();
        group.sort_unstable_by_key(|slot| (slot.host, slot.local));
        places.zip(group).for_each(|(place, slot)| sorted[place] = slot);
    }
    placement::ring(cluster, &sorted, size, stride)
}

/// Chooses the places for a model of this shape, by which ranks share a host and what the links between ranks were measured to
/// cost. All ranks call this.
///
/// # Errors
/// [`Error::Mesh`] when the mesh does not divide the model, and of communication.
pub fn place(comm: &Communicator, mesh: &Mesh, model: &placement::Model) -> Result<Placed> {
    let world = comm.world_size();
    let parsed = placeable(mesh, model)?;
    let mut places = vec![0u64; world];
    let (mut found, mut flatter, mut links) = (None, None, None);
    if comm.rank() == 0 {
        let machines = comm.machines();
        let wrong = |e: nd_topology::Error| Error::Mesh(e.to_string());
        let cluster = cluster(&machines).map_err(wrong)?;
        let placement = placement::place_inside(&cluster, &parsed, model).map_err(wrong)?;
        for (place, slot) in placement.order.iter().enumerate() {
            places[machines.layout.hosts()[slot.host][slot.local] as usize] = place as u64;
        }
        found = Some(placement);
        let place_flat = |mesh: Mesh| {
            let parsed = placement::Mesh::parse(&mesh.to_string(), world).ok()?;
            Some((mesh, placement::place_inside(&cluster, &parsed, model).ok()?))
        };
        flatter = flat(mesh).and_then(place_flat);
        links = Some(cluster);
    }
    comm.broadcast(&mut places, 0)?;
    let costs = comm.machines().costs;
    let measured = !costs.link.is_empty() && *costs != *Calibration::typical();
    let order = places.into_iter().map(|place| place as usize).collect();
    Ok(Placed { order, placement: found, cluster: links, flat: flatter, measured })
}

/// The mesh as placement sees it, if it divides the model.
pub(super) fn placeable(mesh: &Mesh, model: &placement::Model) -> Result<placement::Mesh> {
    let wrong = |e: nd_topology::Error| Error::Mesh(e.to_string());
    let parsed = placement::Mesh::parse(&mesh.to_string(), mesh.world()).map_err(wrong)?;
    model.check(&parsed).map_err(wrong)?;
    Ok(parsed)
}

/// The machines as a cluster with a slot for each rank: ranks of a host are joined in pairs, hosts by one port each, both as fast
/// as they were measured.
fn cluster(machines: &Machines) -> nd_topology::Result<Cluster> {
    let crowd = machines.cores.ranks_per_core();
    let cost = |transport: usize, between| {
        let known = [&*machines.costs, Calibration::typical()];
        let name = machines.transports[transport];
        known.into_iter().find_map(|costs| costs.find(name, between, crowd)).or_else(|| {
            let like = if between == Between::Ranks { "shm" } else { "tcp" };
            Calibration::typical().find(like, between, crowd)
        })
    };
    let (inside, across) = (cost(0, Between::Ranks), cost(1, Between::Hosts));
    let hosts = machines.layout.hosts();
    let mut text = String::new();
    for (i, host) in hosts.iter().enumerate() {
        text += &format!("[[hosts]]\nfile = \"{}\"\nname = \"host{i}\"\n", host.len());
    }
    let mut file = |ranks: &str| Ok(system(ranks.parse().unwrap_or(1), inside, across));
    Cluster::from_toml(&text, &mut file)
}

/// A host with so many ranks, each on a node of its own.
fn system(ranks: usize, inside: Option<&LinkCost>, across: Option<&LinkCost>) -> System {
    let port = |cost: &LinkCost| {
        let (gbps, us) = speed(cost);
        Port {
            name: "port".into(),
            dev: Some(0),
            speed_mbps: Some(cost.host_gbps.unwrap_or(gbps) * 8000.0),
            latency: Some(us),
            ..Port::default()
        }
    };
    let numa = |id: usize| {
        let port = across.filter(|_| id == 0).map(port);
        let nics = port.map(|port| Nic { ports: vec![port], ..Nic::default() });
        Numa { id: id as i32, nics: nics.into_iter().collect(), ..Numa::default() }
    };
    let pairs = (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b)));
    let link = |((a, b), cost): ((usize, usize), &LinkCost)| {
        let (gbps, us) = speed(cost);
        let (from, to) = (format!("NUMA{a}"), format!("NUMA{b}"));
        LinkOverride { from, to, gbps: Some(gbps), us: Some(us), both: true }
    };
    System {
        name: format!("{ranks} ranks"),
        numas: (0..ranks).map(numa).collect(),
        overrides: pairs.filter_map(|pair| Some(link((pair, inside?)))).collect(),
        ..System::default()
    }
}

/// Bytes of the message that a link's speed is taken from: a block's weights or activations have as many, or more.
const TYPICAL: u64 = 1 << 20;

/// GB/s and µs of a link while all ranks send and receive.
fn speed(cost: &LinkCost) -> (f64, f64) {
    let us = cost.exchange.first().map_or(1.0, |point| point.1);
    let nearest = cost.exchange.iter().min_by_key(|point| point.0.abs_diff(TYPICAL));
    let gbps = nearest.map_or(1.0, |(bytes, took)| *bytes as f64 / (took - us).max(took * 0.1) / 1000.0);
    (gbps, us)
}

#[cfg(test)]
mod tests {
    use nd_comm::choose::Chooser;
    use nd_tests::worlds::{Kind, each, world};

    use super::*;
    use crate::group::Groups;

    fn small() -> placement::Model {
        placement::Model {
            layers: 4,
            hidden: 64,
            ffn: 128,
            heads: 4,
            kv_heads: 2,
            vocab: 256,
            sequence: 64,
            ..Default::default()
        }
    }

    /// Hosts of the ranks, as a launcher dealt them out, and the axis that must stay inside.
    fn groups_inside(hosts: &[usize], mesh: &str, model: &placement::Model) -> Vec<Vec<usize>> {
        let n = hosts.len();
        let mesh = Mesh::parse(mesh, n).unwrap();
        let world = world(&Kind::Hosts(hosts.to_vec()), n, &Chooser::default());
        each(&world, |comm| {
            let placed = place(comm, &mesh, model).unwrap();
            assert_eq!(placed.placement.is_some(), comm.rank() == 0);
            let groups = Groups::new(comm, mesh, &placed.order).unwrap();
            let mut members = vec![0u64; groups.tp().size()];
            groups.tp().all_gather(&[comm.rank() as u64], &mut members).unwrap();
            members.into_iter().map(|r| r as usize).collect()
        })
    }

    #[test]
    fn tensor_parallelism_stays_inside_hosts_however_ranks_were_dealt() {
        let wide = placement::Model { hidden: 512, ffn: 2048, ..small() };
        let all = [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]].into_iter();
        for (hosts, model) in all.flat_map(|hosts| [(hosts, small()), (hosts, wide.clone())]) {
            for group in groups_inside(&hosts, "dp_shard=2,tp=2", &model) {
                assert_eq!(hosts[group[0]], hosts[group[1]], "{hosts:?}: {group:?}");
            }
        }
    }

    #[test]
    fn the_order_in_a_host_does_not_change_what_a_group_gets() {
        let known = |between| {
            Calibration::typical().find(if between == Between::Ranks { "shm" } else { "tcp" }, between, 1.0)
        };
        let (inside, across) = (known(Between::Ranks), known(Between::Hosts));
        let two = "[[hosts]]\nfile = \"2\"\nname = \"a\"\n[[hosts]]\nfile = \"2\"\nname = \"b\"\n";
        let cluster = Cluster::from_toml(two, &mut |_: &str| Ok(system(2, inside, across))).unwrap();
        let slot = |(host, local)| Slot { host, local };
        let of = |order: [(usize, usize); 4], size, stride| ring(&cluster, &order.map(slot), size, stride);
        let all = of([(0, 0), (0, 1), (1, 0), (1, 1)], 4, 1);
        assert!(all.hosts == 2 && all.gbps < all.inside_gbps, "{all:?}");
        assert_eq!(of([(0, 1), (0, 0), (1, 0), (1, 1)], 4, 1), all);
        assert_eq!(of([(1, 0), (0, 0), (1, 1), (0, 1)], 4, 1), all);
        // Two pairs between hosts share what one ring has.
        let pairs = of([(0, 0), (0, 1), (1, 0), (1, 1)], 2, 2);
        assert!((pairs.gbps * 2.0 / all.gbps - 1.0).abs() < 1e-9 && pairs.hosts == 2, "{pairs:?} {all:?}");
        assert_eq!(of([(0, 0), (1, 0), (0, 1), (1, 1)], 2, 1).hosts, 2);
        assert_eq!(of([(0, 0), (1, 0), (0, 1), (1, 1)], 2, 2).hosts, 1);
    }

    #[test]
    fn where_all_links_are_alike_the_order_is_the_launchers() {
        for group in groups_inside(&[0, 0, 0, 0], "dp_shard=2,tp=2", &small()) {
            assert!([[0, 1], [2, 3]].contains(&[group[0], group[1]]), "{group:?}");
        }
    }

    #[test]
    fn a_mesh_that_does_not_divide_the_model_is_refused_everywhere() {
        let mesh = Mesh::parse("tp=3", 3).unwrap();
        for error in each(&Communicator::local(3).unwrap(), |comm| place(comm, &mesh, &small())) {
            assert!(error.unwrap_err().to_string().contains("tp=3 does not divide heads = 4"));
        }
    }
}
