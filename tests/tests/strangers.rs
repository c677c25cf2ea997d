//! Strangers at the ports of a job, thousands of them: it starts, goes on and is right, at a bounded cost.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nd_comm::prelude::*;
use nd_tests::processes::{Process, Usage};
use nd_transport::secure::{Secret, initiate};

const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// What the rendezvous binds into its handshakes.
const RENDEZVOUS: &[u8] = b"nd rendezvous 1";
/// Open files that a rank may have.
const FILES: u64 = 128;
/// Of these, what rank 0 leaves to strangers while it gathers two ranks: the rest is for the ranks and for itself.
const AT_START: usize = FILES as usize - 2 - 40;
/// What a rank leaves to them later, and the handshakes that it does at a time.
const LATER: usize = FILES as usize / 4;
const HANDSHAKES: usize = 16;
/// Few of them, and idle strangers.
const FEW_FILES: u64 = 64;
const IDLE: usize = 200;
/// KiB by which strangers may make a rank grow.
const MEMORY: usize = 16 << 10;
/// Connections of each attack, in waves.
const WAVES: usize = 20;
const WAVE: usize = 250;

/// Plays a rank: reduces and checks until its input ends.
#[test]
#[ignore = "started by the other tests of this file"]
fn rank() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let comm = Communicator::from_env().unwrap_or_else(|e| panic!("{e}"));
    println!("joined");
    static STOP: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        STOP.store(true, Ordering::Release);
    });
    let mut rounds = 0;
    loop {
        let mut values: Vec<i32> = (0..40_000).map(|i| i * (comm.rank() as i32 + 1) + rounds).collect();
        comm.all_reduce(&mut values, ReduceOp::Sum).unwrap_or_else(|e| panic!("{e}"));
        assert!((0..).zip(&values).all(|(i, v)| *v == 3 * i + 2 * rounds));
        rounds += 1;
        if rounds == 1 {
            println!("reduced");
        }
        let mut stop = [i32::from(STOP.load(Ordering::Acquire))];
        comm.all_reduce(&mut stop, ReduceOp::Max).unwrap_or_else(|e| panic!("{e}"));
        if stop == [1] {
            println!("all {rounds} rounds were right");
            return;
        }
    }
}

fn start(rank: usize, port: u16, folder: &std::path::Path) -> Process {
    start_with(FILES, rank, port, folder)
}

fn start_with(files: u64, rank: usize, port: u16, folder: &std::path::Path) -> Process {
    let (number, port) = (rank.to_string(), port.to_string());
    let variables = [
        ("RANK", &number[..]),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
        ("ND_SECRET", SECRET),
        ("ND_TRANSPORT", "tcp"),
        ("ND_START_TIMEOUT", "120s"),
    ];
    Process::start("rank", &format!("rank{rank}"), &variables, files, folder)
}

fn connect(port: u16) -> Option<TcpStream> {
    let stream =
        TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.set_write_timeout(Some(Duration::from_secs(2))).ok()?;
    Some(stream)
}

/// A stream that keeps what is written to it.
struct Recorder(TcpStream, Vec<u8>);

impl Read for Recorder {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.1.extend_from_slice(bytes);
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The first bytes of a TLS 1.3 client.
const TLS: &[u8] = b"\x16\x03\x01\x00\xf4\x01\x00\x00\xf0\x03\x03abcdefghijklmnopqrstuvwxyz012345";

/// One wave of strangers of all kinds. `recorded`: what a welcome peer once wrote.
fn wave(port: u16, recorded: &[u8], made: &AtomicUsize) {
    let mut held = Vec::new();
    for i in 0..WAVE {
        let Some(mut stream) = connect(port) else { continue };
        made.fetch_add(1, Ordering::Relaxed);
        let said = match i % 25 {
            0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
            1 => stream.write_all(TLS),
            2 => stream.write_all(&std::array::from_fn::<u8, 999, _>(|_| rand::random())),
            // The greeting of a peer, and no more; part of it; all that a peer once said.
            3 => stream.write_all(&recorded[..32.min(recorded.len())]),
            4 => stream.write_all(&recorded[..7.min(recorded.len())]),
            5 => stream.write_all(recorded),
            6 if i < 25 => {
                let _ = initiate(stream, &Secret::random(), RENDEZVOUS);
                continue;
            }
            // Silent, until the wave is over.
            7..16 => Ok(()),
            // A port scan.
            _ => continue,
        };
        if said.is_ok() {
            held.push(stream);
        }
    }
    // Slowly: a byte, and later another.
    for byte in 0..3 {
        for stream in &mut held {
            let _ = stream.write(&recorded[7 + byte..8 + byte]);
        }
    }
}

/// The most that a process had meanwhile.
fn most(process: &Process, during: impl FnOnce() + Send) -> Usage {
    let mut most = process.usage();
    std::thread::scope(|s| {
        let attack = s.spawn(during);
        while !attack.is_finished() {
            let now = process.usage();
            most.files = most.files.max(now.files);
            most.threads = most.threads.max(now.threads);
            most.memory = most.memory.max(now.memory);
            std::thread::sleep(Duration::from_millis(1));
        }
        attack.join().unwrap();
    });
    most
}

#[test]
fn ten_thousand_strangers_neither_keep_a_job_from_starting_nor_disturb_it() {
    let folder = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut zero = start(0, port, folder.path());
    zero.wait_until("listens", |process| process.ports().contains(&port));
    let before = zero.usage();

    // One that knows the secret, to have something to repeat; it says nothing more, and is no rank.
    let recorded = {
        let recorder = Recorder(connect(port).unwrap(), Vec::new());
        let session = initiate(recorder, &Secret::from_hex(SECRET).unwrap(), RENDEZVOUS).unwrap();
        session.into_inner().1
    };
    let made = AtomicUsize::new(0);
    let mut one = None;
    let during = most(&zero, || {
        for n in 0..WAVES {
            wave(port, &recorded, &made);
            // Rank 1 comes when half of them are through.
            if n == WAVES / 2 {
                one = Some(start(1, port, folder.path()));
            }
            // The port is closed once all are there.
            if one.as_ref().is_some_and(|one| one.said().contains("joined")) {
                break;
            }
        }
    });
    println!("start: {before:?}, during the attack {during:?}, {} connections", made.load(Ordering::Relaxed));
    // Rank 0 goes on to open what a rank has: its links need files and threads of their own.
    let (links, link_threads) = (12, 3);
    assert!(during.files <= before.files + AT_START + links, "{before:?} {during:?}");
    assert!(during.threads <= before.threads + AT_START + 1 + link_threads, "{before:?} {during:?}");
    assert!(during.memory <= before.memory + MEMORY, "{before:?} {during:?}");
    let mut one = one.expect("half of the waves have come");
    zero.wait_for("reduced");
    one.wait_for("reduced");

    // While it runs: both ranks' ports, in turn.
    let ports: Vec<u16> = [&zero, &one].iter().flat_map(|process| process.ports()).collect();
    assert_eq!(ports.len(), 2, "one port a rank");
    for (process, port) in [(&zero, ports[0]), (&one, ports[1])] {
        let before = process.usage();
        let during = most(process, || (0..WAVES).for_each(|_| wave(port, &recorded, &made)));
        println!("run: {before:?}, during the attack {during:?}");
        assert!(during.files <= before.files + LATER + HANDSHAKES + 1, "{before:?} {during:?}");
        assert!(during.threads <= before.threads + HANDSHAKES, "{before:?} {during:?}");
        assert!(during.memory <= before.memory + MEMORY, "{before:?} {during:?}");
    }
    let made = made.load(Ordering::Relaxed);
    assert!(made >= 10_000, "{made} connections");
    let input = (zero.input(), one.input());
    drop(input);
    for process in [&mut zero, &mut one] {
        assert!(process.end(), "{}", process.said());
        assert!(process.said().contains("rounds were right"), "{}", process.said());
    }
    // One line for the one source and ten seconds, and at the end what no line was about.
    for process in [&zero, &one] {
        let said = process.said();
        let all: Vec<&str> =
            said.lines().filter(|l| l.contains("refused") || l.contains("sent away")).collect();
        let possible = 2 * (begin.elapsed().as_secs() as usize / 10 + 2);
        assert!(!all.is_empty() && all.len() <= possible, "{} lines of {possible}:\n{said}", all.len());
        println!("{}", all.join("\n"));
    }
}

/// They say nothing, and hold more connections than rank 0 may have files.
#[test]
fn idle_strangers_use_up_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut zero = start_with(FEW_FILES, 0, port, folder.path());
    zero.wait_until("listens", |process| process.ports().contains(&port));
    let idle: Vec<_> = (0..IDLE).filter_map(|_| connect(port)).collect();
    assert!(idle.len() as u64 > 2 * FEW_FILES, "{} strangers", idle.len());
    let mut one = start_with(FEW_FILES, 1, port, folder.path());
    for process in [&mut zero, &mut one] {
        process.wait_for("reduced");
    }
    drop((zero.input(), one.input()));
    for process in [&mut zero, &mut one] {
        assert!(process.end(), "{}", process.said());
    }
}

#[test]
fn a_rank_of_another_job_is_refused_although_it_knows_the_secret() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let join = |rank: usize, job: &str| {
        let config = Config::default()
            .with("ND_JOB", job)
            .and_then(|c| c.with("ND_SECRET", SECRET))
            .and_then(|c| c.with("ND_START_TIMEOUT", "3s"))
            .unwrap();
        let environment: nd_comm::config::Environment = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "2".into()),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", port.to_string()),
        ]
        .into_iter()
        .collect();
        let launch = nd_comm::launch::Launch::from_environment(&environment).unwrap();
        Communicator::from_launch(&launch, &config).err().map(|e| e.to_string())
    };
    let [zero, one] = std::thread::scope(|s| {
        let one = s.spawn(|| join(1, "green"));
        [join(0, "blue"), one.join().unwrap()].map(|e| e.expect("an error"))
    });
    println!("{zero}\n{one}");
    assert!(one.contains("belongs to another (ND_JOB)"), "{one}");
    assert!(zero.contains("rank 1 of 2 did not join") && zero.contains("refused meanwhile"), "{zero}");
}
