//! What goes over the wire with `ND_ENCRYPT=1`, as a listener sees it; and ranks that do not agree on it.
#![allow(unsafe_code)] // packet sockets
#![allow(clippy::unwrap_used)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nd_comm::choose::Chooser;
use nd_comm::prelude::*;
use nd_tests::{Need, skip};
use nd_transport::secure::Secret;
use nd_transport::{Choice, Endpoint};

/// Bytes after which the pattern repeats itself: every packet of payload holds all of it.
const PERIOD: usize = 64;
/// Payload in a frame's head, behind it, in a slot of the receiver's, and straight to where it belongs.
const LENGTHS: [usize; 4] = [PERIOD, 16 * PERIOD, 16 << 10, 4 << 20];

/// A socket that gets every packet of the loopback interface; none without the right to.
fn listener() -> Option<OwnedFd> {
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: makes a descriptor, which is ours alone.
    let fd = unsafe {
        match libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, all.into()) {
            -1 => return None,
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    let bytes: libc::c_int = 256 << 20;
    let wait = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
    // SAFETY: the options are read from values of the lengths that are given; `lo` is a name that ends.
    unsafe {
        let option = |name, value: *const libc::c_void, len: usize| {
            libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, value, len as libc::socklen_t)
        };
        assert_eq!(option(libc::SO_RCVBUFFORCE, (&raw const bytes).cast(), size_of_val(&bytes)), 0);
        assert_eq!(option(libc::SO_RCVTIMEO, (&raw const wait).cast(), size_of_val(&wait)), 0);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = libc::if_nametoindex(c"lo".as_ptr()) as i32;
        let len = size_of_val(&address) as libc::socklen_t;
        assert_eq!(libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len), 0);
    }
    Some(fd)
}

/// What a listener saw.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Seen {
    bytes: usize,
    with_pattern: usize,
    with_secret: usize,
}

/// All packets until `stop`, and then those that wait.
fn listen(fd: &OwnedFd, pattern: &[u8], secret: &Secret, stop: &AtomicBool) -> Seen {
    let (mut seen, mut packet) = (Seen::default(), vec![0u8; 256 << 10]);
    let hex = secret.reveal_hex();
    let holds = |packet: &[u8], what: &[u8]| packet.windows(what.len()).any(|w| w == what);
    loop {
        // SAFETY: the buffer is ours for writes.
        let n = unsafe { libc::recv(fd.as_raw_fd(), packet.as_mut_ptr().cast(), packet.len(), 0) };
        if n <= 0 {
            if stop.load(Ordering::Acquire) {
                return seen;
            }
            continue;
        }
        let packet = &packet[..n as usize];
        seen.bytes += packet.len();
        seen.with_pattern += usize::from(holds(packet, pattern));
        seen.with_secret +=
            usize::from(holds(packet, &secret.as_bytes()[..16]) || holds(packet, &hex.as_bytes()[..32]));
    }
}

/// Two ranks reduce the pattern by TCP; what they have then is what it was.
fn reduce(pattern: &[u8], len: usize, secret: &Secret, encrypt: bool) {
    let config = nd_transport::Config {
        transport: Choice::Tcp,
        encrypt,
        loopback_only: true,
        ..nd_transport::Config::default()
    };
    let openings = [0, 1].map(|_| Endpoint::open(&config).unwrap());
    let cards: Vec<_> = openings.iter().map(|o| o.card().clone()).collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|s| {
        for (rank, opening) in openings.into_iter().enumerate() {
            let (cards, secret) = (cards.clone(), secret.clone());
            s.spawn(move || {
                let endpoint = opening.connect(rank, cards, &secret, deadline).unwrap();
                let comm =
                    Communicator::on(endpoint, secret, Chooser::default(), Duration::from_secs(60)).unwrap();
                let mut values: Vec<u8> = pattern.iter().copied().cycle().take(len).collect();
                comm.all_reduce(&mut values, ReduceOp::Max).unwrap();
                assert!(values.chunks(PERIOD).all(|chunk| chunk == pattern));
            });
        }
    });
}

#[test]
fn a_listener_sees_the_payload_without_encryption_and_nothing_with_it() {
    let test = "a_listener_sees_the_payload_without_encryption_and_nothing_with_it";
    if listener().is_none() {
        return skip(test, Need::Root);
    }
    for (encrypt, len) in [false, true].into_iter().flat_map(|e| LENGTHS.map(|len| (e, len))) {
        let pattern: [u8; PERIOD] = std::array::from_fn(|_| rand::random());
        let secret = Secret::random();
        let (fd, stop) = (listener().unwrap(), AtomicBool::new(false));
        let seen = std::thread::scope(|s| {
            let listens = s.spawn(|| listen(&fd, &pattern[..PERIOD / 2], &secret, &stop));
            reduce(&pattern, len, &secret, encrypt);
            stop.store(true, Ordering::Release);
            listens.join().unwrap()
        });
        println!("encrypted: {encrypt}, {len} bytes: {seen:?}");
        // Each rank sends half of its bytes at the least.
        assert!(seen.bytes >= len, "{seen:?}");
        assert_eq!(seen.with_pattern > 0, !encrypt, "{seen:?}");
        assert_eq!(seen.with_secret, 0, "{seen:?}");
    }
}

/// The start is always encrypted: what ranks tell each other of themselves is nobody else's business.
#[test]
fn a_listener_sees_nothing_of_the_start() {
    let test = "a_listener_sees_nothing_of_the_start";
    if listener().is_none() {
        return skip(test, Need::Root);
    }
    let secret = Secret::random();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let join = |rank: usize| {
        let environment: nd_comm::config::Environment = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "2".into()),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", port.to_string()),
        ]
        .into_iter()
        .collect();
        let launch = nd_comm::launch::Launch::from_environment(&environment).unwrap();
        let config = Config::default().with_secret(secret.clone()).with_transport(Choice::Tcp);
        Communicator::from_launch(&launch, &config).unwrap().barrier().unwrap();
    };
    let (fd, stop) = (listener().unwrap(), AtomicBool::new(false));
    let seen = std::thread::scope(|s| {
        // A word of every card.
        let listens = s.spawn(|| listen(&fd, b"\"host_name\"", &secret, &stop));
        std::thread::scope(|s| {
            s.spawn(|| join(1));
            join(0);
        });
        stop.store(true, Ordering::Release);
        listens.join().unwrap()
    });
    println!("{seen:?}");
    // Two cards there, and both back.
    assert!(seen.bytes > 2000 && seen.with_pattern == 0 && seen.with_secret == 0, "{seen:?}");
}

#[test]
fn ranks_that_do_not_agree_on_it_are_both_told_so() {
    let id = UniqueId::create(&Config::default()).unwrap();
    let join = |rank: usize| {
        let config =
            Config::default().with("ND_ENCRYPT", &rank.to_string()).unwrap().with_transport(Choice::Tcp);
        Communicator::new(&id, rank, 2, &config).expect_err("an error").to_string()
    };
    let errors = std::thread::scope(|s| {
        let one = s.spawn(|| join(1));
        [join(0), one.join().unwrap()]
    });
    for e in errors {
        println!("{e}");
        assert!(e.contains("ND_ENCRYPT is \"1\" on rank 1") && e.contains("and \"0\" on rank 0"), "{e}");
        assert!(e.contains("give all ranks the same settings"), "{e}");
    }
}
