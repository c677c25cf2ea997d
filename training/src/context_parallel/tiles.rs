//! Which keys a tile of queries sees. *Pure.*

/// A chunk of the sequence within a rank's part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// Which chunk of the whole sequence it is.
    pub place: usize,
    /// Where it begins in the rank's part.
    pub start: usize,
    /// How long it is: as all are.
    pub len: usize,
}

/// How large the tensors of one rank are: queries `[heads, sharing, len, dim]`, keys and values `[heads, len, dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Heads of keys and values, of all sequences of the batch.
    pub heads: usize,
    /// How many heads of queries share each.
    pub sharing: usize,
    /// Tokens of a sequence on this rank.
    pub len: usize,
    /// Features of a head.
    pub dim: usize,
}

/// Rows of a tile, over all heads that share keys: enough for products to be fast.
const ROWS: usize = 128;

/// Columns of a tile: with [`ROWS`] its scores take 128 KB in f32, within the second-level cache.
const COLUMNS: usize = 256;

/// The queries of a tile: some of a span, the same of all heads that share keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    /// Which head of keys and values.
    pub head: usize,
    /// The span.
    pub span: Span,
    /// The first of its queries, within the span.
    pub first: usize,
    /// How many, of each head.
    pub rows: usize,
}

impl Tile {
    /// All tiles of a rank, head by head.
    pub fn all(sizes: Sizes, spans: &[Span]) -> Vec<Tile> {
        let step = (ROWS / sizes.sharing).max(16);
        let of_span = |head, span: Span| {
            (0..span.len).step_by(step).map(move |first| Tile {
                head,
                span,
                first,
                rows: step.min(span.len - first),
            })
        };
        (0..sizes.heads).flat_map(|head| spans.iter().flat_map(move |&span| of_span(head, span))).collect()
    }

    /// Where its first query is in the rank's part.
    pub fn start(&self) -> usize {
        self.span.start + self.first
    }

    /// What it sees of the keys of a part, in pieces.
    pub fn columns<'a>(&'a self, keys: &'a [Span]) -> impl Iterator<Item = Columns> + 'a {
        keys.iter().filter(|keys| keys.place <= self.span.place).flat_map(move |keys| {
            let diagonal = keys.place == self.span.place;
            let end = if diagonal { self.first + self.rows } else { keys.len };
            (0..end).step_by(COLUMNS).map(move |first| Columns {
                start: keys.start + first,
                len: COLUMNS.min(end - first),
                cut: diagonal.then_some((self.first + 1, first)),
            })
        })
    }
}

/// Keys that a tile sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns {
    /// Where the first is in the part that the keys are of.
    pub start: usize,
    /// How many.
    pub len: usize,
    /// Where queries and keys are of one span: how many keys of the span the first query sees, and how many of them come
    /// before these.
    cut: Option<(usize, usize)>,
}

impl Columns {
    /// How many of them the tile's query `row` sees: the first ones.
    pub fn seen(&self, row: usize) -> usize {
        match self.cut {
            Some((first, before)) => (first + row).saturating_sub(before).min(self.len),
            None => self.len,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::super::Balance;
    use super::super::deal::{positions, spans};
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        #[test]
        fn every_query_sees_every_key_up_to_its_own_once(
            size in 1usize..4, half in 1usize..210, sharing in 1usize..3, zigzag: bool,
        ) {
            let balance = if zigzag { Balance::Zigzag } else { Balance::Contiguous };
            let sizes = Sizes { heads: 2, sharing, len: 2 * half, dim: 1 };
            let places = |rank| positions(rank, size, 2 * half * size, balance).unwrap();
            for rank in 0..size {
                let mut seen = HashSet::new();
                let mine = places(rank);
                for tile in Tile::all(sizes, &spans(rank, size, 2 * half, balance)) {
                    for source in 0..size {
                        let theirs = places(source);
                        for columns in tile.columns(&spans(source, size, 2 * half, balance)) {
                            for row in 0..tile.rows {
                                for &key in theirs.iter().skip(columns.start).take(columns.seen(row)) {
                                    let pair = (tile.head, mine[tile.start() + row], key);
                                    prop_assert!(pair.2 <= pair.1 && seen.insert(pair));
                                }
                            }
                        }
                    }
                }
                let all: u64 = mine.iter().map(|&p| u64::from(p) + 1).sum();
                prop_assert_eq!(seen.len() as u64, 2 * all);
            }
        }
    }
}
