//! Wrong calls get a clear error that names the rank, the value and the remedy; nothing hangs, nothing is lost.

use std::time::{Duration, Instant};

use nd_comm::choose::{Asked, Chooser};
use nd_comm::communicator::Communicator;
use nd_comm::config::Config;
use nd_comm::number::ReduceOp;
use nd_comm::{Error, Result};
use nd_tests::worlds::{Kind, each, world, world_with};

/// Far above what anything here takes, far below the default deadline.
const SOON: Duration = Duration::from_secs(30);

fn text<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.expect_err("it must fail").to_string()
}

#[test]
fn wrong_arguments_are_named_and_leave_the_communicator_usable() {
    let ranks = world(&Kind::Local, 3, &Chooser::default());
    each(&ranks, |comm| {
        let me = comm.rank();
        let (short, long, mut out) = ([1f32; 4], [1f32; 10], [0f32; 4]);
        let cases: Vec<(String, &[&str])> = vec![
            (
                text(comm.reduce_scatter(&long, &mut out, ReduceOp::Sum)),
                &["10 elements", "among 3 ranks", "pad to 12", "reduce_scatter_v"],
            ),
            (text(comm.all_reduce_into(&long, &mut out, ReduceOp::Sum)), &["has 4", "needs 10"]),
            (text(comm.all_gather(&short, &mut out)), &["has 4 elements", "needs 12"]),
            (text(comm.broadcast(&mut out, 3)), &["root 3", "ranks are 0 to 2"]),
            (text(comm.send(&short, 7)), &["rank 7", "0 to 2"]),
            (text(comm.all_reduce(&mut out, ReduceOp::BitXor)), &["bxor of float", "integers"]),
            (text(comm.all_gather_v(&short, &mut out, &[1, 2])), &["counts has 2", "needs 3"]),
            (text(comm.all_gather_v(&short, &mut out, &[4, 4, 4])), &["add up to 12", "has 4"]),
            (text(comm.all_gather_v(&short, &mut out, &[usize::MAX, 2, 2])), &["more than"]),
            (text(comm.all_to_all(&long, &mut out)), &["10 elements", "all_to_all_v"]),
            (text(comm.send(&short, me)), &["to itself", "into one group"]),
        ];
        for (message, parts) in cases {
            assert!(message.starts_with(&format!("rank {me}: ")), "{message}");
            for part in parts {
                assert!(message.contains(part), "{message:?} lacks {part:?}");
            }
        }
        // A group with a wrong call performs nothing.
        let mut untouched = [me as f32];
        let group = comm.group(|g| {
            g.all_reduce(&mut untouched, ReduceOp::Sum)?;
            g.broadcast(&mut out, 9)
        });
        assert!(text(group).contains("root 9"));
        assert_eq!(untouched, [me as f32]);
        // An asynchronous call gives its buffers back.
        let returned = comm.all_gather_start(vec![1f32; 2], vec![0f32; 5]).expect_err("it must fail");
        let (send, recv) = returned.buffers.expect("given back");
        assert_eq!((send.len(), recv.len()), (2, 5));
        let mut x = [1i32];
        comm.all_reduce(&mut x, ReduceOp::Sum).expect("still usable");
        assert_eq!(x, [3]);
    });
}

#[test]
#[allow(unsafe_code)] // two views of one buffer
fn overlapping_buffers_are_refused() {
    let ranks = world(&Kind::Local, 2, &Chooser::default());
    each(&ranks, |comm| {
        let mut buffer = vec![1i32; 16];
        let ptr = buffer.as_mut_ptr();
        // SAFETY: the call is refused before either is used.
        let (a, b) =
            unsafe { (std::slice::from_raw_parts(ptr, 8), std::slice::from_raw_parts_mut(ptr.add(4), 8)) };
        let message = text(comm.all_reduce_into(a, b, ReduceOp::Sum));
        assert!(message.contains("overlap") && message.contains("in-place"), "{message}");
    });
}

#[test]
fn ranks_that_call_different_things_all_learn_who_called_what() {
    type Wrong = fn(&Communicator) -> Result<()>;
    let right: Wrong = |c| c.all_reduce(&mut vec![1f32; 1024], ReduceOp::Sum);
    let wrong: [(Wrong, &str); 5] = [
        (|c| c.all_gather(&vec![1f32; 1024], &mut vec![0f32; 3072]), "all_gather(1024 × float)"),
        (|c| c.all_reduce(&mut vec![1f32; 1000], ReduceOp::Sum), "all_reduce(1000 × float, sum)"),
        (|c| c.all_reduce(&mut vec![1f64; 1024], ReduceOp::Sum), "all_reduce(1024 × double, sum)"),
        (|c| c.all_reduce(&mut vec![1f32; 1024], ReduceOp::Max), "all_reduce(1024 × float, max)"),
        (|c| c.broadcast(&mut vec![1f32; 1024], 2), "broadcast(1024 × float, root 2)"),
    ];
    for kind in Kind::all(3) {
        for (call, name) in wrong {
            let ranks = world_with(&kind, 3, &Chooser::default(), SOON);
            let messages = each(&ranks, |comm| {
                let result = if comm.rank() == 1 { call(comm) } else { right(comm) };
                let error = result.expect_err("every rank must fail");
                assert!(matches!(error, Error::Mismatch { .. }), "{kind:?} {name}: {error}");
                // From now on nothing else works, and says why.
                assert!(matches!(comm.barrier(), Err(Error::Failed { .. })));
                error.to_string()
            });
            for message in messages {
                assert!(message.contains(&format!("rank 1 called {name}")), "{kind:?}: {message}");
                assert!(message.contains("called all_reduce(1024 × float, sum) as call 1"), "{message}");
            }
        }
    }
}

#[test]
fn sends_and_receives_of_different_lengths_fail_on_both_sides() {
    for kind in Kind::all(2) {
        let ranks = world_with(&kind, 2, &Chooser::default(), SOON);
        each(&ranks, |comm| {
            let result = match comm.rank() {
                // Long enough that the sender waits for the receiver.
                0 => comm.send(&vec![1u8; 1_000_000], 1),
                _ => comm.recv(&mut vec![0u8; 999_999], 0),
            };
            let message = text(result);
            assert!(message.contains("1000000") && message.contains("999999"), "{kind:?}: {message}");
        });
    }
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline() {
    for kind in Kind::all(3) {
        let ranks = world_with(&kind, 3, &Chooser::default(), Duration::from_millis(700));
        let start = Instant::now();
        each(&ranks, |comm| {
            if comm.rank() == 1 {
                return;
            }
            let error = comm.all_reduce(&mut [1f32; 100], ReduceOp::Sum).expect_err("rank 1 never comes");
            assert!(matches!(error, Error::Timeout { .. } | Error::PeerFailed { .. }), "{kind:?}: {error}");
            let message = error.to_string();
            assert!(message.contains("rank 1"), "{kind:?}: {message}");
        });
        assert!(start.elapsed() < SOON, "{kind:?}");
    }
}

#[test]
fn a_rank_that_never_comes_is_named_by_those_who_wait_for_others_too() {
    for name in ["oneshot", "doubling", "tree", "ring"] {
        let chooser = Chooser { asked: vec![Asked::by_name(&[name])], ..Chooser::default() };
        for kind in Kind::all(4) {
            let ranks = world_with(&kind, 4, &chooser, Duration::from_millis(400));
            each(&ranks, |comm| {
                if comm.rank() == 3 {
                    return;
                }
                let mut buffer = vec![1f32; 100_000];
                let message = text(comm.all_reduce(&mut buffer, ReduceOp::Sum));
                assert!(message.contains("rank 3"), "{name} {kind:?}: {message}");
            });
        }
    }
}

#[test]
fn a_rank_that_leaves_is_named_at_once() {
    for kind in Kind::all(3) {
        let mut ranks = world_with(&kind, 3, &Chooser::default(), 2 * SOON);
        each(&ranks, |comm| comm.barrier().expect("all are there"));
        drop(ranks.remove(1));
        let start = Instant::now();
        each(&ranks, |comm| {
            let message = text(comm.all_reduce(&mut [1f32; 100], ReduceOp::Sum));
            assert!(message.contains("rank 1"), "{kind:?}: {message}");
        });
        assert!(start.elapsed() < SOON, "{kind:?}: {:?}", start.elapsed());
    }
}

#[test]
fn dropping_a_communicator_with_a_call_that_cannot_finish_returns() {
    for kind in Kind::all(2) {
        let ranks = world_with(&kind, 2, &Chooser::default(), 10 * SOON);
        let pending = ranks[0].all_reduce_start(vec![1f32; 100_000], ReduceOp::Sum).expect("start");
        let start = Instant::now();
        drop(pending);
        drop(ranks);
        assert!(start.elapsed() < SOON, "{kind:?}: {:?}", start.elapsed());
    }
}

#[test]
#[allow(unsafe_code)] // forks
fn a_forked_child_gets_an_error_and_the_parent_goes_on() {
    let ranks = world(&Kind::Shm, 1, &Chooser::default());
    let comm = ranks[0].clone();
    let mut buffer = comm.alloc::<u64>(1 << 20).expect("memory");
    buffer.fill(7);
    let pending = comm.all_reduce_start(vec![1i32; 100], ReduceOp::Sum).expect("start");
    // SAFETY: the child calls the communicator, which fails, and exits at once.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let forked = matches!(comm.all_reduce(&mut [1i32], ReduceOp::Sum), Err(Error::Forked { rank: 0 }));
        let no_memory = matches!(comm.alloc::<u64>(1), Err(Error::Forked { rank: 0 }));
        let no_result = matches!(pending.wait(), Err(r) if matches!(r.error, Error::Forked { rank: 0 }));
        let forked = forked && no_memory && no_result;
        drop((comm, ranks, buffer));
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(if forked { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child's call must fail with Error::Forked");
    assert_eq!(pending.wait().expect("the parent's call goes on").len(), 100);
    assert!(buffer.iter().all(|&x| x == 7), "the child freed the parent's memory");
    comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("the parent goes on");
}

#[test]
fn memory_that_cannot_be_is_refused() {
    let ranks = world(&Kind::Local, 1, &Chooser::default());
    for len in [1 << 50, (1 << 61) - 1, 1 << 61, usize::MAX / 8, usize::MAX - 5000, usize::MAX] {
        let message = text(ranks[0].alloc::<u64>(len));
        assert!(message.contains("registered memory"), "{message}");
    }
}

#[test]
fn settings_that_cannot_be_followed_are_refused() {
    let with = |algorithms: &str| Config::default().with("ND_ALGO", algorithms).expect("it parses");
    let message = text(Communicator::local_with(2, &with("rung")));
    assert!(message.contains("ND_ALGO=rung") && message.contains("did you mean ring?"), "{message}");
    let message = text(Communicator::local_with(2, &with("allreduse:ring")));
    assert!(message.contains("no such collective"), "{message}");
    assert!(text(Communicator::local(0)).contains("0 ranks"));
    assert!(text(Communicator::local(1 << 20)).contains("give 1 to 4096"));
    // An algorithm that cannot perform the collective it was named for.
    let ranks = Communicator::local_with(2, &with("alltoall:ring")).expect("both names exist");
    each(&ranks, |comm| {
        let message = text(comm.all_to_all(&[1, 2], &mut [0, 0]));
        assert!(message.contains("use one of direct"), "{message}");
    });
}

#[test]
fn counts_beyond_two_to_the_31() {
    const COUNT: usize = (1 << 31) + 5;
    let ranks = world(&Kind::Local, 2, &Chooser::default());
    each(&ranks, |comm| {
        let mut buffer = comm.alloc::<i8>(COUNT).expect("address space");
        let me = comm.rank() as i8;
        for i in [0, 1 << 30, (1 << 31) - 1, 1 << 31, COUNT - 1] {
            buffer[i] = 10 + me;
        }
        comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("all_reduce");
        for i in [0, 1 << 30, (1 << 31) - 1, 1 << 31, COUNT - 1] {
            assert_eq!(buffer[i], 21, "at {i}");
        }
        assert_eq!(buffer.iter().filter(|&&x| x != 0).count(), 5);
    });
}
