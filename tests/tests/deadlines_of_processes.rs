//! Deadlines where ranks are processes: one sleeps, one is stopped, one has exited.

use std::path::Path;
use std::time::Duration;

use nd_comm::Error;
use nd_comm::communicator::Communicator;
use nd_comm::number::ReduceOp;
use nd_tests::processes::Process;
use rustix::process::{Pid, Signal, kill_process};

const RANKS: usize = 4;
/// Who goes wrong.
const CULPRIT: usize = 2;
/// Each: `ND_TRANSPORT`, and whether the ranks count as two hosts.
const TRANSPORTS: [(&str, bool); 3] = [("shm", false), ("tcp", false), ("auto", true)];

fn start(role: &str, transport: (&str, bool), folder: &Path) -> Vec<Process> {
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let (size, port) = (RANKS.to_string(), port.to_string());
    let start = |rank: usize| {
        let (number, host) = (rank.to_string(), format!("test-host-{}", rank / 2));
        let mut variables = vec![
            ("RANK", &number[..]),
            ("WORLD_SIZE", &size),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
            ("ND_TRANSPORT", transport.0),
            // The first rank whose time is up ends it for all.
            ("ND_TIMEOUT", if rank == 0 { "1500ms" } else { "120s" }),
            ("ND_RECORDER_DIR", "none"),
        ];
        if transport.1 {
            variables.push(("ND_HOSTID", &host));
        }
        Process::start(role, &format!("rank{rank}"), &variables, 1024, folder)
    };
    (0..RANKS).map(start).collect()
}

fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_raw(process.id().cast_signed()).expect("a process");
    kill_process(pid, signal).expect("it is there");
}

/// What a rank was told, without its own number.
fn story(process: &mut Process) -> String {
    process.wait_for("\n.");
    let said = process.said();
    let line = said.lines().find_map(|line| line.split_once("told: ")).expect("what it was told").1;
    line.split_once(": ").map_or(line, |(_, story)| story).to_owned()
}

/// Plays a rank that makes calls until one fails, and says what it was told.
fn play(mut call: impl FnMut(&Communicator, usize) -> nd_comm::Result<()>) {
    let comm = Communicator::from_env().expect("a communicator");
    let all_are_there = comm.barrier().err();
    let error =
        all_are_there.or_else(|| (0..).find_map(|round| call(&comm, round).err())).expect("one fails");
    println!("told: {error}\n.");
    // Whoever leaves first is lost to those who still ask it.
    std::io::stdin().read_line(&mut String::new()).expect("a line, or none");
    assert!(matches!(error, Error::Timeout { .. } | Error::Transport { .. } | Error::PeerFailed { .. }));
}

#[test]
fn one_that_sleeps_is_named_by_all_with_its_host_and_process() {
    for transport in TRANSPORTS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut ranks = start("sleeps_before_its_second_call", transport, folder.path());
        let stories: Vec<String> = ranks.iter_mut().map(story).collect();
        for told in &stories {
            assert_eq!(*told, stories[0], "{transport:?}");
        }
        let pid = ranks[CULPRIT].id();
        let parts = [
            "all_reduce(1000 × float, sum) as call 3 did not finish within 1.5 s; rank 0 (",
            &format!("rank {CULPRIT} ("),
            &format!(", pid {pid}) has not: "),
            "broadcast(7 × uint8, root 2) as call 2",
        ];
        assert!(parts.iter().all(|part| stories[0].contains(part)), "{transport:?}: {}", stories[0]);
    }
}

#[test]
#[ignore = "started by one_that_sleeps_is_named_by_all_with_its_host_and_process"]
fn sleeps_before_its_second_call() {
    play(|comm, round| {
        comm.broadcast(&mut [1u8; 7], CULPRIT)?;
        if comm.rank() == CULPRIT && round == 0 {
            std::thread::sleep(Duration::from_secs(4));
        }
        comm.all_reduce(&mut [1f32; 1000], ReduceOp::Sum)
    });
}

#[test]
fn one_that_was_stopped_is_named_by_all_and_learns_it_when_it_goes_on() {
    for transport in TRANSPORTS {
        for size in ["small", "large"] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut ranks = start(&format!("reduces_{size}_buffers"), transport, folder.path());
            ranks[CULPRIT].wait_for("going on");
            signal(&ranks[CULPRIT], Signal::STOP);
            let others = (0..RANKS).filter(|rank| *rank != CULPRIT);
            let stories: Vec<String> = others.map(|rank| story(&mut ranks[rank])).collect();
            signal(&ranks[CULPRIT], Signal::CONT);
            let last = story(&mut ranks[CULPRIT]);
            for told in stories.iter().chain([&last]) {
                assert_eq!(*told, stories[0], "{transport:?}, {size}");
            }
            let (said, told) = stories[0].split_once(" did not finish within 1.5 s; ").expect("what it was");
            assert!(said.starts_with("all_reduce("), "{transport:?}, {size}: {told}");
            let named = format!("rank {CULPRIT} (");
            let missing = told.rsplit("; ").next().expect("who is missing");
            assert!(missing.starts_with(&named), "{transport:?}, {size}: {told}");
            let pid = format!("pid {})", ranks[CULPRIT].id());
            assert!(missing.contains(&pid) && missing.contains("all_reduce("), "{transport:?}: {told}");
        }
    }
}

fn reduces(len: usize) {
    play(|comm, round| {
        if round == 50 {
            println!("going on");
        }
        comm.all_reduce(&mut vec![1f32; len], ReduceOp::Sum)
    });
}

#[test]
#[ignore = "started by one_that_was_stopped_is_named_by_all_and_learns_it_when_it_goes_on"]
fn reduces_small_buffers() {
    reduces(4);
}

#[test]
#[ignore = "started by one_that_was_stopped_is_named_by_all_and_learns_it_when_it_goes_on"]
fn reduces_large_buffers() {
    reduces(100_000);
}

#[test]
fn one_that_exited_is_named_by_all() {
    for transport in TRANSPORTS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut ranks = start("exits_before_its_second_call", transport, folder.path());
        for rank in (0..RANKS).filter(|rank| *rank != CULPRIT) {
            let told = story(&mut ranks[rank]);
            assert!(told.contains(&format!("rank {CULPRIT} ")), "{transport:?}, rank {rank}: {told}");
            assert!(!told.contains("did not finish"), "{transport:?}, rank {rank}: {told}");
        }
    }
}

#[test]
#[ignore = "started by one_that_exited_is_named_by_all"]
fn exits_before_its_second_call() {
    play(|comm, _| {
        comm.broadcast(&mut [1u8; 7], CULPRIT)?;
        if comm.rank() == CULPRIT {
            std::process::exit(0);
        }
        comm.all_reduce(&mut [1f32; 1000], ReduceOp::Sum)
    });
}

#[test]
fn a_rank_0_that_was_stopped_past_the_start_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = nd_tests::jobs::free_port();
    let begin = |rank: usize| {
        let (number, port) = (rank.to_string(), port.to_string());
        let variables = [
            ("RANK", &number[..]),
            ("WORLD_SIZE", "3"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
            ("ND_START_TIMEOUT", "3s"),
            ("ND_RECORDER_DIR", "none"),
        ];
        Process::start("starts_in_vain", &format!("rank{rank}"), &variables, 1024, folder.path())
    };
    let mut zero = begin(0);
    zero.wait_until("listens", |process| process.ports().contains(&port));
    signal(&zero, Signal::STOP);
    // Its own time began after that of rank 0.
    let mut one = begin(1);
    one.wait_for("\n.");
    signal(&zero, Signal::CONT);
    zero.wait_for("\n.");
    let said = zero.said();
    let itself = format!("rank 0 (host {}, pid {}) itself", nd_transport::host_name(), zero.id());
    assert!(said.contains(&itself) && said.contains("did not run for"), "{said}");
    assert!(said.contains("it was stopped, or had no core"), "{said}");
}

#[test]
#[ignore = "started by a_rank_0_that_was_stopped_past_the_start_says_so"]
fn starts_in_vain() {
    println!("told: {}\n.", Communicator::from_env().expect_err("one never comes"));
}
