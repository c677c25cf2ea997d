//! When the time for a call is up, every rank that is alive tells the same: which call it was, who had entered it, who had
//! not, and what those did last.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use nd_comm::choose::Chooser;
use nd_comm::communicator::Communicator;
use nd_comm::exec::standstill::{Is, Standstill};
use nd_comm::number::ReduceOp;
use nd_comm::{Error, Result};
use nd_tests::calls::{COLLECTIVES, FORMS, Named, SINK, SOURCE};
use nd_tests::mock;
use nd_tests::worlds::{Kind, each, world, world_with};

/// Who does not come: the root of calls that spread something.
const SLEEPER: usize = SOURCE;
const SHORT: Duration = Duration::from_millis(600);
const LONG: Duration = Duration::from_secs(300);
/// Far above what anything here takes, far below the long deadline.
const SOON: Duration = Duration::from_secs(60);
/// Worlds that wait at the same time.
const AT_ONCE: usize = 6;

fn kinds(n: usize) -> Vec<Kind> {
    if mock::root().is_some() {
        return vec![Kind::Verbs];
    }
    vec![Kind::Shm, Kind::Tcp, Kind::Hosts((0..n).map(|rank| rank * 2 / n).collect())]
}

#[test]
fn over_verbs_all_are_told_the_same() {
    mock::again(
        "over_verbs_all_are_told_the_same",
        &["worlds_of_two", "comes_late", "name_the_one", "two_that_wait"],
    );
}

/// What a rank is told at last: whoever has done its part in a call goes on to the next.
fn told(comm: &Communicator, first: impl FnOnce(&Communicator) -> Result<()>) -> (Standstill, String) {
    let error = first(comm).and_then(|()| comm.barrier()).expect_err("not all come");
    let Error::Timeout { rank, standstill, .. } = &error else { panic!("{error}") };
    assert_eq!(*rank, comm.rank());
    let text = error.to_string();
    let (_, story) = text.split_once(": ").expect("the rank comes first");
    (*standstill.clone(), story.to_owned())
}

/// All ranks but one make the call; the one comes when all others have been told. All must be told the same.
fn one_sleeps(kind: &Kind, n: usize, call: &Named, len: usize) {
    let what = format!("{kind:?}, {n} ranks, {}{len})", call.shown);
    let ranks = world(kind, n, &Chooser::default());
    let gate = Barrier::new(n);
    let told = each(&ranks, |comm| {
        let comm = comm.with_timeout(if comm.rank() == SINK { SHORT } else { LONG });
        comm.barrier().expect("all are there");
        if comm.rank() == SLEEPER {
            gate.wait();
        }
        let told = told(&comm, |comm| (call.make)(comm, len));
        if comm.rank() != SLEEPER {
            gate.wait();
        }
        told
    });
    let (first, story) = &told[0];
    for (rank, (standstill, text)) in told.iter().enumerate() {
        assert_eq!(standstill, first, "{what}: rank {rank} is told {text}, rank 0 {story}");
        assert_eq!(text, story, "{what}");
    }
    let shown = first.call.to_string();
    assert!(shown.starts_with(call.shown) && shown.ends_with(" as call 2"), "{what}: {story}");
    assert!(story.starts_with(&format!("{shown} did not finish within 0.6 s; ")), "{what}: {story}");
    assert_eq!(first.missing.len(), 1, "{what}: {story}");
    let missing = first.missing[0];
    assert_eq!((missing.rank, missing.is), (SLEEPER, Is::Absent), "{what}: {story}");
    let last = missing.last.expect("a barrier").to_string();
    assert_eq!(last, "barrier() as call 1", "{what}: {story}");
    // Where its memory is mapped it is seen that it has finished it.
    assert!(missing.finished || *kind != Kind::Shm, "{what}: {story}");
    let others: Vec<usize> = (0..n).filter(|rank| *rank != SLEEPER).collect();
    if call.needs_all {
        assert_eq!(first.entered, others, "{what}: {story}");
    }
    assert!(
        first.entered.iter().all(|rank| others.contains(rank)) && first.entered.contains(&SINK),
        "{story}"
    );
    for name in ["(", "pid "] {
        assert!(story.contains(&format!("rank {SLEEPER} ")) && story.contains(name), "{what}: {story}");
    }
}

fn at_once(cases: Vec<(Kind, usize, Named, usize)>) {
    for cases in cases.chunks(AT_ONCE) {
        thread::scope(|s| {
            for (kind, n, call, len) in cases {
                s.spawn(move || one_sleeps(kind, *n, call, *len));
            }
        });
    }
}

#[test]
fn all_are_told_the_same_of_one_that_sleeps_in_any_call() {
    let began = Instant::now();
    let calls = || COLLECTIVES.iter().chain(&FORMS);
    let of = |kind: &Kind, n, len| calls().map(|call| (kind.clone(), n, *call, len)).collect::<Vec<_>>();
    // Inside a descriptor, and where the receiver reads.
    at_once(kinds(4).iter().flat_map(|kind| [of(kind, 4, 1), of(kind, 4, 50_000)].concat()).collect());
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
}

#[test]
fn all_are_told_the_same_in_worlds_of_two_and_eight() {
    for n in [2, 8] {
        let calls = [COLLECTIVES[0], COLLECTIVES[5], COLLECTIVES[7], COLLECTIVES[13]];
        let of = |kind: &Kind| calls.map(|call| (kind.clone(), n, call, 3000));
        at_once(kinds(n).iter().flat_map(of).collect());
    }
}

/// Whoever comes when the time is up for the others may find all that it needs; its call has failed nevertheless.
#[test]
fn who_comes_late_is_told_in_that_call() {
    for (call, len) in COLLECTIVES.iter().filter(|c| c.needs_all).flat_map(|c| [(c, 1), (c, 50_000)]) {
        let ranks = world(&Kind::Shm, 3, &Chooser::default());
        let gate = Barrier::new(3);
        let told = each(&ranks, |comm| {
            let comm = comm.with_timeout(if comm.rank() == SINK { SHORT } else { LONG });
            comm.barrier().expect("all are there");
            if comm.rank() == SLEEPER {
                gate.wait();
            }
            let told = (call.make)(&comm, len);
            if comm.rank() != SLEEPER {
                gate.wait();
            }
            told.map_err(|e| e.to_string())
        });
        for (rank, told) in told.iter().enumerate() {
            let told =
                told.as_ref().expect_err(&format!("{}{len}): rank {rank} was told nothing", call.shown));
            assert!(
                told.contains("did not finish within 0.6 s"),
                "{}{len}): rank {rank}: {told}",
                call.shown
            );
        }
    }
}

/// A call, and a word of the error that it is to end with.
type Case = (fn(&Communicator) -> Result<()>, &'static str);

#[test]
fn sends_and_receives_name_the_one_that_does_not_come() {
    let cases: [Case; 2] = [
        (|c| c.send(&vec![1u8; 1 << 20], SLEEPER), "send(1048576 × uint8 to rank 1)"),
        (|c| c.recv(&mut [0u8; 5], SLEEPER), "recv(5 × uint8 from rank 1)"),
    ];
    for kind in kinds(4) {
        for (call, shown) in cases {
            let ranks = world_with(&kind, 4, &Chooser::default(), LONG);
            let gate = Barrier::new(4);
            let told = each(&ranks, |comm| {
                let comm = comm.with_timeout(if comm.rank() == SINK { SHORT } else { LONG });
                let first = |comm: &Communicator| if comm.rank() == SINK { call(comm) } else { Ok(()) };
                if comm.rank() == SLEEPER {
                    gate.wait();
                }
                let told = told(&comm, first);
                if comm.rank() != SLEEPER {
                    gate.wait();
                }
                told
            });
            let (first, story) = &told[0];
            assert!(told.iter().all(|(standstill, _)| standstill == first), "{kind:?}: {told:?}");
            let missing: Vec<usize> = first.missing.iter().map(|m| m.rank).collect();
            // The others wait in their barrier for both.
            assert!(missing.contains(&SLEEPER) && !missing.contains(&2), "{kind:?}: {story}");
            assert!(story.contains(shown), "{kind:?}: {story}");
        }
    }
}

#[test]
fn two_that_wait_for_each_other_are_both_named() {
    for kind in kinds(2) {
        let ranks = world_with(&kind, 2, &Chooser::default(), SHORT);
        let told = each(&ranks, |comm| told(comm, |comm| comm.recv(&mut [0u8; 4], 1 - comm.rank())));
        let (first, story) = &told[0];
        assert_eq!(first, &told[1].0, "{kind:?}");
        let both = ["recv(4 × uint8 from rank 1) did not", "is in recv(4 × uint8 from rank 0) instead"];
        assert!(both.iter().all(|part| story.contains(part)), "{kind:?}: {story}");
    }
}

#[test]
fn a_group_names_the_first_of_its_calls_that_is_not_done() {
    for kind in kinds(2) {
        let ranks = world_with(&kind, 2, &Chooser::default(), SHORT);
        let gate = Barrier::new(2);
        let told = each(&ranks, |comm| {
            let mut all = vec![0f32; 6];
            if comm.rank() == SLEEPER {
                comm.all_reduce(&mut [1f32; 2], ReduceOp::Sum).expect("both are there");
                gate.wait();
                return told(comm, |comm| comm.all_gather(&[1f32; 3], &mut all));
            }
            let mut sum = [1f32; 2];
            let told = told(comm, |comm| {
                comm.group(|g| {
                    g.all_reduce(&mut sum, ReduceOp::Sum)?;
                    g.all_gather(&[1f32; 3], &mut all)
                })
            });
            gate.wait();
            told
        });
        let (first, story) = &told[0];
        assert_eq!(first, &told[1].0, "{kind:?}");
        assert!(story.starts_with("all_gather(3 × float) as call 2 did not"), "{kind:?}: {story}");
        assert_eq!(first.missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [SLEEPER], "{kind:?}: {story}");
    }
}

#[test]
fn each_handle_has_its_own_time() {
    let ranks = world_with(&Kind::Shm, 2, &Chooser::default(), LONG);
    let began = Instant::now();
    each(&ranks, |comm| {
        assert_eq!(comm.timeout(), LONG);
        let short = comm.with_timeout(SHORT);
        assert_eq!((short.timeout(), comm.timeout()), (SHORT, LONG));
        // As long as clocks can hold.
        comm.with_timeout(Duration::MAX).barrier().expect("both are there");
        let part = short.split(0, 0).expect("a part");
        assert_eq!(part.timeout(), SHORT);
        if comm.rank() == 0 {
            // A started call's time begins when it does.
            let pending = short.all_reduce_start(vec![1f32; 4], ReduceOp::Sum).expect("it starts");
            let returned = pending.wait().expect_err("rank 1 does not come");
            assert!(matches!(returned.error, Error::Timeout { .. }) && returned.buffers.is_some());
            assert!(matches!(comm.barrier(), Err(Error::Failed { .. })));
        } else {
            let error = part.barrier().expect_err("rank 0 does not come");
            assert!(error.to_string().contains("within 0.6 s"), "{error}");
        }
    });
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}
