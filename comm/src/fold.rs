//! The order in which values are combined, as data.
//!
//! A [`Fold`] is a small program in postfix form over *terms* (numbered from 0, each used exactly once, in rising
//! order): `Term` pushes the next term, `Combine` replaces the two topmost values `a b` by `a op b` (left operand
//! first: NaN payloads depend on it), `Round` rounds the topmost value to the element type.
//!
//! Values live in the *accumulator* type: f32 for 16- and 8-bit floats, otherwise the element type itself, for
//! which `Round` does nothing.

use std::fmt;
use std::sync::Arc;

/// One step of a [`Fold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FoldOp {
    /// Push the next term.
    Term,
    /// Pop `b`, pop `a`, push `a op b`.
    Combine,
    /// Round the topmost value to the element type (and keep it in the accumulator type).
    Round,
}

/// A postfix program that combines `terms()` values into one. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Fold {
    ops: Arc<[FoldOp]>,
    terms: u32,
    depth: u32,
}

/// Where a balanced tree over `n` leaves splits: the largest power of two below `n` (`n` ≥ 2).
pub fn split_point(n: usize) -> usize {
    debug_assert!(n >= 2);
    1 << (usize::BITS - 1 - (n - 1).leading_zeros())
}

impl Fold {
    /// Checks that `ops` uses at least one term, never pops an empty stack and leaves exactly one value.
    pub fn new(ops: Vec<FoldOp>) -> Option<Fold> {
        let (mut height, mut terms, mut depth) = (0u32, 0u32, 0u32);
        for op in &ops {
            match op {
                FoldOp::Term => {
                    height += 1;
                    terms += 1;
                }
                FoldOp::Combine if height >= 2 => height -= 1,
                FoldOp::Round if height >= 1 => {}
                _ => return None,
            }
            depth = depth.max(height);
        }
        (height == 1).then(|| Fold { ops: ops.into(), terms, depth })
    }

    /// One term, unchanged.
    pub fn identity() -> Fold {
        Fold::balanced(1)
    }

    /// A balanced binary tree over `n` ≥ 1 terms, splitting at [`split_point`]; nothing is rounded.
    pub fn balanced(n: usize) -> Fold {
        let mut ops = Vec::with_capacity(2 * n);
        push_balanced(&mut ops, n, &mut |ops, _| ops.push(FoldOp::Term));
        Fold::new(ops).expect("a balanced tree over at least one term leaves one value")
    }

    /// The reproducible order over hosts with these numbers of ranks: inside a host a balanced tree, rounded once;
    /// across hosts a balanced tree, rounded at every node but the root, which whoever stores the result rounds
    /// (so that an average is divided before its only rounding). With one host nothing is rounded here.
    pub fn canonical(ranks_per_host: &[usize]) -> Fold {
        let mut ops = Vec::new();
        let several = ranks_per_host.len() > 1;
        push_hosts(&mut ops, ranks_per_host, several);
        if several {
            ops.pop(); // the root's own rounding
        }
        Fold::new(ops).expect("hosts with at least one rank each leave one value")
    }

    /// The program, in order.
    pub fn ops(&self) -> &[FoldOp] {
        &self.ops
    }

    /// How many terms it combines.
    pub fn terms(&self) -> usize {
        self.terms as usize
    }

    /// The greatest number of values that are held at once.
    pub fn depth(&self) -> usize {
        self.depth as usize
    }
}

fn push_balanced(ops: &mut Vec<FoldOp>, n: usize, leaf: &mut dyn FnMut(&mut Vec<FoldOp>, usize)) {
    fn go(ops: &mut Vec<FoldOp>, lo: usize, n: usize, leaf: &mut dyn FnMut(&mut Vec<FoldOp>, usize)) {
        if n == 1 {
            return leaf(ops, lo);
        }
        let left = split_point(n);
        go(ops, lo, left, leaf);
        go(ops, lo + left, n - left, leaf);
        ops.push(FoldOp::Combine);
    }
    go(ops, 0, n, leaf);
}

fn push_hosts(ops: &mut Vec<FoldOp>, hosts: &[usize], round: bool) {
    if let [ranks] = hosts {
        push_balanced(ops, *ranks, &mut |ops, _| ops.push(FoldOp::Term));
    } else {
        let left = split_point(hosts.len());
        push_hosts(ops, &hosts[..left], round);
        push_hosts(ops, &hosts[left..], round);
        ops.push(FoldOp::Combine);
    }
    if round {
        ops.push(FoldOp::Round);
    }
}

impl fmt::Debug for Fold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut stack: Vec<String> = Vec::new();
        let mut next = 0;
        for op in self.ops.iter() {
            match op {
                FoldOp::Term => {
                    stack.push(next.to_string());
                    next += 1;
                }
                FoldOp::Combine => {
                    let (b, a) = (stack.pop().unwrap_or_default(), stack.pop().unwrap_or_default());
                    stack.push(format!("({a}+{b})"));
                }
                FoldOp::Round => {
                    let a = stack.pop().unwrap_or_default();
                    stack.push(format!("[{a}]"));
                }
            }
        }
        f.write_str(&stack.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_split_at_the_largest_power_of_two_below() {
        let splits: Vec<_> = (2..=9).map(split_point).collect();
        assert_eq!(splits, [1, 2, 2, 4, 4, 4, 4, 8]);
        assert_eq!(format!("{:?}", Fold::balanced(5)), "(((0+1)+(2+3))+4)");
    }

    #[test]
    fn hosts_are_rounded_at_every_node_but_the_root() {
        assert_eq!(format!("{:?}", Fold::canonical(&[3])), "((0+1)+2)");
        assert_eq!(format!("{:?}", Fold::canonical(&[2, 1, 3])), "([([(0+1)]+[2])]+[((3+4)+5)])");
        assert_eq!(format!("{:?}", Fold::canonical(&[1, 1])), "([0]+[1])");
    }

    #[test]
    fn malformed_programs_are_refused() {
        use FoldOp::*;
        for ops in [vec![], vec![Combine], vec![Term, Combine], vec![Term, Term], vec![Round, Term]] {
            assert!(Fold::new(ops.clone()).is_none(), "{ops:?}");
        }
        assert_eq!(Fold::new(vec![Term, Term, Combine, Round]).map(|f| (f.terms(), f.depth())), Some((2, 2)));
    }
}
