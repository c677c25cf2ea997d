//! Several threads, several communicators, panics and forks: whatever comes in an order that cannot work ends with an error
//! that says so.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nd_comm::Error;
use nd_comm::choose::Chooser;
use nd_comm::communicator::Communicator;
use nd_comm::config::Config;
use nd_comm::number::ReduceOp;
use nd_comm::recorder::{Dump, diagnose};
use nd_tests::calls::COLLECTIVES;
use nd_tests::worlds::{Kind, each, world, world_with};

const SHORT: Duration = Duration::from_millis(600);
/// Far above what anything here takes.
const SOON: Duration = Duration::from_secs(60);

fn kinds(n: usize) -> [Kind; 4] {
    [Kind::Local, Kind::Shm, Kind::Tcp, Kind::Hosts((0..n).map(|rank| rank * 2 / n).collect())]
}

#[test]
fn a_communicator_for_each_of_several_threads() {
    for kind in kinds(4) {
        each(&world(&kind, 4, &Chooser::default()), |comm| {
            let parts: Vec<_> = (0..4).map(|_| comm.split(0, 0).expect("split")).collect();
            thread::scope(|s| {
                for (thread, part) in parts.iter().enumerate() {
                    // Each thread makes the calls in another order.
                    s.spawn(move || {
                        for round in 0..6 {
                            let call = COLLECTIVES[(thread * 3 + round) % COLLECTIVES.len()];
                            let len = [1, 300, 20_000][round % 3];
                            (call.make)(part, len).unwrap_or_else(|e| panic!("{}: {e}", call.shown));
                            let mut sum = vec![thread as i64; len];
                            part.all_reduce(&mut sum, ReduceOp::Sum).expect("all_reduce");
                            assert!(sum.iter().all(|x| *x == 4 * thread as i64));
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn calls_of_many_threads_on_one_communicator_take_their_turns() {
    for kind in kinds(2) {
        each(&world(&kind, 2, &Chooser::default()), |comm| {
            thread::scope(|s| {
                for _ in 0..4 {
                    s.spawn(|| {
                        for len in [1, 1000, 30_000].repeat(20) {
                            // Which thread's call meets which thread's is open; that each is whole is not.
                            let mut sum = vec![1i32; 30_000];
                            comm.all_reduce(&mut sum, ReduceOp::Sum).expect("all_reduce");
                            assert!(sum[..len].iter().all(|x| *x == 2));
                            let pending = comm.all_reduce_start(vec![1i32; 30_000], ReduceOp::Sum);
                            let sum = pending.expect("it starts").wait().expect("all_reduce");
                            assert!(sum.iter().all(|x| *x == 2));
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn threads_that_come_in_different_orders_are_told() {
    for kind in kinds(2) {
        let ranks = world_with(&kind, 2, &Chooser::default(), SOON);
        let errors = each(&ranks, |comm| {
            let errors = Mutex::new(Vec::new());
            let one = || comm.all_reduce(&mut [1f32; 3], ReduceOp::Sum);
            let other = || comm.broadcast(&mut [1f32; 3], 0).and_then(|()| comm.barrier());
            let turn = Barrier::new(2);
            thread::scope(|s| {
                s.spawn(|| {
                    // On rank 0 this thread comes first, on rank 1 the other.
                    if comm.rank() == 1 {
                        turn.wait();
                    }
                    errors.lock().expect("no panic").extend(one().err());
                    if comm.rank() == 0 {
                        turn.wait();
                    }
                });
                s.spawn(|| {
                    if comm.rank() == 0 {
                        turn.wait();
                    }
                    errors.lock().expect("no panic").extend(other().err());
                    if comm.rank() == 1 {
                        turn.wait();
                    }
                });
            });
            errors.into_inner().expect("no panic")
        });
        for errors in errors {
            assert!(errors.iter().any(|e| matches!(e, Error::Mismatch { .. })), "{kind:?}: {errors:?}");
            assert!(
                errors.iter().all(|e| matches!(e, Error::Mismatch { .. } | Error::Failed { .. })),
                "{kind:?}: {errors:?}"
            );
        }
    }
}

/// Each rank calls on one of two communicators that the other is not in, and then on the other one.
fn opposite_orders(what: &str, ranks: &[Communicator], dumps: Option<&Path>) {
    let began = Instant::now();
    let gate = Barrier::new(2);
    each(ranks, |comm| {
        let (x, y) = (comm.split(0, 0).expect("split"), comm.split(0, 0).expect("split"));
        let (first, second) = if comm.rank() == 0 { (&x, &y) } else { (&y, &x) };
        let call = |comm: &Communicator| comm.all_reduce(&mut [1f32; 9], ReduceOp::Sum);
        let error = call(first).expect_err("the other does not come");
        let Error::Timeout { standstill, .. } = &error else { panic!("{what}: {error}") };
        let missing: Vec<usize> = standstill.missing.iter().map(|m| m.rank).collect();
        assert_eq!(missing, [1 - comm.rank()], "{what}: {error}");
        assert!(error.to_string().contains("all_reduce(9 × float, sum) as call 1"), "{what}: {error}");
        for (name, part) in [("x", &x), ("y", &y)] {
            let path = dumps.map(|folder| folder.join(format!("{name}{}.json", comm.rank())));
            path.map_or(Ok(()), |path| part.dump_recorder(path)).expect("a file");
        }
        gate.wait();
        // The other one was not called: it is told what became of it.
        let late = call(second).and_then(|()| second.barrier());
        assert!(matches!(late, Err(Error::Timeout { told_by: Some(_), .. })), "{what}: {late:?}");
    });
    assert!(began.elapsed() < SOON, "{what}: {:?}", began.elapsed());
}

#[test]
fn two_communicators_in_opposite_orders_fail_at_the_deadline() {
    for kind in kinds(2) {
        opposite_orders(&format!("{kind:?}"), &world_with(&kind, 2, &Chooser::default(), SHORT), None);
    }
}

#[test]
fn the_recorders_of_both_tell_that_the_orders_differ() {
    let dumps = tempfile::tempdir().expect("a folder");
    let config = Config::default().with_timeout(SHORT);
    let ranks = Communicator::local_with(2, &config).expect("communicators");
    opposite_orders("local", &ranks, Some(dumps.path()));
    let files = std::fs::read_dir(dumps.path()).expect("a folder").flatten();
    let read = |path: PathBuf| Dump::parse(&std::fs::read(path).expect("a file")).expect("a dump");
    let found = diagnose(&files.map(|file| read(file.path())).collect::<Vec<_>>());
    let texts: Vec<&str> = found.iter().flat_map(|d| &d.findings).map(|f| &f.text[..]).collect();
    assert!(texts.iter().any(|text| text.contains("different orders")), "{texts:?}");
}

#[test]
fn a_panic_beside_a_call_leaves_nobody_waiting() {
    for kind in kinds(2) {
        let mut ranks = world_with(&kind, 2, &Chooser::default(), 10 * SOON);
        let second = ranks.pop().expect("two");
        let began = Instant::now();
        thread::scope(|s| {
            s.spawn(|| {
                let comm = second;
                let pending = comm.all_reduce_start(vec![1f32; 100_000], ReduceOp::Sum).expect("it starts");
                // Unwinding drops the call, and the communicator with it.
                let panicked = catch_unwind(AssertUnwindSafe(move || {
                    let _both = (pending, comm);
                    panic!("on purpose");
                }));
                assert!(panicked.is_err());
            });
            // Either the call was done, or the rank that left is named.
            let first = ranks[0].all_reduce(&mut vec![1f32; 100_000], ReduceOp::Sum);
            let error = first.and_then(|()| ranks[0].barrier()).expect_err("rank 1 is gone");
            assert!(error.to_string().contains("rank 1"), "{kind:?}: {error}");
        });
        assert!(began.elapsed() < SOON, "{kind:?}: {:?}", began.elapsed());
    }
}

#[test]
fn a_panic_while_calls_are_collected_performs_none_of_them() {
    each(&world(&Kind::Shm, 2, &Chooser::default()), |comm| {
        let mut one = [1f32; 4];
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            comm.group(|g| {
                g.all_reduce(&mut one, ReduceOp::Sum)?;
                if comm.rank() < 2 {
                    panic!("on purpose");
                }
                Ok(())
            })
        }));
        assert!(panicked.is_err());
        let mut two = [1f32; 4];
        comm.all_reduce(&mut two, ReduceOp::Sum).expect("still usable");
        assert_eq!((one, two), ([1.0; 4], [2.0; 4]));
    });
}

#[test]
#[allow(unsafe_code)] // forks
fn the_parent_goes_on_after_a_fork_and_the_child_gets_errors() {
    for kind in kinds(2) {
        let ranks = world(&kind, 2, &Chooser::default());
        let calls = |comm: &Communicator| {
            for len in [1, 5000, 100_000] {
                let mut sum = vec![1i32; len];
                comm.all_reduce(&mut sum, ReduceOp::Sum).expect("the parent goes on");
                assert!(sum.iter().all(|x| *x == 2));
            }
        };
        each(&ranks, calls);
        // SAFETY: the child makes calls that fail at once, and ends without running the parent's exit handlers.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork failed");
        if child == 0 {
            let forked = |r: Result<(), Error>| matches!(r, Err(Error::Forked { .. }));
            let all = ranks.iter().all(|comm| {
                forked(comm.barrier())
                    && forked(comm.with_timeout(SHORT).all_reduce(&mut [1f32], ReduceOp::Sum))
                    && forked(comm.split(0, 0).map(drop))
                    && forked(comm.group(|_| Ok(())))
            });
            drop(ranks);
            // SAFETY: as above.
            unsafe { libc::_exit(if all { 0 } else { 1 }) };
        }
        each(&ranks, calls);
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "{kind:?}: the child's calls must fail with Error::Forked");
        each(&ranks, calls);
    }
}
