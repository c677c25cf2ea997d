//! Recursive halving, then doubling (Rabenseifner 2004), in the order that keeps reductions reproducible.
//!
//! The usual order starts with the farthest partner. Here neighbours in the canonical tree start: in round k the
//! two members of a pair at distance 2^k split what they still hold, each reduces one half, and so each holds ever
//! less of the values of ever larger subtrees. Then the same pairs, in reverse order, give each other the results.
//! Needs a complete tree: a power of two of hosts with the same power of two of ranks each. All-reduce only: a
//! reduce-scatter would have to send its parts, which lie in rank order, one by one, and then `direct` is better.

use super::buffers::Parts;
use super::canonical::{Canonical, Form};
use super::lane::{Lane, pair};
use super::{Algorithm, Collective, Program, Shape, Space, Span, Term};

/// Recursive halving and doubling.
pub struct Halving;

impl Algorithm for Halving {
    fn name(&self) -> &'static str {
        "halving"
    }

    fn supports(&self, shape: &Shape) -> bool {
        let hosts = shape.layout.hosts();
        let complete = |ranks: usize| ranks.is_power_of_two() && hosts.iter().all(|host| host.len() == ranks);
        shape.collective == Collective::AllReduce
            && shape.counts_fit()
            && hosts.len().is_power_of_two()
            && complete(hosts[0].len())
    }

    fn reproducible(&self, _: &Shape) -> bool {
        true
    }

    fn program(&self, shape: &Shape, rank: usize) -> Program {
        let mut lane = Lane::new(shape, rank);
        let n = shape.world_size();
        if n == 1 {
            lane.alone();
            return lane.finish();
        }
        let tree = Canonical::new(&shape.layout);
        let at = shape.layout.position(rank);
        let parts = Parts::split(shape.counts.part(0), n);
        let mut rounds = Vec::new();
        let mut held = Form::Raw;
        let (mut kept, mut base) = (0..n, None);
        for join in tree.path(at) {
            let sides = join.sides(at);
            let middle = kept.start + kept.len() / 2;
            let (low, high) = (kept.start..middle, middle..kept.end);
            let (keep, give) = if sides.left { (low, high) } else { (high, low) };
            // Values on their way lie in memory of half the length, from the start of the first half that is kept.
            let base = *base.get_or_insert(parts.spans(Space::Input, keep.clone()).start);
            let span = |form: Form, range| {
                let span = parts.spans(form.space(), range);
                let offset = if matches!(form, Form::Wide | Form::Rounded) { base } else { 0 };
                Span { start: span.start - offset, ..span }
            };
            let peer = sides.source(at);
            lane.send(tree.order[peer], span(held, give.clone()));
            let terms = sides.terms(Term::Own(span(held, keep.clone())), tree.message(peer, &sides.other));
            held = tree.form(&join.members());
            lane.reduce(span(held, keep.clone()), terms, pair(), held == Form::Whole);
            rounds.push((tree.order[peer], keep.clone(), give));
            kept = keep;
        }
        for (peer, keep, give) in rounds.into_iter().rev() {
            lane.send(peer, parts.spans(Space::Output, keep));
            lane.recv(peer, parts.spans(Space::Output, give));
        }
        lane.finish()
    }
}
