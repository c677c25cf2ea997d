use std::time::Instant;

use super::*;
use crate::{Choice, Config, Endpoint, local};

/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Endpoints of two ranks, and their secret.
fn pair(choice: Choice) -> (Vec<Endpoint>, Secret) {
    let config = Config { transport: choice, loopback_only: true, ..Config::default() };
    let openings = [0, 1].map(|_| Endpoint::open(&config).expect("it opens"));
    let cards: Vec<_> = openings.iter().map(|o| o.card().clone()).collect();
    let (secret, deadline) = (Secret::random(), Instant::now() + SOON);
    let endpoints = std::thread::scope(|s| {
        let connect = |(rank, opening): (usize, crate::Opening)| {
            let (cards, secret) = (cards.clone(), secret.clone());
            s.spawn(move || opening.connect(rank, cards, &secret, deadline).expect("it connects"))
        };
        let threads: Vec<_> = openings.into_iter().enumerate().map(connect).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    (endpoints, secret)
}

fn every() -> Vec<(Vec<Endpoint>, Secret)> {
    let threads = (local::group(2, &Config::default()).expect("endpoints"), Secret::random());
    vec![threads, pair(Choice::Shm), pair(Choice::Tcp)]
}

fn said(from: usize, message: &[u8]) -> Option<Heard> {
    Some(Heard::Said { from, message: message.into() })
}

#[test]
fn what_is_said_before_the_other_listens_is_heard_when_it_does_and_leaving_is_too() {
    for (endpoints, secret) in every() {
        let mut early = endpoints[0].parley(&secret).expect("a parley");
        early.say(1, b"first".into()).expect("a thread");
        early.say(1, vec![7; 1 << 20]).expect("a thread");
        let mut late = endpoints[1].parley(&secret).expect("a parley");
        assert_eq!(late.hear(SOON), said(0, b"first"));
        assert_eq!(late.hear(SOON), said(0, &[7; 1 << 20]));
        late.say(0, b"back".into()).expect("a thread");
        assert_eq!(early.hear(SOON), said(1, b"back"));
        early.say(1, b"last".into()).expect("a thread");
        drop(early);
        assert_eq!(late.hear(SOON), said(0, b"last"));
        assert_eq!(late.hear(SOON), Some(Heard::Left { peer: 0 }));
    }
}

#[test]
fn a_parley_ends_at_once_although_nobody_listens() {
    for (mut endpoints, secret) in every() {
        drop(endpoints.pop());
        let mut alone = endpoints[0].parley(&secret).expect("a parley");
        alone.say(1, b"anybody?".into()).expect("a thread");
        if endpoints[0].transports()[0] == "tcp" {
            assert_eq!(alone.hear(SOON), Some(Heard::Closed { peer: 1 }));
        }
        let began = Instant::now();
        drop(alone);
        assert!(began.elapsed() < SOON);
    }
}

#[test]
fn who_does_not_know_the_secret_is_not_heard() {
    let (endpoints, secret) = pair(Choice::Shm);
    let hears = endpoints[1].parley(&secret).expect("a parley");
    let mut wrong = endpoints[0].parley(&Secret::random()).expect("a parley");
    wrong.say(1, b"let me in".into()).expect("a thread");
    let mut right = endpoints[1].parley(&secret).err().map(|_| ()).into_iter();
    assert!(right.next().is_some(), "one parley at a time");
    assert_eq!(hears.hear(Duration::from_millis(300)), None);
    drop(wrong);
    let mut right = endpoints[0].parley(&secret).expect("a parley");
    right.say(1, b"it is me".into()).expect("a thread");
    assert_eq!(hears.hear(SOON), said(0, b"it is me"));
}
