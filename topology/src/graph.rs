//! Nodes and directed links, derived from a [`System`].

use std::collections::HashMap;

use serde::Serialize;

use crate::model::constants::{self, latency};
use crate::model::{BusId, ClassKind, Device, Parent, Port, System, class_kind};
use crate::{Error, Result};

/// The most nodes of one graph: the paths between all of them are kept, and their number is its square.
pub const MAX_NODES: usize = 1500;

/// Index of a node in [`Graph::nodes`].
pub type NodeId = usize;
/// Index of a link in [`Graph::links`].
pub type LinkId = usize;

/// What a node is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum NodeKind {
    /// A NUMA node (NCCL calls it CPU).
    Numa {
        /// `x86_64`, …
        arch: String,
        /// `GenuineIntel`, …
        vendor: String,
    },
    /// A PCIe bridge or switch.
    Pci,
    /// An accelerator.
    Gpu {
        /// Driver's index.
        dev: i32,
        /// Rank; the position among the GPUs where the source gives none.
        rank: i32,
        /// Compute capability.
        sm: i32,
        /// NICs reach its memory.
        gdr: bool,
    },
    /// All NVSwitches of the host, as one.
    NvSwitch,
    /// A network adapter.
    Nic,
    /// A network port.
    Net {
        /// Index among network devices.
        dev: i32,
        /// Adapter identity.
        asic: u64,
        /// Port number on the adapter.
        port: i32,
        /// Reaches GPU memory.
        gdr: bool,
        /// GB/s to the wire.
        speed: f64,
        /// µs that the port's driver states, 0 if it does not.
        latency: f64,
    },
}

/// One node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Node {
    /// What it is.
    #[serde(flatten)]
    pub kind: NodeKind,
    /// Its name in tables: `GPU0`, `NUMA1`, `mlx5_0`, `NVSW`, a bus id.
    pub name: String,
    /// Its PCI address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<BusId>,
    /// The NUMA node it belongs to, as a node; the NVSwitch has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<NodeId>,
    /// Index of the device in the system.
    #[serde(skip)]
    pub device: Option<usize>,
    /// PCI host bridge, where known.
    #[serde(skip)]
    pub host_bridge: Option<String>,
}

/// What a link is made of. The order is NCCL's, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LinkKind {
    /// NVLink or xGMI.
    Nvl,
    /// Chip to chip.
    C2c,
    /// PCI Express.
    Pci,
    /// Between sockets.
    Sys,
    /// From adapter to wire.
    Net,
}

/// Where a link's numbers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The tables of [`constants`].
    Table,
    /// The device reports a speed that cannot be (see [`Device::link_is_doubtful`]); the table was applied to it.
    Doubtful,
    /// Measured, or given by hand.
    Measured,
}

/// One direction of a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Link {
    /// From.
    pub from: NodeId,
    /// To.
    pub to: NodeId,
    /// What it is made of.
    pub kind: LinkKind,
    /// GB/s.
    pub bandwidth: f64,
    /// µs.
    pub latency: f64,
    /// Where the two numbers come from.
    pub source: Source,
}

/// The nodes and links of one host, ready for paths and search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Graph {
    /// All nodes.
    pub nodes: Vec<Node>,
    /// All links; each direction is its own.
    pub links: Vec<Link>,
    /// For every node the links that leave it, in the order in which the search looks at them.
    #[serde(skip)]
    pub out: Vec<Vec<LinkId>>,
    /// GPUs in rank order of the source's file order.
    #[serde(skip)]
    pub gpus: Vec<NodeId>,
    /// NUMA nodes.
    #[serde(skip)]
    pub numas: Vec<NodeId>,
    /// Network ports that a job may use.
    #[serde(skip)]
    pub nets: Vec<NodeId>,
    /// The merged NVSwitch, if there is one.
    #[serde(skip)]
    pub nvswitch: Option<NodeId>,
}

impl Graph {
    /// Derives the graph.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the system contradicts itself (see [`System::validate`]) or an override names a link
    /// that does not exist.
    pub fn new(system: &System) -> Result<Graph> {
        system.validate()?;
        let mut b = Builder {
            g: Graph {
                nodes: Vec::new(),
                links: Vec::new(),
                out: Vec::new(),
                gpus: Vec::new(),
                numas: Vec::new(),
                nets: Vec::new(),
                nvswitch: None,
            },
            system,
            of_device: vec![None; system.devices.len()],
            adapters: HashMap::new(),
        };
        b.numas();
        b.devices();
        b.nvlinks()?;
        b.flatten_two_level_switches();
        b.sockets();
        b.uplinks_last();
        b.overrides()?;
        if b.g.nodes.len() > MAX_NODES {
            return Err(Error::invalid(format!(
                "{} devices and ports in one host; paths are found for at most {MAX_NODES}",
                b.g.nodes.len()
            )));
        }
        Ok(b.g)
    }

    /// Finds a node by name (`GPU0`, `NUMA1`, `mlx5_0`), case aside, or by bus id.
    pub fn node(&self, name: &str) -> Result<NodeId> {
        let bus = BusId::parse(name).ok();
        let found = self.nodes.iter().position(|n| {
            n.name.eq_ignore_ascii_case(name) || (bus.is_some() && n.bus.as_ref() == bus.as_ref())
        });
        found.ok_or_else(|| Error::unknown("device", name, self.nodes.iter().map(|n| n.name.as_str())))
    }

    /// The lowest compute capability among the GPUs; 0 without any, or for AMD.
    pub fn lowest_sm(&self) -> i32 {
        let sm = self.gpus.iter().filter_map(|&g| match self.nodes[g].kind {
            NodeKind::Gpu { sm, .. } => Some(sm),
            _ => None,
        });
        sm.min().unwrap_or(0)
    }

    /// The link from one node to a neighbour, of a kind if that is given.
    pub fn link_between(&self, from: NodeId, to: NodeId, kind: Option<LinkKind>) -> Option<LinkId> {
        self.out[from].iter().copied().find(|&l| {
            let link = &self.links[l];
            link.to == to && kind.is_none_or(|k| k == link.kind)
        })
    }
}

struct Builder<'a> {
    g: Graph,
    system: &'a System,
    of_device: Vec<Option<NodeId>>,
    adapters: HashMap<u64, NodeId>,
}

impl Builder<'_> {
    fn node(&mut self, kind: NodeKind, name: String, bus: Option<BusId>, numa: Option<NodeId>) -> NodeId {
        let name = match crate::printable(&name) {
            std::borrow::Cow::Owned(shown) => shown,
            std::borrow::Cow::Borrowed(_) => name,
        };
        self.g.nodes.push(Node { kind, name, bus, numa, device: None, host_bridge: None });
        self.g.out.push(Vec::new());
        self.g.nodes.len() - 1
    }

    /// Adds bandwidth to the link of that kind, or makes it. Links that leave a node stay sorted by falling
    /// bandwidth, later ones after earlier equals: the search depends on the order.
    fn connect(&mut self, from: NodeId, to: NodeId, kind: LinkKind, bandwidth: f64, us: f64, source: Source) {
        let id = match self.g.link_between(from, to, Some(kind)) {
            Some(id) => {
                self.g.links[id].bandwidth += bandwidth;
                self.g.out[from].retain(|&l| l != id);
                id
            }
            None => {
                self.g.links.push(Link { from, to, kind, bandwidth, latency: us, source });
                self.g.links.len() - 1
            }
        };
        let mine = self.g.links[id].bandwidth;
        let at = self.g.out[from]
            .iter()
            .position(|&l| self.g.links[l].bandwidth < mine)
            .unwrap_or(self.g.out[from].len());
        self.g.out[from].insert(at, id);
    }

    fn both(&mut self, a: NodeId, b: NodeId, kind: LinkKind, bandwidth: f64, us: f64, source: Source) {
        self.connect(a, b, kind, bandwidth, us, source);
        self.connect(b, a, kind, bandwidth, us, source);
    }

    fn numas(&mut self) {
        for numa in &self.system.numas {
            let kind = NodeKind::Numa { arch: numa.arch.clone(), vendor: numa.vendor.clone() };
            let id = self.node(kind, format!("NUMA{}", numa.id.max(0)), None, None);
            if self.g.nodes[..id].iter().any(|n| n.name == self.g.nodes[id].name) {
                self.g.nodes[id].name = format!("NUMA{}.{id}", numa.id.max(0));
            }
            self.g.nodes[id].numa = Some(id);
            self.g.numas.push(id);
        }
    }

    fn devices(&mut self) {
        let any_ranked = self.system.gpus().any(|(_, _, g)| g.rank.is_some());
        for (n, numa) in self.system.numas.iter().enumerate() {
            for nic in &numa.nics {
                self.nic(None, n, &nic.ports);
            }
            // Pre-order below each NUMA node: the order of the file, whatever the order of the list.
            let mut stack: Vec<usize> = self.system.children(Parent::Numa(n)).collect();
            stack.reverse();
            while let Some(i) = stack.pop() {
                self.device(i, n, any_ranked);
                let mut below: Vec<usize> = self.system.children(Parent::Device(i)).collect();
                below.reverse();
                stack.extend(below);
            }
        }
    }

    fn parent_node(&self, device: &Device, numa: usize) -> NodeId {
        match device.parent {
            Parent::Numa(_) => numa,
            Parent::Device(p) => self.of_device[p].unwrap_or(numa),
        }
    }

    fn device(&mut self, i: usize, numa: usize, any_ranked: bool) {
        let system = self.system;
        let d = &system.devices[i];
        let up = self.parent_node(d, numa);
        let id = match (&d.gpu, class_kind(d.class)) {
            (Some(gpu), _) => {
                if any_ranked && gpu.rank.is_none() {
                    return;
                }
                let rank = gpu.rank.unwrap_or(self.g.gpus.len() as i32);
                let gdr = gpu.gdr.unwrap_or(false);
                let kind =
                    NodeKind::Gpu { dev: gpu.dev, rank, sm: if gpu.gcn.is_some() { 0 } else { gpu.sm }, gdr };
                let id = self.node(kind, format!("GPU{}", gpu.dev), Some(d.bus.clone()), Some(numa));
                self.g.gpus.push(id);
                id
            }
            (None, ClassKind::Nic) => {
                // The functions of one adapter are one node.
                if let Some(&id) = self.adapters.get(&d.bus.adapter()) {
                    self.of_device[i] = Some(id);
                    self.ports(id, numa, d.nics.iter().flat_map(|n| &n.ports));
                    return;
                }
                let id = self.node(NodeKind::Nic, d.bus.to_string(), Some(d.bus.clone()), Some(numa));
                self.adapters.insert(d.bus.adapter(), id);
                self.ports(id, numa, d.nics.iter().flat_map(|n| &n.ports));
                id
            }
            (None, ClassKind::Gpu) => return,
            (None, ClassKind::NvSwitch) => return,
            (None, ClassKind::Bridge) => {
                let leaf = system.children(Parent::Device(i)).next().is_none();
                let id = self.node(NodeKind::Pci, d.bus.to_string(), Some(d.bus.clone()), Some(numa));
                if leaf && !d.nics.is_empty() {
                    self.ports(id, numa, d.nics.iter().flat_map(|n| &n.ports));
                }
                id
            }
        };
        self.of_device[i] = Some(id);
        self.g.nodes[id].device = Some(i);
        self.g.nodes[id].host_bridge = d.host_bridge.clone();
        let source = if d.link_is_doubtful() { Source::Doubtful } else { Source::Table };
        self.both(id, up, LinkKind::Pci, d.link_bandwidth(), latency::PCI, source);
    }

    fn nic(&mut self, bus: Option<BusId>, numa: usize, ports: &[Port]) {
        let name = format!("{}.nic", self.g.nodes[numa].name);
        let id = self.node(NodeKind::Nic, name, bus, Some(numa));
        self.both(id, numa, LinkKind::Pci, constants::LOCAL_BANDWIDTH, latency::PCI, Source::Table);
        self.ports(id, numa, ports.iter());
    }

    fn ports<'p>(&mut self, nic: NodeId, numa: usize, ports: impl Iterator<Item = &'p Port>) {
        for port in ports {
            let unused = port.extra.iter().any(|(k, v)| k == "net" && v == "0");
            let Some(dev) = port.dev.filter(|_| !unused) else { continue };
            let speed = port.speed_mbps.filter(|&s| s > 0.0).unwrap_or(constants::DEFAULT_NET_MBPS) / 8000.0;
            let asic = port.guid.filter(|&g| g != 0).unwrap_or(dev as u64);
            let known = self
                .g
                .nets
                .iter()
                .any(|&n| matches!(self.g.nodes[n].kind, NodeKind::Net { dev: d, .. } if d == dev));
            if known {
                // Fused files name a virtual port once per NUMA node; it is one port.
                continue;
            }
            let stated = port.latency.unwrap_or(0.0);
            let (number, gdr) = (port.port.unwrap_or(0), port.gdr.unwrap_or(false));
            let kind = NodeKind::Net { dev, asic, port: number, gdr, speed, latency: stated };
            let name = if port.name.is_empty() { format!("NET{dev}") } else { port.name.clone() };
            let bus = self.g.nodes[nic].bus.clone();
            let id = self.node(kind, name, bus, Some(numa));
            self.g.nets.push(id);
            let us = latency::NET + stated;
            self.both(nic, id, LinkKind::Net, speed, us, Source::Table);
        }
    }

    fn nvlinks(&mut self) -> Result<()> {
        let system = self.system;
        for (i, d, gpu) in system.gpus() {
            let Some(id) = self.of_device[i] else { continue };
            for link in &gpu.nvlinks {
                let each = match &gpu.gcn {
                    Some(gcn) => constants::xgmi_bandwidth(gcn),
                    None if link.xgmi => constants::xgmi_bandwidth(""),
                    None => constants::nvlink_bandwidth(gpu.sm),
                };
                let bandwidth = link.bandwidth.unwrap_or(each * f64::from(link.count));
                let peer = system.devices.iter().position(|o| o.bus == link.target);
                let class = link.target_class.or(peer.map(|p| system.devices[p].class));
                if class == Some(0x068001) {
                    let numa = system.numa_of(i);
                    self.both(id, numa, LinkKind::Nvl, bandwidth, latency::NVLINK, Source::Table);
                } else if class == Some(0x068000) || link.target.is_placeholder() {
                    let switch = match self.g.nvswitch {
                        Some(switch) => switch,
                        None => self.node(NodeKind::NvSwitch, "NVSW".into(), None, None),
                    };
                    self.g.nvswitch = Some(switch);
                    self.both(id, switch, LinkKind::Nvl, bandwidth, latency::NVSWITCH_LEG, Source::Table);
                } else if let Some(peer) = peer.and_then(|p| self.of_device[p]) {
                    // Each end describes its own direction.
                    self.connect(id, peer, LinkKind::Nvl, bandwidth, latency::NVLINK, Source::Table);
                }
            }
            let numa = system.numa_of(i);
            for c2c in &gpu.c2c {
                let bandwidth = c2c.bw * f64::from(c2c.count) / 1000.0;
                self.both(id, numa, LinkKind::C2c, bandwidth, latency::C2C, Source::Table);
            }
            let _ = d;
        }
        self.complete_nvlinks();
        Ok(())
    }

    /// A peer link that only one end describes works in both directions all the same.
    fn complete_nvlinks(&mut self) {
        for l in 0..self.g.links.len() {
            let Link { from, to, kind, bandwidth, latency, source } = self.g.links[l];
            if kind == LinkKind::Nvl && self.g.link_between(to, from, Some(kind)).is_none() {
                self.connect(to, from, kind, bandwidth, latency, source);
            }
        }
    }

    /// Broadcom switches of two levels that are one chip inside: the lower level vanishes, its devices hang off the
    /// upper one (NCCL 2.30 `ncclTopoFlattenBcmSwitches`: the masks and ids are those of its `getBcmGen`).
    fn flatten_two_level_switches(&mut self) {
        let generation = |ids: Option<[u16; 4]>, level: u64| {
            let [a, b, c, d] = ids?.map(u64::from);
            match (a << 48 | b << 32 | c << 16 | d) & !0xfff {
                0x1000_c010_1000_a000 => Some(4),
                id if id == (0x1000_c030_1000_0000 | level << 12) => Some(5),
                _ => None,
            }
        };
        let ids = |g: &Graph, n: NodeId| g.nodes[n].device.and_then(|d| self.system.devices[d].ids);
        let mut gone = vec![false; self.g.nodes.len()];
        for top in 0..self.g.nodes.len() {
            if gone[top] || self.g.nodes[top].kind != NodeKind::Pci {
                continue;
            }
            let Some(wanted) = generation(ids(&self.g, top), 0) else { continue };
            let lower: Vec<NodeId> = self.g.out[top]
                .iter()
                .map(|&l| self.g.links[l].to)
                .filter(|&n| self.g.nodes[n].kind == NodeKind::Pci && !gone[n])
                .filter(|&n| self.is_below(n, top) && generation(ids(&self.g, n), 1) == Some(wanted))
                .collect();
            for sub in lower {
                gone[sub] = true;
                self.g.out[top].retain(|&l| self.g.links[l].to != sub);
                for l in std::mem::take(&mut self.g.out[sub]) {
                    let far = self.g.links[l].to;
                    if far == top {
                        continue;
                    }
                    self.g.links[l].from = top;
                    self.g.out[top].push(l);
                    for back in self.g.out[far].clone() {
                        if self.g.links[back].to == sub {
                            self.g.links[back].to = top;
                        }
                    }
                }
            }
        }
        self.remove(&gone);
    }

    fn is_below(&self, node: NodeId, top: NodeId) -> bool {
        let parent = self.g.nodes[node].device.map(|d| self.system.devices[d].parent);
        match parent {
            Some(Parent::Device(p)) => self.of_device[p] == Some(top),
            _ => false,
        }
    }

    fn remove(&mut self, gone: &[bool]) {
        if !gone.contains(&true) {
            return;
        }
        let mut next = 0;
        let map: Vec<Option<NodeId>> = gone
            .iter()
            .map(|&g| {
                (!g).then(|| {
                    next += 1;
                    next - 1
                })
            })
            .collect();
        let keep_link: Vec<bool> =
            self.g.links.iter().map(|l| map[l.from].is_some() && map[l.to].is_some()).collect();
        let mut next = 0;
        let link_map: Vec<Option<LinkId>> = keep_link
            .iter()
            .map(|&k| {
                k.then(|| {
                    next += 1;
                    next - 1
                })
            })
            .collect();
        let node = |n: NodeId| map[n].unwrap_or(0);
        let old = std::mem::take(&mut self.g.nodes);
        let out = std::mem::take(&mut self.g.out);
        for (i, (mut n, o)) in old.into_iter().zip(out).enumerate() {
            if gone[i] {
                continue;
            }
            n.numa = n.numa.map(node);
            self.g.nodes.push(n);
            self.g.out.push(o.into_iter().filter_map(|l| link_map[l]).collect());
        }
        let links = std::mem::take(&mut self.g.links);
        self.g.links = links
            .into_iter()
            .zip(&keep_link)
            .filter(|(_, k)| **k)
            .map(|(l, _)| Link { from: node(l.from), to: node(l.to), ..l })
            .collect();
        for list in [&mut self.g.gpus, &mut self.g.numas, &mut self.g.nets] {
            list.iter_mut().for_each(|n| *n = node(*n));
        }
        self.g.nvswitch = self.g.nvswitch.map(node);
        self.of_device.iter_mut().for_each(|n| *n = n.and_then(|n| map[n]));
    }

    fn sockets(&mut self) {
        for a in 0..self.g.numas.len() {
            for b in 0..self.g.numas.len() {
                if a != b {
                    let numa = &self.system.numas[a];
                    let (family, model) = (numa.family.unwrap_or(0), numa.model.unwrap_or(0));
                    let bw =
                        constants::inter_socket_bandwidth(&numa.arch, &numa.vendor, family, model, false);
                    let (a, b) = (self.g.numas[a], self.g.numas[b]);
                    self.connect(a, b, LinkKind::Sys, bw, latency::SYS, Source::Table);
                }
            }
        }
    }

    /// Below a NUMA node, the link upward comes after all others.
    fn uplinks_last(&mut self) {
        let mut seen = vec![false; self.g.nodes.len()];
        for numa in self.g.numas.clone() {
            let mut stack: Vec<(NodeId, Option<NodeId>)> = vec![(numa, None)];
            while let Some((n, up)) = stack.pop() {
                if std::mem::replace(&mut seen[n], true) {
                    continue;
                }
                if let Some(up) = up
                    && let Some(at) = self.g.out[n].iter().position(|&l| self.g.links[l].to == up)
                {
                    let l = self.g.out[n].remove(at);
                    self.g.out[n].push(l);
                }
                for &l in &self.g.out[n] {
                    let link = &self.g.links[l];
                    if link.kind == LinkKind::Pci && Some(link.to) != up {
                        stack.push((link.to, Some(n)));
                    }
                }
            }
        }
    }

    fn overrides(&mut self) -> Result<()> {
        for o in &self.system.overrides {
            let (a, b) = (self.g.node(&o.from)?, self.g.node(&o.to)?);
            for value in [o.gbps, o.us].into_iter().flatten() {
                if !(value > 0.0 && value.is_finite()) {
                    return Err(Error::invalid(format!(
                        "measured link {} – {}: {value} is no speed or latency; both are positive",
                        o.from, o.to
                    )));
                }
            }
            let mut found = false;
            for link in &mut self.g.links {
                let forward = link.from == a && link.to == b;
                let back = o.both && link.from == b && link.to == a;
                if forward || back {
                    link.bandwidth = o.gbps.unwrap_or(link.bandwidth);
                    link.latency = o.us.unwrap_or(link.latency);
                    link.source = Source::Measured;
                    found = true;
                }
            }
            if !found {
                return Err(Error::invalid(format!(
                    "measured link {} – {}: the two are not neighbours; a path is measured link by link",
                    o.from, o.to
                )));
            }
        }
        Ok(())
    }
}
