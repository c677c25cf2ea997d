//! Which messages must have been consumed before an instruction may write.
//!
//! A posted message is read by its receiver at any time until it has consumed it. An instruction that writes over
//! a posted span therefore waits for the receiver; an executor looks the waits up here, once per plan.

use std::collections::{BTreeMap, HashMap};

use super::{Instruction, Program, Shape, Space};

/// A message of this rank, sent earlier, that the receiver must have consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wait {
    /// The lane it was sent in; always the lane of the instruction that waits, since no lane may write what another
    /// one sends.
    pub lane: usize,
    /// Its receiver.
    pub to: u32,
    /// Its number among the messages to `to` in this lane, from 0. Those before it have then been consumed too.
    pub message: u64,
}

/// What one instruction waits for: at most one message for each receiver. Mostly nothing.
pub type Waits = Vec<Wait>;

/// For each lane and instruction of `program`, the messages to wait for before it may write its destination.
///
/// Only what is needed: the last overlapping message for each receiver, unless an earlier instruction of the lane
/// waits for it or for a later one to the same receiver.
pub fn hazards(program: &Program, shape: &Shape, rank: usize) -> Vec<Vec<Waits>> {
    program.lanes.iter().enumerate().map(|(lane, code)| lane_hazards(lane, code, shape, rank)).collect()
}

fn lane_hazards(lane: usize, code: &[Instruction], shape: &Shape, rank: usize) -> Vec<Waits> {
    let mut sent: HashMap<u32, u64> = HashMap::new();
    let mut waited: HashMap<u32, u64> = HashMap::new();
    let mut posted = Posted::default();
    let mut all = Vec::with_capacity(code.len());
    for instruction in code {
        let mut waits: Waits = Vec::new();
        if let Some(dst) = instruction.writes() {
            let implied =
                |message: &Wait| waited.get(&message.to).is_some_and(|&last| message.message <= last);
            for message in posted.overlapping(shape.place(rank, dst), dst.len, implied) {
                match waits.iter_mut().find(|wait| wait.to == message.to) {
                    Some(wait) => wait.message = wait.message.max(message.message),
                    None => waits.push(message),
                }
            }
            waited.extend(waits.iter().map(|wait| (wait.to, wait.message)));
        }
        if let Instruction::Send { to, src } = instruction {
            let count = sent.entry(*to).or_default();
            posted.add(shape.place(rank, *src), src.len, Wait { lane, to: *to, message: *count });
            *count += 1;
        }
        all.push(waits);
    }
    all
}

/// Messages that may still be read, by where they lie in memory (as [`Shape::place`] says).
#[derive(Default)]
pub(super) struct Posted {
    /// By space, first element and a number that tells equal ones apart: the end, and the message.
    spans: BTreeMap<(Space, u64, u64), (u64, Wait)>,
    /// The longest span: what overlaps an element starts at most so many elements before it.
    longest: u64,
    added: u64,
}

impl Posted {
    pub(super) fn add(&mut self, (space, start): (Space, u64), len: u64, message: Wait) {
        self.spans.insert((space, start, self.added), (start + len, message));
        self.longest = self.longest.max(len);
        self.added += 1;
    }

    /// The messages that overlap a span and are not `done`; forgets those that are.
    pub(super) fn overlapping(
        &mut self,
        (space, start): (Space, u64),
        len: u64,
        done: impl Fn(&Wait) -> bool,
    ) -> Vec<Wait> {
        let near = (space, start.saturating_sub(self.longest), 0)..(space, start + len, 0);
        let (mut found, mut forget) = (Vec::new(), Vec::new());
        for (key, (end, message)) in self.spans.range(near) {
            if done(message) {
                forget.push(*key);
            } else if *end > start {
                found.push(*message);
            }
        }
        for key in forget {
            self.spans.remove(&key);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::schedule::{Alias, Collective, Counts, Layout, Span};

    fn shape(alias: Alias) -> Shape {
        let layout = Arc::new(Layout::single_host(3));
        Shape {
            collective: Collective::AllReduce,
            counts: Counts::Equal(10),
            root: 0,
            alias,
            layout,
            piece: 4,
        }
    }

    fn send(to: u32, src: Span) -> Instruction {
        Instruction::Send { to, src }
    }

    fn recv(dst: Span) -> Instruction {
        Instruction::Recv { from: 1, dst }
    }

    #[test]
    fn only_overlapping_messages_and_each_once() {
        let code = vec![
            send(1, Span::input(0, 4)),
            send(1, Span::input(2, 4)),
            send(2, Span::input(4, 4)),
            recv(Span::output(0, 3)), // both messages to 1: the second implies the first
            recv(Span::output(3, 2)), // message 1 to rank 1 is implied, message 0 to rank 2 is not
            recv(Span::output(4, 6)),
            send(1, Span::output(0, 1)),
            recv(Span::output(0, 1)),
        ];
        let program = Program { lanes: vec![code], ..Program::default() };
        let waits = |to, message| Wait { lane: 0, to, message };
        let mut expected = vec![vec![]; 8];
        expected[3] = vec![waits(1, 1)];
        expected[4] = vec![waits(2, 0)];
        expected[7] = vec![waits(1, 2)];
        assert_eq!(hazards(&program, &shape(Alias::InPlace), 0), [expected.clone()]);

        expected[3].clear();
        expected[4].clear();
        assert_eq!(hazards(&program, &shape(Alias::None), 0), [expected]);
    }
}
