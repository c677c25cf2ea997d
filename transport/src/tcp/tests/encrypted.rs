//! With `ND_ENCRYPT=1`: the same puts, and a way between the ranks that does not leave bytes as they were.

use std::net::{TcpListener, TcpStream};

use super::*;

fn encrypted(records_per_key: u64) -> Config {
    Config { encrypt: true, records_per_key, ..config() }
}

#[test]
fn puts_of_all_sizes_arrive_and_keys_change_meanwhile() {
    let sizes = [0, 1, 255, 4096, 65_535, 65_537, MIB + 3, 16 * MIB];
    // 16 MiB are at least 1024 records: hundreds of keys in each direction.
    let all = ranks_with(2, 16 * MIB, &encrypted(3));
    thread::scope(|s| {
        for (me, rank) in all.iter().enumerate() {
            s.spawn(move || {
                for (i, &len) in sizes.iter().enumerate() {
                    let bytes = pattern(len / 2, 2 * i + me);
                    let at = (me * len.div_ceil(2)) as u64;
                    let signal = rank.signal(me as u64, i as u64 + 1);
                    let ticket = rank.put(1 - me, &[&bytes], at, Some(signal)).unwrap();
                    rank.wait_flag(1 - me as u64, i as u64 + 1).unwrap();
                    let theirs = rank.bytes((1 - me) * len.div_ceil(2), len / 2);
                    assert!(theirs == pattern(len / 2, 2 * i + 1 - me), "{len} bytes");
                    rank.wait("a flush", || rank.tcp.link(1 - me).flushed(ticket)).unwrap();
                    // Both have read before either writes again.
                    rank.put(1 - me, &[], 0, Some(rank.signal(2 + me as u64, i as u64 + 1))).unwrap();
                    rank.wait_flag(3 - me as u64, i as u64 + 1).unwrap();
                    rank.wait_sent().unwrap();
                }
            });
        }
    });
    assert!(all[0].tcp.link(1).describe().starts_with("tcp encrypted 127.0.0.1:"));
}

#[test]
fn memory_of_the_caller_and_goodbyes_work_as_without() {
    let mut all = ranks_with(2, 8192, &encrypted(1 << 20));
    let (b, a) = (all.pop().unwrap(), all.pop().unwrap());
    let bytes = pattern(MIB, 1);
    let mut memory = vec![0; MIB];
    // SAFETY: `memory` is read after the signal, and withdrawn before it goes.
    let at = unsafe { b.tcp.link(0).land(memory.as_mut_ptr(), MIB as u64) }.unwrap();
    thread::scope(|s| {
        s.spawn(|| {
            // SAFETY: kept until the endpoint is dropped.
            unsafe { a.tcp.link(1).put(&[Part::of(&bytes)], at, Some(a.signal(0, 1))) }.unwrap();
            a.tcp.flush();
            a.wait_sent().unwrap();
        });
        b.wait_flag(0, 1).unwrap();
    });
    assert!(memory == bytes);
    b.tcp.link(0).withdraw(at);
    b.put(0, &[b"last words"], 0, Some(b.signal(0, 1))).unwrap();
    drop(b);
    a.wait("the goodbye", || a.tcp.lost(1).is_some()).unwrap();
    assert_eq!(a.bytes(0, 10), b"last words");
    assert!(a.tcp.lost(1).unwrap().contains("closed its endpoint"));
}

#[test]
fn ranks_that_do_not_agree_refuse_each_other() {
    for encrypts in [0, 1] {
        let configs = [encrypted(9), config()];
        let (mut listening, cards) = opened(2, &config());
        let secret = Secret::random();
        let b = start(listening.pop().unwrap(), 1, &cards, &secret, &configs[1 - encrypts], 4096);
        let a = start(listening.pop().unwrap(), 0, &cards, &secret, &configs[encrypts], 4096);
        let theirs = a.refused(1).to_string();
        let ours = text(b.wait("an error", || false));
        for e in [theirs, ours] {
            let (on_0, on_1) = (1 - encrypts, encrypts);
            assert!(e.contains(&format!("ND_ENCRYPT is {on_0} on rank 0 and {on_1} on rank 1")), "{e}");
        }
    }
}

/// What happens to the bytes between two ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mischief {
    Flip,
    Leave,
    Repeat,
    Cut,
}

/// After so many bytes from the rank that connected: in the middle of its payload.
const AT: usize = 300_000;

/// Passes bytes on, and does mischief once.
fn pass(mut from: TcpStream, mut to: TcpStream, mut mischief: Option<Mischief>) {
    let (mut buffer, mut total) = (vec![0; 50_000], 0);
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        total += n;
        let bytes = &mut buffer[..n];
        let now = mischief.filter(|_| total > AT && n > 100);
        if now.is_some() {
            mischief = None;
        }
        let passed = match now {
            None => to.write_all(bytes),
            Some(Mischief::Flip) => {
                bytes[n / 2] ^= 1;
                to.write_all(bytes)
            }
            Some(Mischief::Leave) => to.write_all(&bytes[n / 3..]),
            Some(Mischief::Repeat) => to.write_all(bytes).and_then(|()| to.write_all(bytes)),
            Some(Mischief::Cut) => to.write_all(&bytes[..n / 2]).and(Err(ErrorKind::BrokenPipe.into())),
        };
        if passed.is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

#[test]
fn whatever_is_done_to_the_bytes_between_them_is_noticed_and_never_seen() {
    for mischief in [Mischief::Flip, Mischief::Leave, Mischief::Repeat, Mischief::Cut] {
        let bytes: Vec<u8> = pattern(MIB, 5).iter().map(|b| b | 1).collect();
        let config = encrypted(7);
        let (mut listening, mut cards) = opened(2, &config);
        let secret = Secret::random();
        let port = cards[1].tcp.port;
        let b = start(listening.pop().unwrap(), 1, &cards, &secret, &config, MIB);
        let between = TcpListener::bind("127.0.0.1:0").unwrap();
        cards[1].tcp.port = between.local_addr().unwrap().port();
        let a = start(listening.pop().unwrap(), 0, &cards, &secret, &config, MIB);
        thread::scope(|s| {
            s.spawn(|| {
                let client = between.accept().unwrap().0;
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::scope(|s| {
                    s.spawn(|| pass(back.0, back.1, None));
                    pass(client, server, Some(mischief));
                });
            });
            let sends = s.spawn(|| {
                a.put(1, &[&bytes], 0, Some(a.signal(0, 1))).unwrap();
                let e = a.wait("an error", || false).unwrap_err();
                assert!(matches!(e, Error::PeerLost { rank: 1, .. }), "{mischief:?}: {e}");
            });
            let e = b.wait("an error", || false).unwrap_err();
            assert!(e.to_string().contains("rank 0"), "{mischief:?}: {e}");
            match mischief {
                Mischief::Cut => {
                    assert!(matches!(e, Error::PeerLost { rank: 0, .. }), "{e}");
                    assert!(e.to_string().contains("in the middle of a message"), "{e}");
                }
                _ => {
                    assert!(matches!(e, Error::Protocol { rank: 0, .. }), "{e}");
                    let e = e.to_string();
                    assert!(e.contains("does not authenticate") || e.contains("record of"), "{e}");
                }
            }
            // What had come before is right, and after it not a single byte was changed.
            let seen = b.bytes(0, MIB);
            let right = seen.iter().zip(&bytes).take_while(|(a, b)| a == b).count();
            assert!(right > 0 && right < MIB, "{mischief:?}: {right}");
            assert!(seen[right..].iter().all(|&v| v == 0), "{mischief:?}");
            assert_eq!(b.flag(0), 0);
            drop(b);
            sends.join().unwrap();
        });
    }
}
