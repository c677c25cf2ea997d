//! The machine from sysfs alone: NUMA nodes, the PCI tree with link speeds, network interfaces and RDMA ports.
//!
//! Everything is read under a root folder, so that tests can give a copy. What is missing is said, not invented.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::model::{BusId, ClassKind, Device, Nic, Numa, Parent, Port, System, class_kind};
use crate::{Error, Result};

const SOURCE: &str = "sysfs";
/// More PCI functions than any host has.
const MAX_DEVICES: usize = 65_536;

/// Reads the machine below `root` (usually `/sys`).
///
/// # Errors
/// [`Error::Provider`] if `root` has no `devices` folder.
pub fn read(root: &Path) -> Result<System> {
    if !root.join("devices").is_dir() {
        return Err(Error::Provider(format!(
            "{} holds no `devices`: sysfs is not mounted there (in a container, mount /sys read-only)",
            root.display()
        )));
    }
    let mut r = Reader { root, system: System::default(), numa: HashMap::new(), at: HashMap::new() };
    r.system.name = one_line(Path::new("/proc/sys/kernel/hostname")).unwrap_or_default();
    r.numas();
    r.pci();
    r.interfaces();
    let at = std::mem::take(&mut r.at);
    super::rdma::add(root, &mut r.system, |link| device_of(&at, link));
    r.speedless();
    r.virtual_machine();
    crate::formats::hwloc_xml::number_ports(&mut r.system);
    Ok(r.system)
}

fn one_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    one_line(path)?.parse().ok()
}

fn hex(path: &Path) -> Option<u32> {
    u32::from_str_radix(one_line(path)?.trim_start_matches("0x"), 16).ok()
}

/// Names in a folder, sorted, so that the result does not depend on the file system.
fn entries(path: &Path) -> Vec<String> {
    let Ok(list) = fs::read_dir(path) else { return Vec::new() };
    let mut names: Vec<String> =
        list.filter_map(|e| e.ok()?.file_name().into_string().ok()).take(MAX_DEVICES).collect();
    names.sort();
    names
}

fn mem_total(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|l| l.contains("MemTotal"))?;
    line.split_whitespace().rev().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Holds the memory of the nodes against that of the host: some virtual machines and sandboxes show a part of it.
fn check_memory(system: &mut System, total: Option<u64>) {
    let nodes: Option<u64> = system.numas.iter().map(|n| n.memory).sum();
    let (Some(nodes), Some(total)) = (nodes, total) else { return };
    if nodes.abs_diff(total) <= total / 20 {
        return;
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let one = system.numas.len() == 1;
    let which = if one { "; the latter is shown" } else { "" };
    system.finding(
        SOURCE,
        format!(
            "the NUMA nodes have {:.2} GB together, and /proc/meminfo says {:.2} GB{which}",
            gb(nodes),
            gb(total)
        ),
    );
    if one {
        system.numas[0].memory = Some(total);
    }
}

/// The device at or above a sysfs `device` link.
fn device_of(at: &HashMap<PathBuf, usize>, link: &Path) -> Option<usize> {
    let path = fs::canonicalize(link).ok()?;
    path.ancestors().find_map(|a| at.get(a).copied())
}

struct Reader<'a> {
    root: &'a Path,
    system: System,
    /// Index of a NUMA node by its number.
    numa: HashMap<i32, usize>,
    /// Index of a device by its folder's real path.
    at: HashMap<PathBuf, usize>,
}

impl Reader<'_> {
    fn numas(&mut self) {
        let folder = self.root.join("devices/system/node");
        let (arch, vendor, family, model) = processor();
        let base = Numa { arch, vendor, family, model, ..Numa::default() };
        let mut ids: Vec<i32> =
            entries(&folder).iter().filter_map(|n| n.strip_prefix("node")?.parse().ok()).collect();
        ids.sort_unstable();
        for id in ids {
            let node = folder.join(format!("node{id}"));
            let memory = mem_total(&node.join("meminfo"));
            self.numa.insert(id, self.system.numas.len());
            let affinity = one_line(&node.join("cpumap"));
            self.system.numas.push(Numa { id, affinity, memory, ..base.clone() });
        }
        // The host's own account, where the host itself is looked at.
        if self.root == Path::new("/sys") {
            check_memory(&mut self.system, mem_total(Path::new("/proc/meminfo")));
        }
        if self.system.numas.is_empty() {
            self.numa.insert(0, 0);
            self.system.numas.push(base);
            self.system.finding(SOURCE, "the kernel shows no NUMA nodes; the machine is taken for one node");
        }
    }

    fn pci(&mut self) {
        let folder = self.root.join("bus/pci/devices");
        let names = entries(&folder);
        if names.is_empty() {
            self.system.finding(SOURCE, "no PCI devices are visible");
        }
        // By real path parents come before children.
        let mut found: Vec<(PathBuf, BusId)> = names
            .iter()
            .filter_map(|n| Some((fs::canonicalize(folder.join(n)).ok()?, BusId::parse(n).ok()?)))
            .collect();
        found.sort();
        let mut unplaced = Vec::new();
        for (path, bus) in found {
            let above = path.ancestors().skip(1).find_map(|a| self.at.get(a).copied());
            let node: i32 = number(&path.join("numa_node")).unwrap_or(-1);
            let parent = match above {
                Some(d) => Parent::Device(d),
                None => {
                    if node < 0 && self.system.numas.len() > 1 {
                        unplaced.push(bus.to_string());
                    }
                    Parent::Numa(self.numa.get(&node).copied().unwrap_or(0))
                }
            };
            let Some(class) = hex(&path.join("class")) else { continue };
            let mut d = Device::new(parent, bus, class & 0xff_ffff);
            let id = |name: &str| hex(&path.join(name)).map(|v| v as u16);
            if let (Some(v), Some(p)) = (id("vendor"), id("device")) {
                let sub = [id("subsystem_vendor").unwrap_or(0), id("subsystem_device").unwrap_or(0)];
                d.ids = Some([v, p, sub[0], sub[1]]);
            }
            d.link_speed = one_line(&path.join("current_link_speed"));
            d.link_width = number(&path.join("current_link_width"));
            let max = (one_line(&path.join("max_link_speed")), number::<u32>(&path.join("max_link_width")));
            if let (Some(speed), Some(width)) = max
                && (Some(&speed) != d.link_speed.as_ref() || Some(width) != d.link_width)
            {
                d.link_max = Some(format!("{speed} x{width}"));
            }
            d.host_bridge = path
                .ancestors()
                .filter_map(|a| a.file_name()?.to_str())
                .find(|n| n.starts_with("pci") && n.contains(':'))
                .map(str::to_owned);
            self.at.insert(path, self.system.devices.len());
            self.system.devices.push(d);
        }
        if !unplaced.is_empty() {
            self.system.finding(
                SOURCE,
                format!(
                    "{} PCI devices say no NUMA node ({}…); they are shown under the first",
                    unplaced.len(),
                    unplaced[0]
                ),
            );
        }
    }

    fn interfaces(&mut self) {
        let folder = self.root.join("class/net");
        for name in entries(&folder) {
            let path = folder.join(&name);
            if name == "lo" {
                continue;
            }
            // Only what has a device carries bytes out of the machine: bridges, VPNs and containers' ends do not.
            let Some(at) = device_of(&self.at, &path.join("device")) else { continue };
            let speed: Option<f64> = number(&path.join("speed")).filter(|&s: &f64| s > 0.0);
            let port = Port {
                name,
                speed_mbps: speed,
                port: number::<i32>(&path.join("dev_port")).map(|p| p + 1),
                state: one_line(&path.join("operstate")),
                ..Port::default()
            };
            let nics = &mut self.system.devices[at].nics;
            match nics.first_mut() {
                Some(nic) => nic.ports.push(port),
                None => nics.push(Nic { ports: vec![port], extra: Vec::new() }),
            }
        }
    }

    fn speedless(&mut self) {
        let silent =
            self.system.ports().filter(|(_, p)| p.speed_mbps.is_none()).map(|(_, p)| p.name.as_str());
        let silent = silent.collect::<Vec<_>>().join(", ");
        if !silent.is_empty() {
            self.system.finding(
                SOURCE,
                format!(
                    "no speed is stated for {silent} (virtual NICs do not know theirs); 10 Gb/s is assumed until \
                     measured"
                ),
            );
        }
    }

    fn virtual_machine(&mut self) {
        let dmi = |f: &str| one_line(&self.root.join("class/dmi/id").join(f)).unwrap_or_default();
        let product = format!("{} {}", dmi("sys_vendor"), dmi("product_name"));
        let virtio = self.system.devices.iter().filter(|d| d.ids.is_some_and(|i| i[0] == 0x1af4)).count();
        let names = [
            "QEMU",
            "KVM",
            "VMware",
            "VirtualBox",
            "Xen",
            "Virtual Machine",
            "Amazon EC2",
            "Google Compute",
            "Firecracker",
        ];
        let named = names.iter().find(|n| product.contains(*n));
        if named.is_none() && virtio == 0 {
            return;
        }
        let what = match named {
            Some(n) => format!("a virtual machine ({n})"),
            None => format!("a virtual machine ({virtio} virtio devices)"),
        };
        self.system.finding(
            SOURCE,
            format!("this is {what}: what it shows of NUMA nodes, switches and speeds is what its host chose to show"),
        );
        let accelerators = self.system.devices.iter().any(|d| class_kind(d.class) == ClassKind::Gpu);
        if !accelerators {
            self.system
                .finding(SOURCE, "no device of display or accelerator class: no GPU is passed through");
        }
    }
}

/// Architecture, maker, family and model of the first processor.
fn processor() -> (String, String, Option<i32>, Option<i32>) {
    let arch = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "powerpc64" => "ppc64",
        other => other,
    };
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == name))?;
        Some(line.split(':').nth(1)?.trim().to_owned())
    };
    let int = |name: &str| field(name).and_then(|v| v.parse().ok());
    (arch.to_owned(), field("vendor_id").unwrap_or_default(), int("cpu family"), int("model"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Two NUMA nodes; on the second a switch with a GPU and a RoCE NIC of two GIDs, and a USB interface that has no
    /// PCI device.
    fn fixture() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for n in 0..2 {
            put(&format!("devices/system/node/node{n}/cpumap"), &format!("{:x}\n", 0xf << (4 * n)));
            put(&format!("devices/system/node/node{n}/meminfo"), &format!("Node {n} MemTotal:  1024 kB\n"));
        }
        let bridge = "devices/pci0000:80/0000:80:01.0";
        let gpu = format!("{bridge}/0000:81:00.0");
        let nic = format!("{bridge}/0000:82:00.0");
        for (path, class, speed) in [
            (bridge.to_owned(), "0x060400", "16.0 GT/s PCIe"),
            (gpu, "0x030200", "16.0 GT/s PCIe"),
            (nic.clone(), "0x020000", "2.5 GT/s PCIe"),
        ] {
            put(&format!("{path}/class"), class);
            put(&format!("{path}/numa_node"), "1\n");
            put(&format!("{path}/vendor"), "0x10de\n");
            put(&format!("{path}/device"), "0x20b0\n");
            put(&format!("{path}/current_link_speed"), speed);
            put(&format!("{path}/current_link_width"), if class == "0x020000" { "1\n" } else { "16\n" });
            let name = path.rsplit('/').next().unwrap().to_owned();
            fs::create_dir_all(root.path().join("bus/pci/devices")).unwrap();
            symlink(root.path().join(&path), root.path().join("bus/pci/devices").join(name)).unwrap();
        }
        put("class/net/eth9/speed", "200000\n");
        put("class/net/eth9/operstate", "up\n");
        symlink(root.path().join(&nic), root.path().join("class/net/eth9/device")).unwrap();
        put("class/net/docker0/speed", "10000\n");
        let port = "class/infiniband/rocep0/ports/1";
        put(&format!("{port}/rate"), "200 Gb/sec (4X HDR)\n");
        put(&format!("{port}/state"), "4: ACTIVE\n");
        put(&format!("{port}/gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n");
        put(&format!("{port}/gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        put(&format!("{port}/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        put(&format!("{port}/gid_attrs/types/1"), "RoCE v2\n");
        put(&format!("{port}/gid_attrs/ndevs/0"), "eth9\n");
        put("class/infiniband/rocep0/node_guid", "0000:0000:0000:00ab\n");
        root
    }

    #[test]
    fn devices_are_where_they_are() {
        let root = fixture();
        let system = read(root.path()).unwrap();
        assert_eq!(system.numas.len(), 2);
        assert_eq!(system.numas[1].memory, Some(1 << 20));
        let nic = system.devices.iter().position(|d| d.bus.as_str() == "0000:82:00.0").unwrap();
        assert_eq!(system.numa_of(nic), 1);
        assert!(matches!(system.devices[nic].parent, Parent::Device(_)));
        assert_eq!(system.devices[nic].host_bridge.as_deref(), Some("pci0000:80"));
        let port = &system.devices[nic].nics[0].ports;
        assert_eq!(port.len(), 1, "interface and RDMA device are one port");
        assert_eq!((port[0].name.as_str(), port[0].companion.as_deref()), ("rocep0", Some("eth9")));
        assert_eq!((port[0].speed_mbps, port[0].guid), (Some(200_000.0), Some(0xab)));
        let rdma = &system.rdma[0];
        assert_eq!((rdma.device, rdma.numa, rdma.software), (Some(nic), Some(1), true));
        assert_eq!((rdma.ports[0].gid_count, rdma.ports[0].gids.len()), (Some(3), 2));
        assert!(system.ports().all(|(_, p)| p.name != "docker0"));
        system.validate().unwrap();
    }

    #[test]
    fn a_link_of_one_lane_is_not_believed() {
        let root = fixture();
        let options = super::super::Options { sysfs: Some(root.path()), ..Default::default() };
        let system = super::super::detect(&options).unwrap();
        let text: Vec<&str> = system.findings.iter().map(|f| f.message.as_str()).collect();
        assert!(text.iter().any(|t| t.contains("2.5 GT/s PCIe x1: 0000:82:00.0")), "{text:?}");
        assert!(text.iter().any(|t| t.contains("taken for GPUs")), "{text:?}");
    }

    #[test]
    fn no_sysfs_is_said() {
        let empty = tempfile::tempdir().unwrap();
        assert!(read(empty.path()).unwrap_err().to_string().contains("mount /sys"));
    }
}
