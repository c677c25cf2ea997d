//! What hierarchies send from host to host: as little as can be, exactly, whatever the layout.

use super::*;
use crate::schedule::Instruction;

/// Layouts, as a host for each rank.
fn layouts() -> Vec<Vec<usize>> {
    vec![
        vec![0, 0, 1, 1],                            // two of two
        (0..8).map(|r| r / 2).collect(),             // four of two
        (0..12).map(|r| r / 4).collect(),            // three of four
        vec![0, 0, 0, 1, 1, 1, 1, 1],                // uneven
        vec![1, 0, 1, 1, 0, 1, 0, 1],                // uneven, interleaved
        (0..8).map(|r| r % 4).collect(),             // interleaved
        (0..5).collect(),                            // one rank each
        vec![0, 1, 1, 2, 2, 2],                      // all different
        vec![0, 1, 1, 1, 1, 1],                      // a single rank and many
        vec![2, 0, 1, 0, 2, 2, 1, 2, 0, 3, 2, 3, 2], // anything
    ]
}

/// A number of elements of which every column, piece and block of these hosts is a whole number of cache lines.
fn even(hosts: &[usize]) -> u64 {
    let layout = Layout::new(hosts);
    let shares: u64 = [2, 3, 4, 5, 6].iter().product();
    64 * shares * layout.hosts().len() as u64 * 4
}

/// Elements that each host sends to others, and messages.
fn across(name: &str, collective: Collective, call: &Call) -> (Vec<u64>, usize) {
    let algorithm = by_name(name).expect(name);
    let shapes = call.shapes(collective);
    verify(algorithm, &shapes).unwrap_or_else(|e| panic!("{name} {collective:?} {call:?}: {e}"));
    let (mut elements, mut messages) = (vec![0; shapes[0].layout.hosts().len()], 0);
    for (rank, shape) in shapes.iter().enumerate() {
        for instruction in algorithm.program(shape, rank).lanes.concat() {
            if let Instruction::Send { to, src } = instruction {
                let host = shape.layout.host_of(rank);
                if host != shape.layout.host_of(to as usize) {
                    elements[host] += src.len;
                    messages += 1;
                }
            }
        }
    }
    (elements, messages)
}

/// Each layout with one piece and with several, out of place and in place.
fn calls_of(count: impl Fn(&[usize]) -> u64) -> Vec<(Call, u64)> {
    let mut calls = Vec::new();
    for layout in layouts() {
        let hosts = Layout::new(&layout).hosts().len() as u64;
        for pieces in [1, 4] {
            let mut call = Call::new(layout.clone(), count(&layout));
            call.piece = call.count.div_ceil(pieces);
            calls.push((call.clone().in_place(), hosts));
            calls.push((call, hosts));
        }
    }
    calls
}

#[test]
fn all_reduce_sends_two_times_h_minus_1_over_h_from_each_host() {
    for (call, hosts) in calls_of(even) {
        let each = 2 * (hosts - 1) * call.count / hosts;
        for name in ["hierarchical", "hierarchical-ring", "hierarchical-halving"] {
            if name.ends_with("halving") && !hosts.is_power_of_two() {
                continue;
            }
            let (sent, _) = across(name, Collective::AllReduce, &call);
            assert_eq!(sent, vec![each; hosts as usize], "{name} {call:?}");
        }
        // Everything in every round.
        let (sent, _) = across("hierarchical-doubling", Collective::AllReduce, &call);
        assert!(sent.iter().sum::<u64>() >= (hosts - 1) * 2 * call.count, "{call:?}");
    }
}

#[test]
fn parts_cross_once_to_or_from_each_other_host() {
    for (mut call, hosts) in calls_of(|_| 600) {
        for per_rank in [None, Some((0..call.hosts.len() as u64).map(|r| r * r % 7 * 90).collect::<Vec<_>>())]
        {
            call.per_rank = per_rank;
            let layout = Layout::new(&call.hosts);
            let part = |&r: &u32| call.per_rank.as_ref().map_or(call.count, |counts| counts[r as usize]);
            let own: Vec<u64> = layout.hosts().iter().map(|ranks| ranks.iter().map(part).sum()).collect();
            let all: u64 = own.iter().sum();
            let rest: Vec<u64> = own.iter().map(|own| all - own).collect();
            let next: Vec<u64> = (0..own.len()).map(|host| rest[(host + 1) % own.len()]).collect();
            let copies: Vec<u64> = own.iter().map(|own| own * (hosts - 1)).collect();
            for name in ["hierarchical", "hierarchical-ring"] {
                let sent = across(name, Collective::ReduceScatter, &call).0;
                assert_eq!(sent, rest, "{name} {call:?}");
            }
            assert_eq!(across("hierarchical", Collective::AllGather, &call).0, copies, "{call:?}");
            assert_eq!(across("hierarchical-ring", Collective::AllGather, &call).0, next, "{call:?}");
        }
    }
}

#[test]
fn a_broadcast_leaves_each_host_once() {
    for (mut call, hosts) in calls_of(|_| 1000) {
        for root in 0..call.hosts.len() {
            call.root = root;
            let (chain, _) = across("hierarchical", Collective::Broadcast, &call);
            let host = Layout::new(&call.hosts).host_of(root);
            let last = (host + hosts as usize - 1) % hosts as usize;
            let expected = |h: usize| if h == last { 0 } else { call.count };
            assert_eq!(chain, (0..hosts as usize).map(expected).collect::<Vec<_>>(), "{call:?}");
            let (tree, _) = across("hierarchical-tree", Collective::Broadcast, &call);
            assert_eq!(tree.iter().sum::<u64>(), (hosts - 1) * call.count, "{call:?}");
        }
    }
}

#[test]
fn a_reduction_leaves_each_host_once() {
    for (mut call, hosts) in calls_of(even) {
        for root in [0, call.hosts.len() - 1] {
            call.root = root;
            let host = Layout::new(&call.hosts).host_of(root);
            let at_root = (hosts - 1) * call.count / hosts;
            let expected = |h: usize| if h == host { at_root } else { call.count };
            let (sent, _) = across("hierarchical", Collective::Reduce, &call);
            assert_eq!(sent, (0..hosts as usize).map(expected).collect::<Vec<_>>(), "{call:?}");
        }
    }
}

#[test]
fn all_to_all_sends_one_message_from_a_host_to_a_rank() {
    for (mut call, hosts) in calls_of(|_| 12) {
        call.piece = 1 << 20;
        let layout = Layout::new(&call.hosts);
        let n = call.hosts.len();
        let to_others = |ranks: &Vec<u32>| (ranks.len() * (n - ranks.len())) as u64 * call.count;
        let (sent, messages) = across("hierarchical", Collective::AllToAll, &call);
        assert_eq!(sent, layout.hosts().iter().map(to_others).collect::<Vec<_>>(), "{call:?}");
        assert_eq!(messages as u64, (hosts - 1) * n as u64, "{call:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the lengths, all hosts together send as little as possible, and none much more than its share.
    #[test]
    fn nobody_sends_more_than_a_share(call in calls(24)) {
        let layout = Layout::new(&call.hosts);
        let (hosts, n) = (layout.hosts().len() as u64, call.hosts.len() as u64);
        for name in ["hierarchical", "hierarchical-ring"] {
            let shapes = call.shapes(Collective::AllReduce);
            if hosts == 1 {
                continue;
            }
            let (sent, _) = across(name, Collective::AllReduce, &call);
            prop_assert_eq!(sent.iter().sum::<u64>(), 2 * (hosts - 1) * call.count);
            // Blocks are cut at cache lines: each may be one longer than its share.
            let pieces = call.count.div_ceil(shapes[0].piece).clamp(1, 128);
            let slack = 2 * hosts * 64 * n * pieces;
            let share = 2 * (hosts - 1) * call.count.div_ceil(hosts);
            prop_assert!(sent.iter().all(|&elements| elements <= share + slack), "{:?}", sent);
        }
    }
}

/// The known numbers of rounds: inside, across, inside.
#[test]
fn hierarchies_take_few_rounds() {
    let call = Call::new((0..32).map(|r| r / 4).collect(), 64 * 32);
    for (name, collective, chain) in [
        ("hierarchical", Collective::AllReduce, 4),
        ("hierarchical-doubling", Collective::AllReduce, 5),
        ("hierarchical-halving", Collective::AllReduce, 8),
        ("hierarchical-ring", Collective::AllReduce, 16),
        ("hierarchical", Collective::ReduceScatter, 2),
        ("hierarchical", Collective::AllGather, 2),
        ("hierarchical", Collective::Broadcast, 9),
        ("hierarchical-tree", Collective::Broadcast, 5),
        ("hierarchical", Collective::Reduce, 4),
        ("hierarchical", Collective::AllToAll, 2),
    ] {
        let algorithm = by_name(name).expect(name);
        let report = verify(algorithm, &call.shapes(collective)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(report.chain, chain, "{name} {collective:?}");
    }
}
