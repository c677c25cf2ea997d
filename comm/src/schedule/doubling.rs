//! Recursive doubling over the canonical tree: at every inner node each member gets the other side's value, so that
//! after as many rounds as the tree is high everybody has everything.
//!
//! All-reduce moves all data in every round: for short messages. Each node is computed by all its members, with the
//! same operands in the same order, so everybody holds the same bits and the result is reproducible for any number
//! of ranks and any layout. Where the sides differ in size, members of the smaller one serve several of the larger.
//! All-gather works on a tree over rank numbers, where every subtree is one stretch of the output.

use super::canonical::{Canonical, Form};
use super::lane::{Lane, pair, parts_of};
use super::{Algorithm, Alias, Collective, Program, Shape, Space, Span, Term};

/// Recursive doubling.
pub struct Doubling;

impl Algorithm for Doubling {
    fn name(&self) -> &'static str {
        "doubling"
    }

    fn supports(&self, shape: &Shape) -> bool {
        shape.counts_fit() && matches!(shape.collective, Collective::AllReduce | Collective::AllGather)
    }

    fn reproducible(&self, _: &Shape) -> bool {
        true
    }

    fn program(&self, shape: &Shape, rank: usize) -> Program {
        let mut lane = Lane::new(shape, rank);
        match shape.collective {
            _ if shape.world_size() == 1 => lane.alone(),
            Collective::AllReduce => all_reduce(&mut lane, shape, rank),
            _ => all_gather(&mut lane, shape, rank),
        }
        lane.finish()
    }
}

fn all_reduce(lane: &mut Lane<'_>, shape: &Shape, rank: usize) {
    let tree = Canonical::new(&shape.layout);
    let at = shape.layout.position(rank);
    let path = tree.path(at);
    let len = shape.counts.part(0);
    let mut held = Span::input(0, len);
    if path.len() == 1 && shape.alias == Alias::InPlace {
        // Both sides would wait for each other to read the input before they store the result.
        lane.copy(held, Span::scratch(0, len));
        held = Span::scratch(0, len);
    }
    for (round, join) in path.iter().enumerate() {
        let sides = join.sides(at);
        for to in sides.targets(at) {
            lane.send(tree.order[to], held);
        }
        let other = tree.message(sides.source(at), &sides.other);
        let form = tree.form(&join.members());
        // Two stretches in turn: the one before is still being read by others.
        let start = if form == Form::Whole { 0 } else { round as u64 % 2 * len };
        let dst = Span::new(form.space(), start, len);
        lane.reduce(dst, sides.terms(Term::Own(held), other), pair(), form == Form::Whole);
        held = dst;
    }
}

fn all_gather(lane: &mut Lane<'_>, shape: &Shape, rank: usize) {
    let tree = Canonical::flat(shape.world_size());
    let parts = parts_of(shape);
    let own = parts.span(Space::Output, rank);
    let mut held = Span::input(0, own.len);
    for join in tree.path(rank) {
        let sides = join.sides(rank);
        for to in sides.targets(rank) {
            lane.send(to as u32, held);
        }
        if sides.mine.len() == 1 {
            lane.copy(held, own);
        }
        lane.recv(sides.source(rank) as u32, parts.spans(Space::Output, sides.other.clone()));
        held = parts.spans(Space::Output, join.members());
    }
}
