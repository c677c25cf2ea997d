//! Bruck's all-gather (Bruck et al. 1997) in log2 n rounds for any number of ranks, and its mirror image.
//!
//! All-gather: in round k rank r sends what it has, the parts of `r, r + 1, …`, to rank r - 2^k. Parts go straight
//! to where they belong in the output: a message that wraps around the end is sent as two, instead of rotating
//! everything at the end. Reduce-scatter is the same read backwards: who received parts sends partial sums for
//! them, and so the sums for each part run down the tree along which the part was spread. Partial sums are rounded
//! at each hop and not in the canonical order: *not reproducible*.

use std::ops::Range;

use super::lane::{Lane, from, pair, parts_of};
use super::{Algorithm, Collective, Program, Shape, Space, Span, Term};

/// Bruck.
pub struct Bruck;

impl Algorithm for Bruck {
    fn name(&self) -> &'static str {
        "bruck"
    }

    fn supports(&self, shape: &Shape) -> bool {
        shape.counts_fit() && matches!(shape.collective, Collective::AllGather | Collective::ReduceScatter)
    }

    fn reproducible(&self, shape: &Shape) -> bool {
        !shape.collective.reduces() || shape.world_size() == 1
    }

    fn program(&self, shape: &Shape, rank: usize) -> Program {
        let mut lane = Lane::new(shape, rank);
        match shape.collective {
            _ if shape.world_size() == 1 => lane.alone(),
            Collective::AllGather => all_gather(&mut lane, shape, rank),
            _ => reduce_scatter(&mut lane, shape, rank),
        }
        lane.finish()
    }
}

/// The distances of the rounds, and how many parts are sent in each.
fn rounds(n: usize) -> impl DoubleEndedIterator<Item = (usize, usize)> {
    let count = n.next_power_of_two().ilog2();
    (0..count).map(move |k| (1 << k, (1 << k).min(n - (1 << k))))
}

/// The parts `first, first + 1, …` (modulo `n`), `count` of them, in stretches that are contiguous in a buffer and
/// do not cross any of `cuts` (counted from `first`): for each its first index and the parts.
fn stretches(n: usize, first: usize, count: usize, cuts: &[usize]) -> Vec<(usize, Range<usize>)> {
    let mut borders: Vec<usize> =
        cuts.iter().copied().chain([n - first]).filter(|&cut| cut < count).collect();
    borders.extend([0, count]);
    borders.sort_unstable();
    borders.dedup();
    borders.windows(2).map(|w| (w[0], (first + w[0]) % n..(first + w[0]) % n + w[1] - w[0])).collect()
}

fn all_gather(lane: &mut Lane<'_>, shape: &Shape, rank: usize) {
    let n = shape.world_size();
    let parts = parts_of(shape);
    let own = Span::input(0, parts.len(rank));
    for (distance, count) in rounds(n) {
        let (to, source) = ((rank + n - distance) % n, (rank + distance) % n);
        if distance == 1 {
            lane.send(to as u32, own);
            lane.copy(own, parts.span(Space::Output, rank));
        } else {
            for (_, stretch) in stretches(n, rank, count, &[]) {
                lane.send(to as u32, parts.spans(Space::Output, stretch));
            }
        }
        for (_, stretch) in stretches(n, source, count, &[]) {
            lane.recv(source as u32, parts.spans(Space::Output, stretch));
        }
    }
}

fn reduce_scatter(lane: &mut Lane<'_>, shape: &Shape, rank: usize) {
    let n = shape.world_size();
    let parts = parts_of(shape);
    // Sums for the parts of the ranks less than `summed` after a rank are in its scratch.
    let mut summed: usize = 0;
    for (distance, count) in rounds(n).rev() {
        // Both sides cut where either finds sums on one side and input on the other.
        let cuts = [summed, summed.saturating_sub(distance)];
        let span = |after: usize, stretch: &Range<usize>| {
            parts.spans(if after < summed { Space::Scratch } else { Space::Input }, stretch.clone())
        };
        let (to, source) = ((rank + distance) % n, (rank + n - distance) % n);
        for (after, stretch) in stretches(n, to, count, &cuts) {
            lane.send(to as u32, span(after + distance, &stretch));
        }
        for (after, stretch) in stretches(n, rank, count, &cuts) {
            let own = span(after, &stretch);
            let last = distance == 1;
            let dst = if last { Span::output(0, own.len) } else { Span { space: Space::Scratch, ..own } };
            lane.reduce(dst, vec![Term::Own(own), from(source as u32)], pair(), last);
        }
        summed = summed.max(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_double_and_stretches_wrap() {
        assert_eq!(rounds(6).collect::<Vec<_>>(), [(1, 1), (2, 2), (4, 2)]);
        assert_eq!(rounds(8).collect::<Vec<_>>(), [(1, 1), (2, 2), (4, 4)]);
        assert_eq!(stretches(6, 4, 4, &[]), [(0, 4..6), (2, 0..2)]);
        assert_eq!(stretches(6, 4, 4, &[1, 3, 9]), [(0, 4..5), (1, 5..6), (2, 0..1), (3, 1..2)]);
    }
}
