use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;

use proptest::prelude::*;

use super::*;

proptest! {
    /// Whatever it says, nobody without the secret is let in, and nobody with it does harm.
    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), greets in any::<bool>()) {
        let secret = Secret::from_bytes([7; SECRET_LEN]);
        for magic in [OPENS, ANSWERS] {
            let (mut a, b) = pair();
            if greets {
                a.write_all(&Hello::ours(magic).encode()).unwrap();
            }
            a.write_all(&bytes).unwrap();
            a.shutdown(Shutdown::Write).unwrap();
            let refused = if magic == OPENS { respond(b, &secret, b"") } else { initiate(b, &secret, b"") };
            prop_assert!(refused.is_err());
        }
        let (a, b) = both([&secret, &secret], [b"x", b"x"]);
        let mut raw = a.unwrap().into_inner();
        raw.write_all(&bytes).unwrap();
        raw.shutdown(Shutdown::Write).unwrap();
        prop_assert!(b.unwrap().receive(100).is_err());
    }
}

#[test]
fn both_ends_derive_the_same_keys_and_nobody_else() {
    let secret = Secret::random();
    let sessions: Vec<_> = (0..2).map(|_| both([&secret, &secret], [b"x", b"x"])).collect();
    let mut all = vec![];
    for (a, b) in sessions {
        let (a, b) = (a.unwrap(), b.unwrap());
        for label in [b"one", b"two"] {
            assert!(a.directions(label) == b.directions(label));
            all.extend(a.directions(label).map(|key| *key.as_bytes()));
        }
    }
    let different: std::collections::HashSet<_> = all.iter().collect();
    assert_eq!(different.len(), 8, "by handshake, label and direction");
}

fn pair() -> (UnixStream, UnixStream) {
    let (a, b) = UnixStream::pair().unwrap();
    for s in [&a, &b] {
        s.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
    (a, b)
}

fn both(
    secrets: [&Secret; 2],
    contexts: [&[u8]; 2],
) -> (Result<Session<UnixStream>>, Result<Session<UnixStream>>) {
    let (a, b) = pair();
    thread::scope(|s| {
        let answer = s.spawn(move || respond(b, secrets[1], contexts[1]));
        (initiate(a, secrets[0], contexts[0]), answer.join().unwrap())
    })
}

#[test]
fn messages_of_any_length_arrive() {
    let secret = Secret::random();
    let (a, b) = both([&secret, &secret], [b"x", b"x"]);
    let (mut a, mut b) = (a.unwrap(), b.unwrap());
    let lengths = [0, 1, PLAIN_MAX - 9, PLAIN_MAX - 8, PLAIN_MAX - 7, 2 * PLAIN_MAX, 1 << 20];
    thread::scope(|s| {
        s.spawn(|| {
            for len in lengths {
                let message: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
                a.send(&message).unwrap();
                assert_eq!(a.receive(8).unwrap(), (len as u64).to_le_bytes());
            }
        });
        for len in lengths {
            let message = b.receive(1 << 20).unwrap();
            assert!(message.iter().enumerate().all(|(i, &v)| v == (i * 7 + i / 251) as u8));
            assert_eq!(message.len(), len);
            b.send(&(len as u64).to_le_bytes()).unwrap();
        }
    });
    let (mut a, mut b) = (a.into_inner(), b.into_inner());
    a.write_all(b"plain").unwrap();
    let mut plain = [0; 5];
    b.read_exact(&mut plain).unwrap();
    assert_eq!(&plain, b"plain");
}

#[test]
fn a_message_beyond_the_limit_is_refused() {
    let secret = Secret::random();
    let (a, b) = both([&secret, &secret], [b"x", b"x"]);
    a.unwrap().send(&[0; 100]).unwrap();
    let e = b.unwrap().receive(99).unwrap_err().to_string();
    assert!(e.contains("100 bytes") && e.contains("99"), "{e}");
}

#[test]
fn another_secret_or_purpose_is_refused_on_both_sides() {
    let (one, other) = (Secret::random(), Secret::random());
    for (secrets, contexts) in
        [([&one, &other], [&b"x"[..], b"x"]), ([&one, &one], [&b"tcp"[..], b"rendezvous"])]
    {
        let (a, b) = both(secrets, contexts);
        for e in [a.unwrap_err(), b.unwrap_err()] {
            assert!(matches!(e, Error::Refused { .. }), "{e}");
            assert!(e.to_string().contains("know the secret of this job"), "{e}");
        }
    }
}

#[test]
fn another_version_is_named_on_both_sides() {
    let (now, next) = (PROTOCOL, PROTOCOL + 1);
    let future = Hello { protocol: next, release: "9.2.0".into(), ..Hello::ours(OPENS) };
    let (mut a, b) = pair();
    a.write_all(&future.encode()).unwrap();
    let e = respond(b, &Secret::random(), b"").unwrap_err().to_string();
    let release = env!("CARGO_PKG_VERSION");
    let expected = format!("speaks protocol {next} (nd 9.2.0), this is protocol {now} (nd {release})");
    assert!(e.contains(&expected), "{e}");
    // The answer lets the other side say the same.
    let mut answer = [0; HELLO_LEN];
    a.read_exact(&mut answer).unwrap();
    let problem = Hello::decode(&answer).problem(&future).unwrap();
    let expected = [format!("speaks protocol {now}"), format!("this is protocol {next}")];
    assert!(expected.iter().all(|part| problem.contains(part)), "{problem}");
}

#[test]
fn strangers_are_refused_by_their_first_bytes() {
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "not an nd peer: first bytes 47 45 54 20 2f"),
        (b"\0", "not an nd peer: first bytes 00"),
        (b"nd-answ\n", "not an nd peer"),
        (b"nd-op", "closed the connection in its greeting"),
        (b"", "closed the connection without a word"),
    ] {
        let (mut a, b) = pair();
        a.write_all(bytes).unwrap();
        a.shutdown(Shutdown::Write).unwrap();
        let e = respond(b, &Secret::random(), b"").unwrap_err().to_string();
        assert!(e.contains(expected), "{e}");
    }
}

#[test]
fn silence_is_a_time_out() {
    let (_a, b) = pair();
    b.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let e = respond(b, &Secret::random(), b"").unwrap_err();
    assert!(matches!(e, Error::Timeout { .. }), "{e}");
}

#[test]
fn changed_bytes_are_noticed() {
    let secret = Secret::random();
    let (a, b) = both([&secret, &secret], [b"x", b"x"]);
    let mut raw = a.unwrap().into_inner();
    raw.write_all(&[24, 0]).unwrap();
    raw.write_all(&[7; 24]).unwrap();
    assert!(matches!(b.unwrap().receive(10).unwrap_err(), Error::Refused { .. }));
}

#[test]
fn secrets_print_only_when_asked() {
    let secret = Secret::from_bytes([0xab; SECRET_LEN]);
    assert_eq!(format!("{secret:?}"), "Secret(…)");
    assert_eq!(Secret::from_hex(&secret.reveal_hex()), Some(secret));
    assert_eq!(Secret::from_hex("abc"), None);
    assert_eq!(Secret::from_hex(&"é".repeat(32)), None);
}
