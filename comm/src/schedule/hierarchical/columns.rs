//! Who handles what.
//!
//! A host of L ranks cuts whatever is to be shared among them at the fractions 0/L, 1/L, …; *columns* are what lies
//! between neighbouring cuts of all hosts. So every rank of a host handles exactly its share, whatever the sizes of
//! the others, and each column has one handler on every host. With equal hosts columns are the local indices.

use std::collections::BTreeSet;
use std::ops::Range;

use super::super::buffers::ALIGNMENT;
use super::super::{Shape, Space, Span};

/// Where the columns start: fractions of a whole, numerator and denominator, rising from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns(Vec<(u64, u64)>);

impl Columns {
    /// For hosts of these sizes.
    pub(super) fn new(sizes: impl Iterator<Item = usize>) -> Columns {
        let sizes: BTreeSet<u64> = sizes.map(|size| size as u64).collect();
        let mut cuts: Vec<_> = sizes.into_iter().flat_map(|size| (0..size).map(move |i| (i, size))).collect();
        cuts.sort_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)));
        cuts.dedup_by(|a, b| a.0 * b.1 == b.0 * a.1);
        Columns(cuts)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The local index of a column's handler on a host of `locals` ranks.
    pub(super) fn index(&self, column: usize, locals: usize) -> usize {
        let (p, q) = self.0[column];
        (p * locals as u64 / q) as usize
    }

    /// The columns that local index `index` handles on a host of `locals` ranks.
    pub(super) fn of(&self, index: usize, locals: usize) -> Range<usize> {
        let first = |i: usize| self.0.partition_point(|&(p, q)| p * (locals as u64) < i as u64 * q);
        first(index)..first(index + 1)
    }

    /// A column of `len` elements.
    pub(super) fn range(&self, column: usize, len: u64) -> Range<u64> {
        let end = self.0.get(column + 1).copied().unwrap_or((1, 1));
        self.cut(len, self.0[column])..self.cut(len, end)
    }

    /// Where a column lies in the part, of `len` elements, of the rank that handles it on a host of `locals` ranks.
    pub(super) fn range_in_part(&self, column: usize, locals: usize, len: u64) -> Range<u64> {
        let index = self.index(column, locals) as u64;
        let within = |(p, q): (u64, u64)| (p * locals as u64 - index * q, q);
        let end = self.0.get(column + 1).copied().unwrap_or((1, 1));
        self.cut(len, within(self.0[column]))..self.cut(len, within(end))
    }

    /// The element at a fraction of `len`; at a multiple of [`ALIGNMENT`] where columns are long enough.
    fn cut(&self, len: u64, (p, q): (u64, u64)) -> u64 {
        if p == q {
            return len;
        }
        let unit = if len >= ALIGNMENT * self.count() as u64 { ALIGNMENT } else { 1 };
        (u128::from(len / unit) * u128::from(p) / u128::from(q)) as u64 * unit
    }
}

/// A rank among its hosts.
pub(super) struct Place<'a> {
    pub(super) shape: &'a Shape,
    pub(super) rank: u32,
    pub(super) hosts: &'a [Vec<u32>],
    /// This rank's host.
    pub(super) host: usize,
    /// The ranks of this host.
    pub(super) locals: &'a [u32],
    /// Where among them this one is.
    pub(super) index: usize,
    pub(super) columns: Columns,
}

impl<'a> Place<'a> {
    pub(super) fn new(shape: &'a Shape, rank: usize) -> Place<'a> {
        let (hosts, host) = (shape.layout.hosts(), shape.layout.host_of(rank));
        let index = shape.layout.position(rank) - shape.layout.starts()[host];
        let columns = Columns::new(hosts.iter().map(Vec::len));
        Place { shape, rank: rank as u32, hosts, host, locals: &hosts[host], index, columns }
    }

    /// The columns that this rank handles.
    pub(super) fn own(&self) -> Range<usize> {
        self.columns.of(self.index, self.locals.len())
    }

    /// The other ranks of this host, those after this one first, each with the columns it handles.
    pub(super) fn others(&self) -> impl Iterator<Item = (u32, Range<usize>)> + '_ {
        let n = self.locals.len();
        (1..n).map(move |i| (self.index + i) % n).map(move |i| (self.locals[i], self.columns.of(i, n)))
    }

    /// The same, in the order in which they reach this rank.
    pub(super) fn others_back(&self) -> impl Iterator<Item = (u32, Range<usize>)> + '_ {
        let n = self.locals.len();
        (1..n).map(move |i| (self.index + n - i) % n).map(move |i| (self.locals[i], self.columns.of(i, n)))
    }

    /// About the most columns that a rank of any host handles, and the most ranks of a host: the same for all ranks.
    pub(super) fn most(&self) -> (usize, usize) {
        let (fewest, most) = self
            .hosts
            .iter()
            .fold((usize::MAX, 1), |(low, high), ranks| (low.min(ranks.len()), high.max(ranks.len())));
        (self.columns.count().div_ceil(fewest), most)
    }

    /// The handler of a column on a host.
    pub(super) fn handler(&self, host: usize, column: usize) -> u32 {
        let ranks = &self.hosts[host];
        ranks[self.columns.index(column, ranks.len())]
    }

    /// The hosts after this one, then this one.
    pub(super) fn hosts_from_next(&self) -> impl Iterator<Item = usize> + use<> {
        let (n, host) = (self.hosts.len(), self.host);
        (1..=n).map(move |i| (host + i) % n)
    }
}

/// Elements `range` of a space.
pub(super) fn span(space: Space, range: Range<u64>) -> Span {
    Span::new(space, range.start, range.end - range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_hosts_have_a_column_for_each_index() {
        let columns = Columns::new([4, 4, 4].into_iter());
        assert_eq!(columns.count(), 4);
        assert!((0..4).all(|i| columns.index(i, 4) == i && columns.of(i, 4) == (i..i + 1)));
        assert_eq!((0..4).map(|c| columns.range(c, 10)).collect::<Vec<_>>(), [0..2, 2..5, 5..7, 7..10]);
    }

    #[test]
    fn every_rank_of_uneven_hosts_handles_its_share() {
        let columns = Columns::new([3, 5, 1].into_iter());
        assert_eq!(columns.0, [(0, 1), (1, 5), (1, 3), (2, 5), (3, 5), (2, 3), (4, 5)]);
        for locals in [1, 3, 5] {
            for index in 0..locals {
                let own = columns.of(index, locals);
                assert!(own.clone().all(|c| columns.index(c, locals) == index));
                let elements: u64 =
                    own.clone().map(|c| columns.range(c, 64 * 15 * 7)).map(|r| r.end - r.start).sum();
                assert_eq!(elements, 64 * 15 * 7 / locals as u64);
                let mut end = 0;
                for column in own {
                    let range = columns.range_in_part(column, locals, 1000);
                    assert_eq!(range.start, end);
                    end = range.end;
                }
                assert_eq!(end, 1000);
            }
        }
    }
}
