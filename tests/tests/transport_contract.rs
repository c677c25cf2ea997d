//! What every transport promises: one suite, run on each kind of [`nd_tests::worlds::Kind`].
#![allow(unsafe_code)] // puts raw memory

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nd_tests::worlds::{Kind, endpoints};
use nd_transport::{Abilities, Endpoint, Error, Part, Signal, Step, Window};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Waits until the counter at `at` of this rank's region is `value`; how often the wait ticked.
fn await_counter(endpoint: &Endpoint, at: u64, value: u64) -> u32 {
    let look = || -> Result<Step, Error> {
        let there = endpoint.region().counter(at).load(Ordering::Acquire) >= value;
        Ok(if there { Step::Done } else { Step::Idle })
    };
    let mut ticks = 0;
    let tick = || {
        ticks += 1;
        Ok(())
    };
    assert!(endpoint.wait(LONG, look, tick).expect("no error"), "counter {at} did not reach {value}");
    ticks
}

/// Puts `bytes` to offset `at` of `peer`, raises `signal`, and waits until the memory may be reused.
fn put(endpoint: &Endpoint, peer: usize, bytes: &[u8], at: u64, signal: Option<Signal>) {
    let link = endpoint.link(peer).expect("a link");
    // SAFETY: `bytes` is borrowed until the put is flushed.
    let ticket = unsafe { link.put(&[Part::of(bytes)], at, signal) }.expect("a put");
    let look = || -> Result<Step, Error> { Ok(if link.flushed(ticket) { Step::Done } else { Step::Idle }) };
    assert!(endpoint.wait(LONG, look, || Ok(())).expect("no error"), "the put was not flushed");
}

fn bytes(window: &Window, from: u64, len: usize) -> Vec<u8> {
    let ptr = window.region().at(window.offset() + from, len as u64);
    // SAFETY: inside the window, after a signal that comes after the put.
    unsafe { std::slice::from_raw_parts(ptr.as_ptr(), len) }.to_vec()
}

/// Every rank runs `f` in a thread of its own, with its endpoint and an exposed window of `len` bytes at the same
/// offset on all ranks.
fn each(kind: &Kind, n: usize, len: u64, f: impl Fn(&Endpoint, &Window) + Sync) {
    let ranks: Vec<_> = endpoints(kind, n)
        .into_iter()
        .map(|endpoint| {
            let window = endpoint.region().alloc(len, true).expect("a window");
            (endpoint, window)
        })
        .collect();
    std::thread::scope(|s| {
        for (endpoint, window) in ranks {
            let f = &f;
            s.spawn(move || {
                let endpoint = &endpoint;
                f(endpoint, &window);
                // Nobody leaves while others may still need it to make progress.
                let at = |rank: usize| window.offset() + 8 * rank as u64;
                for peer in (0..n).filter(|&p| p != endpoint.rank()) {
                    let signal = Signal { at: at(endpoint.rank()), value: u64::MAX };
                    endpoint.link(peer).expect("a link").signal(signal).expect("a signal");
                }
                for peer in (0..n).filter(|&p| p != endpoint.rank()) {
                    await_counter(endpoint, at(peer), u64::MAX);
                }
            });
        }
    });
}

/// The first bytes of the window are counters; data follow.
const DATA: u64 = 4096;

fn pattern(from: usize, to: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + from * 7 + to * 13) as u8).collect()
}

#[test]
fn verbs_keep_the_contract() {
    nd_tests::machines::again("verbs_keep_the_contract", &[]);
}

#[test]
fn verbs_keep_it_on_devices_of_memory() {
    nd_tests::mock::again_by_rails("verbs_keep_it_on_devices_of_memory", &[]);
}

#[test]
fn what_was_put_is_there_when_the_signal_is() {
    for kind in Kind::all(3) {
        for len in [0usize, 1, 31, 257, 4096, 100_000, 5_000_000] {
            let room = (len as u64 + 64).next_multiple_of(64);
            each(&kind, 3, DATA + 3 * room, |endpoint, window| {
                let me = endpoint.rank();
                for peer in (0..3).filter(|&p| p != me) {
                    let signal = Signal { at: window.offset() + 8 * me as u64, value: 1 };
                    let at = window.offset() + DATA + me as u64 * room;
                    put(endpoint, peer, &pattern(me, peer, len), at, Some(signal));
                }
                for peer in (0..3).filter(|&p| p != me) {
                    await_counter(endpoint, window.offset() + 8 * peer as u64, 1);
                    let got = bytes(window, DATA + peer as u64 * room, len);
                    assert!(got == pattern(peer, me, len), "{kind:?}: {len} bytes from {peer} to {me}");
                }
            });
        }
    }
}

#[test]
fn puts_and_signals_of_a_link_keep_their_order() {
    for kind in Kind::all(2) {
        each(&kind, 2, DATA + 4096, |endpoint, window| {
            let (me, peer) = (endpoint.rank(), 1 - endpoint.rank());
            for round in 1..=500u64 {
                let signal = Signal { at: window.offset() + 8 * me as u64, value: round };
                // The last put of a round wins; only then the signal.
                for i in 0..3u64 {
                    let value = (round * 4 + i).to_le_bytes();
                    put(endpoint, peer, &value, window.offset() + DATA, (i == 2).then_some(signal));
                }
                await_counter(endpoint, window.offset() + 8 * peer as u64, round);
                let got = u64::from_le_bytes(bytes(window, DATA, 8).try_into().expect("8 bytes"));
                // The peer may have begun the next round, not more: it waits for this rank's signal.
                assert!(got == round * 4 + 2 || got / 4 == round + 1, "{kind:?}: {got} in round {round}");
            }
        });
    }
}

#[test]
fn both_ways_at_once_with_more_than_any_buffer_holds() {
    const LEN: usize = 64 << 20;
    for kind in Kind::all(2) {
        each(&kind, 2, DATA + LEN as u64, |endpoint, window| {
            let (me, peer) = (endpoint.rank(), 1 - endpoint.rank());
            let data = pattern(me, peer, LEN);
            let signal = Signal { at: window.offset() + 8 * me as u64, value: 1 };
            put(endpoint, peer, &data, window.offset() + DATA, Some(signal));
            await_counter(endpoint, window.offset() + 8 * peer as u64, 1);
            assert!(bytes(window, DATA, LEN) == pattern(peer, me, LEN), "{kind:?}");
        });
    }
}

#[test]
fn maps_show_the_peers_memory_and_reads_copy_it() {
    for kind in Kind::all(2) {
        each(&kind, 2, DATA + 4096, |endpoint, window| {
            let (me, peer) = (endpoint.rank(), 1 - endpoint.rank());
            let link = endpoint.link(peer).expect("a link");
            let own = pattern(me, 9, 4096);
            let private = pattern(me, 5, 4096);
            let mine = window.region().at(window.offset() + DATA, 4096);
            // SAFETY: inside this rank's own window, which the peer only reads after the signal.
            unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), mine.as_ptr(), 4096) };
            let address = Signal { at: window.offset() + 64 + 8 * me as u64, value: private.as_ptr() as u64 };
            link.signal(address).expect("a signal");
            let signal = Signal { at: window.offset() + 8 * me as u64, value: 1 };
            link.signal(signal).expect("a signal");
            await_counter(endpoint, window.offset() + 8 * peer as u64, 1);

            let mapped = link.map(window.offset() + DATA, 4096);
            assert_eq!(mapped.is_some(), link.abilities().contains(Abilities::MAP), "{kind:?}");
            if let Some(theirs) = mapped {
                // SAFETY: the peer wrote it before its signal and leaves it alone.
                let theirs = unsafe { std::slice::from_raw_parts(theirs.as_ptr(), 4096) };
                assert!(theirs == pattern(peer, 9, 4096), "{kind:?}");
            }
            if link.abilities().contains(Abilities::READ) {
                let from = endpoint.region().counter(window.offset() + 64 + 8 * peer as u64);
                let mut to = vec![0u8; 4096];
                // SAFETY: `to` has 4096 bytes; the peer keeps its memory until the end of the test.
                unsafe { link.read(from.load(Ordering::Acquire), to.as_mut_ptr(), 4096) }.expect("a read");
                assert!(to == pattern(peer, 5, 4096), "{kind:?}");
            }
            // `private` must live until the peer has read it.
            link.signal(Signal { at: signal.at, value: 2 }).expect("a signal");
            await_counter(endpoint, window.offset() + 8 * peer as u64, 2);
        });
    }
}

#[test]
fn a_wait_ends_at_its_deadline_and_ticks_meanwhile() {
    for kind in Kind::all(2) {
        let endpoints = endpoints(&kind, 2);
        let mut ticks = 0;
        let start = Instant::now();
        let wait = Duration::from_millis(350);
        let done = endpoints[0].wait(
            wait,
            || Ok::<_, Error>(Step::Idle),
            || {
                ticks += 1;
                Ok(())
            },
        );
        assert!(!done.expect("no error"), "{kind:?}");
        assert!(start.elapsed() >= wait && ticks >= 2, "{kind:?}: {ticks} ticks in {:?}", start.elapsed());
        let failing = || Err(Error::Refused { who: "the test".into(), why: "on purpose".into() });
        let result = endpoints[0].wait(LONG, || Ok::<_, Error>(Step::Idle), failing);
        assert!(matches!(result, Err(Error::Refused { .. })), "{kind:?}: {result:?}");
    }
}

#[test]
fn a_wait_in_which_something_always_moves_ends_at_its_deadline_too() {
    for kind in Kind::all(2) {
        let endpoints = endpoints(&kind, 2);
        let mut ticks = 0;
        let tick = || {
            ticks += 1;
            Ok(())
        };
        let done = endpoints[0].wait(Duration::from_millis(250), || Ok::<_, Error>(Step::Moved), tick);
        assert!(!done.expect("no error") && ticks >= 1, "{kind:?}: {ticks} ticks");
    }
}

#[test]
fn sleepers_are_woken() {
    // Longer pauses than any wait spins: each round wakes a sleeping peer.
    for kind in Kind::all(2) {
        each(&kind, 2, DATA, |endpoint, window| {
            let (me, peer) = (endpoint.rank(), 1 - endpoint.rank());
            let mut ticks = 0;
            for round in 1..=20u64 {
                if (round as usize % 2) == me {
                    let until = Instant::now() + Duration::from_millis(3);
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                    let signal = Signal { at: window.offset() + 8 * me as u64, value: round };
                    endpoint.link(peer).expect("a link").signal(signal).expect("a signal");
                    endpoint.progress().expect("no error");
                } else {
                    ticks += await_counter(endpoint, window.offset() + 8 * peer as u64, round);
                }
            }
            // Were nobody woken, each of the ten waits would last until its first tick.
            assert!(ticks <= 5, "{kind:?}: {ticks} ticks");
        });
    }
}

#[test]
fn a_derived_group_shares_memory_and_nothing_else() {
    use nd_transport::secure::Secret;
    for kind in Kind::all(4) {
        let parents = endpoints(&kind, 4);
        let secret = Secret::random();
        for members in [vec![2, 0], vec![1, 3]] {
            let deriving: Vec<_> =
                members.iter().map(|&m| parents[m].derive(&members).expect("a group")).collect();
            let cards: Vec<_> = deriving.iter().map(|d| d.card().clone()).collect();
            std::thread::scope(|s| {
                for (rank, deriving) in deriving.into_iter().enumerate() {
                    let (parent, members) = (&parents[members[rank]], &members);
                    let (cards, secret) = (&cards, &secret);
                    let window = parent.region().alloc(DATA, true).expect("a window");
                    s.spawn(move || {
                        let group = deriving.connect(parent, members, cards, secret).expect("it connects");
                        assert_eq!((group.rank(), group.world_size()), (rank, 2));
                        let signal = Signal { at: window.offset(), value: 5 };
                        group.link(1 - rank).expect("a link").signal(signal).expect("a signal");
                        await_counter(&group, window.offset(), 5);
                    });
                }
            });
        }
    }
}
