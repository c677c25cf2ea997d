//! Whatever ranks disagree about is an error on all of them, at once, that names both sides: every pair of collectives,
//! types, operations, roots, counts, orders.
//!
//! "At once" is: long before any deadline. A call that only sends may have returned by then; the next one fails.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use nd_comm::choose::{Asked, Chooser};
use nd_comm::communicator::Communicator;
use nd_comm::number::{DataType, Element, F8E4M3, F8E5M2, ReduceOp};
use nd_comm::prelude::{Config, UniqueId};
use nd_comm::{Error, Result};
use nd_tests::calls::COLLECTIVES;
use nd_tests::mock;
use nd_tests::worlds::{Kind, each, world_with};

/// Nothing here may take it.
const DEADLINE: Duration = Duration::from_secs(120);
/// Who differs from all others.
const ODD: usize = 1;
/// Worlds that disagree at the same time.
const AT_ONCE: usize = 6;
/// Elements: inside a descriptor, in a slot, and where the receiver reads.
const SMALL: usize = 2;
const LARGE: usize = 20_000;

type Call<'c> = &'c (dyn Fn(&Communicator) -> Result<()> + Sync);

/// Two ways to make a call, and how each is shown.
struct Case<'c> {
    odd: Call<'c>,
    others: Call<'c>,
    shown: [String; 2],
}

/// After `before` equal calls one rank makes another call than all others. The error on every rank.
fn disagree(kind: &Kind, n: usize, before: usize, case: &Case<'_>) {
    let ranks = world_with(kind, n, &Chooser::default(), DEADLINE);
    let began = Instant::now();
    let errors = each(&ranks, |comm| {
        for _ in 0..before {
            (case.others)(comm).expect("all agree");
        }
        let call = if comm.rank() == ODD { case.odd } else { case.others };
        // Whose call only sends is told in the next.
        call(comm).and_then(|()| comm.barrier()).and_then(|()| comm.barrier()).err()
    });
    let what = format!("{kind:?}, {n} ranks, {} against {}", case.shown[0], case.shown[1]);
    for error in &errors {
        let error = error.as_ref().unwrap_or_else(|| panic!("{what}: no error: {errors:?}"));
        let text = error.to_string();
        assert!(matches!(error, Error::Mismatch { .. }), "{what}: {text}");
        let odd = format!("rank {ODD} called {}", case.shown[0]);
        assert!(text.contains(&odd) && text.contains(&format!("called {}", case.shown[1])), "{what}: {text}");
        let number = format!(" as call {}", before + 1);
        assert!(text.matches(&number).count() >= 2, "{what}: {text}");
    }
    assert!(began.elapsed() < DEADLINE / 2, "{what}: {:?}", began.elapsed());
}

/// Many at the same time: most of it is waiting.
fn at_once<C: Sync>(cases: &[C], one: impl Fn(&C) + Sync) {
    for cases in cases.chunks(AT_ONCE) {
        thread::scope(|s| cases.iter().for_each(|case| drop(s.spawn(|| one(case)))));
    }
}

fn kinds() -> Vec<(Kind, usize)> {
    let kinds = if mock::root().is_some() { [Kind::Verbs, Kind::Verbs] } else { [Kind::Shm, Kind::Tcp] };
    kinds.into_iter().flat_map(|kind| [(kind.clone(), 2), (kind, 4)]).collect()
}

#[test]
fn over_verbs_both_calls_are_named() {
    let only = ["roots_that_differ", "another_order", "variable_calls", "do_not_match", "comes_late"];
    mock::again("over_verbs_both_calls_are_named", &only);
}

#[test]
fn every_collective_against_every_other() {
    for len in [SMALL, LARGE] {
        let mut cases = Vec::new();
        for (kind, n) in kinds() {
            for odd in COLLECTIVES {
                cases.extend(
                    COLLECTIVES.iter().filter(|o| o.shown != odd.shown).map(|o| (kind.clone(), n, odd, *o)),
                );
            }
        }
        at_once(&cases, |(kind, n, odd, others)| {
            let case = Case {
                odd: &|comm| (odd.make)(comm, len),
                others: &|comm| (others.make)(comm, len),
                shown: [odd.shown.into(), others.shown.into()],
            };
            // Once as the first call, once where calls repeat.
            disagree(kind, *n, if len == SMALL { 0 } else { 3 }, &case);
        });
    }
}

/// Makes an all-reduce of elements of a type.
fn of_type<T: Element>(comm: &Communicator, len: usize) -> Result<()> {
    comm.all_reduce(&mut comm.alloc::<T>(len)?, ReduceOp::Max)
}

#[test]
fn every_type_against_every_other() {
    type Of = fn(&Communicator, usize) -> Result<()>;
    let types: [(DataType, Of); 14] = [
        (DataType::I8, of_type::<i8>),
        (DataType::U8, of_type::<u8>),
        (DataType::I16, of_type::<i16>),
        (DataType::U16, of_type::<u16>),
        (DataType::I32, of_type::<i32>),
        (DataType::U32, of_type::<u32>),
        (DataType::I64, of_type::<i64>),
        (DataType::U64, of_type::<u64>),
        (DataType::F16, of_type::<half::f16>),
        (DataType::BF16, of_type::<half::bf16>),
        (DataType::F32, of_type::<f32>),
        (DataType::F64, of_type::<f64>),
        (DataType::F8E4M3, of_type::<F8E4M3>),
        (DataType::F8E5M2, of_type::<F8E5M2>),
    ];
    let mut cases = Vec::new();
    for (i, (odd, make)) in types.into_iter().enumerate() {
        for (j, (others, with)) in types.into_iter().enumerate().filter(|(j, _)| *j != i) {
            // In turn over all worlds and lengths.
            let (kind, n) = kinds().swap_remove((i + j) % 4);
            cases.push((kind, n, (odd, make), (others, with), if i < j { SMALL } else { LARGE }));
        }
    }
    at_once(&cases, |(kind, n, odd, others, len)| {
        let shown = |t: DataType| format!("all_reduce({len} × {}, max)", t.name());
        let case = Case {
            odd: &|comm| (odd.1)(comm, *len),
            others: &|comm| (others.1)(comm, *len),
            shown: [shown(odd.0), shown(others.0)],
        };
        disagree(kind, *n, 0, &case);
    });
}

#[test]
fn every_operation_against_every_other() {
    let ops = ReduceOp::ALL;
    let mut cases = Vec::new();
    for (i, odd) in ops.iter().enumerate() {
        for (j, others) in ops.iter().enumerate().filter(|(j, _)| *j != i) {
            let (kind, n) = kinds().swap_remove((i + j) % 4);
            cases.push((kind, n, *odd, *others, (i + j) % 3));
        }
    }
    at_once(&cases, |(kind, n, odd, others, which)| {
        let make = |comm: &Communicator, op: ReduceOp| {
            let len = SMALL * comm.world_size();
            match which {
                0 => comm.all_reduce(&mut vec![1i32; len], op),
                1 => comm.reduce(&vec![1i32; len], &mut vec![1i32; len], op, 0),
                _ => comm.reduce_scatter(&vec![1i32; len], &mut [1i32; SMALL], op),
            }
        };
        let shown = |op: &ReduceOp| {
            format!("{}(", ["all_reduce", "reduce", "reduce_scatter"][*which])
                + &format!("{} × int32, {}", if *which == 2 { SMALL } else { SMALL * n }, op.name())
        };
        let case = Case {
            odd: &|comm| make(comm, *odd),
            others: &|comm| make(comm, *others),
            shown: [shown(odd), shown(others)],
        };
        disagree(kind, *n, 10, &case);
    });
}

#[test]
fn roots_that_differ() {
    type Rooted = (&'static str, fn(&Communicator, usize, usize) -> Result<()>);
    let calls: [Rooted; 6] = [
        ("broadcast(", |c, n, root| c.broadcast(&mut vec![1f32; n], root)),
        ("reduce(", |c, n, root| c.reduce(&vec![1f32; n], &mut vec![1f32; n], ReduceOp::Sum, root)),
        ("gather(", |c, n, root| c.gather(&vec![1f32; n], &mut vec![1f32; n * c.world_size()], root)),
        ("scatter(", |c, n, root| c.scatter(&vec![1f32; n * c.world_size()], &mut vec![1f32; n], root)),
        ("gather_v(", |c, n, root| {
            let counts = vec![n; c.world_size()];
            c.gather_v(&vec![1f32; n], &mut vec![1f32; n * c.world_size()], &counts, root)
        }),
        ("scatter_v(", |c, n, root| {
            let counts = vec![n; c.world_size()];
            c.scatter_v(&vec![1f32; n * c.world_size()], &counts, &mut vec![1f32; n], root)
        }),
    ];
    let mut cases = Vec::new();
    for (kind, n) in kinds() {
        for call in calls {
            for len in [SMALL, LARGE] {
                let pairs = (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b);
                cases.extend(pairs.map(|(odd, others)| (kind.clone(), n, call, len, odd, others)));
            }
        }
    }
    at_once(&cases, |(kind, n, (name, make), len, odd, others)| {
        // The v-variants' roots are the same word in another place.
        let shown = |root: &usize| {
            if name.contains("_v") {
                (*name).to_owned()
            } else {
                format!("{name}{len} × float{}, root {root})", if *name == "reduce(" { ", sum" } else { "" })
            }
        };
        let case = Case {
            odd: &|comm| make(comm, *len, *odd),
            others: &|comm| make(comm, *len, *others),
            shown: [shown(odd), shown(others)],
        };
        disagree(kind, *n, 0, &case);
    });
}

#[test]
fn counts_that_differ() {
    // Nothing, one more, and so many that they travel in another way.
    let pairs =
        [(SMALL, SMALL + 1), (SMALL, LARGE), (LARGE, SMALL), (LARGE, LARGE + 1), (0, SMALL), (SMALL, 0)];
    let mut cases = Vec::new();
    // A barrier has no count, and of v-variants with a root only that knows all.
    let counted = |c: &&nd_tests::calls::Named| {
        !["barrier(", "gather_v(", "scatter_v(", "all_to_all_v("].contains(&c.shown)
    };
    for (i, call) in COLLECTIVES.iter().filter(counted).enumerate() {
        for (j, pair) in pairs.into_iter().enumerate() {
            for k in 0..2 {
                let (kind, n) = kinds().swap_remove((i + j + 2 * k) % 4);
                cases.push((kind, n, *call, pair, if j % 2 == 0 { 0 } else { 10 }));
            }
        }
    }
    at_once(&cases, |(kind, n, call, (odd, others), before)| {
        let case = Case {
            odd: &|comm| (call.make)(comm, *odd),
            others: &|comm| (call.make)(comm, *others),
            shown: [call.shown.into(), call.shown.into()],
        };
        disagree(kind, *n, *before, &case);
    });
}

#[test]
fn two_calls_in_another_order() {
    let pairs = [(0, 3), (5, 6), (7, 9), (13, 0), (11, 2)];
    let cases: Vec<_> = kinds().into_iter().flat_map(|w| pairs.map(|pair| (w.clone(), pair))).collect();
    at_once(&cases, |((kind, n), (first, second))| {
        let (first, second) = (COLLECTIVES[*first], COLLECTIVES[*second]);
        let both = |comm: &Communicator, first: nd_tests::calls::Named, second: nd_tests::calls::Named| {
            (first.make)(comm, SMALL)?;
            (second.make)(comm, SMALL)
        };
        let case = Case {
            odd: &|comm| both(comm, second, first),
            others: &|comm| both(comm, first, second),
            shown: [second.shown.into(), first.shown.into()],
        };
        disagree(kind, *n, 0, &case);
    });
}

/// A call of no elements needs nobody: whoever makes it is done at once, and may do something else then.
#[test]
fn a_call_of_nothing_against_a_barrier() {
    fn nothing(comm: &Communicator) -> Result<()> {
        comm.all_reduce::<f32>(&mut [], ReduceOp::Sum)
    }
    let shown = || ["all_reduce(0 × float, sum)".to_string(), "barrier()".to_string()];
    let cases: Vec<_> =
        kinds().into_iter().flat_map(|world| [0, 3].map(|before| (world.clone(), before))).collect();
    at_once(&cases, |((kind, n), before)| {
        disagree(kind, *n, *before, &Case { odd: &nothing, others: &Communicator::barrier, shown: shown() });
        disagree(
            kind,
            *n,
            *before,
            &Case {
                odd: &Communicator::barrier,
                others: &nothing,
                shown: {
                    let [a, b] = shown();
                    [b, a]
                },
            },
        );
    });
    // Where memory is mapped nobody needs to say anything: the odd one is in no call while the others wait.
    for n in [2, 4] {
        let ranks = world_with(&Kind::Shm, n, &Chooser::default(), DEADLINE);
        let told = Barrier::new(n);
        let errors = each(&ranks, |comm| {
            let first = if comm.rank() == ODD { nothing(comm).err() } else { comm.barrier().err() };
            told.wait();
            first.or_else(|| comm.barrier().err())
        });
        for error in errors.into_iter().map(|e| e.expect("they disagree").to_string()) {
            let odd = format!("rank {ODD} called all_reduce(0 × float, sum) as call 1");
            assert!(error.contains(&odd) && error.contains("called barrier() as call 1"), "{error}");
        }
    }
}

/// What a split or a grow gathers is no call of the program, although it may look like one.
#[test]
fn a_split_or_grow_against_the_same_gathering() {
    fn gathers(comm: &Communicator, len: usize) -> Result<()> {
        comm.all_gather(&vec![1u64; len], &mut vec![0; len * comm.world_size()])
    }
    let id = UniqueId::create(&Config::default()).expect("an id");
    let splits = |comm: &Communicator| comm.split(0, 0).map(drop);
    let grows = |comm: &Communicator| comm.grow(&id, comm.world_size() + 1).map(drop);
    let shown = |len: usize| format!("all_gather({len} × uint64)");
    at_once(&kinds(), |(kind, n)| {
        let (three, two) = (|comm: &Communicator| gathers(comm, 3), |comm: &Communicator| gathers(comm, 2));
        let case = Case { odd: &splits, others: &three, shown: [format!("split's {}", shown(3)), shown(3)] };
        disagree(kind, *n, 0, &case);
        let case = Case { odd: &grows, others: &two, shown: [format!("grow's {}", shown(2)), shown(2)] };
        disagree(kind, *n, 3, &case);
    });
}

/// What every rank is told when counts of v-variants or lengths disagree: not by stamps, so not as [`Error::Mismatch`].
fn lengths(kind: &Kind, n: usize, call: Call<'_>, parts: &[&str]) {
    let ranks = world_with(kind, n, &Chooser::default(), DEADLINE);
    let began = Instant::now();
    let errors =
        each(&ranks, |comm| call(comm).and_then(|()| comm.barrier()).and_then(|()| comm.barrier()).err());
    for error in &errors {
        let error = error.as_ref().unwrap_or_else(|| panic!("{kind:?}, {parts:?}: no error: {errors:?}"));
        assert!(!matches!(error, Error::Timeout { .. }), "{kind:?}: {error}");
        let text = error.to_string();
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{kind:?}, {n} ranks: {text} lacks some of {parts:?}"
        );
    }
    assert!(began.elapsed() < DEADLINE / 2, "{kind:?}: {:?}", began.elapsed());
}

#[test]
fn counts_of_variable_calls_that_disagree() {
    // Elements that rank 1 sends to rank 0, and that rank 0 expects of it.
    let pairs =
        [(3usize, 4usize), (LARGE, LARGE + 1), (SMALL, LARGE), (0, 5), (5, 0), (0, LARGE), (LARGE, 0)];
    let mut cases = Vec::new();
    for world in kinds() {
        cases.extend(pairs.into_iter().flat_map(|pair| [0, 1, 2].map(|which| (world.clone(), pair, which))));
    }
    at_once(&cases, |((kind, n), (sent, expected), which)| {
        let counts = |comm: &Communicator, from: usize, to: usize, seen_by: usize| match (from, to) {
            (1, 0) if seen_by == 1 => *sent,
            (1, 0) => *expected,
            _ if comm.world_size() > 0 => 1,
            _ => 0,
        };
        let call = |comm: &Communicator| {
            let (me, n) = (comm.rank(), comm.world_size());
            match which {
                0 => {
                    let send: Vec<usize> = (0..n).map(|to| counts(comm, me, to, me)).collect();
                    let recv: Vec<usize> = (0..n).map(|from| counts(comm, from, me, me)).collect();
                    let mut to = vec![0u8; recv.iter().sum()];
                    comm.all_to_all_v(&vec![1u8; send.iter().sum()], &send, &mut to, &recv)
                }
                1 => {
                    let all: Vec<usize> = (0..n).map(|from| counts(comm, from, 0, me)).collect();
                    let mut to = vec![0u8; if me == 0 { all.iter().sum() } else { 0 }];
                    comm.gather_v(&vec![1u8; all[me]], &mut to, &all, 0)
                }
                // The other way around: the root gives what the other expects.
                _ => {
                    let all: Vec<usize> =
                        (0..n).map(|to| if to == 0 { counts(comm, 1, 0, me) } else { 1 }).collect();
                    let from = vec![1u8; if me == 1 { all.iter().sum() } else { 0 }];
                    comm.scatter_v(&from, &all, &mut vec![0u8; all[me]], 1)
                }
            }
        };
        let name = ["all_to_all_v(", "gather_v(", "scatter_v("][*which];
        let counts = format!("{sent} against {expected}");
        println!("{name} {counts}");
        lengths(kind, *n, &call, &[name, "rank 0", "rank 1"]);
    });
}

#[test]
fn sends_and_receives_that_do_not_match() {
    let cases: Vec<_> = kinds().into_iter().flat_map(|w| (0..4).map(move |i| (w.clone(), i))).collect();
    at_once(&cases, |((kind, n), which)| {
        let large = [SMALL, LARGE][which / 2];
        let (shown, call): (&str, Call<'_>) = match which % 2 {
            0 => ("int32", &|comm| match comm.rank() {
                0 => comm.send(&vec![1f32; large], 1),
                1 => comm.recv(&mut vec![0i32; large], 0),
                _ => Ok(()),
            }),
            _ => ("float", &|comm| match comm.rank() {
                0 => comm.send(&vec![1f32; large], 1),
                1 => comm.recv(&mut vec![0f32; large + 1], 0),
                _ => Ok(()),
            }),
        };
        lengths(kind, *n, call, &["rank 0", "rank 1", shown, "send/recv("]);
    });
}

/// The others are done with the call, or with their part of it, and wait in the next one meanwhile.
#[test]
fn a_rank_that_comes_late_is_no_disagreement() {
    let mut cases = Vec::new();
    for kind in [Kind::Local, Kind::PutOnly, Kind::Shm, Kind::Tcp] {
        cases.extend(COLLECTIVES.iter().flat_map(|call| [0, 2].map(|late| (kind.clone(), *call, late))));
    }
    at_once(&cases, |(kind, call, late)| {
        each(&world_with(kind, 4, &Chooser::default(), DEADLINE), |comm| {
            comm.barrier().expect("all are there");
            if comm.rank() == *late {
                thread::sleep(Duration::from_millis(900));
            }
            let result = (call.make)(comm, 70_000).and_then(|()| comm.barrier());
            result.unwrap_or_else(|e| panic!("{kind:?}, {}, rank {late} is late: {e}", call.shown));
        });
    });
}

#[test]
fn in_place_and_out_of_place_match() {
    for (kind, n) in kinds() {
        let ranks = world_with(&kind, n, &Chooser::default(), DEADLINE);
        each(&ranks, |comm| {
            for len in [1, 300, 3000, LARGE, 400_000] {
                let (me, ones, odd) = (comm.rank(), vec![1f32; len], comm.rank() == ODD);
                let all = vec![1f32; len * n];
                let mut sum = ones.clone();
                match odd {
                    true => comm.all_reduce(&mut sum, ReduceOp::Sum).expect("they match"),
                    false => comm.all_reduce_into(&ones, &mut sum, ReduceOp::Sum).expect("they match"),
                }
                assert!(sum.iter().all(|x| *x == n as f32));
                let (mut whole, mut part) = (all.clone(), vec![0f32; len]);
                match odd {
                    true => {
                        comm.reduce_scatter_in_place(&mut whole, ReduceOp::Sum).expect("they match");
                        part.copy_from_slice(&whole[len * me..len * (me + 1)]);
                    }
                    false => comm.reduce_scatter(&all, &mut part, ReduceOp::Sum).expect("they match"),
                }
                assert!(part.iter().all(|x| *x == n as f32));
                let mut gathered = all.clone();
                match odd {
                    true => comm.all_gather_in_place(&mut gathered).expect("they match"),
                    false => comm.all_gather(&ones, &mut gathered).expect("they match"),
                }
                assert!(gathered.iter().all(|x| *x == 1.0));
                let mut swapped = all.clone();
                match odd {
                    true => comm.all_to_all_in_place(&mut swapped).expect("they match"),
                    false => comm.all_to_all(&all, &mut swapped).expect("they match"),
                }
                assert!(swapped.iter().all(|x| *x == 1.0));
                let mut reduced = ones.clone();
                match odd {
                    true => comm.reduce_in_place(&mut reduced, ReduceOp::Sum, ODD).expect("they match"),
                    false => comm.reduce(&ones, &mut [], ReduceOp::Sum, ODD).expect("they match"),
                }
                assert!(!odd || reduced.iter().all(|x| *x == n as f32));
                // Memory that peers reach beside memory that they do not.
                let mut registered = comm.alloc::<f32>(len).expect("memory");
                registered.fill(1.0);
                let mut plain = ones.clone();
                let buffer = if odd { &mut registered[..] } else { &mut plain[..] };
                comm.all_reduce(buffer, ReduceOp::Sum).expect("they match");
                assert!(buffer.iter().all(|x| *x == n as f32));
            }
        });
    }
}

#[test]
fn algorithms_that_differ_are_named() {
    for (kind, n) in kinds() {
        let with = |name| Chooser { asked: vec![Asked::by_name(&[name])], ..Chooser::default() };
        let mut ranks = Vec::new();
        // Two worlds, from which each rank takes its own: the odd one was told otherwise.
        let secret = nd_transport::secure::Secret::random();
        for (rank, endpoint) in nd_tests::worlds::endpoints(&kind, n).into_iter().enumerate() {
            let chooser = with(if rank == ODD { "doubling" } else { "direct" });
            ranks
                .push(Communicator::on(endpoint, secret.clone(), chooser, DEADLINE).expect("a communicator"));
        }
        let errors = each(&ranks, |comm| {
            let first = comm.all_reduce(&mut vec![1f32; 3000], ReduceOp::Sum);
            first.and_then(|()| comm.barrier()).and_then(|()| comm.barrier()).expect_err("they disagree")
        });
        for error in errors {
            let text = error.to_string();
            let both = ["rank 1 called", "to be done by doubling", "to be done by direct"];
            assert!(both.iter().all(|part| text.contains(part)), "{kind:?}: {text}");
        }
    }
}
