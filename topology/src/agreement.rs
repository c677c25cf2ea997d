//! Ranks that derive different rings from different views of one machine hang each other. So each rank writes what it
//! derived as lines, hashes them, and those who differ from the majority are named with the first line that differs.

use crate::graph::{Graph, LinkKind, NodeKind};
use crate::search::{ChannelGraph, Found};

/// What one rank derived, in a canonical form: the same structure gives the same lines on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Derived {
    lines: Vec<String>,
}

/// The hash of a [`Derived`]: BLAKE3 over its lines.
pub type Hash = [u8; 32];

impl Derived {
    /// From a graph and what was found in it. Bandwidths count to a thousandth of a GB/s; names and findings do not.
    pub fn new(graph: &Graph, found: &Found) -> Self {
        let mut lines = Vec::new();
        for (i, node) in graph.nodes.iter().enumerate() {
            let bus = node.bus.as_ref().map_or(0, |b| b.value());
            let what = match &node.kind {
                NodeKind::Numa { arch, vendor } => format!("NUMA node, {arch} {vendor}"),
                NodeKind::Pci => "PCIe bridge".to_owned(),
                NodeKind::Gpu { dev, rank, sm, gdr, .. } => {
                    format!("GPU {dev}, rank {rank}, sm {sm}, gdr {gdr}")
                }
                NodeKind::NvSwitch => "NVSwitch".to_owned(),
                NodeKind::Nic => "NIC".to_owned(),
                NodeKind::Net { dev, asic, port, gdr, speed, .. } => {
                    format!("port {dev}, adapter {asic:x}:{port}, gdr {gdr}, {} GB/s", milli(*speed))
                }
            };
            lines.push(format!("node {i}: {what}, bus {bus:x}"));
        }
        for (node, out) in graph.out.iter().enumerate() {
            for &l in out {
                let link = &graph.links[l];
                let kind = match link.kind {
                    LinkKind::Nvl => "NVL",
                    LinkKind::C2c => "C2C",
                    LinkKind::Pci => "PCI",
                    LinkKind::Sys => "SYS",
                    LinkKind::Net => "NET",
                };
                lines.push(format!(
                    "link {} → {}: {kind} {} GB/s",
                    graph.nodes[node].name,
                    graph.nodes[link.to].name,
                    milli(link.bandwidth)
                ));
            }
        }
        channel_lines("ring", &found.ring, &mut lines);
        channel_lines("tree", &found.tree, &mut lines);
        Derived { lines }
    }

    /// The hash that ranks exchange.
    pub fn hash(&self) -> Hash {
        let mut hasher = blake3::Hasher::new();
        for line in &self.lines {
            hasher.update(line.as_bytes());
            hasher.update(b"\n");
        }
        *hasher.finalize().as_bytes()
    }

    /// The lines, for sending to a rank that wants to know where it differs.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// From lines that another rank sent.
    pub fn from_lines(lines: Vec<String>) -> Self {
        Derived { lines }
    }

    /// The first difference, as a sentence with both values; none if they agree.
    pub fn first_difference(&self, other: &Derived) -> Option<String> {
        let longest = self.lines.len().max(other.lines.len());
        let line =
            |d: &'_ Derived, i: usize| d.lines.get(i).map_or("nothing".to_owned(), |l| format!("`{l}`"));
        (0..longest)
            .find(|&i| self.lines.get(i) != other.lines.get(i))
            .map(|i| format!("one has {}, the other {}", line(self, i), line(other, i)))
    }
}

/// The ranks that differ from what most have; on a tie, rank 0's hash is the one to go by.
pub fn dissenters(hashes: &[Hash]) -> Vec<usize> {
    let votes = |h: &Hash| hashes.iter().filter(|o| *o == h).count();
    let Some(most) = hashes.iter().map(votes).max() else { return Vec::new() };
    let Some(agreed) = hashes.iter().find(|h| votes(h) == most) else { return Vec::new() };
    (0..hashes.len()).filter(|&r| hashes[r] != *agreed).collect()
}

/// Every rank that differs from the majority, each with a sentence that names the first difference.
pub fn disagreements(ranks: &[Derived]) -> Vec<(usize, String)> {
    let hashes: Vec<Hash> = ranks.iter().map(Derived::hash).collect();
    let apart = dissenters(&hashes);
    let Some(agreed) = (0..ranks.len()).find(|r| !apart.contains(r)) else { return Vec::new() };
    let sentence = |r: usize| {
        let difference = ranks[agreed].first_difference(&ranks[r]).unwrap_or_default();
        format!("rank {r} derived another topology than rank {agreed} and most others: {difference}")
    };
    apart.into_iter().map(|r| (r, sentence(r))).collect()
}

fn channel_lines(what: &str, g: &ChannelGraph, lines: &mut Vec<String>) {
    lines.push(format!(
        "{what}: {} channels of {}/{} GB/s, {}/{}, pattern {}",
        g.channels.len(),
        milli(g.speed_intra),
        milli(g.speed_inter),
        g.type_intra,
        g.type_inter,
        g.pattern.number()
    ));
    for (i, c) in g.channels.iter().enumerate() {
        lines.push(format!("{what} channel {i}: GPUs {:?}, nets {:?}", c.gpus, c.nets));
    }
}

fn milli(gbps: f64) -> String {
    format!("{:.3}", gbps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Settings, search};

    fn derive(system: &crate::System) -> Derived {
        let graph = Graph::new(system).unwrap();
        let found = search(&graph, &Settings::default());
        Derived::new(&graph, &found)
    }

    #[test]
    fn one_changed_link_is_found_and_its_rank_named() {
        let system = crate::library::machine("dgx-a100").unwrap();
        let mut other = system.clone();
        let gpu = other.devices.iter_mut().find_map(|d| d.gpu.as_mut()).unwrap();
        gpu.nvlinks[0].count -= 1;
        let (a, b) = (derive(&system), derive(&other));
        assert_eq!(a.hash(), derive(&system).hash());
        assert_ne!(a.hash(), b.hash());
        let text = a.first_difference(&b).unwrap();
        assert!(
            text.contains("GPU0 → NVSW") && text.contains("240.000") && text.contains("220.000"),
            "{text}"
        );
        assert_eq!(a.first_difference(&a), None);
        assert_eq!(dissenters(&[a.hash(), a.hash(), b.hash()]), [2]);
        assert_eq!(dissenters(&[a.hash(), b.hash()]), [1]);
        assert!(dissenters(&[]).is_empty());
        let named = disagreements(&[a.clone(), b, a]);
        assert_eq!(named.len(), 1);
        assert!(named[0].0 == 1 && named[0].1.starts_with("rank 1 derived"), "{named:?}");
    }
}
