//! Every algorithm, every collective, random shapes; and a verifier that must find broken programs.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::fold::{Fold, FoldOp};
use crate::schedule::{Alias, Instruction, Layout, Term, algorithms, by_name};

const COLLECTIVES: [Collective; 9] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
    Collective::Barrier,
];

/// A call over all ranks, from which each collective takes what it needs.
#[derive(Debug, Clone)]
struct Call {
    hosts: Vec<usize>,
    count: u64,
    per_rank: Option<Vec<u64>>,
    root: usize,
    in_place: Vec<bool>,
    piece: u64,
}

impl Call {
    fn new(hosts: Vec<usize>, count: u64) -> Call {
        let in_place = vec![false; hosts.len()];
        Call { hosts, count, per_rank: None, root: 0, in_place, piece: 1 << 20 }
    }

    fn in_place(mut self) -> Call {
        self.in_place.fill(true);
        self
    }

    fn shapes(&self, collective: Collective) -> Vec<Shape> {
        let n = self.hosts.len();
        let layout = Arc::new(Layout::new(&self.hosts));
        let counts = |rank: usize| match (&self.per_rank, collective) {
            (_, Collective::Barrier) => Counts::Equal(0),
            (Some(counts), Collective::AllToAll) => {
                // What a sends to b, from the lists of both, and not symmetric.
                let block = |a: usize, b: usize| (counts[a] + 3 * counts[b]) % (counts[a] + 2);
                let send = (0..n).map(|to| block(rank, to)).collect();
                Counts::Pairwise { send, recv: (0..n).map(|from| block(from, rank)).collect() }
            }
            (Some(counts), Collective::Gather | Collective::Scatter) if rank != self.root => {
                Counts::PerRank((0..n).map(|r| if r == rank { counts[r] } else { 0 }).collect())
            }
            (
                Some(counts),
                Collective::Gather | Collective::Scatter | Collective::ReduceScatter | Collective::AllGather,
            ) => Counts::PerRank(counts.clone().into()),
            _ => Counts::Equal(self.count),
        };
        let alias = |rank: usize| if self.in_place[rank] { Alias::InPlace } else { Alias::None };
        let shape = |rank| Shape {
            collective,
            counts: counts(rank),
            root: self.root as u32,
            alias: alias(rank),
            layout: layout.clone(),
            piece: self.piece,
        };
        (0..n).map(shape).collect()
    }
}

fn hosts(most: usize) -> impl Strategy<Value = Vec<usize>> {
    let n = 1..=most;
    prop_oneof![
        n.clone().prop_map(|n| vec![0; n]),
        n.clone().prop_map(|n| (0..n).collect()),
        (n.clone(), 1..9usize).prop_map(|(n, each)| (0..n).map(|r| r / each).collect()),
        (n.clone(), 1..9usize).prop_map(|(n, hosts)| (0..n).map(|r| r % hosts).collect()),
        prop::collection::vec(0..6usize, n),
        (0..4u32, 0..3u32).prop_map(|(h, r)| (0..1usize << (h + r)).map(|i| i >> r).collect()),
    ]
}

fn calls(most: usize) -> impl Strategy<Value = Call> {
    let count = prop_oneof![0..4u64, 0..200u64, 0..20_000u64, Just(1u64 << 40)];
    let piece = prop_oneof![1..8u64, 1..2000u64, Just(1u64 << 20), Just(u64::MAX)];
    (hosts(most), count, piece, any::<prop::sample::Index>(), 0..4).prop_flat_map(
        |(hosts, count, piece, root, in_place)| {
            let n = hosts.len();
            let per_rank = prop::option::of(prop::collection::vec(prop_oneof![Just(0), 0..300u64], n));
            let aliases = match in_place {
                0 => Just(vec![false; n]).boxed(),
                1 => Just(vec![true; n]).boxed(),
                _ => prop::collection::vec(any::<bool>(), n).boxed(),
            };
            (per_rank, aliases).prop_map(move |(per_rank, in_place)| Call {
                hosts: hosts.clone(),
                count,
                per_rank,
                root: root.index(n),
                in_place,
                piece,
            })
        },
    )
}

fn verify_all(call: &Call) -> Result<(), TestCaseError> {
    for algorithm in algorithms() {
        for collective in COLLECTIVES {
            let shapes = call.shapes(collective);
            if shapes.iter().all(|shape| algorithm.supports(shape)) {
                let verdict = verify(*algorithm, &shapes);
                if let Err(fault) = verdict {
                    return Err(TestCaseError::fail(format!("{} {collective:?}: {fault}", algorithm.name())));
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_algorithm_keeps_its_promise(call in calls(20)) {
        verify_all(&call)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn every_algorithm_keeps_its_promise_for_many_ranks(call in calls(64)) {
        verify_all(&call)?;
    }
}

#[test]
fn every_small_world_every_root_both_aliases() {
    for n in 1..=9 {
        for root in 0..n {
            for (hosts, count) in [(n, 37), (2, 5), (3, 0), (1, 300)] {
                let mut call = Call::new((0..n).map(|r| r % hosts).collect(), count);
                (call.root, call.piece) = (root, 7);
                for call in [call.clone(), call.in_place()] {
                    verify_all(&call).unwrap_or_else(|e| panic!("{call:?}: {e}"));
                }
            }
        }
    }
}

#[test]
fn programs_stay_small() {
    for algorithm in algorithms() {
        for (n, collective) in [2, 16, 64].into_iter().flat_map(|n| COLLECTIVES.map(|c| (n, c))) {
            let mut call = Call::new(vec![0; n], 1 << 34);
            call.piece = 1;
            for (rank, shape) in call.shapes(collective).iter().enumerate() {
                if algorithm.supports(shape) {
                    let len: usize = algorithm.program(shape, rank).lanes.iter().map(Vec::len).sum();
                    assert!(len <= 4096 + 4 * n, "{} {collective:?} {n}: {len}", algorithm.name());
                }
            }
        }
    }
}

fn report(name: &str, collective: Collective, call: &Call) -> Report {
    let algorithm = by_name(name).expect(name);
    verify(algorithm, &call.shapes(collective)).unwrap_or_else(|e| panic!("{name} {collective:?}: {e}"))
}

#[test]
fn bandwidth_optimal_algorithms_send_two_times_n_minus_1_over_n() {
    for name in ["direct", "ring"] {
        for n in [2, 3, 4, 8, 13] {
            let report = report(name, Collective::AllReduce, &Call::new(vec![0; n], 640 * n as u64));
            assert_eq!(report.sent, vec![2 * (n as u64 - 1) * 640; n], "{name} {n}");
            assert_eq!(report.messages, 2 * (n * (n - 1)) as u64, "{name} {n}");
            let chain = if name == "direct" { 2 } else { 2 * (n as u64 - 1) };
            assert_eq!(report.chain, chain, "{name} {n}");
        }
    }
}

#[test]
fn one_hop_algorithms_take_one_hop() {
    let call = Call::new(vec![0; 5], 10);
    let once = report("oneshot", Collective::AllReduce, &call);
    assert_eq!((once.chain, once.messages, once.sent), (1, 20, vec![40; 5]));
    for collective in
        COLLECTIVES.into_iter().filter(|c| !matches!(c, Collective::AllReduce | Collective::Barrier))
    {
        assert_eq!(report("direct", collective, &call).chain, 1, "{collective:?}");
    }
    assert_eq!(report("direct", Collective::Barrier, &call).chain, 3);
    let one = report("direct", Collective::AllReduce, &Call::new(vec![0], 10));
    assert_eq!((one.messages, one.chain), (0, 0));
}

/// What every name stands for, and whether it keeps the canonical order.
#[test]
fn each_algorithm_performs_what_it_is_for() {
    use Collective::*;
    let table: [(&str, &[Collective], bool); 9] = [
        ("oneshot", &[AllReduce], true),
        ("direct", &COLLECTIVES, true),
        ("hierarchical", &[AllReduce, ReduceScatter, AllGather], true),
        ("doubling", &[AllReduce, AllGather], true),
        ("halving", &[AllReduce], true),
        ("tree", &[Broadcast, Reduce], true),
        ("ring", &[AllReduce, ReduceScatter, AllGather, Broadcast, Reduce], false),
        ("dbtree", &[AllReduce], false),
        ("bruck", &[ReduceScatter, AllGather], false),
    ];
    assert_eq!(algorithms().len(), table.len());
    for ((name, performs, reproducible), algorithm) in table.into_iter().zip(algorithms()) {
        assert_eq!(algorithm.name(), name);
        for collective in COLLECTIVES {
            let shape = &Call::new(vec![0, 0, 1, 1], 10).shapes(collective)[0];
            assert_eq!(algorithm.supports(shape), performs.contains(&collective), "{name} {collective:?}");
            if algorithm.supports(shape) {
                let keeps = reproducible || !collective.reduces();
                assert_eq!(algorithm.reproducible(shape), keeps, "{name} {collective:?}");
            }
        }
    }
    assert!(by_name("rings").is_none());
}

#[test]
fn recursive_algorithms_take_at_most_as_many_rounds_as_the_tree_is_high() {
    for (hosts, height) in [
        (vec![0; 8], 3),
        (vec![0; 9], 4),
        (vec![0; 64], 6),
        (vec![0, 0, 0, 1, 1, 2], 3), // 4 levels, but nobody waits for what the last rank of the first host gets
        ((0..13).collect(), 4),
    ] {
        let n = hosts.len() as u64;
        let call = Call::new(hosts, 6400);
        let doubling = report("doubling", Collective::AllReduce, &call);
        assert_eq!(doubling.chain, height, "{call:?}");
        // Every rank gets one message for each join on its path.
        assert!(
            doubling.messages <= height * n && doubling.sent.iter().sum::<u64>() == doubling.messages * 6400
        );
        assert_eq!(report("doubling", Collective::AllGather, &call).chain, (n as f64).log2().ceil() as u64);
        for collective in [Collective::Broadcast, Collective::Reduce] {
            let tree = report("tree", collective, &call);
            assert!(tree.chain <= height + 1 && tree.messages == n - 1, "{call:?}: {tree:?}");
        }
    }
}

#[test]
fn halving_sends_as_little_as_a_ring_in_logarithmic_time() {
    for (hosts, rounds) in [(vec![0; 8], 3), (vec![0, 0, 1, 1], 2), ((0..16).map(|r| r % 4).collect(), 4)] {
        let n = hosts.len() as u64;
        let report = report("halving", Collective::AllReduce, &Call::new(hosts, 64 * n));
        assert_eq!(report.sent, vec![2 * (n - 1) * 64; n as usize]);
        assert_eq!((report.chain, report.messages), (2 * rounds, 2 * rounds * n));
    }
    let wide = |hosts| report("halving", Collective::AllReduce, &Call::new(hosts, 512)).wide;
    assert_eq!(wide(vec![0; 8]), 8 * (128 + 64)); // the first round sends inputs
    assert_eq!(wide((0..8).collect()), 0);
}

/// Elements that ranks send to other hosts.
fn across(name: &str, collective: Collective, call: &Call) -> u64 {
    let algorithm = by_name(name).expect(name);
    let mut elements = 0;
    for (rank, shape) in call.shapes(collective).iter().enumerate() {
        for instruction in algorithm.program(shape, rank).lanes.concat() {
            if let Instruction::Send { to, src } = instruction {
                let crosses = shape.layout.host_of(rank) != shape.layout.host_of(to as usize);
                elements += if crosses { src.len } else { 0 };
            }
        }
    }
    elements
}

#[test]
fn the_hierarchy_sends_everything_once_between_hosts() {
    // 3 hosts of 4 ranks.
    let hosts: Vec<usize> = (0..12).map(|r| r / 4).collect();
    for (collective, chain, phases) in
        [(Collective::AllReduce, 4, 2), (Collective::ReduceScatter, 2, 1), (Collective::AllGather, 2, 1)]
    {
        let each = if collective == Collective::AllReduce { 64 * 12 } else { 64 };
        let call = Call::new(hosts.clone(), each);
        assert_eq!(report("hierarchical", collective, &call).chain, chain, "{collective:?}");
        // A phase takes the whole buffer of 12 parts in or out of each of three hosts, less what is its own.
        let (whole, hosts) = (64 * 12, 3);
        assert_eq!(across("hierarchical", collective, &call), phases * whole * (hosts - 1), "{collective:?}");
        assert_eq!(across("direct", collective, &call), phases * whole * (hosts - 1) * 4, "{collective:?}");
    }
}

#[test]
fn bruck_takes_logarithmic_rounds_and_sends_each_part_once_per_rank() {
    for (n, rounds) in [(2u64, 1), (5, 3), (8, 3), (13, 4), (64, 6)] {
        for collective in [Collective::AllGather, Collective::ReduceScatter] {
            let report = report("bruck", collective, &Call::new(vec![0; n as usize], 10));
            assert_eq!(
                (report.chain, report.sent),
                (rounds, vec![10 * (n - 1); n as usize]),
                "{n} {collective:?}"
            );
            // One message a round, another where parts wrap around, others where sums meet inputs.
            assert!(report.messages <= 4 * rounds * n, "{n} {collective:?} {}", report.messages);
        }
    }
}

#[test]
fn the_double_tree_loads_all_ranks_alike() {
    for n in [2u64, 3, 8, 16, 31] {
        let mut call = Call::new(vec![0; n as usize], 2 * 64 * 10);
        call.piece = 64;
        let report = report("dbtree", Collective::AllReduce, &call);
        assert_eq!(report.messages, 2 * 10 * 2 * (n - 1), "{n}");
        // In one tree a rank is a leaf (sends one half), in the other it has at most two children (sends three);
        // the odd rank out is inner in both.
        let busiest = report.sent.iter().max();
        assert!(busiest <= Some(&(64 * 10 * 5)), "{n} {busiest:?}");
        call.piece = 640;
        let chain = self::report("dbtree", Collective::AllReduce, &call).chain;
        assert!(chain <= 2 * (n.ilog2() as u64 + 1), "{n} {chain}");
    }
}

#[test]
fn pipelines_pass_every_piece_on_at_once() {
    let mut call = Call::new(vec![0; 5], 1000);
    (call.piece, call.root) = (100, 2);
    for collective in [Collective::Broadcast, Collective::Reduce] {
        let report = report("ring", collective, &call);
        assert_eq!((report.messages, report.chain), (4 * 10, 4), "{collective:?}");
    }
}

/// Programs of a small call that each verify, to be broken.
fn victims() -> Vec<(String, Vec<Shape>, Vec<Program>, bool)> {
    let mut victims = Vec::new();
    for algorithm in algorithms() {
        for collective in COLLECTIVES {
            for call in [vec![0, 0, 0, 1, 1, 2], vec![0; 4]] {
                let mut call = Call::new(call, 150);
                (call.root, call.piece) = (1, 60);
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
