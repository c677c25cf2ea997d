#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_transport::verbs::hello::{decode, encode};

// Whatever a peer says of its queue pair is a reason, or would be said with these bytes.
fuzz_target!(|bytes: &[u8]| {
    let said = decode(bytes);
    match &said {
        Ok(_) => assert_eq!(encode(&said), bytes),
        Err(_) => assert_eq!(decode(&encode(&said)), said),
    }
});
