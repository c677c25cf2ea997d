//! What trust costs: `cargo bench -p nd-benches --bench trust [-- encryption|strangers]`.
//!
//! **encryption**: all-reduce over tcp with `ND_ENCRYPT=1` beside the same without, and one rank that pours into
//! another; medians of the ratios of alternating pairs. **strangers**: a job that reduces while a thousand connections a
//! second knock at its ranks' ports, beside the same job while as many knock at a listener of nobody's, which is what
//! the machine itself pays for them, and in peace.
#![allow(unsafe_code)] // puts lend memory

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nd_comm::choose::Chooser;
use nd_comm::prelude::*;
use nd_tests::processes::ports;
use nd_tests::worlds::{Kind, each, endpoints, world};
use nd_transport::{Part, Signal, Step};

const PAIRS: usize = 7;
/// How long a job runs for each figure.
const LASTS: Duration = Duration::from_millis(1500);
/// Between two strangers.
const EVERY: Duration = Duration::from_millis(1);
/// No wait takes so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// A call says once in so many rounds whether the time is over.
const ROUNDS: usize = 8;

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |what: &str| asked.is_empty() || asked.iter().any(|a| a == what);
    if wanted("encryption") {
        for mib in [1, 8, 64] {
            let of = |kind: &Kind| reduces(kind, mib << 20, || ()) * (mib << 20) as f64 / 1e9;
            show(&format!("all-reduce, {mib} MiB"), || [of(&Kind::Tcp), of(&Kind::TcpEncrypted)]);
        }
        show("one way, 1 MiB after another", || {
            [&Kind::Tcp, &Kind::TcpEncrypted].map(|kind| pours(kind, 1 << 20))
        });
    }
    if wanted("strangers") {
        let knocked = AtomicUsize::new(0);
        strangers(&knocked);
        println!("{} strangers in all", knocked.load(Ordering::Relaxed));
    }
}

/// Medians over pairs of plain and encrypted, GB/s.
fn show(what: &str, mut pair: impl FnMut() -> [f64; 2]) {
    let pairs: Vec<[f64; 2]> = (0..PAIRS).map(|_| pair()).collect();
    let of = |f: fn(&[f64; 2]) -> f64| median(pairs.iter().map(f).collect());
    let (plain, sealed, ratio) = (of(|p| p[0]), of(|p| p[1]), of(|p| p[1] / p[0]));
    println!("{what}: plain {plain:.2} GB/s, encrypted {sealed:.2} GB/s, ratio {ratio:.3}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// All-reduces of so many bytes that two ranks make in a second; `meanwhile` happens once they run.
fn reduces(kind: &Kind, bytes: usize, meanwhile: impl FnOnce()) -> f64 {
    let world = world(kind, 2, &Chooser::default());
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let ranks = s.spawn(|| {
            each(&world, |comm| {
                let mut values = comm.alloc::<f32>(bytes / 4).expect("memory");
                let mut stop = [0u8];
                comm.all_reduce(&mut values, ReduceOp::Sum).expect("a warm-up");
                let (began, mut rounds) = (Instant::now(), 0);
                while stop == [0] {
                    for _ in 0..ROUNDS {
                        comm.all_reduce(&mut values, ReduceOp::Sum).expect("a call");
                        rounds += 1;
                    }
                    stop = [u8::from(over.load(Ordering::Acquire))];
                    comm.all_reduce(&mut stop, ReduceOp::Max).expect("a call");
                }
                f64::from(rounds) / began.elapsed().as_secs_f64()
            })
        });
        let until = Instant::now() + LASTS;
        meanwhile();
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        over.store(true, Ordering::Release);
        ranks.join().expect("no rank panics")[0]
    })
}

/// GB/s from one rank to the other.
fn pours(kind: &Kind, bytes: usize) -> f64 {
    const COUNTERS: u64 = 64;
    let ends: Vec<_> = endpoints(kind, 2)
        .into_iter()
        .map(|endpoint| {
            let window = endpoint.region().alloc(COUNTERS + bytes as u64, true).expect("a window");
            (endpoint, window)
        })
        .collect();
    let data = vec![1u8; bytes];
    // Both windows were the first of their regions, so they have one place.
    let at = ends[0].1.offset();
    let wait = |me: usize, done: &dyn Fn() -> bool| {
        let look = || Ok::<_, nd_transport::Error>(if done() { Step::Done } else { Step::Idle });
        assert!(ends[me].0.wait(PATIENCE, look, || Ok(())).expect("a wait"), "nothing came");
    };
    let counter = |me: usize| ends[me].0.region().counter(at).load(Ordering::Acquire);
    let link = |me: usize| ends[me].0.link(1 - me).expect("a link");
    // Which round is the last, once that is known.
    let (last, over) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut round = 0;
            while !over.load(Ordering::Acquire) {
                round += 1;
                let signal = Some(Signal { at, value: round });
                // SAFETY: the data outlive the endpoints' use of them: it is waited for until they are flushed.
                let ticket =
                    unsafe { link(0).put(&[Part::of(&data)], at + COUNTERS, signal) }.expect("a put");
                wait(0, &|| link(0).flushed(ticket));
            }
            last.store(round, Ordering::Release);
            wait(0, &|| counter(0) >= round);
        });
        let mut seen = 0;
        let (began, mut counted) = (Instant::now(), None);
        let last = || last.load(Ordering::Acquire);
        while seen < last() {
            wait(1, &|| counter(1) > seen || seen >= last());
            seen = counter(1);
            if counted.is_none() && began.elapsed() >= LASTS {
                counted = Some(seen as f64 / began.elapsed().as_secs_f64());
                over.store(true, Ordering::Release);
            }
        }
        // The last one is answered, so that both leave together.
        link(1).signal(Signal { at, value: seen }).expect("a signal");
        ends[1].0.progress().expect("progress");
        counted.unwrap_or_default() * bytes as f64 / 1e9
    })
}

/// Reduces in peace, while strangers knock at nobody's listener, and while they knock at the ranks' ports.
fn strangers(knocked: &AtomicUsize) {
    const BYTES: usize = 256 << 10;
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = nobody.local_addr().expect("its address").port();
    std::thread::spawn(move || while nobody.accept().is_ok() {});
    let attack = |ports: &[u16], count: &AtomicUsize| {
        let until = Instant::now() + LASTS;
        let mut held = std::collections::VecDeque::new();
        for i in 0.. {
            if Instant::now() >= until {
                return;
            }
            held.extend(knock(ports[i % ports.len()], i));
            count.fetch_add(1, Ordering::Relaxed);
            // Some say nothing and stay.
            if held.len() > 100 {
                held.pop_front();
            }
            std::thread::sleep(EVERY);
        }
    };
    let mut ratios = [vec![], vec![]];
    let others = AtomicUsize::new(0);
    for _ in 0..PAIRS {
        let peace = reduces(&Kind::Tcp, BYTES, || ());
        let elsewhere = reduces(&Kind::Tcp, BYTES, || attack(&[port], &others));
        let here = || {
            let mut ours = ports(std::process::id());
            ours.retain(|p| *p != port);
            attack(&ours, knocked);
        };
        let here = reduces(&Kind::Tcp, BYTES, here);
        ratios[0].push(peace / here);
        ratios[1].push(elsewhere / here);
    }
    let [peace, elsewhere] = ratios.map(median);
    println!(
        "all-reduce, 256 KiB, with strangers: {peace:.3} of the time in peace, {elsewhere:.3} of the time while they knock elsewhere"
    );
}

/// One stranger; its connection if it stays.
fn knock(port: u16, i: usize) -> Option<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    match i % 5 {
        0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").ok()?,
        1 => stream.write_all(b"\x16\x03\x01\x00\xf4\x01\x00\x00\xf0\x03\x03").ok()?,
        2 => stream.write_all(b"nd-op").ok()?,
        3 => {}
        _ => return None,
    }
    Some(stream)
}
