//! One attempt: with a speed, path classes and a shape given, lay channel after channel through the GPUs, taking the
//! speed off every link passed and giving it back on return.
//!
//! A step is one arrival at a GPU, and the attempt ends when its steps are used up. The best state met is kept.

use std::rc::Rc;

use super::{NetFacts, Pattern, View};
use crate::graph::{LinkId, LinkKind, NodeId, NodeKind};
use crate::model::constants::INTEL_P2P_OVERHEAD;
use crate::path::PathClass;

/// What an attempt tries, and what it has found so far.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate {
    pub pattern: Pattern,
    pub speed_intra: f64,
    pub speed_inter: f64,
    pub type_intra: PathClass,
    pub type_inter: PathClass,
    pub cross_nic: u32,
    pub same_channels: bool,
    pub min_channels: usize,
    pub max_channels: usize,
    pub hops: i64,
    pub latency_inter: f64,
    /// GPUs (by index) of each channel, those in progress included.
    pub gpus: Vec<Vec<usize>>,
    /// Nets (by index) at both ends of each channel.
    pub nets: Vec<[usize; 2]>,
    /// Complete channels.
    pub channels: usize,
}

impl Candidate {
    /// Better than `other`: more bandwidth, with 15 % against crossing NICs, then fewer hops (NCCL 2.30
    /// `ncclTopoCompareGraphs`).
    pub(super) fn beats(&self, other: &Candidate) -> bool {
        if self.channels < self.min_channels {
            return false;
        }
        let target = 1.0 - (f64::from(other.cross_nic) - f64::from(self.cross_nic)) * 0.15;
        let mine = self.channels as f64 * self.speed_intra;
        let theirs = other.channels as f64 * other.speed_intra * target;
        if mine != theirs {
            return mine > theirs;
        }
        self.pattern == other.pattern && self.cross_nic == other.cross_nic && self.hops < other.hops
    }
}

/// In which order GPUs follow each other.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// As the scores say.
    Scored,
    /// By index.
    Pci,
    /// As in the previous channel.
    Replay,
}

/// Where the channel is to return to, as positions in the channel.
#[derive(Clone, Copy)]
struct Returns {
    to_net: Option<usize>,
    to_first: Option<usize>,
}

/// The state of one attempt.
pub(super) struct Attempt<'a, 'g> {
    view: &'a View<'g>,
    /// Bandwidth left on each link, in thousandths of GB/s so that giving back is exact.
    left: Vec<i64>,
    net_left: Vec<f64>,
    /// For each GPU, the channels that pass it.
    used: Vec<u64>,
    known_charges: Vec<Option<Rc<[Charge]>>>,
    known_nets: Vec<Option<Rc<[usize]>>>,
    now: Candidate,
    best: Candidate,
    /// Steps left; `None` once the optimum is met.
    time: Option<u64>,
    pub steps: u64,
}

impl<'a, 'g> Attempt<'a, 'g> {
    pub fn new(view: &'a View<'g>, now: Candidate, best: Candidate, budget: u64) -> Self {
        let left = view.graph.links.iter().map(|l| milli(l.bandwidth)).collect();
        let net_left = (0..view.nets.len()).map(|n| view.net(n).speed).collect();
        let used = vec![0; view.gpus.len()];
        let known_charges = vec![None; (view.gpus.len() + view.nets.len()).pow(2) * 2];
        let known_nets = vec![None; view.gpus.len() + 1];
        Attempt {
            view,
            left,
            net_left,
            used,
            known_charges,
            known_nets,
            now,
            best,
            time: Some(budget),
            steps: 0,
        }
    }

    /// Runs to the end. The best candidate, and the steps left over (`None`: the optimum was met).
    pub fn run(mut self) -> (Candidate, Option<u64>, u64) {
        self.now.channels = 0;
        self.now.hops = 0;
        self.now.gpus.clear();
        self.now.nets.clear();
        self.next_channel();
        (self.best, self.time, self.steps)
    }

    fn returns(&self) -> Returns {
        let last = self.view.gpus.len() - 1;
        if self.view.nets.is_empty() {
            Returns { to_net: None, to_first: (self.now.pattern == Pattern::Ring).then_some(last) }
        } else {
            let to_net = match self.now.pattern {
                Pattern::Ring => last,
                Pattern::SplitTree => 1,
                _ => 0,
            };
            Returns { to_net: Some(to_net), to_first: None }
        }
    }

    fn next_channel(&mut self) {
        let returns = self.returns();
        self.now.gpus.truncate(self.now.channels);
        self.now.gpus.push(vec![0; self.view.gpus.len()]);
        self.now.nets.truncate(self.now.channels);
        self.now.nets.push([0, 0]);
        if !self.view.nets.is_empty() {
            self.start_at_nets(returns);
            return;
        }
        let first = self.now.channels == 0;
        if first {
            self.enter(None, 0, 0, returns, Order::Pci);
        } else {
            let again = self.now.gpus[self.now.channels - 1][0];
            self.enter(None, again, 0, returns, Order::Replay);
        }
        if !self.now.same_channels || first {
            for g in 0..self.view.gpus.len() {
                self.enter(None, g, 0, returns, Order::Scored);
            }
        }
    }

    /// Starts the channel at each network port in turn.
    fn start_at_nets(&mut self, returns: Returns) {
        let nets = self.nets_for(None);
        // NCCL keeps this speed as an integer, and the choice of NIC depends on it.
        let speed = self.now.speed_inter.trunc();
        let c = self.now.channels;
        for i in 0..nets.len() {
            let n = nets[(c + i) % nets.len()];
            let net = self.view.net(n);
            if self.net_left[n] < speed {
                continue;
            }
            let paired = self.now.pattern == Pattern::Ring && self.now.cross_nic == 2 && c % 2 == 1;
            if paired && n != self.now.nets[c - 1][1] {
                continue;
            }
            self.now.nets[c][0] = n;
            self.now.latency_inter = net.latency;
            self.take_net(&net, speed);
            if c > 0 && self.now.same_channels {
                let again = self.now.gpus[c - 1][0];
                self.enter(Some(self.view.nets[n]), again, 0, returns, Order::Replay);
            } else {
                self.start_at_net(n, speed, returns);
            }
            self.take_net(&net, -speed);
        }
    }

    fn start_at_net(&mut self, n: usize, speed: f64, returns: Returns) {
        let node = self.view.nets[n];
        if self.now.channels == 0 && self.view.graph.nvswitch.is_none() {
            // A first guess in bus order, on a small purse of its own.
            let purse = self.time.replace(1 << 10);
            self.enter(Some(node), 0, 0, returns, Order::Pci);
            if self.time.is_some() {
                self.time = purse;
            }
        }
        let paths: Vec<(f64, usize)> = self
            .view
            .gpus
            .iter()
            .map(|&g| {
                let p = self.view.paths.between(node, g);
                (p.bandwidth, p.links.len())
            })
            .collect();
        let widest = paths.iter().map(|p| p.0.trunc()).fold(0.0, f64::max);
        let nearest =
            paths.iter().filter(|p| p.0.trunc() == widest && p.1 > 0).map(|p| p.1).min().unwrap_or(0);
        if widest < speed {
            return;
        }
        for i in 0..paths.len() {
            let g = (self.now.channels + i) % paths.len();
            if paths[g].0.trunc() == widest && paths[g].1 == nearest {
                self.enter(Some(node), g, 0, returns, Order::Scored);
            }
        }
    }

    /// The nets to try from a GPU; the same all through an attempt.
    fn nets_for(&mut self, gpu: Option<usize>) -> Rc<[usize]> {
        let at = gpu.map_or(0, |g| g + 1);
        let known = &mut self.known_nets[at];
        known.get_or_insert_with(|| self.view.select_nets(self.now.type_inter, gpu).into()).clone()
    }

    fn take_net(&mut self, net: &NetFacts, speed: f64) {
        for n in 0..self.net_left.len() {
            if self.view.net(n).same_port(net) {
                self.net_left[n] -= speed;
            }
        }
    }

    /// Goes to GPU `g` and on from there, and comes back.
    fn enter(&mut self, from: Option<NodeId>, g: usize, position: usize, returns: Returns, order: Order) {
        let to = self.view.gpus[g];
        if !self.take(from, to, 1.0) {
            return;
        }
        let flag = 1u64 << self.now.channels;
        self.used[g] ^= flag;
        self.at(g, position, returns, order);
        self.used[g] ^= flag;
        self.give_back(from, to);
    }

    /// At GPU `g`, the `position`th of the channel.
    fn at(&mut self, g: usize, position: usize, returns: Returns, order: Order) {
        match &mut self.time {
            None | Some(0) => return,
            Some(t) => *t -= 1,
        }
        self.steps += 1;
        let n = self.view.gpus.len();
        if position == n {
            self.complete();
            return;
        }
        let c = self.now.channels;
        self.now.gpus[c][position] = g;
        if returns.to_net == Some(position) {
            self.back_to_net(g, position, returns, order);
        } else if position < n - 1 {
            self.onward(g, position, returns, order);
        } else if returns.to_first == Some(position) {
            let first = self.now.gpus[c][0];
            let (from, to) = (self.view.gpus[g], self.view.gpus[first]);
            if self.take(Some(from), to, 1.0) {
                self.at(first, position + 1, Returns { to_first: None, ..returns }, order);
                self.give_back(Some(from), to);
            }
        } else {
            self.at(g, n, Returns { to_net: None, to_first: None }, order);
        }
    }

    /// Tries the GPUs that may follow `g`.
    fn onward(&mut self, g: usize, position: usize, returns: Returns, order: Order) {
        let view = self.view;
        let from = Some(view.gpus[g]);
        let c = self.now.channels;
        match order {
            Order::Pci => self.enter(from, position + 1, position + 1, returns, order),
            Order::Replay => {
                let next = self.now.gpus[c - 1][position + 1];
                self.enter(from, next, position + 1, returns, order);
            }
            Order::Scored
                if returns.to_net.is_none() && view.nets.is_empty() && view.graph.nvswitch.is_none() =>
            {
                // Without a NIC the scores never change, so nothing needs to be sorted here.
                let flag = 1u64 << c;
                for &next in &view.ranked[g] {
                    if self.used[next] & flag == 0 {
                        self.enter(from, next, position + 1, returns, order);
                    }
                }
            }
            Order::Scored => {
                let toward_net = match returns.to_net {
                    None => 0,
                    Some(p) if p == position + 1 => 1,
                    Some(_) => -1,
                };
                for next in self.ranked(g, toward_net) {
                    self.enter(from, next, position + 1, returns, order);
                }
            }
        }
    }

    fn complete(&mut self) {
        self.now.channels += 1;
        if self.now.beats(&self.best) {
            self.best = self.now.clone();
            self.best.gpus.truncate(self.now.channels);
            self.best.nets.truncate(self.now.channels);
            if self.now.channels == self.now.max_channels {
                self.time = None;
            }
        }
        if self.now.channels < self.now.max_channels {
            self.next_channel();
        }
        self.now.channels -= 1;
    }

    fn back_to_net(&mut self, g: usize, position: usize, returns: Returns, order: Order) {
        let c = self.now.channels;
        let start_index = self.now.nets[c][0];
        let start = self.view.net(start_index);
        let balanced = self.now.pattern == Pattern::BalancedTree;
        for &n in self.nets_for(Some(g)).iter() {
            let net = self.view.net(n);
            if self.now.pattern == Pattern::Tree && n != start_index {
                continue;
            }
            if self.now.pattern == Pattern::Ring && self.now.cross_nic == 2 {
                if c % 2 == 1 && n != self.now.nets[c - 1][0] {
                    continue;
                }
            } else if self.now.cross_nic == 0 && !net.same_port(&start) {
                continue;
            }
            let mut next = None;
            if balanced {
                // The first two GPUs carry half each.
                if position == 0 {
                    next = Some(1).filter(|_| self.view.gpus.len() > 1);
                } else if n != self.now.nets[c][1] {
                    continue;
                }
            }
            let share = if balanced { 0.5 } else { 1.0 };
            let (from, to) = (self.view.gpus[g], self.view.nets[n]);
            if self.take(Some(from), to, share) {
                self.now.nets[c][1] = n;
                self.at(g, position, Returns { to_net: next, ..returns }, order);
                self.walk(from, to, -share);
            }
        }
    }

    /// The GPUs to try after `g`, best first (NCCL 2.30 `ncclTopoSearchNextGpuSort`). Scores are whole GB/s.
    fn ranked(&self, g: usize, toward_net: i32) -> Vec<usize> {
        let n = self.view.gpus.len();
        let flag = 1u64 << self.now.channels;
        let net = (toward_net != 0).then(|| self.view.nets[self.now.nets[self.now.channels][0]]);
        let Some(net) = net else {
            let free = |p: &usize| self.used[*p] & flag == 0;
            let next: Vec<usize> = self.view.ranked[g].iter().copied().filter(free).collect();
            let switched = self.view.graph.nvswitch.is_some();
            return if switched { self.neighbours_only(g, next) } else { next };
        };
        type Score = (i64, i64, i64, i64, i64, usize);
        let mut scored: Vec<(Score, usize)> = Vec::with_capacity(n);
        for i in 1..n {
            let peer = (g + i) % n;
            let path = self.view.paths.between(self.view.gpus[g], self.view.gpus[peer]);
            if path.links.is_empty() || self.used[peer] & flag != 0 {
                continue;
            }
            let p = self.view.paths.between(net, self.view.gpus[peer]);
            let (inter_bw, inter_hops) = (p.bandwidth as i64, p.links.len() as i64);
            let inter_pci = self.pci_left(self.view.gpus[peer]);
            let (bw, hops) = (path.bandwidth as i64, path.links.len() as i64);
            scored.push(((-inter_bw, -inter_pci, inter_hops, -bw, hops, i), peer));
        }
        scored.sort();
        let alike = scored.windows(2).all(|w| (w[0].0.3, w[0].0.4) == (w[1].0.3, w[1].0.4));
        let mut next: Vec<usize> = scored.into_iter().map(|s| s.1).collect();
        if toward_net == -1 && alike {
            next.reverse();
        }
        if self.view.graph.nvswitch.is_some() {
            next = self.neighbours_only(g, next);
        }
        next
    }

    /// With NVSwitches it pays to talk to few peers: only the neighbours by index are tried.
    fn neighbours_only(&self, g: usize, mut next: Vec<usize>) -> Vec<usize> {
        let n = self.view.gpus.len();
        let (before, after) = ((g + n - 1) % n, (g + 1) % n);
        let wanted: &[usize] = match self.now.pattern {
            Pattern::Ring => &[after, before],
            Pattern::SplitTree | Pattern::BalancedTree => &[before, after],
            _ => &[after],
        };
        let wanted = if before == after { &wanted[..1] } else { wanted };
        let mut found = 0;
        for w in wanted {
            if let Some(i) = next.iter().position(|x| x == w) {
                next[..=i].rotate_right(1);
                found += 1;
            }
        }
        next.truncate(found);
        next
    }

    fn pci_left(&self, gpu: NodeId) -> i64 {
        let graph = self.view.graph;
        for &l in &graph.out[gpu] {
            if graph.links[l].kind != LinkKind::Pci {
                continue;
            }
            let up = graph.links[l].to;
            if let Some(down) = graph.link_between(up, gpu, Some(LinkKind::Pci)) {
                return self.left[l].min(self.left[down]) / 1000;
            }
        }
        -1
    }

    /// Takes the speed off the path's links if the class allows it and they all have enough left.
    fn take(&mut self, from: Option<NodeId>, to: NodeId, share: f64) -> bool {
        let Some(from) = from else { return true };
        let limit = if self.between_gpus(from, to) { self.now.type_intra } else { self.now.type_inter };
        let path = self.view.paths.between(from, to);
        let back = self.view.paths.between(to, from);
        if path.class == PathClass::Dis || path.class > limit {
            return false;
        }
        if self.now.pattern.is_tree() && back.class > limit {
            return false;
        }
        self.walk(from, to, share)
    }

    fn give_back(&mut self, from: Option<NodeId>, to: NodeId) {
        if let Some(from) = from {
            self.walk(from, to, -1.0);
        }
    }

    fn between_gpus(&self, a: NodeId, b: NodeId) -> bool {
        let inside =
            |n: NodeId| matches!(self.view.graph.nodes[n].kind, NodeKind::Gpu { .. } | NodeKind::NvSwitch);
        inside(a) && inside(b)
    }

    /// Subtracts `share` of the speed along the path (adds, when negative). On too little, all is undone.
    fn walk(&mut self, from: NodeId, to: NodeId, share: f64) -> bool {
        let charges = self.charges(from, to, share.abs());
        if share > 0.0 {
            for (done, c) in charges.iter().enumerate() {
                let short = self.left[c.link] < c.amount || c.reply.is_some_and(|(r, a)| self.left[r] < a);
                if short {
                    charges[..done].iter().for_each(|c| self.charge(c, -1));
                    return false;
                }
                self.charge(c, 1);
            }
            self.now.hops += charges.len() as i64;
        } else {
            charges.iter().for_each(|c| self.charge(c, -1));
            self.now.hops -= charges.len() as i64;
        }
        true
    }

    fn charge(&mut self, c: &Charge, sign: i64) {
        self.left[c.link] -= sign * c.amount;
        if let Some((link, amount)) = c.reply {
            self.left[link] -= sign * amount;
        }
    }

    /// What a channel costs each link of a path; the same all through an attempt, so worked out once.
    fn charges(&mut self, from: NodeId, to: NodeId, share: f64) -> Rc<[Charge]> {
        let half = usize::from(share < 1.0);
        let ends = self.view.gpus.len() + self.view.nets.len();
        let at = (self.view.end[from] * ends + self.view.end[to]) * 2 + half;
        if let Some(known) = &self.known_charges[at] {
            return known.clone();
        }
        let speed = if self.between_gpus(from, to) { self.now.speed_intra } else { self.now.speed_inter };
        let fresh: Rc<[Charge]> = self.view.charges(from, to, speed * share).into();
        self.known_charges[at] = Some(fresh.clone());
        fresh
    }
}

/// What one link of a path is charged, in thousandths of GB/s.
pub(super) struct Charge {
    link: LinkId,
    amount: i64,
    /// The reverse link, where replies count too.
    reply: Option<(LinkId, i64)>,
}

impl View<'_> {
    fn charges(&self, from: NodeId, to: NodeId, speed: f64) -> Vec<Charge> {
        let graph = self.graph;
        let path = self.paths.between(from, to);
        let gpu = |n: NodeId| matches!(graph.nodes[n].kind, NodeKind::Gpu { .. });
        let cpu = |n: NodeId| matches!(graph.nodes[n].kind, NodeKind::Numa { .. });
        let through_intel = self.intel
            && path.class == PathClass::Phb
            && gpu(from)
            && path.links.iter().any(|&l| cpu(graph.links[l].to));
        let charge = |&l: &LinkId| {
            let link = &graph.links[l];
            let pci = through_intel && link.kind == LinkKind::Pci;
            let amount = if pci { speed * INTEL_P2P_OVERHEAD } else { speed };
            // Before Ampere a GPU that receives from anything but a GPU spends an eighth as much on replies.
            let old = matches!(graph.nodes[link.to].kind, NodeKind::Gpu { sm, .. } if sm < 80) && !gpu(from);
            let power = self.power && cpu(link.to) && link.kind == LinkKind::Nvl;
            let reply = if old { amount / 8.0 } else { 0.0 } + if power { amount } else { 0.0 };
            let back = graph.link_between(link.to, link.from, Some(link.kind));
            let reply = back.filter(|_| reply > 0.0).map(|b| (b, milli(reply)));
            Charge { link: l, amount: milli(amount), reply }
        };
        path.links.iter().map(charge).collect()
    }
}

fn milli(gbps: f64) -> i64 {
    (gbps * 1000.0).round() as i64
}
