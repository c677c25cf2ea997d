//! Nobody waits for a connection but the bytes that go by it.

use std::net::TcpStream;

use super::*;

/// A port whose kernel answers nobody any more, since its queue of connections is full.
struct Silent {
    address: SocketAddr,
    _held: (socket2::Socket, Vec<TcpStream>),
}

impl Silent {
    fn new() -> Silent {
        let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let fill = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        Silent { address, _held: (listener, (0..4).map_while(|_| fill()).collect()) }
    }

    /// The peer of this card seems to be there.
    fn hides(&self, card: &mut Card) {
        card.tcp.addresses.retain(|a| a.address == Ipv4Addr::LOCALHOST);
        card.tcp.port = self.address.port();
    }
}

/// Far below the time that a start may take here.
const SOON: Duration = Duration::from_secs(30);

fn patient() -> Config {
    Config { start_timeout: Duration::from_secs(600), ..config() }
}

/// Rank 0, to which the others are hidden but for those from `seen` on.
fn first_of(n: usize, seen: usize, silent: &Silent) -> (Rank, Vec<Rank>) {
    let (listening, cards) = opened(n, &patient());
    let secret = Secret::random();
    let mut hidden = cards.clone();
    hidden[1..seen].iter_mut().for_each(|card| silent.hides(card));
    let start = |(me, listening)| {
        let cards = if me == 0 { &hidden } else { &cards };
        start(listening, me, cards, &secret, &patient(), MIB)
    };
    let mut all: Vec<_> = listening.into_iter().enumerate().map(start).collect();
    (all.remove(0), all)
}

#[test]
fn who_does_not_answer_holds_up_nobody() {
    let (silent, began) = (Silent::new(), Instant::now());
    // More of them than there are threads.
    let (a, others) = first_of(12, 11, &silent);
    for to in 1..12 {
        a.put(to, &[b"hello"], 0, Some(a.signal(0, 1))).unwrap();
    }
    let last = &others[10];
    thread::scope(|s| {
        s.spawn(|| a.wait_flag(1, 1).unwrap());
        last.wait_flag(0, 1).unwrap();
        last.put(0, &[b"hello"], 0, Some(last.signal(1, 1))).unwrap();
        last.wait_sent().unwrap();
    });
    // What has not been sent to the others holds up nobody who has given up.
    a.tcp.give_up();
    drop(a);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn signals_alone_hold_up_nobody_who_leaves() {
    let (silent, began) = (Silent::new(), Instant::now());
    let (a, _others) = first_of(2, 2, &silent);
    a.tcp.link(1).signal(a.signal(0, 1)).unwrap();
    drop(a);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

/// Rank 1, to which rank 0 is hidden, and rank 0.
fn last_of_two(silent: &Silent) -> (Rank, Rank) {
    let (mut listening, cards) = opened(2, &patient());
    let (secret, mut hidden) = (Secret::random(), cards.clone());
    silent.hides(&mut hidden[0]);
    let one = start(listening.pop().unwrap(), 1, &hidden, &secret, &patient(), MIB);
    (one, start(listening.pop().unwrap(), 0, &cards, &secret, &patient(), MIB))
}

#[test]
fn a_connection_that_comes_takes_what_waits() {
    let silent = Silent::new();
    let (a, b) = last_of_two(&silent);
    let bytes = pattern(MIB, 1);
    a.put(0, &[&bytes], 0, Some(a.signal(0, 1))).unwrap();
    assert!(!a.tcp.link(0).reach(Duration::from_millis(1)).unwrap());
    thread::scope(|s| {
        s.spawn(|| a.wait_flag(1, 1).and_then(|()| a.wait_sent()).unwrap());
        b.put(1, &[b"x"], 0, Some(b.signal(1, 1))).unwrap();
        b.wait_flag(0, 1).unwrap();
    });
    assert!(b.bytes(0, MIB) == bytes);
}

#[test]
fn what_was_let_go_before_the_two_met_is_not_sent_and_last_words_are() {
    let silent = Silent::new();
    let (a, b) = last_of_two(&silent);
    let bytes = pattern(MIB, 1);
    let ticket = a.put(0, &[&bytes], 0, Some(a.signal(0, 1))).unwrap();
    a.tcp.link(0).leave_word(b"why", a.data.offset() + 8, a.signal(2, 1));
    assert!(!a.tcp.link(0).flushed(ticket));
    a.tcp.let_go();
    assert!(a.tcp.link(0).flushed(ticket));
    drop(bytes);
    thread::scope(|s| {
        s.spawn(|| a.wait_flag(1, 1).and_then(|()| a.wait_sent()).unwrap());
        b.put(1, &[b"x"], 0, Some(b.signal(1, 1))).unwrap();
        b.wait_flag(2, 1).unwrap();
    });
    assert_eq!((b.flag(0), b.bytes(0, 16)), (0, &b"\0\0\0\0\0\0\0\0why\0\0\0\0\0"[..]));
}

/// The lower rank's attempt, which would hold, never arrives.
#[test]
fn who_is_on_its_way_to_nowhere_takes_the_connection_that_comes() {
    let silent = Silent::new();
    let (a, others) = first_of(2, 2, &silent);
    let b = &others[0];
    assert!(!a.tcp.link(1).reach(Duration::from_millis(1)).unwrap());
    a.wait("the attempt", || a.tcp.links[0].meeting.goes_on()).unwrap();
    thread::scope(|s| {
        s.spawn(|| a.wait_flag(1, 1).and_then(|()| a.wait_sent()).unwrap());
        b.put(0, &[b"x"], 0, Some(b.signal(1, 1))).unwrap();
        b.wait("the connection", || b.tcp.link(0).connected()).unwrap();
        b.wait_sent().unwrap();
    });
    // Nor does it go on.
    a.wait("the thread's end", || a.tcp.common.dialler.is_idle() && !a.tcp.dials()).unwrap();
    let bytes = pattern(MIB, 1);
    thread::scope(|s| {
        s.spawn(|| b.wait_flag(0, 1).unwrap());
        a.put(1, &[&bytes], 0, Some(a.signal(0, 1))).unwrap();
        a.wait_sent().unwrap();
    });
    assert!(b.bytes(0, MIB) == bytes);
}

/// The time that a start may take is what a put has for a connection; then it is an error, and its memory is free.
#[test]
fn a_put_waits_no_longer_than_a_start_may_take() {
    let silent = Silent::new();
    let config = Config { start_timeout: Duration::from_millis(300), ..config() };
    let (mut listening, mut cards) = opened(2, &config);
    silent.hides(&mut cards[1]);
    let a = start(listening.swap_remove(0), 0, &cards, &Secret::random(), &config, MIB);
    // Whoever only looks whether it is there looks again.
    for _ in 0..2 {
        assert!(!a.tcp.link(1).reach(Duration::from_millis(400)).unwrap());
    }
    let bytes = pattern(MIB, 1);
    let ticket = a.put(1, &[&bytes], 0, None).unwrap();
    let e = a.wait("an error", || false).unwrap_err();
    assert!(matches!(e, Error::Unreachable { from: 0, to: 1, .. }), "{e}");
    assert!(a.tcp.link(1).flushed(ticket) && a.tcp.lost(1).is_some());
}

#[test]
fn threads_end_when_there_is_nothing_to_open() {
    let all = ranks(3, 4096);
    for to in [1, 2] {
        all[0].put(to, &[b"x"], 0, Some(all[0].signal(0, 1))).unwrap();
        all[to].wait_flag(0, 1).unwrap();
    }
    all[0].wait("the threads' end", || all[0].tcp.common.dialler.is_idle()).unwrap();
}
