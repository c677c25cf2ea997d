//! A peer that shares memory with a rank and writes nonsense into its inbox: the rank's call ends with an error that
//! names the peer; no memory is touched that the peer was not let into.
#![allow(unsafe_code)] // puts lend memory

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nd_transport::secure::Secret;
use nd_transport::{Config, Endpoint, Part, Signal, Window, local};
use rand::{Rng, RngCore, SeedableRng};

use super::layout::{self, BODY, CREDIT, FAILURE, GRANT_AT, GRANT_LEN, HEAD, LANES, SEQUENCE, descriptor};
use crate::choose::Chooser;
use crate::communicator::Communicator;
use crate::number::ReduceOp;

const TIMEOUT: Duration = Duration::from_secs(2);

/// The peer, played here: rank 1, with an inbox in the place where communicators have it.
struct Peer {
    endpoint: Endpoint,
    inbox: Window,
}

/// Nonsense in a lane: of the words after a descriptor's number the first three are right before it is applied (stamp,
/// count, root with length and kind), then come two of the body.
type Nonsense = fn(&mut [u64; 5], bytes: u64);

const KIND: u32 = 60;

const NONSENSE: &[(&str, Nonsense)] = &[
    ("another call", |w, _| w[0] += 1),
    ("no call at all", |w, _| w[..3].fill(u64::MAX)),
    ("another count", |w, _| w[1] ^= 1 << 63),
    ("the longest length", |w, _| w[2] = w[2] as u32 as u64 | 0x0fff_ffff << 32),
    ("no bytes", |w, _| w[2] = w[2] as u32 as u64),
    ("a kind that is not there", |w, bytes| w[2] = w[2] as u32 as u64 | (bytes + 1) << 32 | 9 << KIND),
    ("a window beyond all memory", |w, bytes| window(w, u64::MAX - 7, bytes)),
    ("a window beyond the region", |w, bytes| window(w, 1 << 50, bytes)),
    ("a window that is too short", |w, bytes| window(w, 4096, bytes - 4)),
    ("a window without end", |w, _| window(w, 4096, u64::MAX)),
    ("an address where nothing is", |w, bytes| place(w, 2, 8, bytes)),
    ("the last address", |w, bytes| place(w, 2, u64::MAX - 3, bytes)),
    ("put where nobody let it", |w, bytes| place(w, 3, 0, bytes)),
];

fn window(words: &mut [u64; 5], at: u64, len: u64) {
    place(words, 1, at, len);
}

fn place(words: &mut [u64; 5], kind: u64, first: u64, second: u64) {
    words[2] = words[2] as u32 as u64 | kind << KIND;
    (words[3], words[4]) = (first, second);
}

impl Peer {
    /// Writes words into the inbox that rank 0 has for this one.
    fn write(&self, lane: usize, at: u64, words: &[u64], signal: Option<(u64, u64)>) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let base = self.inbox.offset() + layout::lane(1, lane);
        let signal = signal.map(|(at, value)| Signal { at: base + at, value });
        // SAFETY: what is put is copied at once where memory is mapped.
        unsafe { self.endpoint.link(0).unwrap().put(&[Part::of(&bytes)], base + at, signal) }.unwrap();
    }

    /// The lanes in which rank 0 has begun to speak, and the stamp it began with.
    fn heard(&self) -> Vec<(usize, [u64; 3])> {
        let until = Instant::now() + Duration::from_secs(20);
        let word = |lane, at| {
            let at = self.inbox.offset() + layout::lane(0, lane) + at;
            self.endpoint.region().counter(at).load(Ordering::Acquire)
        };
        loop {
            let lanes: Vec<_> =
                (0..LANES).filter(|&lane| word(lane, descriptor(0) + SEQUENCE) == 1).collect();
            if !lanes.is_empty() {
                let stamp = |lane| [0, 8, 16].map(|at| word(lane, descriptor(0) + HEAD + at));
                return lanes.into_iter().map(|lane| (lane, stamp(lane))).collect();
            }
            assert!(Instant::now() < until, "rank 0 never spoke");
            std::thread::yield_now();
        }
    }
}

/// Rank 0 reduces `count` numbers with a peer that does `mischief` once it has heard of it; the error.
fn reduce(count: usize, what: &str, mischief: impl FnOnce(&Peer) + Send) -> String {
    let mut endpoints = local::group(2, &Config::default()).unwrap().into_iter();
    let [zero, one] = [endpoints.next().unwrap(), endpoints.next().unwrap()];
    let region = zero.region().clone();
    let comm = Communicator::on(zero, Secret::random(), Chooser::default(), TIMEOUT).unwrap();
    let inbox = one.region().alloc(layout::inbox_len(2), true).unwrap();
    let peer = Peer { endpoint: one, inbox };
    // Around the buffer of the call.
    let before = comm.alloc::<u8>(4096).unwrap();
    let mut values = comm.alloc::<f32>(count).unwrap();
    let after = comm.alloc::<u8>(4096).unwrap();
    let hidden = region.alloc(1 << 16, false).unwrap();
    let e = std::thread::scope(|s| {
        s.spawn(|| mischief(&peer));
        comm.all_reduce(&mut values, ReduceOp::Sum).expect_err(what).to_string()
    });
    assert!(before.iter().chain(after.iter()).all(|&b| b == 0), "{what}");
    for at in (0..1 << 16).step_by(8) {
        assert_eq!(region.counter(hidden.offset() + at).load(Ordering::Relaxed), 0, "{what}");
    }
    e
}

#[test]
fn nonsense_in_the_inbox_ends_the_call_with_an_error_that_names_the_peer() {
    // In the descriptor, in its slot, in the sender's window.
    for count in [4, 1000, 1 << 17] {
        for (what, nonsense) in NONSENSE {
            let e = reduce(count, what, |peer| {
                for (lane, [head, call, last]) in peer.heard() {
                    // What rank 0 sent has the length that it expects.
                    let bytes = match last >> KIND {
                        1 => count as u64 * 4,
                        _ => last << 4 >> 36,
                    };
                    let mut words = [head, call, last, 4096, bytes];
                    nonsense(&mut words, bytes);
                    let at = descriptor(0);
                    peer.write(lane, at + BODY, &words[3..], None);
                    peer.write(lane, at + HEAD, &words[..3], Some((at + SEQUENCE, 1)));
                }
            });
            assert!(e.contains("rank 1"), "{what}, {count} numbers: {e}");
        }
    }
}

/// Numbers of messages, grants and reports that cannot be.
#[test]
fn counters_beyond_all_messages_and_grants_of_what_is_not_there() {
    for count in [1000, 1 << 17] {
        for value in [9, u64::MAX, 1 << 63] {
            let e = reduce(count, "counters", |peer| {
                peer.heard();
                for lane in 0..LANES {
                    peer.write(lane, CREDIT, &[value], None);
                    for message in 0..4 {
                        let grant = layout::grant(message);
                        peer.write(lane, grant + GRANT_AT, &[u64::MAX - value, value], None);
                        peer.write(lane, grant, &[message + 4, u64::MAX - 3, value | GRANT_LEN], None);
                    }
                }
            });
            assert!(e.contains("rank 1"), "{value}, {count} numbers: {e}");
        }
    }
    for kind in [0, 1, 2, 3, 255] {
        let e = reduce(1000, "a report", |peer| {
            peer.heard();
            let words: Vec<u64> = [u64::MAX << 8 | kind].into_iter().chain([u64::MAX; 30]).collect();
            peer.write(0, FAILURE + 8, &words, Some((FAILURE, 1)));
        });
        assert!(!e.is_empty(), "{e}");
    }
}

/// Anything at all, everywhere in the inbox but in the data of slots.
#[test]
fn random_words_are_no_fault() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    for count in [4, 1000, 1 << 17] {
        for round in 0..8 {
            let mut words = || -> Vec<u64> {
                // Small numbers are more often right than others.
                (0..8).map(|_| random.next_u64() >> random.random_range(0..64)).collect()
            };
            let lines = descriptor(0) as usize / 64 + 8;
            let all: Vec<Vec<u64>> = (0..LANES * lines).map(|_| words()).collect();
            let e = reduce(count, "random words", |peer| {
                let stamps = peer.heard();
                let mut all = all.iter();
                for lane in 0..LANES {
                    for line in (0..descriptor(0)).step_by(64) {
                        peer.write(lane, line, all.next().unwrap(), None);
                    }
                    for n in 0..8 {
                        let mut words = all.next().unwrap().clone();
                        // The call is right half of the time.
                        if let (0, Some((_, stamp))) = (n % 2, stamps.iter().find(|(l, _)| *l == lane)) {
                            words[..2].copy_from_slice(&stamp[..2]);
                            words[2] = words[2] << 32 | u64::from(stamp[2] as u32);
                        }
                        peer.write(
                            lane,
                            descriptor(n) + HEAD,
                            &words[..7],
                            Some((descriptor(n) + SEQUENCE, n + 1)),
                        );
                    }
                }
            });
            assert!(!e.is_empty(), "seed {seed}, round {round}: {e}");
        }
    }
}
