//! What an order costs: for every axis the slowest group's time, with links shared fairly among all groups that run at
//! once.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::cluster::{Cluster, Slot};
use crate::graph::LinkKind;
use crate::path::PathClass;
use crate::route::Routes;

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

/// The links of the cluster, numbered once, so that pricing an order only counts.
pub(super) struct Pricer<'a>(Routes<'a>);

impl<'a> Pricer<'a> {
    pub fn new(cluster: &'a Cluster) -> Self {
        Pricer(Routes::new(Cow::Borrowed(cluster)))
    }

    /// Prices every axis of `mesh` when rank r sits in `order[r]`.
    pub fn price(&self, mesh: &Mesh, traffic: &[Traffic], order: &[Slot]) -> Vec<AxisCost> {
        (0..mesh.axes.len()).map(|a| self.axis(mesh, a, &traffic[a], order)).collect()
    }

    fn axis(&self, mesh: &Mesh, axis: usize, traffic: &Traffic, order: &[Slot]) -> AxisCost {
        let (mut slowest, latency, _) = self.slowest(order, mesh.axes[axis].size, mesh.stride(axis));
        let steps = steps(mesh.axes[axis].size);
        slowest.us = traffic.bytes / slowest.gbps / 1000.0 + traffic.calls * steps * latency;
        slowest
    }

    /// Of all rings of `size` ranks that lie `stride` apart: the slowest hop, the longest latency of one in µs, and the GB/s of
    /// the slowest hop that stays inside a host.
    fn slowest(&self, order: &[Slot], size: usize, stride: usize) -> (AxisCost, f64, f64) {
        let mut load = vec![0u32; self.0.len()];
        let hop = |rank: usize| {
            let along = rank / stride % size;
            let next = if along + 1 == size { rank - along * stride } else { rank + stride };
            (order[rank], order[next])
        };
        for rank in 0..order.len() {
            let (a, b) = hop(rank);
            self.0.between(a, b, |l| load[l] += 1);
        }
        let narrowest = Narrowest::Link(LinkKind::Nvl);
        let mut worst =
            AxisCost { us: 0.0, gbps: f64::INFINITY, class: PathClass::Loc, spine: false, narrowest };
        let (mut latency, mut inside) = (0.0f64, f64::INFINITY);
        for rank in 0..order.len() {
            let (a, b) = hop(rank);
            let (mut gbps, mut narrowest) = (f64::INFINITY, worst.narrowest);
            let (class, us) = self.0.between(a, b, |l| {
                let share = self.0.gbps(l) / f64::from(load[l]);
                if share < gbps {
                    (gbps, narrowest) = (share, self.0.kind(l).map_or(Narrowest::Spine, Narrowest::Link));
                }
            });
            latency = latency.max(us);
            if class != PathClass::Net {
                inside = inside.min(gbps);
            }
            let spine = class == PathClass::Net && self.0.cluster().through_spine(a, b);
            if gbps < worst.gbps || (gbps == worst.gbps && (class, spine) > (worst.class, worst.spine)) {
                worst.gbps = gbps;
                worst.class = class;
                worst.spine = spine;
                worst.narrowest = narrowest;
            }
        }
        (worst, latency, inside)
    }
}

/// Each call takes size-1 steps around a ring, or twice the depth of a tree: what is less.
fn steps(size: usize) -> f64 {
    let n = size as f64;
    (n - 1.0).min(2.0 * n.log2().ceil())
}

/// What groups of ranks get of the links while all of them communicate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ring {
    /// GB/s that the slowest hop of a ring gets.
    pub gbps: f64,
    /// The same of the hops inside hosts; where there are none as `gbps`.
    pub inside_gbps: f64,
    /// µs that a call takes whatever its bytes.
    pub call_us: f64,
    /// On how many hosts the group is that is on most.
    pub hosts: usize,
}

/// The groups of `size` ranks that lie `stride` apart, where rank r sits in `order[r]`: groups along an axis of a mesh, or along
/// several that are neighbours there, which lie as if they were one.
pub fn ring(cluster: &Cluster, order: &[Slot], size: usize, stride: usize) -> Ring {
    let (slowest, latency, inside) = Pricer::new(cluster).slowest(order, size, stride);
    let hosts = |first: usize| {
        let hosts: BTreeSet<usize> = (0..size).map(|i| order[first + i * stride].host).collect();
        hosts.len()
    };
    let firsts = (0..order.len()).filter(|rank| (rank / stride).is_multiple_of(size));
    Ring {
        gbps: slowest.gbps,
        inside_gbps: if inside.is_finite() { inside } else { slowest.gbps },
        call_us: steps(size) * latency,
        hosts: firsts.map(hosts).max().unwrap_or(1),
    }
}

/// µs of all axes together: what orders are compared by.
pub(super) fn total(costs: &[AxisCost]) -> f64 {
    costs.iter().map(|c| c.us).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Network;
    use crate::library;

    #[test]
    fn axes_that_are_neighbours_are_one_ring() {
        let cluster =
            Cluster::uniform("two", library::machine("dgx-1").unwrap(), 2, Network::default(), 2).unwrap();
        let order = cluster.slots();
        let of = |size, stride| ring(&cluster, &order, size, stride);
        assert_eq!((of(8, 1).hosts, of(16, 1).hosts, of(2, 8).hosts), (1, 2, 2));
        let (inside, all, across) = (of(8, 1), of(16, 1), of(2, 8));
        assert_eq!(inside.inside_gbps, inside.gbps);
        assert!(all.inside_gbps > all.gbps && across.inside_gbps == across.gbps, "{all:?} {across:?}");
        // One ring of all ranks has the port for itself, eight pairs share it.
        assert!(all.gbps > 1.5 * across.gbps, "{all:?} {across:?}");
        assert!(all.call_us > across.call_us, "{all:?} {across:?}");
    }
}
