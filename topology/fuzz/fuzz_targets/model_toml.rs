#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_topology::placement::Model;

fuzz_target!(|text: &str| {
    let _ = Model::from_toml(text);
});
