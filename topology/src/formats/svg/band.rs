//! What lies below the rooms: links between GPUs, the NVSwitch, the overlay, and the key to it all.

use std::fmt::Write;

use super::{BAR, COLOURS, Drawing, FAINT, INK, Spot, colour, gbps, thickness};
use crate::graph::{LinkKind, NodeId, Source};
use crate::model::constants::LOCAL_BANDWIDTH;

impl Drawing<'_> {
    /// NVLinks and the overlay, below the rooms. Returns where it ends.
    pub(super) fn band(&mut self, top: f64) -> f64 {
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

    pub(super) fn legend(&mut self, y: f64, width: f64) -> f64 {
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
