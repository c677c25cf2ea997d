//! Every algorithm, every collective, random shapes; what they send; and a verifier that must find broken programs.

mod broken;
mod cyclic;
mod faults;
mod hierarchy;
mod sizes;

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::schedule::{Alias, Instruction, Layout, Wait, algorithms, by_name, hazards};

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

/// What every name stands for, and whether it keeps the canonical order.
#[test]
fn each_algorithm_performs_what_it_is_for() {
    use Collective::*;
    let table: [(&str, &[Collective], bool); 13] = [
        ("oneshot", &[AllReduce], true),
        ("direct", &COLLECTIVES, true),
        ("hierarchical", &[AllReduce, ReduceScatter, AllGather, Broadcast, Reduce, AllToAll], true),
        ("hierarchical-halving", &[AllReduce], true),
        ("hierarchical-doubling", &[AllReduce], true),
        ("hierarchical-tree", &[Broadcast], true),
        ("hierarchical-ring", &[AllReduce, ReduceScatter, AllGather], false),
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

/// By comparing every write with every earlier message: nothing is missing, and nothing can be left out.
fn hazards_are_exact(shape: &Shape, rank: usize, program: &Program) {
    let all = hazards(program, shape, rank);
    for (lane, code) in program.lanes.iter().enumerate() {
        let mut sent: Vec<(Wait, Span)> = Vec::new();
        let mut waited: Vec<Wait> = Vec::new();
        for (instruction, waits) in code.iter().zip(&all[lane]) {
            let covers = |by: &Wait, message: &Wait| by.to == message.to && by.message >= message.message;
            if let Some(dst) = instruction.writes() {
                let over: Vec<Wait> =
                    sent.iter().filter(|s| shape.overlap(rank, s.1, dst)).map(|s| s.0).collect();
                let open: Vec<Wait> =
                    over.into_iter().filter(|message| !waited.iter().any(|by| covers(by, message))).collect();
                assert!(
                    open.iter().all(|message| waits.iter().any(|by| covers(by, message))),
                    "missing: {open:?}"
                );
                assert!(waits.iter().all(|wait| open.contains(wait)), "needless: {waits:?}");
                waited.extend(waits);
            } else {
                assert!(waits.is_empty());
            }
            if let Instruction::Send { to, src } = instruction {
                let message = sent.iter().filter(|(other, _)| other.to == *to).count() as u64;
                sent.push((Wait { lane, to: *to, message }, *src));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn hazards_miss_nothing_and_wait_for_nothing_needless(call in calls(10), pieces in 1..9u64) {
        let call = Call { piece: call.count.div_ceil(pieces).max(1), ..call };
        for algorithm in algorithms() {
            for collective in COLLECTIVES {
                for (rank, shape) in call.shapes(collective).iter().enumerate() {
                    if algorithm.supports(shape) {
                        hazards_are_exact(shape, rank, &algorithm.program(shape, rank));
                    }
                }
            }
        }
    }
}
