//! RDMA devices from sysfs: what there is, and where in the PCI tree it sits.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::model::{Nic, Port, System};
use crate::rdma::parse::{self, Folder};
use crate::rdma::{RdmaDevice, RdmaPort};

const SOURCE: &str = "sysfs";
const NONE: &str = "no RDMA device (no InfiniBand, RoCE or EFA driver is loaded)";
/// Files of sysfs are shorter.
const MAX_FILE: u64 = 4096;
/// Entries of a folder that are looked at.
const MAX_NAMES: usize = 65_536;

/// sysfs, or a copy of it.
struct Tree<'r>(&'r Path);

impl Folder for Tree<'_> {
    fn text(&self, path: &str) -> Option<String> {
        let mut text = String::new();
        fs::File::open(self.0.join(path)).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let Ok(list) = fs::read_dir(self.0.join(path)) else { return Vec::new() };
        list.filter_map(|e| e.ok()?.file_name().into_string().ok()).take(MAX_NAMES).collect()
    }
}

/// Reads the RDMA devices below `root` (usually `/sys`), without their places.
pub fn read(root: &Path) -> Vec<RdmaDevice> {
    parse::devices(&Tree(root))
}

/// Whether a system without RDMA devices was looked at for them, unlike one from a format that has no place for them.
pub fn has_none(system: &System) -> bool {
    system.rdma.is_empty() && system.findings.iter().any(|f| f.source == SOURCE && f.message == NONE)
}

/// Adds the RDMA devices to a system whose PCI devices and interfaces are there, each where it sits, and their ports to
/// the adapters. `device_of` finds the PCI device at or above a link.
pub(super) fn add(root: &Path, system: &mut System, device_of: impl Fn(&Path) -> Option<usize>) {
    let found = read(root);
    if found.is_empty() {
        system.finding(SOURCE, NONE);
    }
    for mut device in found {
        place(root, &mut device, &device_of);
        match device.device {
            Some(at) => device.ports.iter().for_each(|p| add_port(system, at, &device, p)),
            None => system.finding(
                SOURCE,
                format!(
                    "RDMA device {} belongs to no PCI device, so nothing is known of its place",
                    device.name
                ),
            ),
        }
        if device.uverbs.is_none() {
            system.finding(
                SOURCE,
                format!(
                    "no program can open RDMA device {}: the kernel shows no uverbs for it (ib_uverbs)",
                    device.name
                ),
            );
        }
        system.rdma.push(device);
    }
}

/// Soft-RoCE and Soft-iWARP have no device of their own: they sit where their interface does.
fn place(root: &Path, device: &mut RdmaDevice, device_of: impl Fn(&Path) -> Option<usize>) {
    let own = root.join("class/infiniband").join(&device.name).join("device");
    let netdev = device.ports.iter().find_map(|p| p.netdev.as_deref());
    device.software = !own.exists() && netdev.is_some();
    let link: Option<PathBuf> = match netdev {
        _ if own.exists() => Some(own),
        Some(netdev) => Some(root.join("class/net").join(netdev).join("device")),
        None => None,
    };
    let Some(link) = link else { return };
    device.device = device_of(&link);
    // A device without a node of its own (virtio) is where the PCI function above it is.
    let (Ok(path), Ok(root)) = (fs::canonicalize(link), fs::canonicalize(root)) else { return };
    let node = |folder: &Path| Tree(folder).text("numa_node").and_then(|n| n.parse::<i32>().ok());
    device.numa = path.ancestors().take_while(|a| a.starts_with(&root)).find_map(node).filter(|&n| n >= 0);
}

/// An RDMA port is a port of its adapter; with its network interface it is one.
fn add_port(system: &mut System, at: usize, device: &RdmaDevice, rdma: &RdmaPort) {
    let nics = &mut system.devices[at].nics;
    if nics.is_empty() {
        nics.push(Nic::default());
    }
    let ports = &mut nics[0].ports;
    let port = Port {
        name: device.name.clone(),
        speed_mbps: rdma.rate_mbps.map(|r| r as f64),
        port: i32::try_from(rdma.number).ok(),
        guid: device.node_guid,
        gdr: Some(true),
        companion: rdma.netdev.clone(),
        state: rdma.state.map(|s| s.to_string()),
        ..Port::default()
    };
    match ports.iter_mut().find(|p| rdma.netdev.as_deref() == Some(p.name.as_str())) {
        Some(interface) => *interface = port,
        None => ports.push(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_not_known() {
        let root = tempfile::tempdir().unwrap();
        let port = root.path().join("class/infiniband/rxe0/ports/1");
        fs::create_dir_all(port.join("gids")).unwrap();
        fs::write(port.join("state"), [0xff, 0xfe, 0]).unwrap();
        fs::write(port.join("rate"), vec![b'9'; 1 << 20]).unwrap();
        fs::create_dir(port.join("link_layer")).unwrap();
        let devices = read(root.path());
        assert_eq!(devices[0].ports, [RdmaPort { number: 1, ..RdmaPort::default() }]);
    }

    #[test]
    fn a_device_without_a_place_is_kept_and_said() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("class/infiniband/siw_lo/ports/1")).unwrap();
        let mut system = System::default();
        add(root.path(), &mut system, |_| None);
        assert_eq!((system.rdma.len(), system.rdma[0].device), (1, None));
        let said: Vec<&str> = system.findings.iter().map(|f| f.message.as_str()).collect();
        assert!(
            said[0].contains("siw_lo belongs to no PCI device") && said[1].contains("no uverbs"),
            "{said:?}"
        );
    }
}
