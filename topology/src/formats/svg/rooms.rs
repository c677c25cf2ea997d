//! NUMA nodes as rooms, and in each the tree of switches, GPUs and ports below it.

use std::fmt::Write;

use super::{BAR, Drawing, FAINT, NO_LINK, Spot, colour, fit, gbps, thickness};
use crate::formats::kind_name;
use crate::graph::{LinkKind, NodeId, NodeKind, Source};
use crate::model::Parent;
use crate::model::constants::LOCAL_BANDWIDTH;

const GPU_W: f64 = 114.0;
const GPU_H: f64 = 72.0;
const SMALL_W: f64 = 96.0;
pub(super) const SMALL_H: f64 = 34.0;
const GAP: f64 = 14.0;
pub(super) const LEVEL: f64 = 78.0;
pub(super) const PAD: f64 = 20.0;
const NVSWITCH: &str = "NVSwitch";

/// A part of the tree below a NUMA node, with the room it needs.
pub(super) enum Block {
    /// A switch with what is below it.
    Switch { node: NodeId, parts: Vec<Block>, width: f64, depth: usize },
    /// A GPU.
    Gpu(NodeId),
    /// Small things, one above the other.
    Stack(Vec<NodeId>),
}

impl Block {
    pub(super) fn width(&self) -> f64 {
        match self {
            Block::Switch { width, .. } => *width,
            Block::Gpu(_) => GPU_W,
            Block::Stack(_) => SMALL_W,
        }
    }

    pub(super) fn depth(&self) -> usize {
        match self {
            Block::Switch { depth, .. } => *depth,
            _ => 0,
        }
    }

    pub(super) fn tallest(&self) -> f64 {
        match self {
            Block::Switch { parts, .. } => parts.iter().map(Block::tallest).fold(0.0, f64::max),
            Block::Gpu(_) => GPU_H,
            Block::Stack(list) => list.len() as f64 * (SMALL_H + 6.0) - 6.0,
        }
    }
}

pub(super) fn sum_width(parts: &[Block]) -> f64 {
    parts.iter().map(Block::width).sum::<f64>() + GAP * parts.len().saturating_sub(1) as f64
}

impl Drawing<'_> {
    /// What hangs below a node, small things gathered in stacks.
    pub(super) fn blocks(&self, node: NodeId, up: Option<NodeId>, depth: usize) -> Vec<Block> {
        let mut parts = Vec::new();
        let mut small = Vec::new();
        if depth > 40 {
            return parts;
        }
        let mut below: Vec<NodeId> = self.graph.out[node]
            .iter()
            .map(|&l| &self.graph.links[l])
            .filter(|l| {
                l.kind == LinkKind::Pci
                    && Some(l.to) != up
                    && self.graph.nodes[l.to].numa == self.graph.nodes[node].numa
            })
            .map(|l| l.to)
            .filter(|&n| !matches!(self.graph.nodes[n].kind, NodeKind::Numa { .. }))
            .collect();
        below.sort_unstable();
        for n in below {
            match self.graph.nodes[n].kind {
                NodeKind::Gpu { .. } => parts.push(Block::Gpu(n)),
                NodeKind::Pci => {
                    let under = self.blocks(n, Some(node), depth + 1);
                    if under.is_empty() {
                        small.push(n);
                        continue;
                    }
                    let width = sum_width(&under).max(SMALL_W);
                    let deepest = under.iter().map(Block::depth).max().unwrap_or(0);
                    parts.push(Block::Switch { node: n, parts: under, width, depth: deepest + 1 });
                }
                NodeKind::Nic => {
                    let ports = self.graph.out[n].iter().map(|&l| self.graph.links[l].to);
                    let ports: Vec<NodeId> =
                        ports.filter(|&p| matches!(self.graph.nodes[p].kind, NodeKind::Net { .. })).collect();
                    if ports.is_empty() { small.push(n) } else { small.extend(ports) }
                }
                _ => {}
            }
        }
        for some in small.chunks(6) {
            parts.push(Block::Stack(some.to_vec()));
        }
        parts
    }

    pub(super) fn room(&mut self, numa: NodeId, x: f64, top: f64, w: f64, bottom: f64) {
        let _ = writeln!(
            self.out,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{w:.1}\" height=\"{:.1}\" rx=\"14\" fill=\"#f4f7fb\" stroke=\"#c5d1e0\" stroke-width=\"1.5\"/>",
            bottom - top
        );
        let (bx, by, bw) = (x + PAD, top + 22.0, w - 2.0 * PAD);
        let _ = writeln!(
            self.out,
            "<rect x=\"{bx:.1}\" y=\"{by:.1}\" width=\"{bw:.1}\" height=\"{:.1}\" rx=\"8\" fill=\"#35527a\"/>",
            BAR + 22.0
        );
        let node = &self.graph.nodes[numa];
        let NodeKind::Numa { arch, vendor } = &node.kind else { return };
        let maker = match vendor.trim() {
            "GenuineIntel" => "Intel",
            "AuthenticAMD" => "AMD",
            "" => arch.as_str(),
            other => other,
        };
        let memory =
            self.graph.numas.iter().position(|&n| n == numa).and_then(|i| self.system.numas[i].memory);
        let memory = memory.map_or(String::new(), |m| format!("  ·  {:.0} GB", m as f64 / 1e9));
        let cx = x + w / 2.0;
        let name = node.name.clone();
        let maker = format!("{maker}{memory}");
        self.text(cx, by + 23.0, 15.0, "middle", "#ffffff", true, &name);
        self.text(cx, by + 42.0, 12.0, "middle", "#d5e0ef", false, &maker);
        self.at[numa] = Some(Spot { x: cx, top: by, bottom: by + BAR + 22.0 });
    }

    pub(super) fn place(&mut self, blocks: &[Block], up: NodeId, left: f64, y: f64, leaf_top: f64) {
        let mut x = left;
        for block in blocks {
            let w = block.width();
            let cx = x + w / 2.0;
            match block {
                Block::Switch { node, parts, depth, .. } => {
                    let top = leaf_top - LEVEL * (*depth as f64) + 6.0;
                    self.uplink(*node, up, cx, y, top);
                    let text = self.graph.nodes[*node].name.clone();
                    self.shape(x, top, w, BAR, 7.0, "#f6e6c4", "#c79a3b");
                    let what = if parts.len() == 1 { "PCIe bridge" } else { "PCIe switch" };
                    let label = if w > 190.0 { format!("{what}  {text}") } else { text };
                    self.text(cx, top + 20.0, 11.5, "middle", "#6b4e10", false, &fit(&label, w - 8.0, 11.5));
                    self.at[*node] = Some(Spot { x: cx, top, bottom: top + BAR });
                    self.place(parts, *node, x + (w - sum_width(parts)) / 2.0, top + BAR, leaf_top);
                }
                Block::Gpu(node) => self.gpu(*node, up, x, y, leaf_top),
                Block::Stack(list) => self.stack(list, up, x, y, leaf_top),
            }
            x += w + GAP;
        }
    }

    /// The link from a node up to its parent's lower edge at `y`.
    fn uplink(&mut self, node: NodeId, up: NodeId, cx: f64, y: f64, top: f64) {
        let graph = self.graph;
        let find = |kind| graph.link_between(node, up, Some(kind));
        for (kind, shift) in [(LinkKind::Pci, 0.0), (LinkKind::C2c, 16.0)] {
            let Some(l) = find(kind) else { continue };
            let link = &self.graph.links[l];
            let (bandwidth, source) = (link.bandwidth, link.source);
            let x = cx + shift;
            if bandwidth >= LOCAL_BANDWIDTH {
                // A port without a PCI address only has its place.
                let _ = writeln!(
                    self.out,
                    "<path d=\"M{x:.1} {y:.1}V{top:.1}\" stroke=\"{NO_LINK}\" stroke-width=\"1.5\" stroke-dasharray=\"2 4\" fill=\"none\"/>"
                );
                continue;
            }
            let dash = if source == Source::Doubtful { " stroke-dasharray=\"5 4\"" } else { "" };
            let _ = writeln!(
                self.out,
                "<path d=\"M{x:.1} {y:.1}V{top:.1}\" stroke=\"{}\" stroke-width=\"{:.1}\" fill=\"none\"{dash}/>",
                colour(kind),
                thickness(bandwidth)
            );
            if top - y > 20.0 {
                let mark = if source == Source::Doubtful { "?" } else { "" };
                let label = format!("{}{mark}", gbps(bandwidth));
                // Beside a chip link the PCIe link's number goes to the left.
                let left = kind == LinkKind::Pci && find(LinkKind::C2c).is_some();
                let off = thickness(bandwidth) / 2.0 + 4.0;
                let (tx, anchor) = if left { (x - off, "end") } else { (x + off, "start") };
                self.text(tx, top - 10.0, 10.5, anchor, FAINT, false, &label);
            }
        }
    }

    /// Links between the GPUs of a room and its CPU that are not PCIe and that no uplink shows, behind what stands
    /// between the two.
    pub(super) fn chip_links(&mut self, numa: NodeId, behind: usize) {
        let mut lines = String::new();
        let Some(cpu) = self.at[numa] else { return };
        for &gpu in &self.graph.gpus {
            let Some(spot) = self.at[gpu].filter(|_| self.graph.nodes[gpu].numa == Some(numa)) else {
                continue;
            };
            for kind in [LinkKind::Nvl, LinkKind::C2c] {
                let Some(l) = self.graph.link_between(gpu, numa, Some(kind)) else { continue };
                let direct = self.graph.link_between(gpu, numa, Some(LinkKind::Pci)).is_some();
                if kind == LinkKind::C2c && direct {
                    continue;
                }
                let bandwidth = self.graph.links[l].bandwidth;
                let x = spot.x + 30.0;
                let _ = writeln!(
                    lines,
                    "<path d=\"M{x:.1} {:.1}V{:.1}\" stroke=\"{}\" stroke-width=\"{:.1}\" fill=\"none\"/>",
                    cpu.bottom,
                    spot.top,
                    colour(kind),
                    thickness(bandwidth)
                );
                let label = x + thickness(bandwidth) / 2.0 + 4.0;
                self.text(label, spot.top - 10.0, 10.5, "start", FAINT, false, &gbps(bandwidth));
            }
        }
        self.out.insert_str(behind, &lines);
    }

    fn gpu(&mut self, node: NodeId, up: NodeId, x: f64, y: f64, top: f64) {
        let cx = x + GPU_W / 2.0;
        self.uplink(node, up, cx, y, top);
        self.shape(x, top, GPU_W, GPU_H, 9.0, "#d9f0d9", "#4ba04b");
        let n = &self.graph.nodes[node];
        let device = n.device.map(|d| &self.system.devices[d]);
        let product = device.and_then(|d| d.product.clone()).unwrap_or_else(|| match n.kind {
            NodeKind::Gpu { sm, .. } if sm > 0 => format!("sm {}.{}", sm / 10, sm % 10),
            _ => String::new(),
        });
        let bus = n.bus.as_ref().map_or(String::new(), |b| b.to_string());
        let name = n.name.clone();
        self.text(cx, top + 24.0, 15.0, "middle", "#1f4d1f", true, &name);
        self.text(cx, top + 43.0, 10.5, "middle", "#2f6b2f", false, &fit(&product, GPU_W - 6.0, 10.5));
        self.text(cx, top + 60.0, 9.5, "middle", FAINT, false, &fit(&bus, GPU_W - 8.0, 9.5));
        self.at[node] = Some(Spot { x: cx, top, bottom: top + GPU_H });
    }

    fn stack(&mut self, list: &[NodeId], up: NodeId, x: f64, y: f64, leaf_top: f64) {
        let cx = x + SMALL_W / 2.0;
        let first = list[0];
        let adapter =
            self.graph.out[first].iter().map(|&l| &self.graph.links[l]).find(|l| l.kind == LinkKind::Net);
        let carrier = adapter.map_or(first, |l| l.to);
        self.uplink(carrier, up, cx, y, leaf_top);
        for (i, &node) in list.iter().enumerate() {
            let top = leaf_top + i as f64 * (SMALL_H + 6.0);
            let n = &self.graph.nodes[node];
            let (fill, stroke, ink, second) = match n.kind {
                NodeKind::Net { speed, .. } => {
                    ("#ecdff2", "#9b6bb0", "#4a2a5c", format!("{} Gb/s", gbps(speed * 8.0)))
                }
                NodeKind::Nic => ("#ecdff2", "#9b6bb0", "#4a2a5c", "no port".to_owned()),
                _ => match self.what(node) {
                    what if what.starts_with(NVSWITCH) => ("#bfe3bf", "#4ba04b", "#1f4d1f", what),
                    what => ("#eceff2", "#aab4bf", "#3c4752", what),
                },
            };
            let hidden = self.hidden(node);
            let name = hidden.first().map_or(n.name.clone(), |&d| self.system.devices[d].bus.to_string());
            self.shape(x, top, SMALL_W, SMALL_H, 6.0, fill, stroke);
            self.text(cx, top + 14.5, 11.0, "middle", ink, true, &fit(&name, SMALL_W - 6.0, 11.0));
            self.text(cx, top + 28.0, 10.0, "middle", ink, false, &fit(&second, SMALL_W - 6.0, 10.0));
            self.at[node] = Some(Spot { x: cx, top, bottom: top + SMALL_H });
        }
    }

    fn what(&self, node: NodeId) -> String {
        let hidden = self.hidden(node);
        let Some(at) = hidden.first().copied().or(self.graph.nodes[node].device) else {
            return String::new();
        };
        let device = &self.system.devices[at];
        let is_switch = |l: &crate::model::NvLink| l.target_class == Some(0x068000) && l.target == device.bus;
        let linked = self.system.gpus().any(|(_, _, g)| g.nvlinks.iter().any(is_switch));
        let name = if linked { NVSWITCH } else { kind_name(device) };
        if hidden.len() > 1 { format!("{name}, {} more", hidden.len() - 1) } else { name.to_owned() }
    }

    /// The devices at the ends below a bridge that are no nodes of the graph: NVSwitches, and accelerators that no
    /// driver has.
    fn hidden(&self, node: NodeId) -> Vec<usize> {
        let (NodeKind::Pci, Some(bridge)) = (&self.graph.nodes[node].kind, self.graph.nodes[node].device)
        else {
            return Vec::new();
        };
        let known: std::collections::HashSet<usize> =
            self.graph.nodes.iter().filter_map(|n| n.device).filter(|&d| d != bridge).collect();
        let (mut ends, mut open) = (Vec::new(), vec![bridge]);
        while let Some(at) = open.pop() {
            let below: Vec<usize> = self.system.children(Parent::Device(at)).collect();
            if below.is_empty() && at != bridge && !known.contains(&at) {
                ends.push(at);
            }
            open.extend(below.into_iter().filter(|d| !known.contains(d)));
        }
        ends.sort_unstable();
        ends
    }

    pub(super) fn sockets(&mut self, top: f64, width: f64) {
        let spots: Vec<(NodeId, Spot)> =
            self.graph.numas.iter().filter_map(|&n| Some((n, self.at[n]?))).collect();
        let (Some(first), Some(last)) = (spots.first(), spots.last()) else { return };
        let link = self.graph.links.iter().find(|l| l.kind == LinkKind::Sys);
        let bandwidth = link.map_or(0.0, |l| l.bandwidth);
        for (_, s) in &spots {
            let _ = writeln!(
                self.out,
                "<path d=\"M{:.1} {:.1}V{:.1}\" stroke=\"{}\" stroke-width=\"{:.1}\"/>",
                s.x,
                top + BAR,
                s.top,
                colour(LinkKind::Sys),
                thickness(bandwidth)
            );
        }
        let (x0, x1) = ((first.1.x - 90.0).max(30.0), (last.1.x + 90.0).min(width - 30.0));
        self.shape(x0, top, x1 - x0, BAR, 8.0, "#dde7f4", "#5b7fb0");
        let text = format!("socket interconnect  {} GB/s each way", gbps(bandwidth));
        self.text((x0 + x1) / 2.0, top + 20.0, 12.0, "middle", "#2f4a70", false, &text);
    }
}
