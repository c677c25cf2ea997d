//! `nd-topo paths`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use nd_topology::graph::{NodeId, Source};
use nd_topology::{Error, Result};
use serde::Serialize;

use super::table::Table;
use super::{From, Machine, gbps, put, put_json};

#[derive(Debug, ClapArgs)]
pub(super) struct PathsArgs {
    #[command(flatten)]
    from: From,
    /// Two devices: GPU0, NUMA1, a port's name, or a bus id; all GPUs and ports if not given
    #[arg(num_args = 0..=2, value_names = ["A", "B"])]
    devices: Vec<String>,
    /// Write JSON instead of text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    from: String,
    to: String,
    class: &'static str,
    gbps: f64,
    us: f64,
    hops: usize,
    route: String,
    reason: String,
}

pub(super) fn run(a: &PathsArgs) -> Result<()> {
    let m = a.from.load()?;
    let pairs: Vec<(NodeId, NodeId)> = match &a.devices[..] {
        [x, y] => vec![(m.graph.node(x)?, m.graph.node(y)?)],
        [x] => {
            let x = m.graph.node(x)?;
            ends(&m).into_iter().filter(|&y| y != x).map(|y| (x, y)).collect()
        }
        _ => {
            let ends = ends(&m);
            let after = |i: usize| ends[i + 1..].iter().map(move |&y| (i, y));
            (0..ends.len()).flat_map(after).map(|(i, y)| (ends[i], y)).collect()
        }
    };
    if pairs.is_empty() {
        return Err(Error::Invalid(
            "this machine shows fewer than two GPUs and ports, so there is no pair to explain; name two devices, such \
             as NUMA0 and a bus id"
                .into(),
        ));
    }
    super::warn_of_guesses(&m.system);
    let rows: Vec<Row> = pairs.iter().map(|&(x, y)| row(&m, x, y)).collect();
    if let Some(path) = &a.json {
        return put_json(path, &rows);
    }
    if let ([_, _], [(x, y)]) = (&a.devices[..], &pairs[..]) {
        let text = sentence(&m, *x, *y);
        let lines = text.lines().map(|l| super::printable(l) + "\n");
        return put(None, &lines.collect::<String>());
    }
    let mut t = Table::new(&["from", "to", "class", "GB/s", "µs", "hops", "why"]);
    for r in rows {
        t.row([
            r.from,
            r.to,
            r.class.to_owned(),
            gbps(r.gbps),
            format!("{:.2}", r.us),
            r.hops.to_string(),
            r.reason,
        ]);
    }
    put(None, &t.render())
}

fn ends(m: &Machine) -> Vec<NodeId> {
    m.graph.gpus.iter().chain(&m.graph.nets).copied().collect()
}

fn row(m: &Machine, x: NodeId, y: NodeId) -> Row {
    let path = m.paths.between(x, y);
    Row {
        from: m.graph.nodes[x].name.clone(),
        to: m.graph.nodes[y].name.clone(),
        class: m.paths.class_for_people(&m.graph, x, y).word(),
        gbps: path.bandwidth,
        us: path.latency,
        hops: path.links.len(),
        route: m.paths.route(&m.graph, x, y),
        reason: m.paths.reason(&m.graph, x, y),
    }
}

fn sentence(m: &Machine, x: NodeId, y: NodeId) -> String {
    let r = row(m, x, y);
    if r.hops == 0 {
        return format!("{} and {}: {}.\n", r.from, r.to, r.reason);
    }
    let mut text = format!(
        "{} reaches {} at {} GB/s and {:.2} µs over {} {} ({}: {}).\n",
        r.from,
        r.to,
        gbps(r.gbps),
        r.us,
        r.hops,
        if r.hops == 1 { "link" } else { "links" },
        r.class,
        r.reason
    );
    text.push_str(&format!("The way: {}.\n", r.route));
    if let Some(link) = m.paths.narrowest(&m.graph, x, y) {
        let basis = match link.source {
            Source::Table => "by the table for its kind",
            Source::Doubtful => "from a stated speed that is not believed",
            Source::Measured => "measured",
        };
        text.push_str(&format!(
            "The narrowest link is {} – {}, {} GB/s {basis}.\n",
            m.graph.nodes[link.from].name,
            m.graph.nodes[link.to].name,
            gbps(link.bandwidth)
        ));
    }
    text
}
