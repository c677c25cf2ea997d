//! Nodes and directed links, derived from a [`System`].

mod build;
mod nvlinks;
mod switches;

use serde::Serialize;

use crate::model::{BusId, System};
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
        /// Other GPUs reach its memory over PCIe.
        peer_access: bool,
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
    /// The lower switch that the system has it behind, where that is one chip with the upper one and no node.
    #[serde(skip)]
    pub lower_switch: Option<BusId>,
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
    /// The tables of [`constants`](crate::model::constants).
    Table,
    /// The device reports a speed that cannot be (see [`Device::link_is_doubtful`](crate::model::Device::link_is_doubtful)); the table was applied to it.
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
    /// How many links it is a bundle of (NVLink, chip link); 1 for others, 0 where that is not known.
    pub count: u32,
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
        let graph = build::build(system)?;
        if graph.nodes.len() > MAX_NODES {
            return Err(Error::invalid(format!(
                "{} devices and ports in one host; paths are found for at most {MAX_NODES}",
                graph.nodes.len()
            )));
        }
        Ok(graph)
    }

    /// Finds a node by name (`GPU0`, `NUMA1`, `mlx5_0`), case aside, or by bus id. Devices of one name carry what
    /// tells them apart behind an `@` (`eth0@NUMA1`).
    ///
    /// # Errors
    /// [`Error::Unknown`] with the names there are; [`Error::Ambiguous`] with the candidates.
    pub fn node(&self, name: &str) -> Result<NodeId> {
        let by = |fits: &dyn Fn(&Node) -> bool| -> Vec<NodeId> {
            (0..self.nodes.len()).filter(|&n| fits(&self.nodes[n])).collect()
        };
        let bus = BusId::parse(name).ok();
        let mut found = by(&|n| n.name == name);
        if found.is_empty() {
            found = by(&|n| n.name.eq_ignore_ascii_case(name));
        }
        if found.is_empty() && bus.is_some() {
            // The device itself comes before the ports on it.
            found = by(&|n| n.bus == bus);
            found.truncate(1);
        }
        if found.is_empty() {
            found = by(&|n| n.name.rsplit_once('@').is_some_and(|(base, _)| base.eq_ignore_ascii_case(name)));
        }
        match found[..] {
            [] => Err(Error::unknown("device", name, self.nodes.iter().map(|n| n.name.as_str()))),
            [one] => Ok(one),
            _ => Err(Error::Ambiguous {
                name: name.to_owned(),
                candidates: found.iter().map(|&n| self.nodes[n].name.as_str()).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// The number by which channels name a GPU: the driver's index, or where hosts are fused and share those, the rank.
    pub fn gpu_number(&self, gpu: NodeId) -> Option<i32> {
        let facts = |n: NodeId| match self.nodes[n].kind {
            NodeKind::Gpu { dev, rank, .. } => Some((dev, rank)),
            _ => None,
        };
        let (dev, rank) = facts(gpu)?;
        let shared = self.gpus.iter().filter_map(|&g| facts(g)).filter(|f| f.0 == dev).count() > 1;
        Some(if shared { rank } else { dev })
    }

    /// The GPU that a channel names by a number.
    pub fn numbered_gpu(&self, number: i32) -> Option<NodeId> {
        self.gpus.iter().copied().find(|&g| self.gpu_number(g) == Some(number))
    }

    /// The number by which channels name a port: the network device's index, or where hosts are fused and share
    /// those, its position among the ports.
    pub fn port_number(&self, port: NodeId) -> Option<i32> {
        let dev = |n: NodeId| match self.nodes[n].kind {
            NodeKind::Net { dev, .. } => Some(dev),
            _ => None,
        };
        let mine = dev(port)?;
        let shared = self.nets.iter().filter(|&&n| dev(n) == Some(mine)).count() > 1;
        let position = || self.nets.iter().position(|&n| n == port).map(|p| p as i32);
        if shared { position() } else { Some(mine) }
    }

    /// The port that a channel names by a number.
    pub fn numbered_port(&self, number: i32) -> Option<NodeId> {
        self.nets.iter().copied().find(|&n| self.port_number(n) == Some(number))
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
