//! Where a unit's parameters lie in its flat vector, and what of them each rank has. *Pure.*

use std::ops::Range;

use crate::model::Parameter;

/// Parameters begin at multiples of so many elements, and shards end there, so that a parameter's blocks of this length
/// never lie on two ranks.
pub const BLOCK: usize = 64;

/// A unit's parameters, one after the other, each from a multiple of [`BLOCK`] on, with zeros between and after them so
/// that all ranks' shards are equally long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    parameters: Vec<Range<usize>>,
    shard: usize,
    ranks: usize,
}

/// A part of a parameter that lies in a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Which of the unit's parameters.
    pub parameter: usize,
    /// Where it lies in the shard, elements.
    pub range: Range<usize>,
    /// Where it begins in the parameter's part of this rank, flattened, elements.
    pub start: usize,
    /// Whether weight decay applies.
    pub decays: bool,
    /// Whether this rank counts it in a global norm.
    pub counts: bool,
}

impl Layout {
    /// Of parameters of these lengths, over so many ranks.
    pub fn new(lengths: impl IntoIterator<Item = usize>, ranks: usize) -> Layout {
        let mut end = 0;
        let place = |len: usize| {
            let start = end;
            end = (start + len).next_multiple_of(BLOCK);
            start..start + len
        };
        let parameters = lengths.into_iter().map(place).collect();
        Layout { parameters, shard: end.div_ceil(ranks).next_multiple_of(BLOCK), ranks }
    }

    /// Elements of each rank's shard.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Over how many ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Elements of the whole vector: what is gathered and reduced.
    pub fn padded(&self) -> usize {
        self.shard * self.ranks
    }

    /// Where a parameter lies.
    pub fn parameter(&self, index: usize) -> Range<usize> {
        self.parameters[index].clone()
    }

    /// What parameters have in `range` of the vector: which, where in the parameter, and how far into the range.
    pub fn within(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>, usize)> + '_ {
        self.parameters.iter().enumerate().filter_map(move |(index, at)| {
            let (start, end) = (at.start.max(range.start), at.end.min(range.end));
            (start < end).then(|| (index, start - at.start..end - at.start, start - range.start))
        })
    }

    /// What a rank's shard has of the parameters, in order.
    pub fn pieces(&self, rank: usize, parameters: &[Parameter]) -> Vec<Piece> {
        let shard = rank * self.shard..(rank + 1) * self.shard;
        let piece = |(parameter, part, at): (usize, Range<usize>, usize)| Piece {
            parameter,
            range: at..at + part.len(),
            start: part.start,
            decays: parameters[parameter].decays,
            counts: parameters[parameter].counts,
        };
        self.within(shard).map(piece).collect()
    }
}

/// Where a unit's parameters lie that are trained, and where those that are frozen: each kind in a vector of its own, in
/// which the parameters of the other kind have no elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitLayout {
    /// Those that have gradients.
    pub trained: Layout,
    /// Those that have none.
    pub frozen: Layout,
}

impl UnitLayout {
    /// Of a unit's parameters, over so many ranks.
    pub fn new(parameters: &[Parameter], ranks: usize) -> UnitLayout {
        let of = |frozen: bool| {
            Layout::new(parameters.iter().map(|p| if p.frozen == frozen { p.len() } else { 0 }), ranks)
        };
        UnitLayout { trained: of(false), frozen: of(true) }
    }

    /// Elements that each rank gives when weights are gathered: its shard of either vector, one after the other.
    pub fn shard(&self) -> usize {
        self.trained.shard() + self.frozen.shard()
    }

    /// Elements of all ranks' shards.
    pub fn padded(&self) -> usize {
        self.trained.padded() + self.frozen.padded()
    }

    /// Calls `each` with the places of a parameter's elements in what was gathered, in order, and where they belong in the
    /// parameter.
    pub fn gathered(&self, index: usize, mut each: impl FnMut(Range<usize>, Range<usize>)) {
        let (layout, before) = match self.frozen.parameter(index).is_empty() {
            true => (&self.trained, 0),
            false => (&self.frozen, self.trained.shard()),
        };
        let all = layout.parameter(index);
        let mut at = all.start;
        while at < all.end {
            let (rank, inside) = (at / layout.shard(), at % layout.shard());
            let len = (layout.shard() - inside).min(all.end - at);
            let from = rank * self.shard() + before + inside;
            each(from..from + len, at - all.start..at - all.start + len);
            at += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::Init;

    #[test]
    fn tiny_parameters_and_ranks_with_none() {
        let layout = Layout::new([3, 1], 4);
        assert_eq!((layout.shard(), layout.padded()), (64, 256));
        assert_eq!((layout.parameter(0), layout.parameter(1)), (0..3, 64..65));
        assert_eq!(Layout::new([], 4).padded(), 0);
        assert_eq!(Layout::new([65], 1).padded(), 128);
    }

    proptest! {
        #[test]
        fn what_was_gathered_of_either_kind_is_found_again(
            parameters in prop::collection::vec((1usize..300, any::<bool>()), 1..6),
            ranks in 1usize..5,
        ) {
            let parameters: Vec<_> = parameters
                .iter()
                .map(|&(len, frozen)| Parameter { frozen, ..Parameter::whole("p", &[len], Init::Zeros) })
                .collect();
            let layout = UnitLayout::new(&parameters, ranks);
            // Of each element its parameter and its place there, as each rank sends them.
            let mut whole = vec![(usize::MAX, 0); layout.padded()];
            for (rank, part) in whole.chunks_mut(layout.shard()).enumerate() {
                let (trained, frozen) = part.split_at_mut(layout.trained.shard());
                for (kind, to) in [(&layout.trained, trained), (&layout.frozen, frozen)] {
                    for piece in kind.pieces(rank, &parameters) {
                        to[piece.range].iter_mut().enumerate().for_each(|(i, to)| *to = (piece.parameter, piece.start + i));
                    }
                }
            }
            for (index, parameter) in parameters.iter().enumerate() {
                let mut next = 0;
                layout.gathered(index, |from, to| {
                    assert_eq!(to.start, next);
                    next = to.end;
                    assert!(whole[from].iter().copied().eq(to.map(|i| (index, i))));
                });
                prop_assert_eq!(next, parameter.len());
            }
        }

        #[test]
        fn every_element_is_on_one_rank_and_no_block_on_two(
            lengths in prop::collection::vec(1usize..400, 1..6),
            ranks in 1usize..9,
        ) {
            let layout = Layout::new(lengths.iter().copied(), ranks);
            let parameters: Vec<_> =
                lengths.iter().map(|&len| Parameter::whole("p", &[len], Init::Zeros)).collect();
            let mut seen: Vec<Vec<usize>> = lengths.iter().map(|&len| vec![0; len]).collect();
            for rank in 0..ranks {
                for piece in layout.pieces(rank, &parameters) {
                    prop_assert!(piece.range.end <= layout.shard());
                    prop_assert_eq!(piece.range.start % BLOCK, 0);
                    prop_assert_eq!(piece.start % BLOCK, 0);
                    let end = piece.start + piece.range.len();
                    seen[piece.parameter][piece.start..end].iter_mut().for_each(|count| *count += 1);
                    prop_assert!(end == lengths[piece.parameter] || end % BLOCK == 0);
                }
            }
            prop_assert!(seen.iter().flatten().all(|&count| count == 1));
        }
    }
}
