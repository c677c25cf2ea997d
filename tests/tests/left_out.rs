//! Ranks that are stopped, cut off, or do not shrink are left out, by name, and disturb nobody when they come back; too
//! few ranks do not go on.

use std::time::{Duration, Instant};

use nd_comm::prelude::*;
use nd_tests::collectives::all_collectives;
use nd_tests::hosts::Hosts;
use nd_tests::jobs::{Job, Links};
use rustix::process::Signal;

/// Deadlines of calls and of the start, s: somebody has to be waited for in vain.
const TIMES: [(&str, &str); 2] = [("ND_TIMEOUT", "3"), ("ND_START_TIMEOUT", "10")];

/// Says what the library has to say.
fn aloud() {
    let writer = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    writer.with_max_level(tracing::Level::WARN).init();
}

/// Waits for a line of the test.
fn told() {
    std::io::stdin().read_line(&mut String::new()).expect("a line");
}

fn until_it_fails(comm: &Communicator) -> Error {
    let began = Instant::now();
    let mut said = false;
    loop {
        let mut x = [1u64; 100];
        if let Err(e) = comm.all_reduce(&mut x, ReduceOp::Sum) {
            return e;
        }
        if !std::mem::replace(&mut said, true) {
            println!("all is well");
        }
        assert!(began.elapsed() < Duration::from_secs(100), "nobody failed");
    }
}

/// Shrinks until what there is works, or says why this rank does not go on.
fn go_on(mut comm: Communicator) -> Option<Communicator> {
    loop {
        println!("shrinking");
        comm = match comm.shrink() {
            Ok(comm) => comm,
            Err(e) => {
                println!("out: {e}");
                return None;
            }
        };
        match all_collectives(&comm) {
            Ok(()) => return Some(comm),
            Err(e) => println!("again: {e}"),
        }
    }
}

#[test]
#[ignore = "started by the tests of this file"]
fn goes_on_or_is_left_out() {
    aloud();
    let comm = Communicator::from_env().expect("a communicator");
    println!("gave up: {}", until_it_fails(&comm));
    if let Some(comm) = go_on(comm) {
        println!("went on with {}", comm.world_size());
        told();
        // Whoever came back meanwhile has changed nothing.
        all_collectives(&comm).expect("it still works");
    }
    println!("ended");
}

fn stopped(links: Links, victim: usize, comes_back_late: bool) {
    let mut job = Job::start("goes_on_or_is_left_out", 3, links, &TIMES);
    let rest: Vec<usize> = (0..3).filter(|&rank| rank != victim).collect();
    job.wait(&[0, 1, 2], "all is well");
    job.signal(victim, Signal::STOP);
    job.wait(&rest, "went on with 2");
    let named = format!("left out by shrink, although perhaps alive: rank {victim} (");
    assert!(job.ranks[rest[0]].said().contains(&named), "{}", job.ranks[rest[0]].said());
    if !comes_back_late {
        job.signal(victim, Signal::CONT);
        job.wait(&[victim], "was left out by shrink: rank ");
        job.wait(&[victim], "ended");
    }
    rest.iter().for_each(|&rank| job.tell(rank, "go on"));
    job.end(&rest);
    if comes_back_late {
        job.signal(victim, Signal::CONT);
        job.wait(&[victim], "was left out by shrink: rank ");
    }
    job.wait(&[victim], &format!("out: rank {victim} was left out"));
    job.end(&[victim]);
}

#[test]
fn who_was_stopped_is_told_that_it_was_left_out() {
    stopped(Links::Shm, 1, false);
    stopped(Links::Tcp, 0, false);
    stopped(Links::TcpEncrypted, 2, false);
}

#[test]
fn who_was_stopped_is_told_even_if_the_others_have_ended() {
    stopped(Links::Shm, 0, true);
    stopped(Links::Tcp, 1, true);
}

#[test]
fn who_is_stopped_in_the_middle_joins_nobody_and_holds_up_nobody() {
    for (links, victim) in [(Links::Shm, 1), (Links::Tcp, 0), (Links::Mixed, 2)] {
        let mut job = Job::start("goes_on_or_is_left_out", 5, links, &TIMES);
        job.wait(&[0, 1, 2, 3, 4], "all is well");
        job.signal(4, Signal::KILL);
        job.wait(&[victim], "shrinking");
        job.signal(victim, Signal::STOP);
        let rest: Vec<usize> = (0..4).filter(|&rank| rank != victim).collect();
        // The victim may have been quick: then it is with them until its silence is noticed.
        job.wait(&rest, "went on with ");
        let together = rest.iter().all(|&rank| job.ranks[rank].said().contains("went on with 3"));
        job.signal(victim, Signal::CONT);
        if together {
            job.wait(&[victim], "out: ");
        }
        (0..4).for_each(|rank| job.tell(rank, "go on"));
        job.end(&[0, 1, 2, 3]);
    }
}

#[test]
#[ignore = "started by who_does_not_shrink_is_left_out_by_name"]
fn shrinks_unless_it_is_the_last() {
    aloud();
    let comm = Communicator::from_env().expect("a communicator");
    comm.barrier().expect("all are there");
    if comm.rank() == comm.world_size() - 1 {
        println!("busy");
        told();
        println!("gave up: {}", comm.barrier().expect_err("the others have gone on"));
        println!("out: {}", comm.shrink().expect_err("the others have gone on"));
    } else {
        let comm = comm.shrink().expect("more than half go on");
        all_collectives(&comm).expect("it works");
        println!("went on with {}", comm.world_size());
        told();
    }
}

#[test]
fn who_does_not_shrink_is_left_out_by_name() {
    for links in [Links::Shm, Links::Tcp] {
        let mut job = Job::start("shrinks_unless_it_is_the_last", 4, links, &TIMES);
        job.wait(&[3], "busy");
        job.wait(&[0, 1, 2], "went on with 3");
        let named = format!("pid {})", job.ranks[3].id());
        assert!(job.ranks[0].said().contains("perhaps alive: rank 3 ("), "{}", job.ranks[0].said());
        assert!(job.ranks[0].said().contains(&named), "{}", job.ranks[0].said());
        job.tell(3, "go on");
        job.wait(&[3], "gave up: rank 3 was left out by shrink: rank ");
        job.wait(&[3], "out: rank 3 was left out by shrink: rank ");
        (0..3).for_each(|rank| job.tell(rank, "end"));
        job.end(&[0, 1, 2, 3]);
    }
}

#[test]
fn half_without_the_lowest_does_not_go_on() {
    for links in [Links::Shm, Links::Tcp] {
        let mut job = Job::start("goes_on_or_is_left_out", 2, links, &TIMES);
        job.wait(&[0, 1], "all is well");
        job.signal(0, Signal::STOP);
        job.wait(&[1], "out: rank 1: shrink: 1 of 2 ranks take part (1)");
        job.wait(&[1], &format!("pid {}), which may go on", job.ranks[0].id()));
        job.end(&[1]);
        // The lower one finds that the other is no more, and is alone.
        job.signal(0, Signal::CONT);
        job.wait(&[0], "went on with 1");
        job.tell(0, "end");
        job.end(&[0]);
    }
}

#[test]
fn of_two_parts_of_a_network_the_one_with_the_lowest_rank_goes_on() {
    let test = "of_two_parts_of_a_network_the_one_with_the_lowest_rank_goes_on";
    let Some(hosts) = Hosts::new(test, 2) else { return };
    let secret = ["ab"; 32].concat();
    let settings = [&TIMES[..], &[("ND_SECRET", &secret[..])]].concat();
    let mut job = Job::start_on(&hosts, 2, "goes_on_or_is_left_out", &settings);
    job.wait(&[0, 1, 2, 3], "all is well");
    hosts.ip(1, &["link", "set", "eth0", "down"]);
    job.wait(&[0, 1], "went on with 2");
    for rank in [2, 3] {
        job.wait(&[rank], &format!("out: rank {rank}: shrink: "));
        job.wait(&[rank], "ended");
    }
    hosts.ip(1, &["link", "set", "eth0", "up"]);
    [0, 1].into_iter().for_each(|rank| job.tell(rank, "go on"));
    job.end(&[0, 1, 2, 3]);
}
