//! The tcp transport beside bare sockets over loopback: `cargo bench -p nd-benches --bench sockets`.
//!
//! Two threads that spin. Each number is the best of many short batches, since the machine may be busy with other
//! things.
#![allow(unsafe_code)] // puts lend memory

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nd_tests::worlds::{Kind, endpoints};
use nd_transport::{Endpoint, Part, Signal, Window};

/// Two ends, 0 and 1.
trait Ends: Sync {
    /// The `round`th small message from `me`.
    fn send(&self, me: usize, round: u64);
    /// Until it came.
    fn receive(&self, me: usize, round: u64);
    /// From 0 to 1, the `round`th large one.
    fn pour(&self, bytes: &[u8], round: u64);
    /// Until it came.
    fn drink(&self, bytes: &mut [u8], round: u64);
}

const SMALL: usize = 8;
const LARGE: usize = 1 << 20;
const BATCHES: u64 = 200;
const ROUNDS: u64 = 50;
const LARGE_BATCHES: u64 = 32;
const LARGE_ROUNDS: u64 = 40;
/// No message takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() {
    let show = |what: &str, unit: &str, bare: f64, ours: f64| {
        println!("{what}: bare {bare:.2} {unit}, tcp transport {ours:.2} {unit}, ratio {:.2}", ours / bare);
    };
    let small = format!("{SMALL} B there and back, halved");
    show(&small, "µs", ping_pong(&Bare::both_ways()), ping_pong(&Ours::new()));
    let each = format!("{small}, a socket for each way");
    show(&each, "µs", ping_pong(&Bare::one_way()), ping_pong(&Ours::new()));
    let both = format!("{SMALL} B both ways at once");
    show(&both, "µs", exchange(&Bare::both_ways()), exchange(&Ours::new()));
    show("1 MiB after another, one way", "GB/s", stream(&Bare::both_ways()), stream(&Ours::new()));
}

/// Half a round trip of the best batch, µs.
fn ping_pong(ends: &impl Ends) -> f64 {
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 1..=BATCHES * ROUNDS {
                ends.receive(1, i);
                ends.send(1, i);
            }
        });
        let batch = |b| {
            let began = Instant::now();
            for i in b * ROUNDS + 1..=(b + 1) * ROUNDS {
                ends.send(0, i);
                ends.receive(0, i);
            }
            began.elapsed().as_secs_f64()
        };
        (0..BATCHES).map(batch).fold(f64::INFINITY, f64::min) * 1e6 / ROUNDS as f64 / 2.0
    })
}

/// Each end sends, then receives: a round of the best batch, µs.
fn exchange(ends: &impl Ends) -> f64 {
    let rounds = |me: usize, b: u64| {
        for i in b * ROUNDS + 1..=(b + 1) * ROUNDS {
            ends.send(me, i);
            ends.receive(me, i);
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| (0..BATCHES).for_each(|b| rounds(1, b)));
        let batch = |b| {
            let began = Instant::now();
            rounds(0, b);
            began.elapsed().as_secs_f64()
        };
        (0..BATCHES).map(batch).fold(f64::INFINITY, f64::min) * 1e6 / ROUNDS as f64
    })
}

/// The best batch, GB/s.
fn stream(ends: &impl Ends) -> f64 {
    std::thread::scope(|s| {
        s.spawn(|| {
            let bytes = vec![1; LARGE];
            (1..=LARGE_BATCHES * LARGE_ROUNDS).for_each(|i| ends.pour(&bytes, i));
        });
        let mut bytes = vec![0; LARGE];
        let batch = |b| {
            let began = Instant::now();
            (b * LARGE_ROUNDS + 1..=(b + 1) * LARGE_ROUNDS).for_each(|i| ends.drink(&mut bytes, i));
            began.elapsed().as_secs_f64()
        };
        let best = (0..LARGE_BATCHES).map(batch).fold(f64::INFINITY, f64::min);
        LARGE_ROUNDS as f64 * LARGE as f64 / best / 1e9
    })
}

/// Spins until `done`.
fn until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    let mut polls = 0u32;
    while !done() {
        polls = polls.wrapping_add(1);
        assert!(
            !polls.is_multiple_of(1 << 16) || began.elapsed() < PATIENCE,
            "nothing came for {PATIENCE:?}"
        );
    }
}

/// Bare sockets: for each end the one it sends on, then the one it receives from.
struct Bare([[TcpStream; 2]; 2]);

impl Bare {
    fn both_ways() -> Bare {
        let [a, b] = Bare::pair();
        let again = |s: &TcpStream| s.try_clone().expect("another handle");
        Bare([[again(&a), a], [again(&b), b]])
    }

    fn one_way() -> Bare {
        let ([a, b], [c, d]) = (Bare::pair(), Bare::pair());
        Bare([[a, d], [c, b]])
    }

    fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let a = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        let b = listener.accept().expect("its other end").0;
        for s in [&a, &b] {
            s.set_nodelay(true).and_then(|()| s.set_nonblocking(true)).expect("options");
        }
        [a, b]
    }
}

impl Ends for Bare {
    fn send(&self, me: usize, _: u64) {
        (&self.0[me][0]).write_all(&[0; SMALL]).expect("room for a small message");
    }

    fn receive(&self, me: usize, _: u64) {
        until(|| (&self.0[me][1]).read(&mut [0; SMALL]).is_ok());
    }

    fn pour(&self, mut bytes: &[u8], _: u64) {
        until(|| {
            bytes = &bytes[(&self.0[0][0]).write(bytes).unwrap_or(0)..];
            bytes.is_empty()
        });
    }

    fn drink(&self, bytes: &mut [u8], _: u64) {
        let mut done = 0;
        until(|| {
            done += (&self.0[1][1]).read(&mut bytes[done..]).unwrap_or(0);
            done == bytes.len()
        });
    }
}

/// The transport: for each end its endpoint and a window that the other puts into, two counters and data.
struct Ours([(Endpoint, Window); 2]);

/// Where the data begin in a window, behind the counters.
const DATA: u64 = 64;

impl Ours {
    fn new() -> Ours {
        let mut ends = endpoints(&Kind::Tcp, 2).into_iter().map(|endpoint| {
            let window = endpoint.region().alloc(DATA + LARGE as u64, true).expect("a window");
            (endpoint, window)
        });
        let mut next = || ends.next().expect("two endpoints");
        Ours([next(), next()])
    }

    fn put(&self, me: usize, bytes: &[u8], counter: u64, value: u64) -> nd_transport::Ticket {
        let (endpoint, window) = &self.0[me];
        // Both windows were the first of their regions, so they have one place.
        let at = window.offset();
        let signal = Signal { at: at + counter, value };
        let link = endpoint.link(1 - me).expect("a link to the other");
        // SAFETY: the caller keeps the bytes until the ticket is flushed; small ones are copied.
        unsafe { link.put(&[Part::of(bytes)], at + DATA, Some(signal)) }.expect("a put")
    }

    fn comes(&self, me: usize, counter: u64, value: u64) {
        let (endpoint, window) = &self.0[me];
        until(|| {
            endpoint.progress().expect("progress");
            endpoint.region().counter(window.offset() + counter).load(Ordering::Acquire) >= value
        });
    }
}

impl Ends for Ours {
    fn send(&self, me: usize, round: u64) {
        self.put(me, &[0; SMALL], 0, round);
        self.0[me].0.progress().expect("progress");
    }

    fn receive(&self, me: usize, round: u64) {
        self.comes(me, 0, round);
    }

    fn pour(&self, bytes: &[u8], round: u64) {
        let ticket = self.put(0, bytes, 8, round);
        let endpoint = &self.0[0].0;
        let link = endpoint.link(1).expect("a link to the other");
        until(|| {
            endpoint.progress().expect("progress");
            link.flushed(ticket)
        });
    }

    fn drink(&self, _: &mut [u8], round: u64) {
        self.comes(1, 8, round);
    }
}
