//! Two-level PCIe switches that are one chip inside.

use super::build::Builder;
use super::{Graph, Link, LinkId, NodeId, NodeKind};
use crate::model::Parent;

impl Builder<'_> {
    /// Broadcom switches of two levels that are one chip inside: the lower level vanishes, its devices hang off the
    /// upper one (NCCL 2.30 `ncclTopoFlattenBcmSwitches`: the masks and ids are those of its `getBcmGen`).
    pub(super) fn flatten_two_level_switches(&mut self) {
        let generation = |ids: Option<[u16; 4]>, level: u64| {
            let [a, b, c, d] = ids?.map(u64::from);
            match (a << 48 | b << 32 | c << 16 | d) & !0xfff {
                0x1000_c010_1000_a000 => Some(4),
                id if id == (0x1000_c030_1000_0000 | level << 12) => Some(5),
                _ => None,
            }
        };
        let ids = |g: &Graph, n: NodeId| g.nodes[n].device.and_then(|d| self.system.devices[d].ids);
        let mut gone = vec![false; self.g.nodes.len()];
        for top in 0..self.g.nodes.len() {
            if gone[top] || self.g.nodes[top].kind != NodeKind::Pci {
                continue;
            }
            let Some(wanted) = generation(ids(&self.g, top), 0) else { continue };
            let lower: Vec<NodeId> = self.g.out[top]
                .iter()
                .map(|&l| self.g.links[l].to)
                .filter(|&n| self.g.nodes[n].kind == NodeKind::Pci && !gone[n])
                .filter(|&n| self.is_below(n, top) && generation(ids(&self.g, n), 1) == Some(wanted))
                .collect();
            for sub in lower {
                gone[sub] = true;
                self.g.out[top].retain(|&l| self.g.links[l].to != sub);
                for l in std::mem::take(&mut self.g.out[sub]) {
                    let far = self.g.links[l].to;
                    if far == top {
                        continue;
                    }
                    self.g.nodes[far].lower_switch = self.g.nodes[sub].bus.clone();
                    self.g.links[l].from = top;
                    self.g.out[top].push(l);
                    for back in self.g.out[far].clone() {
                        if self.g.links[back].to == sub {
                            self.g.links[back].to = top;
                        }
                    }
                }
            }
        }
        self.remove(&gone);
    }

    fn is_below(&self, node: NodeId, top: NodeId) -> bool {
        let parent = self.g.nodes[node].device.map(|d| self.system.devices[d].parent);
        match parent {
            Some(Parent::Device(p)) => self.of_device[p] == Some(top),
            _ => false,
        }
    }

    fn remove(&mut self, gone: &[bool]) {
        if !gone.contains(&true) {
            return;
        }
        let mut next = 0;
        let map: Vec<Option<NodeId>> = gone
            .iter()
            .map(|&g| {
                (!g).then(|| {
                    next += 1;
                    next - 1
                })
            })
            .collect();
        let keep_link: Vec<bool> =
            self.g.links.iter().map(|l| map[l.from].is_some() && map[l.to].is_some()).collect();
        let mut next = 0;
        let link_map: Vec<Option<LinkId>> = keep_link
            .iter()
            .map(|&k| {
                k.then(|| {
                    next += 1;
                    next - 1
                })
            })
            .collect();
        let node = |n: NodeId| map[n].unwrap_or(0);
        let old = std::mem::take(&mut self.g.nodes);
        let out = std::mem::take(&mut self.g.out);
        for (i, (mut n, o)) in old.into_iter().zip(out).enumerate() {
            if gone[i] {
                continue;
            }
            n.numa = n.numa.map(node);
            self.g.nodes.push(n);
            self.g.out.push(o.into_iter().filter_map(|l| link_map[l]).collect());
        }
        let links = std::mem::take(&mut self.g.links);
        self.g.links = links
            .into_iter()
            .zip(&keep_link)
            .filter(|(_, k)| **k)
            .map(|(l, _)| Link { from: node(l.from), to: node(l.to), ..l })
            .collect();
        for list in [&mut self.g.gpus, &mut self.g.numas, &mut self.g.nets] {
            list.iter_mut().for_each(|n| *n = node(*n));
        }
        self.g.nvswitch = self.g.nvswitch.map(node);
        self.of_device.iter_mut().for_each(|n| *n = n.and_then(|n| map[n]));
    }
}
