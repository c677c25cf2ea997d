//! From a [`System`] to its graph, step by step: NUMA nodes, devices and their ports, links between chips, sockets.

use std::collections::HashMap;

use super::{Graph, Link, LinkKind, Node, NodeId, NodeKind, Source};
use crate::model::constants::{self, latency};
use crate::model::{BusId, ClassKind, Device, Parent, Port, System, class_kind};
use crate::{Error, Result};

/// Derives the graph of a valid system.
pub(super) fn build(system: &System) -> Result<Graph> {
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
        hosts: system.hosts(),
    };
    b.numas();
    b.devices();
    b.nvlinks();
    b.flatten_two_level_switches();
    b.sockets();
    b.uplinks_last();
    b.tell_apart();
    b.overrides()?;
    Ok(b.g)
}

pub(super) struct Builder<'a> {
    pub g: Graph,
    pub system: &'a System,
    pub of_device: Vec<Option<NodeId>>,
    /// By host and adapter.
    adapters: HashMap<(usize, u64), NodeId>,
    /// For each NUMA node its host.
    pub hosts: Vec<usize>,
}

/// How wide a link is: GB/s, and how many links make it up.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub bandwidth: f64,
    pub count: u32,
}

impl Size {
    pub fn one(bandwidth: f64) -> Size {
        Size { bandwidth, count: 1 }
    }
}

impl Builder<'_> {
    pub(super) fn node(
        &mut self,
        kind: NodeKind,
        name: String,
        bus: Option<BusId>,
        numa: Option<NodeId>,
    ) -> NodeId {
        let name = match crate::printable(&name) {
            std::borrow::Cow::Owned(shown) => shown,
            std::borrow::Cow::Borrowed(_) => name,
        };
        // Every node of a fused file says which host it is of.
        let fused = numa.filter(|_| self.hosts.iter().any(|&h| h > 0));
        let name = fused.map_or(name.clone(), |numa| format!("{name}@host{}", self.hosts[numa]));
        self.g.nodes.push(Node {
            kind,
            name,
            bus,
            numa,
            device: None,
            host_bridge: None,
            lower_switch: None,
        });
        self.g.out.push(Vec::new());
        self.g.nodes.len() - 1
    }

    /// Adds bandwidth to the link of that kind, or makes it. Links that leave a node stay sorted by falling
    /// bandwidth, later ones after earlier equals: the search depends on the order.
    pub(super) fn connect(
        &mut self,
        from: NodeId,
        to: NodeId,
        kind: LinkKind,
        size: Size,
        us: f64,
        source: Source,
    ) {
        let Size { bandwidth, count } = size;
        let id = match self.g.link_between(from, to, Some(kind)) {
            Some(id) => {
                let link = &mut self.g.links[id];
                link.bandwidth += bandwidth;
                // A part of unknown number makes the whole unknown.
                let known = link.count > 0 && count > 0;
                link.count = if known { link.count.saturating_add(count) } else { 0 };
                self.g.out[from].retain(|&l| l != id);
                id
            }
            None => {
                self.g.links.push(Link { from, to, kind, bandwidth, latency: us, source, count });
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

    pub(super) fn both(&mut self, a: NodeId, b: NodeId, kind: LinkKind, size: Size, us: f64, source: Source) {
        self.connect(a, b, kind, size, us, source);
        self.connect(b, a, kind, size, us, source);
    }

    fn numas(&mut self) {
        for numa in &self.system.numas {
            let kind = NodeKind::Numa { arch: numa.arch.clone(), vendor: numa.vendor.clone() };
            let at = self.g.nodes.len();
            let id = self.node(kind, format!("NUMA{}", numa.id.max(0)), None, Some(at));
            if self.g.nodes[..id].iter().any(|n| n.name == self.g.nodes[id].name) {
                self.g.nodes[id].name = format!("NUMA{}.{id}", numa.id.max(0));
            }
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
                let sm = if gpu.gcn.is_some() { 0 } else { gpu.sm };
                let peer_access = gpu.peer_access.unwrap_or(true);
                let kind = NodeKind::Gpu { dev: gpu.dev, rank, sm, gdr, peer_access };
                let id = self.node(kind, format!("GPU{}", gpu.dev), Some(d.bus.clone()), Some(numa));
                self.g.gpus.push(id);
                id
            }
            (None, ClassKind::Nic) => {
                // The functions of one adapter are one node.
                if let Some(&id) = self.adapters.get(&(self.hosts[numa], d.bus.adapter())) {
                    self.of_device[i] = Some(id);
                    self.ports(id, numa, d.nics.iter().flat_map(|n| &n.ports));
                    return;
                }
                let id = self.node(NodeKind::Nic, d.bus.to_string(), Some(d.bus.clone()), Some(numa));
                self.adapters.insert((self.hosts[numa], d.bus.adapter()), id);
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
        self.both(id, up, LinkKind::Pci, Size::one(d.link_bandwidth()), latency::PCI, source);
    }

    fn nic(&mut self, bus: Option<BusId>, numa: usize, ports: &[Port]) {
        let name = format!("{}.nic", self.g.nodes[numa].name);
        let id = self.node(NodeKind::Nic, name, bus, Some(numa));
        self.both(
            id,
            numa,
            LinkKind::Pci,
            Size::one(constants::LOCAL_BANDWIDTH),
            latency::PCI,
            Source::Table,
        );
        self.ports(id, numa, ports.iter());
    }

    fn ports<'p>(&mut self, nic: NodeId, numa: usize, ports: impl Iterator<Item = &'p Port>) {
        for port in ports {
            let unused = port.extra.iter().any(|(k, v)| k == "net" && v == "0");
            let Some(dev) = port.dev.filter(|_| !unused) else { continue };
            let speed = port.speed_mbps.filter(|&s| s > 0.0).unwrap_or(constants::DEFAULT_NET_MBPS) / 8000.0;
            let asic = port.guid.filter(|&g| g != 0).unwrap_or(dev as u64);
            let same = |n: &NodeId| {
                let node = &self.g.nodes[*n];
                let host = node.numa.map(|numa| self.hosts[numa]);
                matches!(node.kind, NodeKind::Net { dev: d, .. } if d == dev)
                    && host == Some(self.hosts[numa])
            };
            let known = self.g.nets.iter().any(same);
            let stated = port.latency.unwrap_or(0.0);
            let (number, gdr) = (port.port.unwrap_or(0), port.gdr.unwrap_or(false));
            let kind = NodeKind::Net { dev, asic, port: number, gdr, speed, latency: stated };
            let name = if port.name.is_empty() { format!("NET{dev}") } else { port.name.clone() };
            let bus = self.g.nodes[nic].bus.clone();
            let id = self.node(kind, name, bus, Some(numa));
            if !known {
                // Files name a virtual port once per NUMA node; a job uses it once.
                self.g.nets.push(id);
            }
            let us = latency::NET + stated;
            self.both(nic, id, LinkKind::Net, Size::one(speed), us, Source::Table);
        }
    }

    fn sockets(&mut self) {
        for a in 0..self.g.numas.len() {
            for b in 0..self.g.numas.len() {
                if a != b && self.hosts[a] == self.hosts[b] {
                    let numa = &self.system.numas[a];
                    let (family, model) = (numa.family.unwrap_or(0), numa.model.unwrap_or(0));
                    let bw =
                        constants::inter_socket_bandwidth(&numa.arch, &numa.vendor, family, model, false);
                    let (a, b) = (self.g.numas[a], self.g.numas[b]);
                    self.connect(a, b, LinkKind::Sys, Size::one(bw), latency::SYS, Source::Table);
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

    /// Nodes of one name get what tells them apart behind it: the NUMA node, else the bus id, else a number.
    fn tell_apart(&mut self) {
        let mut same: HashMap<String, Vec<NodeId>> = HashMap::new();
        for (id, node) in self.g.nodes.iter().enumerate() {
            same.entry(node.name.to_lowercase()).or_default().push(id);
        }
        for ids in same.into_values().filter(|ids| ids.len() > 1) {
            let numas = ids.iter().map(|&n| Some(self.g.nodes[self.g.nodes[n].numa?].name.clone()));
            let buses = ids.iter().map(|&n| self.g.nodes[n].bus.as_ref().map(|b| b.to_string()));
            let candidates: [Option<Vec<String>>; 2] = [numas.collect(), buses.collect()];
            let different = candidates.into_iter().flatten().find(|all| {
                let set: std::collections::HashSet<&String> = all.iter().collect();
                set.len() == ids.len()
            });
            let marks = different.unwrap_or_else(|| (1..=ids.len()).map(|i| i.to_string()).collect());
            for (id, mark) in ids.into_iter().zip(marks) {
                let name = &mut self.g.nodes[id].name;
                *name = format!("{name}@{mark}");
            }
        }
    }

    fn overrides(&mut self) -> Result<()> {
        for o in &self.system.overrides {
            let here = |e: Error| Error::invalid(format!("measured link {} – {}: {e}", o.from, o.to));
            let (a, b) = (self.g.node(&o.from).map_err(here)?, self.g.node(&o.to).map_err(here)?);
            let limits = [("gbps", o.gbps, constants::MAX_GBPS), ("us", o.us, constants::MAX_US)];
            for (what, value, most) in limits {
                if let Some(value) = value.filter(|v| !(*v > 0.0 && *v <= most)) {
                    return Err(Error::invalid(format!(
                        "measured link {} – {}: {what} is {value:?}; it is above 0 and at most {most}",
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
