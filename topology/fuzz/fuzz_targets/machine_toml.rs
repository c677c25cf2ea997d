#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_topology::library;

fuzz_target!(|text: &str| {
    let _ = library::from_toml(text);
});
