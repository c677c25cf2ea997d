use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use nd_transport::Stop;

use super::stream::Stream;
use super::*;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn loopback(port: u16) -> Meeting {
    Meeting::At { address: Address::tcp("127.0.0.1", port), one_host: true, late_name: false }
}

/// Joins in a thread; gives up after `seconds`.
fn start(
    meeting: &Meeting,
    rank: usize,
    world: usize,
    config: &Config,
    seconds: f64,
) -> JoinHandle<Result<Joined>> {
    let (meeting, config) = (meeting.clone(), config.clone());
    thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs_f64(seconds);
        join(meeting, rank, world, format!("card {rank}").as_bytes(), &config, deadline)
    })
}

fn all(meeting: &Meeting, world: usize, config: &Config) {
    let ranks: Vec<_> = (0..world).map(|r| start(meeting, r, world, config, 60.0)).collect();
    let joined: Vec<Joined> = ranks.into_iter().map(|r| r.join().unwrap().unwrap()).collect();
    for j in &joined {
        assert_eq!(j.secret.as_bytes(), joined[0].secret.as_bytes());
        assert_eq!(j.cards.len(), world);
        assert!(j.cards.iter().enumerate().all(|(r, c)| c == format!("card {r}").as_bytes()));
    }
}

fn error(rank: JoinHandle<Result<Joined>>) -> String {
    rank.join().unwrap().unwrap_err().to_string()
}

#[test]
fn sixty_four_ranks_by_every_way() {
    let config = Config::default();
    for (name, meeting) in [
        ("tcp", loopback(free_port())),
        (
            "unix",
            Meeting::At {
                address: Address::Unix(format!("nd-test-{}", std::process::id())),
                one_host: true,
                late_name: false,
            },
        ),
        ("id", Meeting::from(&UniqueId::create(&config).unwrap())),
    ] {
        let began = Instant::now();
        all(&meeting, 64, &config);
        println!("64 ranks by {name}: {:?}", began.elapsed());
    }
}

#[test]
fn one_port_again_and_again() {
    let meeting = loopback(free_port());
    for _ in 0..10 {
        all(&meeting, 3, &Config::default());
    }
}

#[test]
fn strangers_hold_up_nobody() {
    let port = free_port();
    let zero = start(&loopback(port), 0, 3, &Config::default(), 30.0);
    let connect = || loop {
        if let Ok(s) = TcpStream::connect(("127.0.0.1", port)) {
            return s;
        }
    };
    let silent: Vec<_> = (0..300).map(|_| connect()).collect();
    let mut http = connect();
    http.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut slow = connect();
    slow.write_all(b"N").unwrap();
    let began = Instant::now();
    let others: Vec<_> = (1..3).map(|r| start(&loopback(port), r, 3, &Config::default(), 30.0)).collect();
    for rank in others.into_iter().chain([zero]) {
        rank.join().unwrap().unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // Nothing is left: every stranger's connection has been ended.
    for mut s in silent.into_iter().chain([http, slow]) {
        s.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut rest = Vec::new();
        match s.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(e) => assert_ne!(e.kind(), io::ErrorKind::WouldBlock),
        }
    }
}

/// Whichever rank it is, and whether it comes before the others or after them.
#[test]
fn who_cannot_take_part_tells_the_others_why() {
    for who in 0..3 {
        for first in [true, false] {
            let meeting = loopback(free_port());
            let config = Config::default();
            let others = || -> Vec<_> {
                let others = (0..3).filter(|rank| *rank != who);
                others.map(|rank| start(&meeting, rank, 3, &config, 300.0)).collect()
            };
            let why = || Error::InvalidArgument {
                rank: who,
                call: "open",
                problem: "no port".into(),
                remedy: "plug it in".into(),
            };
            let early = if first { Vec::new() } else { others() };
            let declining = {
                let (meeting, config, why) = (meeting.clone(), config.clone(), why());
                thread::spawn(move || decline(meeting, who, 3, &why, &config))
            };
            let others = if first { others() } else { early };
            for rank in others {
                let e = error(rank);
                assert!(e.contains(&format!("rank {who} (host ")), "{e}");
                assert!(
                    e.contains("cannot take part in the start: ") && e.contains("no port; plug it in"),
                    "{e}"
                );
            }
            declining.join().unwrap();
        }
    }
}

/// Also where that is found out when the others have been reached.
#[test]
fn an_error_of_a_card_is_told_and_stays_this_ranks_own() {
    for who in [0, 1] {
        let meeting = loopback(free_port());
        let other = start(&meeting, 1 - who, 2, &Config::default(), 300.0);
        let mut card = |_: Option<IpAddr>| Err(Error::Forked { rank: who });
        let deadline = Instant::now() + Duration::from_secs(300);
        let own = join_with(meeting, who, 2, &mut card, &Config::default(), deadline);
        assert!(matches!(own, Err(Error::Forked { .. })), "{own:?}");
        let e = error(other);
        assert!(e.contains(&format!("rank {who} (host ")) && e.contains("after fork"), "{e}");
    }
}

#[test]
fn one_number_twice() {
    let meeting = loopback(free_port());
    let ranks: Vec<_> =
        [0, 1, 1].into_iter().map(|r| start(&meeting, r, 3, &Config::default(), 30.0)).collect();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let place = format!("host {host}, pid {}", std::process::id());
    for rank in ranks {
        let e = error(rank);
        assert!(e.contains(&format!("two processes say that they are rank 1: {place}, and {place}")), "{e}");
    }
}

#[test]
fn two_ranks_zero() {
    let meeting = loopback(free_port());
    let ranks: Vec<_> =
        [0, 0, 1].into_iter().map(|r| start(&meeting, r, 3, &Config::default(), 30.0)).collect();
    for rank in ranks {
        let e = error(rank);
        assert!(e.contains("two processes say that they are rank 0"), "{e}");
    }
}

#[test]
fn sizes_differ() {
    let meeting = loopback(free_port());
    let ranks: Vec<_> = [(0, 3), (1, 3), (2, 4)]
        .into_iter()
        .map(|(r, n)| start(&meeting, r, n, &Config::default(), 30.0))
        .collect();
    for rank in ranks {
        let e = error(rank);
        assert!(
            e.contains("rank 2 (host") && e.contains("expects 4 ranks") && e.contains("expects 3"),
            "{e}"
        );
    }
}

#[test]
fn the_missing_are_listed_everywhere() {
    let meeting = loopback(free_port());
    let ranks: Vec<_> =
        [0, 1, 3].into_iter().map(|r| start(&meeting, r, 8, &Config::default(), 1.0)).collect();
    for rank in ranks {
        let e = error(rank);
        assert!(e.contains("ranks 2, 4-7 of 8 did not join within"), "{e}");
    }
    let id = UniqueId::create(&Config::default()).unwrap();
    let ranks: Vec<_> =
        [0, 2].into_iter().map(|r| start(&(&id).into(), r, 3, &Config::default(), 1.0)).collect();
    for rank in ranks {
        let e = error(rank);
        assert!(e.contains("rank 1 of 3 did not join within"), "{e}");
    }
}

#[test]
fn nobody_there() {
    let e = error(start(&loopback(free_port()), 1, 2, &Config::default(), 0.3));
    assert!(e.starts_with("rank 1 of 2: nobody answered at 127.0.0.1:") && e.contains("refused"), "{e}");
}

/// Joins at `meeting` as rank 2 of 3, of whom one never comes, says that and leaves; what rank 0 says then.
fn says_and_leaves(word: Option<&[u8]>) -> String {
    let meeting = loopback(free_port());
    let zero = start(&meeting, 0, 3, &Config::default(), 30.0);
    let Meeting::At { address, .. } = &meeting else { unreachable!() };
    let at = address.resolve().unwrap()[0];
    let soon = Instant::now() + Duration::from_secs(20);
    let stream = loop {
        match Stream::tcp(at, soon, &Stop::default()) {
            Ok(s) => break s,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut session =
        nd_transport::secure::initiate(stream, &Secret::from_bytes(WELL_KNOWN), CONTEXT).unwrap();
    let hello = Hello {
        rank: 2,
        world_size: 3,
        host: "far".into(),
        pid: 77,
        patience_ms: 60_000,
        card: Ok(Vec::new()),
    };
    session.send(&wire::encode_hello(&hello)).unwrap();
    if let Some(word) = word {
        session.send(word).unwrap();
    }
    drop(session);
    error(zero)
}

#[test]
fn a_rank_that_goes_away_is_named_at_once() {
    for word in [None, Some(&b"nonsense"[..]), Some(b"")] {
        let e = says_and_leaves(word);
        assert!(e.contains("rank 2 (host far, pid 77) joined and went away"), "{e}");
    }
}

#[test]
fn a_rank_that_aborts_is_named_as_such() {
    let e = says_and_leaves(Some(wire::ABORTED));
    assert!(e.contains("rank 2 (host far, pid 77) aborted the start; start again"), "{e}");
}

#[test]
fn a_rank_that_aborts_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let meeting = loopback(listener.local_addr().unwrap().port());
    let config = Config::default();
    let one = start(&meeting, 1, 2, &config, 600.0);
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let secret = Secret::from_bytes(WELL_KNOWN);
    let mut session = nd_transport::secure::respond(stream, &secret, CONTEXT).unwrap();
    assert!(wire::decode_hello(&session.receive(wire::HELLO_MAX).unwrap()).is_some());
    config.transport.stop.ask();
    assert_eq!(session.receive(wire::ABORTED.len()).unwrap(), wire::ABORTED);
    assert!(error(one).contains("its program aborted the start"));
}

#[test]
fn a_wrong_secret_is_refused_on_both_sides() {
    let meeting = loopback(free_port());
    let secret = |n| Config::default().with_secret(Secret::from_bytes([n; 32]));
    let (zero, one) = (start(&meeting, 0, 2, &secret(1), 4.0), start(&meeting, 1, 2, &secret(2), 4.0));
    let e = error(one);
    assert!(e.contains("ND_SECRET"), "{e}");
    let e = error(zero);
    assert!(e.contains("rank 1 of 2 did not join") && e.contains("refused meanwhile: 127.0.0.1"), "{e}");
}

#[test]
fn beyond_loopback_a_secret_is_needed() {
    let meeting =
        |one_host| Meeting::At { address: Address::tcp("198.51.100.7", 4000), one_host, late_name: false };
    for rank in 0..2 {
        let e = error(start(&meeting(false), rank, 2, &Config::default(), 5.0));
        assert!(e.contains("no secret is set, and 198.51.100.7:4000 is not loopback; set ND_SECRET"), "{e}");
    }
    let port = free_port();
    all(
        &Meeting::At { address: Address::tcp("198.51.100.7", port), one_host: true, late_name: false },
        2,
        &Config::default(),
    );
    all(
        &Meeting::At { address: Address::tcp("127.0.0.1", port), one_host: false, late_name: false },
        2,
        &Config::default().with_auth(Auth::None),
    );
}

#[test]
fn a_port_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let e = error(start(&loopback(port), 0, 2, &Config::default(), 20.0));
    assert!(
        e.contains(&format!("rank 0 cannot listen at 127.0.0.1:{port}")) && e.contains("MASTER_PORT"),
        "{e}"
    );
}

#[test]
fn a_name_that_does_not_resolve() {
    let meeting = Meeting::At {
        address: Address::tcp("no-such-host.invalid", 4000),
        one_host: false,
        late_name: false,
    };
    let config = Config::default().with_auth(Auth::None);
    for rank in 0..2 {
        let e = error(start(&meeting, rank, 2, &config, 0.5));
        assert!(e.contains("no-such-host.invalid does not resolve"), "{e}");
    }
}

#[test]
fn a_pods_name_may_come_as_late_as_rank_0_and_other_names_may_not() {
    let at = [Address::tcp("no-such-host.invalid", 4000)];
    let start = |name| {
        let (deadline, patience) = (Instant::now() + Duration::from_millis(600), Duration::from_millis(600));
        let waits = member::Waits { deadline, patience, name };
        let mut make = |_: Option<IpAddr>| unreachable!("nobody answers");
        member::join(&at, &Secret::random(), &mut make, waits, &Stop::default()).unwrap_err().problem
    };
    let late = start(Duration::from_secs(600));
    assert!(late.starts_with("nobody answered at no-such-host.invalid:4000 within 0.6 s"), "{late}");
    assert!(late.contains("does not resolve"), "{late}");
    assert!(start(Duration::ZERO).starts_with("no-such-host.invalid does not resolve"));
    let (pod, rank) = (("JOB_COMPLETION_INDEX", "1"), ("RANK", "1"));
    for (variables, expected) in [(vec![pod], true), (vec![pod, rank], true), (vec![rank], false)] {
        let rest = [("WORLD_SIZE", "2"), ("MASTER_ADDR", "job-0.svc")];
        let environment = variables.iter().copied().chain(rest).collect();
        let launch = Launch::from_environment(&environment).unwrap();
        let Meeting::At { late_name, .. } = Meeting::from(&launch) else { unreachable!() };
        assert_eq!(late_name, expected, "{variables:?}");
    }
}

#[test]
fn a_dropped_id_ends_the_wait() {
    let id = UniqueId::create(&Config::default()).unwrap();
    let invited: UniqueId = id.to_secret_string().parse().unwrap();
    let one = start(&(&invited).into(), 1, 2, &Config::default(), 30.0);
    thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    drop(id);
    assert!(began.elapsed() < Duration::from_secs(5));
    let e = error(one);
    assert!(e.contains("gave it up") || e.contains("refused"), "{e}");
}

#[test]
fn alone() {
    let joined = join(loopback(1), 0, 1, b"me", &Config::default(), Instant::now()).unwrap();
    assert_eq!(joined.cards, vec![b"me".to_vec()]);
}

#[test]
fn wrong_arguments() {
    let now = Instant::now();
    let e = join(loopback(1), 2, 2, b"", &Config::default(), now).unwrap_err().to_string();
    assert!(e.contains("rank 2 is not below the world size 2"), "{e}");
    let soon = now + Duration::from_secs(5);
    let e = join(loopback(free_port()), 0, 2, &vec![0; CARD_MAX + 1], &Config::default(), soon)
        .unwrap_err()
        .to_string();
    assert!(e.contains("65537 bytes is above 65536"), "{e}");
}

/// Joins as somebody who knows the secret and says `hello`; what is answered, if anything is.
fn say(port: u16, secret: &Secret, hello: &[u8]) -> Option<wire::Verdict> {
    let until = Instant::now() + Duration::from_secs(20);
    let address = ("127.0.0.1".parse::<IpAddr>().unwrap(), port).into();
    let stream = loop {
        match Stream::tcp(address, until, &Stop::default()) {
            Ok(stream) => break stream,
            Err(e) => assert!(Instant::now() < until, "{e}"),
        }
    };
    let mut session = nd_transport::secure::initiate(stream, secret, CONTEXT).unwrap();
    session.send(hello).ok()?;
    wire::decode_verdict(&session.receive(1 << 20).ok()?)
}

fn hello(rank: usize, world_size: usize) -> Vec<u8> {
    let hello =
        Hello { rank, world_size, host: "far".into(), pid: 7, patience_ms: 60_000, card: Ok(vec![1; 9]) };
    wire::encode_hello(&hello)
}

/// What is no hello is refused, and the job goes on.
#[test]
fn malformed_hellos_disturb_nobody() {
    let port = free_port();
    let secret = Secret::random();
    let config = Config::default().with_secret(secret.clone());
    let zero = start(&loopback(port), 0, 2, &config, 60.0);
    let good = hello(1, 2);
    let mut longer = good.clone();
    longer.push(0);
    let mut card = good.clone();
    let at = card.len() - 9 - 4;
    card[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    for (what, bytes) in [
        ("nothing", vec![]),
        ("half", good[..good.len() / 2].to_vec()),
        ("one byte more", longer),
        ("a card without end", card),
        ("no ranks", hello(0, 0)),
        ("more ranks than there can be", hello(1, wire::WORLD_MAX + 1)),
        ("all ones", vec![0xff; 60]),
        ("longer than any", vec![0; wire::HELLO_MAX + 1]),
    ] {
        assert_eq!(say(port, &secret, &bytes), None, "{what}");
    }
    let one = start(&loopback(port), 1, 2, &config, 60.0);
    for rank in [zero, one] {
        assert_eq!(rank.join().unwrap().unwrap().cards.len(), 2);
    }
}

/// A hello that can be read and cannot be right ends the start for all, who are told why.
#[test]
fn impossible_ranks_are_named_to_everyone() {
    for (first, said) in [
        (hello(2, 2), "rank 2 (host far, pid 7) is not below the world size 2"),
        (hello(u32::MAX as usize, 2), "is not below the world size 2"),
        (hello(1, wire::WORLD_MAX), "expects 1048576 ranks"),
        (hello(0, 2), "two processes say that they are rank 0"),
    ] {
        let port = free_port();
        let secret = Secret::random();
        let config = Config::default().with_secret(secret.clone());
        let zero = start(&loopback(port), 0, 2, &config, 60.0);
        let Some(wire::Verdict::Failed(failure)) = say(port, &secret, &first) else {
            panic!("a verdict: {said}");
        };
        for problem in [failure.problem, error(zero)] {
            assert!(problem.contains(said), "{problem}");
        }
    }
}
