//! The matrix that `nvidia-smi topo -m` prints.
//!
//! It only holds how close each pair is, so the machine is rebuilt from that: devices at PIX share a switch, at PXB an
//! upper switch, at PHB a host bridge, at NODE a NUMA node. Addresses and speeds are made up, and the findings say so.

use std::collections::BTreeMap;

use super::xml::Document;
use crate::graph::NodeKind;
use crate::model::{BusId, Device, Gpu, Nic, Numa, NvLink, Parent, Port, System};
use crate::{Graph, Paths, Result};

const FORMAT: &str = "nvidia-smi topo -m";
/// More devices than any host has.
const MAX_DEVICES: usize = 256;
/// NVLinks of one GPU: 18 of Hopper and Blackwell (NVIDIA H100 and B200 datasheets).
const MAX_NVLINKS: u32 = 18;

/// How close two devices are, by their PCIe connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Near {
    Switch,
    Switches,
    HostBridge,
    Numa,
    Far,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Same,
    Pcie(Near),
    NvLink(u32),
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cell::Same => f.write_str("X"),
            Cell::Pcie(near) => f.write_str(near.word()),
            Cell::NvLink(count) => write!(f, "NV{count}"),
        }
    }
}

impl Near {
    fn word(self) -> &'static str {
        match self {
            Near::Switch => "PIX",
            Near::Switches => "PXB",
            Near::HostBridge => "PHB",
            Near::Numa => "NODE",
            Near::Far => "SYS",
        }
    }
}

/// Reads the text, with or without terminal escapes and the legend.
pub fn read(text: &str) -> Result<System> {
    let document = Document { text, format: FORMAT };
    if text.len() > 1 << 20 {
        return Err(document.error(0, "longer than 1 MiB, which is no output of nvidia-smi"));
    }
    let mut matrix = Matrix::parse(&document)?;
    matrix.check(&document)?;
    let mut system = matrix.build();
    system.validate()?;
    matrix.compare(&mut system)?;
    Ok(system)
}

struct Row {
    name: String,
    /// Where the row begins in the text.
    at: usize,
    cells: Vec<Cell>,
    cpus: Option<String>,
    numa: Option<i32>,
}

struct Matrix {
    columns: Vec<String>,
    rows: Vec<Row>,
    names: BTreeMap<String, String>,
}

/// Terminal escapes out.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            for c in chars.by_ref() {
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            out.push(c);
        }
    }
    out
}

impl Matrix {
    fn parse(document: &Document<'_>) -> Result<Matrix> {
        let mut matrix = Matrix { columns: Vec::new(), rows: Vec::new(), names: BTreeMap::new() };
        let mut offset = 0;
        for raw in document.text.split_inclusive('\n') {
            let at = offset;
            offset += raw.len();
            let line = plain(raw);
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(&first) = words.first() else { continue };
            if matrix.columns.is_empty() {
                if first == "GPU0" {
                    // After the devices come `CPU Affinity`, `NUMA Affinity`, `GPU NUMA ID`.
                    let devices = words.iter().take_while(|w| !matches!(**w, "CPU" | "NUMA" | "GPU"));
                    matrix.columns = devices.map(|w| (*w).to_owned()).collect();
                    if matrix.columns.len() > MAX_DEVICES {
                        return Err(document.error(at, format!("more than {MAX_DEVICES} devices")));
                    }
                }
                continue;
            }
            let is_device = |word: &str| matrix.columns.iter().any(|c| c == word);
            if let Some(label) = first.strip_suffix(':').filter(|f| is_device(f)) {
                if let Some(name) = words.get(1) {
                    matrix.names.insert(label.to_owned(), (*name).to_owned());
                }
            } else if is_device(first) {
                matrix.row(document, at, &words)?;
            }
        }
        Ok(matrix)
    }

    fn row(&mut self, document: &Document<'_>, at: usize, words: &[&str]) -> Result<()> {
        let n = self.columns.len();
        if words.len() < n + 1 {
            return Err(document.error(
                at,
                format!("row {} has {} entries, and there are {n} columns", words[0], words.len() - 1),
            ));
        }
        if self.rows.len() >= n {
            return Err(document.error(at, format!("more rows than the {n} columns")));
        }
        let mut cells = Vec::with_capacity(n);
        for word in &words[1..=n] {
            cells.push(match *word {
                "X" => Cell::Same,
                "PIX" => Cell::Pcie(Near::Switch),
                "PXB" => Cell::Pcie(Near::Switches),
                "PHB" => Cell::Pcie(Near::HostBridge),
                "NODE" => Cell::Pcie(Near::Numa),
                "SYS" | "SOC" => Cell::Pcie(Near::Far),
                other => match other.strip_prefix("NV").and_then(|c| c.parse().ok()) {
                    Some(count @ 1..=1024) => Cell::NvLink(count),
                    _ => {
                        return Err(document.error(
                            at,
                            format!(
                                "`{}` is no connection; there are X NV# PIX PXB PHB NODE SYS",
                                clip(other)
                            ),
                        ));
                    }
                },
            });
        }
        let cpus = words.get(n + 1).filter(|w| w.starts_with(|c: char| c.is_ascii_digit()));
        let numa = words.get(n + 2).and_then(|w| w.split(['-', ',']).next()).and_then(|w| w.parse().ok());
        let (name, cpus) = (words[0].to_owned(), cpus.map(|c| (*c).to_owned()));
        self.rows.push(Row { name, at, cells, cpus, numa });
        Ok(())
    }

    fn check(&mut self, document: &Document<'_>) -> Result<()> {
        if self.columns.is_empty() {
            return Err(document.error(0, "no header line that starts with GPU0"));
        }
        if self.rows.len() != self.columns.len() {
            return Err(document.error(
                document.text.len(),
                format!("{} columns and {} rows; the matrix is square", self.columns.len(), self.rows.len()),
            ));
        }
        for (i, (row, column)) in self.rows.iter().zip(&self.columns).enumerate() {
            if row.name != *column || !matches!(row.cells[i], Cell::Same) {
                return Err(document.error(
                    row.at,
                    format!("row {i} is {} and column {i} is {column}; both go in the same order", row.name),
                ));
            }
        }
        for (i, row) in self.rows.iter().enumerate() {
            for (j, other) in self.rows[..i].iter().enumerate() {
                let (here, there) = (row.cells[j], other.cells[i]);
                if here != there || here == Cell::Same {
                    return Err(document.error(
                        row.at,
                        format!(
                            "row {} says {here} to {}, and row {} says {there} to {}; the way there is the way back",
                            row.name, other.name, other.name, row.name
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Says where the machine that was built is closer or farther than the text: no tree fits all its words.
    fn compare(&self, system: &mut System) -> Result<()> {
        // Words between devices without a link of their own speak of PCIe alone.
        let mut bare = system.clone();
        bare.devices.iter_mut().filter_map(|d| d.gpu.as_mut()).for_each(|g| g.nvlinks.clear());
        let graph = Graph::new(&bare)?;
        let paths = Paths::new(&graph);
        let node = |row: &Row| {
            let gpu = number(&row.name);
            let name = self.names.get(&row.name).unwrap_or(&row.name);
            graph.gpus.iter().chain(&graph.nets).copied().find(|&n| match graph.nodes[n].kind {
                NodeKind::Gpu { dev, .. } => Some(dev) == gpu,
                _ => gpu.is_none() && graph.nodes[n].name == *name,
            })
        };
        let nodes: Vec<_> = self.rows.iter().map(node).collect();
        let mut differ = Vec::new();
        for (i, row) in self.rows.iter().enumerate() {
            for (j, other) in self.rows[..i].iter().enumerate() {
                let (Cell::Pcie(near), Some(a), Some(b)) = (row.cells[j], nodes[i], nodes[j]) else {
                    continue;
                };
                let built = paths.class_for_people(&graph, a, b).word();
                if built != near.word() {
                    differ.push(format!("{} to {} ({}, here {built})", other.name, row.name, near.word()));
                }
            }
        }
        if let Some(first) = differ.first() {
            let n = differ.len();
            system.finding(
                "nvidia-smi",
                format!(
                    "no PCIe tree gives all the words of the matrix; {n} pairs differ, the first is {first}"
                ),
            );
        }
        Ok(())
    }

    /// Groups of devices no farther apart than `limit`.
    fn groups(&self, limit: Near) -> Vec<usize> {
        let n = self.rows.len();
        let mut group: Vec<usize> = (0..n).collect();
        for i in 0..n {
            for j in 0..n {
                let close = matches!(self.rows[i].cells[j], Cell::Pcie(near) if near <= limit);
                let same_numa = limit == Near::Numa
                    && self.rows[i].numa.is_some()
                    && self.rows[i].numa == self.rows[j].numa;
                if close || same_numa {
                    let (a, b) = (group[i], group[j]);
                    let (low, high) = (a.min(b), a.max(b));
                    group.iter_mut().filter(|g| **g == high).for_each(|g| *g = low);
                }
            }
        }
        group
    }

    fn build(&self) -> System {
        let mut system = System { name: "from nvidia-smi".into(), ..System::default() };
        let levels = [Near::Numa, Near::HostBridge, Near::Switches, Near::Switch].map(|l| self.groups(l));
        let mut made: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let size = |level: usize, g: usize| levels[level].iter().filter(|&&x| x == g).count();
        let mut bus = 0u32;
        let mut next_bus = || {
            bus += 1;
            BusId::parse(&format!("{:04x}:{:02x}:00.0", bus >> 8, bus & 0xff))
        };
        for (i, row) in self.rows.iter().enumerate() {
            let numa = *made.entry((0, levels[0][i])).or_insert_with(|| {
                let id = row.numa.unwrap_or(system.numas.len() as i32);
                let id = if system.numas.iter().any(|n| n.id == id) {
                    1000 + system.numas.len() as i32
                } else {
                    id
                };
                system.numas.push(Numa { id, arch: "x86_64".into(), affinity: None, ..Numa::default() });
                system.numas.len() - 1
            });
            if let Some(cpus) = &row.cpus {
                let extra = &mut system.numas[numa].extra;
                if extra.is_empty() {
                    extra.push(("cpus".into(), cpus.clone()));
                }
            }
            let mut parent = Parent::Numa(numa);
            // A switch for each group of at least two, and an upper one where several groups are at PXB: then each
            // device has a lower switch, if only for itself, because a way through one switch would be PIX.
            let upper = size(2, levels[2][i]) > size(3, levels[3][i]);
            for level in [2, 3] {
                let g = levels[level][i];
                let useful = upper || (level == 3 && size(level, g) > 1);
                if !useful {
                    continue;
                }
                let at = *made.entry((level, g)).or_insert_with(|| {
                    if let Ok(bus) = next_bus() {
                        let mut d = Device::new(parent, bus, 0x060400);
                        d.host_bridge = Some(format!("bridge{}", levels[1][i]));
                        system.devices.push(d);
                    }
                    system.devices.len().saturating_sub(1)
                });
                parent = Parent::Device(at);
            }
            let Ok(bus) = next_bus() else { continue };
            system.devices.push(self.device(i, row, bus, parent, levels[1][i]));
        }
        self.nvlinks(&mut system);
        super::hwloc_xml::number_ports(&mut system);
        system.finding(
            "nvidia-smi",
            "the text holds no bus ids and no speeds: addresses are made up, PCIe counts as 3.0 x16, ports as 10 Gb/s",
        );
        if self.rows.iter().all(|r| r.numa.is_none()) {
            let n = system.numas.len();
            let nodes = if n == 1 { "1 NUMA node is".to_owned() } else { format!("{n} NUMA nodes are") };
            system.finding(
                "nvidia-smi",
                format!(
                    "no column says which NUMA node a GPU belongs to (NUMA Affinity): {nodes} made up, one for all \
                     devices that are not SYS to each other"
                ),
            );
        }
        system
    }

    fn device(&self, i: usize, row: &Row, bus: BusId, parent: Parent, bridge: usize) -> Device {
        let number = row.name.strip_prefix("GPU").and_then(|n| n.parse::<i32>().ok());
        let mut d = Device::new(parent, bus, if number.is_some() { 0x030200 } else { 0x020000 });
        d.host_bridge = Some(format!("bridge{bridge}"));
        match number {
            Some(dev) => d.gpu = Some(Gpu { dev, sm: self.sm(), ..Gpu::default() }),
            None => {
                let name = self.names.get(&row.name).unwrap_or(&row.name).clone();
                d.nics.push(Nic {
                    ports: vec![Port { name, guid: Some(i as u64 + 1), ..Port::default() }],
                    extra: vec![],
                });
            }
        }
        d
    }

    fn links_of(&self, i: usize) -> Vec<(usize, u32)> {
        let cells = self.rows[i].cells.iter().enumerate();
        cells.filter_map(|(j, c)| if let Cell::NvLink(n) = c { Some((j, *n)) } else { None }).collect()
    }

    /// The most links that one GPU has to all peers together, each counted by itself.
    fn most_links(&self) -> u32 {
        (0..self.rows.len()).map(|i| self.links_of(i).iter().map(|l| l.1).sum()).max().unwrap_or(0)
    }

    /// With more links to all peers together than any GPU has, they lead to NVSwitches; but those link every GPU to
    /// every other, all equally.
    fn switched(&self) -> bool {
        let linked: Vec<Vec<(usize, u32)>> =
            (0..self.rows.len()).map(|i| self.links_of(i)).filter(|l| !l.is_empty()).collect();
        let count = linked.first().map_or(0, |l| l[0].1);
        let whole = linked.iter().all(|l| l.len() + 1 == linked.len() && l.iter().all(|x| x.1 == count));
        self.most_links() > MAX_NVLINKS && whole
    }

    /// The generation that has as many links: 4 Pascal, 6 Volta, 12 Ampere, 18 Hopper (or Blackwell, which looks the
    /// same). 0 without NVLink.
    fn sm(&self) -> i32 {
        let switched = self.switched();
        let most = (0..self.rows.len()).map(|i| {
            let counts = self.links_of(i).into_iter().map(|l| l.1);
            if switched { counts.max().unwrap_or(0) } else { counts.sum() }
        });
        match most.max().unwrap_or(0) {
            0 => 0,
            1..=4 => 60,
            5..=6 => 70,
            7..=12 => 80,
            _ => 90,
        }
    }

    fn nvlinks(&self, system: &mut System) {
        let switched = self.switched();
        let at =
            |i: usize| system.gpus().find(|(_, _, g)| Some(g.dev) == number(&self.rows[i].name)).map(|g| g.0);
        let places: Vec<Option<usize>> = (0..self.rows.len()).map(at).collect();
        let mut seen = false;
        for i in 0..self.rows.len() {
            let Some(from) = places[i] else { continue };
            let links = self.links_of(i);
            let mut add = Vec::new();
            if switched {
                if let (Some(count), Ok(target)) =
                    (links.iter().map(|l| l.1).max(), BusId::parse("fffffff:ffff:ff"))
                {
                    add.push(NvLink {
                        target,
                        count,
                        target_class: Some(0x068000),
                        bandwidth: None,
                        xgmi: false,
                    });
                }
            } else {
                for (j, count) in links {
                    let Some(to) = places[j] else { continue };
                    let target = system.devices[to].bus.clone();
                    add.push(NvLink {
                        target,
                        count,
                        target_class: Some(0x030200),
                        bandwidth: None,
                        xgmi: false,
                    });
                }
            }
            seen |= !add.is_empty();
            if let Some(gpu) = &mut system.devices[from].gpu {
                gpu.nvlinks = add;
            }
        }
        if seen {
            let how = if switched { "through NVSwitches" } else { "directly" };
            system.finding(
                "nvidia-smi",
                format!("GPUs are linked {how}; their generation is guessed from the number of links"),
            );
        }
        let most = self.most_links();
        if seen && !switched && most > MAX_NVLINKS {
            system.finding(
                "nvidia-smi",
                format!(
                    "a GPU has {most} NVLinks to its peers together, and none known here has more than {MAX_NVLINKS}; \
                     not every GPU is linked to every other equally, so they are taken for direct links and not for \
                     NVSwitches, and their GB/s may be too high"
                ),
            );
        }
    }
}

fn number(name: &str) -> Option<i32> {
    name.strip_prefix("GPU").and_then(|n| n.parse().ok())
}

fn clip(text: &str) -> String {
    text.chars().take(20).collect()
}

#[cfg(test)]
mod tests;
