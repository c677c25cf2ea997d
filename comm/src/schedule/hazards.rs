//! Which messages must have been consumed before an instruction may write.
//!
//! A posted message is read by its receiver at any time until it has consumed it. An instruction that writes over
//! a posted span therefore waits for the receiver; an executor looks the waits up here, once per plan.

use std::collections::HashMap;

use super::{Instruction, Program, Shape, Span};

/// A message of this rank, sent earlier, that the receiver must have consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Waits {
    /// The lane it was sent in; always the lane of the instruction that waits, since no lane may write what another
    /// one sends.
    pub lane: usize,
    /// Its receiver.
    pub to: u32,
    /// Its number among the messages to `to` in this lane, from 0. Those before it have then been consumed too.
    pub message: u64,
}

/// For each lane and instruction of `program`, the messages to wait for before it may write its destination.
///
/// Only what is needed: the last overlapping message for each receiver, unless an earlier instruction of the lane
/// waits for it or for a later one to the same receiver.
pub fn hazards(program: &Program, shape: &Shape, rank: usize) -> Vec<Vec<Vec<Waits>>> {
    program.lanes.iter().enumerate().map(|(lane, code)| lane_hazards(lane, code, shape, rank)).collect()
}

fn lane_hazards(lane: usize, code: &[Instruction], shape: &Shape, rank: usize) -> Vec<Vec<Waits>> {
    let mut sent: HashMap<u32, u64> = HashMap::new();
    let mut pending: Vec<(Waits, Span)> = Vec::new();
    let mut all = Vec::with_capacity(code.len());
    for instruction in code {
        let mut waits: Vec<Waits> = Vec::new();
        if let Some(dst) = instruction.writes() {
            for (message, _) in pending.iter().filter(|(_, src)| shape.overlap(rank, *src, dst)) {
                match waits.iter_mut().find(|wait| wait.to == message.to) {
                    Some(wait) => *wait = *message, // messages are listed in order: the later one
                    None => waits.push(*message),
                }
            }
            if !waits.is_empty() {
                pending
                    .retain(|(m, _)| !waits.iter().any(|wait| wait.to == m.to && m.message <= wait.message));
            }
        }
        if let Instruction::Send { to, src } = instruction {
            let count = sent.entry(*to).or_default();
            pending.push((Waits { lane, to: *to, message: *count }, *src));
            *count += 1;
        }
        all.push(waits);
    }
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::schedule::{Alias, Collective, Counts, Layout};

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
        let waits = |to, message| Waits { lane: 0, to, message };
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
