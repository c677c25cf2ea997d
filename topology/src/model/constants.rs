//! Every number that the model takes from somewhere else, with its source.
//!
//! Bandwidths are GB/s (1e9 bytes per second) in one direction and are what a link gives to payload, not its raw
//! signalling rate: the tables are NCCL 2.30.7's and 2.31.2's (`graph/topo.h`), because its rings and trees can only
//! be found again with its numbers. A measurement overrides any of them (see [`crate::providers::measured`]).

/// Inside one device (NCCL 2.30 `LOC_BW`).
pub const LOCAL_BANDWIDTH: f64 = 5000.0;
/// Network speed assumed where none can be read, in Mb/s (NCCL 2.30: 10 Gb/s).
pub const DEFAULT_NET_MBPS: f64 = 10_000.0;
/// Traffic between GPUs through an Intel root complex costs this factor more (NCCL 2.30 `INTEL_P2P_OVERHEAD`).
pub const INTEL_P2P_OVERHEAD: f64 = 1.2;

/// The most GB/s that a link is believed to have: a thousand times what is built.
pub const MAX_GBPS: f64 = 1e6;
/// The most Mb/s that a port is believed to have: 100 Tb/s, where 1.6 Tb/s is built.
pub const MAX_PORT_MBPS: f64 = 1e8;
/// The most GT/s that a PCIe lane is believed to signal at: PCIe 7.0 has 128.
pub const MAX_LINK_GTS: f64 = 1024.0;
/// The most µs that a link or port is believed to take: a second.
pub const MAX_US: f64 = 1e6;

/// GB/s of one NVLink for a compute capability (NCCL 2.30 `graph/topo.h`).
pub fn nvlink_bandwidth(sm: i32) -> f64 {
    match sm {
        100.. => 40.1,
        90..=99 => 20.6,
        86 => 12.0,
        80..=89 => 20.0,
        70..=79 => 20.0,
        60..=69 => 18.0,
        _ => 20.0,
    }
}

/// GB/s that one NVLink signals at, before protocol (NVIDIA's datasheets: 160 GB/s both ways over 4 links on P100, 300
/// over 6 on V100, 600 over 12 on A100, 900 over 18 on H100, 1800 over 18 on B200).
pub fn nvlink_raw_bandwidth(sm: i32) -> f64 {
    match sm {
        100.. => 50.0,
        60..=69 => 20.0,
        _ => 25.0,
    }
}

/// Compute capability of an NVIDIA data centre GPU by its PCI id; 0 for any other (The PCI ID Repository).
pub fn sm_of_pci_id(vendor: u16, device: u16) -> i32 {
    match (vendor, device) {
        (0x10de, 0x15f7..=0x15f9) => 60,
        (0x10de, 0x1db0..=0x1dbf | 0x1df0..=0x1df6) => 70,
        (0x10de, 0x1eb8) => 75,
        (0x10de, 0x20b0..=0x20ff) => 80,
        (0x10de, 0x2230..=0x2238) => 86,
        (0x10de, 0x2684 | 0x26b0..=0x26ba | 0x27b8) => 89,
        (0x10de, 0x2300..=0x234f) => 90,
        (0x10de, 0x2900..=0x2941 | 0x31c0..=0x31c3) => 100,
        _ => 0,
    }
}

/// GB/s of one xGMI link for a gfx target (RCCL `graph/topo.h`: Vega 24, MI200 36, MI300 48).
pub fn xgmi_bandwidth(gcn: &str) -> f64 {
    match gcn.trim_start_matches("gfx") {
        "90a" | "910" => 36.0,
        "940" | "941" | "942" | "950" => 48.0,
        _ => 24.0,
    }
}

/// GB/s of a PCIe link of `width` lanes for sysfs' `current_link_speed` text (`16.0 GT/s PCIe` and relatives).
///
/// NCCL 2.30: a lane carries 15, 30, 60, 120, 240, 480 eightieths of a GB/s for PCIe 1 to 6, and text it does not
/// know counts as PCIe 3; width 0 counts as 16.
pub fn pcie_bandwidth(speed: &str, width: u32) -> f64 {
    let lane = match gigatransfers(speed) {
        Some(2.5) => 15.0,
        Some(5.0) => 30.0,
        Some(8.0) => 60.0,
        Some(16.0) => 120.0,
        Some(32.0) => 240.0,
        Some(64.0) => 480.0,
        _ => 60.0,
    };
    f64::from(if width == 0 { 16 } else { width }) * lane / 80.0
}

/// The number in front of `GT/s`, if the text has that form.
pub fn gigatransfers(speed: &str) -> Option<f64> {
    let (number, _) = speed.trim().split_once("GT/s")?;
    number.trim().parse().ok()
}

/// GB/s between two sockets, by maker and model (NCCL 2.30.7 and, for AMD Zen 3 and later and Granite Rapids,
/// NCCL 2.31.2 `graph/topo.cc`).
///
/// The AMD figures are 2.30's 16 unless `newer_amd` is set: 2.31 raised them and made 1 MB all-reduces 60 % slower for
/// one user (NVIDIA/nccl#2441), so the older ones stand until a measurement says better.
pub fn inter_socket_bandwidth(arch: &str, vendor: &str, family: i32, model: i32, newer_amd: bool) -> f64 {
    match (arch, vendor.trim()) {
        ("x86_64", "GenuineIntel") => match model {
            0xCF.. => 40.0,
            0xAD..=0xAF => 40.0,
            0x8F.. => 22.0,
            0x55.. => 10.0,
            _ => 6.0,
        },
        ("x86_64", "AuthenticAMD") if newer_amd => match amd_family(family) {
            0x1A.. => 32.0,
            0x19 => 24.0,
            _ => 16.0,
        },
        ("x86_64", "AuthenticAMD") => 16.0,
        ("x86_64", "CentaurHauls") => 9.0,
        ("x86_64", "Shanghai") => 6.0,
        ("ppc64", _) => 32.0,
        ("arm64", _) => 6.0,
        _ => 10.0,
    }
}

/// The AMD family in today's notation. Files written by NCCL up to 2.30 hold base + (extension << 4): 143 (0x8F) is
/// Zen 1/2 (0x17), 175 (0xAF) Zen 3/4 (0x19), 191 (0xBF) Zen 5 (0x1A).
pub fn amd_family(family: i32) -> i32 {
    match family {
        0x8F => 0x17,
        0xAF => 0x19,
        0xBF => 0x1A,
        other => other,
    }
}

/// µs that a link of each kind adds. NCCL 2.30's tuning table gives 0.6 µs a step over NVLink, 1.0 over PCIe and 2.7
/// over the network (ring, LL protocol). A GPU pair behind one NVSwitch crosses two links, a GPU pair under one root
/// complex four, a network step two: each link gets its share, so that a typical path of each class adds up to the
/// table's step.
pub mod latency {
    /// GPU to GPU over NVLink.
    pub const NVLINK: f64 = 0.6;
    /// GPU to NVSwitch.
    pub const NVSWITCH_LEG: f64 = 0.3;
    /// One PCIe link.
    pub const PCI: f64 = 0.25;
    /// CPU to GPU chip link: as an NVSwitch leg.
    pub const C2C: f64 = 0.3;
    /// Socket to socket: one more PCIe link's worth.
    pub const SYS: f64 = 0.25;
    /// NIC to wire.
    pub const NET: f64 = 1.35;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcie_generations() {
        for (text, want) in [
            ("8 GT/s", 12.0),
            ("8.0 GT/s PCIe", 12.0),
            ("16.0 GT/s PCIe", 24.0),
            ("32.0 GT/s", 48.0),
            ("64 GT/s PCIe", 96.0),
            ("", 12.0),
            ("Unknown", 12.0),
        ] {
            assert_eq!(pcie_bandwidth(text, 16), want, "{text}");
        }
        assert_eq!(pcie_bandwidth("16 GT/s", 0), 24.0);
        assert_eq!(pcie_bandwidth("2.5 GT/s PCIe", 1), 0.1875);
    }

    #[test]
    fn sockets() {
        assert_eq!(inter_socket_bandwidth("x86_64", "GenuineIntel", 6, 207, false), 40.0);
        assert_eq!(inter_socket_bandwidth("x86_64", "GenuineIntel", 6, 143, false), 22.0);
        assert_eq!(inter_socket_bandwidth("x86_64", "GenuineIntel", 6, 85, false), 10.0);
        assert_eq!(inter_socket_bandwidth("x86_64", "AuthenticAMD", 175, 1, false), 16.0);
        assert_eq!(inter_socket_bandwidth("x86_64", "AuthenticAMD", 175, 1, true), 24.0);
        assert_eq!(inter_socket_bandwidth("x86_64", "  Shanghai  ", 7, 91, false), 6.0);
    }
}
