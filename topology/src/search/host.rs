//! What the search reads of a host: the graph, its paths, the ends of hops, and a few sums.

use super::{Settings, nets};
use crate::graph::{Graph, LinkKind, NodeId, NodeKind};
use crate::model::constants::LOCAL_BANDWIDTH;
use crate::path::Paths;

/// One host, ready for the search.
pub(super) struct Host<'g> {
    pub graph: &'g Graph,
    pub paths: Paths,
    pub gpus: Vec<NodeId>,
    /// Ports; empty when there is one host.
    pub nets: Vec<NodeId>,
    /// For each port the first one on the same wire.
    pub wires: Vec<usize>,
    /// Lowest compute capability.
    pub sm: i32,
    /// GB/s of the best path (to a port with several hosts, else between GPUs).
    pub max_bandwidth: f64,
    /// GB/s that the best-connected GPU can move.
    pub total_bandwidth: f64,
    pub intel: bool,
    pub amd: bool,
    pub power: bool,
}

/// What the search needs to know of a port.
#[derive(Clone, Copy)]
pub(super) struct PortFacts {
    /// Adapter, and number on it.
    wire: (u64, i32),
    /// GB/s.
    pub speed: f64,
    pub gdr: bool,
    /// µs.
    pub latency: f64,
}

impl<'g> Host<'g> {
    pub fn new(graph: &'g Graph, settings: &Settings) -> Self {
        let cpu = |want: &str| {
            matches!(&graph.numas.first().map(|&n| &graph.nodes[n].kind),
                Some(NodeKind::Numa { arch, vendor }) if arch == want || (arch == "x86_64" && vendor == want))
        };
        let mut host = Host {
            graph,
            paths: Paths::new(graph),
            gpus: graph.gpus.clone(),
            nets: if settings.several_hosts { graph.nets.clone() } else { Vec::new() },
            wires: Vec::new(),
            sm: graph.lowest_sm(),
            max_bandwidth: 0.0,
            total_bandwidth: 0.0,
            intel: cpu("GenuineIntel"),
            amd: cpu("AuthenticAMD"),
            power: cpu("ppc64"),
        };
        let wires: Vec<_> = (0..host.nets.len()).map(|n| host.net(n).wire).collect();
        host.wires = wires.iter().map(|w| wires.iter().position(|o| o == w).unwrap_or(0)).collect();
        if !host.nets.is_empty() {
            nets::reroute(&mut host);
        }
        host.sums();
        host
    }

    fn sums(&mut self) {
        if self.nets.is_empty() && self.gpus.len() <= 1 {
            (self.max_bandwidth, self.total_bandwidth) = (LOCAL_BANDWIDTH, LOCAL_BANDWIDTH);
            return;
        }
        let ends = if self.nets.is_empty() { &self.gpus } else { &self.nets };
        for &g in &self.gpus {
            let paths = ends.iter().map(|&e| self.paths.between(g, e)).filter(|p| !p.links.is_empty());
            self.max_bandwidth = paths.map(|p| p.bandwidth).fold(self.max_bandwidth, f64::max);
            self.total_bandwidth = self.total_bandwidth.max(self.gpu_bandwidth(g));
        }
    }

    fn gpu_bandwidth(&self, gpu: NodeId) -> f64 {
        let links = self.graph.out[gpu].iter().map(|&l| &self.graph.links[l]);
        let sum = |kind| links.clone().filter(|l| l.kind == kind).map(|l| l.bandwidth).sum::<f64>();
        sum(LinkKind::Nvl).max(sum(LinkKind::Pci))
    }

    /// The driver's index of a GPU.
    pub fn dev(&self, gpu: usize) -> i32 {
        match self.graph.nodes[self.gpus[gpu]].kind {
            NodeKind::Gpu { dev, .. } => dev,
            _ => gpu as i32,
        }
    }

    pub fn net(&self, net: usize) -> PortFacts {
        match self.graph.nodes[self.nets[net]].kind {
            NodeKind::Net { asic, port, speed, gdr, latency, .. } => {
                PortFacts { wire: (asic, port), speed, gdr, latency }
            }
            _ => PortFacts { wire: (net as u64, 0), speed: 0.0, gdr: false, latency: 0.0 },
        }
    }
}
