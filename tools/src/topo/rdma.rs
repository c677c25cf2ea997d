//! RDMA devices for people: the tables of `nd-topo show`.

use nd_topology::model::Parent;
use nd_topology::rdma::{LinkLayer, NodeType, RdmaDevice, RdmaPort};
use nd_topology::{System, rdma};

use crate::table::Table;

/// With so few addresses all are shown.
const FEW_GIDS: usize = 16;

/// The devices with their ports, and their addresses: all of them, or few.
pub(super) fn tables(system: &System, all_gids: bool) -> String {
    if system.rdma.is_empty() {
        return String::new();
    }
    let mut out = "RDMA devices\n".to_owned();
    out.push_str(&devices(system));
    let count: usize = ports(system).map(|(_, p)| p.gids.len()).sum();
    if count > 0 && (all_gids || count <= FEW_GIDS) {
        out.push_str(
            "\nTheir addresses (GIDs); * is the one that is used unless ND_IB_GID_INDEX says another\n",
        );
        out.push_str(&gids(system));
    } else if count > 0 {
        out.push_str(&format!("\n{count} addresses (GIDs): `nd-topo show --gids` lists them.\n"));
    }
    out.push('\n');
    out
}

fn ports(system: &System) -> impl Iterator<Item = (&RdmaDevice, &RdmaPort)> {
    system.rdma.iter().flat_map(|d| d.ports.iter().map(move |p| (d, p)))
}

fn devices(system: &System) -> String {
    let mut head = vec!["device", "port", "state", "link", "speed", "MTU", "interface", "place"];
    if system.rdma.iter().any(|d| d.firmware.is_some()) {
        head.push("firmware");
    }
    let mut t = Table::new(&head);
    for d in &system.rdma {
        if d.ports.is_empty() {
            t.row([d.name.clone(), "none".into()]);
        }
        for p in &d.ports {
            t.row([
                d.name.clone(),
                p.number.to_string(),
                state(p),
                link(d, p),
                speed(p),
                p.roce_mtu().map_or(String::new(), |m| m.to_string()),
                p.netdev.clone().unwrap_or_default(),
                place(system, d),
                d.firmware.clone().unwrap_or_default(),
            ]);
        }
    }
    t.render()
}

fn state(p: &RdmaPort) -> String {
    match (p.state, &p.link_state) {
        (None, _) => "not known".to_owned(),
        // What goes without saying.
        (Some(state), Some(link)) if link != "LinkUp" => format!("{state} ({link})"),
        (Some(state), _) => state.to_string(),
    }
}

fn link(d: &RdmaDevice, p: &RdmaPort) -> String {
    let kind = match (p.link_layer, d.node_type) {
        (_, Some(NodeType::Iwarp)) => "iWARP".to_owned(),
        (_, Some(NodeType::Usnic)) => "usNIC".to_owned(),
        (Some(LinkLayer::Ethernet), _) => "RoCE".to_owned(),
        (Some(layer), _) => layer.to_string(),
        (None, Some(NodeType::Other)) => "neither InfiniBand nor RoCE".to_owned(),
        (None, _) => "not known".to_owned(),
    };
    match p.lid {
        Some(lid) => format!("{kind}, LID {lid}"),
        None => kind,
    }
}

fn speed(p: &RdmaPort) -> String {
    let Some(mbps) = p.rate_mbps else { return "not known".to_owned() };
    let gbits = mbps as f64 / 1000.0;
    match &p.lanes {
        Some(lanes) => format!("{gbits} Gb/s ({lanes})"),
        None => format!("{gbits} Gb/s"),
    }
}

/// Its NUMA node, and its address in the PCI tree with what is above it there.
fn place(system: &System, d: &RdmaDevice) -> String {
    let mut facts = Vec::new();
    if let Some(numa) = d.numa {
        facts.push(format!("NUMA{numa}"));
    }
    if let Some(at) = d.device.and_then(|at| system.devices.get(at)) {
        if let Parent::Device(above) = at.parent {
            facts.push(format!("{} below {}", at.bus, system.devices[above].bus));
        } else {
            facts.push(at.bus.to_string());
        }
    }
    if facts.is_empty() {
        facts.push("not known".to_owned());
    }
    if d.software {
        facts.push("in software".to_owned());
    }
    facts.join(", ")
}

fn gids(system: &System) -> String {
    let mut t = Table::new(&["", "port", "index", "kind", "address", "interface"]);
    for (d, p) in ports(system) {
        let used = p.usable_gids().first().map(|(_, g)| g.index);
        for g in &p.gids {
            t.row([
                if used == Some(g.index) { "*" } else { "" }.to_owned(),
                format!("{}:{}", d.name, p.number),
                g.index.to_string(),
                rdma::gid_word(p, g),
                g.address.to_string(),
                g.netdev.clone().unwrap_or_default(),
            ]);
        }
    }
    t.render()
}
