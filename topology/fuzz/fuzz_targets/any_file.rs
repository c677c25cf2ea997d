#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_topology::formats;

// What kind of file it is, too.
fuzz_target!(|text: &str| {
    let _ = formats::guess(text);
    let _ = formats::read_any(text);
});
