#![no_main]

use libfuzzer_sys::fuzz_target;

// The file alone: the commands would take minutes to build.
#[allow(dead_code)]
#[path = "../../src/bench/size.rs"]
mod size;

fuzz_target!(|text: &str| {
    if let Ok(bytes) = size::parse(text) {
        assert_eq!(size::parse(&bytes.to_string()), Ok(bytes));
        assert!(!size::show(bytes).is_empty());
    }
});
