//! The machines under a communicator: which ranks share a host, and what the links between them were measured to cost.

use std::sync::Arc;

use super::calibration::{Between, Calibration, LinkCost, Points, at};
use super::fabric::{Fabric, Resource, Route, Use, Work};
use crate::exec::channel::MAP_FROM;
use crate::exec::layout::{SLOT_BYTES, SLOTS};
use crate::schedule::{Layout, Shape};

/// The length of a message that is all latency.
const SHORT: u64 = 8;
/// Copies of own memory where only links that carry bytes were measured, bytes per µs: one core of a server.
const COPY: f64 = 8000.0;

/// What a communicator knows of the machines under it; the same on every rank.
#[derive(Debug, Clone)]
pub struct Machines {
    /// Who shares a host.
    pub layout: Arc<Layout>,
    /// The transport between ranks of one host, and between hosts.
    pub transports: [&'static str; 2],
    /// The cores under the ranks.
    pub cores: Cores,
    /// What links cost.
    pub costs: Arc<Calibration>,
}

/// Which ranks share how many cores: hosts may be containers of one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// The machine that each host is on, numbered from 0.
    of_host: Vec<usize>,
    /// Cores of each machine, and ranks on it.
    cores: Vec<usize>,
    ranks: Vec<usize>,
}

impl Cores {
    /// From any number for the machine of each rank, and the cores that all ranks there may use together.
    pub fn of(layout: &Layout, of_rank: impl Fn(usize) -> (usize, usize)) -> Cores {
        let (mut numbers, mut this) = (Vec::new(), Cores { of_host: vec![], cores: vec![], ranks: vec![] });
        for host in layout.hosts() {
            let (machine, cores) = of_rank(host[0] as usize);
            let at = numbers.iter().position(|m| *m == machine).unwrap_or_else(|| {
                numbers.push(machine);
                this.cores.push(cores.max(1));
                this.ranks.push(0);
                numbers.len() - 1
            });
            this.of_host.push(at);
            this.ranks[at] += host.len();
        }
        this
    }

    /// Ranks for each core of the most crowded machine, at least 1.
    pub fn ranks_per_core(&self) -> f64 {
        let each = self.ranks.iter().zip(&self.cores).map(|(ranks, cores)| *ranks as f64 / *cores as f64);
        each.fold(1.0, f64::max)
    }

    /// Whether all hosts share their cores with none or all others, and have the same number.
    fn even(&self) -> bool {
        let machines = self.cores.len();
        (machines == 1 || machines == self.of_host.len()) && self.cores.iter().all(|c| *c == self.cores[0])
    }
}

/// The machines as one call meets them.
#[derive(Debug)]
pub struct HostFabric<'a> {
    machines: &'a Machines,
    inside: &'a LinkCost,
    across: &'a LinkCost,
    /// Bytes of input and output of one rank.
    footprint: u64,
    /// Ranks of each host, if that is the same everywhere.
    per_host: Option<usize>,
    /// Ranks for each core.
    crowd: f64,
}

impl<'a> HostFabric<'a> {
    /// For a call of `shape` with elements of `width` bytes.
    pub fn new(machines: &'a Machines, shape: &Shape, width: u64) -> HostFabric<'a> {
        let hosts = machines.layout.hosts();
        let crowd = machines.cores.ranks_per_core();
        // Who measured some kinds of link still needs the others; and nothing better is known of a kind that nobody has
        // measured than of the first that somebody has.
        let typical = Calibration::typical();
        let cost = |transport: &str, between| {
            // Where nobody has measured verbs, what is known of TCP is nearest to it.
            let names = [transport, if transport == "verbs" { "tcp" } else { transport }];
            let known = names.into_iter().find_map(|name| {
                [&*machines.costs, typical].into_iter().find_map(|c| c.find(name, between, crowd))
            });
            known.unwrap_or(&typical.link[0])
        };
        let even = hosts.iter().all(|h| h.len() == hosts[0].len()) && machines.layout.order().is_sorted();
        let largest =
            |of: &dyn Fn(usize) -> u64| [0, shape.root as usize].map(of).into_iter().max().unwrap_or(0);
        HostFabric {
            inside: cost(machines.transports[0], Between::Ranks),
            across: cost(machines.transports[1], Between::Hosts),
            footprint: (largest(&|r| shape.input_len(r)) + largest(&|r| shape.output_len(r))) * width,
            crowd,
            per_host: (even && machines.cores.even()).then(|| hosts[0].len()),
            machines,
        }
    }

    fn host(&self, rank: usize) -> usize {
        self.machines.layout.host_of(rank)
    }

    fn cost(&self, a: usize, b: usize) -> &'a LinkCost {
        if self.host(a) == self.host(b) { self.inside } else { self.across }
    }

    /// What occupies a core, one use for the rank and one for its machine: µs of a whole core for each byte.
    fn core(&self, rank: usize, us: f64) -> [Use; 2] {
        let machine = self.machines.cores.of_host[self.host(rank)];
        [(rank, us), (self.world_size() + machine, us)]
    }

    /// µs that a message without bytes takes in a collective, in which every rank has something to do. A rank waits
    /// for its turn on a core, the longer the more share it.
    fn latency(&self, link: &LinkCost) -> f64 {
        let short = at(&link.exchange, SHORT).min(at(&link.reduce, SHORT));
        short * (self.crowd / link.ranks_per_core).max(1.0)
    }

    /// Where the hosts' ways out and in are numbered from.
    fn ways(&self) -> usize {
        self.world_size() + self.machines.cores.cores.len()
    }

    /// µs that a byte of a copy takes when all ranks copy, where the receiver does it.
    fn copy_us(&self, link: &LinkCost) -> f64 {
        let bytes = (self.footprint / 2).max(MAP_FROM);
        slope(link, &link.exchange, bytes)
    }
}

/// µs of a whole core for each byte, at least what no memory falls below: what was measured while ranks shared cores
/// took a rank its part of one.
fn slope(link: &LinkCost, points: &Points, bytes: u64) -> f64 {
    let us = at(points, bytes) - at(points, SHORT);
    (us / bytes.max(1) as f64 / link.ranks_per_core).max(1e-6)
}

impl Fabric for HostFabric<'_> {
    fn world_size(&self) -> usize {
        self.machines.layout.world_size()
    }

    fn route(&self, from: usize, to: usize, bytes: u64, uses: &mut Vec<Use>) -> Route {
        let link = self.cost(from, to);
        let pull = link.pull && bytes >= MAP_FROM;
        // One message has its cores for itself.
        let flow = ((at(&link.one_way, bytes) - at(&link.one_way, SHORT)) / bytes.max(1) as f64).max(1e-6);
        if !pull {
            // Both ends move a byte; each alone keeps up with the way, together they take what exchanges took.
            let both = slope(link, &link.exchange, bytes);
            uses.extend(self.core(from, both / 2.0));
            uses.extend(self.core(to, both / 2.0));
        }
        if self.host(from) != self.host(to)
            && let Some(gbps) = link.host_gbps
        {
            let us = 1.0 / (gbps * 1000.0);
            uses.extend([(self.ways() + 2 * self.host(from), us), (self.ways() + 2 * self.host(to) + 1, us)]);
        }
        Route {
            rate: 1.0 / flow,
            overhead: 0.0,
            latency_us: (self.latency(link) - link.gap_us * self.crowd).max(0.0),
            // Others have their turns meanwhile.
            send_us: link.gap_us / 2.0 * self.crowd,
            recv_us: link.gap_us / 2.0 * self.crowd,
            pull,
            window: SLOTS * SLOT_BYTES,
            chunk: SLOT_BYTES,
        }
    }

    fn work(&self, rank: usize, work: &Work<'_>, uses: &mut Vec<Use>) -> f64 {
        let pulled = |&from: &u32| {
            let link = self.cost(from as usize, rank);
            (link.pull && work.bytes >= MAP_FROM).then_some(link)
        };
        let pulling = work.messages.iter().find_map(pulled);
        let first = work.messages.first().map(|&from| self.cost(from as usize, rank));
        let us = match (pulling, first) {
            // A short message, or one that was pushed: copying it to where it belongs is in its way already.
            (None, Some(_)) if work.terms == 1 => return f64::INFINITY,
            (Some(link), _) if work.terms == 1 => self.copy_us(link),
            (Some(link), _) => {
                let part = (self.footprint / 3).max(MAP_FROM);
                let two = slope(link, &link.reduce, part);
                two + (work.terms - 2) as f64 * self.copy_us(link) / 2.0
            }
            (None, Some(link)) => {
                let more = slope(link, &link.reduce, work.bytes) - slope(link, &link.exchange, work.bytes);
                more.max(1e-6) * (work.terms - 1) as f64
            }
            (None, None) if self.inside.pull => self.copy_us(self.inside),
            (None, None) => 1.0 / COPY,
        };
        uses.extend(self.core(rank, us));
        1.0 / us
    }

    fn capacity(&self, resource: Resource) -> f64 {
        let ranks = self.world_size();
        match resource.checked_sub(ranks).and_then(|machine| self.machines.cores.cores.get(machine)) {
            Some(cores) => *cores as f64,
            None => 1.0,
        }
    }

    fn name(&self, resource: Resource) -> String {
        let (ranks, ways) = (self.world_size(), self.ways());
        match resource {
            r if r < ranks => format!("rank {r}'s core"),
            r if r < ways => format!("the cores of machine {}", r - ranks),
            r if (r - ways).is_multiple_of(2) => format!("host {}'s way out", (r - ways) / 2),
            r => format!("host {}'s way in", (r - ways) / 2),
        }
    }

    fn period(&self) -> usize {
        match self.per_host {
            Some(_) if self.machines.layout.hosts().len() == 1 => 1,
            Some(ranks) => ranks,
            None => self.world_size(),
        }
    }

    fn folded(&self, resource: Resource) -> (Resource, usize) {
        let (ranks, ways) = (self.world_size(), self.ways());
        match resource {
            r if r < ranks => (r % self.period(), ranks / self.period()),
            r if r < ways => (ranks, ways - ranks),
            r => (ways + (r - ways) % 2, self.machines.layout.hosts().len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_one_machine_share_its_cores() {
        let layout = Layout::new(&[0, 0, 1, 2]);
        let apart = Cores::of(&layout, |rank| (rank, 2));
        assert!(apart.even() && apart.cores.len() == 3);
        let together = Cores::of(&layout, |_| (7, 2));
        assert!(together.even());
        assert_eq!((together.ranks_per_core(), apart.ranks_per_core()), (2.0, 1.0));
        assert_eq!((together.of_host, together.cores), (vec![0; 3], vec![2]));
        assert!(!Cores::of(&layout, |rank| (rank / 3, 2)).even());
    }
}
