//! What no reader can check on its own: the parts of a system fit together, and its numbers are of this world.

use std::collections::HashMap;

use super::constants::{self, MAX_GBPS, MAX_LINK_GTS, MAX_PORT_MBPS, MAX_US};
use super::{BusId, Device, Gpu, MAX_DEVICES, MAX_NUMAS, Numa, Parent, Port, System};
use crate::{Error, Result};

/// The most links of one bundle.
const MAX_LINKS: u32 = 1024;

/// The part of a system that something is wrong with, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The whole.
    System,
    /// In [`System::numas`], with what belongs to it.
    Numa(usize),
    /// In [`System::devices`], with what belongs to it.
    Device(usize),
}

/// What is wrong, and where.
#[derive(Debug)]
pub(crate) struct Fault {
    /// The part.
    pub part: Part,
    /// The part that it clashes with.
    pub first: Option<Part>,
    /// What is wrong with it and what to do.
    pub message: String,
}

impl Fault {
    fn of(part: Part, message: String) -> Fault {
        Fault { part, first: None, message }
    }

    fn clash(part: Part, first: Part, message: String) -> Fault {
        Fault { part, first: Some(first), message }
    }
}

impl System {
    /// Checks what no reader can check on its own: parents exist and make a tree, bus ids are unique, speeds are
    /// positive, NVLinks lead somewhere.
    pub fn validate(&self) -> Result<()> {
        self.check().map_err(|fault| {
            let count = |part| match part {
                Part::System => None,
                Part::Numa(i) | Part::Device(i) => Some(i + 1),
            };
            Error::Invalid(match (fault.first.and_then(count), count(fault.part)) {
                (Some(first), Some(second)) => {
                    format!("{} (numbers {first} and {second} in order)", fault.message)
                }
                _ => fault.message,
            })
        })
    }

    /// The same, with the part that is wrong, for readers that know where in a file it stands.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let whole = |message: String| Err(Fault::of(Part::System, message));
        if self.numas.is_empty() {
            return whole("the system has no NUMA node; even a machine without NUMA has one <cpu>".into());
        }
        if self.devices.len() > MAX_DEVICES {
            return whole(format!(
                "{} PCI devices in one host; at most {MAX_DEVICES} are looked at",
                self.devices.len()
            ));
        }
        if self.numas.len() > MAX_NUMAS {
            return whole(format!(
                "{} NUMA nodes in one host; at most {MAX_NUMAS} are looked at",
                self.numas.len()
            ));
        }
        let mut numas = HashMap::new();
        for (i, numa) in self.numas.iter().enumerate() {
            if let Some(first) = numas.insert((numa.id, numa.host_hash.as_deref()), i) {
                let message = format!("NUMA node {} is described twice; give each its own id", numa.id);
                return Err(Fault::clash(Part::Numa(i), Part::Numa(first), message));
            }
        }
        self.check_tree()?;
        self.check_rdma().or_else(whole)?;
        let hosts = self.hosts();
        let host = |device: usize| hosts[self.numa_of(device)];
        let mut seen: HashMap<(usize, &BusId), usize> = HashMap::new();
        for (i, d) in self.devices.iter().enumerate() {
            if let Some(first) = seen.insert((host(i), &d.bus), i) {
                let message = if self.is_above(first, i) {
                    format!("the PCI tree has a cycle through {}: a device cannot be above itself", d.bus)
                } else {
                    format!("bus id {} is used by two devices; each PCI function has its own", d.bus)
                };
                return Err(Fault::clash(Part::Device(i), Part::Device(first), message));
            }
        }
        let mut ranks = HashMap::new();
        let mut devs = HashMap::new();
        for (i, d, gpu) in self.gpus() {
            let here = |message: String| Err(Fault::of(Part::Device(i), message));
            if gpu.dev < 0 {
                return here(format!(
                    "GPU {} has the number {} (dev); the driver counts from 0",
                    d.bus, gpu.dev
                ));
            }
            if let Some(first) = devs.insert((host(i), gpu.dev), i) {
                let other = &self.devices[first].bus;
                let message = format!(
                    "GPUs {other} and {} both have the number {} (dev); each has its own",
                    d.bus, gpu.dev
                );
                return Err(Fault::clash(Part::Device(i), Part::Device(first), message));
            }
            if gpu.sm < 0 {
                return here(format!(
                    "GPU {} has compute capability {} (sm); 90 stands for 9.0, 0 for unknown",
                    d.bus, gpu.sm
                ));
            }
            if let Some(rank) = gpu.rank
                && let Some(first) = ranks.insert(rank, i)
            {
                let message = format!("GPUs {} and {} both have rank {rank}", self.devices[first].bus, d.bus);
                return Err(Fault::clash(Part::Device(i), Part::Device(first), message));
            }
            d.check_gpu(gpu, |target| seen.contains_key(&(host(i), target))).or_else(here)?;
        }
        for (i, d) in self.devices.iter().enumerate() {
            let ports = || d.nics.iter().flat_map(|n| &n.ports).try_for_each(Port::check);
            d.check_link().and_then(|()| ports()).map_err(|m| Fault::of(Part::Device(i), m))?;
        }
        for (i, numa) in self.numas.iter().enumerate() {
            let ports = || numa.nics.iter().flat_map(|n| &n.ports).try_for_each(Port::check);
            numa.check().and_then(|()| ports()).map_err(|m| Fault::of(Part::Numa(i), m))?;
        }
        Ok(())
    }

    fn check_rdma(&self) -> Result<(), String> {
        if self.rdma.len() > MAX_DEVICES {
            let count = self.rdma.len();
            return Err(format!("{count} RDMA devices in one host; at most {MAX_DEVICES} are looked at"));
        }
        for (i, d) in self.rdma.iter().enumerate() {
            if self.rdma[..i].iter().any(|other| other.name == d.name) {
                return Err(format!("two RDMA devices are called {}; each has its own name", d.name));
            }
            if let Some(at) = d.device.filter(|&at| at >= self.devices.len()) {
                let there = self.devices.len();
                return Err(format!(
                    "RDMA device {} sits on device number {at}, but there are {there}",
                    d.name
                ));
            }
        }
        Ok(())
    }

    fn is_above(&self, above: usize, below: usize) -> bool {
        let mut at = below;
        while let Parent::Device(up) = self.devices[at].parent {
            if up == above {
                return true;
            }
            at = up;
        }
        false
    }

    fn check_tree(&self) -> Result<(), Fault> {
        for (i, d) in self.devices.iter().enumerate() {
            let here = |message: String| Err(Fault::of(Part::Device(i), message));
            let mut at = i;
            for step in 0.. {
                match self.devices[at].parent {
                    Parent::Numa(n) if n < self.numas.len() => break,
                    Parent::Numa(n) => {
                        return here(format!(
                            "{} hangs off NUMA node number {n}, but there are {}",
                            d.bus,
                            self.numas.len()
                        ));
                    }
                    Parent::Device(p) if p >= self.devices.len() => {
                        return here(format!(
                            "{} hangs off device number {p}, but there are {}",
                            d.bus,
                            self.devices.len()
                        ));
                    }
                    Parent::Device(_) if step > self.devices.len() => {
                        return here(format!(
                            "the PCI tree has a cycle through {}: a device cannot be above itself",
                            d.bus
                        ));
                    }
                    Parent::Device(p) => at = p,
                }
            }
        }
        Ok(())
    }
}

impl Device {
    fn check_gpu(&self, gpu: &Gpu, known: impl Fn(&BusId) -> bool) -> Result<(), String> {
        for link in &gpu.nvlinks {
            if link.count == 0 {
                return Err(format!(
                    "GPU {} has an NVLink to {} with count 0; leave it out, or say how many links there are",
                    self.bus, link.target
                ));
            }
            if let Some(bw) = link.bandwidth
                && !(bw > 0.0 && bw <= MAX_GBPS)
            {
                return Err(format!(
                    "GPU {}: NVLink to {} has {bw:?} GB/s; it is above 0 and at most {MAX_GBPS}",
                    self.bus, link.target
                ));
            }
            if link.count > MAX_LINKS {
                return Err(format!(
                    "GPU {} has {} NVLinks to {}; at most {MAX_LINKS} are believed",
                    self.bus, link.count, link.target
                ));
            }
            let switch = link.target.is_placeholder()
                || link.target_class.is_some_and(|c| matches!(c, 0x068000 | 0x068001));
            if !switch && !known(&link.target) {
                return Err(format!(
                    "GPU {} has an NVLink to {}, and there is no such device; add it, or remove the link",
                    self.bus, link.target
                ));
            }
        }
        for c2c in &gpu.c2c {
            let fits = c2c.bw > 0.0 && c2c.bw * f64::from(c2c.count) <= MAX_GBPS * 1000.0;
            if !fits || !(1..=MAX_LINKS).contains(&c2c.count) {
                return Err(format!(
                    "GPU {} has a C2C link of {} × {:?} MB/s; both are positive, together at most {MAX_GBPS} GB/s",
                    self.bus, c2c.count, c2c.bw
                ));
            }
        }
        Ok(())
    }

    fn check_link(&self) -> Result<(), String> {
        if let Some(gts) = self.link_speed.as_deref().and_then(constants::gigatransfers)
            && !(gts > 0.0 && gts <= MAX_LINK_GTS)
        {
            return Err(format!(
                "{} has a link speed of {gts:?} GT/s; it is above 0 and at most {MAX_LINK_GTS}, or empty if unknown",
                self.bus
            ));
        }
        if let Some(width) = self.link_width.filter(|&w| w > 255) {
            return Err(format!(
                "{} has a link of {width} lanes; PCIe has 1 to 32, 0 and 255 stand for unknown",
                self.bus
            ));
        }
        Ok(())
    }
}

impl Numa {
    fn check(&self) -> Result<(), String> {
        // hwloc leaves words of zeros empty.
        let word = |w: &str| w.is_empty() || (w.len() <= 16 && u64::from_str_radix(w.trim(), 16).is_ok());
        if let Some(map) = self.affinity.as_deref().filter(|m| !m.is_empty() && !m.split(',').all(word)) {
            let shown: String = map.chars().take(40).collect();
            return Err(format!(
                "NUMA node {} has the affinity `{shown}`; it is hexadecimal words with commas, such as \
                 0000ffff,ffffffff",
                self.id
            ));
        }
        Ok(())
    }
}

impl Port {
    fn check(&self) -> Result<(), String> {
        let bad = |what: &str| Err(format!("port {} has {what}", self.name));
        if let Some(speed) = self.speed_mbps.filter(|s| !(0.0..=MAX_PORT_MBPS).contains(s)) {
            return bad(&format!(
                "a speed of {speed:?} Mb/s; it is at most {MAX_PORT_MBPS}, and absent or 0 if not known"
            ));
        }
        if let Some(us) = self.latency.filter(|us| !(0.0..=MAX_US).contains(us)) {
            return bad(&format!("a latency of {us:?} µs; it is 0 to {MAX_US}"));
        }
        if let Some(port) = self.port.filter(|p| !(0..=255).contains(p)) {
            return bad(&format!(
                "the number {port} on its adapter; adapters count their ports from 0 or 1 to 255"
            ));
        }
        if let Some(dev) = self.dev.filter(|&d| d < 0) {
            return bad(&format!("the number {dev} (dev); network devices count from 0"));
        }
        if let Some(most) = self.maxconn.filter(|&m| m < 0) {
            return bad(&format!("room for {most} connections (maxconn); it is not negative"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::model::System;

    fn error(change: impl FnOnce(&mut System)) -> String {
        let mut system = crate::library::machine("dgx-h100").unwrap();
        change(&mut system);
        system.validate().unwrap_err().to_string()
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_with_the_limit() {
        let port = |change: fn(&mut crate::model::Port)| {
            error(|s| {
                let nic = s.devices.iter_mut().find(|d| !d.nics.is_empty()).unwrap();
                change(&mut nic.nics[0].ports[0]);
            })
        };
        let e = port(|p| p.speed_mbps = Some(1e23));
        assert!(e.contains("mlx5_0") && e.contains("1e23 Mb/s") && e.contains("at most 100000000"), "{e}");
        assert!(port(|p| p.speed_mbps = Some(f64::NAN)).contains("NaN Mb/s"));
        assert!(port(|p| p.latency = Some(-1.0)).contains("-1.0 µs"));
        assert!(port(|p| p.latency = Some(f64::INFINITY)).contains("inf µs"));
        assert!(port(|p| p.port = Some(-3)).contains("-3"));
        assert!(port(|p| p.maxconn = Some(-1)).contains("maxconn"));
        let e = error(|s| s.devices[0].link_speed = Some("1e308 GT/s".into()));
        assert!(e.contains("1e308 GT/s") && e.contains("at most 1024"), "{e}");
        assert!(error(|s| s.devices[0].link_speed = Some("inf GT/s".into())).contains("inf GT/s"));
        assert!(error(|s| s.devices[0].link_speed = Some("-8 GT/s".into())).contains("-8.0 GT/s"));
        assert!(error(|s| s.devices[0].link_width = Some(4000)).contains("4000 lanes"));
        let e = error(|s| s.numas[1].affinity = Some("zzz".into()));
        assert!(e.contains("NUMA node 1") && e.contains("`zzz`"), "{e}");
        let gpu = |change: fn(&mut crate::model::Gpu)| {
            error(|s| change(s.devices.iter_mut().find_map(|d| d.gpu.as_mut()).unwrap()))
        };
        assert!(gpu(|g| g.nvlinks[0].bandwidth = Some(1e300)).contains("1e300 GB/s"));
        assert!(gpu(|g| g.nvlinks[0].count = 99_999).contains("99999"));
        assert!(
            gpu(|g| g.c2c.push(crate::model::C2c { bw: 1e20, count: 2 })).contains("at most 1000000 GB/s")
        );
    }
}
