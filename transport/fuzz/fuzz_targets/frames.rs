#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_transport::tcp::wire::{Decoder, Step};

// The first byte says in what pieces the others come; frames are the same for every cut.
fuzz_target!(|bytes: &[u8]| {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let decode = |pieces: std::slice::Chunks<'_, u8>| {
        let (mut decoder, mut seen, mut payload) = (Decoder::default(), vec![], 0);
        for mut input in pieces {
            loop {
                match decoder.next(&mut input) {
                    Ok(Step::More) => break,
                    Ok(Step::Begin(put)) => payload = put.len,
                    Ok(Step::Payload { put, done, bytes }) => {
                        assert!(done + bytes.len() as u64 <= put.len);
                        payload -= bytes.len() as u64;
                    }
                    Ok(Step::Done(put)) => {
                        assert_eq!(payload, 0);
                        seen.push(Ok(Some(put)));
                    }
                    Ok(Step::Goodbye | Step::Refusal) => seen.push(Ok(None)),
                    Err(e) => {
                        seen.push(Err(e));
                        return seen;
                    }
                }
            }
        }
        seen
    };
    let whole = decode(bytes.chunks(bytes.len().max(1)));
    assert_eq!(whole, decode(bytes.chunks(usize::from(cut).max(1))));
});
