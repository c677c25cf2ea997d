//! What an order costs: for every axis the slowest group's time, with links shared fairly among all groups that run at
//! once.

use crate::cluster::{Cluster, NetworkKind, Slot};
use crate::graph::LinkKind;
use crate::path::PathClass;

use super::mesh::Mesh;
use super::traffic::Traffic;

/// One axis under one order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AxisCost {
    /// µs in a step.
    pub us: f64,
    /// GB/s that the slowest hop gets.
    pub gbps: f64,
    /// Class of that hop.
    pub class: PathClass,
    /// That hop leaves its leaf switch.
    pub spine: bool,
    /// What gives that hop the least.
    pub narrowest: Narrowest,
}

/// What limits a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Narrowest {
    /// Its share of what leaves or enters the leaf.
    Spine,
    /// A link inside a host, the port among them.
    Link(LinkKind),
}

/// Precomputed offsets, so that pricing an order only counts.
pub(super) struct Pricer<'a> {
    cluster: &'a Cluster,
    /// First link number of each host; the links of all hosts are numbered through.
    first_link: Vec<usize>,
    links: usize,
    leaves: usize,
    /// Rails of the widest host.
    rails: usize,
    /// GB/s from each leaf (and rail) to the spine.
    uplink: Vec<f64>,
}

impl<'a> Pricer<'a> {
    pub fn new(cluster: &'a Cluster) -> Self {
        let mut first_link = Vec::with_capacity(cluster.hosts.len());
        let mut links = 0;
        for host in &cluster.hosts {
            first_link.push(links);
            links += cluster.kinds[host.kind].graph.links.len();
        }
        let leaves = cluster.hosts.iter().map(|h| h.leaf + 1).max().unwrap_or(1);
        let rails = match cluster.network.kind {
            NetworkKind::Rails => cluster.kinds.iter().map(|k| k.graph.nets.len()).max().unwrap_or(1).max(1),
            NetworkKind::LeafSpine => 1,
        };
        let mut uplink = vec![0.0; leaves * rails];
        for (i, host) in cluster.hosts.iter().enumerate() {
            let share = cluster.host_bandwidth(i) / rails as f64 / cluster.network.oversubscription;
            for rail in 0..rails {
                uplink[host.leaf * rails + rail] += share;
            }
        }
        Pricer { cluster, first_link, links, leaves, rails, uplink }
    }

    /// Prices every axis of `mesh` when rank r sits in `order[r]`.
    pub fn price(&self, mesh: &Mesh, traffic: &[Traffic], order: &[Slot]) -> Vec<AxisCost> {
        (0..mesh.axes.len()).map(|a| self.axis(mesh, a, &traffic[a], order)).collect()
    }

    fn axis(&self, mesh: &Mesh, axis: usize, traffic: &Traffic, order: &[Slot]) -> AxisCost {
        let (size, stride) = (mesh.axes[axis].size, mesh.stride(axis));
        let mut load = vec![0u32; self.links];
        let mut up = vec![0u32; self.leaves * self.rails * 2];
        let hop = |rank: usize| {
            let along = rank / stride % size;
            let next = if along + 1 == size { rank - along * stride } else { rank + stride };
            (order[rank], order[next])
        };
        for rank in 0..order.len() {
            let (a, b) = hop(rank);
            self.each_link(a, b, |l| load[l] += 1);
            self.each_uplink(a, b, |u| up[u] += 1);
        }
        let narrowest = Narrowest::Link(LinkKind::Nvl);
        let mut worst =
            AxisCost { us: 0.0, gbps: f64::INFINITY, class: PathClass::Loc, spine: false, narrowest };
        let mut latency: f64 = 0.0;
        for rank in 0..order.len() {
            let (a, b) = hop(rank);
            let (mut gbps, mut narrowest) = (f64::INFINITY, worst.narrowest);
            let mut limit = |share: f64, by: Narrowest| {
                if share < gbps {
                    (gbps, narrowest) = (share, by);
                }
            };
            self.each_link(a, b, |l| {
                let (bandwidth, kind) = self.link(a, b, l);
                limit(bandwidth / f64::from(load[l]), Narrowest::Link(kind));
            });
            self.each_uplink(a, b, |u| limit(self.uplink[u / 2] / f64::from(up[u]), Narrowest::Spine));
            let between = self.class_and_latency(a, b);
            latency = latency.max(between.1);
            let spine = between.0 == PathClass::Net && self.cluster.through_spine(a, b);
            if gbps < worst.gbps || (gbps == worst.gbps && (between.0, spine) > (worst.class, worst.spine)) {
                worst.gbps = gbps;
                worst.class = between.0;
                worst.spine = spine;
                worst.narrowest = narrowest;
            }
        }
        // Each call takes size-1 steps around a ring, or twice the depth of a tree: what is less.
        let n = size as f64;
        let steps = (n - 1.0).min(2.0 * n.log2().ceil());
        worst.us = traffic.bytes / worst.gbps / 1000.0 + traffic.calls * steps * latency;
        worst
    }

    fn class_and_latency(&self, a: Slot, b: Slot) -> (PathClass, f64) {
        if a.host == b.host {
            let kind = self.cluster.kind(a.host);
            let path = kind.paths.between(kind.slots[a.local], kind.slots[b.local]);
            return (path.class, path.latency);
        }
        if self.cluster.share_nvswitch(a, b) {
            let legs = [self.cluster.to_nvswitch(a, true), self.cluster.to_nvswitch(b, false)];
            return (PathClass::Nvl, legs.iter().flatten().map(|p| p.latency).sum());
        }
        let ends: f64 = [a, b]
            .iter()
            .map(|&s| {
                let kind = self.cluster.kind(s.host);
                kind.port[s.local]
                    .map_or(0.0, |n| kind.paths.between(kind.slots[s.local], kind.graph.nets[n]).latency)
            })
            .sum();
        let switches = if self.cluster.through_spine(a, b) { 3.0 } else { 1.0 };
        (PathClass::Net, ends + switches * self.cluster.network.switch_us)
    }

    fn each_link(&self, a: Slot, b: Slot, mut f: impl FnMut(usize)) {
        if a.host == b.host {
            let kind = self.cluster.kind(a.host);
            let path = kind.paths.between(kind.slots[a.local], kind.slots[b.local]);
            path.links.iter().for_each(|l| f(self.first_link[a.host] + l));
        } else if self.cluster.share_nvswitch(a, b) {
            for (slot, outward) in [(a, true), (b, false)] {
                let path = self.cluster.to_nvswitch(slot, outward);
                path.iter().flat_map(|p| &p.links).for_each(|l| f(self.first_link[slot.host] + l));
            }
        } else {
            self.cluster.links_to_wire(a, true).iter().for_each(|l| f(self.first_link[a.host] + l));
            self.cluster.links_to_wire(b, false).iter().for_each(|l| f(self.first_link[b.host] + l));
        }
    }

    fn link(&self, a: Slot, b: Slot, link: usize) -> (f64, LinkKind) {
        let host = if self.owns(a.host, link) { a.host } else { b.host };
        let link = &self.cluster.kind(host).graph.links[link - self.first_link[host]];
        (link.bandwidth, link.kind)
    }

    fn owns(&self, host: usize, link: usize) -> bool {
        let first = self.first_link[host];
        (first..first + self.cluster.kind(host).graph.links.len()).contains(&link)
    }

    /// Uplinks of a leaf are even numbers, downlinks odd.
    fn each_uplink(&self, a: Slot, b: Slot, mut f: impl FnMut(usize)) {
        let inside = a.host == b.host || self.cluster.share_nvswitch(a, b);
        if inside || !self.cluster.through_spine(a, b) {
            return;
        }
        let at = |s: Slot| {
            let rail = match self.cluster.network.kind {
                NetworkKind::Rails => self.cluster.kind(s.host).port[s.local].unwrap_or(0),
                NetworkKind::LeafSpine => 0,
            };
            self.cluster.hosts[s.host].leaf * self.rails + rail
        };
        f(at(a) * 2);
        f(at(b) * 2 + 1);
    }
}

/// µs of all axes together: what orders are compared by.
pub(super) fn total(costs: &[AxisCost]) -> f64 {
    costs.iter().map(|c| c.us).sum()
}
