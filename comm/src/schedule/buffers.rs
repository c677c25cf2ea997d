//! How long a rank's buffers are, where they coincide, and how they are cut into parts and pieces.

use std::ops::Range;

use super::{Alias, Collective, Counts, Shape, Space, Span};

/// Parts and raised pieces start at multiples of this many elements where the length allows: whole cache lines for
/// every element type.
pub const ALIGNMENT: u64 = 64;

impl Span {
    /// A span of any space.
    pub fn new(space: Space, start: u64, len: u64) -> Span {
        Span { space, start, len }
    }

    /// `len` elements of the input.
    pub fn input(start: u64, len: u64) -> Span {
        Span::new(Space::Input, start, len)
    }

    /// `len` elements of the output.
    pub fn output(start: u64, len: u64) -> Span {
        Span::new(Space::Output, start, len)
    }

    /// `len` elements of the scratch.
    pub fn scratch(start: u64, len: u64) -> Span {
        Span::new(Space::Scratch, start, len)
    }

    /// The elements `range` of this span.
    pub fn slice(self, range: &Range<u64>) -> Span {
        debug_assert!(range.start <= range.end && range.end <= self.len);
        Span::new(self.space, self.start + range.start, range.end - range.start)
    }
}

impl Shape {
    /// Elements of the input of `rank` (as far as this shape's counts tell: of another rank's all-to-all-v, or in a
    /// gather-v of another rank's part, nothing is known). Zero where the input is not used: broadcast and scatter
    /// on other ranks than the root.
    pub fn input_len(&self, rank: usize) -> u64 {
        let root = rank == self.root as usize;
        match (self.collective, &self.counts) {
            (_, Counts::Pairwise { send, .. }) => send.iter().sum(),
            (Collective::AllReduce | Collective::Reduce | Collective::SendRecv, counts) => counts.part(0),
            (Collective::AllGather | Collective::Gather, counts) => counts.part(rank),
            (Collective::Broadcast, counts) if root => counts.part(0),
            (Collective::Scatter, counts) if root => counts.start(self.world_size()),
            (Collective::Broadcast | Collective::Scatter | Collective::Barrier, _) => 0,
            (Collective::ReduceScatter | Collective::AllToAll, counts) => counts.start(self.world_size()),
        }
    }

    /// Elements of the output of `rank`, likewise. Zero where nothing is promised, so that nothing may be written:
    /// reduce and gather on other ranks than the root.
    pub fn output_len(&self, rank: usize) -> u64 {
        let root = rank == self.root as usize;
        match (self.collective, &self.counts) {
            (_, Counts::Pairwise { recv, .. }) => recv.iter().sum(),
            (Collective::AllReduce | Collective::Broadcast | Collective::SendRecv, counts) => counts.part(0),
            (Collective::ReduceScatter | Collective::Scatter, counts) => counts.part(rank),
            (Collective::Reduce, counts) if root => counts.part(0),
            (Collective::Gather, counts) if root => counts.start(self.world_size()),
            (Collective::Reduce | Collective::Gather | Collective::Barrier, _) => 0,
            (Collective::AllGather | Collective::AllToAll, counts) => counts.start(self.world_size()),
        }
    }

    /// Where a span of `rank` really starts: in place, the smaller of input and output is mapped onto the larger
    /// (see [`Alias::InPlace`]; where both are equally long, the input onto the output). Two spans share memory
    /// if and only if they overlap after this mapping.
    pub fn place(&self, rank: usize, span: Span) -> (Space, u64) {
        let at_own_part = |other| (other, self.counts.start(rank) + span.start);
        let root = rank == self.root as usize;
        match (self.alias, self.collective, span.space) {
            (Alias::None, ..) | (_, _, Space::Scratch | Space::Partial) => (span.space, span.start),
            (_, Collective::AllGather, Space::Input) => at_own_part(Space::Output),
            (_, Collective::Gather, Space::Input) if root => at_own_part(Space::Output),
            (_, Collective::ReduceScatter, Space::Output) => at_own_part(Space::Input),
            (_, Collective::Scatter, Space::Output) if root => at_own_part(Space::Input),
            (
                _,
                Collective::AllGather | Collective::Gather | Collective::ReduceScatter | Collective::Scatter,
                space,
            ) => (space, span.start),
            (_, _, Space::Input | Space::Output) => (Space::Output, span.start),
        }
    }

    /// Whether two spans of `rank` share memory.
    pub fn overlap(&self, rank: usize, a: Span, b: Span) -> bool {
        let ((space_a, start_a), (space_b, start_b)) = (self.place(rank, a), self.place(rank, b));
        space_a == space_b && start_a < start_b + b.len && start_b < start_a + a.len
    }

    /// Whether the counts are of the kind that the collective takes: one length for all-reduce, reduce and
    /// broadcast; pairs only for all-to-all.
    pub fn counts_fit(&self) -> bool {
        let n = self.world_size();
        match (self.collective, &self.counts) {
            (Collective::SendRecv, _) => false,
            (_, Counts::Equal(_)) | (Collective::Barrier, _) => true,
            (Collective::AllToAll, Counts::Pairwise { send, recv }) => send.len() == n && recv.len() == n,
            (Collective::ReduceScatter | Collective::AllGather, Counts::PerRank(counts)) => counts.len() == n,
            (Collective::Gather | Collective::Scatter, Counts::PerRank(counts)) => counts.len() == n,
            _ => false,
        }
    }
}

/// Consecutive parts of a buffer, one for each rank.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Where each starts; the last entry is the end.
    starts: Vec<u64>,
}

impl Parts {
    /// The parts that the counts of a reduce-scatter, all-gather, gather or scatter (or equal all-to-all) give.
    pub fn of(shape: &Shape) -> Parts {
        Parts::from_lengths((0..shape.world_size()).map(|r| shape.counts.part(r)))
    }

    /// `len` elements in `n` parts, as equal as possible; starting at multiples of [`ALIGNMENT`] when each part can
    /// have at least that many.
    pub fn split(len: u64, n: usize) -> Parts {
        Parts { starts: (0..=n).map(|i| split_start(len, n, i)).collect() }
    }

    /// Parts of these lengths.
    pub fn from_lengths(lengths: impl IntoIterator<Item = u64>) -> Parts {
        let mut starts = vec![0];
        for (i, len) in lengths.into_iter().enumerate() {
            starts.push(starts[i] + len);
        }
        Parts { starts }
    }

    /// Part `i`, in `space`.
    pub fn span(&self, space: Space, i: usize) -> Span {
        self.spans(space, i..i + 1)
    }

    /// Neighbouring parts as one span.
    pub fn spans(&self, space: Space, parts: Range<usize>) -> Span {
        let (start, end) = (self.starts[parts.start], self.starts[parts.end]);
        Span::new(space, start, end - start)
    }

    /// Elements of part `i`.
    pub fn len(&self, i: usize) -> u64 {
        self.starts[i + 1] - self.starts[i]
    }

    /// Elements of all.
    pub fn total(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }
}

/// Where part `i` of [`Parts::split`] starts, without the others. Parts are never longer than those before them.
pub fn split_start(len: u64, n: usize, i: usize) -> u64 {
    let (n, i) = (n as u64, i as u64);
    let unit = if len >= ALIGNMENT * n { ALIGNMENT } else { 1 };
    let units = len.div_ceil(unit);
    ((units / n * i + (units % n).min(i)) * unit).min(len)
}

/// Cuts `len` elements into pieces of `piece`, or of more when that made more than `most` pieces. Both ends of a
/// message must cut alike, so this depends on nothing else.
pub fn pieces(len: u64, piece: u64, most: usize) -> impl Iterator<Item = Range<u64>> + Clone {
    let piece = piece_len(len, piece, most);
    (0..len.div_ceil(piece)).map(move |i| i * piece..((i + 1) * piece).min(len))
}

/// The length of the pieces that [`pieces`] makes.
pub fn piece_len(len: u64, piece: u64, most: usize) -> u64 {
    let piece = piece.max(1);
    if len.div_ceil(piece) <= most as u64 {
        return piece;
    }
    let raised = len.div_ceil(most as u64);
    if raised >= ALIGNMENT { raised.next_multiple_of(ALIGNMENT) } else { raised }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_when_long_enough_and_cover_everything() {
        let lengths = |len, n| (0..n).map(|i| Parts::split(len, n).len(i)).collect::<Vec<_>>();
        assert_eq!(lengths(10, 4), [3, 3, 2, 2]);
        assert_eq!(lengths(2, 4), [1, 1, 0, 0]);
        assert_eq!(lengths(0, 3), [0, 0, 0]);
        assert_eq!(lengths(64 * 3 + 1, 3), [128, 64, 1]);
        assert_eq!(lengths(64 * 8, 4), [128; 4]);
        for (len, n) in [(1, 1), (1000, 7), (12345, 64), (64 * 64, 64)] {
            assert_eq!(lengths(len, n).iter().sum::<u64>(), len);
        }
    }

    #[test]
    fn pieces_are_raised_to_a_limit() {
        assert_eq!(pieces(10, 4, 256).collect::<Vec<_>>(), [0..4, 4..8, 8..10]);
        assert_eq!(pieces(0, 4, 256).count(), 0);
        assert_eq!(pieces(10, 1, 3).collect::<Vec<_>>(), [0..4, 4..8, 8..10]);
        assert_eq!(piece_len(1 << 20, 1, 256), 4096);
        assert_eq!(piece_len(1 << 20 | 1, 1, 256), 4096 + 64);
    }
}
