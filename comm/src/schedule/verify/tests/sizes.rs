//! How many messages, elements and rounds: the known costs of the algorithms.

use super::*;
use crate::schedule::Instruction;

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

/// A program takes time that grows with its own length, not with the number of ranks: the cost model asks for all.
#[test]
fn a_hundred_thousand_ranks_can_be_planned() {
    let n = 100_000;
    let call = Call::new((0..n).map(|r| r / 8).collect(), 1 << 20);
    for (name, collective, edges) in [
        ("tree", Collective::Broadcast, 1),
        ("dbtree", Collective::AllReduce, 4),
        ("tree", Collective::Reduce, 1),
    ] {
        let algorithm = by_name(name).expect(name);
        let layout = Arc::new(Layout::new(&call.hosts));
        let counts = Counts::Equal(call.count);
        let shape = Shape { collective, counts, root: 77, alias: Alias::None, layout, piece: u64::MAX };
        let sends = |rank| {
            let code = algorithm.program(&shape, rank).lanes.concat();
            code.iter().filter(|i| matches!(i, Instruction::Send { .. })).count()
        };
        assert_eq!((0..n).map(sends).sum::<usize>(), edges * (n - 1), "{name} {collective:?}");
    }
}

/// The same where a rank exchanges with all hosts: for some ranks.
#[test]
fn hierarchies_of_a_hundred_thousand_ranks_can_be_planned() {
    let (hosts, each) = (12_500, 8);
    let call = Call::new((0..hosts * each).map(|r| r / each).collect(), 1 << 28);
    let layout = Arc::new(Layout::new(&call.hosts));
    for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Reduce] {
        for algorithm in algorithms().iter().filter(|a| a.name().starts_with("hierarchical")) {
            let counts = Counts::Equal(call.count);
            let shape = Shape {
                collective,
                counts,
                root: 77,
                alias: Alias::None,
                layout: layout.clone(),
                piece: 1 << 16,
            };
            if !algorithm.supports(&shape) {
                continue;
            }
            for rank in [0, 77, 50_000, hosts * each - 1] {
                let program = algorithm.program(&shape, rank);
                let instructions: usize = program.lanes.iter().map(Vec::len).sum();
                let most = 4096 + 6 * hosts + 4 * each;
                assert!(instructions <= most, "{} {collective:?} {rank}: {instructions}", algorithm.name());
            }
        }
    }
}
