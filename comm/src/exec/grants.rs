//! When a message may be put where it belongs, and where a result may be stored at once. Pure.

use super::layout::{GRANTS, SLOT_BYTES};
use super::plan::{Op, Place, Ready};
use crate::schedule::{Instruction, Space, Span};

/// A message that may be put where it belongs, from a certain point of a lane on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The op that takes it.
    pub op: usize,
    /// Its sender.
    pub peer: usize,
    /// Messages of that peer which are taken between that point and the op.
    pub ahead: u64,
    /// Where it belongs.
    pub dst: Place,
    /// Elements.
    pub count: u64,
    /// The memory is still being read by that peer, as a message that goes into what comes back.
    pub returns: bool,
}

/// Notes at each reduction the peers to which its result is sent next.
pub(super) fn announce(lane: &mut [Ready], instructions: &[Instruction]) {
    for (op, instruction) in instructions.iter().enumerate() {
        let Instruction::RecvReduce { dst, .. } = instruction else { continue };
        let follow = instructions[op + 1..].iter().map_while(|next| match next {
            Instruction::Send { to, src } if src == dst => Some(*to as usize),
            _ => None,
        });
        if let Op::Fold { sends, .. } = &mut lane[op].op {
            sends.extend(follow);
        }
    }
}

/// Messages of at least so many bytes are worth a grant where the sender may store them itself.
const GRANT_FROM: u64 = 8 << 10;
/// The same where a link puts them.
pub const LAND_FROM: u64 = 2 * SLOT_BYTES;

/// How far back an earlier point for a grant is looked for, in ops.
const LOOK_BACK: usize = 64;

/// Notes for each long message of a lane the earliest point from which its sender may put it where it belongs: the memory
/// is not used otherwise from there on, and of the messages from one peer no more than [`GRANTS`] are ahead.
pub(super) fn grant(
    lane: &mut [Ready],
    instructions: &[Instruction],
    overlap: impl Fn(Span, Span) -> bool,
    same: impl Fn(Span, Span) -> bool,
    width: [u64; 2],
) {
    for (op, instruction) in instructions.iter().enumerate() {
        let Instruction::Recv { from, dst } = *instruction else { continue };
        if dst.len * width[usize::from(dst.space == Space::Partial)] < GRANT_FROM {
            continue;
        }
        let (mut since, mut ahead, mut returns) = (op, 0, false);
        for earlier in (op.saturating_sub(LOOK_BACK)..op).rev() {
            let instruction = &instructions[earlier];
            let more = instruction.messages_from(from);
            if ahead + more >= GRANTS {
                break;
            }
            let used = instruction.spans().any(|span| overlap(span, dst));
            match instruction {
                // What the peer itself makes of the message comes back.
                Instruction::Send { to, src } if used && *to == from && !returns && same(*src, dst) => {
                    returns = true;
                }
                // What was sent from there must have been consumed first, which an op in between may wait for.
                Instruction::Send { .. } if used => {
                    (since, ahead, returns) = (op, 0, false);
                    break;
                }
                _ if used => break,
                _ => {}
            }
            (since, ahead) = (earlier, ahead + more);
        }
        // A wait for anything but that message.
        if !returns && !lane[op].waits.is_empty() {
            (since, ahead) = (op, 0);
        }
        let Op::Fold { dst, count, .. } = lane[op].op else { continue };
        let grant = Grant { op, peer: from as usize, ahead, dst, count, returns };
        lane[since].grants.push(grant);
        if returns {
            lane[op].grants.push(Grant { ahead: 0, returns: false, ..grant });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::exec::plan::Plan;
    use crate::fold::Fold;
    use crate::kernel::Kernel;
    use crate::number::{DataType, ReduceOp};
    use crate::schedule::{Alias, Collective, Counts, Layout, Program, Shape, Term};

    fn plan(instructions: Vec<Instruction>, alias: Alias) -> Plan {
        let shape = Shape {
            collective: Collective::AllReduce,
            counts: Counts::Equal(1 << 20),
            root: 0,
            alias,
            layout: Arc::new(Layout::single_host(3)),
            piece: 1 << 16,
        };
        let program = Program { lanes: vec![instructions], ..Program::default() };
        let kernel = Kernel::new(DataType::F32, ReduceOp::Sum, 3).unwrap();
        Plan::new(&program, &shape, 0, DataType::F32, Some(kernel), 1)
    }

    /// At each op: for which op, to which peer, how far ahead, and whether a message of this rank lies there.
    fn grants(instructions: Vec<Instruction>, alias: Alias) -> Vec<Vec<(usize, usize, u64, bool)>> {
        let of = |ready: &Ready| ready.grants.iter().map(|g| (g.op, g.peer, g.ahead, g.returns)).collect();
        plan(instructions, alias).lanes[0].iter().map(of).collect()
    }

    fn send(to: u32, src: Span) -> Instruction {
        Instruction::Send { to, src }
    }

    fn recv(from: u32, dst: Span) -> Instruction {
        Instruction::Recv { from, dst }
    }

    fn reduce(own: Span, dst: Span) -> Instruction {
        let terms = vec![Term::Own(own), Term::From { rank: 1, wide: false }];
        Instruction::RecvReduce { dst, terms, fold: Fold::balanced(2), finish: true }
    }

    const HALF: u64 = 1 << 19;

    #[test]
    fn a_message_is_granted_once_its_memory_is_free() {
        let program = || {
            vec![
                send(1, Span::input(HALF, HALF)),
                reduce(Span::input(0, HALF), Span::output(0, HALF)),
                send(1, Span::output(0, HALF)),
                recv(1, Span::output(HALF, HALF)),
            ]
        };
        // One message of the same peer comes before.
        assert_eq!(grants(program(), Alias::None), [vec![(3, 1, 1, false)], vec![], vec![], vec![]]);
        // In place the peer makes it of what was sent from there; otherwise that must have been consumed.
        let expected = [vec![(3, 1, 1, true)], vec![], vec![], vec![(3, 1, 0, false)]];
        assert_eq!(grants(program(), Alias::InPlace), expected);
        // Not if somebody else is still to read it, or if it is another part of it.
        for other in [send(2, Span::input(HALF, HALF)), send(1, Span::input(HALF + 4, HALF - 4))] {
            let program = [vec![other], program()].concat();
            assert_eq!(grants(program, Alias::InPlace)[..4], [vec![], vec![], vec![], vec![]]);
        }
    }

    #[test]
    fn a_result_is_stored_where_it_is_sent_next() {
        let (whole, half) = (Span::output(0, 2 * HALF), Span::output(0, HALF));
        let program = vec![
            reduce(Span::input(0, HALF), half),
            send(2, half),
            send(1, half),
            recv(1, Span::output(HALF, HALF)),
            send(2, half),
            reduce(Span::input(0, HALF), half),
            send(1, whole),
        ];
        let sends = |ready: &Ready| match &ready.op {
            Op::Fold { sends, .. } => sends.clone(),
            Op::Send { .. } => vec![],
        };
        let found: Vec<_> = plan(program, Alias::None).lanes[0].iter().map(sends).collect();
        let none = Vec::<usize>::new;
        assert_eq!(found, [vec![2, 1], none(), none(), none(), none(), none(), none()]);
    }

    #[test]
    fn never_before_what_uses_the_memory_nor_too_many_ahead_nor_short_ones() {
        let half = || Span::output(0, HALF);
        let copy = Instruction::Copy { src: Span::input(0, HALF), dst: half() };
        assert_eq!(grants(vec![copy.clone(), recv(1, half())], Alias::None)[1], [(1, 1, 0, false)]);
        // A send in between, that something else waited for.
        let sent = vec![send(1, half()), recv(2, Span::output(0, 4)), recv(1, half())];
        assert_eq!(grants(sent, Alias::None), [vec![], vec![], vec![(2, 1, 0, false)]]);
        let piece = |i: u64| recv(1, Span::output(i << 16, 1 << 16));
        let six = grants((0..6).map(piece).collect(), Alias::None);
        let first = (0..GRANTS as usize).map(|op| (op, 1, op as u64, false)).collect();
        assert_eq!(six, [first, vec![(4, 1, 3, false)], vec![(5, 1, 3, false)], vec![], vec![], vec![]]);
        assert_eq!(grants(vec![recv(1, Span::output(0, 1 << 10))], Alias::None), [vec![]]);
    }
}
