//! Endpoints of one process that talk over real sockets.
#![allow(unsafe_code)] // puts lend memory

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::address::Advertised;
use super::*;
use crate::shm::ShmCard;
use crate::sys::{Mapping, memory_file};
use crate::{Family, HostId, Part, Signal, Window};

mod encrypted;
mod hostile;
mod meeting;
mod strangers;

const MIB: usize = 1 << 20;

struct Rank {
    tcp: Tcp,
    /// Where it listens.
    port: u16,
    /// Counters.
    flags: Window,
    data: Window,
}

fn region(len: usize) -> Arc<Region> {
    let file = memory_file(len as u64).unwrap();
    Region::new(Arc::new(Mapping::new(&file, len).unwrap()), 0, len as u64)
}

fn config() -> Config {
    Config { start_timeout: Duration::from_secs(10), ..Config::default() }
}

fn opened(n: usize, config: &Config) -> (Vec<Listening>, Vec<Card>) {
    (0..n)
        .map(|rank| {
            let (listening, tcp) = Listening::open(config).unwrap();
            let host_name = format!("host{rank}");
            let shm = ShmCard { name: vec![], token: [0; 16] };
            let (host, network) = (HostId::here(None), HostId::network());
            (
                listening,
                Card {
                    host,
                    network,
                    host_name,
                    cores: crate::cores::CoreSet::here(),
                    pid: std::process::id(),
                    process_start: 0,
                    shm,
                    tcp,
                    verbs: Default::default(),
                },
            )
        })
        .unzip()
}

fn start(
    listening: Listening,
    me: usize,
    cards: &[Card],
    secret: &Secret,
    config: &Config,
    bytes: usize,
) -> Rank {
    let region = region(bytes + 16 * MIB);
    let flags = region.alloc(4096, true).unwrap();
    let data = region.alloc(bytes as u64, true).unwrap();
    let peers: Vec<usize> = (0..cards.len()).filter(|&p| p != me).collect();
    let tcp = Tcp::start(listening, me, cards, &peers, secret, (region, None), config).unwrap();
    Rank { tcp, port: cards[me].tcp.port, flags, data }
}

fn ranks(n: usize, bytes: usize) -> Vec<Rank> {
    ranks_with(n, bytes, &config())
}

fn ranks_with(n: usize, bytes: usize, config: &Config) -> Vec<Rank> {
    let (listening, cards) = opened(n, config);
    let secret = Secret::random();
    let start = |(me, l)| start(l, me, &cards, &secret, config, bytes);
    listening.into_iter().enumerate().map(start).collect()
}

impl Rank {
    fn flag(&self, at: u64) -> u64 {
        self.data.region().counter(self.flags.offset() + 8 * at).load(Ordering::Acquire)
    }

    /// The same layout everywhere, so our offsets are the peer's.
    fn signal(&self, flag: u64, value: u64) -> Signal {
        Signal { at: self.flags.offset() + 8 * flag, value }
    }

    fn put(&self, to: usize, parts: &[&[u8]], at: u64, signal: Option<Signal>) -> Result<crate::Ticket> {
        let parts: Vec<Part> = parts.iter().map(|p| Part::of(p)).collect();
        // SAFETY: the tests keep what they put until it is flushed, or until the endpoint is dropped.
        let ticket = unsafe { self.tcp.link(to).put(&parts, self.data.offset() + at, signal) };
        self.tcp.flush();
        ticket
    }

    /// Puts something to a peer that cannot be reached: why.
    fn refused(&self, to: usize) -> Error {
        self.put(to, &[b"x"], 0, None).unwrap();
        let e = self.wait("an error", || false).unwrap_err();
        assert!(text(self.put(to, &[b"x"], 0, None)).contains(&e.to_string()), "{e}");
        e
    }

    fn wait(&self, what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < until, "{what} never happened");
            if !self.tcp.progress()? && !done() {
                self.tcp.park(None, Duration::from_millis(100))?;
            }
        }
        Ok(())
    }

    fn wait_flag(&self, flag: u64, value: u64) -> Result<()> {
        self.wait("a signal", || self.flag(flag) >= value)
    }

    /// Until the kernel has everything: whoever stops calling progress before keeps its peers waiting.
    fn wait_sent(&self) -> Result<()> {
        self.wait("all sent", || self.tcp.common.waiting.load(Ordering::Acquire) == 0)
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        let ptr = self.data.region().at(self.data.offset() + at as u64, len as u64);
        // SAFETY: inside the window; the signal that was awaited says that nobody writes there any more.
        unsafe { std::slice::from_raw_parts(ptr.as_ptr(), len) }
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 9) ^ seed) as u8).collect()
}

/// Panics tell the whole text.
fn text<T>(r: Result<T>) -> String {
    r.err().expect("an error").to_string()
}

#[test]
fn puts_of_all_sizes_arrive_in_order() {
    let sizes = [0, 1, 7, 255, 256, 257, 4095, 4096, 65_535, 65_536, 65_537, MIB + 3, 64 * MIB];
    let mut all = ranks(2, 64 * MIB);
    let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
    thread::scope(|s| {
        s.spawn(|| {
            for (i, &len) in sizes.iter().enumerate() {
                let bytes = pattern(len, i);
                let (head, tail) = bytes.split_at(len / 3);
                let ticket = a.put(1, &[head, tail], 0, Some(a.signal(0, i as u64 + 1))).unwrap();
                a.wait("a flush", || a.tcp.link(1).flushed(ticket)).unwrap();
                a.wait_flag(1, i as u64 + 1).unwrap();
            }
        });
        for (i, &len) in sizes.iter().enumerate() {
            b.wait_flag(0, i as u64 + 1).unwrap();
            assert!(b.bytes(0, len) == pattern(len, i), "{len} bytes");
            b.tcp.link(0).signal(b.signal(1, i as u64 + 1)).unwrap();
            b.wait_sent().unwrap();
        }
    });
    assert!(a.tcp.link(1).describe().starts_with("tcp 127.0.0.1:"), "{}", a.tcp.link(1).describe());
}

#[test]
fn both_directions_at_once_do_not_block_each_other() {
    let all = ranks(3, 64 * MIB);
    thread::scope(|s| {
        for (me, rank) in all.iter().enumerate() {
            s.spawn(move || {
                // From the third part on: to the next, all at once, nothing received before.
                let len = 64 * MIB / 3;
                let sent: Vec<Vec<u8>> = (0..3).map(|to| pattern(len, me * 3 + to)).collect();
                let others = || (0..3).filter(|&p| p != me);
                for to in others() {
                    let at = (me * len) as u64;
                    rank.put(to, &[&sent[to]], at, Some(rank.signal(me as u64, 1))).unwrap();
                }
                for from in others() {
                    rank.wait_flag(from as u64, 1).unwrap();
                    assert!(rank.bytes(from * len, len) == pattern(len, from * 3 + me));
                }
                rank.wait_sent().unwrap();
            });
        }
    });
}

#[test]
fn many_small_parts_and_many_peers() {
    let n = 7;
    let all = ranks(n, MIB);
    thread::scope(|s| {
        for (me, rank) in all.iter().enumerate() {
            s.spawn(move || {
                let bytes = pattern(20_000, me);
                for round in 1..=20u64 {
                    for to in (0..n).filter(|&p| p != me) {
                        let parts: Vec<&[u8]> = bytes.chunks(200).collect();
                        let at = (me * 20_000) as u64;
                        rank.put(to, &parts, at, Some(rank.signal(me as u64, round))).unwrap();
                    }
                    for from in (0..n).filter(|&p| p != me) {
                        rank.wait_flag(from as u64, round).unwrap();
                        assert!(rank.bytes(from * 20_000, 20_000) == pattern(20_000, from));
                    }
                }
                rank.wait_sent().unwrap();
            });
        }
    });
    assert!(all[0].inbox_len() > DIRECT, "the poll was used");
}

impl Rank {
    fn inbox_len(&self) -> usize {
        self.tcp.inbox().live.len()
    }
}

#[test]
fn a_put_outside_every_window_is_refused_and_changes_nothing() {
    for signal in [None, Some(Signal { at: 12, value: 1 })] {
        let mut all = ranks(2, 8192);
        let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
        let outside = if signal.is_some() { 0 } else { 8192 - 4 };
        a.put(1, &[&[0xff; 8]], outside, signal).unwrap();
        let e = b.wait("an error", || false).unwrap_err();
        assert!(matches!(e, Error::Protocol { rank: 0, .. }), "{e}");
        assert!(b.bytes(0, 8192).iter().all(|&v| v == 0));
        assert!(b.tcp.lost(0).unwrap().contains("broke the protocol"));
        // The other side hears of it.
        let e = text(a.wait("an error", || false));
        assert!(e.contains("rank 1") && e.contains("refused what came from this rank"), "{e}");
        assert!(e.contains("no exposed window covers") || e.contains("no counter of an exposed"), "{e}");
    }
}

/// The caller's memory takes what a peer puts, small and large, as long as it is there; then it is left alone.
#[test]
fn memory_of_the_caller_until_it_is_withdrawn() {
    for len in [1, 5000, 3 * MIB] {
        let mut all = ranks(2, 8192);
        let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
        let (first, second) = (pattern(len, 1), pattern(len, 2));
        let mut memory = vec![0; len];
        let put = |bytes: &[u8], at, value| {
            // SAFETY: kept until the endpoint is dropped.
            unsafe { a.tcp.link(1).put(&[Part::of(bytes)], at, Some(a.signal(0, value))) }.unwrap();
            a.tcp.flush();
            a.wait_sent()
        };
        // SAFETY: `memory` is read after the signal, and withdrawn before it goes.
        let at = unsafe { b.tcp.link(0).land(memory.as_mut_ptr(), len as u64) }.unwrap();
        thread::scope(|s| {
            s.spawn(|| put(&first, at, 1).unwrap());
            b.wait_flag(0, 1).unwrap();
        });
        assert!(memory == first);
        b.tcp.link(0).withdraw(at);
        // What comes too late is read off and thrown away: the connection goes on.
        thread::scope(|s| {
            s.spawn(|| put(&second, at, 2).unwrap());
            b.wait_flag(0, 2).unwrap();
        });
        assert!(memory == first);
        // What was never there ends it.
        put(&[1], at + len as u64, 3).unwrap();
        let e = b.wait("an error", || false).unwrap_err();
        assert!(matches!(e, Error::Protocol { rank: 0, .. }), "{e}");
    }
}

/// A peer is let into no memory that another was let into.
#[test]
fn memory_of_the_caller_for_one_peer_only() {
    let all = ranks(3, 8192);
    let mut memory = vec![0; 100];
    // SAFETY: withdrawn with the endpoint, before `memory` goes.
    let at = unsafe { all[0].tcp.link(1).land(memory.as_mut_ptr(), 100) }.unwrap();
    // SAFETY: kept until the endpoint is dropped.
    unsafe { all[2].tcp.link(0).put(&[Part::of(&[1; 100])], at, None) }.unwrap();
    all[2].tcp.flush();
    let e = all[0].wait("an error", || false).unwrap_err();
    assert!(matches!(e, Error::Protocol { rank: 2, .. }), "{e}");
    drop(all);
    assert_eq!(memory, [0; 100]);
}

#[test]
fn another_secret_is_refused() {
    let config = config();
    let (mut listening, cards) = opened(2, &config);
    let b = start(listening.pop().unwrap(), 1, &cards, &Secret::random(), &config, 4096);
    let a = start(listening.pop().unwrap(), 0, &cards, &Secret::random(), &config, 4096);
    let e = a.refused(1);
    assert!(matches!(e, Error::Refused { .. }), "{e}");
    assert!(e.to_string().contains("rank 1 on host1 (127.0.0.1:"), "{e}");
    assert!(e.to_string().contains("the secret of this job"), "{e}");
    assert!(!b.tcp.progress().unwrap());
}

#[test]
fn the_wrong_rank_is_refused() {
    let config = config();
    let (mut listening, mut cards) = opened(3, &config);
    let secret = Secret::random();
    let _c = start(listening.pop().unwrap(), 2, &cards, &secret, &config, 4096);
    cards[1].tcp = cards[2].tcp.clone();
    let a = start(listening.swap_remove(0), 0, &cards, &secret, &config, 4096);
    let e = a.refused(1).to_string();
    assert!(
        e.contains("refuses: rank 0 looks for rank 1, and this is rank 2") && !e.contains("does not answer"),
        "{e}"
    );
}

#[test]
fn strangers_do_not_disturb() {
    let all = ranks(2, 4096);
    let port = all[1].port;
    let mut silent = vec![];
    for i in 0..40 {
        let mut stranger =
            std::net::TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).unwrap();
        match i % 3 {
            0 => stranger.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap(),
            1 => stranger.write_all(b"nd-o").unwrap(),
            _ => {}
        }
        silent.push(stranger);
    }
    // The 13 slow ones hold a thread each; one is still free.
    all[0].put(1, &[b"hello"], 0, Some(all[0].signal(0, 1))).unwrap();
    all[1].wait_flag(0, 1).unwrap();
    assert_eq!(all[1].bytes(0, 5), b"hello");
    silent[0].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Closed, perhaps over its unread request.
    assert!(matches!(silent[0].read(&mut [0; 16]), Ok(0) | Err(_)));
}

#[test]
fn a_goodbye_is_no_error_until_the_peer_is_needed() {
    let mut all = ranks(2, 4096);
    let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
    a.put(1, &[b"x"], 0, Some(a.signal(0, 1))).unwrap();
    b.put(0, &[b"last words"], 0, Some(b.signal(0, 1))).unwrap();
    b.wait_flag(0, 1).unwrap();
    // Unread at b when it leaves.
    a.put(1, &[&[1; 4096]], 0, None).unwrap();
    drop(b);
    a.wait("the goodbye", || a.tcp.lost(1).is_some()).unwrap();
    assert_eq!(a.bytes(0, 10), b"last words");
    assert_eq!(a.flag(0), 1);
    assert!(a.tcp.lost(1).unwrap().contains("closed its endpoint"));
    a.tcp.link(1).signal(a.signal(0, 2)).unwrap();
    let e = text(a.put(1, &[b"x"], 0, None));
    assert!(e.contains("rank 1 on host1 is lost: it closed its endpoint"), "{e}");
    assert!(a.tcp.progress().is_ok());
}

#[test]
fn a_first_word_to_one_that_has_just_left_is_no_error() {
    let mut all = ranks(2, 4096);
    let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
    b.put(0, &[b"x"], 0, Some(b.signal(0, 1))).unwrap();
    drop(b);
    a.tcp.link(1).signal(a.signal(0, 1)).unwrap();
    a.wait("the goodbye", || a.tcp.lost(1).is_some()).unwrap();
    assert_eq!(a.flag(0), 1);
}

#[test]
fn what_waits_for_one_that_leaves_is_given_up() {
    let mut all = ranks(2, 64 * MIB);
    let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
    let large = pattern(64 * MIB, 0);
    let ticket = a.put(1, &[&large], 0, None).unwrap();
    a.wait("a connection", || a.tcp.link(1).connected()).unwrap();
    assert!(!a.tcp.link(1).flushed(ticket));
    drop(b);
    let e = a.wait("an error", || false).unwrap_err();
    assert!(matches!(e, Error::PeerLost { rank: 1, .. }), "{e}");
    assert!(a.tcp.link(1).flushed(ticket));
}

#[test]
fn a_peer_that_vanishes_is_named_at_once() {
    for talks in [false, true] {
        let mut all = ranks(2, 4096);
        let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
        a.put(1, &[b"x"], 0, Some(a.signal(0, 1))).unwrap();
        b.wait_flag(0, 1).unwrap();
        if talks {
            b.put(0, &[b"x"], 0, Some(b.signal(0, 1))).unwrap();
            a.wait_flag(0, 1).unwrap();
        }
        b.vanish();
        let e = a.wait("an error", || false).unwrap_err();
        assert!(matches!(e, Error::PeerLost { rank: 1, .. }), "{e}");
        assert!(e.to_string().contains("without a goodbye"), "{e}");
        assert!(a.tcp.progress().is_ok(), "reported once");
        assert!(a.tcp.lost(1).is_some());
        assert!(text(a.put(1, &[b"x"], 0, None)).contains("rank 1 on host1 is lost"));
    }
}

impl Rank {
    /// As a killed process: the kernel closes its sockets.
    fn vanish(&self) {
        self.tcp.acceptor.lock().unwrap().stop();
        for stream in self.tcp.links.iter().filter_map(|link| link.meeting.connection()) {
            stream.stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }
}

#[test]
fn two_that_speak_first_at_the_same_time_have_one_connection() {
    for _ in 0..20 {
        let all = ranks(3, 4096);
        let start = std::sync::Barrier::new(3);
        thread::scope(|s| {
            for (me, rank) in all.iter().enumerate() {
                let start = &start;
                s.spawn(move || {
                    start.wait();
                    let others = || (0..3).filter(|&p| p != me);
                    others().for_each(|to| {
                        rank.put(to, &[&[me as u8]], me as u64, Some(rank.signal(me as u64, 1))).unwrap();
                    });
                    others().for_each(|from| rank.wait_flag(from as u64, 1).unwrap());
                });
            }
        });
        let ends = |stream: &std::net::TcpStream| {
            let (a, b) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            (accept::canonical(a).min(accept::canonical(b)), accept::canonical(a).max(accept::canonical(b)))
        };
        let streams: Vec<_> = all
            .iter()
            .flat_map(|r| &r.tcp.links)
            .filter_map(|l| Some(ends(&l.meeting.connection()?.stream)))
            .collect();
        let connections: std::collections::HashSet<_> = streams.iter().collect();
        assert_eq!((streams.len(), connections.len()), (6, 3));
        // The same for both directions.
        for rank in &all {
            for (link, incoming) in rank.tcp.links.iter().zip(&rank.tcp.inbox().incoming) {
                let incoming = incoming.as_ref().unwrap();
                assert!(Arc::ptr_eq(&link.meeting.connection().unwrap(), &incoming.connection));
            }
        }
    }
}

/// More than the listener's kernel takes before it reads: the rest is still with the speaker when it leaves.
#[test]
fn last_words_arrive_although_the_listener_talks_before_it_listens() {
    let len = MIB / 2;
    let mut all = ranks(2, len);
    let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
    let large = pattern(len, 3);
    thread::scope(|s| {
        let leaves = s.spawn(|| {
            let a = a;
            a.put(1, &[&large], 0, Some(a.signal(0, 1))).unwrap();
            a.wait_sent().unwrap();
        });
        let talk = || {
            b.tcp.link(0).signal(b.signal(1, 1)).unwrap();
            b.tcp.flush();
        };
        // Longer than a rank waits that has given up.
        let until = Instant::now() + FAREWELL + Duration::from_millis(500);
        while !leaves.is_finished() && Instant::now() < until {
            talk();
            thread::yield_now();
        }
        (0..10).for_each(|_| talk());
        // What comes is received first; then the goodbye.
        b.wait("last words", || b.flag(0) == 1).unwrap();
    });
    assert!(b.bytes(0, len) == large);
}

#[test]
fn nobody_there_lists_what_was_tried() {
    let (mut listening, cards) = opened(2, &config());
    drop(listening.pop());
    let a = start(listening.pop().unwrap(), 0, &cards, &Secret::random(), &config(), 4096);
    let e = a.refused(1);
    assert!(matches!(e, Error::Unreachable { from: 0, to: 1, .. }), "{e}");
    let e = e.to_string();
    assert!(e.contains("127.0.0.1:") && e.contains("Connection refused (os error 111)"), "{e}");
}

/// The peer's system says at one address that nobody listens; at another of its addresses nothing answers.
#[test]
fn after_a_refusal_other_addresses_are_not_waited_for_long() {
    let patient = Config { start_timeout: Duration::from_secs(60), ..config() };
    let (mut listening, mut cards) = opened(2, &patient);
    drop(listening.pop());
    // Its queue of connections is full, so that the kernel answers none any more.
    let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    silent.bind(&SocketAddr::from(([127, 0, 0, 2], cards[1].tcp.port)).into()).unwrap();
    silent.listen(0).unwrap();
    let full = silent.local_addr().unwrap().as_socket().unwrap();
    let _fill: Vec<_> = (0..4)
        .map_while(|_| std::net::TcpStream::connect_timeout(&full, Duration::from_millis(200)).ok())
        .collect();
    let here = cards[1].tcp.addresses.iter().find(|a| a.address == Ipv4Addr::LOCALHOST).cloned().unwrap();
    let there = Advertised { address: full.ip(), ..here.clone() };
    cards[1].tcp.addresses = vec![here, there];
    let a = start(listening.pop().unwrap(), 0, &cards, &Secret::random(), &patient, 4096);
    let began = Instant::now();
    let e = a.refused(1).to_string();
    assert!(e.contains("Connection refused") && e.contains(&full.to_string()), "{e}");
    assert!(began.elapsed() < patient.start_timeout / 2, "{e}: {:?}", began.elapsed());
}

#[test]
fn the_doorbell_and_data_end_a_sleep() {
    let all = ranks(2, 4096);
    let (bell, ring) = socketpair(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    let long = Duration::from_secs(30);
    let begin = Instant::now();
    for _ in 0..3 {
        send(&ring, b"x", SendFlags::empty()).unwrap();
        all[0].tcp.park(Some(bell.as_fd()), long).unwrap();
    }
    thread::scope(|s| {
        s.spawn(|| {
            all[1].put(0, &[b"x"], 0, Some(all[1].signal(0, 1))).unwrap();
        });
        while all[0].flag(0) == 0 {
            all[0].tcp.park(Some(bell.as_fd()), long).unwrap();
            all[0].tcp.progress().unwrap();
        }
    });
    assert!(begin.elapsed() < long);
    // Emptied: the next sleep lasts, once the poll has said that the new connection can be written to.
    while all[0].tcp.progress().unwrap() {}
    all[0].tcp.park(Some(bell.as_fd()), Duration::from_millis(1)).unwrap();
    let begin = Instant::now();
    all[0].tcp.park(Some(bell.as_fd()), Duration::from_millis(30)).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(25));
}

#[test]
fn one_family_alone_works() {
    for family in [Family::V4, Family::V6] {
        let config = Config { family, ..config() };
        let all = ranks_with(2, 4096, &config);
        all[0].put(1, &[b"x"], 0, Some(all[0].signal(0, 1))).unwrap();
        match all[0].wait_sent() {
            Err(e) if family == Family::V6 => eprintln!("skipped IPv6: {e}"),
            done => {
                done.unwrap();
                all[1].wait_flag(0, 1).unwrap();
            }
        }
    }
}
