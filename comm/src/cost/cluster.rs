//! Machines from a topology: what [`nd_topology`] knows of a cluster's links, and constants for what it does not.

use std::borrow::Cow;
use std::sync::Arc;

use nd_topology::cluster::Slot;
use nd_topology::graph::NodeKind;
use nd_topology::{Cluster, Routes};

use super::fabric::{Fabric, Resource, Route, Use, Work};
use crate::schedule::Layout;

/// Bytes per µs of one GB/s.
const GBPS: f64 = 1000.0;

/// µs for which a message occupies its way besides its bytes. Assumed, not measured: ten million messages a second on
/// one queue of an adapter.
const MESSAGE_US: f64 = 0.1;

/// Bytes under way between two ranks and not yet consumed: as many as there are, since memory of devices is registered
/// and messages are written to where they belong.
const WINDOW: u64 = u64::MAX;

/// Bytes after which a receiver can start on a message: a step of NCCL's buffer of a channel (an eighth of
/// `NCCL_BUFFSIZE`, 4 MiB).
const CHUNK: u64 = 512 << 10;

/// Parts of its memory's bandwidth that a copy or reduction of `terms` operands gets for each byte of its result:
/// every operand is read, the result is written.
fn streams(terms: usize) -> f64 {
    (terms + 1) as f64
}

/// GB/s of a GPU's memory by compute capability (NVIDIA's datasheets: P100 732, V100 900, A100-80GB 2039, L40 864,
/// RTX 4090 1008, H100 SXM 3350, B200 8000); of AMD's MI300X 5300.
fn memory_gbps(sm: i32) -> f64 {
    match sm {
        100.. => 8000.0,
        90..=99 => 3350.0,
        86..=89 => 900.0,
        80..=85 => 2039.0,
        70..=79 => 900.0,
        60..=69 => 732.0,
        _ => 5300.0,
    }
}

/// GB/s at which one core streams memory: reads and writes together, of present server processors.
const CORE_GBPS: f64 = 24.0;

/// A cluster with one rank on each slot, host after host.
#[derive(Debug)]
pub struct ClusterFabric {
    routes: Routes<'static>,
    slots: Vec<Slot>,
    /// For each kind of host, bytes per µs of a slot's memory.
    memory: Vec<Vec<f64>>,
    /// Ranks per host, where all hosts are alike.
    per_host: Option<usize>,
}

impl ClusterFabric {
    /// One rank on each GPU, or on each NUMA node of hosts without.
    pub fn new(cluster: Cluster) -> ClusterFabric {
        let slots = cluster.slots();
        let speed = |node: &NodeKind| match node {
            NodeKind::Gpu { sm, .. } => memory_gbps(*sm),
            _ => CORE_GBPS,
        };
        let memory = |kind: &nd_topology::cluster::Kind| {
            kind.slots.iter().map(|&slot| speed(&kind.graph.nodes[slot].kind) * GBPS).collect()
        };
        let memory = cluster.kinds.iter().map(memory).collect();
        let per_host = (cluster.kinds.len() == 1).then(|| cluster.kinds[0].slots.len());
        ClusterFabric { routes: Routes::new(Cow::Owned(cluster)), slots, memory, per_host }
    }

    /// Which ranks share a host.
    pub fn layout(&self) -> Arc<Layout> {
        Arc::new(Layout::new(&self.slots.iter().map(|s| s.host).collect::<Vec<_>>()))
    }

    /// The cluster's links.
    pub fn routes(&self) -> &Routes<'static> {
        &self.routes
    }
}

impl Fabric for ClusterFabric {
    fn world_size(&self) -> usize {
        self.slots.len()
    }

    fn route(&self, from: usize, to: usize, _bytes: u64, uses: &mut Vec<Use>) -> Route {
        let mut narrowest = f64::INFINITY;
        let (_, latency_us) = self.routes.between(self.slots[from], self.slots[to], |l| {
            uses.push((l, 1.0));
            narrowest = narrowest.min(self.routes.gbps(l) * GBPS);
        });
        // Every route crosses a link; what has none is the same device.
        let rate =
            self.memory[self.routes.cluster().hosts[self.slots[from].host].kind][self.slots[from].local];
        Route {
            rate,
            overhead: MESSAGE_US * narrowest.min(rate),
            latency_us,
            send_us: 0.0,
            recv_us: 0.0,
            pull: false,
            window: WINDOW,
            chunk: CHUNK,
        }
    }

    fn work(&self, rank: usize, work: &Work<'_>, _uses: &mut Vec<Use>) -> f64 {
        // A message arrives where it belongs.
        if work.terms == 1 && work.messages.len() == 1 {
            return f64::INFINITY;
        }
        let slot = self.slots[rank];
        self.memory[self.routes.cluster().hosts[slot.host].kind][slot.local] / streams(work.terms)
    }

    fn capacity(&self, resource: Resource) -> f64 {
        self.routes.gbps(resource) * GBPS
    }

    fn name(&self, resource: Resource) -> String {
        self.routes.name(resource)
    }

    fn period(&self) -> usize {
        match self.per_host {
            Some(per_host) => self.routes.period() * per_host,
            None => self.slots.len(),
        }
    }

    fn folded(&self, resource: Resource) -> (Resource, usize) {
        self.routes.folded(resource)
    }
}
