#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_topology::providers;

fuzz_target!(|text: &str| {
    let _ = providers::measured::parse(text);
});
