//! Broadcast and reduce along the canonical tree, in pieces.
//!
//! Each subtree has a leader: the root where the root is in it, otherwise its first rank. At every inner node the
//! value passes between the leaders of the two sides. With equal sides this is the binomial tree. A reduction keeps
//! the order of operands whichever side its leader is on, so it is reproducible for every root; a leader combines
//! all its children's messages in one pass.

use std::collections::VecDeque;
use std::ops::Range;

use super::buffers::{piece_len, pieces};
use super::canonical::{Canonical, Form};
use super::lane::Lane;
use super::{Algorithm, Collective, Program, Shape, Space, Span, Term};
use crate::fold::{Fold, FoldOp};

/// The tree.
pub struct Tree;

/// Pieces, so that programs stay small: a rank has up to log2 n instructions for each.
const MOST_PIECES: usize = 256;

/// Pieces of memory that values on their way go through in turn: being received, being sent, two for slack.
const SLOTS: u64 = 4;

impl Algorithm for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    fn supports(&self, shape: &Shape) -> bool {
        shape.counts_fit() && matches!(shape.collective, Collective::Broadcast | Collective::Reduce)
    }

    fn reproducible(&self, _: &Shape) -> bool {
        true
    }

    fn program(&self, shape: &Shape, rank: usize) -> Program {
        let mut lane = Lane::new(shape, rank);
        if shape.world_size() == 1 {
            lane.alone();
            return lane.finish();
        }
        let node = Node::new(shape, rank);
        match shape.collective {
            Collective::Broadcast => node.broadcast(&mut lane, shape),
            _ => node.reduce(&mut lane, shape),
        }
        lane.finish()
    }
}

/// What a rank does in the tree.
struct Node {
    parent: Option<u32>,
    /// Nearest subtree first.
    children: Vec<u32>,
    /// How the value that it gives to its parent is made.
    terms: VecDeque<Child>,
    fold: Fold,
    form: Form,
}

/// A term of a rank's value.
enum Child {
    /// Its own input.
    Own,
    Message(Term),
}

impl Node {
    fn new(shape: &Shape, rank: usize) -> Node {
        let tree = Canonical::new(&shape.layout);
        let (at, root) = (shape.layout.position(rank), shape.layout.position(shape.root as usize));
        let leader = |members: &Range<usize>| if members.contains(&root) { root } else { members.start };
        let (mut parent, mut children) = (None, Vec::new());
        let (mut terms, mut ops) = (VecDeque::from([Child::Own]), VecDeque::from([FoldOp::Term]));
        let mut form = Form::Raw;
        for join in tree.path(at) {
            if leader(&join.members()) != at {
                parent = Some(tree.order[leader(&join.members())]);
                break;
            }
            let sides = join.sides(at);
            let child = leader(&sides.other);
            let message = Child::Message(tree.message(child, &sides.other));
            children.push(tree.order[child]);
            if sides.left {
                terms.push_back(message);
                ops.push_back(FoldOp::Term);
            } else {
                terms.push_front(message);
                ops.push_front(FoldOp::Term);
            }
            ops.push_back(FoldOp::Combine);
            form = tree.form(&join.members());
            if form == Form::Rounded {
                ops.push_back(FoldOp::Round);
            }
        }
        let fold = Fold::new(ops.into()).expect("every term but the first is followed by its combination");
        Node { parent, children, terms, fold, form }
    }

    fn broadcast(&self, lane: &mut Lane<'_>, shape: &Shape) {
        let len = shape.counts.part(0);
        let (input, output) = (Span::input(0, len), Span::output(0, len));
        let src = if self.parent.is_some() { output } else { input };
        for piece in pieces(len, shape.piece, MOST_PIECES) {
            if let Some(parent) = self.parent {
                lane.recv(parent, output.slice(&piece));
            }
            for &child in self.children.iter().rev() {
                lane.send(child, src.slice(&piece));
            }
        }
        if self.parent.is_none() {
            lane.copy(input, output);
        }
    }

    fn reduce(&self, lane: &mut Lane<'_>, shape: &Shape) {
        let len = shape.counts.part(0);
        let slot = piece_len(len, shape.piece, MOST_PIECES);
        for (i, piece) in pieces(len, shape.piece, MOST_PIECES).enumerate() {
            let own = Span::input(0, len).slice(&piece);
            let mut value = own;
            if !self.children.is_empty() {
                value = match self.form.space() {
                    Space::Output => Span::output(0, len).slice(&piece),
                    space => Span::new(space, i as u64 % SLOTS * slot, own.len),
                };
                let term = |child: &Child| match child {
                    Child::Own => Term::Own(own),
                    Child::Message(message) => *message,
                };
                let terms = self.terms.iter().map(term).collect();
                lane.reduce(value, terms, self.fold.clone(), self.parent.is_none());
            }
            if let Some(parent) = self.parent {
                lane.send(parent, value);
            }
        }
    }
}
