#![no_main]

use std::io::{Cursor, Read, Write};

use libfuzzer_sys::fuzz_target;
use nd_transport::secure::{Secret, greets, initiate, respond};

/// What a stranger says; what it hears is lost.
struct Stranger<'a>(Cursor<&'a [u8]>);

impl Read for Stranger<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Stranger<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// Whatever it says, nobody without the secret is let in.
fuzz_target!(|bytes: &[u8]| {
    let secret = Secret::from_bytes([7; 32]);
    let _ = greets(bytes);
    assert!(respond(Stranger(Cursor::new(bytes)), &secret, b"x").is_err());
    assert!(initiate(Stranger(Cursor::new(bytes)), &secret, b"x").is_err());
    for magic in [b"nd-open\n", b"nd-answ\n"] {
        let greeting = [&magic[..], &nd_transport::PROTOCOL.to_le_bytes(), &[0; 20], bytes].concat();
        assert!(respond(Stranger(Cursor::new(&greeting)), &secret, b"x").is_err());
        assert!(initiate(Stranger(Cursor::new(&greeting)), &secret, b"x").is_err());
    }
});
