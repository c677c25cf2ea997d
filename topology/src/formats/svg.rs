//! A picture of the machine: NUMA nodes as rooms, switches, GPUs and NICs inside, links as thick as they are fast, and
//! on request a ring or the groups of a mesh axis over it.

use std::fmt::Write;

use super::xml::escape;
use crate::graph::{Graph, LinkKind, NodeId, NodeKind, Source};
use crate::model::constants::LOCAL_BANDWIDTH;
use crate::model::{Parent, System};

/// Something to draw over the GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Overlay {
    /// What it is, for the legend.
    pub title: String,
    /// Each a walk over nodes; closed walks return to their first node.
    pub walks: Vec<Vec<NodeId>>,
    /// Whether walks are closed.
    pub closed: bool,
}

const GPU_W: f64 = 114.0;
const GPU_H: f64 = 72.0;
const SMALL_W: f64 = 96.0;
const SMALL_H: f64 = 34.0;
const GAP: f64 = 14.0;
const LEVEL: f64 = 78.0;
const BAR: f64 = 30.0;
const PAD: f64 = 20.0;

const INK: &str = "#1d2733";
const FAINT: &str = "#5d6b7a";
const NO_LINK: &str = "#aab4bf";
const COLOURS: [&str; 8] =
    ["#e4572e", "#2e86de", "#8e44ad", "#d98e04", "#c2185b", "#00838f", "#6d4c41", "#455a64"];

/// Draws the machine.
pub fn write(system: &System, graph: &Graph, overlay: Option<&Overlay>) -> String {
    let mut d =
        Drawing { graph, system, out: String::new(), at: vec![None; graph.nodes.len()], overlay, span: None };
    d.draw()
}

/// A part of the tree below a NUMA node, with the room it needs.
enum Block {
    /// A switch with what is below it.
    Switch { node: NodeId, parts: Vec<Block>, width: f64, depth: usize },
    /// A GPU.
    Gpu(NodeId),
    /// Small things, one above the other.
    Stack(Vec<NodeId>),
}

impl Block {
    fn width(&self) -> f64 {
        match self {
            Block::Switch { width, .. } => *width,
            Block::Gpu(_) => GPU_W,
            Block::Stack(_) => SMALL_W,
        }
    }

    fn depth(&self) -> usize {
        match self {
            Block::Switch { depth, .. } => *depth,
            _ => 0,
        }
    }

    fn tallest(&self) -> f64 {
        match self {
            Block::Switch { parts, .. } => parts.iter().map(Block::tallest).fold(0.0, f64::max),
            Block::Gpu(_) => GPU_H,
            Block::Stack(list) => list.len() as f64 * (SMALL_H + 6.0) - 6.0,
        }
    }
}

/// Where a node was drawn.
#[derive(Clone, Copy)]
struct Spot {
    x: f64,
    top: f64,
    bottom: f64,
}

struct Drawing<'a> {
    graph: &'a Graph,
    system: &'a System,
    out: String,
    at: Vec<Option<Spot>>,
    overlay: Option<&'a Overlay>,
    /// Left and right end of the rooms.
    span: Option<(f64, f64)>,
}

const NVSWITCH: &str = "NVSwitch";

fn thickness(gbps: f64) -> f64 {
    (1.0 + gbps.max(0.0).sqrt() * 0.55).min(16.0)
}

fn colour(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Nvl => "#4ba04b",
        LinkKind::C2c => "#1f9a8f",
        LinkKind::Pci => "#c79a3b",
        LinkKind::Sys => "#5b7fb0",
        LinkKind::Net => "#9b6bb0",
    }
}

fn gbps(value: f64) -> String {
    if value >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn sum_width(parts: &[Block]) -> f64 {
    parts.iter().map(Block::width).sum::<f64>() + GAP * parts.len().saturating_sub(1) as f64
}

impl Drawing<'_> {
    fn draw(&mut self) -> String {
        let rooms: Vec<(NodeId, Vec<Block>)> =
            self.graph.numas.iter().map(|&n| (n, self.blocks(n, None, 0))).collect();
        let depth = rooms.iter().flat_map(|(_, b)| b).map(Block::depth).max().unwrap_or(0);
        let tallest = rooms.iter().flat_map(|(_, b)| b).map(Block::tallest).fold(SMALL_H, f64::max);
        let several = rooms.len() > 1;
        let widths: Vec<f64> = rooms.iter().map(|(_, b)| sum_width(b).max(230.0) + 2.0 * PAD).collect();
        let width = (widths.iter().sum::<f64>() + 26.0 * (rooms.len() - 1) as f64 + 60.0).max(760.0);

        let interconnect = 92.0;
        let room_top = if several { interconnect + BAR + 40.0 } else { 92.0 };
        let leaf_top = room_top + 74.0 + LEVEL * (depth as f64 + 1.0) - 40.0;
        let room_bottom = leaf_top + tallest + 22.0;
        let used: f64 = widths.iter().sum::<f64>() + 26.0 * (rooms.len() - 1) as f64;
        let mut x = (width - used) / 2.0;
        self.span = Some((x, x + used));
        for ((numa, blocks), w) in rooms.iter().zip(&widths) {
            self.room(*numa, x, room_top, *w, room_bottom);
            let behind = self.out.len();
            let left = x + (w - sum_width(blocks)) / 2.0;
            self.place(blocks, *numa, left, room_top + 74.0, leaf_top);
            self.chip_links(*numa, behind);
            x += w + 26.0;
        }
        if several {
            self.sockets(interconnect, width);
        }
        let band = self.band(room_bottom);
        let legend = self.legend(band + 30.0, width);
        let height = legend + 24.0;
        self.page(width, height)
    }

    fn page(&mut self, width: f64, height: f64) -> String {
        let mut page = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"'DejaVu Sans', 'Helvetica Neue', Arial, sans-serif\">\n"
        );
        page.push_str("<defs>");
        for (i, c) in COLOURS.iter().enumerate() {
            let _ = write!(
                page,
                "<marker id=\"a{i}\" viewBox=\"0 0 10 10\" refX=\"8\" refY=\"5\" markerWidth=\"13\" markerHeight=\"13\" markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 0L10 5L0 10z\" fill=\"{c}\"/></marker>"
            );
        }
        page.push_str("</defs>\n");
        let _ = writeln!(page, "<rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>");
        page.push_str(&std::mem::take(&mut self.out));
        let name = if self.system.name.is_empty() { "This machine" } else { &self.system.name };
        self.text(30.0, 40.0, 22.0, "start", INK, true, &fit(name, width - 60.0, 22.0));
        let g = self.graph;
        let mut facts = vec![
            plural(g.numas.len(), "NUMA node"),
            plural(g.gpus.len(), "GPU"),
            plural(g.nets.len(), "network port"),
        ];
        if g.nvswitch.is_some() {
            facts.push("NVSwitch".into());
        }
        self.text(30.0, 64.0, 13.0, "start", FAINT, false, &facts.join("  ·  "));
        page.push_str(&self.out);
        page.push_str("</svg>\n");
        page
    }

    /// What hangs below a node, small things gathered in stacks.
    fn blocks(&self, node: NodeId, up: Option<NodeId>, depth: usize) -> Vec<Block> {
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

    fn room(&mut self, numa: NodeId, x: f64, top: f64, w: f64, bottom: f64) {
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

    fn place(&mut self, blocks: &[Block], up: NodeId, left: f64, y: f64, leaf_top: f64) {
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
    fn chip_links(&mut self, numa: NodeId, behind: usize) {
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
        let name = if linked { NVSWITCH } else { super::kind_name(device) };
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

    fn sockets(&mut self, top: f64, width: f64) {
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

    /// NVLinks and the overlay, below the rooms. Returns where it ends.
    fn band(&mut self, top: f64) -> f64 {
        let gpus: Vec<(NodeId, Spot)> =
            self.graph.gpus.iter().filter_map(|&g| Some((g, self.at[g]?))).collect();
        let pairs: Vec<(NodeId, NodeId, f64)> = self
            .graph
            .links
            .iter()
            .filter(|l| l.kind == LinkKind::Nvl && l.from < l.to)
            .filter(|l| self.graph.gpus.contains(&l.from) && self.graph.gpus.contains(&l.to))
            .map(|l| (l.from, l.to, l.bandwidth))
            .collect();
        let mut bottom = top;
        let opacity = if self.overlay.is_some() { 0.45 } else { 0.8 };
        for &(a, b, bandwidth) in &pairs {
            let (Some(a), Some(b)) = (self.at[a], self.at[b]) else { continue };
            let depth = arc_depth(a.x, b.x);
            bottom = f64::max(bottom, top + depth);
            let _ = writeln!(
                self.out,
                "<path d=\"{}\" stroke=\"{}\" stroke-width=\"{:.1}\" stroke-opacity=\"{opacity}\" fill=\"none\"/>",
                arc(a, b, top, depth),
                colour(LinkKind::Nvl),
                thickness(bandwidth)
            );
        }
        let walks = self.overlay.map_or(&[][..], |o| &o.walks);
        let closed = self.overlay.is_some_and(|o| o.closed);
        let reach = walks.iter().flat_map(|w| steps(w, closed)).filter_map(|(a, b)| {
            let (a, b) = (self.at[a]?, self.at[b]?);
            Some(top + arc_depth(a.x, b.x) + 18.0)
        });
        bottom = reach.fold(bottom, f64::max);
        if let (Some(switch), Some(first), Some(last)) = (self.graph.nvswitch, gpus.first(), gpus.last()) {
            let bar = bottom.max(top) + 30.0;
            let bandwidth = |g: NodeId| {
                self.graph.link_between(g, switch, None).map_or(0.0, |l| self.graph.links[l].bandwidth)
            };
            let rates: Vec<f64> = gpus.iter().map(|(g, _)| bandwidth(*g)).collect();
            for ((_, s), rate) in gpus.iter().zip(&rates).filter(|(_, r)| **r > 0.0) {
                let _ = writeln!(
                    self.out,
                    "<path d=\"M{:.1} {:.1}V{bar:.1}\" stroke=\"{}\" stroke-width=\"{:.1}\" stroke-opacity=\"0.85\"/>",
                    s.x,
                    s.bottom,
                    colour(LinkKind::Nvl),
                    thickness(*rate)
                );
            }
            let (x0, x1) = self.span.unwrap_or((first.1.x - 60.0, last.1.x + 60.0));
            self.shape(x0, bar, x1 - x0, BAR + 6.0, 9.0, "#bfe3bf", "#4ba04b");
            let rate = rates.iter().copied().fold(0.0, f64::max);
            let text = format!("NVSwitch  ·  {} GB/s each way to every GPU", gbps(rate));
            self.text((x0 + x1) / 2.0, bar + 23.0, 13.0, "middle", "#1f4d1f", true, &text);
            bottom = bar + BAR + 6.0;
        }
        self.walks(top);
        bottom
    }

    fn walks(&mut self, top: f64) {
        let Some(overlay) = self.overlay else { return };
        for (i, walk) in overlay.walks.iter().enumerate() {
            let c = i % COLOURS.len();
            for (a, b) in steps(walk, overlay.closed) {
                let (Some(a), Some(b)) = (self.at[a], self.at[b]) else { continue };
                let depth = arc_depth(a.x, b.x) + 10.0;
                // Steps leave a GPU's foot farther out than they enter it, on the side of the other.
                let side = if b.x > a.x { 1.0 } else { -1.0 };
                let (from, to) = (Spot { x: a.x + 34.0 * side, ..a }, Spot { x: b.x - 18.0 * side, ..b });
                let _ = writeln!(
                    self.out,
                    "<path d=\"{}\" stroke=\"{}\" stroke-width=\"3\" fill=\"none\" marker-end=\"url(#a{c})\"/>",
                    arc(from, to, top, depth),
                    COLOURS[c]
                );
            }
        }
    }

    fn legend(&mut self, y: f64, width: f64) -> f64 {
        let mut x = 30.0;
        let mut line = y;
        let placed = |k: LinkKind, bandwidth: f64| k == LinkKind::Pci && bandwidth >= LOCAL_BANDWIDTH;
        let present = |k: LinkKind| self.graph.links.iter().any(|l| l.kind == k && !placed(k, l.bandwidth));
        let amd = self.system.gpus().any(|(_, _, g)| g.gcn.is_some() || g.nvlinks.iter().any(|l| l.xgmi));
        let mut entries: Vec<(&str, LinkKind)> = Vec::new();
        for (text, kind) in [
            ("PCIe", LinkKind::Pci),
            (if amd { "xGMI" } else { "NVLink" }, LinkKind::Nvl),
            ("chip to chip", LinkKind::C2c),
            ("between sockets", LinkKind::Sys),
        ] {
            if present(kind) {
                entries.push((text, kind));
            }
        }
        for (text, kind) in entries {
            let fastest = self.graph.links.iter().filter(|l| l.kind == kind && l.bandwidth < 4000.0);
            let fastest = fastest.map(|l| l.bandwidth).fold(0.0, f64::max);
            let text = format!("{text}, up to {} GB/s", gbps(fastest));
            let need = 50.0 + text.len() as f64 * 7.0 + 24.0;
            if x + need > width - 20.0 {
                x = 30.0;
                line += 24.0;
            }
            let _ = writeln!(
                self.out,
                "<path d=\"M{x:.1} {line:.1}h34\" stroke=\"{}\" stroke-width=\"{:.1}\"/>",
                colour(kind),
                thickness(fastest)
            );
            self.text(x + 44.0, line + 4.0, 12.0, "start", INK, false, &text);
            x += need;
        }
        line += 26.0;
        let mut notes =
            vec!["thickness: speed of the link; numbers: GB/s (1e9 B/s) in one direction".to_owned()];
        if self.graph.links.iter().any(|l| l.source == Source::Doubtful) {
            notes.push("dashed, “?”: the device states no believable speed".to_owned());
        }
        if self.graph.links.iter().any(|l| placed(l.kind, l.bandwidth)) {
            notes.push("dotted grey: a port without a PCI address".to_owned());
        }
        self.text(30.0, line + 4.0, 11.5, "start", FAINT, false, &notes.join("  ·  "));
        if let Some(overlay) = self.overlay {
            line += 26.0;
            let _ = writeln!(
                self.out,
                "<path d=\"M30 {line:.1}h34\" stroke=\"{}\" stroke-width=\"3\" marker-end=\"url(#a0)\"/>",
                COLOURS[0]
            );
            let title = overlay.title.clone();
            self.text(74.0, line + 4.0, 12.0, "start", INK, false, &title);
        }
        line
    }

    // A rectangle has that many numbers.
    #[allow(clippy::too_many_arguments)]
    fn shape(&mut self, x: f64, y: f64, w: f64, h: f64, r: f64, fill: &str, stroke: &str) {
        let _ = writeln!(
            self.out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"{r}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.5\"/>"
        );
    }

    // And a text as many looks.
    #[allow(clippy::too_many_arguments)]
    fn text(&mut self, x: f64, y: f64, size: f64, anchor: &str, fill: &str, bold: bool, text: &str) {
        if text.is_empty() {
            return;
        }
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        let mut safe = String::new();
        escape(text, &mut safe);
        let _ = writeln!(
            self.out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{fill}\"{weight}>{safe}</text>"
        );
    }
}

fn steps(walk: &[NodeId], closed: bool) -> Vec<(NodeId, NodeId)> {
    let mut steps: Vec<(NodeId, NodeId)> = walk.windows(2).map(|w| (w[0], w[1])).collect();
    if let (true, Some(&first), Some(&last)) = (closed && walk.len() > 2, walk.first(), walk.last()) {
        steps.push((last, first));
    }
    steps
}

/// Farther pairs hang lower, so that arcs do not hide each other.
fn arc_depth(a: f64, b: f64) -> f64 {
    34.0 + ((a - b).abs() * 0.085).min(110.0)
}

/// Down to the rooms' lower edge, then in a bow.
fn arc(a: Spot, b: Spot, edge: f64, depth: f64) -> String {
    let low = edge + depth * 4.0 / 3.0;
    format!(
        "M{:.1} {:.1}V{edge:.1}C{:.1} {low:.1} {:.1} {low:.1} {:.1} {edge:.1}V{:.1}",
        a.x, a.bottom, a.x, b.x, b.x, b.bottom
    )
}

fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Cut to a width, at about 0.6 of the size for each letter.
fn fit(text: &str, width: f64, size: f64) -> String {
    let room = (width / (size * 0.6)).floor().max(1.0) as usize;
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(room.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::xml::Document;

    #[test]
    fn every_machine_gives_a_picture_with_all_its_gpus() {
        for name in crate::library::names() {
            let mut system = crate::library::machine(name).unwrap();
            system.name.push_str(" <&\">");
            let graph = Graph::new(&system).unwrap();
            let overlay = Overlay { title: "a & b".into(), walks: vec![graph.gpus.clone()], closed: true };
            let svg = write(&system, &graph, Some(&overlay));
            Document { text: &svg, format: "SVG" }.parse().unwrap();
            for &gpu in &graph.gpus {
                assert!(svg.contains(&format!(">{}<", graph.nodes[gpu].name)), "{name}");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
        }
    }

    fn drawn(xml: &str) -> String {
        let system = crate::formats::read_any(xml).unwrap();
        let graph = Graph::new(&system).unwrap();
        write(&system, &graph, None)
    }

    #[test]
    fn what_has_no_pcie_link_gets_no_speed_of_one() {
        let xml = "<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\"><nic><net name=\"eth0\" dev=\"0\" \
                   speed=\"10000\"/></nic></cpu></system>";
        let svg = drawn(xml);
        assert!(!svg.contains("5000") && svg.contains(NO_LINK) && !svg.contains(">PCIe, up to"), "{svg}");
        let system = crate::formats::read_any(xml).unwrap();
        let dot = crate::formats::dot::write(&Graph::new(&system).unwrap());
        assert!(!dot.contains("5000") && dot.contains("style=dotted"), "{dot}");
    }

    #[test]
    fn links_to_the_cpu_and_devices_without_a_node_are_drawn() {
        let bridge = |bus: &str, below: &str| {
            format!(
                "<pci busid=\"0000:{bus}:00.0\" class=\"0x060400\" link_speed=\"8.0 GT/s PCIe\" link_width=\"16\">{below}</pci>"
            )
        };
        let device = |bus: &str, class: &str, below: &str| {
            format!(
                "<pci busid=\"0000:{bus}:00.0\" class=\"{class}\" vendor=\"0x10de\" device=\"0x1ac2\" subsystem_vendor=\"0x10de\" subsystem_device=\"0x0000\" link_speed=\"8.0 GT/s PCIe\" link_width=\"16\">{below}</pci>"
            )
        };
        let gpu = device(
            "02",
            "0x030200",
            "<gpu dev=\"0\" sm=\"60\" rank=\"0\"><nvlink target=\"0000:00:00.0\" count=\"2\" tclass=\"0x068001\"/></gpu>",
        );
        let parts = [
            bridge("01", &gpu),
            bridge("03", &device("04", "0x068000", "")),
            bridge("05", &device("06", "0x030200", "")),
        ];
        let name =
            "a machine with a name that is far too long for the width of its picture, as users give them";
        let svg = drawn(&format!(
            "<system version=\"1\"><cpu numaid=\"0\" arch=\"ppc64\">{}</cpu></system>",
            parts.concat()
        ));
        let link = format!(
            "stroke=\"{}\" stroke-width=\"{:.1}\" fill=\"none\"",
            colour(LinkKind::Nvl),
            thickness(36.0)
        );
        assert_eq!(svg.matches(&link).count(), 1, "{svg}");
        for text in [">NVSwitch<", ">0000:04:00.0<", ">3D accelerator<", ">0000:06:00.0<"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let mut system = crate::library::machine("dgx-1").unwrap();
        system.name = name.repeat(3);
        let svg = write(&system, &Graph::new(&system).unwrap(), None);
        assert!(!svg.contains(name.repeat(3).as_str()) && svg.contains('…'));
    }
}
