//! Many hosts joined by a network.
//!
//! ```toml
//! name = "west"
//!
//! [[hosts]]                  # 128 hosts called node0 … node127
//! machine = "dgx-h100"       # from the library; or file = "topo.xml", any format that is read
//! count = 128
//! name = "node"
//!
//! [network]
//! kind = "rails"             # or "leaf-spine"
//! hosts_per_leaf = 32
//! oversubscription = 2.0     # what leaves a leaf gets 1/2 of what enters it; 1.0 is full bisection
//! us = 1.0                   # of each switch passed
//! nvlink_domain = 18         # hosts, in order, whose GPUs share NVSwitches (GB200 NVL72: 18 trays); 1 if left out
//! ```
//!
//! `rails`: port i of every host of a leaf group goes to leaf switch i, so that equal ports talk without a spine.
//! `leaf-spine`: all ports of a host go to one leaf. Instead of `hosts_per_leaf`, `[[leaf]]` with `hosts = [...]`
//! names the members.

use std::collections::HashMap;

use serde::Deserialize;

use crate::formats::Format;
use crate::formats::detect::{TomlKind, expect_toml};
use crate::graph::{Graph, LinkId, NodeId, NodeKind};
use crate::model::constants::MAX_US;
use crate::path::{PathClass, Paths};
use crate::{Error, Result, System};

/// The most that a network is taken to be oversubscribed: a hundred times what is built.
const MAX_OVERSUBSCRIPTION: f64 = 1000.0;
/// The most GPUs that NVSwitches join (NVIDIA, NVLink of the fifth generation: 576).
const MAX_NVLINK_GPUS: usize = 576;
/// The most ranks a cluster may have.
pub const MAX_RANKS: usize = 1 << 20;

/// How hosts are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkKind {
    /// Equal ports of the hosts share a leaf switch.
    Rails,
    /// All ports of a host go to one leaf switch.
    LeafSpine,
}

/// The network between hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// Its shape.
    pub kind: NetworkKind,
    /// What enters a leaf from hosts over what leaves it to the spine; at least 1.
    pub oversubscription: f64,
    /// µs that each switch adds.
    pub switch_us: f64,
    /// How many hosts, in order, share their NVSwitches; 1 where each has its own.
    pub nvlink_domain: usize,
}

/// One kind of host, with what is derived from it.
#[derive(Debug, Clone)]
pub struct Kind {
    /// Its description.
    pub system: System,
    /// Nodes and links.
    pub graph: Graph,
    /// Paths.
    pub paths: Paths,
    /// Where ranks sit: GPUs, or NUMA nodes where there are none.
    pub slots: Vec<NodeId>,
    /// For each slot its port to the network (index into [`Graph::nets`]), if the host has any.
    pub port: Vec<Option<usize>>,
}

impl Kind {
    fn new(system: System) -> Result<Kind> {
        let graph = Graph::new(&system)?;
        let paths = Paths::new(&graph);
        let slots = if graph.gpus.is_empty() { graph.numas.clone() } else { graph.gpus.clone() };
        let port = ports(&graph, &paths, &slots);
        Ok(Kind { system, graph, paths, slots, port })
    }
}

/// The nearest port of each slot; those as near are shared out evenly.
fn ports(graph: &Graph, paths: &Paths, slots: &[NodeId]) -> Vec<Option<usize>> {
    let mut taken = vec![0usize; graph.nets.len()];
    let mut chosen = Vec::with_capacity(slots.len());
    for &slot in slots {
        let best = (0..graph.nets.len()).min_by(|&a, &b| {
            let key = |n: usize| {
                let p = paths.between(slot, graph.nets[n]);
                (p.class, taken[n], -(p.bandwidth * 1000.0) as i64)
            };
            key(a).cmp(&key(b))
        });
        if let Some(n) = best {
            taken[n] += 1;
        }
        chosen.push(best);
    }
    chosen
}

/// One host of the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Index into [`Cluster::kinds`].
    pub kind: usize,
    /// Which group of leaf switches it hangs off.
    pub leaf: usize,
}

/// A place for one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Index into [`Cluster::hosts`].
    pub host: usize,
    /// Index into the host's [`Kind::slots`].
    pub local: usize,
}

/// Hosts, and the network that joins them.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// What to call it.
    pub name: String,
    /// Kinds of host.
    pub kinds: Vec<Kind>,
    /// Hosts, in order.
    pub hosts: Vec<Host>,
    /// The network.
    pub network: Network,
}

/// How two slots reach each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Between {
    /// Class of the path; NET between hosts.
    pub class: PathClass,
    /// GB/s of the narrowest link, with nobody else on it.
    pub gbps: f64,
    /// µs.
    pub us: f64,
    /// `same leaf`, `through the spine`, or the class's reason.
    pub how: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    name: String,
    hosts: Vec<HostTable>,
    network: Option<NetworkTable>,
    #[serde(default)]
    leaf: Vec<LeafTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    machine: Option<String>,
    file: Option<String>,
    #[serde(default = "one")]
    count: usize,
    #[serde(default = "node")]
    name: String,
}

fn one() -> usize {
    1
}

fn node() -> String {
    "node".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkTable {
    kind: NetworkKind,
    hosts_per_leaf: Option<usize>,
    #[serde(default = "full")]
    oversubscription: f64,
    #[serde(default = "full")]
    us: f64,
    #[serde(default = "one")]
    nvlink_domain: usize,
}

fn full() -> f64 {
    1.0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeafTable {
    hosts: Vec<String>,
}

impl Cluster {
    /// One host and no network.
    pub fn single(system: System) -> Result<Cluster> {
        let name = system.name.clone();
        Self::uniform(&name, system, 1, Network::default(), usize::MAX)
    }

    /// Hosts of one kind.
    pub fn uniform(
        name: &str,
        system: System,
        count: usize,
        network: Network,
        hosts_per_leaf: usize,
    ) -> Result<Cluster> {
        let kind = Kind::new(system)?;
        let hosts = (0..count)
            .map(|i| Host { name: format!("node{i}"), kind: 0, leaf: i / hosts_per_leaf.max(1) })
            .collect();
        let cluster = Cluster { name: name.to_owned(), kinds: vec![kind], hosts, network };
        cluster.check()?;
        Ok(cluster)
    }

    /// Reads a cluster's TOML. `file` reads the machine files that it names.
    ///
    /// # Errors
    /// [`Error::Parse`] with line and column; [`Error::Unknown`] for a machine or host that is not there;
    /// [`Error::Invalid`] for numbers that make no sense; whatever `file` gives.
    pub fn from_toml(text: &str, file: &mut dyn FnMut(&str) -> Result<System>) -> Result<Cluster> {
        let format = crate::formats::guess(text);
        if !matches!(format, Format::Toml | Format::Unknown) {
            return Err(crate::formats::detect::wrong_format("a cluster in TOML", text));
        }
        expect_toml(text, TomlKind::Cluster)?;
        let read: File =
            toml::from_str(text).map_err(|e| crate::library::toml_error("cluster TOML", text, &e))?;
        let (mut kinds, mut hosts): (Vec<Kind>, Vec<Host>) = (Vec::new(), Vec::new());
        let mut known: HashMap<String, usize> = HashMap::new();
        for (i, table) in read.hosts.iter().enumerate() {
            let entry = format!("[[hosts]] number {} (`{}`)", i + 1, table.name);
            let here = |e: Error| Error::invalid(format!("{entry}: {e}"));
            let (source, system) = match (&table.machine, &table.file) {
                (Some(m), None) => (m.clone(), None),
                (None, Some(f)) => (f.clone(), Some(f)),
                _ => {
                    return Err(Error::invalid(format!(
                        "{entry}: give either machine (a name of the library) or file"
                    )));
                }
            };
            if table.count == 0 || hosts.len() + table.count > MAX_RANKS {
                return Err(Error::invalid(format!(
                    "{entry}: count is {}; there are 1 to {MAX_RANKS} hosts",
                    table.count
                )));
            }
            let kind = match known.get(&source) {
                Some(&kind) => kind,
                None => {
                    let system = match system {
                        Some(path) => file(path).map_err(here)?,
                        None => crate::library::machine(&source).map_err(here)?,
                    };
                    kinds.push(Kind::new(system).map_err(here)?);
                    known.insert(source, kinds.len() - 1);
                    kinds.len() - 1
                }
            };
            let first = hosts.iter().filter(|h| h.name.starts_with(&table.name)).count();
            for i in 0..table.count {
                let single = table.count == 1 && table.name != "node";
                let name = if single { table.name.clone() } else { format!("{}{}", table.name, first + i) };
                hosts.push(Host { name, kind, leaf: 0 });
            }
        }
        let network = match &read.network {
            Some(n) => Network {
                kind: n.kind,
                oversubscription: n.oversubscription,
                switch_us: n.us,
                nvlink_domain: n.nvlink_domain,
            },
            None => Network::default(),
        };
        let mut cluster = Cluster { name: read.name, kinds, hosts, network };
        cluster.leaves(&read.leaf, read.network.as_ref().and_then(|n| n.hosts_per_leaf))?;
        cluster.check()?;
        Ok(cluster)
    }

    fn leaves(&mut self, tables: &[LeafTable], per_leaf: Option<usize>) -> Result<()> {
        if let Some(0) = per_leaf {
            return Err(Error::invalid("network.hosts_per_leaf is 0; a leaf has at least one host"));
        }
        for (i, host) in self.hosts.iter_mut().enumerate() {
            host.leaf = per_leaf.map_or(0, |n| i / n);
        }
        if tables.is_empty() {
            return Ok(());
        }
        let at: HashMap<String, usize> =
            self.hosts.iter().enumerate().map(|(i, h)| (h.name.clone(), i)).collect();
        let mut placed = vec![false; self.hosts.len()];
        for (leaf, table) in tables.iter().enumerate() {
            for name in &table.hosts {
                let Some(&host) = at.get(name) else {
                    let known = self.hosts.iter().map(|h| h.name.as_str());
                    let e = Error::unknown("host", name, known);
                    return Err(Error::invalid(format!("[[leaf]] number {}: {e}", leaf + 1)));
                };
                if std::mem::replace(&mut placed[host], true) {
                    return Err(Error::invalid(format!("host {name} is in two leaves; it is in one")));
                }
                self.hosts[host].leaf = leaf;
            }
        }
        match placed.iter().position(|p| !p) {
            Some(missing) => Err(Error::invalid(format!(
                "host {} is in no [[leaf]]; name every host, or use network.hosts_per_leaf",
                self.hosts[missing].name
            ))),
            None => Ok(()),
        }
    }

    fn check(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(Error::invalid("a cluster without hosts; give at least one [[hosts]]"));
        }
        let mut names = HashMap::new();
        for (i, host) in self.hosts.iter().enumerate() {
            if names.insert(host.name.as_str(), i).is_some() {
                return Err(Error::invalid(format!("two hosts are called {}", host.name)));
            }
        }
        if self.ranks() > MAX_RANKS {
            return Err(Error::invalid(format!(
                "{} ranks; at most {MAX_RANKS} are planned for",
                self.ranks()
            )));
        }
        let n = &self.network;
        if !(1.0..=MAX_OVERSUBSCRIPTION).contains(&n.oversubscription) {
            return Err(Error::invalid(format!(
                "network.oversubscription is {:?}; 1.0 is full bisection, 2.0 halves what leaves a leaf, and \
                 {MAX_OVERSUBSCRIPTION} is the most",
                n.oversubscription
            )));
        }
        if !(0.0..=MAX_US).contains(&n.switch_us) {
            return Err(Error::invalid(format!("network.us is {:?}; it is 0 to {MAX_US}", n.switch_us)));
        }
        if n.nvlink_domain == 0 {
            return Err(Error::invalid(
                "network.nvlink_domain is 0; it is 1 where each host has its own NVSwitches",
            ));
        }
        if n.nvlink_domain > 1 {
            let together =
                |k: &Kind| k.graph.nvswitch.map(|_| k.graph.gpus.len().saturating_mul(n.nvlink_domain));
            let wrong = match self.kinds.iter().filter_map(together).max() {
                None => "no host has an NVSwitch that others could share; leave it out".to_owned(),
                Some(0..=MAX_NVLINK_GPUS) => String::new(),
                Some(gpus) => format!("NVSwitches join at most {MAX_NVLINK_GPUS} GPUs, not {gpus}"),
            };
            if !wrong.is_empty() {
                let domain = n.nvlink_domain;
                return Err(Error::invalid(format!("network.nvlink_domain is {domain}, and {wrong}")));
            }
        }
        if self.hosts.len() > 1
            && let Some(h) = self.hosts.iter().find(|h| self.kinds[h.kind].graph.nets.is_empty())
        {
            return Err(Error::invalid(format!(
                "host {} ({}) has no network port, so it cannot reach the other {} hosts",
                h.name,
                self.kinds[h.kind].system.name,
                self.hosts.len() - 1
            )));
        }
        Ok(())
    }

    /// How many ranks it has room for: one on each GPU, or on each NUMA node of hosts without.
    pub fn ranks(&self) -> usize {
        self.hosts.iter().map(|h| self.kinds[h.kind].slots.len()).sum()
    }

    /// All places, host after host.
    pub fn slots(&self) -> Vec<Slot> {
        let locals = |h: &Host| 0..self.kinds[h.kind].slots.len();
        let hosts = self.hosts.iter().enumerate();
        hosts.flat_map(|(host, h)| locals(h).map(move |local| Slot { host, local })).collect()
    }

    /// The kind of a host.
    pub fn kind(&self, host: usize) -> &Kind {
        &self.kinds[self.hosts[host].kind]
    }

    /// A slot's name: `node3/GPU5`.
    pub fn slot_name(&self, slot: Slot) -> String {
        let kind = self.kind(slot.host);
        format!("{}/{}", self.hosts[slot.host].name, kind.graph.nodes[kind.slots[slot.local]].name)
    }

    /// How one slot reaches another.
    pub fn between(&self, a: Slot, b: Slot) -> Between {
        if a.host == b.host {
            let kind = self.kind(a.host);
            let (from, to) = (kind.slots[a.local], kind.slots[b.local]);
            let path = kind.paths.between(from, to);
            return Between {
                class: kind.paths.class_for_people(&kind.graph, from, to),
                gbps: path.bandwidth,
                us: path.latency,
                how: kind.paths.reason(&kind.graph, from, to),
            };
        }
        if self.share_nvswitch(a, b) {
            let (out, back) = (self.to_nvswitch(a, true), self.to_nvswitch(b, false));
            return Between {
                class: PathClass::Nvl,
                gbps: out.map_or(0.0, |p| p.bandwidth).min(back.map_or(0.0, |p| p.bandwidth)),
                us: out.map_or(0.0, |p| p.latency) + back.map_or(0.0, |p| p.latency),
                how: "through the NVSwitches that the hosts share".into(),
            };
        }
        let spine = self.through_spine(a, b);
        let ends = [a, b].map(|s| self.to_wire(s));
        let leaf = ends[0].0.min(ends[1].0);
        let switches = if spine { 3.0 } else { 1.0 };
        Between {
            class: PathClass::Net,
            gbps: leaf,
            us: ends[0].1 + ends[1].1 + switches * self.network.switch_us,
            how: if spine { "through the spine".into() } else { "over one leaf switch".into() },
        }
    }

    /// True when two slots of different hosts hang off the same NVSwitches.
    pub fn share_nvswitch(&self, a: Slot, b: Slot) -> bool {
        let domain = self.network.nvlink_domain;
        let switched = |s: Slot| self.kind(s.host).graph.nvswitch.is_some();
        a.host != b.host && domain > 1 && a.host / domain == b.host / domain && switched(a) && switched(b)
    }

    /// The path from a slot to its host's NVSwitches, or back.
    pub(crate) fn to_nvswitch(&self, slot: Slot, outward: bool) -> Option<&crate::path::Path> {
        let kind = self.kind(slot.host);
        let (a, b) = (kind.slots[slot.local], kind.graph.nvswitch?);
        Some(if outward { kind.paths.between(a, b) } else { kind.paths.between(b, a) })
    }

    /// True when traffic between two hosts leaves the leaf.
    pub fn through_spine(&self, a: Slot, b: Slot) -> bool {
        if self.hosts[a.host].leaf != self.hosts[b.host].leaf {
            return true;
        }
        let port = |s: Slot| self.kind(s.host).port[s.local];
        self.network.kind == NetworkKind::Rails && port(a) != port(b)
    }

    /// GB/s and µs from a slot to its wire.
    fn to_wire(&self, slot: Slot) -> (f64, f64) {
        let kind = self.kind(slot.host);
        match kind.port[slot.local] {
            Some(n) => {
                let path = kind.paths.between(kind.slots[slot.local], kind.graph.nets[n]);
                (path.bandwidth, path.latency)
            }
            None => (0.0, 0.0),
        }
    }

    /// µs from a slot to its wire, or back.
    pub(crate) fn us_to_wire(&self, slot: Slot) -> f64 {
        self.to_wire(slot).1
    }

    /// The links inside the host from a slot to its port.
    pub(crate) fn links_to_wire(&self, slot: Slot, outward: bool) -> &[LinkId] {
        let kind = self.kind(slot.host);
        let Some(n) = kind.port[slot.local] else { return &[] };
        let (a, b) = (kind.slots[slot.local], kind.graph.nets[n]);
        let path = if outward { kind.paths.between(a, b) } else { kind.paths.between(b, a) };
        &path.links
    }

    /// GB/s of a host's ports together.
    pub fn host_bandwidth(&self, host: usize) -> f64 {
        let graph = &self.kind(host).graph;
        let speed = |&n: &NodeId| match graph.nodes[n].kind {
            NodeKind::Net { speed, .. } => speed,
            _ => 0.0,
        };
        graph.nets.iter().map(speed).sum()
    }
}

impl Default for Network {
    /// Leaf and spine with full bisection and 1 µs a switch.
    fn default() -> Self {
        Network { kind: NetworkKind::LeafSpine, oversubscription: 1.0, switch_us: 1.0, nvlink_domain: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Cluster> {
        Cluster::from_toml(text, &mut |path| {
            Err(Error::Io { path: path.into(), message: "no such file".into() })
        })
    }

    const RAILS: &str = "[[hosts]]\nmachine='dgx-h100'\ncount=4\n[network]\nkind='rails'\nhosts_per_leaf=2\n";

    #[test]
    fn rails_keep_equal_ports_off_the_spine() {
        let c = read(RAILS).unwrap();
        assert_eq!(c.ranks(), 32);
        let slot = |host, local| Slot { host, local };
        assert!(!c.through_spine(slot(0, 3), slot(1, 3)));
        assert!(c.through_spine(slot(0, 3), slot(1, 4)));
        assert!(c.through_spine(slot(0, 3), slot(2, 3)));
        let near = c.between(slot(0, 3), slot(1, 3));
        assert_eq!((near.class, near.gbps), (PathClass::Net, 48.0));
        assert!(c.between(slot(0, 3), slot(2, 3)).us > near.us);
    }

    #[test]
    fn nonsense_is_named() {
        let error = |t: &str| read(t).unwrap_err().to_string();
        let missing = error(&format!("{RAILS}[[leaf]]\nhosts=['node0','node9']\n"));
        assert!(missing.contains("node9") && missing.contains("node0"), "{missing}");
        let unplaced = error(&format!("{RAILS}[[leaf]]\nhosts=['node0','node1','node2']\n"));
        assert!(unplaced.contains("node3"), "{unplaced}");
        assert!(error("[[hosts]]\nmachine='dgx-7'\n").contains("dgx-h100"));
        assert!(error("[[hosts]]\nfile='x.xml'\n").contains("x.xml"));
        assert!(error("[[hosts]]\nmachine='dgx-1'\ncount=0\n").contains("count is 0"));
        assert!(error(&RAILS.replace("kind='rails'", "kind='rails'\noversubscription=0.5")).contains("0.5"));
        let huge = error(&RAILS.replace("kind='rails'", "kind='rails'\noversubscription=1e300"));
        assert!(huge.contains("1e300") && huge.contains("1000 is the most") && huge.len() < 300, "{huge}");
        assert!(error(&RAILS.replace("rails", "ring")).contains("line"));
        assert!(
            error(&RAILS.replace("kind='rails'", "kind='rails'\nnvlink_domain=0"))
                .contains("nvlink_domain is 0")
        );
        assert!(error("hosts=[]").contains("at least one"));
        let second = error(&format!("{RAILS}[[hosts]]\nmachine='dgx-7'\nname='odd'\n"));
        assert!(second.contains("[[hosts]] number 2 (`odd`): no machine called `dgx-7`"), "{second}");
        assert!(missing.contains("[[leaf]] number 1"), "{missing}");
        assert!(error(&RAILS.replace("kind='rails'", "kind='rails'\nus=1e308")).contains("1e308"));
        let machine = error(crate::library::description("dgx-1").unwrap());
        assert!(
            machine.contains("looks like one machine in TOML") && machine.contains("--from"),
            "{machine}"
        );
    }

    #[test]
    fn a_rack_of_trays_shares_its_nvswitches() {
        let c = read("[[hosts]]\nmachine='gb200-nvl72'\ncount=4\n[network]\nkind='rails'\nnvlink_domain=2\n")
            .unwrap();
        let slot = |host, local| Slot { host, local };
        let near = c.between(slot(0, 0), slot(1, 3));
        assert_eq!((near.class, near.gbps), (PathClass::Nvl, 40.1 * 18.0));
        assert_eq!(c.between(slot(1, 0), slot(2, 0)).class, PathClass::Net);
    }

    #[test]
    fn a_rack_has_nvswitches_and_a_size() {
        let with = |hosts| RAILS.replace("kind='rails'", &format!("kind='rails'\nnvlink_domain={hosts}"));
        let none = read(&with(4).replace("dgx-h100", "dgx-1")).unwrap_err().to_string();
        assert!(none.contains("nvlink_domain is 4, and no host has an NVSwitch"), "{none}");
        let large = read(&with(1000)).unwrap_err().to_string();
        assert!(large.contains("at most 576 GPUs, not 8000"), "{large}");
    }

    #[test]
    fn mixed_machines() {
        let c = read(
            "[[hosts]]\nmachine='dgx-a100'\nname='a'\ncount=2\n[[hosts]]\nmachine='pcie4-8x'\nname='p'\n",
        )
        .unwrap();
        assert_eq!(c.hosts.iter().map(|h| h.name.as_str()).collect::<Vec<_>>(), ["a0", "a1", "p"]);
        assert_eq!(c.kinds.len(), 2);
    }
}
