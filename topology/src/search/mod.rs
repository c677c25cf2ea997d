//! Rings and trees over one host's graph: how many channels of what speed fit, and through which GPUs each goes.
//!
//! A channel is one ring (or chain) that moves data at `speed` GB/s on every link it uses. The search packs as many
//! as it can without using any link beyond its bandwidth. It is NCCL's search, because people compare: the same
//! candidate speeds, the same order in which GPUs are tried, the same relaxations in the same order, the same limits
//! counted in steps. So it is deterministic, and its effort does not depend on the clock.
//!
//! Sources: NCCL 2.27–2.30 `graph/search.cc` for the rules; reference/collectives-and-topology.md §2.5.

mod dfs;
mod nets;
mod relax;
mod speeds;

use serde::{Deserialize, Serialize};

use crate::graph::{Graph, NodeId, NodeKind};
use crate::path::{PathClass, Paths};

/// The shape of a channel. The numbers are those of NCCL's graph files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Chain; the NIC's traffic is split between the first two GPUs.
    BalancedTree,
    /// Chain; receives on the first GPU, sends from the second.
    SplitTree,
    /// Chain; the first GPU does all the NIC's traffic.
    Tree,
    /// Closed ring.
    Ring,
    /// NVLink SHARP.
    Nvls,
    /// CollNet direct.
    CollnetDirect,
}

impl Pattern {
    /// NCCL's number.
    pub fn number(self) -> u32 {
        match self {
            Pattern::BalancedTree => 1,
            Pattern::SplitTree => 2,
            Pattern::Tree => 3,
            Pattern::Ring => 4,
            Pattern::Nvls => 5,
            Pattern::CollnetDirect => 6,
        }
    }

    /// From NCCL's number.
    pub fn from_number(n: u32) -> Option<Pattern> {
        use Pattern::*;
        [BalancedTree, SplitTree, Tree, Ring, Nvls, CollnetDirect].into_iter().find(|p| p.number() == n)
    }

    fn is_tree(self) -> bool {
        matches!(self, Pattern::BalancedTree | Pattern::SplitTree | Pattern::Tree)
    }
}

/// One channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// Devices (`gpu dev`) in the order of the channel.
    pub gpus: Vec<i32>,
    /// Network devices at its two ends, where the search was for several hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nets: Option<[i32; 2]>,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelGraph {
    /// Shape.
    pub pattern: Pattern,
    /// GB/s of one channel between GPUs.
    pub speed_intra: f64,
    /// GB/s of one channel to the network (between GPUs too, when there is one host).
    pub speed_inter: f64,
    /// Worst class of path between GPUs that was needed.
    pub type_intra: PathClass,
    /// Worst class of path to a NIC.
    pub type_inter: PathClass,
    /// 0: both ends of a channel on one NIC; 1: not needed; 2: pairs of channels swap NICs.
    pub cross_nic: u32,
    /// All channels go through the GPUs in one order.
    pub same_channels: bool,
    /// µs of the network port.
    pub latency_inter: f64,
    /// The channels.
    pub channels: Vec<Channel>,
    /// Hops of all channels together.
    #[serde(default)]
    pub hops: i64,
    /// Steps that the search took.
    #[serde(default)]
    pub steps: u64,
}

impl ChannelGraph {
    /// GB/s of all channels together.
    pub fn bandwidth(&self) -> f64 {
        self.channels.len() as f64 * self.speed_intra
    }

    /// Nothing fitted; the one channel is in rank order and at 0.1 GB/s.
    pub fn is_fallback(&self) -> bool {
        self.speed_intra <= 0.1
    }
}

/// What to search for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// More than one host takes part, so every channel starts and ends at a NIC.
    pub several_hosts: bool,
    /// Whether a channel may leave by another NIC than it came in by: 0 no, 1 yes, 2 if that is at least
    /// 15 % faster (`NCCL_CROSS_NIC`).
    pub cross_nic: u32,
    /// At least this many channels.
    pub min_channels: usize,
    /// At most this many.
    pub max_channels: usize,
}

impl Default for Settings {
    /// One host, 1 to 32 channels (NCCL: half of MAXCHANNELS = 64), `cross_nic` 2.
    fn default() -> Self {
        Settings { several_hosts: false, cross_nic: 2, min_channels: 1, max_channels: 32 }
    }
}

/// The rings and trees of one host, found together: trees use as many channels as rings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Rings.
    pub ring: ChannelGraph,
    /// Trees.
    pub tree: ChannelGraph,
}

/// Searches for rings, then for trees with the same number of channels.
pub fn search(graph: &Graph, settings: &Settings) -> Found {
    let view = View::new(graph, settings);
    let ring = in_view(&view, Pattern::Ring, settings);
    let n = ring.channels.len().max(1);
    let tree = Settings { min_channels: n, max_channels: n, ..*settings };
    let tree = in_view(&view, Pattern::BalancedTree, &tree);
    Found { ring, tree }
}

/// Searches for one pattern; [`Pattern::Nvls`] and [`Pattern::CollnetDirect`] are found as none.
pub fn search_pattern(graph: &Graph, pattern: Pattern, settings: &Settings) -> ChannelGraph {
    in_view(&View::new(graph, settings), pattern, settings)
}

fn in_view(view: &View<'_>, pattern: Pattern, settings: &Settings) -> ChannelGraph {
    if view.gpus.is_empty() || matches!(pattern, Pattern::Nvls | Pattern::CollnetDirect) {
        return ChannelGraph {
            pattern,
            speed_intra: 0.0,
            speed_inter: 0.0,
            type_intra: PathClass::Loc,
            type_inter: PathClass::Loc,
            cross_nic: 0,
            same_channels: false,
            latency_inter: 0.0,
            channels: Vec::new(),
            hops: 0,
            steps: 0,
        };
    }
    relax::Relaxation::new(view, pattern, settings).run(settings)
}

/// What the search reads: the graph, its paths, and a few sums over both.
struct View<'g> {
    graph: &'g Graph,
    paths: Paths,
    gpus: Vec<NodeId>,
    /// Empty when there is one host.
    nets: Vec<NodeId>,
    sm: i32,
    /// GB/s of the best path (to a NIC with several hosts, else between GPUs).
    max_bandwidth: f64,
    /// GB/s that the best-connected GPU can move.
    total_bandwidth: f64,
    intel: bool,
    amd: bool,
    power: bool,
    /// For each GPU the others, best first, by the paths between them alone.
    ranked: Vec<Vec<usize>>,
    /// For each node its number among GPUs and nets.
    end: Vec<usize>,
}

impl<'g> View<'g> {
    fn new(graph: &'g Graph, settings: &Settings) -> Self {
        let gpus = graph.gpus.clone();
        let nets = if settings.several_hosts { graph.nets.clone() } else { Vec::new() };
        let cpu = |want: &str| {
            matches!(&graph.numas.first().map(|&n| &graph.nodes[n].kind),
                Some(NodeKind::Numa { arch, vendor }) if arch == want || (arch == "x86_64" && vendor == want))
        };
        let mut view = View {
            graph,
            paths: Paths::new(graph),
            sm: graph.lowest_sm(),
            max_bandwidth: 0.0,
            total_bandwidth: 0.0,
            intel: cpu("GenuineIntel"),
            amd: cpu("AuthenticAMD"),
            power: cpu("ppc64"),
            ranked: Vec::new(),
            end: vec![0; graph.nodes.len()],
            gpus,
            nets,
        };
        if !view.nets.is_empty() {
            nets::reroute(&mut view);
        }
        for (i, &n) in view.gpus.iter().chain(&view.nets).enumerate() {
            view.end[n] = i;
        }
        view.sums();
        view.ranked = (0..view.gpus.len()).map(|g| view.rank_peers(g)).collect();
        view
    }

    /// Whole GB/s falling, then hops, then distance by index (NCCL 2.30 `ncclTopoSearchNextGpuSort`).
    fn rank_peers(&self, g: usize) -> Vec<usize> {
        let n = self.gpus.len();
        let path = |p: usize| self.paths.between(self.gpus[g], self.gpus[p]);
        let mut peers: Vec<usize> =
            (1..n).map(|i| (g + i) % n).filter(|&p| !path(p).links.is_empty()).collect();
        peers.sort_by_key(|&p| (-(path(p).bandwidth as i64), path(p).links.len()));
        peers
    }

    fn sums(&mut self) {
        if self.nets.is_empty() && self.gpus.len() <= 1 {
            self.max_bandwidth = crate::model::constants::LOCAL_BANDWIDTH;
            self.total_bandwidth = self.max_bandwidth;
            return;
        }
        let ends = if self.nets.is_empty() { &self.gpus } else { &self.nets };
        for &g in &self.gpus {
            for &e in ends {
                let path = self.paths.between(g, e);
                if !path.links.is_empty() {
                    self.max_bandwidth = self.max_bandwidth.max(path.bandwidth);
                }
            }
            self.total_bandwidth = self.total_bandwidth.max(self.gpu_bandwidth(g));
        }
    }

    fn gpu_bandwidth(&self, gpu: NodeId) -> f64 {
        use crate::graph::LinkKind;
        let links = self.graph.out[gpu].iter().map(|&l| &self.graph.links[l]);
        let sum = |kind| links.clone().filter(|l| l.kind == kind).map(|l| l.bandwidth).sum::<f64>();
        sum(LinkKind::Nvl).max(sum(LinkKind::Pci))
    }

    fn dev(&self, gpu: usize) -> i32 {
        match self.graph.nodes[self.gpus[gpu]].kind {
            NodeKind::Gpu { dev, .. } => dev,
            _ => gpu as i32,
        }
    }

    fn net(&self, net: usize) -> NetFacts {
        match self.graph.nodes[self.nets[net]].kind {
            NodeKind::Net { dev, asic, port, speed, gdr, latency } => {
                NetFacts { dev, asic, port, speed, gdr, latency }
            }
            _ => {
                NetFacts { dev: net as i32, asic: net as u64, port: 0, speed: 0.0, gdr: false, latency: 0.0 }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct NetFacts {
    dev: i32,
    asic: u64,
    port: i32,
    speed: f64,
    gdr: bool,
    latency: f64,
}

impl NetFacts {
    fn same_port(&self, other: &NetFacts) -> bool {
        self.asic == other.asic && self.port == other.port
    }
}
