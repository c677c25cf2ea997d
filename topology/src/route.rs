//! The links of a whole cluster, numbered through, and which of them a transfer between two slots crosses.
//!
//! Inside the hosts these are the links of their graphs; between leaf switches and the spine one link in each
//! direction for every leaf (and rail), as wide as all the uplinks together.

use std::borrow::Cow;

use crate::cluster::{NetworkKind, Slot};
use crate::graph::LinkKind;
use crate::{Cluster, path::PathClass};

/// Number of a link in [`Routes`].
pub type RouteLink = usize;

/// The links of a cluster.
#[derive(Debug, Clone)]
pub struct Routes<'a> {
    cluster: Cow<'a, Cluster>,
    /// The first link of each host, and the end.
    first: Vec<usize>,
    leaves: usize,
    /// Rails of the widest host; 1 where all ports of a host go to one leaf.
    rails: usize,
    /// GB/s from each leaf (and rail) to the spine, and back.
    uplink: Vec<f64>,
    period: usize,
}

impl<'a> Routes<'a> {
    /// Of a cluster.
    pub fn new(cluster: Cow<'a, Cluster>) -> Routes<'a> {
        let mut first = vec![0];
        for host in &cluster.hosts {
            first.push(first[first.len() - 1] + cluster.kinds[host.kind].graph.links.len());
        }
        let leaves = cluster.hosts.iter().map(|h| h.leaf + 1).max().unwrap_or(1);
        let rails = match cluster.network.kind {
            NetworkKind::Rails => cluster.kinds.iter().map(|k| k.graph.nets.len()).max().unwrap_or(1).max(1),
            NetworkKind::LeafSpine => 1,
        };
        let mut uplink = vec![0.0; leaves * rails];
        for (i, host) in cluster.hosts.iter().enumerate() {
            let share = cluster.host_bandwidth(i) / rails as f64 / cluster.network.oversubscription;
            uplink[host.leaf * rails..][..rails].iter_mut().for_each(|u| *u += share);
        }
        let period = period(&cluster, leaves);
        Routes { cluster, first, leaves, rails, uplink, period }
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// How many links there are.
    pub fn len(&self) -> usize {
        self.uplinks() + 2 * self.uplink.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `crossed` with each link from `a` to `b`, in order; gives the class of the path and its latency in µs.
    pub fn between(&self, a: Slot, b: Slot, mut crossed: impl FnMut(RouteLink)) -> (PathClass, f64) {
        let cluster = &self.cluster;
        if a.host == b.host {
            let kind = cluster.kind(a.host);
            let path = kind.paths.between(kind.slots[a.local], kind.slots[b.local]);
            path.links.iter().for_each(|l| crossed(self.first[a.host] + l));
            return (path.class, path.latency);
        }
        let mut us = 0.0;
        if cluster.share_nvswitch(a, b) {
            for (slot, outward) in [(a, true), (b, false)] {
                if let Some(path) = cluster.to_nvswitch(slot, outward) {
                    path.links.iter().for_each(|l| crossed(self.first[slot.host] + l));
                    us += path.latency;
                }
            }
            return (PathClass::Nvl, us);
        }
        cluster.links_to_wire(a, true).iter().for_each(|l| crossed(self.first[a.host] + l));
        let spine = cluster.through_spine(a, b);
        if spine {
            crossed(self.uplinks() + 2 * self.leaf_port(a));
            crossed(self.uplinks() + 2 * self.leaf_port(b) + 1);
        }
        cluster.links_to_wire(b, false).iter().for_each(|l| crossed(self.first[b.host] + l));
        let switches = if spine { 3.0 } else { 1.0 };
        us = cluster.us_to_wire(a) + cluster.us_to_wire(b) + switches * cluster.network.switch_us;
        (PathClass::Net, us)
    }

    /// GB/s of a link.
    pub fn gbps(&self, link: RouteLink) -> f64 {
        match self.host_of(link) {
            Some(host) => self.cluster.kind(host).graph.links[link - self.first[host]].bandwidth,
            None => self.uplink[(link - self.uplinks()) / 2],
        }
    }

    /// What a link is made of; nothing between leaf and spine.
    pub fn kind(&self, link: RouteLink) -> Option<LinkKind> {
        let host = self.host_of(link)?;
        Some(self.cluster.kind(host).graph.links[link - self.first[host]].kind)
    }

    /// What to call a link: `node3: GPU5 → NVSW`, `leaf 2 rail 5 → spine`.
    pub fn name(&self, link: RouteLink) -> String {
        if let Some(host) = self.host_of(link) {
            let graph = &self.cluster.kind(host).graph;
            let l = &graph.links[link - self.first[host]];
            let host = &self.cluster.hosts[host].name;
            return format!("{host}: {} → {}", graph.nodes[l.from].name, graph.nodes[l.to].name);
        }
        let (port, down) = ((link - self.uplinks()) / 2, (link - self.uplinks()) % 2 == 1);
        let leaf = match self.rails {
            1 => format!("leaf {port}"),
            rails => format!("leaf {} rail {}", port / rails, port % rails),
        };
        if down { format!("spine → {leaf}") } else { format!("{leaf} → spine") }
    }

    /// The least number of hosts by which all hosts can be rotated so that the cluster looks the same: equal hosts in
    /// equal leaves and NVSwitch domains. The number of hosts where there is no smaller one.
    pub fn period(&self) -> usize {
        self.period
    }

    /// The link among those of the first [`Routes::period`] hosts (and their leaves) that a rotation maps this one to,
    /// and how many it maps there.
    pub fn folded(&self, link: RouteLink) -> (RouteLink, usize) {
        let hosts = self.cluster.hosts.len();
        match self.host_of(link) {
            Some(host) => (self.first[host % self.period] + link - self.first[host], hosts / self.period),
            None => {
                let leaves = (self.leaves * self.period / hosts).max(1);
                let folded = self.uplinks() + (link - self.uplinks()) % (2 * self.rails * leaves);
                (folded, self.leaves / leaves)
            }
        }
    }

    fn uplinks(&self) -> usize {
        self.first[self.first.len() - 1]
    }

    fn host_of(&self, link: RouteLink) -> Option<usize> {
        if self.cluster.kinds.len() == 1 {
            let per_host = self.first[1].max(1);
            return Some(link / per_host).filter(|&h| h < self.cluster.hosts.len());
        }
        (link < self.uplinks()).then(|| self.first.partition_point(|&f| f <= link) - 1)
    }

    fn leaf_port(&self, s: Slot) -> usize {
        let rail = match self.cluster.network.kind {
            NetworkKind::Rails => self.cluster.kind(s.host).port[s.local].unwrap_or(0),
            NetworkKind::LeafSpine => 0,
        };
        self.cluster.hosts[s.host].leaf * self.rails + rail
    }
}

fn period(cluster: &Cluster, leaves: usize) -> usize {
    let hosts = &cluster.hosts;
    let n = hosts.len();
    let fits = |p: usize| {
        let per_leaf = n / leaves;
        let whole_leaves = leaves == 1 || p.is_multiple_of(per_leaf);
        let domain = cluster.network.nvlink_domain;
        let whole_domains = domain == 1 || domain >= n || p.is_multiple_of(domain);
        n.is_multiple_of(p) && whole_leaves && whole_domains
    };
    let even = n.is_multiple_of(leaves) && hosts.iter().enumerate().all(|(i, h)| h.leaf == i / (n / leaves));
    if cluster.kinds.len() > 1 || !even {
        return n;
    }
    (1..=n).find(|&p| fits(p)).unwrap_or(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Network;

    fn routes(hosts: usize, per_leaf: usize, kind: NetworkKind) -> Routes<'static> {
        let network = Network { kind, oversubscription: 2.0, switch_us: 1.0, nvlink_domain: 1 };
        let machine = crate::library::machine("dgx-h100").unwrap();
        Routes::new(Cow::Owned(Cluster::uniform("c", machine, hosts, network, per_leaf).unwrap()))
    }

    fn links(r: &Routes<'_>, a: Slot, b: Slot) -> Vec<String> {
        let mut names = Vec::new();
        r.between(a, b, |l| names.push(r.name(l)));
        names
    }

    #[test]
    fn a_rail_stays_in_its_leaf_and_the_rest_crosses_the_spine() {
        let r = routes(4, 2, NetworkKind::Rails);
        let slot = |host, local| Slot { host, local };
        assert_eq!(links(&r, slot(1, 0), slot(1, 1)), ["node1: GPU0 → NVSW", "node1: NVSW → GPU1"]);
        let near = links(&r, slot(0, 3), slot(1, 3));
        assert!(near.iter().all(|n| !n.contains("spine")), "{near:?}");
        let far = links(&r, slot(0, 3), slot(2, 3));
        let rail = r.cluster().kinds[0].port[3].unwrap();
        assert!(far.contains(&format!("leaf 0 rail {rail} → spine")), "{far:?}");
        assert!(far.contains(&format!("spine → leaf 1 rail {rail}")), "{far:?}");
        let mut numbers = Vec::new();
        r.between(slot(0, 3), slot(2, 3), |l| numbers.push(l));
        let spine = numbers.iter().find(|&&l| r.name(l).contains("→ spine")).unwrap();
        // Two hosts of 48 GB/s a port share an uplink that is oversubscribed twice.
        assert_eq!(r.gbps(*spine), r.cluster().host_bandwidth(0) / 8.0);
    }

    #[test]
    fn rotation_maps_links_onto_links() {
        for (hosts, per_leaf, period) in [(8, usize::MAX, 1), (8, 2, 2), (8, 3, 8), (6, 3, 3)] {
            let r = routes(hosts, per_leaf, NetworkKind::Rails);
            assert_eq!(r.period(), period, "{hosts} hosts, {per_leaf} a leaf");
            let slots = r.cluster().slots();
            let turned = |s: Slot| Slot { host: (s.host + period) % hosts, ..s };
            for (a, b) in slots.iter().flat_map(|&a| slots.iter().map(move |&b| (a, b))) {
                let (mut here, mut there) = (Vec::new(), Vec::new());
                let one = r.between(a, b, |l| here.push(r.folded(l)));
                let other = r.between(turned(a), turned(b), |l| there.push(r.folded(l)));
                assert_eq!((one, &here), (other, &there));
                assert!(here.iter().all(|&(l, _)| r.folded(l).0 == l));
            }
        }
    }
}
