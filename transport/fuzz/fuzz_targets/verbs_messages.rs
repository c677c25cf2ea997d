#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_transport::verbs::wire::{self, What};

// Bytes are refused, or say what would be sent as these bytes: all that has a meaning in them is kept.
fuzz_target!(|bytes: &[u8]| {
    let Ok(message) = wire::parse(bytes) else { return };
    let mut again = match message.what {
        What::Put { at, payload, signal } => [&wire::put(at, signal)[..], payload].concat(),
        What::WhichKey { at } => wire::which_key(at).to_vec(),
        What::Key(key) => wire::key(&key).to_vec(),
        What::Forget { number } => wire::forget(number).to_vec(),
        What::Count => wire::count().to_vec(),
        What::Tell => wire::tell().to_vec(),
        What::Written => wire::written().to_vec(),
    };
    wire::stamp(&mut again, message.taken, message.number);
    assert!(again.len() == bytes.len() && again.len() <= wire::MESSAGE);
    assert_eq!(wire::is_count(bytes), message.what == What::Count);
    assert_eq!(wire::parse(&again), Ok(message));
});
