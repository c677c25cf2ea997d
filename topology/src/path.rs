//! For every pair of nodes the best path: its class, bandwidth, latency, hops, and why it is what it is.
//!
//! The order of preference is NCCL's: breadth first, so fewest hops, then most bandwidth; the class is the worst
//! step's. Words are those of `nvidia-smi topo -m`, with NODE told apart from PHB where the host bridges are known.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::graph::{Graph, LinkId, LinkKind, NodeId, NodeKind};
use crate::model::BusId;
use crate::model::constants::LOCAL_BANDWIDTH;

/// How close two devices are, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PathClass {
    /// The same device.
    Loc,
    /// NVLink or xGMI, directly or through an NVSwitch.
    Nvl,
    /// NVLink through one other GPU.
    Nvb,
    /// Chip link between CPU and GPU.
    C2c,
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, no CPU.
    Pxb,
    /// GPU to its CPU by chip link, then PCIe to a NIC.
    P2c,
    /// Through another GPU that is close to the NIC.
    Pxn,
    /// Through a CPU's PCIe host bridge.
    Phb,
    /// Through the interconnect between host bridges of one NUMA node.
    Node,
    /// Between NUMA nodes.
    Sys,
    /// Over the network.
    Net,
    /// Not connected.
    Dis,
}

impl PathClass {
    /// All of them, best first.
    pub const ALL: [PathClass; 13] = {
        use PathClass::*;
        [Loc, Nvl, Nvb, C2c, Pix, Pxb, P2c, Pxn, Phb, Node, Sys, Net, Dis]
    };

    /// The word.
    pub fn word(self) -> &'static str {
        use PathClass::*;
        match self {
            Loc => "LOC",
            Nvl => "NVL",
            Nvb => "NVB",
            C2c => "C2C",
            Pix => "PIX",
            Pxb => "PXB",
            P2c => "P2C",
            Pxn => "PXN",
            Phb => "PHB",
            Node => "NODE",
            Sys => "SYS",
            Net => "NET",
            Dis => "DIS",
        }
    }

    /// Reads the word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.word() == word)
    }
}

impl fmt::Display for PathClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// One directed path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Path {
    /// Where it starts.
    pub from: NodeId,
    /// Where it ends.
    pub to: NodeId,
    /// How close the two are.
    pub class: PathClass,
    /// GB/s of its narrowest link.
    pub bandwidth: f64,
    /// µs of all its links.
    pub latency: f64,
    /// Its links, in order; their number is the number of hops.
    pub links: Vec<LinkId>,
}

/// The paths between all nodes of a graph.
#[derive(Debug, Clone)]
pub struct Paths {
    n: usize,
    all: Vec<Path>,
}

impl Paths {
    /// Finds them. The cost is the number of nodes times the number of links.
    pub fn new(graph: &Graph) -> Paths {
        let n = graph.nodes.len();
        let mut all: Vec<Path> = Vec::with_capacity(n * n);
        for from in 0..n {
            for to in 0..n {
                let class = if from == to { PathClass::Loc } else { PathClass::Dis };
                let bandwidth = if from == to { LOCAL_BANDWIDTH } else { 0.0 };
                all.push(Path { from, to, class, bandwidth, latency: 0.0, links: Vec::new() });
            }
        }
        let mut paths = Paths { n, all };
        for base in 0..n {
            paths.reach(graph, base);
        }
        paths
    }

    /// The path from one node to another.
    pub fn between(&self, from: NodeId, to: NodeId) -> &Path {
        &self.all[from * self.n + to]
    }

    pub(crate) fn replace(&mut self, path: Path) {
        let at = path.from * self.n + path.to;
        self.all[at] = path;
    }

    /// Breadth first from `base` outward; each path leads back to it.
    fn reach(&mut self, graph: &Graph, base: NodeId) {
        let mut frontier = vec![base];
        let mut queued = vec![0; self.n];
        let mut level = 0;
        while !frontier.is_empty() {
            let mut next = Vec::new();
            level += 1;
            for &node in &frontier {
                for &l in &graph.out[node] {
                    let link = &graph.links[l];
                    let known = self.between(node, base);
                    let (hops, bandwidth) = (known.links.len(), known.bandwidth.min(link.bandwidth));
                    if !passable(graph, base, node, link.kind, link.to, hops) {
                        continue;
                    }
                    let old = self.between(link.to, base);
                    let shorter = old.bandwidth == 0.0 || old.links.len() > hops;
                    if !(shorter && old.bandwidth < bandwidth) {
                        continue;
                    }
                    let Some(back) = graph.link_between(link.to, node, Some(link.kind)) else { continue };
                    let mut links = Vec::with_capacity(hops + 1);
                    links.push(back);
                    links.extend_from_slice(&known.links);
                    let class =
                        known.class.max(step_class(graph, node, link.kind, link.to, known.class, hops));
                    let latency = links.iter().map(|&l| graph.links[l].latency).sum();
                    let bandwidth =
                        links.iter().map(|&l| graph.links[l].bandwidth).fold(LOCAL_BANDWIDTH, f64::min);
                    let to = link.to;
                    self.replace(Path { from: to, to: base, class, bandwidth, latency, links });
                    if std::mem::replace(&mut queued[to], level) != level {
                        next.push(to);
                    }
                }
            }
            frontier = next;
        }
    }
}

/// Traffic passes through a GPU only from GPU to GPU by NVLink, and only once.
fn passable(graph: &Graph, base: NodeId, node: NodeId, kind: LinkKind, to: NodeId, hops: usize) -> bool {
    let gpu = |n: NodeId| matches!(graph.nodes[n].kind, NodeKind::Gpu { .. });
    node == base || !gpu(node) || (kind == LinkKind::Nvl && gpu(base) && gpu(to) && hops <= 1)
}

fn step_class(
    graph: &Graph,
    node: NodeId,
    kind: LinkKind,
    to: NodeId,
    so_far: PathClass,
    hops: usize,
) -> PathClass {
    let is = |n: NodeId, what: fn(&NodeKind) -> bool| what(&graph.nodes[n].kind);
    let pci = |k: &NodeKind| *k == NodeKind::Pci;
    let cpu = |k: &NodeKind| matches!(k, NodeKind::Numa { .. });
    let gpu = |k: &NodeKind| matches!(k, NodeKind::Gpu { .. });
    match kind {
        LinkKind::Net => PathClass::Loc,
        LinkKind::Pci if is(node, cpu) || is(to, cpu) => PathClass::Phb,
        LinkKind::Pci if is(node, pci) && is(to, pci) => PathClass::Pxb,
        LinkKind::Pci => PathClass::Pix,
        LinkKind::Nvl if is(node, gpu) && so_far == PathClass::Nvl && hops >= 1 => PathClass::Nvb,
        LinkKind::Nvl => PathClass::Nvl,
        LinkKind::C2c => PathClass::C2c,
        LinkKind::Sys => PathClass::Sys,
    }
}

impl Paths {
    /// The class as `nvidia-smi` would say it: NODE instead of PHB where both ends' host bridges are known and
    /// differ; P2C where the way between GPU and port begins with a chip link; PIX between ports of one adapter; and
    /// PXB instead of PIX where the ends are behind different lower switches of one chip, which are not told apart for
    /// bandwidth.
    pub fn class_for_people(&self, graph: &Graph, from: NodeId, to: NodeId) -> PathClass {
        let path = self.between(from, to);
        let (a, b) = (host_bridge(graph, from), host_bridge(graph, to));
        let net = |n: NodeId| matches!(graph.nodes[n].kind, NodeKind::Net { .. });
        let chip = || path.links.iter().any(|&l| graph.links[l].kind == LinkKind::C2c);
        if path.class == PathClass::Phb && (net(from) || net(to)) && chip() {
            return PathClass::P2c;
        }
        if path.class == PathClass::Pix && lower_switch(graph, from) != lower_switch(graph, to) {
            return PathClass::Pxb;
        }
        match (path.class, a, b) {
            // Ports of one adapter.
            (PathClass::Loc, ..) if from != to => PathClass::Pix,
            (PathClass::Phb, Some(a), Some(b)) if a != b => PathClass::Node,
            (class, ..) => class,
        }
    }

    /// How many links the path is wide where it is NVLink or xGMI; `None` for other classes and where the number is
    /// not known.
    pub fn nvlinks(&self, graph: &Graph, from: NodeId, to: NodeId) -> Option<u32> {
        let path = self.between(from, to);
        let count = path.links.iter().map(|&l| graph.links[l].count).min()?;
        (path.class == PathClass::Nvl && count > 0).then_some(count)
    }

    /// Why the class is what it is, in one clause.
    pub fn reason(&self, graph: &Graph, from: NodeId, to: NodeId) -> String {
        let mut text = self.place(graph, from, to);
        let closed = |n: NodeId| matches!(graph.nodes[n].kind, NodeKind::Gpu { peer_access: false, .. });
        let gpu = |n: NodeId| matches!(graph.nodes[n].kind, NodeKind::Gpu { .. });
        let class = self.between(from, to).class;
        let by_pcie = class > PathClass::Nvb && class < PathClass::Net;
        if by_pcie && gpu(from) && gpu(to) && (closed(from) || closed(to)) {
            text.push_str("; the cards have no peer-to-peer access, so data goes through host memory");
        }
        text
    }

    fn place(&self, graph: &Graph, from: NodeId, to: NodeId) -> String {
        let path = self.between(from, to);
        let name = |n: NodeId| graph.nodes[n].name.as_str();
        let inner: Vec<NodeId> = path.links.iter().map(|&l| graph.links[l].to).filter(|&n| n != to).collect();
        let of =
            |what: fn(&NodeKind) -> bool| inner.iter().copied().filter(move |&n| what(&graph.nodes[n].kind));
        let switches: Vec<&str> = of(|k| *k == NodeKind::Pci).map(name).collect();
        let cpus: Vec<&str> = of(|k| matches!(k, NodeKind::Numa { .. })).map(name).collect();
        match self.class_for_people(graph, from, to) {
            PathClass::Loc => "the same device".to_owned(),
            PathClass::Nvl if inner.is_empty() => match self.nvlinks(graph, from, to) {
                Some(1) => format!("one direct link, {} GB/s", gbps(path.bandwidth)),
                Some(n) => format!("{n} direct links, {} GB/s", gbps(path.bandwidth)),
                None => format!("linked directly, {} GB/s", gbps(path.bandwidth)),
            },
            PathClass::Nvl => "both are linked to the NVSwitches".to_owned(),
            PathClass::Nvb => {
                format!("no link of their own; the hop goes through {}", list(&of_gpu(graph, &inner)))
            }
            PathClass::C2c => "chip link between CPU and GPU".to_owned(),
            PathClass::Pix if path.class == PathClass::Loc => "both are on one network adapter".to_owned(),
            PathClass::Pix if switches.is_empty() => "one PCIe link".to_owned(),
            PathClass::Pix => format!("both hang off the PCIe switch {}", list(&switches)),
            PathClass::Pxb if path.class == PathClass::Pix => {
                format!(
                    "both hang off the PCIe switch {}, by different lower switches of that chip",
                    list(&switches)
                )
            }
            PathClass::Pxb => {
                format!("through the PCIe switches {}, without touching a CPU", list(&switches))
            }
            PathClass::P2c => format!("by chip link to {}, then PCIe", list(&cpus)),
            PathClass::Pxn => {
                format!("by NVLink to {}, which is next to the NIC", list(&of_gpu(graph, &inner)))
            }
            PathClass::Phb if cpus.is_empty() => "a PCIe device and its own CPU".to_owned(),
            PathClass::Phb => {
                let known = host_bridge(graph, from).is_some() && host_bridge(graph, to).is_some();
                let same = if known { "under one host bridge of" } else { "both hang off" };
                format!("{same} {}, with no PCIe switch in common", list(&cpus))
            }
            PathClass::Node => format!(
                "both hang off {}, under different host bridges ({} and {})",
                list(&cpus),
                host_bridge(graph, from).unwrap_or("?"),
                host_bridge(graph, to).unwrap_or("?")
            ),
            PathClass::Sys if cpus.len() >= 2 => {
                format!(
                    "{} and {} are different NUMA nodes, joined by the socket interconnect",
                    cpus[0], cpus[1]
                )
            }
            PathClass::Sys => "across the socket interconnect".to_owned(),
            PathClass::Net => "over the network".to_owned(),
            PathClass::Dis => "nothing connects them".to_owned(),
        }
    }

    /// The nodes on the way, both ends included, as `GPU0 → 0000:81:00.0 → NUMA0`.
    pub fn route(&self, graph: &Graph, from: NodeId, to: NodeId) -> String {
        let path = self.between(from, to);
        let mut text = graph.nodes[from].name.clone();
        for &l in &path.links {
            text.push_str(" → ");
            text.push_str(&graph.nodes[graph.links[l].to].name);
        }
        text
    }

    /// What limits the path: the narrowest link, by its ends.
    pub fn narrowest<'g>(
        &self,
        graph: &'g Graph,
        from: NodeId,
        to: NodeId,
    ) -> Option<&'g crate::graph::Link> {
        let links = &self.between(from, to).links;
        links.iter().map(|&l| &graph.links[l]).min_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth))
    }
}

/// The lower switch of one chip that a device or a port's adapter is behind.
fn lower_switch(graph: &Graph, node: NodeId) -> Option<&BusId> {
    let adapter = || graph.out[node].iter().map(|&l| &graph.links[l]).find(|l| l.kind == LinkKind::Net);
    let at = match graph.nodes[node].kind {
        NodeKind::Net { .. } => adapter().map_or(node, |l| l.to),
        _ => node,
    };
    graph.nodes[at].lower_switch.as_ref()
}

fn host_bridge(graph: &Graph, node: NodeId) -> Option<&str> {
    graph.nodes[node].host_bridge.as_deref().or_else(|| {
        // A port sits on its adapter.
        let link = graph.out[node].iter().map(|&l| &graph.links[l]).find(|l| l.kind == LinkKind::Net)?;
        graph.nodes[link.to].host_bridge.as_deref()
    })
}

fn of_gpu<'g>(graph: &'g Graph, nodes: &[NodeId]) -> Vec<&'g str> {
    let gpu = |n: &&NodeId| matches!(graph.nodes[**n].kind, NodeKind::Gpu { .. });
    nodes.iter().filter(gpu).map(|&n| graph.nodes[n].name.as_str()).collect()
}

/// GB/s with three digits that matter.
fn gbps(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn list(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Port;

    #[test]
    fn ports_of_one_adapter_are_close() {
        let mut system = crate::library::machine("dgx-h100").unwrap();
        let nic = system.devices.iter_mut().find_map(|d| d.nics.first_mut()).unwrap();
        nic.ports.push(Port { name: "second".into(), dev: Some(99), ..nic.ports[0].clone() });
        let first = nic.ports[0].name.clone();
        let graph = Graph::new(&system).unwrap();
        let paths = Paths::new(&graph);
        let (a, b) = (graph.node(&first).unwrap(), graph.node("second").unwrap());
        assert_eq!(paths.class_for_people(&graph, a, b), PathClass::Pix);
        assert_eq!(paths.class_for_people(&graph, a, a), PathClass::Loc);
        assert_eq!(paths.reason(&graph, a, b), "both are on one network adapter");
    }
}
