//! What can be seen without running a program: bounds, operands, peers, independence of lanes.

use super::super::{Instruction, MAX_LANES, Program, Shape, Space, Span, Term};
use super::fault::{At, Fault};

/// Checks the program of one rank.
pub(super) fn check(program: &Program, shape: &Shape, rank: usize) -> Result<(), Fault> {
    if program.lanes.len() > MAX_LANES {
        return Err(Fault::TooManyLanes { rank, lanes: program.lanes.len() });
    }
    for (lane, code) in program.lanes.iter().enumerate() {
        for (i, instruction) in code.iter().enumerate() {
            let at = At { rank, lane, instruction: i };
            for span in instruction.spans() {
                bounds(at, span, program, shape)?;
            }
            operands(at, instruction, shape)?;
        }
    }
    independent(program, shape, rank)
}

fn bounds(at: At, span: Span, program: &Program, shape: &Shape) -> Result<(), Fault> {
    let len = match span.space {
        Space::Input => shape.input_len(at.rank),
        Space::Output => shape.output_len(at.rank),
        Space::Scratch => program.scratch,
        Space::Partial => program.partial,
    };
    if span.len == 0 {
        return Err(Fault::Empty(at));
    }
    if span.start.checked_add(span.len).is_none_or(|end| end > len) {
        return Err(Fault::Bounds { at, span, len });
    }
    Ok(())
}

fn operands(at: At, instruction: &Instruction, shape: &Shape) -> Result<(), Fault> {
    let peer = |peer: u32| {
        let real = (peer as usize) < shape.world_size() && peer as usize != at.rank;
        if real { Ok(()) } else { Err(Fault::Peer { at, peer }) }
    };
    if instruction.writes().is_some_and(|dst| dst.space == Space::Input) {
        return Err(Fault::WritesInput(at));
    }
    match instruction {
        Instruction::Send { to, .. } => peer(*to),
        Instruction::Recv { from, .. } => peer(*from),
        Instruction::Copy { src, dst } if src.len != dst.len => Err(Fault::Operands(at)),
        Instruction::Copy { src, dst } if shape.overlap(at.rank, *src, *dst) => Err(Fault::Overlap(at)),
        Instruction::Copy { .. } => Ok(()),
        Instruction::RecvReduce { dst, terms, fold, .. } => {
            if terms.len() != fold.terms() {
                return Err(Fault::Operands(at));
            }
            for term in terms {
                match term {
                    Term::From { rank, .. } => peer(*rank)?,
                    Term::Own(span) if span.len != dst.len => return Err(Fault::Operands(at)),
                    Term::Own(span) => {
                        let same = shape.place(at.rank, *span) == shape.place(at.rank, *dst);
                        if !same && shape.overlap(at.rank, *span, *dst) {
                            return Err(Fault::Overlap(at));
                        }
                    }
                }
            }
            Ok(())
        }
    }
}

/// No lane may touch what another one writes.
fn independent(program: &Program, shape: &Shape, rank: usize) -> Result<(), Fault> {
    let placed = |span: Span| {
        let (space, start) = shape.place(rank, span);
        (space, start, start + span.len)
    };
    for (other, code) in program.lanes.iter().enumerate() {
        let touched = union(code.iter().flat_map(Instruction::spans).map(placed).collect());
        for (writer, code) in program.lanes.iter().enumerate().filter(|(writer, _)| *writer != other) {
            for span in code.iter().filter_map(Instruction::writes) {
                let (space, start, end) = placed(span);
                let after = touched.partition_point(|&(s, first, _)| (s, first) < (space, end));
                let hit = after.checked_sub(1).map(|i| touched[i]);
                if hit.is_some_and(|(s, _, last)| s == space && last > start) {
                    return Err(Fault::Lanes { rank, writer, other, span });
                }
            }
        }
    }
    Ok(())
}

/// Joins overlapping and adjacent stretches of memory; sorted.
fn union(mut stretches: Vec<(Space, u64, u64)>) -> Vec<(Space, u64, u64)> {
    stretches.sort_unstable();
    let mut joined: Vec<(Space, u64, u64)> = Vec::new();
    for (space, start, end) in stretches {
        match joined.last_mut() {
            Some(last) if last.0 == space && last.2 >= start => last.2 = last.2.max(end),
            _ => joined.push((space, start, end)),
        }
    }
    joined
}
