#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_topology::formats;

fuzz_target!(|text: &str| {
    let _ = formats::nvidia_smi::read(text);
});
