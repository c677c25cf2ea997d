//! A communicator is dropped while its peers are dead, stopped or slow: that ends in time, without a panic.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use nd_comm::choose::Chooser;
use nd_comm::communicator::Communicator;
use nd_comm::number::ReduceOp;
use nd_tests::processes::Process;
use nd_tests::worlds::{Kind, each, world_with};
use rustix::process::{Pid, Signal, kill_process};

/// The limit that ranks of these tests have for their start, and so for leaving.
const LIMIT: Duration = Duration::from_secs(3);
/// Far above that limit and what a busy machine adds, far below everything else that might be waited for.
const BOUND: Duration = Duration::from_secs(20);

fn start(rank: usize, port: u16, transport: &str, folder: &Path) -> Process {
    let (number, port, limit) = (rank.to_string(), port.to_string(), LIMIT.as_secs().to_string());
    let variables = [
        ("RANK", &number[..]),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
        ("ND_TRANSPORT", transport),
        ("ND_START_TIMEOUT", &limit),
        ("ND_SOCKET_BUFFER", "64K"),
        ("ND_RECORDER_DIR", "none"),
    ];
    Process::start("sends_and_leaves", &format!("rank{rank}"), &variables, 1024, folder)
}

fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_raw(process.id().cast_signed()).expect("a process");
    kill_process(pid, signal).expect("it is there");
}

/// A peer that reads nothing is slow until the test ends.
#[test]
fn whatever_has_become_of_the_peer() {
    for transport in ["shm", "tcp"] {
        for struck in [Some(Signal::KILL), Some(Signal::STOP), None] {
            let folder = tempfile::tempdir().expect("a folder");
            let bound = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
            let port = bound.expect("a port").port();
            let [mut leaving, mut staying] = [0, 1].map(|rank| start(rank, port, transport, folder.path()));
            leaving.wait_for("all is well");
            staying.wait_for("all is well");
            if let Some(struck) = struck {
                signal(&staying, struck);
            }
            leaving.input().expect("it listens").write_all(b"leave\n").expect("it listens");
            leaving.wait_for("left after ");
            let said = leaving.said();
            let took = said.split("left after ").nth(1).and_then(|rest| rest.split_whitespace().next());
            let took = Duration::from_millis(took.and_then(|ms| ms.parse().ok()).expect("a number"));
            assert!(took < BOUND, "{transport}, {struck:?}: {took:?}");
            assert!(!said.contains("panicked") && leaving.end(), "{transport}, {struck:?}: {said}");
        }
    }
}

#[test]
#[ignore = "started by whatever_has_become_of_the_peer"]
fn sends_and_leaves() {
    let comm = Communicator::from_env().expect("a communicator");
    comm.all_reduce(&mut [1f32; 1000], ReduceOp::Sum).expect("both are there");
    println!("all is well");
    std::io::stdin().read_line(&mut String::new()).expect("a line, or the end");
    if comm.rank() == 1 {
        return;
    }
    // As much as the sockets take, and a call that goes on.
    for len in [10, 1000, 10_000] {
        drop(comm.send_start(vec![7u8; len], 1));
    }
    std::thread::sleep(Duration::from_millis(100));
    drop(comm.send_start(vec![7u8; 64 << 20], 1));
    let began = Instant::now();
    drop(comm);
    println!("left after {} ms", began.elapsed().as_millis());
}

#[test]
fn with_peers_that_do_not_call() {
    for kind in Kind::all(3) {
        let mut ranks = world_with(&kind, 3, &Chooser::default(), 30 * BOUND);
        each(&ranks, |comm| comm.barrier().expect("all are there"));
        let leaving = ranks.remove(0);
        let started = [1, 2].map(|peer| leaving.send_start(vec![1u8; 16 << 20], peer).expect("it starts"));
        let began = Instant::now();
        drop(started);
        drop(leaving);
        assert!(began.elapsed() < BOUND, "{kind:?}: {:?}", began.elapsed());
    }
}
