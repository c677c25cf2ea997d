//! Which NIC a GPU uses, and through which peer it may go there (NCCL 2.30 `graph/topo.cc`, `graph/paths.cc`).

use super::host::Host;
use crate::graph::{NodeId, NodeKind};
use crate::path::{Path, PathClass};

/// The order in which ports are tried.
pub(super) struct PortOrder {
    /// From nowhere in particular.
    pub any: Vec<u16>,
    /// From each GPU.
    pub from: Vec<Vec<u16>>,
}

impl Host<'_> {
    /// The ports to try where no path to one may be worse than `limit`.
    pub(super) fn port_order(&self, limit: PathClass) -> PortOrder {
        let order = |gpu| self.select_nets(limit, gpu).into_iter().map(|n| n as u16).collect();
        PortOrder { any: order(None), from: (0..self.gpus.len()).map(|g| order(Some(g))).collect() }
    }

    /// Nets to try, best first: those local to each GPU (or to `gpu`), then all others that the class allows.
    fn select_nets(&self, limit: PathClass, gpu: Option<usize>) -> Vec<usize> {
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
pub(super) fn reroute(host: &mut Host<'_>) {
    chip_link_paths(host);
    for n in 0..host.nets.len() {
        let net = host.nets[n];
        for g in 0..host.gpus.len() {
            let gpu = host.gpus[g];
            if let Some(peer) = host.local_gpu(n).filter(|&p| p != g) {
                let peer = host.gpus[peer];
                let (near, own) = (host.paths.between(peer, net), host.paths.between(gpu, net));
                let linked = host.paths.between(peer, gpu).class <= PathClass::Nvl;
                let better = near.bandwidth > own.bandwidth || own.class > PathClass::Pxn;
                if near.class <= PathClass::P2c && linked && better {
                    let path = host.detour(gpu, peer, net);
                    host.paths.replace(path);
                }
            }
            let direct = host.net(n).gdr && host.gpu_reachable_by_nics(g);
            if host.paths.between(gpu, net).class < PathClass::Phb
                && !direct
                && let Some(numa) = host.local_numa(gpu)
            {
                let (out, back) = (host.detour(gpu, numa, net), host.detour(net, numa, gpu));
                host.paths.replace(out);
                host.paths.replace(back);
            }
        }
    }
}

fn chip_link_paths(host: &mut Host<'_>) {
    for g in 0..host.gpus.len() {
        let gpu = host.gpus[g];
        let Some(numa) = host.local_numa(gpu) else { continue };
        for n in host.local(gpu, &host.nets) {
            let net = host.nets[n];
            let pair = [host.paths.between(gpu, numa).class, host.paths.between(net, numa).class];
            if pair != [PathClass::C2c, PathClass::Phb] {
                continue;
            }
            for (from, to) in [(gpu, net), (net, gpu)] {
                let mut path = host.paths.between(from, to).clone();
                path.class = path.class.min(PathClass::P2c);
                host.paths.replace(path);
            }
        }
    }
}
