//! An algorithm that says it is cyclic is.

use super::*;
use crate::schedule::{Program, Span, Term};

/// What an instruction does, without where it does it: its kind and peers, memory, lengths, own terms.
fn outline(instruction: &Instruction, exact: bool, turn: impl Fn(u32) -> u32) -> String {
    let span = |span: &Span| format!("{:?} {}", span.space, if exact { span.len } else { 0 });
    match instruction {
        Instruction::Send { to, src } => format!("send {} {}", turn(*to), span(src)),
        Instruction::Recv { from, dst } => format!("recv {} {}", turn(*from), span(dst)),
        Instruction::Copy { src, dst } => format!("copy {} {}", span(src), span(dst)),
        Instruction::RecvReduce { dst, terms, fold, finish } => {
            let term = |term: &Term| match term {
                Term::Own(own) => format!("own {}", span(own)),
                Term::From { rank, wide } => format!("from {} {wide}", turn(*rank)),
            };
            let mut terms: Vec<_> = terms.iter().map(term).collect();
            terms.sort();
            format!("reduce {} {terms:?} {} {finish}", span(dst), fold.ops().len())
        }
    }
}

fn outlines(program: &Program, exact: bool, turn: impl Fn(u32) -> u32) -> Vec<Vec<String>> {
    let lane = |lane: &Vec<Instruction>| lane.iter().map(|i| outline(i, exact, &turn)).collect();
    program.lanes.iter().map(lane).collect()
}

/// How many programs were compared.
fn compare(hosts: usize, each: usize, count: u64, piece: u64, in_place: bool) -> usize {
    let n = hosts * each;
    let mut call = Call::new((0..n).map(|r| r / each).collect(), count);
    call.piece = piece;
    call.in_place = vec![in_place; n];
    let mut compared = 0;
    for algorithm in algorithms() {
        for collective in COLLECTIVES {
            let shapes = call.shapes(collective);
            if !algorithm.supports(&shapes[0]) || !algorithm.cyclic(&shapes[0]) {
                continue;
            }
            // Where all parts are equally long, lengths are the same too; unless parts are cut further.
            let exact =
                count.is_multiple_of((64 * n) as u64) && !algorithm.name().starts_with("hierarchical");
            for rank in 0..n {
                let next = (rank + each) % n;
                let turn = |peer: u32| (peer + each as u32) % n as u32;
                let turned = outlines(&algorithm.program(&shapes[rank], rank), exact, turn);
                let found = outlines(&algorithm.program(&shapes[next], next), exact, |peer| peer);
                assert!(turned == found, "{} {collective:?} {call:?} rank {rank}", algorithm.name());
                compared += 1;
            }
        }
    }
    compared
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn cyclic_programs_are_the_same_one_host_further_on(
        hosts in 1..7usize,
        each in 1..5usize,
        count in prop_oneof![0..40u64, 0..5000u64, (1..9u64).prop_map(|k| k * 64 * 420)],
        piece in prop_oneof![1..200u64, Just(1u64 << 20)],
        in_place in any::<bool>(),
    ) {
        compare(hosts, each, count, piece, in_place);
    }
}

#[test]
fn the_cyclic_ones_say_so() {
    use Collective::*;
    let call = Call::new(vec![0, 0, 1, 1, 2, 2], 6 * 64);
    for (name, cyclic) in [
        ("direct", &[AllReduce, ReduceScatter, AllGather, AllToAll, Barrier][..]),
        ("oneshot", &[AllReduce]),
        ("ring", &[AllReduce, ReduceScatter, AllGather]),
        ("hierarchical", &[AllReduce, ReduceScatter, AllGather, AllToAll]),
        ("hierarchical-ring", &[AllReduce, ReduceScatter, AllGather]),
        ("hierarchical-halving", &[]),
        // Its messages are cut where parts wrap around the end of a buffer, at another place on each rank.
        ("bruck", &[]),
    ] {
        let algorithm = by_name(name).expect(name);
        for collective in COLLECTIVES {
            let shape = &call.shapes(collective)[0];
            let says = algorithm.supports(shape) && algorithm.cyclic(shape);
            assert_eq!(says, cyclic.contains(&collective), "{name} {collective:?}");
        }
    }
    let uneven = Call::new(vec![0, 1, 1, 2, 2, 2], 6 * 64);
    assert!(algorithms().iter().all(|a| !a.cyclic(&uneven.shapes(AllReduce)[0])));
    assert!(compare(3, 2, 6 * 64, 7, false) > 0);
}
