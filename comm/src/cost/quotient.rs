//! Ranks that do the same at the same time are simulated once.
//!
//! Ranks and resources are put into classes such that every rank of a class runs the same program, message for
//! message with ranks of the same classes over resources of the same classes, and every resource of a class is crossed
//! by as many transfers of each kind. Then what one rank does at some moment, all of its class do, and one is enough.
//! A resource is shared by the transfers of one representative and by those of the others of its class that cross
//! it: on average as many as there are ranks in the class for each resource of its own class, and by the choice of
//! the classes on each just the average.
//!
//! Where a length cannot be divided, parts differ by a few cache lines; the representative's then stand for all, which
//! is a few thousandths of the time.
//!
//! Two ways to find classes:
//! * *Rotation*: where the machines look the same after all hosts moved on by some places, and the algorithm says
//!   that its programs do ([`Algorithm::cyclic`]). Nothing else is looked at, so this serves 100,000 ranks with
//!   100,000 messages each.
//! * *Refinement* (Paige and Tarjan 1987, by rounds): all ranks begin in one class and are told apart by what they
//!   do, with whom and over what, until nothing is told apart any more. It looks at the program of every rank, made
//!   with few pieces: more of them repeat the same pattern.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::fabric::{Fabric, Resource, Work};
use crate::schedule::{Algorithm, Instruction, Shape, Term, hazards};

/// Fewer ranks than this are simulated one by one where they cannot be rotated.
const MANY: usize = 16;
/// About how many instructions a rank's program has at least; worlds whose programs together are beyond the limit are
/// not looked at.
pub(super) const SHORTEST: usize = 20;

/// Which ranks stand for which.
#[derive(Debug)]
pub(super) enum Quotient {
    /// Rotated by `period` ranks; by all of them: everyone for himself.
    Rotation { world_size: usize, period: usize },
    /// By refinement.
    Classes(Classes),
}

/// Classes of ranks and resources.
#[derive(Debug)]
pub(super) struct Classes {
    /// The first rank of each class, ascending.
    first: Vec<usize>,
    of_rank: Vec<u32>,
    /// Ranks of each class.
    size: Vec<u32>,
    /// For each resource the first one of its class, and how many there are.
    resources: HashMap<Resource, (Resource, u32)>,
    /// For sender, receiver and lane the number of the receiver among the sender's peers.
    ports: HashMap<(u32, u32, u8), u32>,
}

impl Quotient {
    /// Every rank for itself.
    pub fn none(world_size: usize) -> Quotient {
        Quotient::Rotation { world_size, period: world_size }
    }

    /// Whether every rank is for itself.
    pub fn is_none(&self) -> bool {
        matches!(self, Quotient::Rotation { world_size, period } if world_size == period)
    }

    /// The smallest that is found, with no more than `limit` instructions looked at, where refinement looks at programs
    /// that cut what a rank handles into about so many pieces. Elements have `width` bytes.
    pub fn of(
        fabric: &dyn Fabric,
        algorithm: &dyn Algorithm,
        shape: &Shape,
        width: u64,
        limit: usize,
        pieces: u64,
    ) -> Quotient {
        let world_size = shape.world_size();
        let period = fabric.period();
        let hosts = shape.layout.hosts();
        let ranks = hosts[0].len();
        // Host after host, so many ranks on each, so that a rotation by hosts is one of ranks.
        let uniform = hosts.iter().all(|h| h.len() == ranks) && shape.layout.order().is_sorted();
        let by_hosts = hosts.len() == 1 || period.is_multiple_of(ranks);
        if uniform && by_hosts && world_size.is_multiple_of(period) && algorithm.cyclic(shape) {
            return Quotient::Rotation { world_size, period };
        }
        match world_size {
            // Making a program takes longer the more ranks there are, however short it is.
            ..MANY => Quotient::none(world_size),
            n if n > limit / SHORTEST => Quotient::none(n),
            _ => Refinement::new(fabric, algorithm, shape, width, limit, pieces)
                .and_then(Refinement::classes)
                .map_or(Quotient::none(world_size), Quotient::Classes),
        }
    }

    /// The ranks that are simulated.
    pub fn representatives(&self) -> Vec<usize> {
        match self {
            Quotient::Rotation { period, .. } => (0..*period).collect(),
            Quotient::Classes(classes) => classes.first.clone(),
        }
    }

    /// A number that the messages of one lane from a rank to another share with those that they stand for. One of the
    /// two ranks is a representative. Nothing where refinement has seen no such message.
    pub fn channel(&self, from: usize, to: usize, lane: usize) -> Option<u64> {
        match self {
            Quotient::Rotation { world_size, period } => {
                let distance = (to + world_size - from) % world_size;
                Some(((from % period) as u64 * *world_size as u64 + distance as u64) * 2 + lane as u64)
            }
            Quotient::Classes(classes) => {
                let port = *classes.ports.get(&(from as u32, to as u32, lane as u8))?;
                Some(u64::from(classes.of_rank[from]) << 32 | u64::from(port) << 1 | lane as u64)
            }
        }
    }

    /// The resource that stands for this one, and how many transfers share it for each that `owner` is simulated to
    /// make. Nothing where refinement has not seen it.
    pub fn resource(&self, fabric: &dyn Fabric, resource: Resource, owner: usize) -> Option<(Resource, f64)> {
        Some(match self {
            Quotient::Rotation { world_size, period } if world_size == period => (resource, 1.0),
            Quotient::Rotation { world_size, period } => {
                let (first, count) = fabric.folded(resource);
                (first, (world_size / period) as f64 / count as f64)
            }
            Quotient::Classes(classes) => {
                let (first, count) = *classes.resources.get(&resource)?;
                let owners = classes.size[classes.of_rank[owner] as usize];
                (first, f64::from(owners) / f64::from(count))
            }
        })
    }
}

/// What one rank sends another in one lane, or (`to == from`) uses for itself.
struct Edge {
    from: u32,
    to: u32,
    lane: u8,
    /// The number of `to` among the peers of `from` in the lane, and of `from` among those of `to`.
    ports: [u32; 2],
    /// A range of [`Refinement::crossed`].
    crosses: (u32, u32),
    /// Everything about the route that is no resource.
    kind: u64,
}

/// Classes in the making.
struct Refinement {
    edges: Vec<Edge>,
    /// Numbers of resources.
    crossed: Vec<u32>,
    resources: Vec<Resource>,
    rank_colours: Vec<u64>,
    resource_colours: Vec<u64>,
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Refinement {
    /// Everything that ranks are told apart by; nothing if that is too much.
    fn new(
        fabric: &dyn Fabric,
        algorithm: &dyn Algorithm,
        shape: &Shape,
        width: u64,
        limit: usize,
        pieces: u64,
    ) -> Option<Refinement> {
        let world_size = shape.world_size();
        let longest = [0, shape.root as usize].map(|r| shape.input_len(r).max(shape.output_len(r)));
        let most_on_a_host = shape.layout.hosts().iter().map(Vec::len).max().unwrap_or(1) as u64;
        let piece = longest[0].max(longest[1]) / pieces.saturating_mul(most_on_a_host);
        let shape = Shape { piece: piece.max(shape.piece), ..shape.clone() };
        if super::expected(algorithm, &shape, &(0..world_size).collect::<Vec<_>>()) > limit {
            return None;
        }
        let mut this = Refinement {
            edges: Vec::new(),
            crossed: Vec::new(),
            resources: Vec::new(),
            rank_colours: Vec::with_capacity(world_size),
            resource_colours: Vec::new(),
        };
        let mut numbers: HashMap<Resource, u32> = HashMap::new();
        let mut received: HashMap<(u32, u32, u8), u32> = HashMap::new();
        let mut looked_at = 0;
        for rank in 0..world_size {
            let program = algorithm.program(&shape, rank);
            looked_at += program.lanes.iter().map(Vec::len).sum::<usize>();
            if looked_at > limit {
                return None;
            }
            let mut colour = DefaultHasher::new();
            let waits = hazards(&program, &shape, rank);
            let mut uses = Vec::new();
            let kind = fabric.work(rank, &Work { bytes: 1, terms: 2, messages: &[] }, &mut uses).to_bits();
            this.edge([rank as u32; 2], (0, 0), kind, &uses, fabric, &mut numbers);
            for (l, (code, waits)) in program.lanes.iter().zip(&waits).enumerate() {
                // Peers in the order in which the program comes to them, so that equal programs number them alike.
                let mut ports: HashMap<(u32, bool), usize> = HashMap::new();
                let port = |peer: u32, sends: bool, ports: &mut HashMap<(u32, bool), usize>| {
                    let next = ports.len();
                    let number = *ports.entry((peer, sends)).or_insert(next);
                    (number, number == next)
                };
                for (instruction, waits) in code.iter().zip(waits) {
                    match instruction {
                        Instruction::Send { to, src } => {
                            let (number, new) = port(*to, true, &mut ports);
                            (0, number, src.len, src.space).hash(&mut colour);
                            if new {
                                let mut uses = Vec::new();
                                let route = fabric.route(rank, *to as usize, src.len * width, &mut uses);
                                let kind = hash(&[route.rate, route.latency_us].map(f64::to_bits));
                                let ends = [rank as u32, *to];
                                this.edge(ends, (l as u8, number as u32), kind, &uses, fabric, &mut numbers);
                            }
                        }
                        Instruction::Recv { from, dst } => {
                            let (number, _) = port(*from, false, &mut ports);
                            received.insert((*from, rank as u32, l as u8), number as u32);
                            (1, number, dst.len, dst.space).hash(&mut colour);
                        }
                        Instruction::Copy { dst, .. } => (2, dst.len, dst.space).hash(&mut colour),
                        Instruction::RecvReduce { dst, terms, .. } => {
                            // In which order values are combined takes no time, so terms are not told apart by it.
                            let group = ports.len();
                            let mut sum = 0u64;
                            for term in terms {
                                sum = sum.wrapping_add(match term {
                                    Term::Own(span) => hash(&span.space),
                                    Term::From { rank: from, .. } => {
                                        let number = *ports.entry((*from, false)).or_insert(group);
                                        received.insert((*from, rank as u32, l as u8), number as u32);
                                        hash(&(1, number))
                                    }
                                });
                            }
                            (3, dst.len, dst.space, sum).hash(&mut colour);
                        }
                    }
                    for wait in waits {
                        (port(wait.to, true, &mut ports).0, wait.message).hash(&mut colour);
                    }
                }
            }
            this.rank_colours.push(colour.finish());
        }
        for edge in &mut this.edges {
            edge.ports[1] = received.get(&(edge.from, edge.to, edge.lane)).copied().unwrap_or(0);
        }
        Some(this)
    }

    fn edge(
        &mut self,
        [from, to]: [u32; 2],
        (lane, port): (u8, u32),
        kind: u64,
        uses: &[(Resource, f64)],
        fabric: &dyn Fabric,
        numbers: &mut HashMap<Resource, u32>,
    ) {
        let begin = self.crossed.len() as u32;
        for &(resource, _) in uses {
            let number = *numbers.entry(resource).or_insert_with(|| {
                self.resources.push(resource);
                self.resource_colours.push(fabric.capacity(resource).to_bits());
                self.resources.len() as u32 - 1
            });
            self.crossed.push(number);
        }
        let crosses = (begin, self.crossed.len() as u32);
        self.edges.push(Edge { from, to, lane, ports: [port, 0], crosses, kind });
    }

    /// Tells apart until nothing is told apart any more.
    fn refine(&mut self) {
        let different = |colours: &[u64]| {
            let mut sorted = colours.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            sorted.len()
        };
        let mut classes = 0;
        loop {
            let now = different(&self.rank_colours) + different(&self.resource_colours);
            if now == classes {
                return;
            }
            classes = now;
            let mut ranks = self.rank_colours.clone();
            let mut resources = self.resource_colours.clone();
            for edge in &self.edges {
                let (from, to) = (edge.from as usize, edge.to as usize);
                let ends = (self.rank_colours[from], self.rank_colours[to], edge.ports, edge.lane, edge.kind);
                let crosses = &self.crossed[edge.crosses.0 as usize..edge.crosses.1 as usize];
                let mut colour = DefaultHasher::new();
                ends.hash(&mut colour);
                crosses.iter().for_each(|&r| self.resource_colours[r as usize].hash(&mut colour));
                let colour = colour.finish();
                // Sums, since the order of the edges means nothing.
                ranks[from] = ranks[from].wrapping_add(hash(&(colour, 0)));
                ranks[to] = ranks[to].wrapping_add(hash(&(colour, 1)));
                for (position, &r) in crosses.iter().enumerate() {
                    let of = &mut resources[r as usize];
                    *of = of.wrapping_add(hash(&(colour, 2 + position)));
                }
            }
            self.rank_colours = ranks;
            self.resource_colours = resources;
        }
    }

    /// The classes, unless two channels that one representative receives from would be one.
    fn classes(mut self) -> Option<Classes> {
        self.refine();
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        let (mut first, mut size, mut of_rank) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, colour) in self.rank_colours.iter().enumerate() {
            let next = numbers.len() as u32;
            let class = *numbers.entry(*colour).or_insert(next);
            if class == next {
                first.push(rank);
                size.push(0);
            }
            size[class as usize] += 1;
            of_rank.push(class);
        }
        let mut kinds: HashMap<u64, (Resource, u32)> = HashMap::new();
        for (&resource, &colour) in self.resources.iter().zip(&self.resource_colours) {
            kinds.entry(colour).or_insert((resource, 0)).1 += 1;
        }
        let resources = self
            .resources
            .iter()
            .zip(&self.resource_colours)
            .map(|(&r, colour)| (r, kinds[colour]))
            .collect();
        let mut incoming = HashSet::new();
        let simulated = |rank: u32| first[of_rank[rank as usize] as usize] == rank as usize;
        let collide = self
            .edges
            .iter()
            .filter(|e| simulated(e.to) && e.from != e.to)
            .any(|e| !incoming.insert((e.to, of_rank[e.from as usize], e.lane, e.ports[0])));
        if collide {
            return None;
        }
        let ports = self
            .edges
            .iter()
            .filter(|e| simulated(e.from) || simulated(e.to))
            .map(|e| ((e.from, e.to, e.lane), e.ports[0]))
            .collect();
        Some(Classes { first, of_rank, size, resources, ports })
    }
}
