//! A rank stops in the middle of storing a result in another one's memory: the other gives up, goes on with that memory,
//! and whatever the stopped one still writes when it wakes is not seen there.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nd_comm::communicator::Communicator;
use nd_comm::number::ReduceOp;
use rustix::process::{Pid, Signal, kill_process};

/// Long enough to be stopped in the middle of.
const ELEMENTS: usize = 16 << 20;
/// Each stops the rank at another moment of a call, which takes some ten milliseconds.
const ROUNDS: u64 = 6;
const SOON: Duration = Duration::from_secs(60);

struct Rank {
    child: Child,
    says: Lines<BufReader<ChildStdout>>,
    hears: ChildStdin,
}

impl Rank {
    fn start(rank: usize, port: u16) -> Rank {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "reduces_until_it_fails", "--ignored", "--nocapture"])
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("ND_TRANSPORT", "shm")
            .env("ND_TIMEOUT", if rank == 0 { "1" } else { "60" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let says = BufReader::new(child.stdout.take().expect("its output")).lines();
        let hears = child.stdin.take().expect("its input");
        Rank { child, says, hears }
    }

    fn says(&mut self, what: &str) {
        let found = self.says.by_ref().map_while(Result::ok).any(|line| line.contains(what));
        assert!(found, "it never said {what:?}");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it is there");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_a_stopped_rank_writes_when_it_wakes_reaches_nobody() {
    for round in 0..ROUNDS {
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let (mut survivor, mut frozen) = (Rank::start(0, port), Rank::start(1, port));
        survivor.says("all is well");
        std::thread::sleep(Duration::from_millis(20 + 7 * round));
        frozen.signal(Signal::STOP);
        survivor.says("gave up:");
        frozen.signal(Signal::CONT);
        frozen.says("gave up:");
        survivor.hears.write_all(b"look\n").expect("it listens");
        survivor.says("unchanged");
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
    let mut calls = 0;
    let error = loop {
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
