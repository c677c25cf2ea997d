//! Any communicator shrinks, over every transport: with and without a failure, groups of groups; and what that leaves
//! behind.

use std::time::{Duration, Instant};

use nd_comm::choose::Chooser;
use nd_comm::prelude::*;
use nd_tests::collectives::all_collectives;
use nd_tests::jobs::{Job, Links};
use nd_tests::processes::shared_memory;
use nd_tests::worlds::{Kind, world};
use rustix::process::Signal;

/// Plays every rank in a thread that owns its communicator.
fn each_owning(world: Vec<Communicator>, role: impl Fn(Communicator) + Sync) {
    std::thread::scope(|s| {
        let role = &role;
        let threads: Vec<_> = world.into_iter().map(|comm| s.spawn(move || role(comm))).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no rank panics"));
    });
}

#[test]
fn those_who_are_left_go_on_over_every_transport() {
    for kind in Kind::all(4) {
        for gone in [0, 3] {
            each_owning(world(&kind, 4, &Chooser::default()), |comm| {
                all_collectives(&comm).expect("it works");
                if comm.rank() == gone {
                    return;
                }
                let registered = comm.alloc::<u64>(1000).expect("memory");
                let smaller = comm.shrink().expect("three go on");
                let rank = comm.rank() - usize::from(comm.rank() > gone);
                assert_eq!((smaller.rank(), smaller.world_size()), (rank, 3), "{kind:?}");
                assert_eq!(smaller.layout().hosts().iter().map(Vec::len).sum::<usize>(), 3);
                all_collectives(&smaller).expect("it works");
                // Memory of the old group serves the new one.
                let mut buffer = registered;
                buffer.fill(1);
                smaller.all_reduce(&mut buffer, ReduceOp::Sum).expect("it works");
                assert!(buffer.iter().all(|&x| x == 3));
                // The old group is of no more use.
                let e = comm.barrier().expect_err("it was shrunk");
                assert!(matches!(e, Error::Failed { .. }), "{e}");
                let e = comm.shrink().expect_err("it was shrunk");
                assert!(e.to_string().contains("was shrunk before"), "{e}");
                drop(comm);
                smaller.barrier().expect("it works");
            });
        }
    }
}

#[test]
fn groups_of_groups_shrink_and_what_was_shrunk_is_split() {
    for kind in [Kind::Local, Kind::Shm, Kind::Tcp, Kind::Hosts(vec![0, 0, 1, 1, 1])] {
        each_owning(world(&kind, 5, &Chooser::default()), |comm| {
            // Nobody is missing: all go on.
            let all = comm.shrink().expect("five go on");
            assert_eq!((all.rank(), all.world_size()), (comm.rank(), 5));
            drop(comm);
            let odd = all.rank() % 2;
            let group = all.split(odd as u64, -(all.rank() as i64)).expect("a group");
            all_collectives(&group).expect("it works");
            if all.rank() == 2 {
                drop(group);
            } else {
                let size = group.world_size() - usize::from(odd == 0);
                let smaller = group.shrink().expect("they go on");
                assert_eq!(smaller.world_size(), size);
                all_collectives(&smaller).expect("it works");
                let alone = smaller.split(smaller.rank() as u64, 0).expect("a group");
                let alone = alone.shrink().expect("one goes on");
                all_collectives(&alone).expect("it works");
            }
            // The group that they came from is none the worse.
            all_collectives(&all).expect("it works");
        });
    }
}

#[test]
fn who_drops_late_what_was_shrunk_writes_into_nobodys_new_memory() {
    for kind in [Kind::Local, Kind::Shm] {
        each_owning(world(&kind, 2, &Chooser::default()), |comm| {
            let all = comm.shrink().expect("both go on");
            let late = (all.rank() == 1).then_some(comm);
            let group = all.split(0, 0).expect("a group");
            drop(late);
            group.barrier().expect("it works");
            let mut numbers = group.alloc::<f32>(1 << 16).expect("memory");
            numbers.fill(1.0);
            group.all_reduce(&mut numbers, ReduceOp::Sum).expect("it works");
            assert!(numbers.iter().all(|&x| x == 2.0));
        });
    }
}

#[test]
fn a_call_that_is_going_on_ends_when_another_thread_shrinks() {
    for kind in [Kind::Local, Kind::Shm, Kind::Tcp] {
        each_owning(world(&kind, 3, &Chooser::default()), |comm| {
            // Waits for a rank that never calls this.
            let waits = (comm.rank() != 2).then(|| comm.barrier_start());
            let smaller = comm.shrink().expect("all go on");
            if let Some(waits) = waits {
                let e = waits.expect("it was started").wait().expect_err("it was shrunk").error;
                assert!(e.to_string().contains("shrunk") || e.to_string().contains("failed"), "{e}");
            }
            all_collectives(&smaller).expect("it works");
        });
    }
}

const REGISTERED: usize = 64 << 20;

fn told() {
    std::io::stdin().read_line(&mut String::new()).expect("a line");
}

#[test]
#[ignore = "started by nothing_is_left_of_the_dead_and_of_the_old_group"]
fn shrinks_and_lets_go() {
    let comm = Communicator::from_env().expect("a communicator");
    let mut buffer = comm.alloc::<u8>(REGISTERED).expect("memory");
    buffer.fill(1);
    all_collectives(&comm).expect("it works");
    println!("ready {}", shared_memory());
    told();
    let e = comm.barrier().expect_err("one was killed");
    println!("{e}");
    let smaller = comm.shrink().expect("the others go on");
    drop(comm);
    all_collectives(&smaller).expect("it works");
    // Everybody has let go of the old group.
    smaller.barrier().expect("it works");
    println!("smaller {}", shared_memory());
    told();
    assert!(buffer.iter().all(|&x| x == 1));
    drop(smaller);
    println!("alone");
    told();
}

#[test]
fn nothing_is_left_of_the_dead_and_of_the_old_group() {
    for links in [Links::Shm, Links::Tcp, Links::Mixed] {
        let mut job = Job::start("shrinks_and_lets_go", 4, links, &[("ND_START_TIMEOUT", "40")]);
        job.wait(&[0, 1, 2, 3], "ready");
        let said = |job: &Job, rank: usize, word: &str| -> usize {
            let said = job.ranks[rank].said();
            let number = said.split_once(word).and_then(|s| s.1.split_whitespace().next()?.parse().ok());
            number.unwrap_or_else(|| panic!("{said}"))
        };
        let before: Vec<_> = job.ranks.iter().map(|r| r.usage()).collect();
        job.signal(0, Signal::KILL);
        (1..4).for_each(|rank| job.tell(rank, "go on"));
        job.wait(&[1, 2, 3], "smaller");
        for (rank, before) in before.iter().enumerate().skip(1) {
            let until = Instant::now() + Duration::from_secs(60);
            loop {
                let now = job.ranks[rank].usage();
                if now.files <= before.files && now.threads <= before.threads {
                    break;
                }
                assert!(Instant::now() < until, "{links:?}: rank {rank} had {before:?}, has {now:?}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // On the dead rank's host its memory is given back.
        let neighbour = match links {
            Links::Shm => Some(3),
            Links::Mixed => Some(1),
            _ => None,
        };
        if let Some(rank) = neighbour {
            let (ready, smaller) = (said(&job, rank, "ready "), said(&job, rank, "smaller "));
            assert!(smaller + (REGISTERED >> 20) <= ready, "{links:?}: {ready} MiB, then {smaller}");
        }
        (1..4).for_each(|rank| job.tell(rank, "let go"));
        job.wait(&[1, 2, 3], "alone");
        for rank in 1..4 {
            assert!(job.ranks[rank].usage().threads <= 2, "{:?}", job.ranks[rank].usage());
            job.tell(rank, "end");
        }
        job.end(&[1, 2, 3]);
    }
}
