//! Each kind of fault, and what it says.

use super::*;
use crate::fold::Fold;
use crate::schedule::{Instruction, Term};

fn shapes_of_two() -> Vec<Shape> {
    Call::new(vec![0; 2], 8).in_place().shapes(Collective::AllReduce)
}

#[test]
fn deadlocks_name_who_waits_for_whom() {
    // Both store the result where the other has not read the input yet.
    let program = |rank: u32| {
        let whole = Span::input(0, 8);
        let mut terms = vec![Term::Own(whole), Term::From { rank: 1 - rank, wide: false }];
        terms.rotate_right(rank as usize);
        let reduce =
            Instruction::RecvReduce { dst: Span::output(0, 8), terms, fold: Fold::balanced(2), finish: true };
        Program {
            lanes: vec![vec![Instruction::Send { to: 1 - rank, src: whole }, reduce]],
            ..Program::default()
        }
    };
    let fault = verify_programs(&shapes_of_two(), &[program(0), program(1)], true).expect_err("must fail");
    assert_eq!(
        fault.to_string(),
        "deadlock: rank 0, lane 0, instruction 1 waits for rank 1 to consume a message that would be overwritten; \
         rank 1, lane 0, instruction 1 waits for rank 0 to consume a message that would be overwritten"
    );
}

#[test]
fn lanes_that_share_what_one_writes_are_found() {
    let copy = Instruction::Copy { src: Span::input(0, 4), dst: Span::scratch(2, 4) };
    let read = Instruction::Copy { src: Span::scratch(5, 2), dst: Span::scratch(8, 2) };
    let program = Program { lanes: vec![vec![copy], vec![read]], scratch: 10, partial: 0 };
    let fault =
        verify_programs(&shapes_of_two(), &[program, Program::default()], true).expect_err("must fail");
    assert!(matches!(fault, Fault::Lanes { rank: 0, writer: 0, other: 1, .. }), "{fault}");
}

/// Verifies one program of rank 0, of two ranks that all-reduce 8 elements; rank 1 does nothing.
fn fault_of(lanes: Vec<Vec<Instruction>>) -> String {
    let program = Program { lanes, scratch: 10, partial: 10 };
    let shapes = Call::new(vec![0; 2], 8).shapes(Collective::AllReduce);
    verify_programs(&shapes, &[program, Program::default()], true).expect_err("must fail").to_string()
}

#[test]
fn faults_name_rank_lane_and_instruction() {
    let copy = |src, dst| Instruction::Copy { src, dst };
    let (input, output) = (Span::input(0, 8), Span::output(0, 8));
    let reduce = |dst, terms, fold| Instruction::RecvReduce { dst, terms, fold, finish: true };
    let fine = copy(input, output);
    let here = "rank 0, lane 0, instruction 1: ";
    for (wrong, text) in [
        (copy(Span::input(0, 0), Span::output(0, 0)), "an empty span"),
        (
            copy(Span::input(4, 5), Span::output(0, 5)),
            "Input[4..9] reaches beyond the 8 elements of its memory",
        ),
        (copy(Span::input(0, 8), Span::scratch(u64::MAX - 3, 8)), "reaches beyond the 10 elements"),
        (copy(output, input), "writes the input"),
        (Instruction::Send { to: 0, src: input }, "rank 0 is no peer"),
        (Instruction::Recv { from: 2, dst: output }, "rank 2 is no peer"),
        (copy(Span::input(0, 7), output), "operands do not fit"),
        (reduce(output, vec![Term::Own(input)], Fold::balanced(2)), "operands do not fit"),
        (reduce(output, vec![Term::Own(Span::input(0, 7))], Fold::identity()), "operands do not fit"),
        (
            reduce(Span::output(1, 7), vec![Term::Own(Span::output(0, 7))], Fold::identity()),
            "overlaps what is read",
        ),
        (copy(Span::output(0, 4), Span::output(3, 4)), "overlaps what is read"),
        (
            copy(Span::scratch(2, 3), Span::output(0, 3)),
            "reads element 2 of Scratch, which was never written",
        ),
    ] {
        let fault = fault_of(vec![vec![fine.clone(), wrong]]);
        assert!(fault.starts_with(here) && fault.contains(text), "{fault}");
    }
    let lanes = fault_of(vec![vec![fine.clone()]; 3]);
    assert_eq!(lanes, "rank 0 has 3 lanes, at most 2 are allowed");
    let result = fault_of(vec![vec![fine]]);
    assert_eq!(result, "rank 0: element 0 of the output is 0@0, expected [{(0+1)}]@0");
    let sent = fault_of(vec![vec![], vec![Instruction::Send { to: 1, src: input }]]);
    assert_eq!(sent, "rank 1 never receives 1 of the messages that rank 0 sent it in lane 1");
    let alone = fault_of(vec![vec![Instruction::Recv { from: 1, dst: output }]]);
    assert_eq!(alone, "deadlock: rank 0, lane 0, instruction 0 waits for rank 1 to send a message");
}

#[test]
fn messages_must_fit() {
    let send = Instruction::Send { to: 1, src: Span::input(0, 8) };
    let recv = |dst| Instruction::Recv { from: 0, dst };
    let program = |code| Program { lanes: vec![vec![code]], scratch: 8, partial: 8 };
    for dst in [Span::output(0, 7), Span::new(Space::Partial, 0, 8)] {
        let shapes = Call::new(vec![0; 2], 8).shapes(Collective::Broadcast);
        let fault = verify_programs(&shapes, &[program(send.clone()), program(recv(dst))], true);
        let fault = fault.expect_err("must fail");
        assert!(matches!(fault, Fault::Message { at: At { rank: 1, .. }, from: 0, .. }), "{fault}");
    }
}

#[test]
fn a_barrier_that_is_too_short_is_found() {
    let shapes = Call::new(vec![0; 3], 0).shapes(Collective::Barrier);
    let direct = by_name("direct").expect("registered");
    let mut programs: Vec<_> = shapes.iter().enumerate().map(|(r, shape)| direct.program(shape, r)).collect();
    assert!(verify_programs(&shapes, &programs, true).is_ok());
    programs.iter_mut().for_each(|program| program.lanes[0].truncate(2));
    let fault = verify_programs(&shapes, &programs, true).expect_err("must fail");
    assert_eq!(fault.to_string(), "rank 0 leaves the barrier without having heard from rank 1");
}

#[test]
fn every_rank_needs_a_shape_and_a_program() {
    let shapes = shapes_of_two();
    for (shapes, programs) in [(&shapes[..], 1), (&shapes[..1], 1), (&[][..], 0)] {
        let fault =
            verify_programs(shapes, &vec![Program::default(); programs], true).expect_err("must fail");
        assert!(matches!(fault, Fault::Ranks { .. }), "{fault}");
    }
}
