//! Readers and writers, all of them from text to text. Files are opened by the caller.

pub mod detect;
pub mod dot;
pub mod hwloc_xml;
pub mod json;
pub mod nccl_graph;
pub mod nccl_xml;
pub mod nvidia_smi;
pub mod svg;
pub mod xml;

pub use detect::{Format, guess, read_any};

use crate::model::{ClassKind, Gpu, Guess, Parent, System, class_kind};

/// Says which link speeds cannot be true: nothing readable, or 2.5 GT/s over one lane, as virtual machines show them.
pub(crate) fn note_link_speeds(system: &mut System, source: &str) {
    // A VGA controller is a console.
    let matters = |d: &&crate::model::Device| {
        d.gpu.is_some() || computes(d.class) || class_kind(d.class) == ClassKind::Nic
    };
    let all = system.devices.iter().filter(matters).count();
    let doubtful: Vec<String> = system
        .devices
        .iter()
        .filter(matters)
        .filter(|d| d.link_is_doubtful())
        .map(|d| d.bus.to_string())
        .collect();
    if doubtful.is_empty() {
        return;
    }
    let shown = doubtful.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    let more = if doubtful.len() > 3 { format!(" and {} more", doubtful.len() - 3) } else { String::new() };
    let example = system.devices.iter().find(|d| d.bus.as_str() == doubtful[0]);
    let reads = example.map_or(String::new(), |d| {
        let speed = d.link_speed.as_deref().unwrap_or("").trim();
        match (speed, d.link_width.unwrap_or(0)) {
            ("", 0) => "no speed and no width".to_owned(),
            ("", width) => format!("no speed, x{width}"),
            (speed, width) => format!("{speed} x{width}"),
        }
    });
    let lies = example.is_some_and(|d| d.link_speed.as_deref().is_some_and(|s| !s.trim().is_empty()));
    let (what, why) = match lies {
        true => ("show a PCIe link that is no real one", ", as virtual machines do"),
        false => ("state no PCIe link", ""),
    };
    system.guess(
        source,
        Guess::LinkSpeeds,
        format!(
            "{} of {all} GPUs and NICs {what} ({reads}: {shown}{more}){why}; each \
             counts as 3.0 x16, a guess until a measured file or a topology file says better",
            doubtful.len()
        ),
    );
}

/// Compute capabilities of GPUs that are linked by NVLink, but for the PCIe cards among them (NVIDIA's datasheets of
/// P100, V100, A100, H100 and H200, B200 and B300).
const NVLINK_SM: [i32; 6] = [60, 70, 80, 90, 100, 103];

/// PCI ids of cards of those generations that plug into PCIe and need a bridge for NVLink, or have none (The PCI ID
/// Repository: P100 PCIe, V100 PCIe, A100 PCIe, A30, H100 PCIe and NVL, H200 NVL).
fn is_pcie_card(ids: Option<[u16; 4]>) -> bool {
    let cards = [0x15f7, 0x15f8, 0x1db4, 0x1db6, 0x20b5, 0x20b7, 0x20f1, 0x2321, 0x2331, 0x233b];
    matches!(ids, Some([0x10de, device, ..]) if cards.contains(&device))
}

/// Says where no GPU has an NVLink though its generation is linked by them: a file that leaves them out, as virtual
/// machines' do, looks like one of PCIe cards.
pub(crate) fn note_missing_nvlinks(system: &mut System, source: &str) {
    let linked = system.gpus().any(|(_, _, g)| !g.nvlinks.is_empty());
    let should = |d: &crate::model::Device, g: &Gpu| {
        g.gcn.is_none() && NVLINK_SM.contains(&g.sm) && !is_pcie_card(d.ids)
    };
    let n = system.gpus().filter(|(_, d, g)| should(d, g)).count();
    if !linked && n > 1 {
        system.guess(
            source,
            Guess::NvLinks,
            format!(
                "no NVLink of the {n} GPUs is described, and their generation has them unless they are PCIe cards: \
                 NVLinks unknown, so PCIe only"
            ),
        );
    }
}

/// The first few of a list.
pub(crate) fn some_of(names: &[String]) -> String {
    let shown = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 3 { format!("{shown} and {} more", names.len() - 3) } else { shown }
}

/// VGA controllers (0x030000) are consoles; 3D controllers (0x0302) and accelerators compute.
pub(crate) fn computes(class: u32) -> bool {
    class >> 8 == 0x0302 || class >> 16 == 0x12
}

/// Some clouds' files link GPUs to themselves, where the peer is hidden.
pub(crate) fn note_self_links(system: &mut System, source: &str) {
    let n = system.gpus().filter(|(_, d, g)| g.nvlinks.iter().any(|l| l.target == d.bus)).count();
    if n > 0 {
        system.guess(
            source,
            Guess::NvLinks,
            format!("{n} GPUs list NVLinks to themselves: their peers are hidden, and no path uses them"),
        );
    }
}

/// Files of clouds name only `<pci>`: where no GPU is described, devices of display class with a PCIe link are taken
/// for GPUs, in order.
pub(crate) fn assume_gpus(system: &mut System, source: &str) {
    if system.gpus().next().is_some() {
        return;
    }
    let parents: std::collections::HashSet<usize> = system
        .devices
        .iter()
        .filter_map(|d| if let Parent::Device(p) = d.parent { Some(p) } else { None })
        .collect();
    let mut dev = 0;
    for i in 0..system.devices.len() {
        if computes(system.devices[i].class) && !parents.contains(&i) {
            system.devices[i].gpu = Some(Gpu { dev, assumed: true, ..Gpu::default() });
            dev += 1;
        }
    }
    if dev > 0 {
        system.guess(
            source,
            Guess::NvLinks,
            format!(
                "no GPU is described; {dev} PCI devices of class 0x0302 or 0x12 are taken for GPUs, in order, and \
                 their NVLinks are not known"
            ),
        );
    }
}

/// What a device is, for people: virtio devices by their number (Virtual I/O Device specification, §5), others by class.
pub fn kind_name(device: &crate::model::Device) -> &'static str {
    match device.ids {
        Some([0x1af4, 0x1000 | 0x1041, ..]) => "virtio network",
        Some([0x1af4, 0x1001 | 0x1042, ..]) => "virtio block",
        Some([0x1af4, 0x1003 | 0x1043, ..]) => "virtio console",
        Some([0x1af4, 0x1005 | 0x1044, ..]) => "virtio entropy",
        Some([0x1af4, 0x1002 | 0x1045, ..]) => "virtio balloon",
        Some([0x1af4, 0x1004 | 0x1048, ..]) => "virtio SCSI",
        Some([0x1af4, 0x1009 | 0x1049, ..]) => "virtio 9P",
        Some([0x1af4, 0x1050, ..]) => "virtio GPU",
        Some([0x1af4, 0x1053, ..]) => "virtio socket",
        Some([0x1af4, 0x105a, ..]) => "virtio file system",
        Some([0x10de, ..]) if device.class == 0x068000 => "NVSwitch",
        _ => class_name(device.class),
    }
}

/// What a PCI class is called, for people (PCI Code and ID Assignment Specification).
pub fn class_name(class: u32) -> &'static str {
    match class >> 8 {
        0x0100..=0x0107 => "storage",
        0x0108 => "NVMe",
        0x0180 => "storage",
        0x0200 => "Ethernet",
        0x0207 => "InfiniBand",
        0x0208..=0x0280 => "network",
        0x0300 => "VGA display",
        0x0302 => "3D accelerator",
        0x0380 => "display",
        0x0500..=0x0580 => "memory",
        0x0600 => "host bridge",
        0x0601 => "ISA bridge",
        0x0604 => "PCIe bridge",
        0x0680 => "bridge",
        0x0780 => "communication",
        0x0801..=0x0880 => "system device",
        0x0c03 => "USB",
        0x0c05 => "SMBus",
        0x1000..=0x1080 => "encryption",
        0x1200 => "accelerator",
        0x00ff | 0x0000 | 0xff00 => "virtio or unclassified",
        _ => "other device",
    }
}
