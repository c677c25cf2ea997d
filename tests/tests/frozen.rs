//! A rank stops in the middle of storing a result in another one's memory: the other gives up, goes on with that memory,
//! and whatever the stopped one still writes when it wakes is not seen there.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use nd_comm::communicator::Communicator;
use nd_comm::number::ReduceOp;
use nd_tests::processes::Process;
use rustix::process::{Pid, Signal, kill_process};

/// Long enough to be stopped in the middle of.
const ELEMENTS: usize = 16 << 20;
/// Each stops the rank at another moment of a call, which takes some ten milliseconds.
const ROUNDS: u64 = 6;
const SOON: Duration = Duration::from_secs(60);

fn start(rank: usize, port: u16, folder: &Path) -> Process {
    let (number, port) = (rank.to_string(), port.to_string());
    let variables = [
        ("RANK", &number[..]),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
        ("ND_TRANSPORT", "shm"),
        ("ND_TIMEOUT", "60"),
    ];
    Process::start("reduces_until_it_fails", &format!("rank{rank}"), &variables, 1024, folder)
}

fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_raw(process.id().cast_signed()).expect("a process");
    kill_process(pid, signal).expect("it is there");
}

#[test]
fn what_a_stopped_rank_writes_when_it_wakes_reaches_nobody() {
    for round in 0..ROUNDS {
        let folder = tempfile::tempdir().expect("a folder");
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let [mut survivor, mut frozen] = [0, 1].map(|rank| start(rank, port, folder.path()));
        survivor.wait_for("all is well");
        // Not to wait for anything: to stop it at another moment each time.
        std::thread::sleep(Duration::from_millis(20 + 7 * round));
        signal(&frozen, Signal::STOP);
        survivor.wait_for("gave up:");
        signal(&frozen, Signal::CONT);
        frozen.wait_for("gave up:");
        survivor.input().expect("it listens").write_all(b"look\n").expect("it listens");
        survivor.wait_for("unchanged");
    }
}

#[test]
#[ignore = "started by what_a_stopped_rank_writes_when_it_wakes_reaches_nobody"]
fn reduces_until_it_fails() {
    let comm = Communicator::from_env().expect("a communicator");
    let ones = {
        let mut ones = comm.alloc::<f32>(ELEMENTS).expect("memory");
        ones.fill(1.0);
        ones
    };
    let mut sums = comm.alloc::<f32>(ELEMENTS).expect("memory");
    let began = Instant::now();
    // The first calls find their memory, which takes its time.
    let soon = comm.with_timeout(if comm.rank() == 0 { Duration::from_secs(1) } else { SOON });
    let mut calls = 0;
    let error = loop {
        let comm = if calls < 3 { &comm } else { &soon };
        if let Err(e) = comm.all_reduce_into(&ones[..], &mut sums[..], ReduceOp::Sum) {
            break e;
        }
        calls += 1;
        if calls == 3 {
            println!("all is well");
        }
        assert!(began.elapsed() < SOON, "nobody was stopped");
    };
    // From here on it is this rank's alone.
    sums.fill(7.0);
    println!("gave up: {error}");
    if comm.rank() == 0 {
        std::io::stdin().read_line(&mut String::new()).expect("a line");
        assert!(sums.iter().all(|&x| x == 7.0), "somebody wrote into it");
        drop(sums);
        let again = comm.alloc::<f32>(ELEMENTS).expect("memory");
        assert!(again.iter().all(|&x| x == 0.0), "memory of somebody else");
        println!("unchanged");
    }
}
