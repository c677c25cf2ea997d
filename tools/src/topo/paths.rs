//! `nd-topo paths`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use nd_topology::formats::kind_name;
use nd_topology::graph::{Link, LinkKind, NodeId, NodeKind, Source};
use nd_topology::model::{BusId, Parent};
use nd_topology::{Error, PathClass, Result};
use serde::Serialize;

use super::{From, Machine, put, put_json, ranks};
use crate::table::Table;
use crate::units::gbps;

#[derive(Debug, ClapArgs)]
pub(super) struct PathsArgs {
    #[command(flatten)]
    from: From,
    /// A device: GPU0, NUMA1, a port's name, or a bus id; all GPUs and ports if not given
    #[arg(value_name = "A")]
    a: Option<String>,
    /// Another; all GPUs and ports if not given
    #[arg(value_name = "B")]
    b: Option<String>,
    /// How ranks of this host and of others are joined, instead of how devices are
    #[arg(long, conflicts_with = "a")]
    ranks: bool,
    /// The other host: a file, such as `nd-topo show --json` writes, or a machine of the library; one like this if not
    /// given
    #[arg(long, value_name = "FILE|NAME", conflicts_with = "a")]
    to: Option<String>,
    /// RDMA devices and ports that ranks may use; else what ND_IB_HCA says
    #[arg(long, value_name = "LIST", conflicts_with = "a", long_help = HCA)]
    hca: Option<String>,
    /// Index of the address that RDMA ports use; else what ND_IB_GID_INDEX says
    #[arg(long, value_name = "N", conflicts_with = "a")]
    gid_index: Option<u32>,
    /// Write JSON instead of text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

pub(super) const HCA: &str = "RDMA devices and ports that ranks may use, in NCCL's syntax; else what
ND_IB_HCA says:
  mlx5               devices whose names begin so
  =mlx5_0:1,mlx5_1   these; one port of the first
  ^mlx5_2            all others";

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
    if a.ranks || a.to.is_some() {
        return ranks(a, &m);
    }
    let pairs: Vec<(NodeId, NodeId)> = match (&a.a, &a.b) {
        (Some(x), Some(y)) => vec![(node(&m, x)?, node(&m, y)?)],
        (Some(x), None) => {
            let x = node(&m, x)?;
            ends(&m).into_iter().filter(|&y| y != x).map(|y| (x, y)).collect()
        }
        _ => {
            let ends = ends(&m);
            let after = |i: usize| ends[i + 1..].iter().map(move |&y| (i, y));
            (0..ends.len()).flat_map(after).map(|(i, y)| (ends[i], y)).collect()
        }
    };
    let own = a.a.is_none() && !m.system.rdma.is_empty();
    if pairs.is_empty() && !own {
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
    if pairs.is_empty() {
        return ranks(a, &m);
    }
    if let (Some(_), [(x, y)]) = (&a.b, &pairs[..]) {
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
    put(None, &t.render())?;
    if own {
        put(None, "\n")?;
        ranks(a, &m)?;
    }
    Ok(())
}

/// What joins ranks of this host and of another.
fn ranks(a: &PathsArgs, m: &Machine) -> Result<()> {
    let settings = ranks::settings(a.hca.as_deref(), a.gid_index)?;
    let is_here = !a.from.is_file();
    let here = ranks::Host::new(&m.system, is_here, "this host");
    let other = a.to.as_deref().map(super::named).transpose()?;
    let there = match &other {
        Some(system) => ranks::Host::new(system, false, "the other host"),
        None => ranks::Host::new(&m.system, is_here, "this host"),
    };
    let rows = ranks::rows(&here, &there, &settings)?;
    match &a.json {
        Some(path) => put_json(path, &rows),
        None => put(None, &ranks::text(&here, &there, &rows)),
    }
}

/// A device by its name. A device of the machine that no path ends at is told from one that does not exist.
fn node(m: &Machine, name: &str) -> Result<NodeId> {
    m.graph.node(name).map_err(|error| {
        let bus = BusId::parse(name).ok();
        let Some(at) = m.system.devices.iter().position(|d| bus.as_ref() == Some(&d.bus)) else {
            return error;
        };
        Error::Invalid(match m.system.devices[at].parent {
            Parent::Device(up) if super::show::is_part_of_switch(m, at) => format!(
                "{name} is one chip with the switch {} above it, and paths name the upper one",
                m.system.devices[up].bus
            ),
            _ => format!(
                "{name} is in the machine ({}), and no path ends there",
                kind_name(&m.system.devices[at])
            ),
        })
    })
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
            Source::Table => basis(m, link),
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
    if let Some(peer) = by_peer(m, x, y) {
        text.push_str(&format!(
            "Between several hosts the search goes by NVLink to {}, which is close to {} (PXN).\n",
            m.graph.nodes[peer].name, r.to
        ));
    }
    text
}

/// Where the speed of a link comes from that is neither measured nor doubtful.
fn basis(m: &Machine, link: &Link) -> &'static str {
    let dev = |n: NodeId| match m.graph.nodes[n].kind {
        NodeKind::Net { dev, .. } => Some(dev),
        _ => None,
    };
    match link.kind {
        LinkKind::Pci => "from the speed and width stated for it",
        LinkKind::Net => {
            let port = dev(link.from).or(dev(link.to));
            let mut ports = m.system.ports().filter(|(_, p)| p.dev.is_some() && p.dev == port);
            if ports.any(|(_, p)| p.speed_mbps.is_some_and(|s| s > 0.0)) {
                "as the port states"
            } else {
                "assumed, because the port states no speed"
            }
        }
        LinkKind::C2c => "from the speed stated for it",
        LinkKind::Nvl => "by the table for its generation",
        LinkKind::Sys => "by the table for this processor",
    }
}

/// The GPU over which the search sends between hosts what goes from `gpu` to a port that is far from it.
fn by_peer(m: &Machine, gpu: NodeId, port: NodeId) -> Option<NodeId> {
    if !m.graph.gpus.contains(&gpu) || !m.graph.nets.contains(&port) {
        return None;
    }
    let own = m.paths.between(gpu, port);
    let linked = |p: &NodeId| *p != gpu && m.paths.between(gpu, *p).class <= PathClass::Nvl;
    let peers = m.graph.gpus.iter().copied().filter(linked);
    let near = |p: NodeId| m.paths.between(p, port);
    let peer = peers.filter(|&p| near(p).class <= PathClass::P2c).min_by_key(|&p| near(p).class)?;
    (near(peer).bandwidth > own.bandwidth || own.class > PathClass::Pxn).then_some(peer)
}
