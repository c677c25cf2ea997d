//! `nd-topo show`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use nd_topology::formats::svg::{self, Overlay};
use nd_topology::formats::{self, kind_name};
use nd_topology::graph::{LinkKind, NodeId, Source};
use nd_topology::model::constants::amd_family;
use nd_topology::model::{ClassKind, Device, Parent, Port, class_kind};
use nd_topology::placement::Mesh;
use nd_topology::search::{Settings, search};
use nd_topology::{Error, Result};

use super::{From, Machine, plain_json, printable, put};
use crate::table::Table;
use crate::units::{bytes, gbps};

#[derive(Debug, ClapArgs)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    from: From,
    /// Write a picture too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw the first ring that the search finds over the picture
    #[arg(long, requires = "svg")]
    ring: bool,
    /// Draw the groups of an axis of this mesh over the picture; ranks go over the GPUs in order
    #[arg(long, value_name = "MESH", requires_all = ["svg", "axis"], conflicts_with = "ring")]
    mesh: Option<String>,
    /// The axis to draw
    #[arg(long, requires = "mesh")]
    axis: Option<String>,
    /// List all addresses (GIDs) of RDMA ports, however many there are
    #[arg(long)]
    gids: bool,
    /// Write JSON instead of tables, to a file or (without one) to standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

pub(super) fn run(a: &ShowArgs) -> Result<()> {
    let m = a.from.load()?;
    if let Some(path) = &a.svg {
        let overlay = overlay(a, &m)?;
        put(Some(path), &svg::write(&m.system, &m.graph, overlay.as_ref()))?;
    }
    match &a.json {
        Some(path) => {
            put(Some(path), &(plain_json(formats::json::write(&m.system, &m.graph, &m.paths)) + "\n"))
        }
        None => put(None, &text(&m, a.gids)),
    }
}

fn overlay(a: &ShowArgs, m: &Machine) -> Result<Option<Overlay>> {
    if a.ring {
        let ring = search(&m.graph, &Settings::default()).ring;
        let Some(channel) = ring.channels.first() else {
            return Err(Error::Invalid("there is no GPU, so no ring to draw".into()));
        };
        let walk: Vec<NodeId> = channel.gpus.iter().filter_map(|&dev| m.graph.numbered_gpu(dev)).collect();
        let title = format!("ring 1 of {}, {} GB/s each", ring.channels.len(), gbps(ring.speed_intra));
        return Ok(Some(Overlay { title, walks: vec![walk], closed: true }));
    }
    let (Some(text), Some(name)) = (&a.mesh, &a.axis) else { return Ok(None) };
    let mesh = Mesh::parse(text, m.graph.gpus.len())?;
    let axis = mesh.axes.iter().position(|x| x.name == *name).ok_or_else(|| {
        let known: Vec<&str> = mesh.axes.iter().map(|x| x.name.as_str()).collect();
        Error::Mesh(format!("no axis `{name}` in {text}; there are {}", known.join(", ")))
    })?;
    let groups = mesh.groups(axis);
    let title = format!("{} groups of {name}={}, each in its colour", groups.len(), mesh.axes[axis].size);
    let walks = groups.iter().map(|g| g.iter().map(|&r| m.graph.gpus[r]).collect()).collect();
    Ok(Some(Overlay { title, walks, closed: true }))
}

/// The whole page.
fn text(m: &Machine, all_gids: bool) -> String {
    let g = &m.graph;
    let mut out = String::new();
    let name = if m.system.name.is_empty() { "this machine" } else { &m.system.name };
    let count = |n: usize, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
    let mut facts = vec![
        count(g.numas.len(), "NUMA node"),
        count(g.gpus.len(), "GPU"),
        count(m.system.ports().count(), "port"),
    ];
    if !m.system.rdma.is_empty() {
        facts.push(count(m.system.rdma.len(), "RDMA device"));
    }
    if g.nvswitch.is_some() {
        facts.push("NVSwitch".into());
    }
    out.push_str(&format!("{}: {}\n\n", printable(name), facts.join(", ")));
    for n in 0..m.system.numas.len() {
        numa(m, n, &mut out);
    }
    sockets(m, &mut out);
    flattened(m, &mut out);
    matrix(m, &mut out);
    out.push_str(&super::rdma::tables(&m.system, all_gids));
    findings(m, &mut out);
    out
}

fn numa(m: &Machine, n: usize, out: &mut String) {
    let numa = &m.system.numas[n];
    let mut facts = Vec::new();
    let vendor = if numa.vendor.is_empty() { numa.arch.clone() } else { numa.vendor.trim().to_owned() };
    if !vendor.is_empty() {
        facts.push(match (numa.family, numa.model) {
            (Some(f), Some(model)) if vendor == "AuthenticAMD" && amd_family(f) != f => {
                format!("{vendor} family {} (written as {f}) model {model}", amd_family(f))
            }
            (Some(f), Some(model)) => format!("{vendor} family {f} model {model}"),
            _ => vendor,
        });
    }
    if let Some(cpus) = numa.cpus().as_deref().and_then(threads) {
        facts.push(cpus);
    }
    if let Some(memory) = numa.memory {
        facts.push(format!("{} of memory", bytes(memory as f64)));
    }
    out.push_str(&format!("{}  {}\n", m.graph.nodes[m.graph.numas[n]].name, printable(&facts.join(", "))));
    let below: Vec<usize> = m.system.children(Parent::Numa(n)).collect();
    let virtuals: Vec<&Port> = numa.nics.iter().flat_map(|x| &x.ports).collect();
    let last = below.len() + virtuals.len();
    for (i, &d) in below.iter().enumerate() {
        device(m, d, "", i + 1 == last, out);
    }
    for (i, p) in virtuals.iter().enumerate() {
        let branch = if below.len() + i + 1 == last { "└─ " } else { "├─ " };
        out.push_str(&format!("{branch}{}\n", port(p)));
    }
    out.push('\n');
}

fn device(m: &Machine, d: usize, indent: &str, last: bool, out: &mut String) {
    let dev = &m.system.devices[d];
    let branch = if last { "└─ " } else { "├─ " };
    out.push_str(&format!("{indent}{branch}{}\n", printable(&describe(m, d, dev))));
    let indent = format!("{indent}{}", if last { "   " } else { "│  " });
    let below: Vec<usize> = m.system.children(Parent::Device(d)).collect();
    let ports: Vec<&Port> = dev.nics.iter().flat_map(|x| &x.ports).collect();
    let count = below.len() + ports.len();
    for (i, &b) in below.iter().enumerate() {
        device(m, b, &indent, i + 1 == count, out);
    }
    for (i, p) in ports.iter().enumerate() {
        let branch = if below.len() + i + 1 == count { "└─ " } else { "├─ " };
        out.push_str(&format!("{indent}{branch}{}\n", port(p)));
    }
}

fn describe(m: &Machine, d: usize, dev: &Device) -> String {
    let node = m.graph.nodes.iter().position(|n| n.device == Some(d));
    let mut text = match (&dev.gpu, m.system.children(Parent::Device(d)).count()) {
        (Some(gpu), _) => {
            let sm = match (&gpu.gcn, gpu.sm) {
                (Some(gcn), _) => format!(" {gcn}"),
                (None, 0) => String::new(),
                (None, sm) => format!(" sm {}.{}", sm / 10, sm % 10),
            };
            let product = dev.product.as_deref().unwrap_or(if gpu.assumed { "GPU?" } else { "GPU" });
            let name = node.map_or(format!("GPU{}", gpu.dev), |n| m.graph.nodes[n].name.clone());
            format!("{name}  {product}{sm}  {}", dev.bus)
        }
        (None, 1..) if is_part_of_switch(m, d) => format!("{}  part of the switch above", dev.bus),
        (None, 1) => format!("{}  PCIe bridge", dev.bus),
        (None, 2..) => format!("{}  PCIe switch", dev.bus),
        (None, 0) => {
            let product = dev.product.as_deref().unwrap_or("");
            let ids = dev.ids.map_or(String::new(), |i| format!(" [{:04x}:{:04x}]", i[0], i[1]));
            format!("{}  {}{ids} {product}", dev.bus, kind_name(dev)).trim_end().to_owned()
        }
    };
    text.push_str(&link_text(m, dev, node));
    if let Some(node) = node {
        text.push_str(&nvlinks(m, node));
    }
    text
}

fn link_text(m: &Machine, dev: &Device, node: Option<NodeId>) -> String {
    let up = node.and_then(|n| {
        let mut links = m.graph.out[n].iter().map(|&l| &m.graph.links[l]);
        links.rfind(|l| l.kind == LinkKind::Pci)
    });
    if let Some(link) = up.filter(|l| l.source == Source::Measured) {
        return format!("  {} GB/s measured", gbps(link.bandwidth));
    }
    let speed = dev.link_speed.as_deref().unwrap_or("").trim_end_matches(" PCIe").trim();
    let stated = match (speed, dev.link_width.unwrap_or(0)) {
        ("" | "Unknown", _) => return "  link speed not readable".to_owned(),
        (speed, 0 | 255) => format!("{speed}, width not readable"),
        (speed, width) => format!("{speed} x{width}"),
    };
    if dev.link_is_doubtful() {
        return format!("  {stated} (not believed)");
    }
    let max = dev
        .link_max
        .as_deref()
        .map_or(String::new(), |max| format!(", could do {}", max.replace(" PCIe", "")));
    format!("  {} GB/s ({stated}{max})", gbps(dev.link_bandwidth()))
}

fn nvlinks(m: &Machine, node: NodeId) -> String {
    let amd = xgmi(m, node);
    let mut text = String::new();
    for (kind, word) in [(LinkKind::Nvl, if amd { "xGMI" } else { "NVLink" }), (LinkKind::C2c, "C2C")] {
        let links = m.graph.out[node].iter().map(|&l| &m.graph.links[l]);
        let links: Vec<String> = links
            .filter(|l| l.to != node && l.kind == kind)
            .map(|l| format!("{} {}", m.graph.nodes[l.to].name, gbps(l.bandwidth)))
            .collect();
        if !links.is_empty() {
            text.push_str(&format!("  {word} GB/s: {}", links.join(", ")));
        }
    }
    text
}

/// A GPU's links to others are xGMI.
fn xgmi(m: &Machine, node: NodeId) -> bool {
    m.graph.nodes[node].device.is_some_and(|d| {
        m.system.devices[d].gpu.as_ref().is_some_and(|g| g.gcn.is_some() || g.nvlinks.iter().any(|l| l.xgmi))
    })
}

fn port(p: &Port) -> String {
    let mut facts = vec![match p.speed_mbps.filter(|&s| s > 0.0) {
        Some(s) => format!("{} Gb/s", gbps(s / 1000.0)),
        None => "speed not stated, 10 Gb/s assumed".to_owned(),
    }];
    if let Some(state) = &p.state {
        facts.push(state.clone());
    }
    if let Some(other) = &p.companion {
        facts.push(format!("with {other}"));
    }
    let name = match (p.name.as_str(), p.port) {
        ("", _) => "port".to_owned(),
        // Ports of one RDMA device have its name.
        (name, Some(number)) if number > 1 && p.guid.is_some() => format!("{name} port {number}"),
        (name, _) => name.to_owned(),
    };
    printable(&format!("{name}  {}", facts.join(", "))).into_owned()
}

/// `40 hardware threads (0-39)`: what the kernel numbers as CPUs.
fn threads(list: &[u32]) -> Option<String> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &c in list {
        match ranges.last_mut() {
            Some(r) if r.1 + 1 == c => r.1 = c,
            _ => ranges.push((c, c)),
        }
    }
    let text: Vec<String> =
        ranges.iter().map(|&(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    let what = if list.len() == 1 { "hardware thread" } else { "hardware threads" };
    (!list.is_empty()).then(|| format!("{} {what} ({})", list.len(), text.join(",")))
}

fn sockets(m: &Machine, out: &mut String) {
    let links: Vec<_> = m.graph.links.iter().filter(|l| l.kind == LinkKind::Sys).collect();
    if let Some(first) = links.first() {
        let known =
            m.system.numas.iter().all(|n| !n.arch.is_empty() && (n.arch != "x86_64" || !n.vendor.is_empty()));
        let measured = match first.source {
            Source::Measured => "measured",
            _ if known => "by NCCL's table for this processor",
            _ => "which is NCCL's guess for a processor that is not known",
        };
        out.push_str(&format!(
            "Between NUMA nodes: {} GB/s in one direction, {measured}.\n\n",
            gbps(first.bandwidth)
        ));
    }
}

/// A bridge with devices below it that is one chip with the switch above, so that paths do not count it.
pub(super) fn is_part_of_switch(m: &Machine, d: usize) -> bool {
    class_kind(m.system.devices[d].class) == ClassKind::Bridge
        && m.system.devices[d].gpu.is_none()
        && m.graph.nodes.iter().all(|n| n.device != Some(d))
        && m.system.children(Parent::Device(d)).next().is_some()
}

/// Says why the matrix shows fewer switches than the tree.
fn flattened(m: &Machine, out: &mut String) {
    let n = (0..m.system.devices.len()).filter(|&d| is_part_of_switch(m, d)).count();
    if n > 0 {
        let bridges = if n == 1 { "1 bridge is".to_owned() } else { format!("{n} bridges are") };
        out.push_str(&format!(
            "{bridges} one chip with the switch above (Broadcom), as NCCL counts them: paths and the words below take \
             both for one switch.\n\n"
        ));
    }
}

/// As `nvidia-smi topo -m` prints it.
fn matrix(m: &Machine, out: &mut String) {
    let ends: Vec<NodeId> = m.graph.gpus.iter().chain(&m.graph.nets).copied().collect();
    if ends.len() < 2 {
        return;
    }
    if ends.len() > 24 {
        out.push_str(&format!("{} devices: `nd-topo paths` lists how close each pair is.\n\n", ends.len()));
        return;
    }
    let names: Vec<&str> = ends.iter().map(|&n| m.graph.nodes[n].name.as_str()).collect();
    let mut head = vec![""];
    head.extend(&names);
    let mut t = Table::new(&head);
    for (&a, name) in ends.iter().zip(&names) {
        let cells = ends.iter().map(|&b| if a == b { "X".to_owned() } else { cell(m, a, b) });
        t.row(std::iter::once((*name).to_owned()).chain(cells));
    }
    out.push_str(&t.render());
    let mut words = vec![
        "NVL NVLink or xGMI whose number is not known",
        "NV# so many NVLinks",
        "XGMI# so many xGMI links",
        "NVB NVLink or xGMI through a GPU",
        "C2C chip link",
        "PIX one PCIe switch",
        "PXB several",
        "P2C chip link, then PCIe",
        "PXN through a GPU near the NIC",
        "PHB host bridge",
        "NODE host bridges of one NUMA node",
        "SYS between NUMA nodes",
        "DIS not connected",
    ];
    let used = |word: &&str| {
        let name = word.split(' ').next().unwrap_or_default();
        let stem = name.trim_end_matches('#');
        let fits = |cell: &str| match cell.strip_prefix(stem) {
            Some(rest) if name.ends_with('#') => rest.starts_with(|c: char| c.is_ascii_digit()),
            Some(rest) => rest.is_empty(),
            None => false,
        };
        ends.iter().any(|&a| ends.iter().any(|&b| a != b && fits(&cell(m, a, b))))
    };
    words.retain(used);
    out.push_str(&format!("\n{}\n\n", words.join(" · ")));
}

/// One word of the matrix.
fn cell(m: &Machine, a: NodeId, b: NodeId) -> String {
    match m.paths.nvlinks(&m.graph, a, b) {
        Some(n) if xgmi(m, a) => format!("XGMI{n}"),
        Some(n) => format!("NV{n}"),
        None => m.paths.class_for_people(&m.graph, a, b).word().to_owned(),
    }
}

fn findings(m: &Machine, out: &mut String) {
    if m.system.findings.is_empty() {
        return;
    }
    out.push_str("What could not be seen, or is not believed:\n");
    for f in &m.system.findings {
        out.push_str(&format!("  {}: {}\n", printable(&f.source), printable(&f.message)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_threads() {
        let shown = |map: &str| {
            let numa = nd_topology::model::Numa { affinity: Some(map.into()), ..Default::default() };
            numa.cpus().as_deref().and_then(threads)
        };
        assert_eq!(shown("3").as_deref(), Some("2 hardware threads (0-1)"));
        assert_eq!(shown("00000001,80000001").as_deref(), Some("3 hardware threads (0,31-32)"));
        assert_eq!(shown("1,,0").as_deref(), Some("1 hardware thread (64)"));
        assert_eq!(shown("0"), None);
        assert_eq!(shown("x"), None);
    }
}
