//! What is left of every link and port while channels are laid, and what each hop between two ends costs.
//!
//! Everything that does not change during a search is worked out once, in [`Hops`]: for each pair of GPUs and ports
//! the links that a hop passes. An attempt only sets the prices, which depend on its speeds, and fills the ledger
//! anew. Amounts are thousandths of a GB/s, so that what is given back is exactly what was taken.

use super::host::Host;
use super::wishes::Wish;
use crate::graph::{LinkId, LinkKind, NodeId, NodeKind};
use crate::model::constants::INTEL_P2P_OVERHEAD;
use crate::path::PathClass;

/// No link in the other direction.
const NONE: u32 = u32::MAX;

/// One link of a hop.
#[derive(Clone, Copy)]
struct Toll {
    link: u32,
    /// The link in the other direction, [`NONE`] where it costs nothing.
    back: u32,
    rule: Rule,
}

/// How the price of a link follows from the speed of the channel; a bit each.
type Rule = u8;
/// Traffic between GPUs through an Intel root complex costs more.
const INTEL: Rule = 1;
/// Before Ampere a GPU that receives from anything but a GPU spends an eighth as much on replies.
const REPLIES: Rule = 2;
/// On POWER a GPU's link into its CPU costs as much on the way back.
const POWER: Rule = 4;
const RULES: usize = 8;

/// A hop between two ends: a GPU or a port each.
#[derive(Clone, Copy)]
struct Hop {
    class: PathClass,
    /// The class of the way back.
    back: PathClass,
    /// GPU to GPU, so that the speed between GPUs holds and not the one to the network.
    inside: bool,
    tolls: (u32, u32),
}

/// All hops of a host. Ends are numbered: first the GPUs, then the ports.
pub(super) struct Hops {
    ends: usize,
    hops: Vec<Hop>,
    tolls: Vec<Toll>,
}

impl Hops {
    pub fn new(host: &Host<'_>) -> Hops {
        let ends: Vec<NodeId> = host.gpus.iter().chain(&host.nets).copied().collect();
        let mut hops = Vec::with_capacity(ends.len() * ends.len());
        let mut tolls = Vec::new();
        for (i, &from) in ends.iter().enumerate() {
            for (j, &to) in ends.iter().enumerate() {
                let ports = i.min(j) >= host.gpus.len();
                let path = host.paths.between(from, to);
                let start = tolls.len() as u32;
                if !ports {
                    tolls.extend(path.links.iter().map(|&l| toll(host, from, path.class, &path.links, l)));
                }
                hops.push(Hop {
                    class: if ports { PathClass::Dis } else { path.class },
                    back: host.paths.between(to, from).class,
                    inside: i.max(j) < host.gpus.len(),
                    tolls: (start, tolls.len() as u32),
                });
            }
        }
        Hops { ends: ends.len(), hops, tolls }
    }

    /// The number of the hop between two ends.
    pub fn number(&self, from: usize, to: usize) -> u32 {
        (from * self.ends + to) as u32
    }
}

fn toll(host: &Host<'_>, from: NodeId, class: PathClass, path: &[LinkId], l: LinkId) -> Toll {
    let graph = host.graph;
    let gpu = |n: NodeId| matches!(graph.nodes[n].kind, NodeKind::Gpu { .. });
    let cpu = |n: NodeId| matches!(graph.nodes[n].kind, NodeKind::Numa { .. });
    let link = &graph.links[l];
    let through_cpu = || path.iter().any(|&l| cpu(graph.links[l].to));
    let mut rule = 0;
    if host.intel && class == PathClass::Phb && gpu(from) && link.kind == LinkKind::Pci && through_cpu() {
        rule |= INTEL;
    }
    if !gpu(from) && matches!(graph.nodes[link.to].kind, NodeKind::Gpu { sm, .. } if sm < 80) {
        rule |= REPLIES;
    }
    if host.power && cpu(link.to) && link.kind == LinkKind::Nvl {
        rule |= POWER;
    }
    let back = graph.link_between(link.to, link.from, Some(link.kind));
    let back = back.filter(|_| rule & (REPLIES | POWER) != 0).map_or(NONE, |b| b as u32);
    Toll { link: l as u32, back, rule }
}

/// A hop that was taken, to be given back.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    hop: u32,
    half: bool,
}

/// What is left.
pub(super) struct Ledger {
    full: Vec<i64>,
    full_ports: Vec<i64>,
    left: Vec<i64>,
    ports: Vec<i64>,
    /// For each port those on the same wire, itself among them.
    wires: Vec<Vec<usize>>,
    /// What a link costs, and its way back: by GPU or network speed, whole or half, and rule.
    prices: [[[(i64, i64); RULES]; 2]; 2],
    /// What a channel costs a port. NCCL keeps this speed as a whole number of GB/s, and which NIC a channel gets
    /// depends on that.
    port_price: i64,
    /// The worst class that a hop may have, between GPUs and to a port.
    limits: [PathClass; 2],
    both_ways: bool,
    /// Links taken, all channels together.
    pub hops: i64,
}

impl Ledger {
    pub fn new(host: &Host<'_>) -> Ledger {
        let full: Vec<i64> = host.graph.links.iter().map(|l| milli(l.bandwidth)).collect();
        let ports = 0..host.nets.len();
        let full_ports: Vec<i64> = ports.clone().map(|p| milli(host.net(p).speed)).collect();
        let wire = |p: usize| ports.clone().filter(|&o| host.wires[o] == host.wires[p]).collect();
        Ledger {
            left: full.clone(),
            ports: full_ports.clone(),
            full,
            full_ports,
            wires: ports.clone().map(wire).collect(),
            prices: Default::default(),
            port_price: 0,
            limits: [PathClass::Loc; 2],
            both_ways: false,
            hops: 0,
        }
    }

    /// Everything is free again, at the prices of `wish`.
    pub fn reset(&mut self, wish: &Wish) {
        self.left.copy_from_slice(&self.full);
        self.ports.copy_from_slice(&self.full_ports);
        self.hops = 0;
        self.limits = [wish.type_intra, wish.type_inter];
        self.both_ways = wish.pattern.is_tree();
        self.port_price = milli(wish.speed_inter.trunc());
        for (speed, by_share) in [wish.speed_intra, wish.speed_inter].into_iter().zip(&mut self.prices) {
            for (share, by_rule) in [1.0, 0.5].into_iter().zip(by_share) {
                for (rule, price) in by_rule.iter_mut().enumerate() {
                    let rule = rule as Rule;
                    let factor = if rule & INTEL != 0 { INTEL_P2P_OVERHEAD } else { 1.0 };
                    let amount = speed * share * factor;
                    let replies = if rule & REPLIES != 0 { amount / 8.0 } else { 0.0 };
                    let back = replies + if rule & POWER != 0 { amount } else { 0.0 };
                    *price = (milli(amount), milli(back));
                }
            }
        }
    }

    /// Links of the hop between two ends; none where its class is not allowed.
    pub fn links(&self, hops: &Hops, from: usize, to: usize) -> Option<i64> {
        let h = &hops.hops[hops.number(from, to) as usize];
        self.allows(h).then_some(i64::from(h.tolls.1 - h.tolls.0))
    }

    /// How many channels can leave an end toward any of others, looking at the first link of each hop alone.
    pub fn most_leaving(&self, hops: &Hops, from: usize, to: std::ops::Range<usize>) -> usize {
        let mut first: Vec<(u32, i64)> = Vec::new();
        for h in to.filter(|&t| t != from).map(|t| &hops.hops[hops.number(from, t) as usize]) {
            let Some(toll) = hops.tolls[h.tolls.0 as usize..h.tolls.1 as usize].first() else { continue };
            if !self.allows(h) {
                continue;
            }
            let price = self.prices[usize::from(!h.inside)][0][usize::from(toll.rule)].0;
            match first.iter_mut().find(|(link, _)| *link == toll.link) {
                Some((_, least)) => *least = price.min(*least),
                None => first.push((toll.link, price)),
            }
        }
        let most = first.into_iter().map(|(link, price)| times(self.full[link as usize], price));
        most.fold(0, usize::saturating_add)
    }

    /// How many channels all ports together can carry.
    pub fn most_through_ports(&self) -> usize {
        let widest = |wire: &Vec<usize>| wire.iter().map(|&p| self.full_ports[p]).max().unwrap_or(0);
        let wires = self.wires.iter().enumerate().filter(|(p, wire)| wire.first() == Some(p)).map(|(_, w)| w);
        wires.fold(0, |sum: usize, w| sum.saturating_add(times(widest(w), self.port_price)))
    }

    fn allows(&self, h: &Hop) -> bool {
        let limit = self.limits[usize::from(!h.inside)];
        h.class <= limit && h.class != PathClass::Dis && !(self.both_ways && h.back > limit)
    }

    /// Takes a hop if its class is allowed and every link of it has enough left; else nothing is changed.
    pub fn take(&mut self, hops: &Hops, hop: u32, half: bool) -> Option<Taken> {
        let h = &hops.hops[hop as usize];
        if !self.allows(h) {
            return None;
        }
        let prices = &self.prices[usize::from(!h.inside)][usize::from(half)];
        let tolls = &hops.tolls[h.tolls.0 as usize..h.tolls.1 as usize];
        for (paid, t) in tolls.iter().enumerate() {
            let (amount, back) = prices[usize::from(t.rule)];
            let short =
                self.left[t.link as usize] < amount || (t.back != NONE && self.left[t.back as usize] < back);
            if short {
                tolls[..paid].iter().for_each(|t| refund(&mut self.left, prices, t));
                return None;
            }
            self.left[t.link as usize] -= amount;
            if t.back != NONE {
                self.left[t.back as usize] -= back;
            }
        }
        self.hops += tolls.len() as i64;
        Some(Taken { hop, half })
    }

    /// Gives back what was taken.
    pub fn give_back(&mut self, hops: &Hops, taken: Taken) {
        let h = &hops.hops[taken.hop as usize];
        let prices = &self.prices[usize::from(!h.inside)][usize::from(taken.half)];
        let tolls = &hops.tolls[h.tolls.0 as usize..h.tolls.1 as usize];
        tolls.iter().for_each(|t| refund(&mut self.left, prices, t));
        self.hops -= tolls.len() as i64;
    }

    /// Whether a port can carry one more channel.
    pub fn port_is_free(&self, port: usize) -> bool {
        self.ports[port] >= self.port_price
    }

    /// Takes a channel's speed off a port and those on its wire, or gives it back.
    pub fn charge_port(&mut self, port: usize, channels: i64) {
        for &p in &self.wires[port] {
            self.ports[p] -= channels * self.port_price;
        }
    }

    /// Whole GB/s left on a GPU's PCIe link, the lesser of both directions; -1 without one.
    pub fn pci_left(&self, link: Option<(LinkId, LinkId)>) -> i64 {
        link.map_or(-1, |(up, down)| self.left[up].min(self.left[down]) / 1000)
    }
}

fn refund(left: &mut [i64], prices: &[(i64, i64); RULES], t: &Toll) {
    let (amount, back) = prices[usize::from(t.rule)];
    left[t.link as usize] += amount;
    if t.back != NONE {
        left[t.back as usize] += back;
    }
}

/// How often a price can be paid.
fn times(amount: i64, price: i64) -> usize {
    if price > 0 { (amount / price).max(0) as usize } else { usize::MAX }
}

/// GB/s in thousandths.
fn milli(gbps: f64) -> i64 {
    (gbps * 1000.0).round() as i64
}
