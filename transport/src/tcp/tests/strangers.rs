//! Who is not let in, and what that costs.

use std::net::TcpStream;

use super::*;
use crate::secure::{initiate, respond};

/// A stream that keeps what is written to it.
struct Recorder {
    stream: TcpStream,
    written: Vec<u8>,
}

impl Read for Recorder {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.written.extend_from_slice(bytes);
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn knock(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Whether the other side ends the connection, whatever it says before.
fn is_sent_away(mut stream: TcpStream) -> bool {
    let mut buffer = [0; 256];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) => return e.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn a_recorded_handshake_another_job_and_a_wrong_identity_are_sent_away() {
    let (listening, cards) = opened(2, &config());
    let secret = Secret::random();
    let all: Vec<Rank> = listening
        .into_iter()
        .enumerate()
        .map(|(me, l)| start(l, me, &cards, &secret, &config(), 4096))
        .collect();
    let port = all[1].port;

    // A peer that knows the secret, up to where it would be welcome.
    let recorder = Recorder { stream: knock(port), written: vec![] };
    let mut session = initiate(recorder, &secret, accept::CONTEXT).unwrap();
    let wrong = identity::Identity { from: 0, to: 7, encrypts: false, talks: false };
    session.send(&wrong.encode()).unwrap();
    let answer = session.receive(256).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "rank 0 looks for rank 7, and this is rank 1");
    let recorded = session.into_inner().written;

    // The same bytes again.
    let mut stream = knock(port);
    stream.write_all(&recorded).unwrap();
    assert!(is_sent_away(stream));

    // A rank of another job: the secret of its communicator is another; or another kind of connection.
    for (secret, context) in [(&Secret::random(), accept::CONTEXT), (&secret, b"nd rendezvous 1")] {
        let e = text(initiate(knock(port), secret, context));
        assert!(e.contains("does not know the secret of this job (ND_SECRET), or belongs to another"), "{e}");
    }

    // No identity at all.
    let mut session = initiate(knock(port), &secret, accept::CONTEXT).unwrap();
    session.send(&[7; identity::IDENTITY]).unwrap();
    assert!(session.receive(256).is_err());

    all[0].put(1, &[b"hello"], 0, Some(all[0].signal(0, 1))).unwrap();
    all[1].wait_flag(0, 1).unwrap();
    assert_eq!(all[1].bytes(0, 5), b"hello");
}

#[test]
fn more_than_there_is_room_for_push_out_the_oldest_and_a_peer_comes_in() {
    let all = ranks(2, 4096);
    let port = all[1].port;
    let mut silent: Vec<TcpStream> = (0..accept::UNPROVEN + 40).map(|_| knock(port)).collect();
    assert!(is_sent_away(silent.remove(0)));
    // As many as there are threads greet properly and then say no more.
    let mut greeting = Recorder { stream: knock(port), written: vec![] };
    greeting.stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let _ = initiate(&mut greeting, &Secret::random(), b"");
    let greeting = &greeting.written[..crate::secure::HELLO_LEN];
    let mut stuck: Vec<TcpStream> = (0..2 * accept::WORKERS).map(|_| knock(port)).collect();
    stuck.iter_mut().for_each(|stream| stream.write_all(greeting).unwrap());
    all[0].put(1, &[b"hello"], 0, Some(all[0].signal(0, 1))).unwrap();
    all[1].wait_flag(0, 1).unwrap();
    assert_eq!(all[1].bytes(0, 5), b"hello");
}

/// A peer whose first connection is ended without a word, as when room is made for others, comes again.
#[test]
fn a_peer_that_was_pushed_out_comes_again() {
    let (mut listening, mut cards) = opened(2, &config());
    let secret = Secret::random();
    drop(listening.pop());
    let moody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    cards[1].tcp.port = moody.local_addr().unwrap().port();
    let a = start(listening.pop().unwrap(), 0, &cards, &secret, &config(), 4096);
    thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..5 {
                drop(moody.accept().unwrap());
            }
            let stream = moody.accept().unwrap().0;
            let mut session = respond(stream, &secret, accept::CONTEXT).unwrap();
            session.receive(identity::IDENTITY).unwrap();
            session.send(accept::WELCOME).unwrap();
            assert_eq!(session.receive(16).unwrap(), accept::CONFIRMED);
        });
        a.put(1, &[b"x"], 0, None).unwrap();
    });
}
