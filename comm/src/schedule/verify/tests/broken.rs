//! Whatever is changed in a program that works, the verifier must find it.

use super::*;
use crate::fold::{Fold, FoldOp};
use crate::schedule::{Instruction, Term};

/// Programs of a small call that each verify, to be broken.
fn victims() -> Vec<(String, Vec<Shape>, Vec<Program>, bool)> {
    let mut victims = Vec::new();
    for algorithm in algorithms() {
        for collective in COLLECTIVES {
            for call in [vec![0, 0, 0, 1, 1, 2], vec![0; 4]] {
                let mut call = Call::new(call, 150);
                // Two or three pieces.
                (call.root, call.piece) = (1, if collective == Collective::AllToAll { 600 } else { 60 });
                for call in [call.clone(), call.in_place()] {
                    let shapes = call.shapes(collective);
                    if !algorithm.supports(&shapes[0]) {
                        continue;
                    }
                    let programs: Vec<_> =
                        shapes.iter().enumerate().map(|(r, s)| algorithm.program(s, r)).collect();
                    let reproducible = algorithm.reproducible(&shapes[0]);
                    assert!(verify_programs(&shapes, &programs, reproducible).is_ok());
                    let name = format!("{} {collective:?} {:?}", algorithm.name(), shapes[0].alias);
                    victims.push((name, shapes, programs, reproducible));
                }
            }
        }
    }
    victims
}

/// Breaks each instruction of each victim by `mutate`, which says whether it changed anything.
fn all_must_fail(mutate: impl Fn(&mut Program, usize, usize, Collective, bool) -> bool) {
    let mut broken = 0;
    for (name, shapes, programs, reproducible) in victims() {
        for (rank, program) in programs.iter().enumerate() {
            for (lane, code) in program.lanes.iter().enumerate() {
                for (i, was) in code.iter().enumerate() {
                    let mut programs = programs.clone();
                    if mutate(&mut programs[rank], lane, i, shapes[0].collective, reproducible) {
                        broken += 1;
                        let verdict = verify_programs(&shapes, &programs, reproducible);
                        let now = programs[rank].lanes[lane].get(i);
                        assert!(verdict.is_err(), "{name}, rank {rank}: {i}: {was:?} became {now:?}");
                    }
                }
            }
        }
    }
    assert!(broken > 50, "only {broken} programs were broken");
}

#[test]
fn dropping_any_instruction_is_found() {
    all_must_fail(|program, lane, i, _, _| {
        program.lanes[lane].remove(i);
        true
    });
}

#[test]
fn doing_anything_twice_is_found() {
    all_must_fail(|program, lane, i, _, _| {
        let twice = program.lanes[lane][i].clone();
        // Copying twice is harmless; and so is reducing only own memory to elsewhere, which nobody does.
        let harmful = !matches!(twice, Instruction::Copy { .. });
        program.lanes[lane].insert(i, twice);
        harmful
    });
}

#[test]
fn using_a_value_before_it_is_there_is_found() {
    all_must_fail(|program, lane, i, collective, _| {
        let code = &mut program.lanes[lane];
        let Some((first, second)) = code.get(i).zip(code.get(i + 1)) else { return false };
        let Some(dst) = first.writes() else { return false };
        let depends = second.reads().any(|src| src == dst) && collective != Collective::Barrier;
        code.swap(i, i + 1);
        depends
    });
}

#[test]
fn moving_or_shrinking_any_span_is_found() {
    for change in 0..4 {
        all_must_fail(|program, lane, i, collective, _| {
            let span = match (&mut program.lanes[lane][i], change % 2) {
                (Instruction::Send { src, .. } | Instruction::Copy { src, .. }, 0) => src,
                (Instruction::RecvReduce { terms, .. }, 0) => {
                    let own = terms.iter_mut().find_map(|term| match term {
                        Term::Own(span) => Some(span),
                        Term::From { .. } => None,
                    });
                    let Some(own) = own else { return false };
                    own
                }
                (
                    Instruction::Recv { dst, .. }
                    | Instruction::RecvReduce { dst, .. }
                    | Instruction::Copy { dst, .. },
                    1,
                ) => dst,
                _ => return false,
            };
            if change < 2 {
                span.start += 1
            } else {
                span.len -= 1
            }
            collective != Collective::Barrier
        });
    }
}

#[test]
fn another_peer_is_found() {
    all_must_fail(|program, lane, i, _, _| {
        match &mut program.lanes[lane][i] {
            Instruction::Send { to: peer, .. } | Instruction::Recv { from: peer, .. } => *peer ^= 1,
            Instruction::RecvReduce { terms, .. } => {
                let peer = terms.iter_mut().find_map(|term| match term {
                    Term::From { rank, .. } => Some(rank),
                    Term::Own(_) => None,
                });
                let Some(peer) = peer else { return false };
                *peer ^= 1;
            }
            Instruction::Copy { .. } => return false,
        }
        true
    });
}

#[test]
fn another_order_rounding_or_end_of_a_reduction_is_found() {
    for change in 0..5 {
        all_must_fail(|program, lane, i, _, reproducible| {
            let Instruction::RecvReduce { dst, terms, fold, finish } = &mut program.lanes[lane][i] else {
                return false;
            };
            let mut ops = fold.ops().to_vec();
            match change {
                0 => {
                    terms.swap(0, 1);
                    return reproducible;
                }
                1 => *finish = !*finish,
                2 => {
                    terms[1] = terms[0];
                    return true;
                }
                3 => {
                    let combine = ops.iter().position(|op| *op == FoldOp::Combine).expect("two terms");
                    let rounded = ops.get(combine + 1) == Some(&FoldOp::Round);
                    if rounded {
                        ops.remove(combine + 1)
                    } else {
                        ops.insert(combine + 1, FoldOp::Round);
                        FoldOp::Round
                    };
                    *fold = Fold::new(ops).expect("still well formed");
                    // Rounding what is then rounded anyway changes nothing.
                    let stored_rounded =
                        dst.space != Space::Partial && !*finish && combine + 2 >= fold.ops().len();
                    return reproducible && !stored_rounded;
                }
                _ => {
                    let wide = terms.iter_mut().find_map(|term| match term {
                        Term::From { wide, .. } => Some(wide),
                        Term::Own(_) => None,
                    });
                    let Some(wide) = wide else { return false };
                    *wide = !*wide;
                }
            }
            true
        });
    }
}
