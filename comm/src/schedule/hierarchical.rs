//! Inside the hosts, then across them: all-reduce, reduce-scatter and all-gather in which every element crosses from
//! one host to another once, not once for each rank there.
//!
//! In each host g every rank's part has a *handler*: the rank of the same index inside the host (modulo the number
//! of ranks there, so hosts may differ in size; in its own host a rank handles its own part). Same indices are
//! usually on the same rail.
//! * Reduce-scatter: a handler reduces the part over its host, and the part's owner reduces what the handlers of
//!   all hosts send it. Both are single folds in the canonical order: *reproducible* for every layout.
//! * All-gather: the owner sends its part to its handlers, and these pass it on inside their hosts.
//! * All-reduce: one after the other.
//!
//! A host works on the parts of the next host first, then of the one after, …: so no host is flooded, and the
//! network is busy with one part while the next is reduced.

use super::buffers::Parts;
use super::lane::{Lane, from, parts_of};
use super::{Algorithm, Collective, Program, Shape, Space, Span, Term};
use crate::fold::Fold;

/// The two-level hierarchy.
pub struct Hierarchical;

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    /// Several hosts; on one it would be `direct`.
    fn supports(&self, shape: &Shape) -> bool {
        use Collective::*;
        shape.counts_fit()
            && shape.layout.hosts().len() > 1
            && matches!(shape.collective, AllReduce | ReduceScatter | AllGather)
    }

    fn reproducible(&self, _: &Shape) -> bool {
        true
    }

    fn program(&self, shape: &Shape, rank: usize) -> Program {
        let mut lane = Lane::new(shape, rank);
        let place = Place::new(shape, rank);
        let in_output = place.parts.span(Space::Output, rank);
        match shape.collective {
            Collective::AllReduce => {
                place.reduce_scatter(&mut lane, in_output);
                place.all_gather(&mut lane, in_output);
            }
            Collective::ReduceScatter => place.reduce_scatter(&mut lane, Span::output(0, in_output.len)),
            _ => place.all_gather(&mut lane, Span::input(0, in_output.len)),
        }
        lane.finish()
    }
}

/// A rank among its hosts.
struct Place<'a> {
    rank: u32,
    hosts: &'a [Vec<u32>],
    host: usize,
    /// The ranks of this host.
    locals: &'a [u32],
    /// Where among them this one is.
    index: usize,
    parts: Parts,
}

impl<'a> Place<'a> {
    fn new(shape: &'a Shape, rank: usize) -> Place<'a> {
        let (hosts, host) = (shape.layout.hosts(), shape.layout.host_of(rank));
        let index = shape.layout.position(rank) - shape.layout.starts()[host];
        Place { rank: rank as u32, hosts, host, locals: &hosts[host], index, parts: parts_of(shape) }
    }

    /// The parts of all ranks, in the order in which this host works on them, each with its handler here: those of
    /// the hosts after this one (`forward`) or before it first, its own last.
    fn handled(&self, forward: bool) -> impl Iterator<Item = (u32, u32)> + '_ {
        let n = self.hosts.len();
        let nth = move |i: usize| (if forward { self.host + i } else { self.host + n - i }) % n;
        (1..=n).flat_map(move |i| {
            let owners = self.hosts[nth(i)].iter().enumerate();
            owners.map(|(index, &owner)| (owner, self.locals[index % self.locals.len()]))
        })
    }

    fn part(&self, space: Space, owner: u32) -> Span {
        self.parts.span(space, owner as usize)
    }

    fn reduce_scatter(&self, lane: &mut Lane<'_>, dst: Span) {
        for (owner, handler) in self.handled(true).filter(|(_, handler)| *handler != self.rank) {
            lane.send(handler, self.part(Space::Input, owner));
        }
        let mut scratch = 0;
        let mut own = dst;
        for (owner, _) in self.handled(true).filter(|(_, handler)| *handler == self.rank) {
            let mut value = self.part(Space::Input, owner);
            if self.locals.len() > 1 {
                let term = |&r: &u32| if r == self.rank { Term::Own(value) } else { from(r) };
                let terms = self.locals.iter().map(term).collect();
                let sum = Span::scratch(scratch, value.len);
                lane.reduce(sum, terms, Fold::balanced(self.locals.len()), false);
                scratch += value.len;
                value = sum;
            }
            if owner == self.rank {
                own = value; // the last: only then have all others got theirs
            } else {
                lane.send(owner, value);
            }
        }
        let index = self.index;
        let terms = self.hosts.iter().enumerate().map(|(host, ranks)| match host {
            _ if host == self.host => Term::Own(own),
            _ => from(ranks[index % ranks.len()]),
        });
        lane.reduce(dst, terms.collect(), Fold::canonical(&vec![1; self.hosts.len()]), true);
    }

    fn all_gather(&self, lane: &mut Lane<'_>, own: Span) {
        let locals = || self.locals.iter().copied().filter(|&r| r != self.rank);
        let index = self.index;
        for i in 1..self.hosts.len() {
            let ranks = &self.hosts[(self.host + i) % self.hosts.len()];
            lane.send(ranks[index % ranks.len()], own);
        }
        locals().for_each(|to| lane.send(to, own));
        lane.copy(own, self.part(Space::Output, self.rank));
        for (owner, _) in self.handled(false).filter(|(owner, h)| *h == self.rank && *owner != self.rank) {
            let part = self.part(Space::Output, owner);
            lane.recv(owner, part);
            locals().for_each(|to| lane.send(to, part));
        }
        for local in locals() {
            lane.recv(local, self.part(Space::Output, local));
            for (owner, _) in self.handled(false).filter(|(owner, h)| *h == local && *owner != local) {
                lane.recv(local, self.part(Space::Output, owner));
            }
        }
    }
}
