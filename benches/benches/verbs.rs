//! The verbs transport beside perftest: `cargo bench -p nd-benches --bench verbs`.
//!
//! Runs in two virtual machines with Soft-RoCE that one link joins (see [`nd_tests::machines`]), all of it in one boot:
//! in each round first perftest, then ours. One-way latency of 8 bytes beside `ib_write_lat`, and beside `ib_send_lat`,
//! which uses the same kind of message as our short puts; 1 MiB puts beside `ib_write_bw`; and a 16 MiB all-reduce beside
//! what `ib_write_bw -b` allows it: both ranks send and receive 16 MiB at once. Medians of the rounds, and of their ratios.
#![allow(unsafe_code)] // puts lend memory

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nd_comm::prelude::*;
use nd_tests::machines;
use nd_transport::secure::Secret;
use nd_transport::{Card, Choice, Endpoint, Part, Signal, Step, Window};

const ROUNDS: usize = 7;
const SMALL: usize = 8;
const LARGE: usize = 1 << 20;
const REDUCED: usize = 16 << 20;
/// Small messages there and back in a round, and large ones one after the other.
const PINGS: u64 = 200;
const PUTS: u64 = 24;
/// No wait takes so long; emulated machines are slow.
const PATIENCE: Duration = Duration::from_secs(60);
const CONTROL: u16 = 7100;

fn main() {
    if machines::inside() {
        return inside();
    }
    let Some(ndvm) = machines::ndvm("benchmark of verbs") else { return };
    let program = std::env::current_exe().expect("this program's path");
    let out = machines::run(&ndvm, &["--hosts", "2", "--mtu", "4500"], &[&program.display().to_string()]);
    print!("{}", String::from_utf8_lossy(&out.stdout));
    if !out.status.success() {
        eprint!("{}", String::from_utf8_lossy(&out.stderr));
        std::process::exit(1);
    }
}

/// One of the two hosts.
fn inside() {
    let mut other = Other::meet();
    let (endpoint, window) = other.endpoint();
    let comm = other.communicator();
    let mut reduced = comm.alloc::<f32>(REDUCED / 4).expect("registered memory");
    let ours = Ours { endpoint, window, bytes: vec![1; LARGE] };
    let mut rows: [Vec<[f64; 2]>; 4] = Default::default();
    let (mut pings, mut puts) = (0, 0);
    // The first round warms up.
    for round in 0..=ROUNDS {
        let latency = perftest(&mut other, "ib_write_lat", SMALL, PINGS, &[]);
        let half = ours.ping_pong(&mut pings);
        let sent = perftest(&mut other, "ib_send_lat", SMALL, PINGS, &["--use-srq"]);
        let bandwidth = perftest(&mut other, "ib_write_bw", LARGE, PUTS, &[]);
        let poured = ours.pour(&mut puts);
        let both = perftest(&mut other, "ib_write_bw", LARGE, PUTS, &["-b"]);
        comm.barrier().expect("a barrier");
        let began = Instant::now();
        comm.all_reduce(&mut reduced, ReduceOp::Sum).expect("an all-reduce");
        let rate = REDUCED as f64 / began.elapsed().as_secs_f64() / 1e6;
        if round > 0 {
            rows[0].push([latency, half]);
            rows[1].push([bandwidth, poured]);
            rows[2].push([both / 2.0, rate]);
            rows[3].push([sent, half]);
        }
    }
    if other.me == 0 {
        show("8 B one way, µs: ib_write_lat", &rows[0]);
        show("8 B one way, µs: ib_send_lat --use-srq", &rows[3]);
        show("1 MiB puts, MB/s: ib_write_bw", &rows[1]);
        show("16 MiB all-reduce, MB/s each way: half of ib_write_bw -b", &rows[2]);
    }
}

fn show(what: &str, pairs: &[[f64; 2]]) {
    let of = |f: fn(&[f64; 2]) -> f64| {
        let mut values: Vec<f64> = pairs.iter().map(f).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (theirs, ours, ratio) = (of(|p| p[0]), of(|p| p[1]), of(|p| p[1] / p[0]));
    println!("{what} {theirs:.1}, ours {ours:.1}, ratio {ratio:.2}");
}

/// The other host, for what the two must agree on.
struct Other {
    me: usize,
    address: String,
    stream: BufReader<TcpStream>,
}

impl Other {
    fn meet() -> Other {
        let of = |name| std::env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let me: usize = of("NDVM_HOST_INDEX").parse().expect("a number");
        let address = of("NDVM_PEER_ADDR");
        let stream = if me == 0 {
            TcpListener::bind(("0.0.0.0", CONTROL)).and_then(|l| l.accept()).expect("the other host").0
        } else {
            let began = Instant::now();
            loop {
                match TcpStream::connect((address.as_str(), CONTROL)) {
                    Ok(stream) => break stream,
                    Err(e) if began.elapsed() > PATIENCE => panic!("host 0: {e}"),
                    Err(_) => std::thread::sleep(Duration::from_millis(50)),
                }
            }
        };
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        Other { me, address, stream: BufReader::new(stream) }
    }

    /// Tells the other host something, and what it tells.
    fn exchange(&mut self, line: &str) -> String {
        writeln!(self.stream.get_mut(), "{line}").expect("the other host reads");
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the other host writes");
        line.trim_end().to_owned()
    }

    fn endpoint(&mut self) -> (Endpoint, Window) {
        let mut config = nd_transport::Config { transport: Choice::Verbs, ..Default::default() };
        config.verbs.timeout = 16;
        let opening = Endpoint::open(&config).expect("it opens");
        let theirs = self.exchange(&serde_json::to_string(opening.card()).expect("text"));
        let theirs: Card = serde_json::from_str(&theirs).expect("a card");
        let mut cards = vec![opening.card().clone(), theirs];
        cards.rotate_right(self.me);
        // Two hosts of our own with nothing in between.
        let secret = Secret::from_bytes([7; 32]);
        let endpoint =
            opening.connect(self.me, cards, &secret, Instant::now() + PATIENCE).expect("it connects");
        let window = endpoint.region().alloc(DATA + LARGE as u64, true).expect("a window");
        (endpoint, window)
    }

    fn communicator(&mut self) -> Communicator {
        let config = Config::from_env().and_then(|c| c.with("ND_TRANSPORT", "verbs")).expect("settings");
        let id = (self.me == 0).then(|| UniqueId::create(&config).expect("an id"));
        let told = self.exchange(&id.as_ref().map_or("-".into(), UniqueId::to_secret_string));
        let id = id.unwrap_or_else(|| told.parse().expect("an id"));
        Communicator::new(&id, self.me, 2, &config).expect("both ranks")
    }
}

/// Runs one of perftest's programs on both hosts: µs of `ib_write_lat` and `ib_send_lat` (the median), MB/s (1e6) of `ib_write_bw` (the
/// average); of use on host 1, which gives it to host 0.
fn perftest(other: &mut Other, program: &str, size: usize, iterations: u64, more: &[&str]) -> f64 {
    let run = |address: Option<&str>| {
        let gid = std::env::var("NDVM_RDMA_GID_INDEX").unwrap_or_else(|_| "1".into());
        let (size, iterations) = (size.to_string(), iterations.to_string());
        Command::new(program)
            .args(["-d", "rxe0", "-x", &gid, "-s", &size, "-n", &iterations, "-F", "-u", "16"])
            .args(more)
            .args(address)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{program}: {e}"))
    };
    if other.me == 0 {
        let server = run(None);
        other.exchange("listening");
        let status = server.wait_with_output().expect("its end");
        assert!(status.status.success(), "{program}: {}", String::from_utf8_lossy(&status.stderr));
        return other.exchange("done").parse().expect("a number");
    }
    other.exchange("ready");
    // It takes a moment until the server listens.
    let began = Instant::now();
    let said = loop {
        let client = run(Some(&other.address)).wait_with_output().expect("its end");
        if client.status.success() {
            break String::from_utf8_lossy(&client.stdout).into_owned();
        }
        assert!(began.elapsed() < PATIENCE, "{program}: {}", String::from_utf8_lossy(&client.stderr));
        std::thread::sleep(Duration::from_millis(100));
    };
    let row = said.lines().find(|l| l.split_whitespace().next() == Some(&size.to_string()));
    let row: Vec<&str> = row.unwrap_or_else(|| panic!("{program} said {said}")).split_whitespace().collect();
    // bytes iterations min max typical …; bytes iterations peak average in MiB/s …
    let value: f64 = match program {
        "ib_write_lat" | "ib_send_lat" => row[4].parse().expect("µs"),
        _ => row[3].parse::<f64>().expect("MiB/s") * (1 << 20) as f64 / 1e6,
    };
    other.exchange(&value.to_string());
    value
}

/// Where the data begin in a window, behind the counters.
const DATA: u64 = 128;
const PING: u64 = 0;
const PUT: u64 = 64;

struct Ours {
    endpoint: Endpoint,
    window: Window,
    bytes: Vec<u8>,
}

impl Ours {
    fn put(&self, len: usize, counter: u64, value: u64) -> nd_transport::Ticket {
        // Both windows were the first of their regions, so they have one place.
        let at = self.window.offset();
        let link = self.endpoint.link(1 - self.endpoint.rank()).expect("a link");
        let signal = Some(Signal { at: at + counter, value });
        // SAFETY: the bytes live as long as the endpoint, and nobody writes them.
        unsafe { link.put(&[Part::of(&self.bytes[..len])], at + DATA, signal) }.expect("a put")
    }

    fn wait(&self, mut there: impl FnMut() -> bool) {
        let look = || -> nd_transport::Result<Step> { Ok(if there() { Step::Done } else { Step::Idle }) };
        assert!(self.endpoint.wait(PATIENCE, look, || Ok(())).expect("no error"), "nothing came");
    }

    fn comes(&self, counter: u64, value: u64) {
        let counter = self.endpoint.region().counter(self.window.offset() + counter);
        self.wait(|| counter.load(Ordering::Acquire) >= value);
    }

    /// The median of half a round trip, µs.
    fn ping_pong(&self, rounds: &mut u64) -> f64 {
        let mut took = Vec::new();
        let mut last = None;
        for _ in 0..PINGS {
            *rounds += 1;
            let began = Instant::now();
            if self.endpoint.rank() == 0 {
                self.put(SMALL, PING, *rounds);
                self.comes(PING, *rounds);
            } else {
                self.comes(PING, *rounds);
                last = Some(self.put(SMALL, PING, *rounds));
            }
            took.push(began.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
        self.flushed(last);
        took.sort_by(f64::total_cmp);
        took[took.len() / 2]
    }

    /// Host 1 puts one after the other, as it does for `ib_write_bw`, until the last is acknowledged; MB/s, as host 0 sees
    /// it.
    fn pour(&self, rounds: &mut u64) -> f64 {
        if self.endpoint.rank() == 0 {
            self.put(SMALL, PUT, *rounds + 1);
            let began = Instant::now();
            *rounds += PUTS;
            self.comes(PUT, *rounds);
            return PUTS as f64 * LARGE as f64 / began.elapsed().as_secs_f64() / 1e6;
        }
        self.comes(PUT, *rounds + 1);
        let mut last = None;
        for _ in 0..PUTS {
            *rounds += 1;
            last = Some(self.put(LARGE, PUT, *rounds));
        }
        self.flushed(last);
        0.0
    }

    /// Until what was put has gone.
    fn flushed(&self, last: Option<nd_transport::Ticket>) {
        let link = self.endpoint.link(1 - self.endpoint.rank()).expect("a link");
        self.wait(|| last.is_none_or(|ticket| link.flushed(ticket)));
    }
}
