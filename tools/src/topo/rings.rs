//! `nd-topo search`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use nd_topology::agreement::Derived;
use nd_topology::formats::nccl_graph;
use nd_topology::graph::NodeId;
use nd_topology::search::{ChannelGraph, Pattern, Settings, search};
use nd_topology::{Error, PathClass, Result};
use serde::Serialize;

use super::{From, Machine, put, put_json};
use crate::table::Table;
use crate::units::gbps;

#[derive(Debug, ClapArgs)]
pub(super) struct SearchArgs {
    #[command(flatten)]
    from: From,
    /// Channels start and end at a NIC, because more than one host takes part
    #[arg(long)]
    several_hosts: bool,
    /// Whether a channel may leave by another NIC than it came in by: 0 no, 1 yes, 2 if that is at least
    /// 15 % faster, as NCCL weighs it
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=2))]
    cross_nic: u32,
    /// At most this many channels
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=64))]
    max_channels: u32,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table, conflicts_with = "json")]
    format: Format,
    /// Write JSON instead
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// NCCL's graph XML (NCCL_GRAPH_FILE)
    NcclXml,
}

#[derive(Serialize)]
struct Json<'a> {
    ring: &'a ChannelGraph,
    tree: &'a ChannelGraph,
    hash: String,
}

pub(super) fn run(a: &SearchArgs) -> Result<()> {
    let m = a.from.load()?;
    if m.graph.gpus.is_empty() {
        return Err(Error::Invalid(
            "there is no GPU in this machine, so there are no rings between GPUs; give another with --from"
                .into(),
        ));
    }
    if a.several_hosts && m.graph.nets.is_empty() {
        return Err(Error::Invalid(
            "there is no network port in this machine, so channels cannot leave it; leave out --several-hosts, or \
             give a file that describes the NICs"
                .into(),
        ));
    }
    super::warn_of_guesses(&m.system);
    let settings = Settings {
        several_hosts: a.several_hosts,
        cross_nic: a.cross_nic,
        max_channels: a.max_channels as usize,
        ..Settings::default()
    };
    let found = search(&m.graph, &settings);
    let hash: String = Derived::new(&m.graph, &found).hash().iter().map(|b| format!("{b:02x}")).collect();
    if let Some(path) = &a.json {
        return put_json(path, &Json { ring: &found.ring, tree: &found.tree, hash });
    }
    match a.format {
        Format::NcclXml => put(None, &nccl_graph::write(&found)),
        Format::Table => {
            let mut head = vec![
                "",
                "channels",
                "GB/s each",
                "GB/s together",
                "GPU paths",
                "NIC paths",
                "shape",
                "steps",
            ];
            if a.several_hosts {
                head.splice(4..4, ["to NICs each", "to NICs together"]);
            }
            let mut t = Table::new(&head);
            for (name, g) in [("ring", &found.ring), ("tree", &found.tree)] {
                let inter = if a.several_hosts { g.type_inter.word() } else { "" };
                let mut cells = vec![
                    name.to_owned(),
                    g.channels.len().to_string(),
                    gbps(g.speed_intra),
                    gbps(g.bandwidth()),
                    g.type_intra.word().to_owned(),
                    inter.to_owned(),
                    shape(g.pattern).to_owned(),
                    g.steps.to_string(),
                ];
                if a.several_hosts {
                    let together = g.channels.len() as f64 * g.speed_inter;
                    cells.splice(4..4, [gbps(g.speed_inter), gbps(together)]);
                }
                t.row(cells);
            }
            let mut out = t.render();
            if says_phb_for_node(&m, [&found.ring, &found.tree]) {
                out.push_str(
                    "PHB here takes in NODE, which the search does not tell apart and `nd-topo show` does.\n",
                );
            }
            for (name, g) in [("Ring", &found.ring), ("Tree", &found.tree)] {
                out.push_str(&format!("\n{name}\n"));
                out.push_str(&channels(&m, g));
                if g.is_fallback() {
                    out.push_str(
                        "  nothing fitted: one channel in the order of the GPUs, at a token speed\n",
                    );
                }
            }
            out.push_str(&format!("\nhash {}\n", &hash[..16]));
            put(None, &out)
        }
    }
}

/// The search, like NCCL's, knows no NODE; where the machine has such pairs the word PHB may mean them.
fn says_phb_for_node(m: &Machine, found: [&ChannelGraph; 2]) -> bool {
    let phb = |g: &ChannelGraph| [g.type_intra, g.type_inter].contains(&PathClass::Phb);
    let ends = || m.graph.gpus.iter().chain(&m.graph.nets);
    let node = |&a: &NodeId, &b: &NodeId| m.paths.class_for_people(&m.graph, a, b) == PathClass::Node;
    found.into_iter().any(phb) && ends().any(|a| ends().any(|b| node(a, b)))
}

fn shape(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Ring => "ring",
        Pattern::BalancedTree => "balanced tree",
        Pattern::SplitTree => "split tree",
        Pattern::Tree => "tree",
        Pattern::Nvls => "NVLS",
        Pattern::CollnetDirect => "CollNet",
    }
}

/// Equal channels on one line.
fn channels(m: &Machine, g: &ChannelGraph) -> String {
    let mut groups: Vec<(&nd_topology::search::Channel, Vec<usize>)> = Vec::new();
    for (i, c) in g.channels.iter().enumerate() {
        match groups.iter_mut().find(|(known, _)| *known == c) {
            Some((_, list)) => list.push(i),
            None => groups.push((c, vec![i])),
        }
    }
    let name = |node: Option<NodeId>, number: i32| {
        node.map_or_else(|| number.to_string(), |n| m.graph.nodes[n].name.clone())
    };
    let port = |dev: i32| name(m.graph.numbered_port(dev), dev);
    let mut out = String::new();
    for (c, list) in groups {
        let mut walk: Vec<String> = c.gpus.iter().map(|&d| name(m.graph.numbered_gpu(d), d)).collect();
        if let Some([first, last]) = c.nets {
            walk.insert(0, port(first));
            walk.push(port(last));
        } else if g.pattern == Pattern::Ring && walk.len() > 1 {
            walk.push(walk[0].clone());
        }
        out.push_str(&format!("  {:<8} {}\n", ranges(&list), walk.join(" → ")));
    }
    out
}

fn ranges(list: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &i in list {
        match parts.last_mut() {
            Some(p) if p.1 + 1 == i => p.1 = i,
            _ => parts.push((i, i)),
        }
    }
    let text = |&(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    #[test]
    fn equal_channels_are_counted_in_ranges() {
        assert_eq!(super::ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
