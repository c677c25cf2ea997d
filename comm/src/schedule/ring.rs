//! Along a ring of all ranks, host after host, so that each host's network link carries every byte once.
//!
//! All-reduce, reduce-scatter and all-gather move (n-1)/n of the data per rank and phase (Patarasuk and Yuan 2009);
//! broadcast and reduce pass everything along a chain, in pieces. Partial sums are rounded to the element type at
//! each hop, which halves the bytes of 16-bit types against sending f32, and follow the ring, not the canonical
//! order: reductions are *not reproducible*.

use std::ops::Range;

use super::buffers::{piece_len, pieces};
use super::lane::{Lane, from, pair, parts_of, rotates};
use super::{Algorithm, Collective, Program, Shape, Space, Span, Term};

/// The ring.
pub struct Ring;

/// Pieces per message sequence, so that programs stay small.
const MOST_PIECES: usize = 256;

/// Pieces of scratch that a chain reduces through in turn: one being received, one being sent, two for slack.
const SLOTS: u64 = 4;

impl Algorithm for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn supports(&self, shape: &Shape) -> bool {
        use Collective::*;
        shape.counts_fit()
            && matches!(shape.collective, AllReduce | ReduceScatter | AllGather | Broadcast | Reduce)
    }

    fn reproducible(&self, shape: &Shape) -> bool {
        !shape.collective.reduces() || shape.world_size() == 1
    }

    fn cyclic(&self, shape: &Shape) -> bool {
        rotates(shape, |len| part_pieces(len, shape).count())
    }

    fn program(&self, shape: &Shape, rank: usize) -> Program {
        let mut lane = Lane::new(shape, rank);
        if shape.world_size() == 1 {
            lane.alone();
            return lane.finish();
        }
        let place = Place::new(shape, rank);
        match shape.collective {
            Collective::Broadcast => place.broadcast(&mut lane),
            Collective::Reduce => place.reduce(&mut lane),
            Collective::AllReduce => {
                place.reduce_scatter(&mut lane, true);
                place.all_gather(&mut lane, Space::Output);
            }
            Collective::ReduceScatter => place.reduce_scatter(&mut lane, false),
            _ => place.all_gather(&mut lane, Space::Input),
        }
        lane.finish()
    }
}

/// The pieces of one rank's part.
fn part_pieces(len: u64, shape: &Shape) -> impl Iterator<Item = Range<u64>> + use<> {
    let most = (4 * MOST_PIECES / shape.world_size()).clamp(1, MOST_PIECES);
    pieces(len, shape.piece, most)
}

/// A rank's place in the ring.
struct Place<'a> {
    shape: &'a Shape,
    rank: usize,
    /// The ring.
    order: &'a [u32],
    /// This rank's index in it.
    at: usize,
}

impl<'a> Place<'a> {
    fn new(shape: &'a Shape, rank: usize) -> Place<'a> {
        Place { shape, rank, order: shape.layout.order(), at: shape.layout.position(rank) }
    }

    /// The rank `steps` places before this one.
    fn back(&self, steps: usize) -> u32 {
        let n = self.order.len();
        self.order[(self.at + n - steps % n) % n]
    }

    fn next(&self) -> u32 {
        self.back(self.order.len() - 1)
    }

    /// The part of rank r starts behind r and collects inputs on its way round to r. In an all-reduce the partial
    /// sums are kept where the result will be, otherwise in two halves of the scratch in turn.
    fn reduce_scatter(&self, lane: &mut Lane<'_>, in_output: bool) {
        let parts = parts_of(self.shape);
        let longest = (0..self.order.len()).map(|r| parts.len(r)).max().unwrap_or(0);
        let first = parts.span(Space::Input, self.back(1) as usize);
        for piece in part_pieces(first.len, self.shape) {
            lane.send(self.next(), first.slice(&piece));
        }
        for step in 2..=self.order.len() {
            let part = self.back(step) as usize;
            let last = part == self.rank;
            let own = parts.span(Space::Input, part);
            let dst = match (in_output, last) {
                (true, _) => parts.span(Space::Output, part),
                (false, true) => Span::output(0, own.len),
                (false, false) => Span::scratch(step as u64 % 2 * longest, own.len),
            };
            for piece in part_pieces(own.len, self.shape) {
                let terms = vec![from(self.back(1)), Term::Own(own.slice(&piece))];
                lane.reduce(dst.slice(&piece), terms, pair(), last);
                if !last {
                    lane.send(self.next(), dst.slice(&piece));
                }
            }
        }
    }

    /// Every part travels from its rank all the way round.
    fn all_gather(&self, lane: &mut Lane<'_>, own_space: Space) {
        let parts = parts_of(self.shape);
        let in_output = parts.span(Space::Output, self.rank);
        let own = if own_space == Space::Output { in_output } else { Span::input(0, in_output.len) };
        for piece in part_pieces(own.len, self.shape) {
            lane.send(self.next(), own.slice(&piece));
        }
        lane.copy(own, in_output);
        for step in 1..self.order.len() {
            let part = parts.span(Space::Output, self.back(step) as usize);
            for piece in part_pieces(part.len, self.shape) {
                lane.recv(self.back(1), part.slice(&piece));
                if step + 1 < self.order.len() {
                    lane.send(self.next(), part.slice(&piece));
                }
            }
        }
    }

    /// How many places after the root.
    fn distance(&self) -> usize {
        let n = self.order.len();
        let root = self.shape.layout.position(self.shape.root as usize);
        (self.at + n - root) % n
    }

    fn broadcast(&self, lane: &mut Lane<'_>) {
        let len = self.shape.counts.part(0);
        let (input, output) = (Span::input(0, len), Span::output(0, len));
        let distance = self.distance();
        let src = if distance == 0 { input } else { output };
        for piece in pieces(len, self.shape.piece, MOST_PIECES) {
            if distance > 0 {
                lane.recv(self.back(1), output.slice(&piece));
            }
            if distance + 1 < self.order.len() {
                lane.send(self.next(), src.slice(&piece));
            }
        }
        if distance == 0 {
            lane.copy(input, output);
        }
    }

    /// From the rank after the root all the way round to the root.
    fn reduce(&self, lane: &mut Lane<'_>) {
        let len = self.shape.counts.part(0);
        let slot = piece_len(len, self.shape.piece, MOST_PIECES);
        let distance = self.distance();
        for (i, piece) in pieces(len, self.shape.piece, MOST_PIECES).enumerate() {
            let own = Span::input(0, len).slice(&piece);
            if distance == 1 {
                lane.send(self.next(), own);
                continue;
            }
            let dst = match distance {
                0 => Span::output(0, len).slice(&piece),
                _ => Span::scratch(i as u64 % SLOTS * slot, own.len),
            };
            lane.reduce(dst, vec![from(self.back(1)), Term::Own(own)], pair(), distance == 0);
            if distance > 0 {
                lane.send(self.next(), dst);
            }
        }
    }
}
