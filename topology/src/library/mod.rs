//! Machines known from their datasheets, as short TOML files (`topology/machines/`), and the reader for such files.
//!
//! ```toml
//! title = "Two sockets, four GPUs"
//! source = "where the facts come from"
//!
//! [cpu]
//! numas = 2
//! vendor = "GenuineIntel"    # with model: decides the speed between sockets
//! model = 143
//!
//! [[switch]]                 # PCIe switches, called sw0, sw1, … in order
//! on = ["numa0.0", "numa1"]  # one switch for each entry; numa0.1 is the second PCIe host bridge of NUMA node 0
//! link = "5.0 x16"           # PCIe generation and lanes toward the CPU
//! ids = [0x1000, 0xc010, 0x1000, 0xa096]  # may be left out: vendor, device, and those of the subsystem
//!
//! [gpu]
//! product = "H100"
//! sm = 90
//! on = ["sw0", "sw0", "sw1", "sw1"]
//! link = "5.0 x16"
//! nvswitch = 18              # NVLinks of each GPU to the NVSwitches; or pairs = [[0, 1, 4], …] (GPU, GPU, links)
//! peer_access = true         # false where other GPUs cannot reach the memory over PCIe (GeForce)
//!
//! [[nic]]
//! on = ["sw0", "sw1"]
//! mbps = 400_000
//! link = "5.0 x16"
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::formats::detect::{TomlKind, expect_toml};
use crate::model::{BusId, C2c, Device, Gpu, MAX_DEVICES, Nic, Numa, NvLink, Parent, Port, System};
use crate::{Error, Result};

macro_rules! machines {
    ($($name:literal),* $(,)?) => {
        const MACHINES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../machines/", $name, ".toml")))),*];
    };
}

machines!(
    "dgx-1",
    "dgx-2",
    "dgx-a100",
    "dgx-h100",
    "dgx-h200",
    "dgx-b200",
    "gb200-nvl72",
    "pcie4-8x",
    "pcie5-8x",
    "rtx4090-8x",
    "azure-ndv5",
    "aws-p5",
    "mi300x",
    "cpu-2s",
);

/// The names of the machines, in the order of the list above.
pub fn names() -> impl Iterator<Item = &'static str> {
    MACHINES.iter().map(|(n, _)| *n)
}

/// A machine by its name.
///
/// # Errors
/// [`Error::Unknown`] with the names there are.
pub fn machine(name: &str) -> Result<System> {
    let (name, text) = MACHINES
        .iter()
        .find(|(n, _)| n.eq_ignore_ascii_case(name))
        .ok_or_else(|| Error::unknown("machine", name, names()))?;
    let mut system = from_toml(text)?;
    system.extra.push(("machine".into(), (*name).into()));
    Ok(system)
}

/// The text of a machine's description, as a start for one's own.
pub fn description(name: &str) -> Option<&'static str> {
    MACHINES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, t)| *t)
}

/// Title and source of a machine.
pub fn about(name: &str) -> Option<(String, String)> {
    let file: File = toml::from_str(description(name)?).ok()?;
    Some((file.title, file.source))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    #[serde(default)]
    source: String,
    cpu: Cpu,
    #[serde(default)]
    switch: Vec<Switch>,
    gpu: Option<GpuTable>,
    #[serde(default)]
    nic: Vec<NicTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cpu {
    numas: usize,
    #[serde(default = "x86")]
    arch: String,
    #[serde(default)]
    vendor: String,
    family: Option<i32>,
    model: Option<i32>,
}

fn x86() -> String {
    "x86_64".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    on: Vec<String>,
    link: String,
    ids: Option<[u16; 4]>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuTable {
    product: String,
    #[serde(default)]
    sm: i32,
    gcn: Option<String>,
    on: Vec<String>,
    link: String,
    nvswitch: Option<u32>,
    #[serde(default)]
    pairs: Vec<(usize, usize, u32)>,
    c2c: Option<C2c>,
    #[serde(default = "yes")]
    gdr: bool,
    peer_access: Option<bool>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NicTable {
    on: Vec<String>,
    mbps: f64,
    link: String,
    #[serde(default = "mlx")]
    name: String,
    #[serde(default = "yes")]
    gdr: bool,
}

fn mlx() -> String {
    "mlx5_".to_owned()
}

/// Reads a machine's TOML (see the module's own text for the form).
pub fn from_toml(text: &str) -> Result<System> {
    expect_toml(text, TomlKind::Machine)?;
    let file: File = toml::from_str(text).map_err(|e| toml_error("machine TOML", text, &e))?;
    Builder { file: &file, system: System::default(), switches: Vec::new(), next: BTreeMap::new() }.build()
}

pub(crate) fn toml_error(format: &'static str, text: &str, e: &toml::de::Error) -> Error {
    let offset = e.span().map_or(0, |s| s.start);
    crate::formats::xml::Document { text, format }.error(offset, e.message().to_owned())
}

/// `5.0 x16` to what sysfs would show.
fn link(text: &str) -> Result<(String, u32)> {
    let bad =
        || Error::invalid(format!("link `{text}` is not a PCIe generation and lanes, such as `5.0 x16`"));
    let (generation, lanes) = text.split_once(" x").ok_or_else(bad)?;
    let speed = match generation.trim() {
        "1.0" => "2.5",
        "2.0" => "5.0",
        "3.0" => "8.0",
        "4.0" => "16.0",
        "5.0" => "32.0",
        "6.0" => "64.0",
        _ => return Err(bad()),
    };
    let lanes: u32 = lanes.trim().parse().map_err(|_| bad())?;
    if !(1..=32).contains(&lanes) {
        return Err(bad());
    }
    Ok((format!("{speed} GT/s PCIe"), lanes))
}

struct Builder<'a> {
    file: &'a File,
    system: System,
    /// For each switch where it hangs, its table, then its device.
    switches: Vec<(String, usize, Option<usize>)>,
    next: BTreeMap<usize, u32>,
}

impl Builder<'_> {
    fn build(mut self) -> Result<System> {
        let file = self.file;
        self.system.name.clone_from(&file.title);
        if !(1..=64).contains(&file.cpu.numas) {
            return Err(Error::invalid(format!(
                "cpu.numas is {}; there are 1 to 64 NUMA nodes",
                file.cpu.numas
            )));
        }
        let places = file.switch.iter().map(|t| &t.on).chain(file.gpu.iter().map(|t| &t.on));
        let devices: usize = places.chain(file.nic.iter().map(|t| &t.on)).map(Vec::len).sum();
        if devices > MAX_DEVICES {
            return Err(Error::invalid(format!(
                "{devices} switches, GPUs and NICs in one host; at most {MAX_DEVICES} are looked at"
            )));
        }
        for id in 0..file.cpu.numas {
            self.system.numas.push(Numa {
                id: id as i32,
                arch: file.cpu.arch.clone(),
                vendor: file.cpu.vendor.clone(),
                family: file.cpu.family,
                model: file.cpu.model,
                ..Numa::default()
            });
        }
        for (t, table) in file.switch.iter().enumerate() {
            for on in &table.on {
                self.switches.push((on.clone(), t, None));
            }
        }
        for s in 0..self.switches.len() {
            self.switch(s, 0)?;
        }
        if let Some(gpu) = &file.gpu {
            self.gpus(gpu)?;
        }
        self.nics()?;
        self.order();
        self.system.validate()?;
        Ok(self.system)
    }

    /// What a place stands for, and the host bridge where it names one.
    fn parent(&mut self, on: &str, depth: usize) -> Result<(Parent, Option<String>)> {
        let (node, bridge) = on.split_once('.').map_or((on, None), |(node, bridge)| (node, Some(bridge)));
        if let Some(n) = node.strip_prefix("numa").and_then(|n| n.parse::<usize>().ok()) {
            let bridge_is_known = bridge.is_none_or(|b| b.parse::<u8>().is_ok());
            if n < self.system.numas.len() && bridge_is_known {
                return Ok((Parent::Numa(n), bridge.map(|_| on.to_owned())));
            }
            let known: Vec<String> = (0..self.system.numas.len()).map(|n| format!("numa{n}")).collect();
            return Err(Error::unknown("NUMA node", on, known.iter().map(String::as_str)));
        }
        match on.strip_prefix("sw").and_then(|n| n.parse::<usize>().ok()) {
            Some(s) if s < self.switches.len() => {
                let at = self.switch(s, depth + 1)?;
                Ok((Parent::Device(at), self.system.devices[at].host_bridge.clone()))
            }
            _ => {
                let numas = (0..self.system.numas.len()).map(|n| format!("numa{n}"));
                let known: Vec<String> =
                    numas.chain((0..self.switches.len()).map(|s| format!("sw{s}"))).collect();
                Err(Error::unknown("place", on, known.iter().map(String::as_str)))
            }
        }
    }

    fn switch(&mut self, s: usize, depth: usize) -> Result<usize> {
        let (on, table, made) = self.switches[s].clone();
        if let Some(at) = made {
            return Ok(at);
        }
        if depth > self.switches.len() {
            return Err(Error::invalid(format!(
                "the PCI tree has a cycle: sw{s} hangs off {on}, which in the end hangs off sw{s}"
            )));
        }
        let parent = self.parent(&on, depth)?;
        let table = &self.file.switch[table];
        let at = self.device(parent, 0x060400, &table.link)?;
        self.system.devices[at].ids = table.ids;
        self.switches[s].2 = Some(at);
        Ok(at)
    }

    /// Addresses are ours: each NUMA node has its own range of buses.
    fn device(
        &mut self,
        (parent, bridge): (Parent, Option<String>),
        class: u32,
        text: &str,
    ) -> Result<usize> {
        let numa = match parent {
            Parent::Numa(n) => n,
            Parent::Device(d) => self.system.numa_of(d),
        };
        let next = self.next.entry(numa).or_insert(0);
        *next += 1;
        let bus = BusId::parse(&format!("{:04x}:{:02x}:00.0", numa, *next)).map_err(Error::Invalid)?;
        let mut d = Device::new(parent, bus, class);
        d.host_bridge = bridge;
        let (speed, width) = link(text)?;
        d.link_speed = Some(speed);
        d.link_width = Some(width);
        self.system.devices.push(d);
        Ok(self.system.devices.len() - 1)
    }

    fn gpus(&mut self, table: &GpuTable) -> Result<()> {
        let mut places = Vec::new();
        for (dev, on) in table.on.iter().enumerate() {
            let parent = self.parent(on, 0)?;
            let class = if table.gcn.is_some() { 0x120000 } else { 0x030200 };
            let at = self.device(parent, class, &table.link)?;
            let mut gpu = Gpu {
                dev: dev as i32,
                sm: table.sm,
                rank: Some(dev as i32),
                gdr: Some(table.gdr),
                peer_access: table.peer_access,
                gcn: table.gcn.clone(),
                c2c: table.c2c.into_iter().collect(),
                ..Gpu::default()
            };
            if let Some(count) = table.nvswitch {
                let target = BusId::parse("fffffff:ffff:ff").map_err(Error::Invalid)?;
                let class = Some(0x068000);
                gpu.nvlinks.push(NvLink { target, count, target_class: class, bandwidth: None, xgmi: false });
            }
            self.system.devices[at].gpu = Some(gpu);
            self.system.devices[at].product = Some(table.product.clone());
            places.push(at);
        }
        let mut linked = std::collections::HashSet::new();
        for &(a, b, count) in &table.pairs {
            if a == b {
                return Err(Error::invalid(format!(
                    "pairs links GPU {a} with itself; leave [{a}, {b}, {count}] out"
                )));
            }
            if count == 0 {
                return Err(Error::invalid(format!(
                    "pairs has no link between GPU {a} and GPU {b}; leave [{a}, {b}, 0] out, or say how many there are"
                )));
            }
            if !linked.insert((a.min(b), a.max(b))) {
                return Err(Error::invalid(format!(
                    "pairs names GPU {a} and GPU {b} twice; give each pair once, in either order, with all its links"
                )));
            }
            let (Some(&from), Some(&to)) = (places.get(a), places.get(b)) else {
                return Err(Error::invalid(format!(
                    "pairs links GPU {a} and GPU {b}, and there are GPUs 0 to {}",
                    places.len().saturating_sub(1)
                )));
            };
            for (from, to) in [(from, to), (to, from)] {
                let peer = &self.system.devices[to];
                let (target, class) = (peer.bus.clone(), Some(peer.class));
                let link =
                    NvLink { target, count, target_class: class, bandwidth: None, xgmi: table.gcn.is_some() };
                if let Some(gpu) = &mut self.system.devices[from].gpu {
                    gpu.nvlinks.push(link);
                }
            }
        }
        Ok(())
    }

    fn nics(&mut self) -> Result<()> {
        let mut dev = 0;
        for table in &self.file.nic {
            if !(table.mbps > 0.0 && table.mbps.is_finite()) {
                return Err(Error::invalid(format!("nic.mbps is {}; a speed is positive", table.mbps)));
            }
            for (i, on) in table.on.iter().enumerate() {
                let parent = self.parent(on, 0)?;
                let at = self.device(parent, 0x020700, &table.link)?;
                let port = Port {
                    name: format!("{}{i}", table.name),
                    dev: Some(dev),
                    speed_mbps: Some(table.mbps),
                    port: Some(1),
                    guid: Some(dev as u64 + 1),
                    gdr: Some(table.gdr),
                    ..Port::default()
                };
                self.system.devices[at].nics.push(Nic { ports: vec![port], extra: Vec::new() });
                dev += 1;
            }
        }
        Ok(())
    }

    /// Depth first below each NUMA node, as a file would have it.
    fn order(&mut self) {
        let old = &self.system;
        let mut order = Vec::new();
        for n in 0..old.numas.len() {
            let mut stack: Vec<usize> = old.children(Parent::Numa(n)).collect();
            stack.reverse();
            while let Some(d) = stack.pop() {
                order.push(d);
                let mut below: Vec<usize> = old.children(Parent::Device(d)).collect();
                below.reverse();
                stack.extend(below);
            }
        }
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new;
        }
        let mut devices: Vec<Device> = order.iter().map(|&d| old.devices[d].clone()).collect();
        for d in &mut devices {
            if let Parent::Device(p) = d.parent {
                d.parent = Parent::Device(place[p]);
            }
        }
        self.system.devices = devices;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Settings, search};
    use crate::{Graph, PathClass, Paths};

    #[test]
    fn every_machine_reads_and_is_searched() {
        for name in names() {
            let system = machine(name).unwrap_or_else(|e| panic!("{name}: {e}"));
            let (title, source) = about(name).unwrap();
            assert!(!title.is_empty() && source.len() > 20, "{name} has no source");
            let graph = Graph::new(&system).unwrap();
            if !graph.gpus.is_empty() {
                let found = search(&graph, &Settings::default());
                assert!(!found.ring.is_fallback(), "{name}: {:?}", found.ring);
            }
        }
        assert!(machine("dgx-9").unwrap_err().to_string().contains("dgx-a100"));
    }

    /// Eight ports of 200 Gb/s behind switches that are one chip each: every GPU drives a port of its own.
    #[test]
    fn a_dgx_a100_fills_all_its_ports() {
        let graph = Graph::new(&machine("dgx-a100").unwrap()).unwrap();
        let found = search(&graph, &Settings { several_hosts: true, ..Settings::default() });
        assert_eq!((found.ring.channels.len(), found.ring.speed_inter), (8, 24.0));
    }

    #[test]
    fn classes_inside_a_dgx() {
        let graph = Graph::new(&machine("dgx-h100").unwrap()).unwrap();
        let paths = Paths::new(&graph);
        let class = |a, b| paths.between(graph.node(a).unwrap(), graph.node(b).unwrap()).class;
        assert_eq!(class("GPU0", "GPU7"), PathClass::Nvl);
        assert_eq!(class("GPU0", "mlx5_0"), PathClass::Pix);
        assert_eq!(class("GPU0", "mlx5_7"), PathClass::Sys);
    }

    #[test]
    fn a_grace_reaches_its_nic_by_chip_link() {
        let graph = Graph::new(&machine("gb200-nvl72").unwrap()).unwrap();
        let paths = Paths::new(&graph);
        let (gpu, port) = (graph.node("GPU0").unwrap(), graph.node("mlx5_0").unwrap());
        assert_eq!(paths.class_for_people(&graph, gpu, port), PathClass::P2c);
        assert!(paths.reason(&graph, gpu, port).contains("chip link to NUMA0"));
    }

    /// The matrices that owners of these machines publish from `nvidia-smi topo -m`.
    #[test]
    fn words_are_those_of_the_real_machines() {
        let word = |machine_name: &str, a: &str, b: &str| {
            let graph = Graph::new(&machine(machine_name).unwrap()).unwrap();
            let (a, b) = (graph.node(a).unwrap(), graph.node(b).unwrap());
            Paths::new(&graph).class_for_people(&graph, a, b).word()
        };
        for (name, other, want) in [
            // Broadwell has one host bridge a socket.
            ("dgx-1", "mlx5_0", "PIX"),
            ("dgx-1", "mlx5_1", "PHB"),
            ("dgx-1", "mlx5_2", "SYS"),
            ("dgx-2", "mlx5_0", "PIX"),
            ("dgx-2", "mlx5_1", "PXB"),
            ("dgx-2", "mlx5_2", "NODE"),
            ("dgx-2", "mlx5_4", "SYS"),
            ("dgx-a100", "mlx5_0", "PXB"),
            ("dgx-a100", "mlx5_1", "PXB"),
            ("dgx-a100", "mlx5_2", "NODE"),
            ("dgx-h100", "mlx5_0", "PIX"),
            ("dgx-h100", "mlx5_1", "NODE"),
            ("dgx-b200", "mlx5_3", "NODE"),
            ("dgx-b200", "mlx5_4", "SYS"),
            ("rtx4090-8x", "GPU1", "NODE"),
            ("rtx4090-8x", "GPU4", "SYS"),
            ("gb200-nvl72", "mlx5_0", "P2C"),
        ] {
            assert_eq!(word(name, "GPU0", other), want, "{name}: GPU0 to {other}");
        }
    }

    #[test]
    fn cards_without_peer_access_say_so() {
        let graph = Graph::new(&machine("rtx4090-8x").unwrap()).unwrap();
        let paths = Paths::new(&graph);
        let reason = |a, b| paths.reason(&graph, graph.node(a).unwrap(), graph.node(b).unwrap());
        assert!(reason("GPU0", "GPU1").contains("no peer-to-peer access"), "{}", reason("GPU0", "GPU1"));
        assert!(!reason("GPU0", "mlx5_0").contains("peer-to-peer"));
    }

    #[test]
    fn nonsense_is_named() {
        let base = "title='x'\n[cpu]\nnumas=1\n";
        let error = |extra: &str| from_toml(&format!("{base}{extra}")).unwrap_err().to_string();
        let cycle = error("[[switch]]\non=['sw1','sw0']\nlink='4.0 x16'");
        assert!(cycle.contains("cycle") && cycle.contains("sw0"), "{cycle}");
        let place = error("[[switch]]\non=['numa3']\nlink='4.0 x16'");
        assert!(place.contains("numa3") && place.contains("numa0"), "{place}");
        let link = error("[[switch]]\non=['numa0']\nlink='9 x16'");
        assert!(link.contains("5.0 x16"), "{link}");
        let speed = error("[[nic]]\non=['numa0']\nlink='4.0 x16'\nmbps=-1.0");
        assert!(speed.contains("-1"), "{speed}");
        let pair = error("[gpu]\nproduct='x'\non=['numa0']\nlink='4.0 x16'\npairs=[[0,5,1]]");
        assert!(pair.contains("GPU 5"), "{pair}");
        let pairs = |list: &str| {
            error(&format!("[gpu]\nproduct='x'\non=['numa0','numa0']\nlink='4.0 x16'\npairs={list}"))
        };
        assert!(pairs("[[0,0,1]]").contains("GPU 0 with itself"));
        assert!(pairs("[[0,1,4],[1,0,4]]").contains("GPU 1 and GPU 0 twice"));
        assert!(pairs("[[0,1,0]]").contains("no link between GPU 0 and GPU 1"));
        let on = vec!["'numa0'"; 60_000].join(",");
        let many = error(&format!("[gpu]\nproduct='x'\non=[{on}]\nlink='4.0 x16'"));
        assert!(many.contains("60000 switches, GPUs and NICs") && many.contains("at most 4096"), "{many}");
        let typo = error("[gpus]\n");
        assert!(typo.contains("line 4"), "{typo}");
    }
}
