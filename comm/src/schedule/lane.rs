//! What the algorithms write their programs with: empty spans vanish, copies onto themselves vanish, scratch is
//! measured.

use super::buffers::{Parts, split_start};
use super::{Collective, Counts, Instruction, Program, Shape, Space, Span, Term};
use crate::fold::{Fold, FoldOp};

/// One lane of one rank, being written.
pub(super) struct Lane<'a> {
    shape: &'a Shape,
    rank: usize,
    instructions: Vec<Instruction>,
}

impl<'a> Lane<'a> {
    pub(super) fn new(shape: &'a Shape, rank: usize) -> Lane<'a> {
        Lane { shape, rank, instructions: Vec::new() }
    }

    /// Posts `src` to `to`.
    pub(super) fn send(&mut self, to: u32, src: Span) {
        if src.len > 0 {
            self.instructions.push(Instruction::Send { to, src });
        }
    }

    /// Awaits `dst` from `from`.
    pub(super) fn recv(&mut self, from: u32, dst: Span) {
        if dst.len > 0 {
            self.instructions.push(Instruction::Recv { from, dst });
        }
    }

    /// Combines `terms` into `dst`.
    pub(super) fn reduce(&mut self, dst: Span, terms: Vec<Term>, fold: Fold, finish: bool) {
        if dst.len > 0 {
            self.instructions.push(Instruction::RecvReduce { dst, terms, fold, finish });
        }
    }

    /// Copies `src` to `dst`, unless they are the same memory.
    pub(super) fn copy(&mut self, src: Span, dst: Span) {
        if dst.len > 0 && self.shape.place(self.rank, src) != self.shape.place(self.rank, dst) {
            self.instructions.push(Instruction::Copy { src, dst });
        }
    }

    /// All that is left of a collective over one rank: the reduction of one term (averaged, scaled), or a copy.
    pub(super) fn alone(&mut self) {
        let src = Span::input(0, self.shape.input_len(self.rank));
        let dst = Span::output(0, self.shape.output_len(self.rank));
        if self.shape.collective.reduces() {
            self.reduce(dst, vec![Term::Own(src)], Fold::identity(), true);
        } else {
            self.copy(src, dst);
        }
    }

    /// The program of this lane alone.
    pub(super) fn finish(self) -> Program {
        finish([self])
    }
}

/// The program of these lanes.
pub(super) fn finish<'a>(lanes: impl IntoIterator<Item = Lane<'a>>) -> Program {
    let mut lanes: Vec<_> = lanes.into_iter().map(|lane| lane.instructions).collect();
    while lanes.last().is_some_and(Vec::is_empty) {
        lanes.pop(); // only the last: the number of a lane says which messages belong to it
    }
    let (mut scratch, mut partial) = (0, 0);
    for span in lanes.iter().flatten().flat_map(Instruction::spans) {
        let used = match span.space {
            Space::Scratch => &mut scratch,
            Space::Partial => &mut partial,
            Space::Input | Space::Output => continue,
        };
        *used = (*used).max(span.start + span.len);
    }
    Program { lanes, scratch, partial }
}

impl Instruction {
    /// The own memory it reads.
    pub fn reads(&self) -> impl Iterator<Item = Span> + '_ {
        let (one, terms) = match self {
            Instruction::Send { src, .. } | Instruction::Copy { src, .. } => (Some(*src), &[][..]),
            Instruction::Recv { .. } => (None, &[][..]),
            Instruction::RecvReduce { terms, .. } => (None, &terms[..]),
        };
        one.into_iter().chain(terms.iter().filter_map(|term| match term {
            Term::Own(span) => Some(*span),
            Term::From { .. } => None,
        }))
    }

    /// The own memory it writes.
    pub fn writes(&self) -> Option<Span> {
        match self {
            Instruction::Send { .. } => None,
            Instruction::Recv { dst, .. }
            | Instruction::RecvReduce { dst, .. }
            | Instruction::Copy { dst, .. } => Some(*dst),
        }
    }

    /// Messages that it takes from a peer.
    pub fn messages_from(&self, peer: u32) -> u64 {
        match self {
            Instruction::Send { .. } | Instruction::Copy { .. } => 0,
            Instruction::Recv { from, .. } => u64::from(*from == peer),
            Instruction::RecvReduce { terms, .. } => {
                terms.iter().filter(|term| matches!(term, Term::From { rank, .. } if *rank == peer)).count()
                    as u64
            }
        }
    }

    /// All own memory it touches.
    pub fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.reads().chain(self.writes())
    }
}

/// An element-width message from `rank`.
pub(super) fn from(rank: u32) -> Term {
    Term::From { rank, wide: false }
}

/// `a op b`.
pub(super) fn pair() -> Fold {
    Fold::new(vec![FoldOp::Term, FoldOp::Term, FoldOp::Combine]).expect("two terms combine to one value")
}

/// The other ranks in the order `rank + 1, rank + 2, …` (modulo `n`), so that not everybody starts with rank 0.
pub(super) fn others(rank: usize, n: usize) -> impl Iterator<Item = u32> {
    (1..n).map(move |i| ((rank + i) % n) as u32)
}

/// The other ranks in the order in which they reach `rank` when everybody sends in the order of [`others`].
pub(super) fn others_back(rank: usize, n: usize) -> impl Iterator<Item = u32> {
    (1..n).map(move |i| ((rank + n - i) % n) as u32)
}

/// The parts of a shape's all-reduce, reduce-scatter or all-gather: of the whole buffer for an all-reduce.
pub(super) fn parts_of(shape: &Shape) -> Parts {
    match shape.collective {
        Collective::AllReduce => Parts::split(shape.counts.part(0), shape.world_size()),
        _ => Parts::of(shape),
    }
}

/// Whether every rank has the same part in this shape, so that [`Algorithm::cyclic`](super::Algorithm::cyclic) can
/// hold: no root, a uniform layout, and of each part the same number of pieces, given by `pieces` for its length.
pub(super) fn rotates(shape: &Shape, pieces: impl Fn(u64) -> usize) -> bool {
    let n = shape.world_size();
    let alike = match (&shape.counts, shape.collective) {
        (Counts::Equal(len), Collective::AllReduce) => {
            let shortest = len - split_start(*len, n, n - 1);
            let longest = split_start(*len, n, 1);
            (shortest > 0 || *len == 0) && pieces(shortest) == pieces(longest)
        }
        (Counts::Equal(_), _) => true,
        _ => false,
    };
    alike && !shape.collective.has_root() && shape.layout.uniform().is_some()
}
