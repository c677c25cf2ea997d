//! All collectives, in place and out of place, with plain and registered buffers, on every transport.

use nd_comm::choose::{Asked, Chooser};
use nd_comm::communicator::Communicator;
use nd_comm::number::ReduceOp;
use nd_comm::schedule::{self, Collective};
use nd_tests::machines::fewer;
use nd_tests::worlds::{Kind, each, world};

const SIZES: [usize; 6] = [0, 1, 5, 1000, 9001, 70_003];

/// What rank `r` gives, at index `i`.
fn given(r: usize, i: usize) -> i64 {
    (r * 1_000_003 + i * 7) as i64
}

fn input(r: usize, len: usize) -> Vec<i64> {
    (0..len).map(|i| given(r, i)).collect()
}

fn sum(n: usize, i: usize) -> i64 {
    (0..n).map(|r| given(r, i)).sum()
}

fn sums(n: usize, from: usize, len: usize) -> Vec<i64> {
    (from..from + len).map(|i| sum(n, i)).collect()
}

/// A copy in memory that peers reach.
fn registered(comm: &Communicator, values: &[i64]) -> nd_comm::buffer::Buffer<i64> {
    let mut buffer = comm.alloc(values.len()).expect("memory");
    buffer.copy_from_slice(values);
    buffer
}

fn every_collective(comm: &Communicator, len: usize) {
    let (me, n) = (comm.rank(), comm.world_size());
    let mine = input(me, len);
    let all: Vec<i64> = (0..n).flat_map(|r| input(r, len)).collect();
    let long = input(me, len * n);
    let own = len * me..len * (me + 1);

    let mut out = vec![-1; len];
    comm.all_reduce_into(&mine, &mut out, ReduceOp::Sum).expect("all_reduce_into");
    assert_eq!(out, sums(n, 0, len));
    let mut out = registered(comm, &mine);
    comm.all_reduce(&mut out, ReduceOp::Max).expect("all_reduce");
    assert_eq!(*out, input(n - 1, len));

    let mut out = vec![-1; len];
    comm.reduce_scatter(&long, &mut out, ReduceOp::Sum).expect("reduce_scatter");
    assert_eq!(out, sums(n, len * me, len));
    let mut out = registered(comm, &long);
    comm.reduce_scatter_in_place(&mut out, ReduceOp::Sum).expect("reduce_scatter_in_place");
    assert_eq!(out[own.clone()], sums(n, len * me, len));

    let mut out = registered(comm, &vec![-1; len * n]);
    comm.all_gather(&mine, &mut out).expect("all_gather");
    assert_eq!(*out, all);
    let mut out = vec![-1; len * n];
    out[own.clone()].copy_from_slice(&mine);
    comm.all_gather_in_place(&mut out).expect("all_gather_in_place");
    assert_eq!(out, all);

    let mut out = vec![-1; len * n];
    comm.all_to_all(&long, &mut out).expect("all_to_all");
    let crossed: Vec<i64> = (0..n).flat_map(|q| own.clone().map(move |i| given(q, i))).collect();
    assert_eq!(out, crossed);
    let mut out = registered(comm, &long);
    comm.all_to_all_in_place(&mut out).expect("all_to_all_in_place");
    assert_eq!(*out, crossed);

    for root in [0, n - 1] {
        let here = me == root;
        let mut out = if here { mine.clone() } else { vec![-1; len] };
        if here {
            out = input(root, len);
        }
        comm.broadcast(&mut out, root).expect("broadcast");
        assert_eq!(out, input(root, len));

        let mut out = vec![-1; if here { len } else { 0 }];
        comm.reduce(&mine, &mut out, ReduceOp::Sum, root).expect("reduce");
        assert_eq!(out, if here { sums(n, 0, len) } else { vec![] });
        let mut out = registered(comm, &mine);
        comm.reduce_in_place(&mut out, ReduceOp::Sum, root).expect("reduce_in_place");
        assert_eq!(*out, if here { sums(n, 0, len) } else { mine.clone() });

        let mut out = vec![-1; if here { len * n } else { 0 }];
        comm.gather(&mine, &mut out, root).expect("gather");
        assert_eq!(out, if here { all.clone() } else { vec![] });
        let mut out = mine.clone();
        if here {
            out = vec![-1; len * n];
            out[own.clone()].copy_from_slice(&mine);
        }
        comm.gather_in_place(&mut out, root).expect("gather_in_place");
        assert_eq!(out, if here { all.clone() } else { mine.clone() });

        let whole = input(root, len * n);
        let mut out = vec![-1; len];
        comm.scatter(if here { &whole } else { &[] }, &mut out, root).expect("scatter");
        assert_eq!(out, whole[own.clone()]);
        let mut out = if here { whole.clone() } else { vec![-1; len] };
        comm.scatter_in_place(&mut out, root).expect("scatter_in_place");
        assert_eq!(out, if here { whole.clone() } else { whole[own.clone()].to_vec() });
    }
    comm.barrier().expect("barrier");
}

fn every_variable_collective(comm: &Communicator, len: usize) {
    let (me, n) = (comm.rank(), comm.world_size());
    // Rank 0 has nothing; the others have more and more.
    let counts: Vec<usize> = (0..n).map(|r| len * r / 2).collect();
    let starts: Vec<usize> = (0..n).map(|r| counts[..r].iter().sum()).collect();
    let total: usize = counts.iter().sum();
    let all: Vec<i64> = (0..n).flat_map(|r| input(r, counts[r])).collect();
    let mine = input(me, counts[me]);

    let mut out = vec![-1; total];
    comm.all_gather_v(&mine, &mut out, &counts).expect("all_gather_v");
    assert_eq!(out, all);
    let mut out = vec![-1; counts[me]];
    comm.reduce_scatter_v(&input(me, total), &mut out, &counts, ReduceOp::Sum).expect("reduce_scatter_v");
    assert_eq!(out, sums(n, starts[me], counts[me]));
    let root = n / 2;
    let here = me == root;
    let mut out = vec![-1; if here { total } else { 0 }];
    comm.gather_v(&mine, &mut out, &counts, root).expect("gather_v");
    assert_eq!(out, if here { all.clone() } else { vec![] });
    let whole = input(root, total);
    let mut out = vec![-1; counts[me]];
    comm.scatter_v(if here { &whole } else { &[] }, &counts, &mut out, root).expect("scatter_v");
    assert_eq!(out, whole[starts[me]..starts[me] + counts[me]]);

    // Rank r sends (r + q) % 3 * len / 2 elements to rank q.
    let count = |r: usize, q: usize| (r + q) % 3 * len / 2;
    let send_counts: Vec<usize> = (0..n).map(|q| count(me, q)).collect();
    let recv_counts: Vec<usize> = (0..n).map(|q| count(q, me)).collect();
    let send: Vec<i64> =
        (0..n).flat_map(|q| (0..count(me, q)).map(move |i| given(me * 100 + q, i))).collect();
    let expected: Vec<i64> =
        (0..n).flat_map(|q| (0..count(q, me)).map(move |i| given(q * 100 + me, i))).collect();
    let mut recv = vec![-1; expected.len()];
    comm.all_to_all_v(&send, &send_counts, &mut recv, &recv_counts).expect("all_to_all_v");
    assert_eq!(recv, expected);
}

fn sends_and_groups(comm: &Communicator, len: usize) {
    let (me, n) = (comm.rank(), comm.world_size());
    let mine = input(me, len);
    // A ring of sends and receives that would wait for each other one by one, for itself when alone.
    let (next, last) = ((me + 1) % n, (me + n - 1) % n);
    let (mut one, mut two) = (vec![-1; len], vec![-1; len]);
    let (mut reduced, mut gathered) = (mine.clone(), vec![-1; len * n]);
    comm.group(|g| {
        g.recv(&mut one, last)?;
        g.all_reduce(&mut reduced, ReduceOp::Sum)?;
        g.send(&mine, next)?;
        g.all_gather(&mine, &mut gathered)?;
        g.send(&mine, next)?;
        g.recv(&mut two, last)
    })
    .expect("group");
    assert_eq!((one, two), (input(last, len), input(last, len)));
    assert_eq!(reduced, sums(n, 0, len));
    assert_eq!(gathered, (0..n).flat_map(|r| input(r, len)).collect::<Vec<_>>());
    if n > 1 {
        let mut got = vec![-1; len];
        if me == 0 {
            comm.send(&mine, n - 1).expect("send");
        } else if me == n - 1 {
            comm.recv(&mut got, 0).expect("recv");
            assert_eq!(got, input(0, len));
        }
    }
}

fn started_calls(comm: &Communicator, len: usize) {
    let (me, n) = (comm.rank(), comm.world_size());
    let first = comm.all_reduce_start(registered(comm, &input(me, len)), ReduceOp::Sum).expect("start");
    let second = comm.all_gather_start(input(me, len), vec![-1; len * n]).expect("start");
    let mut gathering = registered(comm, &vec![-1; len * n]);
    gathering[me * len..][..len].copy_from_slice(&input(me, len));
    let gathering = comm.all_gather_in_place_start(gathering).expect("start");
    let scattering = comm.reduce_scatter_in_place_start(input(me, len * n), ReduceOp::Sum).expect("start");
    drop(comm.broadcast_start(input(0, len), 0).expect("start"));
    let mut third = input(me, len);
    comm.all_reduce(&mut third, ReduceOp::Min).expect("a blocking call after those that were started");
    assert_eq!(third, input(0, len));
    assert!(first.is_done() && second.is_done());
    let (send, recv) = second.wait().expect("wait");
    assert_eq!((send.len(), recv.len()), (len, len * n));
    assert_eq!(recv, (0..n).flat_map(|r| input(r, len)).collect::<Vec<_>>());
    assert_eq!(*gathering.wait().expect("wait"), recv);
    assert_eq!(scattering.wait().expect("wait")[me * len..][..len], sums(n, me * len, len));
    assert_eq!(*first.wait().expect("wait"), sums(n, 0, len));
}

#[test]
fn verbs_carry_every_collective() {
    let only = ["every_collective_on_every_transport", "a_group_matches", "splits_of_splits"];
    nd_tests::machines::again("verbs_carry_every_collective", &only);
}

#[test]
fn devices_of_memory_carry_every_collective() {
    let only =
        ["every_collective_on_every_transport", "a_group_matches", "splits_of_splits", "two_communicators"];
    nd_tests::mock::again_by_rails("devices_of_memory_carry_every_collective", &only);
}

#[test]
fn every_collective_on_every_transport() {
    for n in fewer(&[1, 2, 3, 5], &[3]) {
        for kind in Kind::all(n) {
            let ranks = world(&kind, n, &Chooser::default());
            each(&ranks, |comm| {
                for len in SIZES {
                    every_collective(comm, len);
                    every_variable_collective(comm, len);
                    sends_and_groups(comm, len);
                    started_calls(comm, len);
                }
            });
        }
    }
}

#[test]
fn every_algorithm_by_name() {
    for algorithm in schedule::algorithms() {
        for kind in [Kind::Local, Kind::PutOnly, Kind::Hosts(vec![0, 1, 1, 0])] {
            let chooser = Chooser { asked: vec![Asked::by_name(&[algorithm.name()])], ..Chooser::default() };
            let ranks = world(&kind, 4, &chooser);
            each(&ranks, |comm| {
                for len in SIZES {
                    every_collective(comm, len);
                    every_variable_collective(comm, len);
                }
            });
        }
    }
}

#[test]
fn a_group_matches_the_same_calls_one_by_one() {
    for kind in Kind::all(3) {
        let ranks = world(&kind, 3, &Chooser::default());
        each(&ranks, |comm| {
            let (mut a, mut b, mut c) = (vec![1i64; 9001], vec![2i64; 70_003], [comm.rank() as i64]);
            if comm.rank() == 0 {
                comm.group(|g| {
                    g.all_reduce(&mut a, ReduceOp::Sum)?;
                    g.all_reduce(&mut b, ReduceOp::Sum)?;
                    g.all_reduce(&mut c, ReduceOp::Max)
                })
                .expect("group");
            } else {
                comm.all_reduce(&mut a, ReduceOp::Sum).expect("all_reduce");
                comm.all_reduce(&mut b, ReduceOp::Sum).expect("all_reduce");
                comm.all_reduce(&mut c, ReduceOp::Max).expect("all_reduce");
            }
            assert!(a.iter().all(|&x| x == 3) && b.iter().all(|&x| x == 6) && c == [2]);
        });
    }
}

#[test]
fn splits_of_splits() {
    for kind in Kind::all(6) {
        let ranks = world(&kind, 6, &Chooser::default());
        each(&ranks, |comm| {
            let me = comm.rank();
            // Columns in reverse order, then pairs; rank 5 stays out of the second split.
            let column = comm.split((me % 2) as u64, -(me as i64)).expect("split");
            assert_eq!(column.world_size(), 3);
            assert_eq!(column.rank(), 2 - me / 2);
            let mut x = vec![me as i64; 5000];
            column.all_reduce(&mut x, ReduceOp::Sum).expect("all_reduce");
            assert_eq!(x, vec![if me % 2 == 0 { 6 } else { 9 }; 5000]);
            let rest = comm.split_optional((me != 5).then_some(9), 0).expect("split");
            assert_eq!(rest.is_none(), me == 5);
            if let Some(rest) = rest {
                assert_eq!((rest.rank(), rest.world_size()), (me, 5));
                let mut all = vec![0; 5];
                rest.all_gather(&[me as u64], &mut all).expect("all_gather");
                assert_eq!(all, [0, 1, 2, 3, 4]);
                // Memory of the parent is registered here too.
                let mut buffer = registered(comm, &vec![1; 100_000]);
                rest.all_reduce(&mut buffer, ReduceOp::Sum).expect("all_reduce");
                assert!(buffer.iter().all(|&x| x == 5));
            }
        });
    }
}

#[test]
fn two_communicators_in_two_threads_at_once() {
    for kind in Kind::all(3) {
        let ranks = world(&kind, 3, &Chooser::default());
        each(&ranks, |comm| {
            let other = comm.split(0, 0).expect("split");
            std::thread::scope(|s| {
                for comm in [comm, &other] {
                    s.spawn(move || {
                        for round in 0..200 {
                            let mut x = vec![comm.rank() as i64 + round; 1 + round as usize * 50];
                            comm.all_reduce(&mut x, ReduceOp::Sum).expect("all_reduce");
                            assert!(x.iter().all(|&x| x == 3 + 3 * round), "round {round}");
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn what_is_chosen_is_explained() {
    let ranks = world(&Kind::Local, 4, &Chooser::default());
    let data_type = nd_comm::number::DataType::F32;
    let small =
        ranks[0].explain(Collective::AllReduce, 4, data_type, Some(ReduceOp::Sum)).expect("it can be done");
    let large =
        ranks[0].explain(Collective::AllReduce, 1 << 20, data_type, Some(ReduceOp::Sum)).expect("it can");
    assert_eq!(small.transports, ["local"]);
    // Which one it is depends on the machine's cores; that it is the first of all that keep the order does not.
    for explained in [&small, &large] {
        let names: Vec<_> = explained.predicted.iter().map(|(name, _)| *name).collect();
        assert_eq!(names[0], explained.algorithm, "{explained:?}");
        assert!(["oneshot", "direct", "doubling", "halving"].iter().all(|n| names.contains(n)), "{names:?}");
        assert!(explained.predicted.iter().all(|(_, us)| us.is_finite() && *us > 0.0), "{explained:?}");
        assert!(explained.why.starts_with("predicted "), "{explained:?}");
    }
    assert_eq!(large.links.len(), 3);
}
