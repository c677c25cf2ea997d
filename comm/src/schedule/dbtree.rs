//! Double binary tree all-reduce (Sanders, Speck, Träff 2009): two binary trees, each reduces and then broadcasts
//! half of the data in pieces, in a lane of its own.
//!
//! In the first tree odd positions are leaves, the second tree is the first one mirrored (or shifted by one, for an
//! odd number of ranks), so that nearly every rank is a leaf in one and inner in the other, and all links are
//! equally loaded: the bandwidth of a ring with the latency of a tree. Partial sums are rounded at each hop and
//! follow these trees, not the canonical one: *not reproducible*.

use super::buffers::{Parts, pieces};
use super::lane::{self, Lane, from};
use super::{Algorithm, Collective, Program, Shape, Space, Term};
use crate::fold::Fold;

/// The double binary tree.
pub struct DoubleTree;

/// Pieces of each half, so that programs stay small.
const MOST_PIECES: usize = 256;

/// Pieces that may go up beyond those that fill the tree, so that a late piece does not stop those behind it.
const SLACK: usize = 4;

impl Algorithm for DoubleTree {
    fn name(&self) -> &'static str {
        "dbtree"
    }

    fn supports(&self, shape: &Shape) -> bool {
        shape.collective == Collective::AllReduce && shape.counts_fit()
    }

    fn reproducible(&self, shape: &Shape) -> bool {
        shape.world_size() == 1
    }

    fn program(&self, shape: &Shape, rank: usize) -> Program {
        if shape.world_size() == 1 {
            let mut lane = Lane::new(shape, rank);
            lane.alone();
            return lane.finish();
        }
        let halves = Parts::split(shape.counts.part(0), 2);
        lane::finish((0..2).map(|half| one_tree(shape, rank, &halves, half)))
    }
}

fn one_tree<'a>(shape: &'a Shape, rank: usize, halves: &Parts, half: usize) -> Lane<'a> {
    let order = shape.layout.order();
    let n = order.len();
    let node = renumber(half, shape.layout.position(rank), n);
    let rank_of = |node: usize| order[position_of(half, node, n)];
    let up = parent(node, n).map(rank_of);
    let down: Vec<u32> = children(node, n).map(rank_of).collect();
    let depth = std::iter::successors(parent(node, n), |&node| parent(node, n)).count();

    let mut lane = Lane::new(shape, rank);
    let (input, output) = (halves.span(Space::Input, half), halves.span(Space::Output, half));
    let all: Vec<_> = pieces(input.len, shape.piece, MOST_PIECES).collect();
    // A piece needs `depth` steps to the root and as many back: meanwhile the following ones go up.
    // Never a deadlock: ordered by `piece + height - depth` for going up, `piece + height + lag - depth` for
    // going down, everything waits for what comes before it.
    let lag = if up.is_some() { 2 * depth + SLACK } else { 0 };
    for step in 0..all.len() + lag {
        if let Some(piece) = all.get(step) {
            let mut value = input.slice(piece);
            if !down.is_empty() {
                let terms: Vec<_> =
                    std::iter::once(Term::Own(value)).chain(down.iter().map(|&child| from(child))).collect();
                let fold = Fold::balanced(terms.len());
                value = output.slice(piece);
                lane.reduce(value, terms, fold, up.is_none());
            }
            up.into_iter().for_each(|up| lane.send(up, value));
        }
        if let Some(piece) = step.checked_sub(lag).and_then(|i| all.get(i)) {
            let value = output.slice(piece);
            up.into_iter().for_each(|up| lane.recv(up, value));
            down.iter().for_each(|&child| lane.send(child, value));
        }
    }
    lane
}

/// The node of the tree `half` that is at `position`: the second tree is mirrored or, for an odd number, shifted, so
/// that (nearly all) even positions are its leaves.
fn renumber(half: usize, position: usize, n: usize) -> usize {
    match (half, n % 2) {
        (0, _) => position,
        (_, 0) => n - 1 - position,
        (_, _) => (position + n - 1) % n,
    }
}

/// The inverse of [`renumber`].
fn position_of(half: usize, node: usize, n: usize) -> usize {
    match (half, n % 2) {
        (0, _) => node,
        (_, 0) => n - 1 - node,
        (_, _) => (node + 1) % n,
    }
}

/// The parent of `node` in a binary tree over `0..n` in which 0 is the root with one child, and a node whose lowest
/// bit is the k-th stands k levels above the odd ones.
fn parent(node: usize, n: usize) -> Option<usize> {
    if node == 0 {
        return None;
    }
    let lowest = node & node.wrapping_neg();
    let parent = (node ^ lowest) | (lowest << 1);
    Some(if parent < n { parent } else { node ^ lowest })
}

/// The nodes whose parent is `node`: at a distance of a power of two.
fn children(node: usize, n: usize) -> impl Iterator<Item = usize> {
    let near = (0..n.ilog2() + 1).map(|k| 1 << k).flat_map(move |by| [node.checked_sub(by), Some(node + by)]);
    near.flatten().filter(move |&child| child < n && parent(child, n) == Some(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_binary_and_low() {
        for n in 2..200 {
            for node in 0..n {
                let mut children: Vec<_> = children(node, n).collect();
                children.sort_unstable();
                let all: Vec<_> = (0..n).filter(|&c| parent(c, n) == Some(node)).collect();
                assert_eq!(children, all);
                assert!(children.len() <= 2, "{n} {node}");
                assert!(node % 2 == 0 || children.is_empty(), "odd nodes are leaves");
                let depth = std::iter::successors(parent(node, n), |&node| parent(node, n)).count();
                assert!(depth <= n.ilog2() as usize + 1, "{n} {node} {depth}");
            }
        }
    }
}
