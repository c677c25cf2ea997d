//! Which NIC a GPU uses, and through which peer it may go there (NCCL 2.30 `graph/topo.cc`, `graph/paths.cc`).

use super::View;
use crate::graph::{NodeId, NodeKind};
use crate::path::{Path, PathClass};

impl View<'_> {
    /// Nets to try, best first: those local to each GPU (or to `gpu`), then all others that the class allows.
    pub(super) fn select_nets(&self, limit: PathClass, gpu: Option<usize>) -> Vec<usize> {
        let mut nets = Vec::new();
        let chosen: Vec<usize> = match gpu {
            Some(g) => vec![g],
            None => (0..self.gpus.len()).collect(),
        };
        let add = |n: usize, nets: &mut Vec<usize>| {
            if !nets.contains(&n) {
                nets.push(n);
            }
        };
        for &g in &chosen {
            let first = self.local_net(g, 0);
            for channel in 0..self.nets.len().max(1) {
                match self.local_net(g, channel) {
                    Some(n) if channel > 0 && Some(n) == first => break,
                    Some(n) => add(n, &mut nets),
                    None => break,
                }
            }
        }
        for class in PathClass::ALL.into_iter().filter(|&c| c <= limit) {
            for &g in &chosen {
                for n in 0..self.nets.len() {
                    if self.paths.between(self.gpus[g], self.nets[n]).class == class {
                        add(n, &mut nets);
                    }
                }
            }
        }
        nets
    }

    /// Ends of `to` with the best path from `from`: most bandwidth, then best class.
    fn local(&self, from: NodeId, to: &[NodeId]) -> Vec<usize> {
        let mut best = (0.0, PathClass::Dis);
        let mut list = Vec::new();
        for (i, &t) in to.iter().enumerate() {
            let p = self.paths.between(from, t);
            if p.bandwidth > best.0 || (p.bandwidth == best.0 && p.class < best.1) {
                best = (p.bandwidth, p.class);
                list.clear();
            }
            if p.bandwidth == best.0 && p.class == best.1 && p.class != PathClass::Dis {
                list.push(i);
            }
        }
        list
    }

    /// The net that GPU `g` uses for a channel: GPUs that share NICs spread over them by device number, in
    /// bit-reversed order where the count is a power of two.
    fn local_net(&self, g: usize, channel: usize) -> Option<usize> {
        let nets = self.local(self.gpus[g], &self.nets);
        let first = *nets.first()?;
        let sharing = self.local(self.nets[first], &self.gpus).len().max(1);
        let dev = self.dev(g).max(0) as usize;
        let start = if nets.len().is_power_of_two() { mirror(dev, nets.len()) } else { dev };
        let at = start + channel % nets.len().div_ceil(sharing);
        Some(nets[at % nets.len()])
    }

    /// The GPU that a net belongs to.
    fn local_gpu(&self, net: usize) -> Option<usize> {
        let near = self.local(self.nets[net], &self.gpus);
        for channel in 0..32 {
            if let Some(&g) = near.iter().find(|&&g| self.local_net(g, channel) == Some(net)) {
                return Some(g);
            }
        }
        None
    }

    fn local_numa(&self, node: NodeId) -> Option<NodeId> {
        let hops = |n: &NodeId| self.paths.between(node, *n).links.len();
        self.graph.numas.iter().copied().filter(|n| hops(n) > 0).min_by_key(hops)
    }

    /// The path over `via`, replacing the direct one.
    fn detour(&self, from: NodeId, via: NodeId, to: NodeId) -> Path {
        let (a, b) = (self.paths.between(from, via), self.paths.between(via, to));
        let class = match (a.class.max(b.class), a.class.min(b.class)) {
            (PathClass::Phb, PathClass::C2c) => PathClass::P2c,
            (worst, _) => worst,
        };
        let class = if self.is_gpu(via) { PathClass::Pxn } else { class };
        let links = a.links.iter().chain(&b.links).copied().collect();
        let bandwidth = a.bandwidth.min(b.bandwidth);
        Path { from, to, class, bandwidth, latency: a.latency + b.latency, links }
    }

    fn is_gpu(&self, node: NodeId) -> bool {
        matches!(self.graph.nodes[node].kind, NodeKind::Gpu { .. })
    }

    fn gpu_reachable_by_nics(&self, g: usize) -> bool {
        matches!(self.graph.nodes[self.gpus[g]].kind, NodeKind::Gpu { gdr: true, .. })
    }
}

fn mirror(value: usize, power: usize) -> usize {
    let bits = power.trailing_zeros();
    if bits == 0 { 0 } else { (value % power).reverse_bits() >> (usize::BITS - bits) }
}

/// Adjusts the paths between GPUs and nets: by chip link (P2C), through a peer GPU (PXN), and through the CPU where a
/// NIC cannot reach GPU memory.
pub(super) fn reroute(view: &mut View<'_>) {
    chip_link_paths(view);
    for n in 0..view.nets.len() {
        let net = view.nets[n];
        for g in 0..view.gpus.len() {
            let gpu = view.gpus[g];
            if let Some(peer) = view.local_gpu(n).filter(|&p| p != g) {
                let peer = view.gpus[peer];
                let (near, own) = (view.paths.between(peer, net), view.paths.between(gpu, net));
                let linked = view.paths.between(peer, gpu).class <= PathClass::Nvl;
                let better = near.bandwidth > own.bandwidth || own.class > PathClass::Pxn;
                if near.class <= PathClass::P2c && linked && better {
                    let path = view.detour(gpu, peer, net);
                    view.paths.replace(path);
                }
            }
            let direct = view.net(n).gdr && view.gpu_reachable_by_nics(g);
            if view.paths.between(gpu, net).class < PathClass::Phb
                && !direct
                && let Some(numa) = view.local_numa(gpu)
            {
                let (out, back) = (view.detour(gpu, numa, net), view.detour(net, numa, gpu));
                view.paths.replace(out);
                view.paths.replace(back);
            }
        }
    }
}

fn chip_link_paths(view: &mut View<'_>) {
    for g in 0..view.gpus.len() {
        let gpu = view.gpus[g];
        let Some(numa) = view.local_numa(gpu) else { continue };
        for n in view.local(gpu, &view.nets) {
            let net = view.nets[n];
            let pair = [view.paths.between(gpu, numa).class, view.paths.between(net, numa).class];
            if pair != [PathClass::C2c, PathClass::Phb] {
                continue;
            }
            for (from, to) in [(gpu, net), (net, gpu)] {
                let mut path = view.paths.between(from, to).clone();
                path.class = path.class.min(PathClass::P2c);
                view.paths.replace(path);
            }
        }
    }
}
