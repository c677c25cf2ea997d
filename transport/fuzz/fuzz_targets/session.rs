#![no_main]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use libfuzzer_sys::fuzz_target;
use nd_transport::secure::{Secret, initiate, respond};

// A peer that knows the secret, and then says anything: inside its session, and instead of it.
fuzz_target!(|bytes: &[u8]| {
    let secret = Secret::from_bytes([7; 32]);
    let (a, b) = UnixStream::pair().expect("two sockets");
    let bytes = &bytes[..bytes.len().min(20_000)];
    std::thread::scope(|s| {
        let answer = s.spawn(|| respond(b, &secret, b"x").expect("one secret"));
        let mut ours = initiate(a, &secret, b"x").expect("one secret");
        let mut theirs = answer.join().expect("no panic");
        ours.send(bytes).expect("it fits");
        match theirs.receive(10_000) {
            Ok(received) => assert_eq!(received, bytes),
            Err(_) => assert!(bytes.len() > 10_000),
        }
        if bytes.len() <= 10_000 {
            let mut raw = ours.into_inner();
            raw.write_all(bytes).expect("it fits");
            raw.shutdown(std::net::Shutdown::Both).expect("it is open");
            assert!(theirs.receive(10_000).is_err());
            let _ = theirs.into_inner().read(&mut [0; 16]);
        }
    });
});
