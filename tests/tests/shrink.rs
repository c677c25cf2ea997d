//! Ranks are killed, stopped and late, as processes, over shared memory, TCP and both: those who are left shrink the
//! communicator and go on.

use std::time::{Duration, Instant};

use nd_comm::prelude::*;
use nd_tests::collectives::all_collectives;
use nd_tests::jobs::{Job, Links};
use rustix::process::Signal;

/// The deadline of the start, and with it of shrink, s: long enough for a busy machine.
const PATIENCE: &str = "40";

fn start(size: usize, links: Links, what: &str) -> Job {
    let settings = [("ND_START_TIMEOUT", PATIENCE), ("SHRINK_WHAT", what)];
    Job::start("works_until_it_fails_and_goes_on", size, links, &settings)
}

fn what() -> String {
    std::env::var("SHRINK_WHAT").unwrap_or_default()
}

/// Calls until one fails; says first that all is well.
fn until_it_fails(comm: &Communicator) -> Error {
    let began = Instant::now();
    let mut x = vec![0u64; 1000];
    let mut said = false;
    loop {
        x.fill(1);
        if let Err(e) = comm.all_reduce(&mut x, ReduceOp::Sum) {
            return e;
        }
        assert!(x.iter().all(|&x| x == comm.world_size() as u64));
        if !std::mem::replace(&mut said, true) {
            println!("all is well");
        }
        assert!(began.elapsed() < Duration::from_secs(100), "nobody failed");
    }
}

/// Shrinks until what there is works: whoever fails late is the failure of the new group.
fn go_on(comm: Communicator) -> Communicator {
    let mut comm = comm;
    loop {
        println!("shrinking");
        let smaller = comm.shrink().expect("those who are left go on");
        println!(
            "from {} of {} to {} of {}",
            comm.rank(),
            comm.world_size(),
            smaller.rank(),
            smaller.world_size()
        );
        comm = smaller;
        match all_collectives(&comm) {
            Ok(()) => return comm,
            Err(e) => println!("again: {e}"),
        }
    }
}

#[test]
#[ignore = "started by the tests of this file"]
fn works_until_it_fails_and_goes_on() {
    let comm = Communicator::from_env().expect("a communicator");
    println!("gave up: {}", until_it_fails(&comm));
    if let Some(late) = what().strip_prefix("late ")
        && late == comm.rank().to_string()
    {
        std::thread::sleep(Duration::from_secs(3));
    }
    let mut comm = go_on(comm);
    while what() == "down to 2" && comm.world_size() > 2 {
        println!("gave up again: {}", until_it_fails(&comm));
        comm = go_on(comm);
    }
    let members: Vec<String> = {
        let mut pids = vec![0u64; comm.world_size()];
        comm.all_gather(&[u64::from(std::process::id())], &mut pids).expect("all are there");
        pids.iter().map(u64::to_string).collect()
    };
    println!("together: {}", members.join(" "));
    if what().starts_with("twice") {
        println!("gave up again: {}", until_it_fails(&comm));
        let comm = go_on(comm);
        println!("finally {} of {}", comm.rank(), comm.world_size());
    }
    println!("done");
}

/// The processes of these ranks, as they say whom they go on with.
fn together(job: &Job, ranks: &[usize]) -> String {
    format!("together: {}\n", job.pids(ranks))
}

fn one_is_killed(links: Links, victim: usize, after: Duration) {
    let mut job = start(4, links, "");
    let rest: Vec<usize> = (0..4).filter(|&rank| rank != victim).collect();
    job.wait(&[0, 1, 2, 3], "all is well");
    // Not to wait for anything: to die at another moment each time.
    std::thread::sleep(after);
    job.signal(victim, Signal::KILL);
    job.wait(&rest, &together(&job, &rest));
    job.end(&rest);
}

#[test]
fn three_go_on_without_the_fourth_over_shared_memory() {
    for (victim, ms) in [(3, 0), (0, 3), (1, 11)] {
        one_is_killed(Links::Shm, victim, Duration::from_millis(ms));
    }
}

#[test]
fn three_go_on_without_the_fourth_over_tcp() {
    for (victim, ms) in [(2, 5), (0, 1)] {
        one_is_killed(Links::Tcp, victim, Duration::from_millis(ms));
    }
    one_is_killed(Links::TcpEncrypted, 1, Duration::from_millis(2));
}

#[test]
fn three_go_on_without_the_fourth_over_both() {
    for (victim, ms) in [(0, 4), (3, 7)] {
        one_is_killed(Links::Mixed, victim, Duration::from_millis(ms));
    }
}

#[test]
fn of_two_the_other_goes_on_alone_whichever_it_is() {
    for links in [Links::Shm, Links::Tcp] {
        for victim in [0, 1] {
            let mut job = start(2, links, "");
            job.wait(&[0, 1], "all is well");
            job.signal(victim, Signal::KILL);
            job.wait(&[1 - victim], &together(&job, &[1 - victim]));
            job.end(&[1 - victim]);
        }
    }
}

#[test]
fn a_second_one_is_killed_while_the_others_shrink() {
    for (links, victims, ms) in [
        (Links::Shm, [3, 0], 0),
        (Links::Shm, [0, 1], 30),
        (Links::Tcp, [2, 0], 5),
        (Links::Tcp, [0, 3], 60),
        (Links::Mixed, [1, 2], 15),
    ] {
        let mut job = start(4, links, "down to 2");
        job.wait(&[0, 1, 2, 3], "all is well");
        job.signal(victims[0], Signal::KILL);
        job.wait(&victims[1..], "shrinking");
        std::thread::sleep(Duration::from_millis(ms));
        job.signal(victims[1], Signal::KILL);
        let rest: Vec<usize> = (0..4).filter(|rank| !victims.contains(rank)).collect();
        // Who was late to die may have been in the first group; the last one is without it.
        job.wait(&rest, &together(&job, &rest));
        job.end(&rest);
    }
}

#[test]
fn shrinking_twice_and_a_rank_that_comes_late() {
    for links in [Links::Shm, Links::Tcp] {
        let mut job = start(4, links, "twice");
        job.wait(&[0, 1, 2, 3], "all is well");
        job.signal(0, Signal::KILL);
        job.wait(&[1, 2, 3], "together");
        job.signal(2, Signal::KILL);
        job.wait(&[1], "finally 0 of 2");
        job.wait(&[3], "finally 1 of 2");
        job.end(&[1, 3]);
        let mut job = start(3, links, "late 2");
        job.wait(&[0, 1, 2], "all is well");
        job.signal(0, Signal::KILL);
        job.wait(&[1, 2], &together(&job, &[1, 2]));
        job.end(&[1, 2]);
    }
}

#[test]
fn five_go_on_without_three_that_die_at_once() {
    for links in [Links::Shm, Links::Mixed] {
        let mut job = start(8, links, "");
        job.wait(&[0, 1, 2, 3, 4, 5, 6, 7], "all is well");
        [0, 3, 7].into_iter().for_each(|rank| job.signal(rank, Signal::KILL));
        job.wait(&[1, 2, 4, 5, 6], &together(&job, &[1, 2, 4, 5, 6]));
        job.end(&[1, 2, 4, 5, 6]);
    }
}

#[test]
fn errors_and_the_recorder_speak_of_the_new_group() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_string_lossy().into_owned();
    let settings = [("ND_START_TIMEOUT", PATIENCE), ("SHRINK_WHAT", "twice"), ("ND_RECORDER_DIR", &path[..])];
    let mut job = Job::start("works_until_it_fails_and_goes_on", 4, Links::Shm, &settings);
    job.wait(&[0, 1, 2, 3], "all is well");
    job.signal(0, Signal::KILL);
    job.wait(&[1, 2, 3], "together");
    // Now they are ranks 0, 1 and 2.
    job.signal(2, Signal::KILL);
    job.wait(&[1, 3], "finally ");
    job.end(&[1, 3]);
    for rank in [1, 3] {
        let said = job.ranks[rank].said();
        let (_, again) = said.split_once("gave up again: ").expect("it says why");
        let error = again.lines().next().expect("a line");
        assert!(error.contains(&format!("rank {}", rank - 1)) && error.contains("rank 1"), "{error}");
    }
    let files: Vec<String> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .filter_map(|f| f.ok()?.file_name().into_string().ok())
        .collect();
    for (communicator, rank) in [("world", 1), ("world", 3), ("world-s3", 0), ("world-s3", 2)] {
        let end = format!(".{communicator}.rank{rank}.json");
        let file = files.iter().find(|f| f.ends_with(&end)).unwrap_or_else(|| panic!("{end}: {files:?}"));
        let text = std::fs::read_to_string(folder.path().join(file)).expect("a file");
        let dump = nd_comm::recorder::Dump::parse(text.as_bytes()).expect("a file of the recorder");
        let world_rank = if communicator == "world" { rank } else { rank + 1 };
        assert_eq!((dump.rank, dump.world_rank), (rank, world_rank), "{file}");
    }
}
