#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_topology::placement::Mesh;

fuzz_target!(|text: &str| {
    let _ = Mesh::parse(text, 64);
});
