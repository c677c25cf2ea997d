#![allow(unsafe_code, clippy::unwrap_used, missing_docs)]
use nd_transport::secure::Secret;
use nd_transport::*;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn cpu() -> f64 {
    let mut t: libc::timespec = unsafe { std::mem::zeroed() };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// seconds, cpu of rank 0, cpu of rank 1
fn run(encrypt: bool, mode: &str, len: usize, rounds: u64) -> (f64, f64, f64) {
    let config = Config { transport: Choice::Tcp, encrypt, loopback_only: true, ..Config::default() };
    let openings = [0, 1].map(|_| Endpoint::open(&config).unwrap());
    let cards: Vec<_> = openings.iter().map(|o| o.card().clone()).collect();
    let secret = Secret::from_bytes([7; 32]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut out = vec![];
    std::thread::scope(|s| {
        let handles: Vec<_> = openings
            .into_iter()
            .enumerate()
            .map(|(rank, opening)| {
                let (cards, secret) = (cards.clone(), secret.clone());
                s.spawn(move || {
                    let e = opening.connect(rank, cards, &secret, deadline).unwrap();
                    let flags = e.region().alloc(4096, true).unwrap();
                    let win = e.region().alloc(len as u64, true).unwrap();
                    let link = e.link(1 - rank).unwrap().clone();
                    let mut mine = vec![1u8; len];
                    mine[0] = 3;
                    let sends = mode != "one" || rank == 0;
                    let receives = mode != "one" || rank == 1;
                    let wait = |v: u64| {
                        e.wait::<Error>(
                            Duration::from_secs(20),
                            || {
                                Ok(if e.region().counter(flags.offset()).load(Ordering::Acquire) >= v {
                                    Step::Done
                                } else {
                                    Step::Idle
                                })
                            },
                            || Ok(()),
                        )
                        .unwrap()
                    };
                    let mut last = Ticket::default();
                    let (mut t, mut c) = (Instant::now(), cpu());
                    for r in 1..=rounds {
                        if r == 3 {
                            (t, c) = (Instant::now(), cpu());
                        }
                        if sends {
                            let n = 1 << 20;
                            let pieces = len.div_ceil(n);
                            let mut ticket = Ticket::default();
                            for p in 0..pieces {
                                let at = p * n;
                                let piece = &mine[at..len.min(at + n)];
                                let sig =
                                    (p + 1 == pieces).then_some(Signal { at: flags.offset(), value: r });
                                ticket =
                                    unsafe { link.put(&[Part::of(piece)], win.offset() + at as u64, sig) }
                                        .unwrap();
                            }
                            last = ticket;
                            if mode == "one" {
                                e.wait::<Error>(
                                    Duration::from_secs(20),
                                    || Ok(if link.flushed(ticket) { Step::Done } else { Step::Idle }),
                                    || Ok(()),
                                )
                                .unwrap();
                                wait(r);
                            }
                        }
                        if receives {
                            wait(r);
                            if mode == "one" {
                                link.signal(Signal { at: flags.offset(), value: r }).unwrap();
                                e.progress().unwrap();
                            }
                        }
                    }
                    let done = (t.elapsed().as_secs_f64(), cpu() - c);
                    e.wait::<Error>(
                        Duration::from_secs(20),
                        || Ok(if link.flushed(last) { Step::Done } else { Step::Idle }),
                        || Ok(()),
                    )
                    .unwrap();
                    done
                })
            })
            .collect();
        for h in handles {
            out.push(h.join().unwrap());
        }
    });
    (out[0].0, out[0].1, out[1].1)
}

fn main() {
    if let Some(mode) = std::env::args().nth(2) {
        let len = std::env::args().nth(4).map_or(64, |a| a.parse::<usize>().unwrap()) << 20;
        let rounds = ((768usize << 20) / len) as u64 + 2;
        let (t, a, b) = run(std::env::args().nth(3).unwrap() == "1", &mode, len, rounds);
        println!("{:.2} GB/s cpu {:.2} {:.2}", (rounds - 2) as f64 * len as f64 / t / 1e9, a / t, b / t);
        return;
    }
    let pairs: usize = std::env::args().nth(1).map_or(5, |a| a.parse().unwrap());
    for mode in ["one", "both"] {
        for len in [1 << 20, 64 << 20] {
            let rounds = ((512usize << 20) / len).min(300) as u64 + 2;
            let mut ratios = vec![];
            let mut last = (0.0, 0.0, String::new());
            for _ in 0..pairs {
                let g = |e| {
                    let (t, a, b) = run(e, mode, len, rounds);
                    let bytes = (rounds - 2) as f64 * len as f64;
                    (bytes / t / 1e9, a / t, b / t)
                };
                let (p, e) = (g(false), g(true));
                ratios.push(e.0 / p.0);
                last = (p.0, e.0, format!("cpu plain {:.2} {:.2} enc {:.2} {:.2}", p.1, p.2, e.1, e.2));
            }
            ratios.sort_by(f64::total_cmp);
            println!(
                "{mode} {:>3} MiB: plain {:.2} enc {:.2} GB/s; ratio median {:.3} ({:.2}..{:.2}); {}",
                len >> 20,
                last.0,
                last.1,
                ratios[pairs / 2],
                ratios[0],
                ratios[pairs - 1],
                last.2
            );
        }
    }
}
