//! What no reader can check on its own: the parts of a system fit together, and its numbers are of this world.

use std::collections::HashMap;

use super::constants::{self, MAX_GBPS, MAX_LINK_GTS, MAX_PORT_MBPS, MAX_US};
use super::{BusId, Device, Gpu, MAX_DEVICES, MAX_NUMAS, Numa, Parent, Port, System};
use crate::{Error, Result};

/// The most links of one bundle.
const MAX_LINKS: u32 = 1024;

impl System {
    /// Checks what no reader can check on its own: parents exist and make a tree, bus ids are unique, speeds are
    /// positive, NVLinks lead somewhere.
    pub fn validate(&self) -> Result<()> {
        if self.numas.is_empty() {
            return Err(Error::invalid(
                "the system has no NUMA node; even a machine without NUMA has one <cpu>",
            ));
        }
        if self.devices.len() > MAX_DEVICES {
            return Err(Error::invalid(format!(
                "{} PCI devices in one host; at most {MAX_DEVICES} are looked at",
                self.devices.len()
            )));
        }
        if self.numas.len() > MAX_NUMAS {
            return Err(Error::invalid(format!(
                "{} NUMA nodes in one host; at most {MAX_NUMAS} are looked at",
                self.numas.len()
            )));
        }
        let mut numas = HashMap::new();
        for (i, numa) in self.numas.iter().enumerate() {
            if let Some(first) = numas.insert((numa.id, numa.host_hash.as_deref()), i) {
                return Err(Error::invalid(format!(
                    "NUMA node {} is described twice (nodes {first} and {i} of the file); give each its own id",
                    numa.id
                )));
            }
        }
        self.validate_tree()?;
        let hosts = self.hosts();
        let host = |device: usize| hosts[self.numa_of(device)];
        let mut seen: HashMap<(usize, &BusId), usize> = HashMap::new();
        for (i, d) in self.devices.iter().enumerate() {
            if let Some(first) = seen.insert((host(i), &d.bus), i) {
                return Err(Error::invalid(format!(
                    "bus id {} is used by two devices (number {first} and number {i}); each PCI function has its own",
                    d.bus
                )));
            }
        }
        let mut ranks = HashMap::new();
        let mut devs = HashMap::new();
        for (i, d, gpu) in self.gpus() {
            if gpu.dev < 0 {
                return Err(Error::invalid(format!(
                    "GPU {} has the number {} (dev); the driver counts from 0",
                    d.bus, gpu.dev
                )));
            }
            if let Some(other) = devs.insert((host(i), gpu.dev), &d.bus) {
                return Err(Error::invalid(format!(
                    "GPUs {other} and {} both have the number {} (dev); each has its own",
                    d.bus, gpu.dev
                )));
            }
            if gpu.sm < 0 {
                return Err(Error::invalid(format!(
                    "GPU {} has compute capability {} (sm); 90 stands for 9.0, 0 for unknown",
                    d.bus, gpu.sm
                )));
            }
            if let Some(rank) = gpu.rank
                && let Some(other) = ranks.insert(rank, &d.bus)
            {
                return Err(Error::invalid(format!("GPUs {other} and {} both have rank {rank}", d.bus)));
            }
            self.validate_gpu(d, gpu, |target| seen.contains_key(&(host(i), target)))?;
        }
        self.devices.iter().try_for_each(Device::validate_link)?;
        self.numas.iter().try_for_each(Numa::validate)?;
        self.ports().try_for_each(|(_, port)| port.validate())
    }

    fn validate_tree(&self) -> Result<()> {
        for (i, d) in self.devices.iter().enumerate() {
            let mut at = i;
            for step in 0.. {
                match self.devices[at].parent {
                    Parent::Numa(n) if n < self.numas.len() => break,
                    Parent::Numa(n) => {
                        return Err(Error::invalid(format!(
                            "{} hangs off NUMA node number {n}, but there are {}",
                            d.bus,
                            self.numas.len()
                        )));
                    }
                    Parent::Device(p) if p >= self.devices.len() => {
                        return Err(Error::invalid(format!(
                            "{} hangs off device number {p}, but there are {}",
                            d.bus,
                            self.devices.len()
                        )));
                    }
                    Parent::Device(_) if step > self.devices.len() => {
                        return Err(Error::invalid(format!(
                            "the PCI tree has a cycle through {}: a device cannot be above itself",
                            d.bus
                        )));
                    }
                    Parent::Device(p) => at = p,
                }
            }
        }
        Ok(())
    }

    fn validate_gpu(&self, d: &Device, gpu: &Gpu, known: impl Fn(&BusId) -> bool) -> Result<()> {
        for link in &gpu.nvlinks {
            if link.count == 0 {
                return Err(Error::invalid(format!(
                    "GPU {} has an NVLink to {} with count 0; leave it out, or say how many links there are",
                    d.bus, link.target
                )));
            }
            if let Some(bw) = link.bandwidth
                && !(bw > 0.0 && bw <= MAX_GBPS)
            {
                return Err(Error::invalid(format!(
                    "GPU {}: NVLink to {} has {bw:?} GB/s; it is above 0 and at most {MAX_GBPS}",
                    d.bus, link.target
                )));
            }
            if link.count > MAX_LINKS {
                return Err(Error::invalid(format!(
                    "GPU {} has {} NVLinks to {}; at most {MAX_LINKS} are believed",
                    d.bus, link.count, link.target
                )));
            }
            let switch = link.target.is_placeholder()
                || link.target_class.is_some_and(|c| matches!(c, 0x068000 | 0x068001));
            if !switch && !known(&link.target) {
                return Err(Error::invalid(format!(
                    "GPU {} has an NVLink to {}, and there is no such device; add it, or remove the link",
                    d.bus, link.target
                )));
            }
        }
        for c2c in &gpu.c2c {
            let fits = c2c.bw > 0.0 && c2c.bw * f64::from(c2c.count) <= MAX_GBPS * 1000.0;
            if !fits || !(1..=MAX_LINKS).contains(&c2c.count) {
                return Err(Error::invalid(format!(
                    "GPU {} has a C2C link of {} × {:?} MB/s; both are positive, together at most {MAX_GBPS} GB/s",
                    d.bus, c2c.count, c2c.bw
                )));
            }
        }
        Ok(())
    }
}

impl Device {
    fn validate_link(&self) -> Result<()> {
        if let Some(gts) = self.link_speed.as_deref().and_then(constants::gigatransfers)
            && !(gts > 0.0 && gts <= MAX_LINK_GTS)
        {
            return Err(Error::invalid(format!(
                "{} has a link speed of {gts:?} GT/s; it is above 0 and at most {MAX_LINK_GTS}, or empty if unknown",
                self.bus
            )));
        }
        if let Some(width) = self.link_width.filter(|&w| w > 255) {
            return Err(Error::invalid(format!(
                "{} has a link of {width} lanes; PCIe has 1 to 32, 0 and 255 stand for unknown",
                self.bus
            )));
        }
        Ok(())
    }
}

impl Numa {
    fn validate(&self) -> Result<()> {
        // hwloc leaves words of zeros empty.
        let word = |w: &str| w.is_empty() || (w.len() <= 16 && u64::from_str_radix(w.trim(), 16).is_ok());
        if let Some(map) = self.affinity.as_deref().filter(|m| !m.is_empty() && !m.split(',').all(word)) {
            let shown: String = map.chars().take(40).collect();
            return Err(Error::invalid(format!(
                "NUMA node {} has the affinity `{shown}`; it is hexadecimal words with commas, such as \
                 0000ffff,ffffffff",
                self.id
            )));
        }
        Ok(())
    }
}

impl Port {
    fn validate(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::invalid(format!("port {} has {what}", self.name)));
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
