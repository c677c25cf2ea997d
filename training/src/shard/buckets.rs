//! Which gradients are reduced together. *Pure.*

use std::ops::Range;

use super::layout::{BLOCK, Layout};

/// Of one unit's shard, what lies in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Which unit.
    pub unit: usize,
    /// Elements of every rank's shard.
    pub range: Range<usize>,
    /// Where they lie in each rank's part of the bucket.
    pub at: usize,
}

/// Gradients that are reduced by one call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bucket {
    /// In the order in which they are filled in.
    pub spans: Vec<Span>,
    /// Elements of each rank's part.
    pub len: usize,
}

/// Cuts units, in the order in which they become complete, into buckets of at most `limit` elements over all ranks (of
/// [`BLOCK`] for each rank at least); without a limit each unit is one.
pub fn cut(order: &[usize], layouts: &[Layout], limit: Option<usize>) -> Vec<Bucket> {
    let mut buckets = Vec::new();
    let mut open = Bucket::default();
    for &unit in order {
        let layout = &layouts[unit];
        let room = limit.map_or(layout.shard(), |all| all / layout.ranks() / BLOCK * BLOCK).max(BLOCK);
        let mut at = 0;
        while at < layout.shard() {
            let len = (layout.shard() - at).min(room - open.len);
            open.spans.push(Span { unit, range: at..at + len, at: open.len });
            open.len += len;
            at += len;
            if open.len == room || limit.is_none() {
                buckets.push(std::mem::take(&mut open));
            }
        }
    }
    if open.len > 0 {
        buckets.push(open);
    }
    buckets
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_a_unit_without_a_limit() {
        let layouts = [Layout::new([100], 2), Layout::new([], 2), Layout::new([1000], 2)];
        let buckets = cut(&[2, 1, 0], &layouts, None);
        assert_eq!(buckets.iter().map(|b| b.len).collect::<Vec<_>>(), [512, 64]);
    }

    proptest! {
        #[test]
        fn every_element_is_in_one_bucket_and_all_but_the_last_are_full(
            lengths in prop::collection::vec(1usize..2000, 1..6),
            ranks in 1usize..5,
            limit in 1usize..3000,
        ) {
            let layouts: Vec<_> = lengths.iter().map(|&len| Layout::new([len], ranks)).collect();
            let order: Vec<_> = (0..layouts.len()).rev().collect();
            let buckets = cut(&order, &layouts, Some(limit));
            let room = (limit / ranks / BLOCK * BLOCK).max(BLOCK);
            let mut next: Vec<_> = layouts.iter().map(|_| 0).collect();
            for (i, bucket) in buckets.iter().enumerate() {
                prop_assert!(bucket.len == room || i + 1 == buckets.len());
                let mut at = 0;
                for span in &bucket.spans {
                    prop_assert_eq!((span.at, span.range.start), (at, next[span.unit]));
                    at += span.range.len();
                    next[span.unit] = span.range.end;
                }
                prop_assert_eq!(at, bucket.len);
            }
            prop_assert_eq!(next, layouts.iter().map(Layout::shard).collect::<Vec<_>>());
        }
    }
}
