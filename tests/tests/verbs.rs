//! What is particular to verbs, in a virtual machine with Soft-RoCE. Outside only the first tests do anything: they start
//! the machine, in which this program runs the others.
#![allow(unsafe_code)] // puts raw memory

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nd_tests::machines;
use nd_transport::secure::Secret;
use nd_transport::{Choice, Config, Endpoint, Error, Part, Result, Signal, Step};

const LONG: Duration = Duration::from_secs(60);

fn config() -> Config {
    let mut config = Config { transport: Choice::Verbs, ..Config::default() };
    config.verbs.timeout = 16;
    config
}

fn connect(configs: &[Config]) -> Vec<Result<Endpoint>> {
    let openings: Vec<_> = configs.iter().map(|c| Endpoint::open(c).expect("it opens")).collect();
    let cards: Vec<_> = openings.iter().map(|o| o.card().clone()).collect();
    let (secret, deadline) = (Secret::random(), Instant::now() + LONG);
    std::thread::scope(|s| {
        let connect = |(rank, opening): (usize, nd_transport::Opening)| {
            let (cards, secret) = (cards.clone(), secret.clone());
            s.spawn(move || opening.connect(rank, cards, &secret, deadline))
        };
        let threads: Vec<_> = openings.into_iter().enumerate().map(connect).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

fn pair() -> [Endpoint; 2] {
    let mut both = connect(&[config(), config()]).into_iter().map(|e| e.expect("it connects"));
    [both.next().expect("one"), both.next().expect("another")]
}

fn wait(endpoint: &Endpoint, mut there: impl FnMut() -> bool) {
    let look = || -> Result<Step> { Ok(if there() { Step::Done } else { Step::Idle }) };
    assert!(endpoint.wait(LONG, look, || Ok(())).expect("no error"), "it did not happen");
}

fn put(endpoint: &Endpoint, bytes: &[u8], at: u64, signal: Option<Signal>) {
    let link = endpoint.link(1 - endpoint.rank()).expect("a link");
    // SAFETY: borrowed until the put is flushed.
    let ticket = unsafe { link.put(&[Part::of(bytes)], at, signal) }.expect("a put");
    wait(endpoint, || link.flushed(ticket));
}

fn counter(endpoint: &Endpoint, at: u64) -> u64 {
    endpoint.region().counter(at).load(Ordering::Acquire)
}

#[test]
fn verbs_are_right() {
    machines::again("verbs_are_right", &[]);
}

#[test]
fn locked_memory_may_be_scarce() {
    machines::again_with("locked_memory_may_be_scarce", &["--memlock", "512"], &["scarce_memory"]);
}

#[test]
fn scarce_memory_is_told_with_its_limit() {
    if !machines::inside() || rustix::process::getrlimit(rustix::process::Resource::Memlock).current.is_none()
    {
        return;
    }
    // Where verbs are asked for it is an error, with the number and where to raise it.
    let said =
        connect(&[config(), config()]).pop().expect("two").map(|_| ()).expect_err("no verbs").to_string();
    for word in ["1048576 bytes", "512 KiB", "ulimit -l", "limits.conf", "ND_TRANSPORT"] {
        assert!(said.contains(word), "{said}");
    }
    // Otherwise TCP is used.
    let of = |host: &str| Config { transport: Choice::Auto, host_id: Some(host.into()), ..config() };
    let both: Vec<_> =
        connect(&[of("one"), of("two")]).into_iter().map(|e| e.expect("it connects")).collect();
    assert_eq!(both[0].transports()[1], "tcp");
}

#[test]
fn who_leaves_does_not_wait_for_a_peer_that_does_nothing() {
    if !machines::inside() {
        return;
    }
    let [one, two] = pair();
    let window = two.region().alloc(8192, true).expect("a window");
    // More than it is known that there is room for.
    for value in 1..=200 {
        put(&one, &[7; 1000], window.offset() + 64, Some(Signal { at: window.offset(), value }));
    }
    let began = Instant::now();
    drop(one);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    wait(&two, || counter(&two, window.offset()) == 200);
    wait(&two, || two.lost(0).is_some());
    assert!(matches!(two.lost(0), Some(Error::PeerLost { rank: 0, .. })));
}

fn bytes(endpoint: &Endpoint, at: u64, len: usize) -> Vec<u8> {
    let ptr = endpoint.region().at(at, len as u64);
    // SAFETY: inside a window, after a signal that comes after the put.
    unsafe { std::slice::from_raw_parts(ptr.as_ptr(), len) }.to_vec()
}

/// A short put may wait to be placed while the device writes a long one to the same place.
#[test]
fn long_puts_do_not_overtake_short_ones() {
    if !machines::inside() {
        return;
    }
    let [one, two] = pair();
    const LEN: usize = 100_000;
    let window = two.region().alloc(4096 + LEN as u64, true).expect("a window");
    let (at, data) = (window.offset(), window.offset() + 4096);
    for round in 1..=5u64 {
        let (short, long) = (vec![round as u8; 500], vec![100 + round as u8; LEN]);
        let link = one.link(1).expect("a link");
        // SAFETY: both outlive the puts, which are flushed below.
        let tickets = unsafe {
            let first = link.put(&[Part::of(&short)], data + 7, None).expect("a put");
            [first, link.put(&[Part::of(&long)], data, Some(Signal { at, value: round })).expect("a put")]
        };
        std::thread::scope(|s| {
            s.spawn(|| wait(&one, || tickets.iter().all(|t| link.flushed(*t))));
            wait(&two, || counter(&two, at) == round);
        });
        assert!(bytes(&two, data, LEN) == long, "round {round}");
    }
}

#[test]
fn what_is_granted_is_written_until_it_is_withdrawn() {
    if !machines::inside() {
        return;
    }
    let [one, two] = pair();
    let (ours, theirs) = [&one, &two].map(|e| e.region().alloc(4096, true).expect("a window")).into();
    let (told, at) = (ours.offset(), theirs.offset());
    let own = two.region().alloc(1 << 20, false).expect("a window");
    let mut plain = vec![0u8; 300_000];
    let link = two.link(0).expect("a link");
    let tell = |value| {
        link.signal(Signal { at: told, value }).expect("a signal");
        std::thread::scope(|s| {
            s.spawn(|| wait(&one, || counter(&one, told) == value));
            two.progress().expect("no error");
        });
    };
    // SAFETY: both stay until they are withdrawn.
    let granted = [own.ptr().as_ptr().wrapping_add(5000), plain.as_mut_ptr()]
        .map(|place| unsafe { link.land(place, 300_000) }.expect("a place"));
    tell(1);
    std::thread::scope(|s| {
        s.spawn(|| {
            for (i, &place) in granted.iter().enumerate() {
                put(&one, &vec![i as u8 + 1; 200_000], place + 50, None);
                put(
                    &one,
                    &[i as u8 + 3; 30],
                    place + 250_000,
                    Some(Signal { at: at + 8 * i as u64, value: 1 }),
                );
            }
        });
        wait(&two, || counter(&two, at) == 1 && counter(&two, at + 8) == 1);
    });
    let in_own = bytes(&two, own.offset() + 5000, 300_000);
    for (memory, mark) in [(&in_own, 1), (&plain, 2)] {
        assert!(memory[..50].iter().all(|b| *b == 0) && memory[50..200_050].iter().all(|b| *b == mark));
        assert!(memory[250_000..250_030].iter().all(|b| *b == mark + 2));
    }
    // What is put there afterwards is thrown away, and the link works on.
    link.withdraw(granted[1]);
    tell(2);
    std::thread::scope(|s| {
        s.spawn(|| {
            put(&one, &[9; 200_000], granted[1], None);
            put(&one, &[9; 20], granted[1], Some(Signal { at, value: 2 }));
        });
        wait(&two, || counter(&two, at) == 2);
    });
    assert!(plain.iter().all(|b| *b != 9));
}

#[test]
fn windows_that_follow_each_other_at_one_place_are_told_apart() {
    if !machines::inside() {
        return;
    }
    let [one, two] = pair();
    let at = two.region().alloc(4096, true).expect("a window");
    let told = one.region().alloc(4096, true).expect("a window");
    for round in 1..=3u64 {
        let window = two.region().alloc(64 << 10, true).expect("a window");
        let data = vec![round as u8; 64 << 10];
        // The peer hears of the new window as it would of any: by something this rank says after it was made.
        two.progress().expect("no error");
        two.link(0).expect("a link").signal(Signal { at: told.offset(), value: round }).expect("a signal");
        std::thread::scope(|s| {
            let heard = s.spawn(|| wait(&one, || counter(&one, told.offset()) == round));
            two.progress().expect("no error");
            heard.join().expect("no panic");
            s.spawn(|| put(&one, &data, window.offset(), Some(Signal { at: at.offset(), value: round })));
            wait(&two, || counter(&two, at.offset()) == round);
        });
        assert!(bytes(&two, window.offset(), data.len()) == data, "round {round}");
    }
}

#[test]
fn a_put_outside_every_window_is_an_error_that_names_the_rank() {
    if !machines::inside() {
        return;
    }
    for len in [8, 5000] {
        let [one, two] = pair();
        let hidden = two.region().alloc(8192, false).expect("a window");
        let data = vec![1u8; len];
        let link = one.link(1).expect("a link");
        // SAFETY: `data` outlives both endpoints' use of it.
        unsafe { link.put(&[Part::of(&data)], hidden.offset(), None) }.expect("a put");
        let began = Instant::now();
        let error = loop {
            let _ = one.progress();
            match two.progress() {
                Err(e) => break e,
                Ok(_) => assert!(began.elapsed() < LONG, "no error"),
            }
        };
        assert!(matches!(&error, Error::Protocol { rank: 0, what } if what.contains("exposed")), "{error}");
        assert_eq!(bytes(&two, hidden.offset(), 8), [0; 8]);
        drop(one);
    }
}

/// Queue pairs, registrations, queues and domains of programs, as the kernel counts them.
fn resources() -> Vec<usize> {
    let count = |kind: &str| {
        let out = std::process::Command::new("rdma").args(["resource", "show", kind]).output().expect("rdma");
        // Those of the kernel itself have its modules' names.
        String::from_utf8_lossy(&out.stdout).lines().filter(|line| !line.contains("comm [")).count()
    };
    ["qp", "mr", "cq", "pd"].map(count).to_vec()
}

#[test]
fn nothing_is_left_of_endpoints_that_are_gone() {
    if !machines::inside() {
        return;
    }
    let before = resources();
    for given_up in [false, true] {
        let [one, two] = pair();
        let window = two.region().alloc(8192, true).expect("a window");
        put(&one, &[7; 100], window.offset(), None);
        let data = vec![1u8; 4 << 20];
        let link = one.link(1).expect("a link");
        if given_up {
            // SAFETY: `let_go` ends the use of it.
            unsafe { link.put(&[Part::of(&data)], window.offset(), None) }.expect("a put");
            one.give_up();
            one.let_go();
        }
        assert_ne!(resources(), before);
        drop(window);
        drop((one, two));
        assert_eq!(resources(), before, "given up: {given_up}");
    }
}

#[test]
fn who_gives_up_can_still_say_why_and_its_memory_is_its_own() {
    if !machines::inside() {
        return;
    }
    let [one, two] = pair();
    let window = two.region().alloc(8192, true).expect("a window");
    put(&one, &[7; 100], window.offset() + 64, Some(Signal { at: window.offset(), value: 1 }));
    wait(&two, || counter(&two, window.offset()) == 1);
    one.give_up();
    one.let_go();
    put(&one, b"why", window.offset() + 64, Some(Signal { at: window.offset(), value: 2 }));
    wait(&two, || counter(&two, window.offset()) == 2);
    assert_eq!(bytes(&two, window.offset() + 64, 3), b"why");
    // What the other one still sends is lost, which it is told of.
    let data = vec![1u8; 1 << 20];
    let link = two.link(0).expect("a link");
    // SAFETY: `data` outlives the endpoint's use of it.
    let put = unsafe { link.put(&[Part::of(&data)], 4096, Some(Signal { at: 4096, value: 1 })) };
    put.expect("a put");
    let began = Instant::now();
    loop {
        match two.progress() {
            Err(Error::PeerLost { rank: 0, .. }) => break,
            Err(e) => panic!("{e}"),
            Ok(_) => assert!(began.elapsed() < LONG, "no error"),
        }
    }
    assert!(two.lost(0).is_some());
    drop(two);
}

#[test]
fn settings_that_cannot_be_used_say_what_to_do() {
    if !machines::inside() {
        return;
    }
    let said = |change: fn(&mut Config)| {
        let mut config = config();
        change(&mut config);
        Endpoint::open(&config).map(|_| ()).expect_err("it cannot be used").to_string()
    };
    let hca = said(|c| c.verbs.hca = "mlx9".into());
    assert!(hca.contains("mlx9") && hca.contains("rxe0:1"), "{hca}");
    let gid = said(|c| c.verbs.gid_index = Some(200));
    assert!(gid.contains("200") && gid.contains("RoCE"), "{gid}");
    let encrypted = said(|c| c.encrypt = true);
    assert!(encrypted.contains("ND_ENCRYPT") && encrypted.contains("verbs"), "{encrypted}");
    let forbidden = said(|c| c.verbs.disable = true);
    assert!(forbidden.contains("ND_IB_DISABLE"), "{forbidden}");
    // All but the port that there is, and encryption where verbs are not asked for.
    let auto = |change: fn(&mut Config)| {
        let mut config = Config { transport: Choice::Auto, ..config() };
        change(&mut config);
        let mut two = connect(&[
            Config { host_id: Some("one".into()), ..config.clone() },
            Config { host_id: Some("two".into()), ..config },
        ]);
        let (two, one) = (two.pop().expect("two"), two.pop().expect("one").expect("it connects"));
        (one.transports()[1], one.link(1).expect("a link").transport().name(), two.is_ok())
    };
    assert_eq!(auto(|_| {}), ("verbs", "verbs", true));
    assert_eq!(auto(|c| c.verbs.disable = true), ("tcp", "tcp", true));
    assert_eq!(auto(|c| c.encrypt = true), ("tcp", "tcp", true));
}
