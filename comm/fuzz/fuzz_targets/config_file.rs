#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| nd_comm::fuzzing::config_file(text));
