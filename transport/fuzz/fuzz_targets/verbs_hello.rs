#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_transport::verbs::hello::{Hello, decode, encode};

// Whatever a peer says of the queue pairs of so many rails is a reason, or would be said with these bytes.
fuzz_target!(|input: (u8, &[u8])| {
    let (rails, bytes) = (usize::from(input.0 % 4) + 1, input.1);
    let said = decode::<Hello>(bytes, rails);
    assert_eq!(said.len(), rails);
    if said.iter().all(Result::is_ok) {
        assert_eq!(encode(&said), bytes);
    }
    assert_eq!(decode::<Hello>(&encode(&said), rails), said);
    let verdicts = decode::<()>(bytes, rails);
    assert_eq!(decode::<()>(&encode(&verdicts), rails), verdicts);
});
