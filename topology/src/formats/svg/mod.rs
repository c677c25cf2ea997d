//! A picture of the machine: NUMA nodes as rooms, switches, GPUs and NICs inside, links as thick as they are fast, and
//! on request a ring or the groups of a mesh axis over it.
//!
//! | file | what |
//! |---|---|
//! | `rooms` | NUMA nodes with what hangs below them |
//! | `band` | below the rooms: links between GPUs, the NVSwitch, the overlay, the key |

mod band;
mod rooms;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use super::xml::escape;
use crate::graph::{Graph, LinkKind, NodeId};
use crate::model::System;
use rooms::{Block, LEVEL, PAD, SMALL_H, sum_width};

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

const BAR: f64 = 30.0;

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
