//! Ranks are killed, stopped and late, as processes, over shared memory, TCP and both: those who are left shrink the
//! communicator and go on.

use std::path::Path;
use std::time::{Duration, Instant};

use nd_comm::prelude::*;
use nd_tests::processes::Process;
use rustix::process::{Pid, Signal, kill_process};

/// The deadline of the start, and with it of shrink, s: long enough for a busy machine.
const PATIENCE: &str = "40";
/// Where a rank has to be waited for that does not come.
const IMPATIENT: &str = "5";

/// A job of processes, each of which plays a role.
struct Job {
    ranks: Vec<Process>,
    _folder: tempfile::TempDir,
}

/// How ranks are joined.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Links {
    Shm,
    Tcp,
    TcpEncrypted,
    /// Two ranks on each of two hosts, by what they are told.
    Mixed,
}

impl Job {
    fn start(role: &str, size: usize, links: Links, patience: &str, what: &str) -> Job {
        let folder = tempfile::tempdir().expect("a folder");
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let ranks = (0..size).map(|rank| rank_of(role, rank, size, links, patience, what, port, folder.path()));
        Job { ranks: ranks.collect(), _folder: folder }
    }

    fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_raw(self.ranks[rank].id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("it is there");
    }

    fn wait(&mut self, ranks: &[usize], word: &str) {
        ranks.iter().for_each(|&rank| self.ranks[rank].wait_for(word));
    }

    fn end(&mut self, ranks: &[usize]) {
        for &rank in ranks {
            assert!(self.ranks[rank].end(), "rank {rank}:\n{}", self.ranks[rank].said());
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn rank_of(
    role: &str,
    rank: usize,
    size: usize,
    links: Links,
    patience: &str,
    what: &str,
    port: u16,
    folder: &Path,
) -> Process {
    let (number, size, port) = (rank.to_string(), size.to_string(), port.to_string());
    let host = format!("test-host-{}", rank / 2);
    let mut variables = vec![
        ("RANK", &number[..]),
        ("WORLD_SIZE", &size),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
        ("ND_START_TIMEOUT", patience),
        ("ND_RECORDER_DIR", "none"),
        ("ND_DEBUG", "info"),
        ("SHRINK_WHAT", what),
    ];
    match links {
        Links::Shm => variables.push(("ND_TRANSPORT", "shm")),
        Links::Tcp => variables.push(("ND_TRANSPORT", "tcp")),
        Links::TcpEncrypted => variables.extend([("ND_TRANSPORT", "tcp"), ("ND_ENCRYPT", "1")]),
        Links::Mixed => variables.push(("ND_HOSTID", &host)),
    }
    Process::start(role, &format!("rank{rank}"), &variables, 1024, folder)
}

fn what() -> String {
    std::env::var("SHRINK_WHAT").unwrap_or_default()
}

fn world() -> Communicator {
    Communicator::from_env().expect("a communicator")
}

/// Every collective that there is, with the right results.
fn all_collectives(comm: &Communicator) -> Result<()> {
    let (me, n) = (comm.rank() as u64, comm.world_size() as u64);
    let sum = n * (n + 1) / 2;
    for len in [1usize, 5000] {
        let mine = vec![me + 1; len];
        let mut x = mine.clone();
        comm.all_reduce(&mut x, ReduceOp::Sum)?;
        assert!(x.iter().all(|&x| x == sum), "all_reduce");
        let mut all = vec![0; len * n as usize];
        comm.all_gather(&mine, &mut all)?;
        assert!(all.chunks(len).zip(1..).all(|(part, r)| part.iter().all(|&x| x == r)), "all_gather");
        let mut part = vec![0; len];
        comm.reduce_scatter(&all, &mut part, ReduceOp::Sum)?;
        assert!(part.iter().all(|&x| x == n * (me + 1)), "reduce_scatter");
        let mut back = vec![0; len * n as usize];
        comm.all_to_all(&all, &mut back)?;
        assert!(back.iter().all(|&x| x == me + 1), "all_to_all");
        for root in 0..n as usize {
            let mut x = mine.clone();
            comm.broadcast(&mut x, root)?;
            assert!(x.iter().all(|&x| x == root as u64 + 1), "broadcast");
            let mut x = vec![0; len];
            comm.reduce(&mine, &mut x, ReduceOp::Sum, root)?;
            assert!(comm.rank() != root || x.iter().all(|&x| x == sum), "reduce");
            let mut gathered = vec![0; if comm.rank() == root { len * n as usize } else { 0 }];
            comm.gather(&mine, &mut gathered, root)?;
            assert!(comm.rank() != root || gathered == all, "gather");
            let mut part = vec![0; len];
            comm.scatter(&gathered, &mut part, root)?;
            assert_eq!(part, mine, "scatter");
        }
        if n > 1 {
            let (to, from) = ((me + 1) % n, (me + n - 1) % n);
            let mut got = vec![0; len];
            comm.group(|g| {
                g.send(&mine, to as usize)?;
                g.recv(&mut got, from as usize)
            })?;
            assert!(got.iter().all(|&x| x == from + 1), "send and recv");
        }
    }
    comm.barrier()
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
        println!("from {} of {} to {} of {}", comm.rank(), comm.world_size(), smaller.rank(), smaller.world_size());
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
    let comm = world();
    println!("gave up: {}", until_it_fails(&comm));
    if let Some(late) = what().strip_prefix("late ")
        && late == comm.rank().to_string()
    {
        std::thread::sleep(Duration::from_secs(3));
    }
    let comm = go_on(comm);
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
    let pids: Vec<String> = ranks.iter().map(|&rank| job.ranks[rank].id().to_string()).collect();
    format!("together: {}\n", pids.join(" "))
}

fn one_is_killed(links: Links, victim: usize, after: Duration) {
    let mut job = Job::start("works_until_it_fails_and_goes_on", 4, links, PATIENCE, "");
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
            let mut job = Job::start("works_until_it_fails_and_goes_on", 2, links, PATIENCE, "");
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
        let mut job = Job::start("works_until_it_fails_and_goes_on", 4, links, PATIENCE, "");
        job.wait(&[0, 1, 2, 3], "all is well");
        job.signal(victims[0], Signal::KILL);
        job.wait(&victims[1..], "shrinking");
        std::thread::sleep(Duration::from_millis(ms));
        job.signal(victims[1], Signal::KILL);
        let rest: Vec<usize> = (0..4).filter(|rank| !victims.contains(rank)).collect();
        job.wait(&rest, "done");
        for &rank in &rest {
            // Who was late to die may have been in the first group; the last one is without it.
            let said = job.ranks[rank].said();
            assert!(said.contains(" of 2\n") || said.contains("to 0 of 3") || said.contains("to 1 of 3") || said.contains("to 2 of 3"), "{said}");
        }
        job.end(&rest);
    }
}

#[test]
fn shrinking_twice_and_a_rank_that_comes_late() {
    for links in [Links::Shm, Links::Tcp] {
        let mut job = Job::start("works_until_it_fails_and_goes_on", 4, links, PATIENCE, "twice");
        job.wait(&[0, 1, 2, 3], "all is well");
        job.signal(0, Signal::KILL);
        job.wait(&[1, 2, 3], "together");
        job.signal(2, Signal::KILL);
        job.wait(&[1], "finally 0 of 2");
        job.wait(&[3], "finally 1 of 2");
        job.end(&[1, 3]);
        let mut job = Job::start("works_until_it_fails_and_goes_on", 3, links, PATIENCE, "late 2");
        job.wait(&[0, 1, 2], "all is well");
        job.signal(0, Signal::KILL);
        job.wait(&[1, 2], &together(&job, &[1, 2]));
        job.end(&[1, 2]);
    }
}
