//! Links between chips: NVLink and xGMI to peers and switches, and chip links between CPU and GPU.

use super::build::{Builder, Size};
use super::{Link, LinkKind, NodeKind, Source};
use crate::model::constants::{self, latency};

impl Builder<'_> {
    pub(super) fn nvlinks(&mut self) {
        let system = self.system;
        for (i, _, gpu) in system.gpus() {
            let Some(id) = self.of_device[i] else { continue };
            for link in &gpu.nvlinks {
                let each = match &gpu.gcn {
                    Some(gcn) => constants::xgmi_bandwidth(gcn),
                    None if link.xgmi => constants::xgmi_bandwidth(""),
                    None => constants::nvlink_bandwidth(gpu.sm),
                };
                let bandwidth = link.bandwidth.unwrap_or(each * f64::from(link.count));
                let size = Size { bandwidth, count: link.count };
                // Hosts of a fused file use the same bus ids.
                let here = self.hosts[system.numa_of(i)];
                let peer = (0..system.devices.len())
                    .find(|&o| system.devices[o].bus == link.target && self.hosts[system.numa_of(o)] == here);
                let class = link.target_class.or(peer.map(|p| system.devices[p].class));
                if class == Some(0x068001) {
                    let numa = system.numa_of(i);
                    self.both(id, numa, LinkKind::Nvl, size, latency::NVLINK, Source::Table);
                } else if class == Some(0x068000) || link.target.is_placeholder() {
                    let switch = match self.g.nvswitch {
                        Some(switch) => switch,
                        None => self.node(NodeKind::NvSwitch, "NVSW".into(), None, None),
                    };
                    self.g.nvswitch = Some(switch);
                    self.both(id, switch, LinkKind::Nvl, size, latency::NVSWITCH_LEG, Source::Table);
                } else if let Some(peer) = peer.and_then(|p| self.of_device[p]) {
                    // Each end describes its own direction.
                    self.connect(id, peer, LinkKind::Nvl, size, latency::NVLINK, Source::Table);
                }
            }
            let numa = system.numa_of(i);
            for c2c in &gpu.c2c {
                let size = Size { bandwidth: c2c.bw * f64::from(c2c.count) / 1000.0, count: c2c.count };
                self.both(id, numa, LinkKind::C2c, size, latency::C2C, Source::Table);
            }
        }
        self.complete_nvlinks();
    }

    /// A peer link that only one end describes works in both directions all the same.
    fn complete_nvlinks(&mut self) {
        for l in 0..self.g.links.len() {
            let Link { from, to, kind, bandwidth, latency, source, count } = self.g.links[l];
            if kind == LinkKind::Nvl && self.g.link_between(to, from, Some(kind)).is_none() {
                self.connect(to, from, kind, Size { bandwidth, count }, latency, source);
            }
        }
    }
}
