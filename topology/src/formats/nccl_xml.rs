//! NCCL's topology XML: any well-formed file is read, RCCL's dialect too; the strict form that NCCL itself can read
//! is written. What is not interpreted is kept, so that a file read and written means the same.

use std::collections::BTreeMap;

use super::xml::{Document, Element, Writer};
use crate::Result;
use crate::model::{Attributes, BusId, C2c, Device, Gpu, Nic, Numa, NvLink, Parent, Part, Port, System};

const FORMAT: &str = "NCCL topology XML";

/// NCCL up to 2.31 holds this many elements of a topology file.
pub const NCCL_MAX_ELEMENTS: usize = 256;

/// Reads a file.
///
/// # Errors
/// [`Error::Parse`](crate::Error::Parse) with line and column, [`Error::WrongFormat`](crate::Error::WrongFormat) when it is something else,
/// [`Error::Invalid`](crate::Error::Invalid) when it contradicts itself.
pub fn read(text: &str) -> Result<System> {
    let document = Document { text, format: FORMAT };
    let root = document.parse()?;
    if root.name != "system" {
        return Err(super::detect::wrong_format("NCCL topology XML (<system>)", text));
    }
    let mut r =
        Reader { document, system: System::default(), numas: vec![], devices: vec![], speedless: vec![] };
    r.system(&root)?;
    let Reader { mut system, numas, devices, speedless, .. } = r;
    system.check().map_err(|fault| {
        document.fault(fault, |part| match part {
            Part::System => None,
            Part::Numa(i) => numas.get(i).copied(),
            Part::Device(i) => devices.get(i).copied(),
        })
    })?;
    if !speedless.is_empty() {
        system.finding(
            "nccl-xml",
            format!(
                "the speed of {} is -1, which is what a driver says that does not know it; 10 Gb/s is assumed",
                super::some_of(&speedless)
            ),
        );
    }
    note_shared_ports(&mut system);
    super::note_link_speeds(&mut system, "nccl-xml");
    super::note_self_links(&mut system, "nccl-xml");
    super::note_missing_nvlinks(&mut system, "nccl-xml");
    note_hosts(&mut system);
    super::assume_gpus(&mut system, "nccl-xml");
    Ok(system)
}

/// Files name a virtual port once below every NUMA node that reaches it.
fn note_shared_ports(system: &mut System) {
    let hosts = system.hosts();
    let mut places: BTreeMap<(usize, i32), Vec<(usize, String)>> = BTreeMap::new();
    for (i, numa) in system.numas.iter().enumerate() {
        for port in numa.nics.iter().flat_map(|n| &n.ports) {
            let Some(dev) = port.dev else { continue };
            places.entry((hosts[i], dev)).or_default().push((i, port.name.clone()));
        }
    }
    for ((_, dev), all) in places.into_iter().filter(|(_, all)| all.len() > 1) {
        let numas: Vec<String> = all.iter().map(|(n, _)| format!("NUMA{}", system.numas[*n].id)).collect();
        system.finding(
            "nccl-xml",
            format!(
                "port {} stands below {} with the same number (dev {dev}): it is one port, used and counted once, \
                 from the first of them",
                all[0].1,
                numas.join(" and ")
            ),
        );
    }
}

/// NCCL fuses the files of hosts that share NVSwitches, each with its own `host_hash`.
fn note_hosts(system: &mut System) {
    let hosts = system.hosts().into_iter().max().unwrap_or(0) + 1;
    if hosts > 1 {
        system.finding(
            "nccl-xml",
            format!(
                "the file holds {hosts} hosts in one (host_hash), called host0 to host{}; they meet in the NVSwitches \
                 alone, and the network between them is not described",
                hosts - 1
            ),
        );
    }
}

struct Reader<'a> {
    document: Document<'a>,
    system: System,
    /// Where each NUMA node stands in the text, and each device.
    numas: Vec<usize>,
    devices: Vec<usize>,
    /// Ports whose speed is stated as -1.
    speedless: Vec<String>,
}

impl Reader<'_> {
    fn system(&mut self, root: &Element) -> Result<()> {
        match root.get("version") {
            None | Some("1" | "2") => {}
            Some(other) => {
                return Err(self
                    .document
                    .at(root, format!("version {other} is not known; NCCL writes 1, RCCL writes 2")));
            }
        }
        self.system.name = root.get("name").unwrap_or_default().to_owned();
        self.system.extra = rest(root, &["name"]);
        for cpu in root.all("cpu") {
            self.cpu(cpu)?;
        }
        if self.system.numas.is_empty() {
            return Err(self.document.at(root, "<system> has no <cpu>; there is one for each NUMA node"));
        }
        Ok(())
    }

    fn cpu(&mut self, e: &Element) -> Result<()> {
        let numa = Numa {
            id: self.number(e, "numaid")?.unwrap_or(self.system.numas.len() as i64) as i32,
            arch: e.get("arch").unwrap_or_default().to_owned(),
            vendor: e.get("vendor").unwrap_or_default().to_owned(),
            family: self.number(e, "familyid")?.map(|v| v as i32),
            model: self.number(e, "modelid")?.map(|v| v as i32),
            affinity: e.get("affinity").map(str::to_owned),
            host_hash: e.get("host_hash").map(str::to_owned),
            memory: None,
            nics: e.all("nic").map(|n| self.nic(n)).collect::<Result<_>>()?,
            extra: rest(e, &["numaid", "arch", "vendor", "familyid", "modelid", "affinity", "host_hash"]),
        };
        self.system.numas.push(numa);
        self.numas.push(e.offset);
        let at = Parent::Numa(self.system.numas.len() - 1);
        for pci in e.all("pci") {
            self.pci(pci, at)?;
        }
        Ok(())
    }

    fn pci(&mut self, e: &Element, parent: Parent) -> Result<()> {
        let bus = e.get("busid").ok_or_else(|| self.document.at(e, "<pci> has no busid"))?;
        let bus = self.bus(e, bus)?;
        let gpu = e.all("gpu").next();
        let class = match e.get("class") {
            Some(text) => hex(text).filter(|&c| c <= 0xff_ffff).ok_or_else(|| {
                self.document.at(e, format!("class `{text}` is not a PCI class such as 0x030200"))
            })? as u32,
            None if gpu.is_some() => 0x030200,
            None if e.all("nic").next().is_some() => 0x020000,
            None => 0x060400,
        };
        let mut d = Device::new(parent, bus, class);
        let ids = ["vendor", "device", "subsystem_vendor", "subsystem_device"];
        if ids.iter().any(|k| e.get(k).is_some()) {
            let mut all = [0; 4];
            for (id, key) in all.iter_mut().zip(ids) {
                let text = e.get(key).unwrap_or("0");
                *id = hex(text)
                    .and_then(|v| u16::try_from(v).ok())
                    .ok_or_else(|| self.document.at(e, format!("{key} `{text}` is not a 16-bit PCI id")))?;
            }
            d.ids = Some(all);
        }
        d.link_speed = e.get("link_speed").map(str::to_owned);
        if let Some(gts) = d.link_speed.as_deref().and_then(crate::model::constants::gigatransfers)
            && gts <= 0.0
        {
            return Err(self.document.at(
                e,
                format!("link_speed `{gts} GT/s` of {} is not positive; leave it empty if unknown", d.bus),
            ));
        }
        d.link_width = match self.number(e, "link_width")? {
            Some(w) if !(0..=255).contains(&w) => {
                return Err(self.document.at(
                    e,
                    format!("link_width {w} of {}; PCIe has 1 to 32 lanes, 0 stands for unknown", d.bus),
                ));
            }
            w => w.map(|w| w as u32),
        };
        d.pcilinks = e
            .all("pcilink")
            .filter_map(|l| l.get("target").map(|t| self.bus(l, t)))
            .collect::<Result<_>>()?;
        d.gpu = gpu.map(|g| self.gpu(g)).transpose()?;
        d.nics = e.all("nic").map(|n| self.nic(n)).collect::<Result<_>>()?;
        d.extra = rest(
            e,
            &[
                "busid",
                "class",
                "vendor",
                "device",
                "subsystem_vendor",
                "subsystem_device",
                "link_speed",
                "link_width",
            ],
        );
        self.system.devices.push(d);
        self.devices.push(e.offset);
        let at = Parent::Device(self.system.devices.len() - 1);
        for below in e.all("pci") {
            self.pci(below, at)?;
        }
        Ok(())
    }

    fn gpu(&self, e: &Element) -> Result<Gpu> {
        let mut nvlinks = Vec::new();
        for link in e.children.iter().filter(|c| matches!(c.name.as_str(), "nvlink" | "xgmi")) {
            let target =
                link.get("target").ok_or_else(|| self.document.at(link, "the link has no target"))?;
            let count = self.number(link, "count")?.unwrap_or(1);
            if !(1..=1024).contains(&count) {
                return Err(self.document.at(
                    link,
                    format!("link to {target} has count {count}; it is at least 1 and at most 1024"),
                ));
            }
            nvlinks.push(NvLink {
                target: self.bus(link, target)?,
                count: count as u32,
                target_class: link.get("tclass").and_then(hex).map(|c| c as u32),
                bandwidth: None,
                xgmi: link.name == "xgmi",
            });
        }
        let mut c2c = Vec::new();
        for link in e.all("c2c") {
            let count = self.number(link, "count")?.unwrap_or(1);
            let bw = self.float(link, "bw")?.unwrap_or(0.0);
            if bw <= 0.0 || !(1..=1024).contains(&count) {
                return Err(self.document.at(link, format!("C2C of {count} × {bw} MB/s; both are positive")));
            }
            c2c.push(C2c { bw, count: count as u32 });
        }
        Ok(Gpu {
            dev: self
                .number(e, "dev")?
                .and_then(|d| i32::try_from(d).ok())
                .ok_or_else(|| self.document.at(e, "<gpu> has no dev, the driver's index"))?,
            sm: self.number(e, "sm")?.unwrap_or(0) as i32,
            rank: self.number(e, "rank")?.map(|r| r as i32),
            gdr: self.number(e, "gdr")?.map(|g| g != 0),
            peer_access: None,
            gcn: e.get("gcn").map(str::to_owned),
            nvlinks,
            c2c,
            assumed: false,
            extra: rest(e, &["dev", "sm", "rank", "gdr", "gcn"]),
        })
    }

    fn nic(&mut self, e: &Element) -> Result<Nic> {
        let ports = e.all("net").map(|n| self.port(n)).collect::<Result<_>>()?;
        Ok(Nic { ports, extra: rest(e, &[]) })
    }

    fn port(&mut self, e: &Element) -> Result<Port> {
        let name = e.get("name").unwrap_or_default().to_owned();
        let speed = self.float(e, "speed")?;
        // -1 is what the kernel says of a link without a speed.
        if speed == Some(-1.0) {
            self.speedless.push(name.clone());
        }
        let speed = speed.map(|s| if s == -1.0 { 0.0 } else { s });
        if let Some(s) = speed.filter(|&s| s < 0.0) {
            return Err(self.document.at(e, format!("port {name} has speed {s} Mb/s; a speed is positive")));
        }
        Ok(Port {
            name,
            dev: self.number(e, "dev")?.map(|d| d as i32),
            speed_mbps: speed,
            port: self.number(e, "port")?.map(|p| p as i32),
            latency: self.float(e, "latency")?,
            guid: match e.get("guid") {
                None | Some("") => None,
                Some(text) => Some(
                    guid(text)
                        .ok_or_else(|| self.document.at(e, format!("guid `{text}` is no 64-bit number")))?,
                ),
            },
            maxconn: self.number(e, "maxconn")?,
            gdr: self.number(e, "gdr")?.map(|g| g != 0),
            companion: None,
            state: None,
            extra: rest(e, &["name", "dev", "speed", "port", "latency", "guid", "maxconn", "gdr"]),
        })
    }

    fn bus(&self, e: &Element, text: &str) -> Result<BusId> {
        BusId::parse(text).map_err(|m| self.document.at(e, m))
    }

    fn number(&self, e: &Element, key: &str) -> Result<Option<i64>> {
        let Some(text) = e.get(key).map(str::trim).filter(|t| !t.is_empty()) else { return Ok(None) };
        let value = match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let digits = text.trim_start_matches(['-', '+']);
        let long = value.is_none() && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        match value.filter(|v| i32::try_from(*v).is_ok()) {
            Some(v) => Ok(Some(v)),
            None if value.is_some() || long => Err(self.document.at(
                e,
                format!(
                    "<{} {key}=\"{}\"> is out of range; it is from {} to {}",
                    e.name,
                    clip(text),
                    i32::MIN,
                    i32::MAX
                ),
            )),
            None => Err(self
                .document
                .at(e, format!("<{} {key}=\"{}\"> is not a whole number", e.name, clip(text)))),
        }
    }

    fn float(&self, e: &Element, key: &str) -> Result<Option<f64>> {
        let Some(text) = e.get(key).map(str::trim).filter(|t| !t.is_empty()) else { return Ok(None) };
        match text.parse::<f64>() {
            Ok(v) if v.is_finite() => Ok(Some(v)),
            _ => Err(self.document.at(e, format!("<{} {key}=\"{}\"> is not a number", e.name, clip(text)))),
        }
    }
}

fn clip(text: &str) -> String {
    text.chars().take(40).collect()
}

fn rest(e: &Element, known: &[&str]) -> Attributes {
    e.attributes.iter().filter(|(k, _)| !known.contains(&k.as_str())).cloned().collect()
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").or(digits.strip_prefix("0X")).unwrap_or(digits);
    u64::from_str_radix(digits, 16).ok()
}

/// `0x` and up to 16 digits, or decimal.
fn guid(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok().or_else(|| u64::from_str_radix(text, 16).ok()),
    }
}

/// Writes the strict form that NCCL reads.
///
/// GPUs that were only assumed are not written: NCCL fills them in itself. What NCCL has no words for (GIDs, names of
/// products, overrides) is left out.
pub fn write(system: &System) -> String {
    let mut w = Writer::default();
    let mut attributes: Attributes = system.extra.clone();
    if !attributes.iter().any(|(k, _)| k == "version") {
        // RCCL writes its dialect (gfx targets, xGMI) as version 2.
        let rccl = system.gpus().any(|(_, _, g)| g.gcn.is_some() || g.nvlinks.iter().any(|l| l.xgmi));
        attributes.insert(0, pair("version", if rccl { "2" } else { "1" }));
    }
    if !system.name.is_empty() {
        attributes.push(pair("name", &system.name));
    }
    w.element(
        "system",
        &attributes,
        Some(&mut |w| {
            for n in 0..system.numas.len() {
                write_numa(w, system, n);
            }
        }),
    );
    w.finish()
}

/// What stops NCCL from reading what [`write()`] gives, in sentences; empty when nothing does.
pub fn limits(system: &System) -> Vec<String> {
    let text = write(system);
    let elements = text.lines().filter(|l| !l.trim_start().starts_with("</")).count();
    let mut found = Vec::new();
    if elements > NCCL_MAX_ELEMENTS {
        found.push(format!("{elements} elements; NCCL before 2.31 stops at {NCCL_MAX_ELEMENTS}"));
    }
    if text.lines().any(|l| l.split('"').skip(1).step_by(2).any(|v| v.len() > 255)) {
        found.push("a value longer than 255 characters; NCCL stops there".to_owned());
    }
    found
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

fn push<T: ToString>(list: &mut Attributes, key: &str, value: Option<T>) {
    if let Some(value) = value {
        list.push((key.to_owned(), value.to_string()));
    }
}

fn write_numa(w: &mut Writer, system: &System, n: usize) {
    let numa = &system.numas[n];
    let mut a = Attributes::new();
    push(&mut a, "host_hash", numa.host_hash.as_ref());
    push(&mut a, "numaid", Some(numa.id));
    push(&mut a, "affinity", numa.affinity.as_ref());
    push(&mut a, "arch", Some(&numa.arch).filter(|s| !s.is_empty()));
    push(&mut a, "vendor", Some(&numa.vendor).filter(|s| !s.is_empty()));
    push(&mut a, "familyid", numa.family);
    push(&mut a, "modelid", numa.model);
    a.extend(numa.extra.iter().cloned());
    let below: Vec<usize> = system.children(Parent::Numa(n)).collect();
    if below.is_empty() && numa.nics.is_empty() {
        w.element("cpu", &a, None);
        return;
    }
    w.element(
        "cpu",
        &a,
        Some(&mut |w| {
            for &d in &below {
                write_pci(w, system, d);
            }
            numa.nics.iter().for_each(|nic| write_nic(w, nic));
        }),
    );
}

fn write_pci(w: &mut Writer, system: &System, i: usize) {
    let d = &system.devices[i];
    let mut a = vec![pair("busid", d.bus.as_str()), pair("class", &format!("0x{:06x}", d.class))];
    if let Some(ids) = d.ids {
        for (key, id) in ["vendor", "device", "subsystem_vendor", "subsystem_device"].into_iter().zip(ids) {
            a.push(pair(key, &format!("0x{id:04x}")));
        }
    }
    push(&mut a, "link_speed", d.link_speed.as_ref());
    push(&mut a, "link_width", d.link_width);
    a.extend(d.extra.iter().cloned());
    let below: Vec<usize> = system.children(Parent::Device(i)).collect();
    let gpu = d.gpu.as_ref().filter(|g| !g.assumed);
    if below.is_empty() && gpu.is_none() && d.nics.is_empty() && d.pcilinks.is_empty() {
        w.element("pci", &a, None);
        return;
    }
    w.element(
        "pci",
        &a,
        Some(&mut |w| {
            for link in &d.pcilinks {
                w.element("pcilink", &[pair("target", link.as_str())], None);
            }
            below.iter().for_each(|&b| write_pci(w, system, b));
            if let Some(gpu) = gpu {
                write_gpu(w, gpu);
            }
            d.nics.iter().for_each(|nic| write_nic(w, nic));
        }),
    );
}

fn write_gpu(w: &mut Writer, gpu: &Gpu) {
    let mut a = vec![pair("dev", &gpu.dev.to_string()), pair("sm", &gpu.sm.to_string())];
    push(&mut a, "gcn", gpu.gcn.as_ref());
    push(&mut a, "rank", gpu.rank);
    push(&mut a, "gdr", gpu.gdr.map(i32::from));
    a.extend(gpu.extra.iter().cloned());
    if gpu.nvlinks.is_empty() && gpu.c2c.is_empty() {
        w.element("gpu", &a, None);
        return;
    }
    w.element(
        "gpu",
        &a,
        Some(&mut |w| {
            for link in &gpu.nvlinks {
                let mut a =
                    vec![pair("target", link.target.as_str()), pair("count", &link.count.to_string())];
                push(&mut a, "tclass", link.target_class.map(|c| format!("0x{c:06x}")));
                w.element(if link.xgmi { "xgmi" } else { "nvlink" }, &a, None);
            }
            for c2c in &gpu.c2c {
                let a = [pair("bw", &c2c.bw.to_string()), pair("count", &c2c.count.to_string())];
                w.element("c2c", &a, None);
            }
        }),
    );
}

fn write_nic(w: &mut Writer, nic: &Nic) {
    if nic.ports.is_empty() {
        w.element("nic", &nic.extra, None);
        return;
    }
    w.element(
        "nic",
        &nic.extra,
        Some(&mut |w| {
            for p in &nic.ports {
                let mut a = Attributes::new();
                push(&mut a, "name", Some(&p.name).filter(|n| !n.is_empty()));
                push(&mut a, "dev", p.dev);
                push(&mut a, "latency", p.latency);
                push(&mut a, "speed", p.speed_mbps);
                push(&mut a, "port", p.port);
                push(&mut a, "guid", p.guid.map(|g| format!("0x{g:x}")));
                push(&mut a, "maxconn", p.maxconn);
                push(&mut a, "gdr", p.gdr.map(i32::from));
                a.extend(p.extra.iter().cloned());
                w.element("net", &a, None);
            }
        }),
    );
}

#[cfg(test)]
mod tests;
