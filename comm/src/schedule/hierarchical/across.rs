//! Along a rail: what the handlers of one column, one on each host, do with a piece of it.
//!
//! All of them are sequences of steps: what is sent in one step is received in the next. The data of a piece are as
//! many blocks as there are hosts.

use std::ops::Range;

use super::super::canonical::Canonical;
use super::super::lane::{Lane, from, pair};
use super::super::{Span, Term};
use crate::fold::Fold;

/// How hosts exchange with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Across {
    /// Every host with every other at once; broadcasts go along a chain.
    Direct,
    /// Recursive halving and doubling, in the order that keeps reductions reproducible; 2^k hosts.
    Halving,
    /// Recursive doubling: few rounds, all data in each.
    Doubling,
    /// Broadcasts along a binomial tree.
    Tree,
    /// From host to host; not reproducible.
    Ring,
}

/// A piece of a column as one of its handlers sees it. Functions of blocks give the memory of neighbouring ones.
pub(super) struct Rail<'a> {
    pub(super) hosts: usize,
    /// The handler's own host.
    pub(super) at: usize,
    /// The handler on each host.
    pub(super) rank: &'a dyn Fn(usize) -> u32,
    /// What the own host contributes.
    pub(super) value: &'a dyn Fn(Range<usize>) -> Span,
    /// Memory for sums on their way, that of the value if it may be written.
    pub(super) work: &'a dyn Fn(Range<usize>) -> Span,
    /// Where results are gathered.
    pub(super) out: &'a dyn Fn(Range<usize>) -> Span,
    /// The own block: the result of a reduce-scatter, what an all-gather starts from.
    pub(super) own: Span,
    /// The canonical order over the hosts; long where they are many.
    pub(super) fold: &'a dyn Fn() -> Fold,
}

impl Rail<'_> {
    /// The host `steps` after this one.
    fn after(&self, steps: usize) -> usize {
        (self.at + steps) % self.hosts
    }

    /// The host `steps` before this one.
    fn before(&self, steps: usize) -> usize {
        (self.at + self.hosts - steps % self.hosts) % self.hosts
    }
}

fn one(block: usize) -> Range<usize> {
    block..block + 1
}

impl Across {
    /// Steps of a reduce-scatter, and of an all-gather.
    pub(super) fn phase(self, hosts: usize) -> usize {
        match self {
            Across::Direct | Across::Tree => 2,
            Across::Halving | Across::Doubling => hosts.next_power_of_two().ilog2() as usize + 1,
            Across::Ring => hosts,
        }
    }

    /// Steps of an all-reduce.
    pub(super) fn all_reduce_steps(self, hosts: usize) -> usize {
        match self {
            Across::Doubling => self.phase(hosts),
            _ => 2 * self.phase(hosts) - 1,
        }
    }

    /// A reduce-scatter and an all-gather, the last step of the one being the first of the other.
    pub(super) fn all_reduce(self, lane: &mut Lane<'_>, step: usize, rail: &Rail<'_>) {
        let last = self.phase(rail.hosts) - 1;
        match self {
            Across::Doubling => return doubling(lane, step, rail),
            Across::Halving => return halving(lane, step, rail),
            _ => {}
        }
        if step <= last {
            self.reduce_scatter(lane, step, rail);
        }
        if step >= last {
            self.all_gather(lane, step - last, rail);
        }
    }

    /// The sums of all hosts for the own block.
    pub(super) fn reduce_scatter(self, lane: &mut Lane<'_>, step: usize, rail: &Rail<'_>) {
        match (self, step) {
            (Across::Ring, 0) => lane.send((rail.rank)(rail.after(1)), (rail.value)(one(rail.before(1)))),
            (Across::Ring, _) => {
                let block = one(rail.before(step + 1));
                let last = step + 1 == rail.hosts;
                let dst = if last { rail.own } else { (rail.work)(block.clone()) };
                let terms = vec![from((rail.rank)(rail.before(1))), Term::Own((rail.value)(block))];
                lane.reduce(dst, terms, pair(), last);
                if !last {
                    lane.send((rail.rank)(rail.after(1)), dst);
                }
            }
            (_, 0) => {
                for host in (1..rail.hosts).map(|i| rail.after(i)) {
                    lane.send((rail.rank)(host), (rail.value)(one(host)));
                }
            }
            _ => {
                let term = |host: usize| match host == rail.at {
                    true => Term::Own((rail.value)(one(host))),
                    false => from((rail.rank)(host)),
                };
                lane.reduce(rail.own, (0..rail.hosts).map(term).collect(), (rail.fold)(), true);
            }
        }
    }

    /// The blocks that [`Across::all_gather`] receives in a step.
    pub(super) fn gathered(
        self,
        step: usize,
        hosts: usize,
        at: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let steps = match (self, step) {
            (_, 0) => 0..1,
            (Across::Ring, _) => step..step + 1,
            _ => 1..hosts,
        };
        steps.map(move |i| (at + hosts - i) % hosts)
    }

    /// Everybody gets the own blocks of all.
    pub(super) fn all_gather(self, lane: &mut Lane<'_>, step: usize, rail: &Rail<'_>) {
        let ring = self == Across::Ring;
        if step == 0 {
            let receivers = if ring { 2 } else { rail.hosts };
            for host in (1..receivers).map(|i| rail.after(i)) {
                lane.send((rail.rank)(host), rail.own);
            }
            return;
        }
        for block in self.gathered(step, rail.hosts, rail.at) {
            let dst = (rail.out)(one(block));
            lane.recv((rail.rank)(if ring { rail.before(1) } else { block }), dst);
            if ring && step + 1 < rail.hosts {
                lane.send((rail.rank)(rail.after(1)), dst);
            }
        }
    }
}

/// In round k partners at distance 2^k split what they hold, so that each reduces one half; then back.
fn halving(lane: &mut Lane<'_>, step: usize, rail: &Rail<'_>) {
    let rounds = rail.hosts.ilog2() as usize;
    let partner = |round: usize| (rail.rank)(rail.at ^ (1 << round));
    // What is kept and what is given away in a round.
    let split = |round: usize| {
        let (mut keep, mut give) = (0..rail.hosts, 0..0);
        for k in 0..=round {
            let middle = keep.start + keep.len() / 2;
            let (low, high) = (keep.start..middle, middle..keep.end);
            (keep, give) = if rail.at >> k & 1 == 0 { (low, high) } else { (high, low) };
        }
        (keep, give)
    };
    if (1..=rounds).contains(&step) {
        let (keep, _) = split(step - 1);
        let held = if step == 1 { rail.value } else { rail.work };
        let last = step == rounds;
        let dst = if last { rail.out } else { rail.work };
        let (own, other) = (Term::Own(held(keep.clone())), from(partner(step - 1)));
        let terms = if rail.at >> (step - 1) & 1 == 0 { vec![own, other] } else { vec![other, own] };
        lane.reduce(dst(keep), terms, pair(), last);
    }
    if step > rounds {
        let (_, give) = split(2 * rounds - step);
        lane.recv(partner(2 * rounds - step), (rail.out)(give));
    }
    if step < rounds {
        let held = if step == 0 { rail.value } else { rail.work };
        lane.send(partner(step), held(split(step).1));
    } else if step < 2 * rounds {
        let round = 2 * rounds - step - 1;
        lane.send(partner(round), (rail.out)(split(round).0));
    }
}

/// At every inner node of the canonical tree over the hosts each member gets the other side's value.
///
/// The two halves of the working memory are used in turn: what was sent from one is still being read while the other
/// is written.
fn doubling(lane: &mut Lane<'_>, step: usize, rail: &Rail<'_>) {
    let path = Canonical::flat(rail.hosts).path(rail.at);
    let all = 0..rail.hosts;
    let held = |step: usize| match step {
        0 => (rail.value)(all.clone()),
        step if step == path.len() => (rail.out)(all.clone()),
        step => {
            let work = (rail.work)(all.clone());
            Span { start: work.start + step as u64 % 2 * work.len, ..work }
        }
    };
    if let Some(join) = step.checked_sub(1).and_then(|before| path.get(before)) {
        let sides = join.sides(rail.at);
        let other = from((rail.rank)(sides.source(rail.at)));
        lane.reduce(held(step), sides.terms(Term::Own(held(step - 1)), other), pair(), step == path.len());
    }
    if let Some(join) = path.get(step) {
        for to in join.sides(rail.at).targets(rail.at) {
            lane.send((rail.rank)(to), held(step));
        }
    }
}
