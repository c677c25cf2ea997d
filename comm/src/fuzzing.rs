//! Parsers that are private, for the fuzz targets in `comm/fuzz`.

use crate::config::Config;
use crate::exec::report::Report;
use crate::exec::stamp::Stamp;
use crate::rendezvous::wire;

/// The messages of a start.
pub fn rendezvous(bytes: &[u8]) {
    if let Some(hello) = wire::decode_hello(bytes) {
        assert_eq!(wire::decode_hello(&wire::encode_hello(&hello)), Some(hello));
    }
    if let Some(verdict) = wire::decode_verdict(bytes) {
        assert_eq!(wire::decode_verdict(&wire::encode_verdict(&verdict)), Some(verdict));
    }
}

/// What a failing rank tells the others, and the stamps of calls, as they are shown to the user.
pub fn report(bytes: &[u8]) {
    let mut whole = [0; crate::exec::layout::REPORT];
    let n = bytes.len().min(whole.len());
    whole[..n].copy_from_slice(&bytes[..n]);
    // What was replaced for being no text may be longer than it was, and cut off the first time.
    let once = Report::decode(&Report::decode(&whole).encode());
    assert_eq!(Report::decode(&once.encode()), once);
    let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| whole[8 * i + b]));
    let (one, other) = (
        Stamp::from_wire(word(0), word(1), word(2) as u32),
        Stamp::from_wire(word(3), word(4), word(5) as u32),
    );
    assert!(!one.beside(&other).is_empty());
}

/// A configuration file.
pub fn config_file(text: &str) {
    let mut config = Config::default();
    if config.read_toml(text, "nd.toml".into()).is_ok() {
        let _ = config.settings();
    }
}
