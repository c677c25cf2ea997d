//! One host as its parts: NUMA nodes, and the PCI devices that hang off them.
//!
//! A [`System`] is what providers and files fill in; [`Graph`](crate::Graph) is what is derived from it: nodes and
//! directed links with GB/s and µs. Keeping the two apart lets a file be read, shown and written again without loss.

mod bus;
pub mod constants;
mod cpus;
mod validate;

use serde::{Deserialize, Serialize};

use crate::rdma::RdmaDevice;

pub use bus::BusId;
pub(crate) use validate::{Fault, Part};

/// Attributes of a file that this crate keeps and does not interpret, in their order.
pub type Attributes = Vec<(String, String)>;

/// One host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// What to call it, for people.
    #[serde(default)]
    pub name: String,
    /// NUMA nodes, in the order of the source.
    pub numas: Vec<Numa>,
    /// PCI devices, each after its parent.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// RDMA devices, where the source shows them. Their ports are ports of the adapters too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma: Vec<RdmaDevice>,
    /// Links whose speed was measured or given by hand; they win over every table.
    #[serde(default)]
    pub overrides: Vec<LinkOverride>,
    /// What providers and readers could not see or do not believe.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Attributes of the source's outermost element.
    #[serde(default)]
    pub extra: Attributes,
}

/// One NUMA node with its cores.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numa {
    /// The system's number for it; -1 where a virtual machine has none.
    pub id: i32,
    /// `x86_64`, `arm64`, `ppc64`; empty if unknown.
    #[serde(default)]
    pub arch: String,
    /// `GenuineIntel`, `AuthenticAMD`, …; empty if unknown.
    #[serde(default)]
    pub vendor: String,
    /// CPU family, in the notation of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<i32>,
    /// CPU model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<i32>,
    /// CPUs (hardware threads) as hexadecimal words, highest first, as sysfs' `cpumap` prints them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// Identity of the host, where files of several hosts are fused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_hash: Option<String>,
    /// Memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Network ports that hang off no PCI device (virtual NICs, USB).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// Attributes not interpreted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra: Attributes,
}

/// Where a device hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parent {
    /// On a NUMA node's root complex (index into [`System::numas`]).
    Numa(usize),
    /// Behind another device (index into [`System::devices`]).
    Device(usize),
}

/// One PCI function: bridge, switch, GPU, NIC or something else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// What it hangs off.
    pub parent: Parent,
    /// Its address.
    pub bus: BusId,
    /// PCI class, 24 bits: 0x060400 is a bridge, 0x03.... a GPU, 0x02.... a NIC, 0x068000 an NVSwitch.
    pub class: u32,
    /// Vendor, device, subsystem vendor, subsystem device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<[u16; 4]>,
    /// Link speed as sysfs prints it (`16.0 GT/s PCIe`), empty or absent where it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_speed: Option<String>,
    /// Lanes; 0 or absent where they cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_width: Option<u32>,
    /// The fastest the device could go, `speed x width`, where that differs from the above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_max: Option<String>,
    /// Which PCI host bridge it is under (`pci0000:80`), where that is known: tells PHB from NODE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bridge: Option<String>,
    /// Product name, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// The accelerator it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Network ports on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// Links to other switches (Broadcom).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pcilinks: Vec<BusId>,
    /// Attributes not interpreted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra: Attributes,
}

/// What makes a PCI device an accelerator.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The driver's index.
    pub dev: i32,
    /// Compute capability as NCCL writes it (80, 90, 100); 0 if unknown, the number of compute units for AMD.
    #[serde(default)]
    pub sm: i32,
    /// Rank in the job of the file's author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<i32>,
    /// NICs can reach its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gdr: Option<bool>,
    /// Other GPUs can reach its memory over PCIe; absent where the source does not say, which counts as yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_access: Option<bool>,
    /// AMD's gfx target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcn: Option<String>,
    /// Links to peers and NVSwitches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<NvLink>,
    /// Chip-to-chip links to its CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub c2c: Vec<C2c>,
    /// The source only shows a device of display class: that it takes part is our assumption.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub assumed: bool,
    /// Attributes not interpreted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra: Attributes,
}

/// A bundle of NVLinks (or xGMI links) to one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// Peer GPU, NVSwitch, CPU (POWER), or the placeholder for a hidden NVSwitch.
    pub target: BusId,
    /// How many links.
    pub count: u32,
    /// PCI class of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_class: Option<u32>,
    /// GB/s of all of them in one direction, where the source says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<f64>,
    /// AMD's kind of link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub xgmi: bool,
}

/// Chip-to-chip link between CPU and GPU (Grace).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct C2c {
    /// MB/s of one link.
    pub bw: f64,
    /// Number of links.
    pub count: u32,
}

/// A network adapter: one or more ports.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Its ports.
    pub ports: Vec<Port>,
    /// Attributes not interpreted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra: Attributes,
}

/// One network port.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// `mlx5_0`, `eth0`.
    #[serde(default)]
    pub name: String,
    /// Index among the network devices; a port without one is not used by NCCL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<i32>,
    /// Mb/s; absent or 0 where it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<f64>,
    /// Port number on the adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<f64>,
    /// Adapter's globally unique id: ports with the same one share an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guid: Option<u64>,
    /// Connections it can hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxconn: Option<i64>,
    /// Reaches GPU memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gdr: Option<bool>,
    /// RDMA device behind the interface, or the interface behind the RDMA device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub companion: Option<String>,
    /// `up`, `down`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Attributes not interpreted (`coll`, `net`, `gin`, `rma`, `rail`, `plane`, `keep`, …).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra: Attributes,
}

/// The true speed of one link, by the names that [`Graph`](crate::Graph) gives its ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkOverride {
    /// One end: `GPU0`, `NUMA1`, a port's name or a bus id. Must be a neighbour of `to`.
    pub from: String,
    /// Other end.
    pub to: String,
    /// GB/s in that direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gbps: Option<f64>,
    /// µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
    /// Whether it holds for the other direction too (the usual case).
    #[serde(default = "yes")]
    pub both: bool,
}

fn yes() -> bool {
    true
}

/// Something a reader of the result must know: not seen, not believed, assumed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// Who says so: `hwloc`, `sysfs`, `nvml`, or the format.
    pub source: String,
    /// One sentence.
    pub message: String,
    /// Set where paths and searches rest on a guess because of it, so that they must say so too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guess: Option<Guess>,
}

/// What is guessed where a source is silent or not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guess {
    /// Speeds of PCIe links: each counts as PCIe 3.0 x16.
    LinkSpeeds,
    /// NVLinks: none are taken to be there.
    NvLinks,
}

/// What a PCI class means to this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassKind {
    /// Bridge, switch, or anything unknown.
    Bridge,
    /// Accelerator.
    Gpu,
    /// Network adapter.
    Nic,
    /// NVSwitch.
    NvSwitch,
}

/// Sorts a 24-bit PCI class: 0x03 display and 0x12 processing accelerators are GPUs, 0x02 and 0x0c06 (InfiniBand as a
/// serial bus) are NICs, 0x068000 an NVSwitch.
pub fn class_kind(class: u32) -> ClassKind {
    match class >> 16 {
        0x03 | 0x12 => ClassKind::Gpu,
        0x02 => ClassKind::Nic,
        _ if class >> 8 == 0x0c06 => ClassKind::Nic,
        _ if class == 0x068000 => ClassKind::NvSwitch,
        _ => ClassKind::Bridge,
    }
}

/// The most PCI devices of one host that are looked at; the largest servers show a few hundred.
pub const MAX_DEVICES: usize = 4096;
/// The most NUMA nodes of one host: all are joined in pairs, and the largest servers have 64.
pub const MAX_NUMAS: usize = 256;

impl System {
    /// Adds a finding, once.
    pub fn finding(&mut self, source: &str, message: impl Into<String>) {
        self.add(Finding { source: source.to_owned(), message: message.into(), guess: None });
    }

    /// Adds a finding that makes results a guess, once.
    pub fn guess(&mut self, source: &str, guess: Guess, message: impl Into<String>) {
        self.add(Finding { source: source.to_owned(), message: message.into(), guess: Some(guess) });
    }

    /// The guesses that paths and searches rest on, one sentence each.
    pub fn guesses(&self) -> impl Iterator<Item = &str> {
        self.findings.iter().filter(|f| f.guess.is_some()).map(|f| f.message.as_str())
    }

    fn add(&mut self, finding: Finding) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// Indices of the devices that are accelerators, in order.
    pub fn gpus(&self) -> impl Iterator<Item = (usize, &Device, &Gpu)> {
        self.devices.iter().enumerate().filter_map(|(i, d)| d.gpu.as_ref().map(|g| (i, d, g)))
    }

    /// Every network port with the device it is on (none for virtual ones) and its NUMA node.
    pub fn ports(&self) -> impl Iterator<Item = (Option<usize>, &Port)> {
        let on_devices =
            self.devices.iter().enumerate().flat_map(|(i, d)| {
                d.nics.iter().flat_map(move |n| n.ports.iter().map(move |p| (Some(i), p)))
            });
        let virtuals =
            self.numas.iter().flat_map(|n| n.nics.iter().flat_map(|n| n.ports.iter().map(|p| (None, p))));
        virtuals.chain(on_devices)
    }

    /// The NUMA node (index) a device hangs off. The system must be valid.
    pub fn numa_of(&self, device: usize) -> usize {
        let mut at = device;
        loop {
            match self.devices[at].parent {
                Parent::Numa(n) => return n,
                Parent::Device(d) => at = d,
            }
        }
    }

    /// For each NUMA node the number of its host, in the order in which the hosts appear: all 0 but in fused files.
    pub fn hosts(&self) -> Vec<usize> {
        let mut known: Vec<Option<&str>> = Vec::new();
        self.numas
            .iter()
            .map(|numa| {
                let hash = numa.host_hash.as_deref();
                known.iter().position(|k| *k == hash).unwrap_or_else(|| {
                    known.push(hash);
                    known.len() - 1
                })
            })
            .collect()
    }

    /// Devices directly below `parent`, in order.
    pub fn children(&self, parent: Parent) -> impl Iterator<Item = usize> {
        self.devices.iter().enumerate().filter(move |(_, d)| d.parent == parent).map(|(i, _)| i)
    }
}

impl Device {
    /// A device with nothing but a place, an address and a class.
    pub fn new(parent: Parent, bus: BusId, class: u32) -> Self {
        Device {
            parent,
            bus,
            class,
            ids: None,
            link_speed: None,
            link_width: None,
            link_max: None,
            host_bridge: None,
            product: None,
            gpu: None,
            nics: Vec::new(),
            pcilinks: Vec::new(),
            extra: Vec::new(),
        }
    }

    /// GB/s of the link to its parent, by the table of [`constants::pcie_bandwidth`]; a speed that is not believed
    /// counts as one that is not known.
    pub fn link_bandwidth(&self) -> f64 {
        if self.link_is_doubtful() {
            return constants::pcie_bandwidth("", 0);
        }
        constants::pcie_bandwidth(self.link_speed.as_deref().unwrap_or(""), self.link_width.unwrap_or(0))
    }

    /// The link speed is what emulated and passed-through devices report, not a speed: nothing readable, or
    /// 2.5 GT/s over one lane.
    pub fn link_is_doubtful(&self) -> bool {
        let speed = constants::gigatransfers(self.link_speed.as_deref().unwrap_or(""));
        match (speed, self.link_width.unwrap_or(0)) {
            (None, _) | (_, 0) | (_, 64..) => true,
            (Some(s), 1) => s <= 2.5,
            _ => false,
        }
    }
}
