//! Values as expressions, and memory that holds them.
//!
//! A [`Run`] is a stretch of elements with one expression, whose leaves count upwards from element to element: it
//! can be cut anywhere without touching the expression, so that 2^40 elements cost as much as one.

use std::collections::{BTreeMap, HashMap};

use crate::fold::{Fold, FoldOp};

/// The number of an expression in [`Symbols`]; equal expressions have equal numbers.
pub(super) type Id = u32;

/// An expression. Its leftmost leaf is element 0 of an input; other leaves are relative to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// The input of a rank.
    Input(u32),
    /// `a op b`, where the leftmost leaf of b lies so many elements after that of a.
    Combine(Id, Id, i64),
    /// Rounded to the element type.
    Round(Id),
    /// Completely reduced: an average is divided here.
    Finish(Id),
}

/// `len` elements; in the i-th of them the leftmost leaf of the expression is element `base + i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) len: u64,
    pub(super) id: Id,
    pub(super) base: i64,
}

impl Run {
    fn skip(self, by: u64) -> Run {
        Run { len: self.len - by, id: self.id, base: self.base + by as i64 }
    }

    fn take(self, len: u64) -> Run {
        Run { len, ..self }
    }
}

/// All expressions seen.
#[derive(Default)]
pub(super) struct Symbols {
    nodes: Vec<Node>,
    ids: HashMap<Node, Id>,
}

impl Symbols {
    pub(super) fn node(&self, id: Id) -> Node {
        self.nodes[id as usize]
    }

    fn id(&mut self, node: Node) -> Id {
        *self.ids.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            self.nodes.len() as Id - 1
        })
    }

    pub(super) fn input(&mut self, rank: u32) -> Id {
        self.id(Node::Input(rank))
    }

    /// What is an element already, or has been rounded, does not change.
    pub(super) fn round(&mut self, id: Id) -> Id {
        match self.node(id) {
            Node::Input(_) | Node::Round(_) => id,
            Node::Combine(..) | Node::Finish(_) => self.id(Node::Round(id)),
        }
    }

    pub(super) fn finish(&mut self, id: Id) -> Id {
        self.id(Node::Finish(id))
    }

    /// Runs a fold over terms of equal length.
    pub(super) fn fold(&mut self, fold: &Fold, terms: Vec<Vec<Run>>) -> Vec<Run> {
        let mut rest: Vec<_> = terms.into_iter().map(|runs| runs.into_iter().peekable()).collect();
        let mut result = Vec::new();
        while let Some(len) = rest.iter_mut().map(|runs| runs.peek().map_or(0, |run| run.len)).min() {
            if len == 0 {
                break;
            }
            let mut heads = Vec::with_capacity(rest.len());
            for runs in &mut rest {
                if let Some(run) = runs.peek_mut() {
                    heads.push(run.take(len));
                    *run = run.skip(len);
                }
                runs.next_if(|run| run.len == 0);
            }
            push(&mut result, self.fold_one(fold, &heads));
        }
        result
    }

    fn fold_one(&mut self, fold: &Fold, terms: &[Run]) -> Run {
        let mut stack: Vec<Run> = Vec::with_capacity(fold.depth());
        let mut next = terms.iter();
        for op in fold.ops() {
            match op {
                FoldOp::Term => stack.extend(next.next()),
                FoldOp::Combine => {
                    let b = stack.pop().expect("folds do not pop an empty stack");
                    let a = stack.last_mut().expect("folds do not pop an empty stack");
                    a.id = self.id(Node::Combine(a.id, b.id, b.base - a.base));
                }
                FoldOp::Round => {
                    let a = stack.last_mut().expect("folds do not round an empty stack");
                    a.id = self.round(a.id);
                }
            }
        }
        stack.pop().expect("folds leave one value")
    }

    /// Whether `id` is finished, rounded, and combines the same element of each of `n` ranks exactly once.
    pub(super) fn is_any_reduction(&self, id: Id, n: usize) -> bool {
        let Node::Round(finished) = self.node(id) else { return false };
        let Node::Finish(whole) = self.node(finished) else { return false };
        let mut seen = vec![false; n];
        let mut todo = vec![whole];
        while let Some(id) = todo.pop() {
            match self.node(id) {
                Node::Input(rank) if !seen[rank as usize] => seen[rank as usize] = true,
                Node::Combine(a, b, 0) => todo.extend([a, b]),
                Node::Round(a) => todo.push(a),
                Node::Input(_) | Node::Combine(..) | Node::Finish(_) => return false,
            }
        }
        seen.into_iter().all(|seen| seen)
    }

    /// For messages: `((0+1)+[2])`, where `[]` is rounded and `{}` finished.
    pub(super) fn show(&self, id: Id) -> String {
        match self.node(id) {
            Node::Input(rank) => rank.to_string(),
            Node::Combine(a, b, 0) => format!("({}+{})", self.show(a), self.show(b)),
            Node::Combine(a, b, by) => format!("({}+{}@{by})", self.show(a), self.show(b)),
            Node::Round(a) => format!("[{}]", self.show(a)),
            Node::Finish(a) => format!("{{{}}}", self.show(a)),
        }
    }
}

/// Appends a run, joined to the last one where it goes on.
fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.id == run.id && last.base + last.len as i64 == run.base => last.len += run.len,
        _ => runs.push(run),
    }
}

/// One space of one rank: runs by their first element. What is in no run was never written.
#[derive(Default)]
pub(super) struct Memory {
    runs: BTreeMap<u64, Run>,
}

impl Memory {
    /// The values of `len` elements from `start` on, or the first element that was never written.
    pub(super) fn read(&self, start: u64, len: u64) -> Result<Vec<Run>, u64> {
        let (mut at, end) = (start, start + len);
        let mut result = Vec::new();
        let first = self.runs.range(..=start).next_back().map_or(start, |(&first, _)| first);
        for (&first, run) in self.runs.range(first..end) {
            if first + run.len <= at {
                continue;
            }
            if first > at {
                return Err(at);
            }
            let run = run.skip(at - first);
            push(&mut result, run.take(run.len.min(end - at)));
            at = (at + run.len).min(end);
        }
        if at < end { Err(at) } else { Ok(result) }
    }

    /// Stores runs from `start` on.
    pub(super) fn write(&mut self, start: u64, runs: &[Run]) {
        let end = start + runs.iter().map(|run| run.len).sum::<u64>();
        for border in [start, end] {
            if let Some((&first, run)) = self.runs.range_mut(..border).next_back()
                && first + run.len > border
            {
                let tail = run.skip(border - first);
                *run = run.take(border - first);
                self.runs.insert(border, tail);
            }
        }
        let old: Vec<u64> = self.runs.range(start..end).map(|(&first, _)| first).collect();
        for first in old {
            self.runs.remove(&first);
        }
        let mut at = start;
        for &run in runs {
            self.runs.insert(at, run);
            at += run.len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_cuts_and_joins_runs() {
        let mut memory = Memory::default();
        let run = |len, id, base| Run { len, id, base };
        memory.write(10, &[run(10, 1, 0)]);
        memory.write(12, &[run(3, 2, 100)]);
        assert_eq!(memory.read(10, 10), Ok(vec![run(2, 1, 0), run(3, 2, 100), run(5, 1, 5)]));
        memory.write(12, &[run(3, 1, 2)]);
        assert_eq!(memory.read(11, 8), Ok(vec![run(8, 1, 1)]));
        assert_eq!(memory.read(9, 2), Err(9));
        assert_eq!(memory.read(19, 2), Err(20));
        assert_eq!(memory.read(0, 0), Ok(vec![]));
    }

    #[test]
    fn folds_align_their_terms() {
        let mut symbols = Symbols::default();
        let (a, b) = (symbols.input(0), symbols.input(1));
        let run = |len, id, base| Run { len, id, base };
        let left = vec![run(4, a, 0)];
        let right = vec![run(1, b, 0), run(3, b, 7)];
        let sums = symbols.fold(&Fold::balanced(2), vec![left, right]);
        assert_eq!(
            sums.iter().map(|s| (s.len, symbols.show(s.id))).collect::<Vec<_>>(),
            [(1, "(0+1)".to_owned()), (3, "(0+1@6)".to_owned())]
        );
    }
}
