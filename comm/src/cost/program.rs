//! Programs, made ready for the model: peers become channels, spans become bytes.

use std::collections::HashMap;

use super::fabric::{Fabric, Resource, Route, Use, Work};
use super::flow::{BundleId, Flows};
use super::quotient::Quotient;
use crate::number::DataType;
use crate::schedule::{Instruction, Program, Shape, Space, Span, Term, hazards};

/// Number of a channel: what one representative sends to one peer in one lane.
pub(super) type ChannelId = u32;

/// One instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Op {
    pub kind: Kind,
    /// Bytes of the message, or of the result.
    pub bytes: u64,
    /// The messages that it combines: a range of [`Lane::messages`].
    pub messages: (u32, u32),
    /// The messages of this rank that must have been consumed before: a range of [`Lane::messages`].
    pub waits: (u32, u32),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Over a channel, along a path.
    Send(ChannelId, PathId),
    /// Some work (`None` costs nothing), after µs of taking the messages.
    Work(Option<WorkId>, f64),
}

/// The lane of a representative.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub ops: Vec<Op>,
    /// A channel, and which of its messages.
    pub messages: Vec<(ChannelId, u64)>,
}

/// Number of a path in [`Compiler::paths`].
pub(super) type PathId = u32;
/// Number of a kind of work in [`Compiler::works`].
pub(super) type WorkId = u32;

/// A way that messages take.
#[derive(Debug)]
pub(super) struct Path {
    pub route: Route,
    pub bundle: BundleId,
}

/// Turns programs into lanes.
pub(super) struct Compiler<'a> {
    fabric: &'a dyn Fabric,
    quotient: &'a Quotient,
    shape: &'a Shape,
    /// Bytes of an element, and of an accumulator.
    widths: [u64; 2],
    pub flows: Flows,
    resources: HashMap<Resource, u32>,
    /// What each number in [`Compiler::flows`] stands for.
    pub named: Vec<Resource>,
    pub paths: Vec<Path>,
    known_paths: HashMap<(u32, u32, u64), PathId>,
    /// Bundle, and bytes per µs alone.
    pub works: Vec<(BundleId, f64)>,
    known_works: HashMap<(u32, u64, u32, Vec<u32>), Option<WorkId>>,
    channels: HashMap<u64, ChannelId>,
    uses: Vec<Use>,
}

impl<'a> Compiler<'a> {
    pub fn new(
        fabric: &'a dyn Fabric,
        quotient: &'a Quotient,
        shape: &'a Shape,
        data_type: DataType,
    ) -> Compiler<'a> {
        let size = data_type.size() as u64;
        let wide = if shape.collective.reduces() { data_type.accumulator().size() as u64 } else { size };
        Compiler {
            fabric,
            quotient,
            shape,
            widths: [size, wide],
            flows: Flows::default(),
            resources: HashMap::new(),
            named: Vec::new(),
            paths: Vec::new(),
            known_paths: HashMap::new(),
            works: Vec::new(),
            known_works: HashMap::new(),
            channels: HashMap::new(),
            uses: Vec::new(),
        }
    }

    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// The lanes of `rank`, a representative; nothing if they do not fit the quotient.
    pub fn lanes(&mut self, program: &Program, rank: usize) -> Option<Vec<Lane>> {
        let waits = hazards(program, self.shape, rank);
        let mut lanes = Vec::with_capacity(program.lanes.len());
        for (l, (code, waits)) in program.lanes.iter().zip(waits).enumerate() {
            let mut lane = Lane { ops: Vec::with_capacity(code.len()), messages: Vec::new() };
            let mut received: HashMap<u32, u64> = HashMap::new();
            for (instruction, waits) in code.iter().zip(waits) {
                let first = lane.messages.len() as u32;
                for wait in waits {
                    lane.messages.push((self.outgoing(rank, wait.to, wait.lane)?, wait.message));
                }
                let middle = lane.messages.len() as u32;
                let (kind, bytes) = match instruction {
                    Instruction::Send { to, src } => {
                        let bytes = self.bytes(*src);
                        let path = self.path(rank as u32, *to, bytes)?;
                        (Kind::Send(self.outgoing(rank, *to, l)?, path), bytes)
                    }
                    Instruction::Recv { from, dst } => {
                        lane.messages.push(self.incoming(rank, *from, l, &mut received)?);
                        (self.work(rank, self.bytes(*dst), 1, &[*from])?, self.bytes(*dst))
                    }
                    Instruction::Copy { dst, .. } => {
                        (self.work(rank, self.bytes(*dst), 1, &[])?, self.bytes(*dst))
                    }
                    Instruction::RecvReduce { dst, terms, .. } => {
                        let mut peers = Vec::new();
                        for term in terms {
                            if let Term::From { rank: from, .. } = term {
                                lane.messages.push(self.incoming(rank, *from, l, &mut received)?);
                                peers.push(*from);
                            }
                        }
                        (self.work(rank, self.bytes(*dst), terms.len(), &peers)?, self.bytes(*dst))
                    }
                };
                let end = lane.messages.len() as u32;
                lane.ops.push(Op { kind, bytes, messages: (middle, end), waits: (first, middle) });
            }
            lanes.push(lane);
        }
        Some(lanes)
    }

    fn bytes(&self, span: Span) -> u64 {
        span.len * self.widths[usize::from(span.space == Space::Partial)]
    }

    fn channel(&mut self, key: u64) -> ChannelId {
        let next = self.channels.len() as ChannelId;
        *self.channels.entry(key).or_insert(next)
    }

    fn outgoing(&mut self, rank: usize, to: u32, lane: usize) -> Option<ChannelId> {
        Some(self.channel(self.quotient.channel(rank, to as usize, lane)?))
    }

    fn incoming(
        &mut self,
        rank: usize,
        from: u32,
        lane: usize,
        received: &mut HashMap<u32, u64>,
    ) -> Option<(ChannelId, u64)> {
        let channel = self.channel(self.quotient.channel(from as usize, rank, lane)?);
        let nth = received.entry(from).or_default();
        *nth += 1;
        Some((channel, *nth - 1))
    }

    /// What `owner` uses, as the flows number it: a class of resources is one.
    fn folded(&mut self, owner: usize) -> Option<Vec<Use>> {
        let uses = std::mem::take(&mut self.uses);
        let folded = uses.iter().map(|&(resource, weight)| {
            let (of, share) = self.quotient.resource(self.fabric, resource, owner)?;
            let number = *self.resources.entry(of).or_insert_with(|| {
                self.named.push(of);
                self.flows.resource(self.fabric.capacity(of))
            });
            Some((number as usize, weight * share))
        });
        let folded = folded.collect();
        self.uses = uses;
        folded
    }

    fn path(&mut self, from: u32, to: u32, bytes: u64) -> Option<PathId> {
        if let Some(&path) = self.known_paths.get(&(from, to, bytes)) {
            return Some(path);
        }
        self.uses.clear();
        let route = self.fabric.route(from as usize, to as usize, bytes, &mut self.uses);
        let uses = self.folded(from as usize)?;
        let bundle = self.flows.bundle(&uses, route.rate);
        self.paths.push(Path { route, bundle });
        let path = (self.paths.len() - 1) as PathId;
        self.known_paths.insert((from, to, bytes), path);
        Some(path)
    }

    fn work(&mut self, rank: usize, bytes: u64, terms: usize, peers: &[u32]) -> Option<Kind> {
        self.uses.clear();
        let mut taking = 0.0;
        for &peer in peers {
            taking += self.fabric.route(peer as usize, rank, bytes, &mut self.uses).recv_us;
        }
        let key = (rank as u32, bytes, terms as u32, peers.to_vec());
        if let Some(&known) = self.known_works.get(&key) {
            return Some(Kind::Work(known, taking));
        }
        self.uses.clear();
        let work = Work { bytes, terms, messages: peers };
        let rate = self.fabric.work(rank, &work, &mut self.uses);
        let mut id = None;
        if rate.is_finite() {
            let uses = self.folded(rank)?;
            let bundle = self.flows.bundle(&uses, rate);
            self.works.push((bundle, self.flows.alone(bundle)));
            id = Some((self.works.len() - 1) as WorkId);
        }
        self.known_works.insert(key, id);
        Some(Kind::Work(id, taking))
    }
}
