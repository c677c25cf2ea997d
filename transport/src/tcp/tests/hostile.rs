//! A peer that knows the secret, shakes hands as it should, and then does what no peer does: its connection ends with
//! an error that names it, nothing is written where it may not write, and others are served as before.

use std::net::TcpStream;

use super::*;
use crate::secure::{Session, initiate};
use crate::tcp::connection::Keys;
use crate::tcp::identity::{Identity, Side, keys};
use crate::tcp::landing::FIRST;
use crate::tcp::seal::{HEAD as SEAL_HEAD, RECORD, Sealer, TAG};
use crate::tcp::wire::{HEAD, PAYLOAD_MAX, Put, goodbye};

/// The victim is rank 0, rank 1 is its good peer, and rank 2 is played here.
struct Scene {
    victim: Rank,
    good: Rank,
    secret: Secret,
    /// Of the victim: no peer may write there, but all know where it is.
    hidden: Window,
    /// Of the victim: was exposed, and is no more.
    freed: u64,
    /// Lent to the good peer, and to the one played here.
    lent: [Vec<u8>; 2],
    landings: [u64; 2],
}

const WINDOW: usize = 8192;
const LENT: usize = 10_000;

impl Scene {
    fn new(config: &Config) -> Scene {
        let (listening, cards) = opened(3, config);
        let secret = Secret::random();
        // Nobody answers for the third.
        let mut two = listening.into_iter().take(2).enumerate();
        let [victim, good] = std::array::from_fn(|_| {
            let (me, listening) = two.next().unwrap();
            start(listening, me, &cards, &secret, config, WINDOW)
        });
        let hidden = victim.data.region().alloc(WINDOW as u64, false).unwrap();
        let freed = victim.data.region().alloc(WINDOW as u64, true).unwrap().offset();
        let mut lent = [vec![0; LENT], vec![0; LENT]];
        let landings = [0, 1].map(|i: usize| {
            // SAFETY: the endpoint goes before the memory, in the order of the fields.
            unsafe { victim.tcp.link(i + 1).land(lent[i].as_mut_ptr(), LENT as u64) }.unwrap()
        });
        Scene { victim, good, secret, hidden, freed, lent, landings }
    }

    /// Shakes hands with the victim as rank 2; the keys if the connection is encrypted.
    fn admitted(&self) -> (TcpStream, Option<Keys>) {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.victim.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let common = &self.victim.tcp.common;
        let identity = Identity { from: 2, to: 0, encrypts: common.records_per_key.is_some(), talks: false };
        let mut session: Session<TcpStream> = initiate(stream, &self.secret, accept::CONTEXT).unwrap();
        session.send(&identity.encode()).unwrap();
        assert_eq!(session.receive(256).unwrap(), accept::WELCOME);
        session.send(accept::CONFIRMED).unwrap();
        let keys = keys(&session, common, identity, Side::Initiator);
        (session.into_inner(), keys)
    }

    fn at(&self) -> u64 {
        self.victim.data.offset()
    }

    /// The victim reports the peer, by all that `said` names; and goes on with the other.
    fn ends_with(&self, what: &str, said: &[&str]) {
        let e = self.victim.wait(what, || false).unwrap_err();
        assert!(
            matches!(e, Error::Protocol { rank: 2, .. } | Error::PeerLost { rank: 2, .. }),
            "{what}: {e}"
        );
        let e = e.to_string();
        assert!(said.iter().all(|s| e.contains(s)) && e.contains("rank 2"), "{what}: {e}, not {said:?}");
        assert!(self.victim.tcp.lost(2).is_some(), "{what}");
        let untouched = |bytes: &[u8]| bytes.iter().all(|&b| b == 0);
        assert!(untouched(self.victim.bytes(0, WINDOW)), "{what}: the exposed window");
        assert!(untouched(&self.lent[0]), "{what}: memory lent to another");
        let region = self.victim.data.region();
        for at in [self.hidden.offset(), self.freed] {
            let ptr = region.at(at, WINDOW as u64);
            // SAFETY: inside the region; whoever were to write there has been disconnected.
            let bytes = unsafe { std::slice::from_raw_parts(ptr.as_ptr(), WINDOW) };
            assert!(untouched(bytes), "{what}: {at:#x}");
        }
        let hello = [1; 100];
        thread::scope(|s| {
            s.spawn(|| self.good.put(0, &[&hello], 0, Some(self.good.signal(0, 1))).unwrap());
            self.victim.wait_flag(0, 1).unwrap_or_else(|e| panic!("{what}: {e}"));
        });
        assert_eq!(self.victim.bytes(0, 100), hello, "{what}");
    }
}

fn put(len: u64, at: u64, signal: Option<(u64, u64)>) -> Vec<u8> {
    Put { len, at, signal: signal.map(|(at, value)| Signal { at, value }) }.encode().to_vec()
}

/// A good frame of a put with a byte of its head changed.
fn changed(at: usize, to: u8) -> Vec<u8> {
    let mut head = put(0, 0, None);
    head[at] = to;
    head
}

/// What it sends, and what is said of it. No payload is all zero.
type Misbehaviour = (&'static str, fn(&Scene) -> Vec<u8>, &'static [&'static str]);

const MISBEHAVIOURS: &[Misbehaviour] = &[
    ("an unknown kind", |_| changed(0, 9), &["a frame of unknown kind 9"]),
    ("the kind zero", |_| vec![0; HEAD], &["a frame of unknown kind 0"]),
    ("unknown flags", |_| changed(1, 0x80), &["unknown flags"]),
    ("padding that is not zero", |_| changed(5, 1), &["unknown flags"]),
    (
        "a goodbye with a signal",
        |_| {
            let mut g = goodbye();
            g[1] = 1;
            g.to_vec()
        },
        &["unknown kind 2"],
    ),
    (
        "a length beyond all memory",
        |s| put(PAYLOAD_MAX + 1, s.at(), None),
        &["a frame of 70368744177665 bytes"],
    ),
    ("the longest length", |s| put(u64::MAX, s.at(), None), &["a frame of 18446744073709551615 bytes"]),
    (
        "a length beyond the window",
        |s| [put(WINDOW as u64 + 1, s.at(), None), vec![7; 99]].concat(),
        &["8193 bytes to offset"],
    ),
    (
        "across the window's end",
        |s| [put(64, s.at() + WINDOW as u64 - 32, None), vec![7; 64]].concat(),
        &["no exposed window"],
    ),
    (
        "round the end of all offsets",
        |_| [put(64, u64::MAX - 31, None), vec![7; 64]].concat(),
        &["no exposed window"],
    ),
    ("the region's own first page", |_| [put(8, 0, None), vec![7; 8]].concat(), &["no exposed window"]),
    ("a hidden window", |s| [put(8, s.hidden.offset(), None), vec![7; 8]].concat(), &["no exposed window"]),
    (
        "a window that was given back",
        |s| [put(8, s.freed, None), vec![7; 8]].concat(),
        &["no exposed window"],
    ),
    ("beyond the region", |_| [put(8, 1 << 50, None), vec![7; 8]].concat(), &["no exposed window"]),
    (
        "memory that nobody lent",
        |_| [put(8, FIRST + (1 << 40), None), vec![7; 8]].concat(),
        &["no exposed window"],
    ),
    (
        "across the end of lent memory",
        |s| [put(64, s.landings[1] + LENT as u64 - 32, None), vec![7; 64]].concat(),
        &["no exposed window"],
    ),
    (
        "a signal to no counter",
        |s| put(0, 0, Some((s.hidden.offset(), 1))),
        &["no counter of an exposed window"],
    ),
    ("a signal beside a counter", |s| put(0, 0, Some((s.victim.flags.offset() + 4, 1))), &["no counter"]),
    ("a signal across the end", |s| put(0, 0, Some((s.at() + WINDOW as u64 - 4, 1))), &["no counter"]),
    ("a signal beyond all memory", |_| put(0, 0, Some((u64::MAX - 7, 1))), &["no counter"]),
    (
        "a put whose signal is bad",
        |s| [put(8, s.landings[1], Some((8, 1))), vec![7; 8]].concat(),
        &["no counter"],
    ),
    ("words after its goodbye", |_| [goodbye().to_vec(), put(0, 0, None)].concat(), &["rank 2"]),
    ("half a head", |_| put(8, 0, None)[..HEAD - 1].to_vec(), &["in the middle of a message"]),
    (
        "half a payload",
        |s| [put(4096, s.landings[1], None), vec![7; 2000]].concat(),
        &["in the middle of a message"],
    ),
    ("no word", |_| vec![], &["without a goodbye"]),
    ("text", |_| b"GET / HTTP/1.1\r\nHost: everybody\r\nAccept: */*\r\n\r\n".to_vec(), &["unknown flags"]),
];

#[test]
fn whatever_a_peer_sends_it_ends_its_own_connection_only() {
    for (what, bytes, said) in MISBEHAVIOURS {
        // A goodbye is no error of itself; what follows must not be taken for anything.
        let (said, orderly) = (*said, what.contains("goodbye") && what.starts_with("words"));
        let scene = Scene::new(&config());
        let (mut stream, _) = scene.admitted();
        let _ = stream.write_all(&bytes(&scene));
        let _ = stream.shutdown(std::net::Shutdown::Write);
        if orderly {
            scene.victim.wait(what, || scene.victim.tcp.lost(2).is_some()).unwrap();
            continue;
        }
        scene.ends_with(what, said);
        assert!(scene.victim.tcp.link(2).signal(Signal { at: 0, value: 1 }).is_err(), "{what}");
    }
}

/// Frames without end that mean nothing: others get their turn.
#[test]
fn an_endless_sequence_holds_up_nobody() {
    let scene = Scene::new(&config());
    let (mut stream, _) = scene.admitted();
    let flood =
        [put(0, 0, None), put(0, 0, Some((scene.victim.flags.offset() + 64, 7)))].concat().repeat(1000);
    let stop = &AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(move || while !stop.load(Ordering::Acquire) && stream.write_all(&flood).is_ok() {});
        scene.victim.wait_flag(8, 7).unwrap();
        for round in 1..=50 {
            let bytes = [round as u8; 3000];
            scene.good.put(0, &[&bytes], 0, Some(scene.good.signal(0, round))).unwrap();
            scene.victim.wait_flag(0, round).unwrap();
            assert_eq!(scene.victim.bytes(0, 3000), bytes);
        }
        stop.store(true, Ordering::Release);
        // It may be waiting for room; then it is gone.
        let e = scene.victim.wait("the end of the flood", || false).unwrap_err();
        assert!(matches!(e, Error::PeerLost { rank: 2, .. }), "{e}");
    });
}

/// Records for the scene's victim, each of one frame that is welcome: a byte for the lent memory.
fn records(scene: &Scene, keys: &Keys, count: u8) -> Vec<Vec<u8>> {
    let mut sealer = Sealer::new(&keys.sending, keys.records_per_key);
    let frame = |i| [put(1, scene.landings[1], None), vec![i]].concat();
    (0..count).map(|i| record(&mut sealer, &frame(i + 1))).collect()
}

fn record(sealer: &mut Sealer, mut bytes: &[u8]) -> Vec<u8> {
    sealer.seal(&mut bytes);
    let sealed = sealer.rest().to_vec();
    sealer.sent(sealed.len());
    sealed
}

type Forgery = (&'static str, fn(&Scene, &Keys) -> Vec<u8>, &'static [&'static str]);

const FORGERIES: &[Forgery] = &[
    (
        "a bad tag",
        |s, k| {
            let mut r = records(s, k, 3);
            let end = r[1].len() - 1;
            r[1][end] ^= 1;
            r.concat()
        },
        &["record 1 does not authenticate"],
    ),
    (
        "a changed length",
        |s, k| {
            let mut r = records(s, k, 3);
            r[1][0] -= 1;
            r.concat()
        },
        &["record 1 does not authenticate"],
    ),
    (
        "a repeated record",
        |s, k| {
            let r = records(s, k, 2);
            [&r[0][..], &r[0]].concat()
        },
        &["record 1 does not authenticate"],
    ),
    (
        "records out of order",
        |s, k| {
            let r = records(s, k, 3);
            [&r[0][..], &r[2], &r[1]].concat()
        },
        &["record 1 does not authenticate"],
    ),
    (
        "a record left out",
        |s, k| {
            let r = records(s, k, 3);
            [&r[1][..], &r[2]].concat()
        },
        &["record 0 does not authenticate"],
    ),
    (
        "a record of an old key",
        |s, k| {
            let r = records(s, k, 6);
            [r[..5].concat(), r[1].clone()].concat()
        },
        &["record 5 does not authenticate"],
    ),
    (
        "its own records sent back",
        |s, k| {
            let theirs = Keys {
                sending: k.receiving.clone(),
                receiving: k.sending.clone(),
                records_per_key: k.records_per_key,
            };
            records(s, &theirs, 1).concat()
        },
        &["record 0 does not authenticate"],
    ),
    ("an empty record", |_, _| vec![0; SEAL_HEAD + TAG], &["an encrypted record of 0 bytes"]),
    ("a record longer than any", |_, _| (RECORD as u32 + 1).to_le_bytes().to_vec(), &["are possible"]),
    ("plain frames", |s, _| put(1, s.landings[1], None), &["does not authenticate"]),
    ("half a record", |s, k| records(s, k, 1)[0][..30].to_vec(), &["in the middle of a message"]),
    (
        "a sealed frame of an unknown kind",
        |_, k| record(&mut Sealer::new(&k.sending, k.records_per_key), &changed(0, 9)),
        &["unknown kind 9"],
    ),
    (
        "a sealed put outside",
        |s, k| {
            let frame = [put(8, s.hidden.offset(), None), vec![7; 8]].concat();
            record(&mut Sealer::new(&k.sending, k.records_per_key), &frame)
        },
        &["no exposed window"],
    ),
];

#[test]
fn records_that_are_not_the_next_ones_end_the_connection() {
    let config = Config { encrypt: true, records_per_key: 4, ..config() };
    for (what, bytes, said) in FORGERIES {
        let scene = Scene::new(&config);
        let (mut stream, keys) = scene.admitted();
        let _ = stream.write_all(&bytes(&scene, &keys.unwrap()));
        let _ = stream.shutdown(std::net::Shutdown::Write);
        scene.ends_with(what, said);
        assert!(scene.lent[1][1..].iter().all(|&b| b == 0), "{what}");
    }
}

/// Knowing the secret is not enough to be let in as anybody: what is said inside the session is checked as well.
#[test]
fn a_handshake_that_goes_on_wrong_is_sent_away() {
    let scene = Scene::new(&config());
    let identity = |from, to| Identity { from, to, encrypts: false, talks: false }.encode().to_vec();
    let session = || {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, scene.victim.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        initiate(stream, &scene.secret, accept::CONTEXT).unwrap()
    };
    for (what, first, answer) in [
        ("itself", identity(0, 0), "no peer by TCP of rank 0"),
        ("a rank that is not there", identity(3, 0), "rank 3 is no peer by TCP of rank 0"),
        ("the last rank of all", identity(usize::MAX, 0), "no peer by TCP"),
        ("for another rank", identity(2, 1), "looks for rank 1, and this is rank 0"),
        (
            "encrypted",
            Identity { from: 2, to: 0, encrypts: true, talks: false }.encode().to_vec(),
            "ND_ENCRYPT is 1 on rank 2",
        ),
        ("too long", [identity(2, 0), vec![0]].concat(), ""),
        ("nothing", vec![], ""),
    ] {
        let mut session = session();
        session.send(&first).unwrap();
        match session.receive(256) {
            Ok(said) => {
                let said = String::from_utf8_lossy(&said).into_owned();
                assert!(said.contains(answer) && !answer.is_empty(), "{what}: {said}");
            }
            Err(_) => assert!(answer.is_empty(), "{what}"),
        }
    }
    // Welcome, and then another word than the last of the handshake.
    let mut session = session();
    session.send(&identity(2, 0)).unwrap();
    assert_eq!(session.receive(256).unwrap(), accept::WELCOME);
    session.send(b"nonsense").unwrap();
    assert!(session.receive(256).is_err());
    // The refusal of a rank that encrypts is this rank's to hear, too; apart from that nothing happened.
    let e = text(scene.victim.wait("a refusal", || false));
    assert!(e.contains("ND_ENCRYPT is 1 on rank 2 and 0 on rank 0"), "{e}");
    let (mut stream, _) = scene.admitted();
    stream.write_all(&changed(0, 9)).unwrap();
    scene.ends_with("after all of that", &["unknown kind 9"]);
}
