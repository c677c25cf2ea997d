//! Hosts that do not reach each other, from the first call on or later. The start may take ten minutes here, which nothing
//! waits for: a call ends at its own deadline, when somebody else dies, or when it is aborted.

use std::time::{Duration, Instant};

use nd_comm::Error;
use nd_comm::communicator::Communicator;
use nd_comm::number::ReduceOp;
use nd_tests::hosts::Hosts;
use nd_tests::jobs::Job;
use rustix::process::Signal;

/// What a call may take where it says so.
const DEADLINE: Duration = Duration::from_secs(2);
/// Far above that and what a busy machine adds, far below the time that a start may take.
const BOUND: Duration = Duration::from_secs(60);
const SETTINGS: [(&str, &str); 3] =
    [("ND_START_TIMEOUT", "600s"), ("ND_TIMEOUT", "600s"), ("ND_AUTH", "none")];

/// Nothing that `from` sends arrives at `to` from now on, as with a cable that was pulled.
fn cut(hosts: &Hosts, from: usize, to: usize) {
    for address in [hosts.v4(to), hosts.v6(to)] {
        let nobody = ["lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"];
        hosts.ip(from, &[&["neigh", "replace", &address], &nobody[..]].concat());
    }
}

fn apart(hosts: &Hosts, one: usize, other: usize) {
    cut(hosts, one, other);
    cut(hosts, other, one);
}

/// Starts one rank on each of these hosts, each of which plays `role`.
fn start(hosts: &Hosts, each: usize, role: &str) -> Job {
    Job::start_on(hosts, each, role, &SETTINGS)
}

/// What a rank says of its call, and how long that took.
fn told(job: &mut Job, rank: usize) -> (String, Duration) {
    job.wait(&[rank], "\n.");
    let said = job.ranks[rank].said();
    let line = said.lines().find_map(|line| line.split_once("told after ")).expect("what it was told").1;
    let (ms, story) = line.split_once(" ms: ").expect("how long it took");
    (story.to_owned(), Duration::from_millis(ms.parse().expect("a number")))
}

fn listen() {
    std::io::stdin().read_line(&mut String::new()).expect("a line, or the end");
}

/// Plays a rank that makes a call once it is told to, and says what came of it.
fn play(call: impl FnOnce(Communicator) -> String) {
    let comm = Communicator::from_env().expect("a communicator");
    println!("started");
    listen();
    let began = Instant::now();
    let story = call(comm);
    println!("told after {} ms: {story}\n.", began.elapsed().as_millis());
    listen();
}

fn story(result: nd_comm::Result<()>) -> String {
    result.map_or_else(|e| e.to_string(), |()| "nothing".into())
}

fn reduce(comm: &Communicator) -> nd_comm::Result<()> {
    comm.all_reduce(&mut [1f32; 10], ReduceOp::Sum)
}

#[test]
fn a_call_ends_at_its_deadline_although_the_two_never_met() {
    let Some(hosts) = Hosts::new("a_call_ends_at_its_deadline_although_the_two_never_met", 2) else { return };
    let mut job = start(&hosts, 1, "reduces_within_two_seconds");
    job.wait(&[0, 1], "started");
    apart(&hosts, 0, 1);
    [0, 1].into_iter().for_each(|rank| job.tell(rank, "go"));
    for rank in [0, 1] {
        let (story, took) = told(&mut job, rank);
        let (pid, other) = (job.ranks[1 - rank].id(), 1 - rank);
        let parts = [
            "did not finish within 2.0 s; ",
            &format!("rank {other} (host{other}, pid {pid}) was not heard"),
            "does its host acknowledge",
        ];
        assert!(parts.iter().all(|part| story.contains(part)) && !story.contains("has not"), "{story}");
        assert!(took >= DEADLINE && took < BOUND, "{took:?}: {story}");
    }
}

#[test]
#[ignore = "started by the tests of this file"]
fn reduces_within_two_seconds() {
    play(|comm| story(reduce(&comm.with_timeout(DEADLINE))));
}

/// The lower rank cannot reach the higher one, whose connection it takes instead.
#[test]
fn two_that_connect_at_once_meet_by_the_way_that_works() {
    let Some(hosts) = Hosts::new("two_that_connect_at_once_meet_by_the_way_that_works", 2) else { return };
    let mut job = start(&hosts, 1, "reduces_at_leisure");
    job.wait(&[0, 1], "started");
    hosts.let_nothing_begin(0);
    job.tell(0, "go");
    job.wait(&[0], "begins");
    job.tell(1, "go");
    for rank in [0, 1] {
        let (story, took) = told(&mut job, rank);
        assert!(story == "nothing" && took < BOUND, "rank {rank}, {took:?}: {story}");
    }
}

#[test]
#[ignore = "started by the tests of this file"]
fn reduces_at_leisure() {
    play(|comm| {
        println!("begins");
        story(reduce(&comm))
    });
}

#[test]
fn a_host_without_a_network_is_named() {
    let Some(hosts) = Hosts::new("a_host_without_a_network_is_named", 2) else { return };
    let mut job = start(&hosts, 1, "reduces_within_two_seconds");
    job.wait(&[0, 1], "started");
    hosts.ip(1, &["link", "set", "eth0", "down"]);
    [0, 1].into_iter().for_each(|rank| job.tell(rank, "go"));
    for rank in [0, 1] {
        let (story, took) = told(&mut job, rank);
        assert!(story.contains(&format!("rank {} (host{0}, pid", 1 - rank)), "{story}");
        assert!(took < BOUND, "{took:?}: {story}");
    }
}

#[test]
fn a_death_is_told_to_one_that_connects_elsewhere() {
    let Some(hosts) = Hosts::new("a_death_is_told_to_one_that_connects_elsewhere", 3) else { return };
    let mut job = start(&hosts, 1, "meets_one_and_then_reduces");
    job.wait(&[0, 1, 2], "started");
    cut(&hosts, 0, 1);
    [0, 2].into_iter().for_each(|rank| job.tell(rank, "go"));
    job.wait(&[0, 2], "met");
    job.signal(2, Signal::KILL);
    let (story, took) = told(&mut job, 0);
    assert!(story.contains("rank 2 on host2 is lost") && took < BOUND, "{took:?}: {story}");
}

#[test]
#[ignore = "started by the tests of this file"]
fn meets_one_and_then_reduces() {
    play(|comm| {
        match comm.rank() {
            0 => comm.send(&[1u8], 2).expect("it is there"),
            _ => comm.recv(&mut [0u8], 0).expect("it is there"),
        }
        println!("met");
        story(reduce(&comm))
    });
}

#[test]
fn an_abort_ends_a_call_that_connects() {
    let Some(hosts) = Hosts::new("an_abort_ends_a_call_that_connects", 2) else { return };
    let mut job = start(&hosts, 1, "aborts");
    job.wait(&[0, 1], "started");
    cut(&hosts, 0, 1);
    job.tell(0, "go");
    let (story, took) = told(&mut job, 0);
    assert!(story.contains("abort") && story.contains("rank 0 (host0"), "{story}");
    assert!(took < BOUND, "{took:?}: {story}");
}

#[test]
#[ignore = "started by the tests of this file"]
fn aborts() {
    play(|comm| {
        std::thread::scope(|s| {
            let call = s.spawn(|| reduce(&comm));
            std::thread::sleep(Duration::from_millis(300));
            comm.abort();
            let error = call.join().expect("no panic").expect_err("it was aborted");
            assert!(matches!(error, Error::Aborted { culprit: 0, .. }), "{error}");
            error.to_string()
        })
    });
}

#[test]
fn whoever_connects_can_be_dropped() {
    let Some(hosts) = Hosts::new("whoever_connects_can_be_dropped", 2) else { return };
    let mut job = start(&hosts, 1, "is_dropped");
    job.wait(&[0, 1], "started");
    cut(&hosts, 0, 1);
    job.tell(0, "go");
    let (story, took) = told(&mut job, 0);
    assert!(story == "no thread is left" && took < BOUND, "{took:?}: {story}");
}

#[test]
#[ignore = "started by the tests of this file"]
fn is_dropped() {
    play(|comm| {
        let pending = comm.send_start(vec![7u8; 1 << 20], 1).expect("it starts");
        std::thread::sleep(Duration::from_millis(300));
        assert!(threads().iter().any(|name| name.starts_with("nd-dial")), "{:?}", threads());
        drop((pending, comm));
        let until = Instant::now() + BOUND;
        loop {
            // One that was joined may be on its way out for a while yet.
            let left: Vec<_> = threads().into_iter().filter(|name| name.starts_with("nd-")).collect();
            if left.is_empty() {
                return "no thread is left".into();
            }
            assert!(Instant::now() < until, "{left:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// The names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn both_halves_of_a_job_say_that_they_do_not_hear_the_other() {
    let test = "both_halves_of_a_job_say_that_they_do_not_hear_the_other";
    let Some(hosts) = Hosts::new(test, 2) else { return };
    let mut job = start(&hosts, 2, "reduces_again_and_again");
    let all = [0, 1, 2, 3];
    job.wait(&all, "started");
    all.into_iter().for_each(|rank| job.tell(rank, "go"));
    job.wait(&all, "going on");
    apart(&hosts, 0, 1);
    for rank in all {
        let (story, took) = told(&mut job, rank);
        let other = if rank < 2 { 2 } else { 0 };
        let pid = job.ranks[other].id();
        let unheard = format!("rank {other} (host{}, pid {pid}) was not heard, nor", other / 2);
        assert!(story.contains(&unheard) && !story.contains("has not"), "rank {rank}: {story}");
        assert!(took < BOUND, "{took:?}: {story}");
    }
}

/// The host that does it to itself knows no better than the other one what is wrong.
#[test]
fn a_host_whose_own_interface_goes_down_in_a_call_does_not_hear_the_other() {
    let test = "a_host_whose_own_interface_goes_down_in_a_call_does_not_hear_the_other";
    for down in [0, 1] {
        let Some(hosts) = Hosts::new(test, 2) else { return };
        let mut job = start(&hosts, 1, "reduces_again_and_again");
        job.wait(&[0, 1], "started");
        [0, 1].into_iter().for_each(|rank| job.tell(rank, "go"));
        job.wait(&[0, 1], "going on");
        hosts.ip(down, &["link", "set", "eth0", "down"]);
        for rank in [0, 1] {
            let (story, took) = told(&mut job, rank);
            let (other, pid) = (1 - rank, job.ranks[1 - rank].id());
            let unheard = format!("rank {other} (host{other}, pid {pid}) was not heard, nor");
            assert!(
                story.contains(&unheard) && !story.contains("has not"),
                "{down} is down, rank {rank}: {story}"
            );
            assert!(took < BOUND, "{took:?}: {story}");
        }
    }
}

/// Answers take their time, and come behind what was sent before.
#[test]
fn over_a_slow_link_both_ranks_tell_one_story() {
    let Some(hosts) = Hosts::new("over_a_slow_link_both_ranks_tell_one_story", 2) else { return };
    for (rate, queue) in [(2_000_000, 200_000), (1_000_000, 60_000)] {
        for role in ["waits_for_more_than_comes", "comes_too_late"] {
            let mut job = start(&hosts, 1, role);
            job.wait(&[0, 1], "started");
            [0, 1].into_iter().for_each(|rank| job.tell(rank, "go"));
            job.wait(&[0, 1], "met");
            [0, 1].into_iter().for_each(|host| hosts.slow_down(host, rate, queue));
            [0, 1].into_iter().for_each(|rank| job.tell(rank, "go"));
            let told = [0, 1].map(|rank| told(&mut job, rank));
            let stories = told.each_ref().map(|(story, _)| story.split_once(": ").expect("who tells it").1);
            println!("{rate} bit/s, {role}: {told:?}");
            assert_eq!(stories[0], stories[1], "{rate} bit/s, {role}");
            assert!(stories[0].contains("nobody is missing"), "{told:?}");
            assert!(told.iter().all(|(_, took)| *took < BOUND), "{told:?}");
            [0, 1].into_iter().for_each(|host| hosts.slow_down(host, 10_000_000_000, 1_000_000));
        }
    }
}

fn meets_and_then(call: impl FnOnce(&Communicator) -> nd_comm::Result<()>) {
    play(|comm| {
        comm.barrier().expect("both are there");
        println!("met");
        listen();
        story(call(&comm))
    });
}

/// The time of both is up at about the same moment.
#[test]
#[ignore = "started by the tests of this file"]
fn waits_for_more_than_comes() {
    meets_and_then(|comm| comm.with_timeout(DEADLINE).all_reduce(&mut vec![1f32; 1 << 20], ReduceOp::Sum));
}

/// The time of one is up, and the other is in the call.
#[test]
#[ignore = "started by the tests of this file"]
fn comes_too_late() {
    meets_and_then(|comm| {
        let timeout = if comm.rank() == 0 { DEADLINE } else { 100 * DEADLINE };
        comm.with_timeout(timeout).all_reduce(&mut vec![1f32; 1 << 20], ReduceOp::Sum)
    });
}

#[test]
#[ignore = "started by the tests of this file"]
fn reduces_again_and_again() {
    play(|comm| {
        let comm = comm.with_timeout(DEADLINE);
        for round in 0.. {
            if let Err(e) = reduce(&comm) {
                return e.to_string();
            }
            if round == 50 {
                println!("going on");
            }
        }
        unreachable!("it fails")
    });
}
