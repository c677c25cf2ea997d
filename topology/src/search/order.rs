//! Which GPU to try first after which, and through which GPU to enter from a port.
//!
//! The rule is NCCL's, because the order decides which of many equal rings is found: most bandwidth to the port the
//! channel came in by, most left on the GPU's own PCIe link, fewest hops to the port, then most bandwidth and fewest
//! hops from the GPU before, then distance by index. Bandwidths count in whole GB/s. Only what is left on the PCIe
//! links changes while channels are laid; the rest is ranked once, so that a step compares one number per GPU.

use std::cmp::Reverse;

use super::Pattern;
use super::host::Host;
use super::itinerary::Aim;
use super::ledger::Ledger;
use crate::graph::{LinkId, LinkKind, MAX_NODES};

/// Bits that the number of a GPU, or a rank among GPUs, takes.
const GPU_BITS: u32 = 11;
const _: () = assert!(MAX_NODES <= 1 << GPU_BITS);

/// How a peer looks from a GPU.
#[derive(Clone, Copy)]
struct Peer {
    /// Position by bandwidth, hops and distance.
    rank: u16,
    /// Peers with equal bandwidth and hops have the same.
    likeness: u16,
}

/// How a GPU looks from a port.
#[derive(Clone, Copy, Default)]
struct Door {
    /// 0 for the most bandwidth.
    rank: u16,
    hops: u16,
    /// Most bandwidth, and of those the fewest hops: a channel may begin here.
    best: bool,
}

/// Where a channel stands.
#[derive(Clone, Copy)]
pub(super) struct Here {
    pub gpu: usize,
    pub aim: Aim,
    /// The port that the channel came in by, where there is one.
    pub port: usize,
    pub pattern: Pattern,
}

/// The rankings of one host.
pub(super) struct Orders {
    gpus: usize,
    /// For each GPU the peers it has a path to, best first.
    near: Vec<Vec<u16>>,
    /// By GPU and peer.
    peers: Vec<Peer>,
    /// By port and GPU.
    doors: Vec<Door>,
    /// Whole GB/s of a port's best path to a GPU.
    widest: Vec<f64>,
    /// For each GPU its PCIe link upward, and the way back.
    pci: Vec<Option<(LinkId, LinkId)>>,
    switched: bool,
    /// Keys of the GPUs being sorted; the lowest bits are the GPU.
    keys: Vec<u64>,
}

impl Orders {
    pub fn new(host: &Host<'_>) -> Orders {
        let n = host.gpus.len();
        let mut orders = Orders {
            gpus: n,
            near: Vec::with_capacity(n),
            peers: vec![Peer { rank: 0, likeness: 0 }; n * n],
            doors: vec![Door::default(); host.nets.len() * n],
            widest: vec![0.0; host.nets.len()],
            pci: host.gpus.iter().map(|&g| pci_link(host, g)).collect(),
            switched: host.graph.nvswitch.is_some(),
            keys: Vec::with_capacity(n),
        };
        for g in 0..n {
            orders.rank_peers(host, g);
        }
        for port in 0..host.nets.len() {
            orders.rank_doors(host, port);
        }
        orders
    }

    fn rank_peers(&mut self, host: &Host<'_>, g: usize) {
        let n = self.gpus;
        let path = |p: usize| host.paths.between(host.gpus[g], host.gpus[p]);
        let quality = |p: usize| (Reverse(path(p).bandwidth as i64), path(p).links.len());
        let mut near: Vec<usize> =
            (1..n).map(|i| (g + i) % n).filter(|&p| !path(p).links.is_empty()).collect();
        near.sort_by_key(|&p| quality(p));
        let mut likeness = 0;
        for (rank, &p) in near.iter().enumerate() {
            if rank > 0 && quality(near[rank - 1]) != quality(p) {
                likeness += 1;
            }
            self.peers[g * n + p] = Peer { rank: rank as u16, likeness };
        }
        self.near.push(near.into_iter().map(|p| p as u16).collect());
    }

    fn rank_doors(&mut self, host: &Host<'_>, port: usize) {
        let paths: Vec<(i64, usize)> = host
            .gpus
            .iter()
            .map(|&g| {
                let path = host.paths.between(host.nets[port], g);
                (path.bandwidth as i64, path.links.len())
            })
            .collect();
        let mut speeds: Vec<i64> = paths.iter().map(|p| p.0).collect();
        speeds.sort_by_key(|&s| Reverse(s));
        speeds.dedup();
        let widest = speeds.first().copied().unwrap_or(0).max(0);
        let hops = |p: &&(i64, usize)| p.0 == widest && p.1 > 0;
        let nearest = paths.iter().filter(hops).map(|p| p.1).min().unwrap_or(0);
        self.widest[port] = widest as f64;
        for (g, &(speed, hops)) in paths.iter().enumerate() {
            self.doors[port * self.gpus + g] = Door {
                rank: speeds.iter().position(|&s| s == speed).unwrap_or(0) as u16,
                hops: hops as u16,
                best: speed == widest && hops == nearest,
            };
        }
    }

    /// The GPUs through which a channel may begin from a port at a speed (GB/s), the `turn`th first.
    pub fn doors(&self, port: usize, speed: f64, turn: usize) -> impl Iterator<Item = u16> {
        let n = if self.widest[port] < speed { 0 } else { self.gpus };
        let best = move |g: usize| self.doors[port * self.gpus + g].best;
        (0..n).map(move |i| (turn + i) % n).filter(move |&g| best(g)).map(|g| g as u16)
    }

    /// Adds to `next` the GPUs that may follow where the channel stands, best first. `passed` says which are in the
    /// channel already.
    pub fn after(&mut self, here: Here, passed: &[bool], ledger: &Ledger, mut next: impl FnMut(u16)) {
        let Here { gpu: g, aim, port, pattern } = here;
        if self.switched {
            self.neighbours(g, pattern).filter(|&p| !passed[p]).for_each(|p| next(p as u16));
            return;
        }
        let free = self.near[g].iter().copied().filter(|&p| !passed[usize::from(p)]);
        if aim == Aim::Near {
            free.for_each(next);
            return;
        }
        self.keys.clear();
        let mut likeness = None;
        let mut alike = true;
        for p in free {
            let peer = self.peers[g * self.gpus + usize::from(p)];
            let door = self.doors[port * self.gpus + usize::from(p)];
            alike &= *likeness.get_or_insert(peer.likeness) == peer.likeness;
            let pci = 0xffff - (ledger.pci_left(self.pci[usize::from(p)]).clamp(-1, 0xfffe) + 1) as u64;
            let fields = [(GPU_BITS, u64::from(door.rank)), (16, pci), (8, u64::from(door.hops.min(0xff)))];
            let fields =
                fields.into_iter().chain([(GPU_BITS, u64::from(peer.rank)), (GPU_BITS, u64::from(p))]);
            self.keys.push(fields.fold(0, |key, (bits, field): (u32, u64)| key << bits | field));
        }
        self.keys.sort_unstable();
        let keys = self.keys.iter().map(|k| (k & ((1 << GPU_BITS) - 1)) as u16);
        match aim == Aim::PortLater && alike {
            true => keys.rev().for_each(next),
            false => keys.for_each(next),
        }
    }

    /// With NVSwitches it pays to talk to few peers: only the neighbours by index are tried.
    fn neighbours(&self, g: usize, pattern: Pattern) -> impl Iterator<Item = usize> {
        let n = self.gpus;
        let (before, after) = ((g + n - 1) % n, (g + 1) % n);
        let wanted = match pattern {
            Pattern::Ring if before != after => [Some(before), Some(after)],
            Pattern::SplitTree | Pattern::BalancedTree if before != after => [Some(after), Some(before)],
            _ => [Some(after), None],
        };
        let linked = move |p: &usize| self.near[g].contains(&(*p as u16));
        wanted.into_iter().flatten().filter(linked)
    }
}

fn pci_link(host: &Host<'_>, gpu: usize) -> Option<(LinkId, LinkId)> {
    let graph = host.graph;
    let ups = graph.out[gpu].iter().filter(|&&l| graph.links[l].kind == LinkKind::Pci);
    ups.map(|&up| (up, graph.link_between(graph.links[up].to, gpu, Some(LinkKind::Pci))))
        .find_map(|(up, down)| down.map(|down| (up, down)))
}
