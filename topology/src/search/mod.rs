//! Rings and trees over one host's graph: how many channels of what speed fit, and through which GPUs each goes.
//!
//! A channel is one ring (or chain) that moves data at `speed` GB/s on every link it uses. The search packs as many
//! as it can without using any link beyond its bandwidth. People compare the answer with NCCL's, so the rules that
//! decide between equal answers are NCCL's: its candidate speeds, its order of GPUs and ports, and its order of giving
//! wishes up. Effort is counted in steps and bounded, so the answer depends on no clock.
//!
//! | file | what it holds |
//! |---|---|
//! | `host` | what the search reads of a host |
//! | `nets` | which port a GPU uses, and its path there |
//! | `speeds` | the candidate speeds |
//! | `wishes` | what may be asked for, and the order of giving way |
//! | `passes` | the passes over the wishes, and their bounds |
//! | `packer` | one attempt: channels laid leg by leg |
//! | `ceiling` | bounds on what an attempt can find |
//! | `itinerary` | the legs of each shape |
//! | `order` | which GPU comes first |
//! | `ledger` | what is left of links and ports |
//!
//! Source of the rules: NCCL 2.27 to 2.30 as documented and as its graph files show.

mod ceiling;
mod host;
mod itinerary;
mod ledger;
mod nets;
mod order;
mod packer;
mod passes;
mod speeds;
mod wishes;

use serde::{Deserialize, Serialize};

use self::host::Host;
use crate::graph::Graph;
use crate::path::PathClass;

/// The most steps that [`search`] takes for rings and trees together: twice NCCL's 2^19 for one graph.
pub const MAX_STEPS: u64 = 1 << 20;

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
    fn none(pattern: Pattern) -> Self {
        ChannelGraph {
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
        }
    }

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

/// Searches for rings, then for trees with the same number of channels; in at most [`MAX_STEPS`] steps together.
pub fn search(graph: &Graph, settings: &Settings) -> Found {
    let host = Host::new(graph, settings);
    let ring = in_host(&host, Pattern::Ring, settings, MAX_STEPS / 2);
    let n = ring.channels.len().max(1);
    let tree = Settings { min_channels: n, max_channels: n, ..*settings };
    let tree = in_host(&host, Pattern::BalancedTree, &tree, MAX_STEPS - ring.steps);
    Found { ring, tree }
}

/// Searches for one pattern, in at most half of [`MAX_STEPS`]; [`Pattern::Nvls`] and [`Pattern::CollnetDirect`] are
/// found as none.
pub fn search_pattern(graph: &Graph, pattern: Pattern, settings: &Settings) -> ChannelGraph {
    in_host(&Host::new(graph, settings), pattern, settings, MAX_STEPS / 2)
}

fn in_host(host: &Host<'_>, pattern: Pattern, settings: &Settings, steps: u64) -> ChannelGraph {
    if host.gpus.is_empty() || matches!(pattern, Pattern::Nvls | Pattern::CollnetDirect) {
        return ChannelGraph::none(pattern);
    }
    passes::search(host, pattern, settings, steps)
}
