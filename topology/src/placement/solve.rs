//! The search for an order. All permutations of up to eight ranks are tried; above, every nesting of the axes (at most
//! 24) over the hosts in order and grouped by leaf and kind, and then exchanges of two ranks or two hosts, bounded in
//! number. The default order is always among the candidates, so the result is never worse.

use std::cmp::Ordering;

use super::cost::{AxisCost, Narrowest, Pricer, total};
use super::mesh::Mesh;
use super::traffic::{self, Model, Traffic};
use crate::cluster::{Cluster, Slot};
use crate::graph::LinkKind;
use crate::path::PathClass;
use crate::{Error, Result};

/// Ranks up to which all permutations are tried: 8! = 40,320.
const EXHAUSTIVE: usize = 8;
/// Hops priced by exchanges: bounds the effort whatever the size.
const EXCHANGE_BUDGET: usize = 4_000_000;

/// One axis of the result.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Axis.
    pub axis: String,
    /// Ranks in a group.
    pub size: usize,
    /// Groups.
    pub groups: usize,
    /// Class of the slowest hop: `NVL`, `PIX`, `NET`, …
    pub link: String,
    /// Where that hop goes, for people.
    pub how: String,
    /// GB/s that it gets while all groups run.
    pub gbps: f64,
    /// Bytes that each rank sends in a step.
    pub bytes: f64,
    /// Collective calls in a step; for cp the exchanges with a neighbour, divided by `size - 1`.
    pub calls: f64,
    /// What the calls are.
    pub what: String,
    /// µs of a step.
    pub us: f64,
    /// µs of this axis in the default order.
    pub default_us: f64,
    /// µs of this axis in the worst nesting looked at.
    pub worst_us: f64,
}

/// Where each rank sits, and what that costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Slot of each rank.
    pub order: Vec<Slot>,
    /// Axes as nested over the slots, outermost first (`dp_shard ⊃ tp`), or how else the order came about; for people.
    pub nesting: String,
    /// One row for each axis.
    pub rows: Vec<Row>,
    /// µs of a step, all axes one after the other.
    pub us: f64,
    /// The same in the default order: mesh order over hosts in order.
    pub default_us: f64,
    /// The same in the worst order looked at.
    pub worst_us: f64,
    /// Orders that were priced.
    pub tried: usize,
}

/// Chooses the order with the least communication time.
///
/// # Errors
/// [`Error::Mesh`] when mesh and cluster have different numbers of ranks, and when the mesh does not divide the model
/// (see [`Model::check`]).
pub fn place(cluster: &Cluster, mesh: &Mesh, model: &Model) -> Result<Placement> {
    search(cluster, mesh, model, &[])
}

/// As [`place`], but among the orders in which `tp` stays inside hosts, if there are any; among those in which `cp` does; and
/// then `dp_shard`. tp waits for each of its calls and cp for some, while those of dp_shard hide behind computation: a time in
/// which nothing is hidden is not what decides between them.
///
/// # Errors
/// As [`place`].
pub fn place_inside(cluster: &Cluster, mesh: &Mesh, model: &Model) -> Result<Placement> {
    search(cluster, mesh, model, &["tp", "cp", "dp_shard"])
}

fn search(cluster: &Cluster, mesh: &Mesh, model: &Model, inside: &[&str]) -> Result<Placement> {
    if mesh.world() != cluster.ranks() {
        return Err(Error::Mesh(format!(
            "the mesh has {} ranks and the cluster {}; they must be equal",
            mesh.world(),
            cluster.ranks()
        )));
    }
    model.check(mesh)?;
    let traffic = traffic::of(mesh, model);
    let slots = cluster.slots();
    let mut solver = Solver {
        pricer: Pricer::new(cluster),
        mesh,
        traffic: &traffic,
        inside,
        tried: 0,
        best: None,
        worst: None,
    };
    let default = solver.try_order(&slots, "the default order");
    solver.nestings(cluster, &slots);
    if slots.len() <= EXHAUSTIVE {
        solver.permutations(&slots);
    } else {
        solver.exchange(cluster);
    }
    Ok(solver.finish(cluster, &default))
}

struct Solver<'a> {
    pricer: Pricer<'a>,
    mesh: &'a Mesh,
    traffic: &'a [Traffic],
    /// Axes that stay inside hosts where they can, the first above all.
    inside: &'a [&'a str],
    tried: usize,
    best: Option<Candidate>,
    worst: Option<Vec<AxisCost>>,
}

struct Candidate {
    order: Vec<Slot>,
    costs: Vec<AxisCost>,
    name: String,
}

impl Solver<'_> {
    fn try_order(&mut self, order: &[Slot], name: &str) -> Vec<AxisCost> {
        let costs = self.pricer.price(self.mesh, self.traffic, order);
        self.tried += 1;
        let mine = total(&costs);
        let leaves = self.leaves(&costs);
        let better = |best: &Candidate| match leaves.cmp(&self.leaves(&best.costs)) {
            Ordering::Less => true,
            Ordering::Equal => mine < total(&best.costs) - 1e-9,
            Ordering::Greater => false,
        };
        if self.best.as_ref().is_none_or(better) {
            self.best =
                Some(Candidate { order: order.to_vec(), costs: costs.clone(), name: name.to_owned() });
        }
        if self.worst.as_ref().is_none_or(|w| mine > total(w)) {
            self.worst = Some(costs.clone());
        }
        costs
    }

    /// For each axis that should stay inside hosts, whether it does not.
    fn leaves(&self, costs: &[AxisCost]) -> Vec<bool> {
        let cost =
            |name: &&str| self.mesh.axes.iter().position(|axis| axis.name == **name).map(|i| &costs[i]);
        self.inside.iter().filter_map(cost).map(|cost| cost.class == PathClass::Net).collect()
    }

    /// Every nesting of the axes, over the slots as they are, grouped by kind and leaf, and with the GPUs of each host
    /// ordered so that close ones are neighbours.
    fn nestings(&mut self, cluster: &Cluster, slots: &[Slot]) {
        let mut grouped = slots.to_vec();
        grouped.sort_by_key(|s| (cluster.hosts[s.host].leaf, cluster.hosts[s.host].kind, s.host, s.local));
        let near = by_nearness(cluster, &grouped);
        let mut sequences = vec![(slots.to_vec(), "")];
        let others = [
            (grouped, ", with like hosts and hosts of one leaf together"),
            (near, ", with like hosts together and close GPUs of a host as neighbours"),
        ];
        for (s, how) in others {
            if !sequences.iter().any(|(known, _)| *known == s) {
                sequences.push((s, how));
            }
        }
        let n = self.mesh.axes.len();
        for nesting in permutations_of(n) {
            let names: Vec<&str> = nesting.iter().map(|&a| self.mesh.axes[a].name.as_str()).collect();
            let name = names.join(" ⊃ ");
            for (sequence, how) in &sequences {
                let order = self.nest(&nesting, sequence);
                self.try_order(&order, &format!("{name}{how}"));
            }
        }
    }

    /// Ranks laid over a sequence of slots with `nesting` (outermost first) in place of the mesh's own order.
    fn nest(&self, nesting: &[usize], sequence: &[Slot]) -> Vec<Slot> {
        let axes = &self.mesh.axes;
        let mut stride = vec![1; axes.len()];
        let mut step = 1;
        for &a in nesting.iter().rev() {
            stride[a] = step;
            step *= axes[a].size;
        }
        (0..sequence.len())
            .map(|rank| {
                let at: usize =
                    (0..axes.len()).map(|a| rank / self.mesh.stride(a) % axes[a].size * stride[a]).sum();
                sequence[at]
            })
            .collect()
    }

    fn permutations(&mut self, slots: &[Slot]) {
        for p in permutations_of(slots.len()) {
            let order: Vec<Slot> = p.iter().map(|&i| slots[i]).collect();
            self.try_order(&order, "an order of single ranks");
        }
    }

    /// Exchanges of two hosts' ranks, then of two ranks, kept when they help.
    fn exchange(&mut self, cluster: &Cluster) {
        let ranks = self.mesh.world();
        let price = (ranks * self.mesh.axes.len()).max(1);
        let mut left = EXCHANGE_BUDGET / price;
        let hosts = cluster.hosts.len();
        let same = cluster.kinds.len() == 1 && cluster.hosts.iter().all(|h| h.leaf == 0);
        let pairs = |n: usize| (0..n).flat_map(move |a| (a + 1..n).map(move |b| (a, b)));
        if !same {
            for (a, b) in pairs(hosts) {
                let alike = cluster.hosts[a].kind == cluster.hosts[b].kind
                    && cluster.hosts[a].leaf == cluster.hosts[b].leaf;
                let fits = cluster.kind(a).slots.len() == cluster.kind(b).slots.len();
                if alike || !fits {
                    continue;
                }
                if left == 0 {
                    return;
                }
                left -= 1;
                let Some(best) = &self.best else { return };
                let swapped = |s: &Slot| match s.host {
                    h if h == a => Slot { host: b, ..*s },
                    h if h == b => Slot { host: a, ..*s },
                    _ => *s,
                };
                let order: Vec<Slot> = best.order.iter().map(swapped).collect();
                self.try_order(&order, "hosts exchanged");
            }
        }
        for (a, b) in pairs(ranks) {
            if left == 0 {
                return;
            }
            left -= 1;
            let Some(best) = &self.best else { return };
            let mut order = best.order.clone();
            order.swap(a, b);
            self.try_order(&order, "ranks exchanged");
        }
    }

    fn finish(self, cluster: &Cluster, default: &[AxisCost]) -> Placement {
        let (Some(best), Some(worst)) = (self.best, self.worst) else {
            return Placement {
                order: cluster.slots(),
                nesting: String::new(),
                rows: Vec::new(),
                us: 0.0,
                default_us: 0.0,
                worst_us: 0.0,
                tried: self.tried,
            };
        };
        let rows = self.mesh.axes.iter().enumerate().map(|(i, axis)| {
            let cost = &best.costs[i];
            let how = match cost.class {
                PathClass::Net if cost.spine => match cost.narrowest {
                    Narrowest::Spine => "network, through the spine, whose share is the least",
                    Narrowest::Link(LinkKind::Net) => "network, through the spine; the port gives less",
                    Narrowest::Link(_) => "network, through the spine; the way to the port gives less",
                },
                PathClass::Net => "network, one leaf switch",
                PathClass::Nvl if cluster.network.nvlink_domain > 1 => "NVLink inside the rack",
                PathClass::Nvl | PathClass::Nvb => "NVLink inside the host",
                PathClass::Pix | PathClass::Pxb => "PCIe switch inside the host",
                PathClass::Phb | PathClass::Node => "PCIe through one CPU",
                PathClass::Sys => "between sockets",
                _ => "inside the host",
            };
            Row {
                axis: axis.name.clone(),
                size: axis.size,
                groups: self.mesh.world() / axis.size,
                link: cost.class.word().to_owned(),
                how: how.to_owned(),
                gbps: cost.gbps,
                bytes: self.traffic[i].bytes,
                calls: self.traffic[i].calls,
                what: self.traffic[i].what.clone(),
                us: cost.us,
                default_us: default[i].us,
                worst_us: worst[i].us,
            }
        });
        Placement {
            rows: rows.collect(),
            us: total(&best.costs),
            default_us: total(default),
            worst_us: total(&worst),
            order: best.order,
            nesting: best.name,
            tried: self.tried,
        }
    }
}

/// Within each host, the slots one after another so that each is followed by the nearest not yet taken.
fn by_nearness(cluster: &Cluster, slots: &[Slot]) -> Vec<Slot> {
    let mut of_kind: Vec<Option<Vec<usize>>> = vec![None; cluster.kinds.len()];
    let mut out = Vec::with_capacity(slots.len());
    let mut i = 0;
    while i < slots.len() {
        let host = slots[i].host;
        let kind = cluster.hosts[host].kind;
        let locals = of_kind[kind].get_or_insert_with(|| chain(&cluster.kinds[kind]));
        out.extend(locals.iter().map(|&local| Slot { host, local }));
        i += cluster.kinds[kind].slots.len();
    }
    out
}

fn chain(kind: &crate::cluster::Kind) -> Vec<usize> {
    let n = kind.slots.len();
    let mut order = vec![0];
    while order.len() < n {
        let last = kind.slots[order[order.len() - 1]];
        let key = |l: &usize| {
            let p = kind.paths.between(last, kind.slots[*l]);
            (p.class, -(p.bandwidth * 1000.0) as i64, *l)
        };
        match (0..n).filter(|l| !order.contains(l)).min_by_key(key) {
            Some(next) => order.push(next),
            None => break,
        }
    }
    order
}

/// All permutations of 0..n in lexical order.
fn permutations_of(n: usize) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    let mut now: Vec<usize> = (0..n).collect();
    loop {
        all.push(now.clone());
        let Some(i) = (1..n).rev().find(|&i| now[i - 1] < now[i]) else { return all };
        let Some(j) = (i..n).rev().find(|&j| now[j] > now[i - 1]) else { return all };
        now.swap(i - 1, j);
        now[i..].reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Network, NetworkKind};
    use proptest::prelude::*;

    fn cluster(machine: &str, hosts: usize, per_leaf: usize, over: f64, kind: NetworkKind) -> Cluster {
        let network = Network { kind, oversubscription: over, switch_us: 1.0, nvlink_domain: 1 };
        Cluster::uniform("c", crate::library::machine(machine).unwrap(), hosts, network, per_leaf).unwrap()
    }

    #[test]
    fn tensor_parallelism_stays_inside_hosts() {
        let c = cluster("dgx-h100", 32, 8, 2.0, NetworkKind::Rails);
        let mesh = Mesh::parse("tp=8,cp=2,dp_shard=4,dp_replicate=4", 256).unwrap();
        let p = place(&c, &mesh, &Model::default()).unwrap();
        let tp = p.rows.iter().find(|r| r.axis == "tp").unwrap();
        assert_eq!(tp.link, "NVL");
        assert!(p.us <= p.default_us && p.default_us <= p.worst_us);
        assert!(p.worst_us > 2.0 * p.us, "{} {}", p.worst_us, p.us);
    }

    #[test]
    fn what_waits_for_its_calls_stays_inside_whatever_the_bytes() {
        let c = cluster("cpu-2s", 2, 2, 1.0, NetworkKind::LeafSpine);
        let mesh = Mesh::parse("tp=2,dp_shard=2", 4).unwrap();
        // Little is computed with many weights.
        let model = Model { sequence: 64, ..Model::default() };
        let tp = |p: Placement| p.rows.into_iter().find(|r| r.axis == "tp").map(|r| r.link);
        assert_eq!(tp(place(&c, &mesh, &model).unwrap()).unwrap(), "NET");
        assert_ne!(tp(place_inside(&c, &mesh, &model).unwrap()).unwrap(), "NET");
        let mesh = Mesh::parse("tp=4", 4).unwrap();
        assert_eq!(tp(place_inside(&c, &mesh, &model).unwrap()).unwrap(), "NET");
    }

    #[test]
    fn a_thousand_hosts_are_bounded() {
        let c = cluster("dgx-h100", 1024, 32, 2.0, NetworkKind::Rails);
        let mesh = Mesh::parse("tp=8,cp=2,dp_shard=64,dp_replicate=8", 8192).unwrap();
        let p = place(&c, &mesh, &Model::default()).unwrap();
        // 24 nestings of at most three sequences, the default, and exchanges within the budget.
        assert!(p.tried <= 73 + EXCHANGE_BUDGET / (8192 * 4), "{}", p.tried);
    }

    #[test]
    fn islands_of_nvlink_are_found_by_trying_all_orders() {
        // In a DGX-1, GPUs 0-3 and 4-7 are meshes of their own; pairs across have no direct link but for four.
        let c = cluster("dgx-1", 1, 1, 1.0, NetworkKind::LeafSpine);
        let mesh = Mesh::parse("tp=2,dp_shard=4", 8).unwrap();
        let p = place(&c, &mesh, &Model::default()).unwrap();
        assert!(p.us < p.default_us, "{} {}", p.us, p.default_us);
        assert_eq!(p.rows.iter().find(|r| r.axis == "tp").unwrap().link, "NVL");
    }

    #[test]
    fn a_rack_takes_tensor_parallelism_across_trays() {
        let mut c = cluster("gb200-nvl72", 8, 8, 1.0, NetworkKind::Rails);
        c.network.nvlink_domain = 4;
        let mesh = Mesh::parse("tp=16,dp_shard=2", 32).unwrap();
        let p = place(&c, &mesh, &Model::default()).unwrap();
        let link = |axis: &str| p.rows.iter().find(|r| r.axis == axis).unwrap().link.clone();
        assert_eq!((link("tp").as_str(), link("dp_shard").as_str()), ("NVL", "NET"));
    }

    #[test]
    fn the_label_says_what_the_slowest_hop_is_held_up_by() {
        let how = |machine: &str, over: f64, per_leaf: usize| {
            let c = cluster(machine, 4, per_leaf, over, NetworkKind::LeafSpine);
            let tp = c.kinds[0].slots.len();
            let mesh = Mesh::parse(&format!("tp={tp},dp_shard=4"), 4 * tp).unwrap();
            let p = place(&c, &mesh, &Model::default()).unwrap();
            p.rows.iter().find(|r| r.axis == "dp_shard").map(|r| (r.how.clone(), r.gbps)).unwrap()
        };
        // Two hosts of 8 × 50 GB/s on a leaf; one of them sends out of it, over PCIe links of 48 GB/s each.
        assert_eq!(how("dgx-h100", 1.0, 2).0, "network, through the spine; the way to the port gives less");
        assert_eq!(
            how("dgx-h100", 4.0, 2),
            ("network, through the spine, whose share is the least".into(), 25.0)
        );
        assert_eq!(how("dgx-h100", 4.0, 4).0, "network, one leaf switch");
        // Ports of 12.5 GB/s behind PCIe links of 48.
        let port = "network, through the spine; the port gives less".to_owned();
        assert_eq!(how("cpu-2s", 1.0, 2), (port, 12.5));
    }

    #[test]
    fn orders_are_named_outermost_first() {
        let c = cluster("dgx-h100", 4, 4, 1.0, NetworkKind::Rails);
        let mesh = Mesh::parse("tp=8,dp_shard=4", 32).unwrap();
        let p = place(&c, &mesh, &Model::default()).unwrap();
        assert_eq!(p.nesting, "the default order");
        // A mesh whose outermost axis is the one that talks most belongs inside out.
        let order = |nesting: &[usize]| {
            let pricer = Pricer::new(&c);
            let solver =
                Solver { pricer, mesh: &mesh, traffic: &[], inside: &[], tried: 0, best: None, worst: None };
            solver.nest(nesting, &c.slots())
        };
        let axis = |name: &str| mesh.axes.iter().position(|a| a.name == name).unwrap();
        let inside = order(&[axis("dp_shard"), axis("tp")]);
        assert!(inside[..8].iter().all(|s| s.host == 0), "tp is innermost: its ranks share a host");
        let outside = order(&[axis("tp"), axis("dp_shard")]);
        assert_eq!(outside[..4].iter().map(|s| s.host).collect::<Vec<_>>(), [0, 0, 1, 1]);
    }

    #[test]
    fn different_worlds_are_refused() {
        let c = cluster("dgx-h100", 2, 8, 1.0, NetworkKind::Rails);
        let mesh = Mesh::parse("tp=8", 8).unwrap();
        let e = place(&c, &mesh, &Model::default()).unwrap_err().to_string();
        assert!(e.contains('8') && e.contains("16"), "{e}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn placements_are_permutations_and_never_worse(
            hosts in 1usize..6, axis in 0u32..4, per_leaf in 1usize..4, over in 1.0f64..4.0, rails: bool,
            machine in prop::sample::select(vec!["dgx-a100", "dgx-1", "pcie4-8x", "gb200-nvl72", "cpu-2s"]),
        ) {
            let kind = if rails { NetworkKind::Rails } else { NetworkKind::LeafSpine };
            let c = cluster(machine, hosts, per_leaf, over, kind);
            let tp = [1, 2, 2, 4][axis as usize].min(c.kinds[0].slots.len());
            let mesh = Mesh::parse(&format!("tp={tp},dp_shard=-1"), c.ranks()).unwrap();
            let p = place(&c, &mesh, &Model::default()).unwrap();
            let mut sorted = p.order.clone();
            sorted.sort();
            prop_assert_eq!(sorted, c.slots());
            prop_assert!(p.us <= p.default_us + 1e-6);
        }
    }
}
