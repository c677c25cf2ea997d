//! The canonical order as a tree: who combines with whom, and how the value of each subtree is held.
//!
//! Ranks are numbered by *position*: host after host, ascending inside a host (the order of the terms of
//! [`Layout::canonical`]). Every subtree is a range of positions.

use std::borrow::Cow;
use std::ops::Range;

use super::{Layout, Space, Term};
use crate::fold::split_point;

/// The canonical tree of a layout.
pub(super) struct Canonical<'a> {
    /// The rank at each position.
    pub(super) order: &'a [u32],
    /// Where each host starts, and the end.
    hosts: Cow<'a, [usize]>,
}

/// An inner node: the values of two neighbouring subtrees become one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) left: Range<usize>,
    pub(super) right: Range<usize>,
}

/// A join as one of its members sees it.
pub(super) struct Sides {
    /// The subtree that the member is in.
    pub(super) mine: Range<usize>,
    pub(super) other: Range<usize>,
    /// Whether `mine` is the left one.
    pub(super) left: bool,
}

/// How the value of a subtree is held, so that it is rounded where the canonical order says and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One rank's input.
    Raw,
    /// Part of a host: not rounded.
    Wide,
    /// One host of several, or some hosts: rounded.
    Rounded,
    /// Everything: the result.
    Whole,
}

impl<'a> Canonical<'a> {
    pub(super) fn new(layout: &'a Layout) -> Canonical<'a> {
        Canonical { order: layout.order(), hosts: layout.starts().into() }
    }

    /// Positions only, on one host: where nothing is reduced and hosts do not matter.
    pub(super) fn flat(n: usize) -> Canonical<'static> {
        Canonical { order: &[], hosts: vec![0, n].into() }
    }

    /// The joins that position `at` is in, from its leaf to the root.
    pub(super) fn path(&self, at: usize) -> Vec<Join> {
        let mut joins = Vec::new();
        let mut hosts = 0..self.hosts.len() - 1;
        while hosts.len() > 1 {
            let middle = hosts.start + split_point(hosts.len());
            let (start, split, end) = (self.hosts[hosts.start], self.hosts[middle], self.hosts[hosts.end]);
            joins.push(Join { left: start..split, right: split..end });
            hosts = if at < split { hosts.start..middle } else { middle..hosts.end };
        }
        let mut ranks = self.hosts[hosts.start]..self.hosts[hosts.end];
        while ranks.len() > 1 {
            let middle = ranks.start + split_point(ranks.len());
            joins.push(Join { left: ranks.start..middle, right: middle..ranks.end });
            ranks = if at < middle { ranks.start..middle } else { middle..ranks.end };
        }
        joins.reverse();
        joins
    }

    /// How the value of a subtree is held.
    pub(super) fn form(&self, members: &Range<usize>) -> Form {
        let host = self.hosts.partition_point(|&start| start <= members.start) - 1;
        if members.len() == self.hosts[self.hosts.len() - 1] {
            Form::Whole
        } else if members.len() == 1 {
            Form::Raw
        } else if members.end < self.hosts[host + 1] || members.start > self.hosts[host] {
            Form::Wide
        } else {
            Form::Rounded
        }
    }

    /// The message that brings the value of a subtree from one of its members.
    pub(super) fn message(&self, from: usize, members: &Range<usize>) -> Term {
        Term::From { rank: self.order[from], wide: self.form(members) == Form::Wide }
    }
}

impl Join {
    /// All members.
    pub(super) fn members(&self) -> Range<usize> {
        self.left.start..self.right.end
    }

    /// As the member at `at` sees it.
    pub(super) fn sides(&self, at: usize) -> Sides {
        let left = self.left.contains(&at);
        let (mine, other) = if left { (&self.left, &self.right) } else { (&self.right, &self.left) };
        Sides { mine: mine.clone(), other: other.clone(), left }
    }
}

impl Sides {
    /// The position on the other side whose value the member at `at` gets: each side's members are dealt out to the
    /// other side in turn.
    pub(super) fn source(&self, at: usize) -> usize {
        self.other.start + (at - self.mine.start) % self.other.len()
    }

    /// The positions on the other side that get the value of the member at `at`.
    pub(super) fn targets(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        (self.other.start + at - self.mine.start..self.other.end).step_by(self.mine.len())
    }

    /// The own and the other side's value in their order.
    pub(super) fn terms(&self, own: Term, other: Term) -> Vec<Term> {
        if self.left { vec![own, other] } else { vec![other, own] }
    }
}

impl Form {
    /// The memory for a value of this form.
    pub(super) fn space(self) -> Space {
        match self {
            Form::Raw => Space::Input,
            Form::Wide => Space::Partial,
            Form::Rounded => Space::Scratch,
            Form::Whole => Space::Output,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_the_canonical_fold() {
        let layout = Layout::new(&[0, 0, 1, 0, 2, 2]);
        let tree = Canonical::new(&layout);
        assert_eq!(tree.order, [0, 1, 3, 2, 4, 5]);
        let join = |left, right| Join { left, right };
        assert_eq!(tree.path(1), [join(0..1, 1..2), join(0..2, 2..3), join(0..3, 3..4), join(0..4, 4..6)]);
        assert_eq!(tree.path(5), [join(4..5, 5..6), join(0..4, 4..6)]);
        let forms = [0..1, 0..2, 0..3, 3..4, 0..4, 4..6, 0..6].map(|members| tree.form(&members));
        use Form::*;
        assert_eq!(forms, [Raw, Wide, Rounded, Raw, Rounded, Rounded, Whole]);
    }

    #[test]
    fn sources_and_targets_agree() {
        for (left, right) in [(4, 1), (4, 3), (1, 5), (2, 7)] {
            let join = Join { left: 3..3 + left, right: 3 + left..3 + left + right };
            for at in join.members() {
                for target in join.sides(at).targets(at) {
                    assert_eq!(join.sides(target).source(target), at);
                }
            }
            let targets = join.members().flat_map(|at| join.sides(at).targets(at)).count();
            assert_eq!(targets, left + right);
        }
    }
}
