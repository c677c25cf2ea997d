//! What an order costs: for every axis the slowest group's time, with links shared fairly among all groups that run at
//! once.

use std::borrow::Cow;

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
        let (size, stride) = (mesh.axes[axis].size, mesh.stride(axis));
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
        let mut latency: f64 = 0.0;
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
            let spine = class == PathClass::Net && self.0.cluster().through_spine(a, b);
            if gbps < worst.gbps || (gbps == worst.gbps && (class, spine) > (worst.class, worst.spine)) {
                worst.gbps = gbps;
                worst.class = class;
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
}

/// µs of all axes together: what orders are compared by.
pub(super) fn total(costs: &[AxisCost]) -> f64 {
    costs.iter().map(|c| c.us).sum()
}
