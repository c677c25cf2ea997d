//! Graphviz: `nd-topo export --format dot | dot -Tsvg`.

use std::fmt::Write;

use crate::graph::{Graph, LinkKind, NodeKind};
use crate::model::constants::LOCAL_BANDWIDTH;

/// The graph with one edge for both directions of a link, as thick as it is fast.
pub fn write(graph: &Graph) -> String {
    let mut out = String::from(
        "graph topology {\n  layout=dot; rankdir=TB; node [fontname=\"sans-serif\", shape=box, style=filled];\n",
    );
    for (i, node) in graph.nodes.iter().enumerate() {
        let (shape, colour) = match node.kind {
            NodeKind::Numa { .. } => ("box3d", "#dfe7f2"),
            NodeKind::Pci => ("hexagon", "#f2e3c6"),
            NodeKind::Gpu { .. } => ("box", "#cfe8cf"),
            NodeKind::NvSwitch => ("octagon", "#b7dcb7"),
            NodeKind::Nic => ("house", "#e8d5ee"),
            NodeKind::Net { .. } => ("ellipse", "#e8d5ee"),
        };
        let name = quote(&node.name);
        let _ = writeln!(out, "  n{i} [label={name}, shape={shape}, fillcolor=\"{colour}\"];");
    }
    for link in &graph.links {
        let reverse = graph.link_between(link.to, link.from, Some(link.kind));
        if link.from > link.to && reverse.is_some() {
            continue;
        }
        let colour = match link.kind {
            LinkKind::Nvl => "#3a9d3a",
            LinkKind::C2c => "#2a8f8f",
            LinkKind::Pci => "#b07d1e",
            LinkKind::Sys => "#44618a",
            LinkKind::Net => "#8a4a9e",
        };
        if link.kind == LinkKind::Pci && link.bandwidth >= LOCAL_BANDWIDTH {
            // A port without a PCI address only has its place.
            let _ = writeln!(out, "  n{} -- n{} [style=dotted, color=\"{colour}\"];", link.from, link.to);
            continue;
        }
        let width = (link.bandwidth.max(1.0).log2() * 0.8).max(0.8);
        let _ = writeln!(
            out,
            "  n{} -- n{} [label=\"{:.1}\", color=\"{colour}\", penwidth={width:.1}];",
            link.from, link.to, link.bandwidth
        );
    }
    out.push_str("}\n");
    out
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " "))
}
