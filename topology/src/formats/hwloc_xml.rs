//! hwloc's XML of version 2 (and 3, where the elements used here are the same), with NVLink and xGMI distances.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv6Addr;

use super::xml::{Document, Element};
use crate::model::constants::MAX_GBPS;
use crate::model::{
    BusId, ClassKind, Device, Gpu, Nic, Numa, NvLink, Parent, Part, Port, System, class_kind,
};
use crate::rdma::{Gid, RdmaDevice, RdmaPort, parse};
use crate::{Error, Result};

const FORMAT: &str = "hwloc XML";

/// Reads a file written by `lstopo file.xml` or by hwloc's export.
pub fn read(text: &str) -> Result<System> {
    let document = Document { text, format: FORMAT };
    let root = document.parse()?;
    if root.name != "topology" {
        return Err(super::detect::wrong_format("hwloc XML (<topology>)", text));
    }
    if !root.get("version").is_some_and(|v| v.starts_with('2') || v.starts_with('3')) {
        return Err(Error::WrongFormat(
            "this is hwloc 1.x XML, which is not read; write it again with `lstopo file.xml` of hwloc 2"
                .into(),
        ));
    }
    let mut r = Reader {
        document,
        system: System::default(),
        of_numa: HashMap::new(),
        by_gp: HashMap::new(),
        packages: Vec::new(),
        offsets: Vec::new(),
    };
    for object in root.all("object") {
        r.numas(object, &Cpu::default())?;
    }
    if r.system.numas.is_empty() {
        return Err(document.at(&root, "no NUMANode object; hwloc 2 writes at least one"));
    }
    r.system.numas.sort_by_key(|n| n.id);
    r.of_numa = r.system.numas.iter().enumerate().map(|(i, n)| (n.id, i)).collect();
    for object in root.all("object") {
        r.devices(object, Place { parent: Parent::Numa(0), numa: 0, host_bridge: None })?;
    }
    for distances in root.all("distances2hetero").chain(root.all("distances2")) {
        r.distances(distances)?;
    }
    let (mut system, offsets) = (r.system, r.offsets);
    separate_hosts(&mut system);
    number_ports(&mut system);
    super::assume_gpus(&mut system, "hwloc-xml");
    note_silent_gpus(&mut system);
    super::note_link_speeds(&mut system, "hwloc-xml");
    super::note_missing_nvlinks(&mut system, "hwloc-xml");
    system.check().map_err(|fault| {
        document.fault(fault, |part| match part {
            Part::Device(i) => offsets.get(i).copied(),
            Part::System | Part::Numa(_) => None,
        })
    })?;
    Ok(system)
}

/// Files that gather several hosts in one tree repeat addresses; each repetition gets a PCI domain of its own.
fn separate_hosts(system: &mut System) {
    let mut times: HashMap<BusId, u32> = HashMap::new();
    let (mut repeated, mut count) = (None, 0);
    for d in &mut system.devices {
        let n = times.entry(d.bus.clone()).or_insert(0);
        *n += 1;
        if *n > 1 {
            let tail = d.bus.as_str().split_once(':').map_or("00:00.0", |(_, t)| t).to_owned();
            let fresh = BusId::parse(&format!("{:08x}:{tail}", 0x1000_0000 * u64::from((*n).min(15))));
            repeated.get_or_insert(d.bus.clone());
            count += 1;
            d.bus = fresh.unwrap_or_else(|_| d.bus.clone());
        }
    }
    if let Some(bus) = repeated {
        // One host may show a few devices twice; where hosts were gathered, most addresses come again.
        let what = match count * 3 >= system.devices.len() {
            true => format!(
                "{count} addresses such as {bus} occur more than once: the file holds several hosts as one"
            ),
            false if count == 1 => format!("the address {bus} occurs twice, which no host has"),
            false => format!("{count} addresses such as {bus} occur more than once, which no host has"),
        };
        system.finding("hwloc-xml", format!("{what}; the later ones got PCI domains from 20000000 on"));
    }
}

/// hwloc knows a GPU by the CUDA, NVML, ROCm or Level Zero device on it; accelerators without one are left out.
fn note_silent_gpus(system: &mut System) {
    let silent = |d: &&Device| d.gpu.is_none() && super::computes(d.class);
    let buses: Vec<String> = system.devices.iter().filter(silent).map(|d| d.bus.to_string()).collect();
    if !buses.is_empty() {
        system.finding(
            "hwloc-xml",
            format!(
                "{} more of accelerator class without a CUDA, NVML, ROCm or Level Zero device, so not counted as \
                 GPUs: {}",
                buses.len(),
                super::some_of(&buses)
            ),
        );
    }
}

/// Gives ports their device numbers: RDMA ports first, as NCCL prefers them, then the others.
pub(crate) fn number_ports(system: &mut System) {
    let mut dev = 0;
    for d in &mut system.devices {
        for port in d.nics.iter_mut().flat_map(|n| &mut n.ports) {
            port.dev = Some(dev);
            dev += 1;
        }
    }
    for port in system.numas.iter_mut().flat_map(|n| &mut n.nics).flat_map(|n| &mut n.ports) {
        port.dev = Some(dev);
        dev += 1;
    }
}

/// What the ancestors say of the processor.
#[derive(Default, Clone)]
struct Cpu {
    arch: String,
    vendor: String,
    family: Option<i32>,
    model: Option<i32>,
}

/// What an hwloc object with a generation number is here.
#[derive(Clone, Copy)]
enum Thing {
    Device(usize),
    Processor,
}

#[derive(Clone)]
struct Place {
    parent: Parent,
    numa: usize,
    host_bridge: Option<String>,
}

struct Reader<'a> {
    document: Document<'a>,
    system: System,
    of_numa: HashMap<i32, usize>,
    by_gp: HashMap<String, Thing>,
    packages: Vec<Cpu>,
    /// Where each device stands in the text.
    offsets: Vec<usize>,
}

fn info<'e>(e: &'e Element, name: &str) -> Option<&'e str> {
    e.all("info").find(|i| i.get("name") == Some(name)).and_then(|i| i.get("value"))
}

impl Reader<'_> {
    fn numas(&mut self, e: &Element, above: &Cpu) -> Result<()> {
        let mut cpu = above.clone();
        if let Some(arch) = info(e, "Architecture") {
            cpu.arch = match arch {
                "aarch64" => "arm64".to_owned(),
                a if a.starts_with("ppc64") => "ppc64".to_owned(),
                a => a.to_owned(),
            };
        }
        if let Some(vendor) = info(e, "CPUVendor") {
            cpu.vendor = vendor.to_owned();
            cpu.family = info(e, "CPUFamilyNumber").and_then(|v| v.parse().ok());
            cpu.model = info(e, "CPUModelNumber").and_then(|v| v.parse().ok());
        }
        match e.get("type") {
            Some("Machine") if e.get("os_index").is_some() && self.system.name.is_empty() => {
                let name = info(e, "HostName").or(info(e, "DMIProductName")).unwrap_or_default();
                self.system.name = name.to_owned();
            }
            Some("Package") => {
                self.packages.push(cpu.clone());
                self.remember(e, Thing::Processor);
            }
            Some("NUMANode") => {
                self.remember(e, Thing::Processor);
                let id = e
                    .get("os_index")
                    .and_then(|v| v.parse().ok())
                    .ok_or_else(|| self.document.at(e, "a NUMANode has no os_index"))?;
                // A NUMA node above its packages takes its processor from the first of them.
                self.system.numas.push(Numa {
                    id,
                    arch: cpu.arch.clone(),
                    vendor: cpu.vendor.clone(),
                    family: cpu.family,
                    model: cpu.model,
                    affinity: e.get("cpuset").map(|c| c.replace("0x", "")),
                    memory: e.get("local_memory").and_then(|m| m.parse().ok()),
                    ..Numa::default()
                });
            }
            _ => {}
        }
        for child in e.all("object") {
            self.numas(child, &cpu)?;
        }
        if e.get("type") == Some("Machine")
            && let Some(first) = self.packages.first().cloned()
        {
            for numa in self.system.numas.iter_mut().filter(|n| n.vendor.is_empty()) {
                numa.vendor.clone_from(&first.vendor);
                (numa.family, numa.model) = (first.family, first.model);
            }
        }
        Ok(())
    }

    fn remember(&mut self, e: &Element, thing: Thing) {
        if let (Some(kind), Some(gp)) = (e.get("type"), e.get("gp_index")) {
            self.by_gp.insert(format!("{kind}:{gp}"), thing);
        }
    }

    fn devices(&mut self, e: &Element, mut place: Place) -> Result<()> {
        match e.get("type").unwrap_or_default() {
            "Bridge" if e.get("pci_busid").is_none() => {
                place.host_bridge = e.get("bridge_pci").map(|b| format!("pci{b}")).or(Some("host".into()));
                place.parent = Parent::Numa(place.numa);
            }
            "Bridge" | "PCIDev" => {
                let at = self.pci(e, &place)?;
                self.remember(e, Thing::Device(at));
                place.parent = Parent::Device(at);
            }
            "OSDev" => {
                if let Parent::Device(at) = place.parent {
                    self.os_device(e, at);
                    self.remember(e, Thing::Device(at));
                }
            }
            _ => {
                if let Some(nodes) = e.get("nodeset") {
                    let first = lowest_bit(nodes).and_then(|b| self.of_numa.get(&(b as i32)).copied());
                    place.numa = first.unwrap_or(place.numa);
                    place.parent = Parent::Numa(place.numa);
                }
            }
        }
        for child in e.all("object") {
            self.devices(child, place.clone())?;
        }
        Ok(())
    }

    fn pci(&mut self, e: &Element, place: &Place) -> Result<usize> {
        let bus = e.get("pci_busid").unwrap_or_default();
        let bus = BusId::parse(bus).map_err(|m| self.document.at(e, m))?;
        let kind = e.get("pci_type").unwrap_or_default();
        let class = kind.split_whitespace().next().and_then(|c| u32::from_str_radix(c, 16).ok());
        let class = class.filter(|&c| c <= 0xffff).ok_or_else(|| {
            self.document.at(e, format!("pci_type `{kind}` of {bus} does not start with a PCI class"))
        })?;
        // A broken NVSwitch reads class 0; hwloc knows it by its product all the same.
        let switch = e.get("subtype") == Some("NVSwitch");
        let mut d = Device::new(place.parent, bus, if switch { 0x068000 } else { class << 8 });
        d.host_bridge.clone_from(&place.host_bridge);
        let ids: Vec<u16> = kind
            .split(['[', ']', ':', ' '])
            .filter(|p| p.len() == 4)
            .skip(1)
            .filter_map(|p| u16::from_str_radix(p, 16).ok())
            .collect();
        d.ids = <[u16; 4]>::try_from(ids).ok();
        d.product = info(e, "PCIDevice").map(str::to_owned);
        let speed = e.get("pci_link_speed").and_then(|s| s.parse::<f64>().ok()).unwrap_or(0.0);
        if !(0.0..=MAX_GBPS).contains(&speed) {
            let what = format!("pci_link_speed {speed:?} of {}; it is 0 to {MAX_GBPS} GB/s", d.bus);
            return Err(self.document.at(e, what));
        }
        if let Some((text, width)) = link_from_raw(speed) {
            d.link_speed = Some(text.to_owned());
            d.link_width = Some(width);
        }
        self.system.devices.push(d);
        self.offsets.push(e.offset);
        Ok(self.system.devices.len() - 1)
    }

    fn os_device(&mut self, e: &Element, at: usize) {
        let name = e.get("name").unwrap_or_default();
        let d = &mut self.system.devices[at];
        let gpu_number = ["nvml", "rsmi", "cuda", "ze"].iter().find_map(|p| name.strip_prefix(p));
        if let Some(number) = gpu_number.and_then(|n| n.split('.').next()).and_then(|n| n.parse::<i32>().ok())
        {
            let sm = d.ids.map_or(0, |ids| crate::model::constants::sm_of_pci_id(ids[0], ids[1]));
            let gcn = (d.ids.is_some_and(|i| i[0] == 0x1002)).then(|| "gfx".to_owned());
            let fresh = Gpu { dev: number, sm, gcn, ..Gpu::default() };
            let gpu = d.gpu.get_or_insert(fresh);
            if name.starts_with("nvml") || name.starts_with("rsmi") {
                gpu.dev = number;
            }
        }
        // hwloc 2: 2 is a network interface, 3 an OpenFabrics device. hwloc 3 uses bits: 4 and 8.
        let kind = e.get("osdev_type").unwrap_or_default();
        let rdma = kind == "3" || kind == "8" || info(e, "NodeGUID").is_some();
        let net = kind == "2" || kind == "4" || info(e, "Address").is_some();
        if class_kind(d.class) != ClassKind::Nic && !net && !rdma {
            return;
        }
        if !rdma && !net {
            return;
        }
        if d.nics.is_empty() {
            d.nics.push(Nic::default());
        }
        if rdma && self.system.rdma.iter().all(|r| r.name != name) {
            let numa = self.system.numas.get(self.system.numa_of(at)).map(|n| n.id);
            self.system.rdma.push(RdmaDevice { device: Some(at), numa, ..rdma_device(e, name) });
        }
        let ports = &mut self.system.devices[at].nics[0].ports;
        let guid = info(e, "NodeGUID").and_then(|g| u64::from_str_radix(&g.replace(':', ""), 16).ok());
        match ports.iter_mut().find(|p| p.companion.is_none() && p.guid.is_some() != rdma) {
            // The interface and the RDMA device of one function are one port, under the RDMA device's name.
            Some(port) if rdma => {
                port.companion = Some(std::mem::replace(&mut port.name, name.to_owned()));
                port.guid = guid.or(Some(0));
            }
            Some(port) => port.companion = Some(name.to_owned()),
            None => ports.push(Port {
                name: name.to_owned(),
                guid: guid.or(rdma.then_some(0)),
                gdr: rdma.then_some(true),
                ..Port::default()
            }),
        }
    }

    fn distances(&mut self, e: &Element) -> Result<()> {
        let name = e.get("name").unwrap_or_default();
        let xgmi = name == "XGMIBandwidth";
        if !xgmi && name != "NVLinkBandwidth" {
            return Ok(());
        }
        let n: usize = e.get("nbobjs").and_then(|v| v.parse().ok()).unwrap_or(0);
        if n == 0 || n > 1024 {
            return Err(self.document.at(e, format!("{name} between {n} objects; there are 1 to 1024")));
        }
        let text = |tag| e.all(tag).map(|p| p.text.as_str()).collect::<Vec<_>>().join(" ");
        let of_type = e.get("type").unwrap_or_default();
        let names = text("indexes");
        let things: Vec<Option<Thing>> = names
            .split_whitespace()
            .map(|i| {
                let key = if i.contains(':') { i.to_owned() } else { format!("{of_type}:{i}") };
                self.by_gp.get(&key).copied()
            })
            .collect();
        let values = text("u64values");
        let values: Vec<u64> = values.split_whitespace().filter_map(|v| v.parse().ok()).collect();
        if things.len() != n || values.len() != n * n {
            return Err(self.document.at(
                e,
                format!(
                    "{name} says {n} objects, and there are {} indexes and {} values; {} are needed",
                    things.len(),
                    values.len(),
                    n * n
                ),
            ));
        }
        for i in 0..n {
            let Some(Thing::Device(from)) = things[i] else { continue };
            if self.system.devices[from].gpu.is_none() {
                continue;
            }
            for j in 0..n {
                let (Some(target), true) = (things[j], i != j && values[i * n + j] > 0) else { continue };
                self.nvlink(from, target, values[i * n + j] as f64 / 1000.0, xgmi);
            }
        }
        Ok(())
    }

    /// hwloc states the raw rate of a bundle; NCCL's figure per link is less, so links are counted.
    fn nvlink(&mut self, from: usize, target: Thing, raw: f64, xgmi: bool) {
        let (bus, class) = match target {
            Thing::Device(t) if self.system.devices[t].gpu.is_some() => {
                (self.system.devices[t].bus.clone(), Some(self.system.devices[t].class))
            }
            // What is linked by NVLink and is no GPU is a switch, whatever its class reads (a broken one reads 0).
            Thing::Device(t) => (self.system.devices[t].bus.clone(), Some(0x068000)),
            Thing::Processor => (self.system.devices[from].bus.clone(), Some(0x068001)),
        };
        let Some(gpu) = &mut self.system.devices[from].gpu else { return };
        let each = if xgmi { 50.0 } else { crate::model::constants::nvlink_raw_bandwidth(gpu.sm) };
        let count = (raw / each).round().clamp(1.0, 1024.0) as u32;
        gpu.nvlinks.push(NvLink { target: bus, count, target_class: class, bandwidth: None, xgmi });
    }
}

/// What hwloc notes of an RDMA device: ports with their states, LIDs and addresses, no speeds and no link layer.
fn rdma_device(e: &Element, name: &str) -> RdmaDevice {
    let mut ports: BTreeMap<u32, RdmaPort> = BTreeMap::new();
    for i in e.all("info") {
        let (Some(key), Some(value)) = (i.get("name"), i.get("value")) else { continue };
        let Some(rest) = key.strip_prefix("Port") else { continue };
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, what) = rest.split_at(digits);
        let Some(number) = number.parse().ok().filter(|n| (1..=255).contains(n)) else { continue };
        let port = ports.entry(number).or_insert_with(|| RdmaPort { number, ..RdmaPort::default() });
        match what {
            "State" => port.state = parse::state(value),
            "LID" => port.lid = parse::lid(value),
            _ => {
                let index = what.strip_prefix("GID").and_then(|n| n.parse().ok());
                let address = value.parse::<Ipv6Addr>().ok().filter(|a| !a.is_unspecified());
                if let (Some(index), Some(address)) = (index, address)
                    && port.gids.iter().all(|g| g.index != index)
                {
                    port.gids.push(Gid { index, address, framing: None, netdev: None });
                }
            }
        }
    }
    let guid = |key: &str| info(e, key).and_then(parse::guid);
    RdmaDevice {
        name: name.to_owned(),
        node_guid: guid("NodeGUID"),
        system_guid: guid("SysImageGUID"),
        ports: ports.into_values().collect(),
        ..RdmaDevice::default()
    }
}

fn lowest_bit(set: &str) -> Option<u32> {
    let words: Vec<&str> = set.split(',').collect();
    for (i, word) in words.iter().rev().enumerate() {
        let value = u32::from_str_radix(word.trim().trim_start_matches("0x"), 16).unwrap_or(0);
        if value != 0 {
            return Some(i as u32 * 32 + value.trailing_zeros());
        }
    }
    None
}

/// hwloc gives a link as GB/s after line coding; back to the text and width that sysfs would show. Several widths can
/// give one rate (8 lanes of one generation are 4 of the next): the bandwidth is the same.
pub(crate) fn link_from_raw(gbps: f64) -> Option<(&'static str, u32)> {
    // Line coding: 8b/10b up to PCIe 2, 128b/130b from 3 on (PCI Express Base Specification).
    const GENERATIONS: [(&str, f64); 6] = [
        ("8.0 GT/s PCIe", 8.0 * 128.0 / 130.0 / 8.0),
        ("16.0 GT/s PCIe", 16.0 * 128.0 / 130.0 / 8.0),
        ("32.0 GT/s PCIe", 32.0 * 128.0 / 130.0 / 8.0),
        ("64.0 GT/s PCIe", 64.0 * 128.0 / 130.0 / 8.0),
        ("5.0 GT/s PCIe", 5.0 * 0.8 / 8.0),
        ("2.5 GT/s PCIe", 2.5 * 0.8 / 8.0),
    ];
    for width in [16u32, 8, 4, 2, 1, 32, 12] {
        for (text, lane) in GENERATIONS {
            let want = lane * f64::from(width);
            if (gbps - want).abs() < want * 0.01 {
                return Some((text, width));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::PortState;

    #[test]
    fn raw_rates() {
        assert_eq!(link_from_raw(15.753846), Some(("8.0 GT/s PCIe", 16)));
        assert_eq!(link_from_raw(7.876923), Some(("8.0 GT/s PCIe", 8)));
        assert_eq!(link_from_raw(0.25), Some(("2.5 GT/s PCIe", 1)));
        assert_eq!(link_from_raw(0.0), None);
    }

    /// A file of PCI devices: class, what else stands in the tag, what stands below it.
    fn read_devices(devices: &[(&str, &str, &str)]) -> System {
        let device = |(i, (class, more, below)): (usize, &(&str, &str, &str))| {
            let bus = if more.contains("pci_busid") {
                String::new()
            } else {
                format!("pci_busid='0000:0{i}:00.0'")
            };
            format!(
                "<object type='PCIDev' gp_index='{i}' {bus} {more} pci_type='{class} [10de:1094] [0000:0000] a1' pci_link_speed='0.0'>{below}</object>"
            )
        };
        let devices: String = devices.iter().enumerate().map(device).collect();
        read(&format!(
            "<topology version='2.0'><object type='Machine' os_index='0'><object type='NUMANode' os_index='0' \
             nodeset='0x1'/>{devices}</object></topology>"
        ))
        .unwrap()
    }

    #[test]
    fn what_is_no_gpu_here_is_said_and_consoles_do_not_count() {
        let cuda = "<object type='OSDev' name='cuda0' osdev_type='5'/>";
        let system = read_devices(&[("0302", "", cuda), ("0302", "", ""), ("0300", "", "")]);
        let text: Vec<&str> = system.findings.iter().map(|f| f.message.as_str()).collect();
        assert!(text.iter().any(|t| t.contains("not counted as GPUs: 0000:01:00.0")), "{text:?}");
        let speeds = text.iter().find(|t| t.contains("PCIe link")).unwrap();
        assert!(speeds.starts_with("2 of 2 GPUs") && !speeds.contains("virtual"), "{speeds}");
    }

    #[test]
    fn one_address_twice_is_not_several_hosts() {
        let again = "pci_busid='0000:00:00.0'";
        let few = read_devices(&[("0200", "", ""), ("0200", again, ""), ("0200", "", ""), ("0200", "", "")]);
        assert!(few.findings[0].message.starts_with("the address 0000:00:00.0 occurs twice"), "{few:?}");
        let all = read_devices(&[("0200", "", ""), ("0200", again, "")]);
        assert!(all.findings[0].message.contains("several hosts as one"), "{all:?}");
    }

    #[test]
    fn a_broken_nvswitch_is_one_all_the_same() {
        let system = read_devices(&[("0000", "subtype='NVSwitch'", "")]);
        assert_eq!(crate::formats::kind_name(&system.devices[0]), "NVSwitch");
    }

    #[test]
    fn rdma_devices_have_the_ports_that_hwloc_notes() {
        let info = |name: &str, value: &str| format!("<info name='{name}' value='{value}'/>");
        let infos = [
            info("NodeGUID", "248a:0703:001e:39fe"),
            info("Port1State", "4"),
            info("Port1LID", "0x1"),
            info("Port1GID0", "fe80:0000:0000:0000:248a:0703:001e:39fe"),
            info("Port1GID1", "no address"),
            info("Port2State", "1"),
            info("Port999State", "1"),
            info("PortState", "1"),
        ];
        let hca = format!("<object type='OSDev' name='mlx5_0' osdev_type='3'>{}</object>", infos.concat());
        let system = read_devices(&[("0207", "", &hca)]);
        let device = &system.rdma[0];
        assert_eq!((device.name.as_str(), device.device, device.numa), ("mlx5_0", Some(0), Some(0)));
        assert_eq!(device.node_guid, Some(0x248a_0703_001e_39fe));
        let ports: Vec<_> = device.ports.iter().map(|p| (p.number, p.state, p.lid, p.gids.len())).collect();
        assert_eq!(ports, [(1, Some(PortState::Active), Some(1), 1), (2, Some(PortState::Down), None, 0)]);
    }

    #[test]
    fn sets() {
        assert_eq!(lowest_bit("0x00000002"), Some(1));
        assert_eq!(lowest_bit("0x1,0x00000000"), Some(32));
        assert_eq!(lowest_bit("0x0"), None);
    }
}
